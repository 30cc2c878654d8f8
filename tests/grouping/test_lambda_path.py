"""Lambda by the paper's two strategies: they choose well, by validation rows alone, and count what they send."""

from dataclasses import replace

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.grouping.lambda_path import FINAL_STAGE, N_LAMBDAS, LambdaPath, no_worse, path_rounds
from fedfuse.methods.registry import from_config
from fedfuse.report.explanations import tried_lambdas
from fedfuse.training import loop
from fedfuse.training.options import build, parse_options
from fedfuse.training.stages import stages_of
from support.planted import Keep, planted

EXACT = ff.Work(solver="exact")
GRID = [0, 0.1, 0.4, 1.0, 20.0]
BARE = ff.FPFC(lam=0.0, refit=False, work=EXACT)
STRATEGIES = ["warmup", "separate"]


class Tuning:
    """A run along a path of lambdas, and what its history says of each."""

    def __init__(self, result):
        self.result, self.lam, self.table = result, result.lam, tried_lambdas(result)
        history = result.history[result.history["watched"].notna() | result.history["groups"].notna()]
        self.curve = history[["lam", "stage"]].assign(validation=history["watched"]).reset_index(drop=True)


def tune(federation, method=BARE, strategy="warmup", grid=(), *, rounds=500, **settings):
    """Run a path of its own limit: of each lambda with ``separate``, of the way to the models with ``warmup``."""
    path = LambdaPath(inner=method, strategy=strategy, grid=tuple(grid), limit=rounds)
    total = path_rounds(strategy, len(path.grid) or N_LAMBDAS + 1, rounds)
    return Tuning(ff.fit(federation, path, rounds=2 * total if method.refit else total, **settings))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_the_groups_are_found_and_the_best_is_chosen(goal, strategy):
    grid = GRID if goal == "regression" else [0, 0.02, 0.05, 0.1, 20.0]
    federation = planted(goal, m=8, n=80, noise=0.5)
    tuning = tune(federation, BARE, strategy, grid, rounds=120)
    if goal == "regression":  # of classes the accuracy alone says too little here
        assert tuning.result.ari == 1
    assert tuning.result.lam == tuning.lam == tuning.table.loc[tuning.table["chosen"], "lam"].item()
    best = tuning.table["validation"].max() if goal == "classification" else tuning.table["validation"].min()
    one, simplest = (
        tuning.table.loc[tuning.table["chosen"]].iloc[0],
        tuning.table.loc[tuning.table["validation"] == best],
    )
    assert one["n_clusters"] <= simplest["n_clusters"].min()
    assert one["validation"] == pytest.approx(best, rel=0.03)
    assert tuning.table["n_clusters"].iloc[0] == 8  # lambda 0


def test_of_lambdas_within_a_standard_error_the_fewest_groups_are_chosen():
    """Four devices: the second row is behind by 0.01 ± 0.012, the third by 0.05 ± 0.012 (standard errors)."""
    spread = 0.012 * np.sqrt(3) * np.array([1, -1, 1, -1])
    scores = np.array([np.full(4, 0.9), 0.89 + spread, 0.85 + spread])
    np.testing.assert_array_equal(no_worse(scores), [True, True, False])
    np.testing.assert_array_equal(no_worse(scores, precision=0.06), [True, True, True])
    unknown = np.where([True, False, True, True], scores, np.nan)  # a device that was not heard
    np.testing.assert_array_equal(no_worse(unknown), [True, True, False])
    diverged = np.vstack([scores, np.full(4, -np.inf)])
    np.testing.assert_array_equal(no_worse(diverged), [True, True, False, False])


def test_warm_up_stops_when_validation_falls_and_goes_back():
    federation = planted(m=8, n=80, noise=0.5)
    keep = Keep()
    tuning = tune(federation, BARE, "warmup", [0, 0.4, 20.0, 40.0], rounds=100, callbacks=[keep])
    assert tuning.table["lam"].tolist() == [0, 0.4, 20.0]  # 40 was never tried
    assert tuning.lam == 0.4
    stages = tuning.curve["stage"].tolist()
    assert stages.index(FINAL_STAGE) == tuning.table["rounds"].sum()
    # from the snapshot on: as good as when it was left, and not as bad as the last lambda
    onwards = tuning.curve[tuning.curve["stage"] == FINAL_STAGE]
    assert onwards["validation"].iloc[0] == pytest.approx(tuning.table["validation"][1], rel=0.05)
    assert keep.run.state.fusion.pairs.penalty.lam == 0.4


