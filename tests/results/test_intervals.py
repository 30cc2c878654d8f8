"""Confidence intervals: in the table's units, beside a run's other files, and right 95 times out of 100."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedfuse as ff
from fedfuse.results.intervals import AVERAGE_INTERCEPT, feature_tests
from fedfuse.results.result import Result
from support.planted import planted, visits


@pytest.fixture(scope="module")
def stays():
    federation = ff.Federation.from_frame(visits().drop(columns="outcome"), device="site", target="stay")
    result = ff.fit(federation)
    return federation, replace(result, intervals=result.infer(federation))


REPEATS = 600  # Of each federation: the standard error of a share is then below 0.7 points.


def own(table, group):
    return table[(table["against"] == 0) & (table["group"] == group)].set_index("feature")


def test_estimates_are_least_squares_in_the_units_of_the_table(stays):
    federation, result = stays
    rows, encoder = federation.rows("train+validation"), federation.encoder
    inside = np.flatnonzero(result.group_numbers == 1)
    X, y = (np.concatenate(parts) for parts in zip(*map(rows.of, inside), strict=True))
    offsets, scales = np.array([pair for column in encoder.columns for pair in column.features.values()]).T
    raw = pd.DataFrame(X * scales + offsets, columns=encoder.features).drop(columns="ward=east")
    expected = np.linalg.lstsq(np.column_stack([raw, np.ones(len(y))]), y, rcond=None)[0]
    found = own(result.intervals, 1)["estimate"]
    np.testing.assert_allclose(found[[*raw.columns, "intercept"]], expected, rtol=1e-6, atol=1e-9)
    at_average = found["intercept"] + sum(o * found.get(f, 0.0) for o, f in zip(offsets, encoder.features, strict=True))
    assert found[AVERAGE_INTERCEPT] == pytest.approx(at_average)


def test_differences_are_those_of_independent_groups(stays):
    table = stays[1].intervals
    first, second, between = own(table, 1), own(table, 2), table[table["against"] == 1].set_index("feature")
    np.testing.assert_allclose(between["estimate"], second["estimate"] - first["estimate"])
    np.testing.assert_allclose(between["se"], np.hypot(first["se"], second["se"]))
    assert between.loc["age", "p_holm"] < 1e-6
    assert between.loc["ward=south", "p_holm"] > 0.05
    assert (between["detectable"] > 2.8 * between["se"]).all()


def test_two_classes_have_the_log_odds_that_the_terminal_prints():
    federation = ff.Federation.from_frame(visits().drop(columns="stay"), device="site", target="outcome")
    result = ff.fit(federation)
    table = result.infer(federation)
    cluster = int(result.groups[0])
    assert set(table["output"]) == {federation.classes[1]}
    ours, models = own(table, 1)["estimate"], result.coefficients().loc[(cluster, str(federation.classes[1]))]
    assert ours["age"] == pytest.approx(models["age"], rel=0.05)


def test_they_survive_the_directory(stays, tmp_path):
    _, result = stays
    result.save(tmp_path)
    pd.testing.assert_frame_equal(Result.load(tmp_path).intervals, result.intervals)
    contrasts = pd.read_csv(tmp_path / "contrasts.csv", index_col="feature")
    np.testing.assert_allclose(contrasts["contrast"], result.contrasts())
    assert contrasts.loc["age", "p_holm"] < 1e-6
    assert contrasts.loc[["intercept"], ["p_holm", "detectable"]].notna().all(axis=None)
    replace(result, intervals=None).save(tmp_path / "without")
    assert Result.load(tmp_path / "without").intervals is None
    assert list(pd.read_csv(tmp_path / "without" / "contrasts.csv")) == ["feature", "contrast"]


def test_one_group_has_coefficients_and_no_differences():
    federation = planted("regression", groups=1)
    result = ff.fit(federation, ff.FusionTree())
    result = replace(result, labels=np.zeros_like(result.labels))
    table = result.infer(federation)
    assert (table["against"] == 0).all()
    assert feature_tests(table).empty


def test_a_column_that_others_determine_is_left_out():
    frame = visits().drop(columns="outcome")
    frame["wing"] = np.where(frame["ward"] == "north", "old", "new")
    federation = ff.Federation.from_frame(frame, device="site", target="stay")
    found = own(ff.fit(federation).infer(federation), 1)
    assert found["se"].notna().all()
    assert [name for name in found.index if "=" in name] == ["ward=south", "wing=old"]
    assert found.loc["wing=old", "estimate"] == pytest.approx(1.0, abs=0.05)


def test_networks_and_other_federations_are_refused(stays):
    federation, result = stays
    with pytest.raises(ff.FedfuseError, match="not the federation of the run"):
        result.infer(planted("regression"))
    pytest.importorskip("torch")
    network = replace(result, model=ff.MLP().sized(federation.n_features, 0))
    with pytest.raises(ff.FedfuseError, match="linear and softmax regression with at most"):
        network.infer(federation)


def simulated(rng, goal, m, n):
    """Return a federation of two far-apart groups in m devices each, noise 1 : 2 : 4 between devices; and the truth."""
    C = {"regression": 0, "two classes": 2, "three classes": 3}[goal]
    w = np.stack([rng.normal(size=(max(C - 1, 1), 4)) for _ in range(2)])
    w[:, :, 0] = [[2.0], [-2.0]]  # They differ so much that groups are found as they are.
    devices, labels = [], np.arange(2 * m) % 2
    for group in labels:
        X = rng.normal(size=(rng.integers(n, 3 * n), 3)) + 0.5 * rng.normal(size=3)
        scores = np.column_stack([X, np.ones(len(X))]) @ w[group].T
        if C:
            utilities = np.column_stack([np.zeros(len(X)), scores]) + rng.gumbel(size=(len(X), C))
            devices.append((X, utilities.argmax(axis=1)))
        else:
            noise = 0.3 * 2.0 ** rng.integers(3) * np.exp(0.3 * X[:, 1])
            devices.append((X, scores[:, 0] + noise * rng.normal(size=len(X))))
    return ff.Federation.from_arrays(devices, truth=labels), w


@pytest.mark.slow
@pytest.mark.parametrize(("goal", "m", "n"), [
    ("regression", 3, 40), ("regression", 8, 40), ("regression", 20, 30), ("two classes", 3, 80),
    ("two classes", 10, 60), ("three classes", 8, 80),
])  # fmt: skip
def test_coverage_is_95_per_cent(goal, m, n):
    rng = np.random.default_rng(m + n)
    inside = {"slopes": [], "intercept": [], "slopes, differences": [], "intercept, differences": []}
    for seed in range(REPEATS):
        federation, w = simulated(rng, goal, m, n)
        result = ff.fit(federation, "oracle", seed=seed)
        table, numbers = result.infer(federation), result.group_numbers
        truth = {int(numbers[i]): w[i] for i in (0, 1)}
        for (group, against), part in table.groupby(["group", "against"]):
            true = truth[group] - (truth[against] if against else 0.0)
            hits = ((part["low"] <= true.ravel()) & (true.ravel() <= part["high"])).to_numpy().reshape(true.shape)
            suffix = ", differences" if against else ""
            inside[f"slopes{suffix}"].append(hits[:, :-1].ravel())
            inside[f"intercept{suffix}"].append(hits[:, -1])
    shares = {name: round(float(np.concatenate(hits).mean()), 4) for name, hits in inside.items()}
    print(goal, m, n, shares)
    assert all(0.93 < share < 0.97 for share in shares.values()), shares