def test_training_on_that_ends_worse_is_taken_back(monkeypatch):
    """What was chosen is kept, should the rounds after the choice spoil it; here they are judged so."""
    federation, keep = planted(m=8, n=80, noise=0.5), Keep()
    judge = LambdaPath._judge

    def spoil(path, state, devices, scores):
        judge(path, state, devices, scores if state.choosing else 2 * scores)

    good = tune(federation, BARE, "warmup", [0, 0.4], rounds=24, tol=0).result
    monkeypatch.setattr(LambdaPath, "_judge", spoil)
    spoilt = tune(federation, BARE, "warmup", [0, 0.4], rounds=24, tol=0, callbacks=[keep]).result
    state = keep.run.state
    np.testing.assert_array_equal(state.fusion.pairs.omega, state.kept["omega"])
    assert good.rounds == spoilt.rounds
    assert not np.array_equal(good.models, spoilt.models)


def test_warm_up_starts_each_lambda_where_the_last_ended_and_separate_does_not():
    federation = planted(m=6, n=60, noise=0.5)
    warm = tune(federation, BARE, "warmup", [0, 0.05], rounds=60).curve
    cold = tune(federation, BARE, "separate", [0, 0.05], rounds=60).curve
    first = {name: curve.loc[curve["lam"] == 0.05, "validation"].iloc[0] for name, curve in (("w", warm), ("c", cold))}
    start = cold["validation"].iloc[0]
    assert first["c"] == pytest.approx(start, rel=0.1)
    assert first["w"] < 0.6 * start


def test_separate_is_fit_from_a_fresh_start():
    """A lambda is judged by the groups' models of a plain run with it, in one round more."""
    federation = planted(m=6, n=60, noise=0.5)
    tuning = tune(federation, BARE, "separate", [0.1, 0.4], rounds=15)
    for row in tuning.table.itertuples():
        plain = ff.fit(federation, replace(BARE, lam=row.lam, rows="train"), rounds=15, evaluate_every=15, tol=0)
        assert row.validation == pytest.approx(plain.score("validation"), rel=1e-5)
        assert row.n_clusters == plain.n_clusters
        assert row.rounds == 15 + 1


def test_grid_comes_from_distances_where_none_is_given():
    federation = planted(m=8, n=80, noise=0.5)
    for strategy in STRATEGIES:
        tuning = tune(federation, BARE, strategy, rounds=100)
        assert tuning.table["lam"].iloc[0] == 0
        assert tuning.result.ari == 1


@pytest.mark.parametrize(
    ("dataset", "strategy", "last", "rounds"),
    [
        ("synthetic:S3", "separate", 1.0, 2000),
        ("synthetic:S3", "warmup", 3.5, 2000),
        ("housing-bodyfat", "separate", 5.0, 200),
        ("housing-bodyfat", "warmup", 5.0, 200),
    ],
)
def test_with_the_papers_preset_every_training_has_its_rounds(dataset, strategy, last, rounds):
    """Section 6.1 and 6.3: ranges of lambda, and as many rounds for a lambda as a run with it alone has."""
    method, settings = build(dataset, "fpfc", parse_options([f"lam={strategy}", "preset=paper"]))
    (stage,) = stages_of(method, ff.LinearRegression(), settings["rounds"])
    assert (stage.method.strategy, stage.method.grid[0], stage.method.grid[-1]) == (strategy, 0.0, last)
    assert stage.method.limit == rounds
    assert stage.method.inner.start == "normal"
    assert stage.method.inner.nu is None


def test_l1_can_be_tuned():
    tuning = tune(planted(m=6, n=60, noise=0.5), ff.FPFCL1(refit=False, work=EXACT), grid=[0, 0.1, 10.0], rounds=60)
    assert tuning.lam in (0, 0.1)


def test_refit_follows_where_it_is_asked_for():
    federation = planted(m=6, n=80)
    tuning = tune(federation, ff.FPFC(lam=0.0, work=EXACT, refit=True), grid=GRID, rounds=80)
    tried = set(tuning.curve["stage"])
    refit = [stage["rounds"] for stage in tuning.result.stages if stage["name"] not in tried]
    assert refit
    assert len(tuning.curve) == tuning.result.rounds - sum(refit)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_test_rows_never_matter(strategy):
    federation = planted(m=6, n=60)
    y = federation.y.copy()
    for start, stop in federation.cuts[:, 2:]:
        y[start:stop] = 1e3
    a, b = (tune(f, BARE, strategy, GRID, rounds=40) for f in (federation, replace(federation, y=y)))
    np.testing.assert_array_equal(a.result.models, b.result.models)
    assert a.table["validation"].equals(b.table["validation"])


def test_validation_rows_are_never_trained_on():
    federation = planted(m=6, n=60)
    y = federation.y.copy()
    for _, start, stop, _ in federation.cuts:
        y[start:stop] += 100.0
    a, b = (tune(f, BARE, "separate", [0.4], rounds=20) for f in (federation, replace(federation, y=y)))
    np.testing.assert_array_equal(a.result.models, b.result.models)
    assert a.result.score("validation") < b.result.score("validation")


def test_cost_by_hand():
    """Two lambdas of 3 rounds: d down (anchor) and d + 1 up (model and score) for each, and models to start from.

    When a lambda is judged, every device gets its group's model and sends a score.
    """
    federation = planted(m=4, p=3, groups=2)
    m, d = 4, 4
    tuning = tune(federation, BARE, "separate", [0.1, 0.4], rounds=3, tol=0)
    first, second = tuning.table["cost_floats"]
    assert first == m * d + 3 * m * (2 * d + 1) + m * (d + 1)
    assert second == first  # the fresh start is sent with the first task
    assert tuning.result.cost_floats == first + second


def test_step_back_sends_the_models_again():
    federation = planted(m=4, p=3, groups=2, noise=0.5)
    m, d = 4, 4
    tuning = tune(federation, BARE, "warmup", [0.4, 20.0], rounds=50)
    assert tuning.lam == 0.4
    judged = int(tuning.result.history["groups"].notna().sum())
    trained = len(tuning.curve) - judged
    assert tuning.result.cost_floats == m * d + trained * m * (2 * d + 1) + judged * m * (d + 1) + m * d


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_resumed_anywhere_equals_uninterrupted(strategy, tmp_path, monkeypatch):
    federation = planted(m=5, n=30, noise=0.5)
    settings = {"rounds": 30, "participation": 0.5, "checkpoint_every": 1}
    whole = tune(federation, BARE, strategy, [0, 0.4, 20.0], **settings)
    ends = np.cumsum(whole.table["rounds"])
    save = loop.Run.save
    for stop in (3, *ends[:-1], ends.iloc[-1] - 1):
        out = tmp_path / str(stop)

        def interrupt(run, stop=stop):
            if run.k == stop:
                save(run)
                raise KeyboardInterrupt

        monkeypatch.setattr(loop.Run, "save", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tune(federation, BARE, strategy, [0, 0.4, 20.0], out=out, **settings)
        monkeypatch.setattr(loop.Run, "save", save)
        resumed = Tuning(ff.resume(out, federation))
        np.testing.assert_array_equal(resumed.result.models, whole.result.models)
        assert resumed.lam == whole.lam
        assert resumed.result.cost_floats == whole.result.cost_floats
        assert resumed.curve["validation"].tolist() == whole.curve["validation"].tolist()


def test_saved_and_read_again(tmp_path):
    tuning = tune(planted(m=6, n=60), BARE, grid=GRID, rounds=40, out=tmp_path / "run")
    again = Tuning(ff.Result.load(tmp_path / "run"))
    assert again.lam == tuning.lam
    assert again.table["rounds"].tolist() == tuning.table["rounds"].tolist()
    assert tried_lambdas(ff.fit(planted(), ff.FPFC(lam=0.4, work=EXACT, refit=True), rounds=3)) is None


def test_configuration_is_read_again():
    method = LambdaPath(inner=ff.FPFC(lam=0.0, rho=2.0, refit=True), strategy="separate", grid=(0, 1), limit=7)
    assert from_config(method.to_config()) == method


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"grid": [1, 0.5]}, "must increase"),
        ({"grid": [-1, 0]}, "at least 0"),
        ({"grid": [0, 1e-5]}, "xi"),
        ({"strategy": "random"}, "warmup"),
        ({"rounds": 0}, "at least 1"),
        ({"method": ff.CFL()}, "not for cfl"),
    ],
)
def test_bad_input_is_named(given, words):
    with pytest.raises(ff.FedfuseError, match=words):
        tune(planted(), **given)
