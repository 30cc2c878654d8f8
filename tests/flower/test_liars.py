"""One of eight nodes lies: the others' models stay what they are without it, and it is named."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")

import fedfuse as ff
from fedfuse.flower import client_app
from fedfuse.flower import engine as engine_module
from fedfuse.flower import node_registry as nodes
from fedfuse.flower.server import serve
from fedfuse.protocol.tasks import Gradient, Score
from fedfuse.results.result import Result
from support.liars import false_score, hello_with, reply_with, times
from support.local_grid import LocalGrid
from support.planted import planted

HONEST = range(1, 8)
METHODS = {
    "tree, moments": {"set": "share=moments"},
    "tree, models": {},
    "fpfc and refit, moments": {"lam": "3.0", "set": "solver=exact refit=yes share=moments"},
    "fpfc and refit, models": {"lam": "3.0", "set": "solver=exact refit=yes"},
    "fpfc": {"lam": "3.0", "set": "solver=exact"},
}
LIES = {
    "summary": reply_with(0, times(1000.0)),
    "gradients": reply_with(0, times(1000.0, Gradient)),
    "rows": hello_with("0", rows=[10**12, 10**12, 10]),
    "score": reply_with(0, false_score(1e30)),
}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    for module in (nodes, engine_module):
        monkeypatch.setattr(module, "RESCAN_SECONDS", 0.0)


def served(federation, out, config, lie=None):
    grid = LocalGrid(client_app(lambda name, config: federation.only([int(name)])), federation.m)
    if lie is not None:
        grid.forge = lie
    return serve(grid, {"out": str(out), **config})


def rmse(result, federation, devices):
    """The mean over devices, by their own test rows and whatever a result calls them."""
    errors = [result.predict(name, X) - y for name, (X, y) in zip(devices, federation, strict=True)]
    return float(np.mean([np.sqrt(np.mean(np.square(e))) for e in errors]))


def compared(federation, tmp_path, config, lie):
    """The result with a liar, and the honest devices' RMSE there in units of that without it."""
    rows = [federation.rows("test").of(i) for i in HONEST]
    without = served(federation.only([*HONEST]), tmp_path / "without", config)
    result = served(federation, tmp_path / "with", config, lie)
    return result, rmse(result, rows, map(str, HONEST)) / rmse(without, rows, map(str, range(7)))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lie", LIES)
def test_a_liar_harms_nobody_and_is_named(lie, method, groups, tmp_path):
    federation = planted(m=8, groups=groups, noise=0.05, seed=1)
    result, ratio = compared(federation, tmp_path, METHODS[method], LIES[lie])
    assert ratio <= 1.05
    assert result.score("test") < 10
    harmless = (lie == "gradients" and "models" not in method) or (method == "fpfc" and lie in ("summary", "gradients"))
    if not harmless:  # Who is never asked for it does not lie.
        summary = result.summary()
        assert list(summary["left_out"]) == ["0"]
        assert summary["left_out"]["0"].startswith("it")
        assert summary["suspects"] == (["0"] if "0" in result.profile.names else [])


def drifting(federation):
    """Coefficients of the first device that are off by three standard errors each."""
    n = int(federation.rows("train+validation").counts[0])
    drift = 3 * 0.3 / np.sqrt(n)
    own = slice(federation.cuts[0, 0], federation.cuts[0, 3])
    y = federation.y.copy()
    y[own] += drift * (federation.X[own].sum(axis=1) + 1)
    return replace(federation, y=y)


@pytest.mark.parametrize("method", ["tree, moments", "tree, models", "fpfc and refit, models"])
def test_a_drift_of_three_standard_errors_has_little_influence(method, tmp_path):
    federation = drifting(planted(m=8, groups=1, noise=0.3, seed=2))
    _, ratio = compared(federation, tmp_path, METHODS[method], None)
    assert ratio <= 1.05


@pytest.mark.parametrize("rows", [[120, 30, 12], [1000, 100, 100]])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("share", ["models", "moments"])
def test_a_drift_with_overstated_rows_has_little_influence(share, groups, rows, tmp_path):
    """The others object: their losses rise when the drifting device counts for all the rows that it claims."""
    federation = drifting(planted(m=8, groups=groups, noise=0.3, seed=0, n=60))
    config = METHODS[f"fpfc and refit, {share}"]
    result, ratio = compared(federation, tmp_path, config, hello_with("0", rows=rows))
    assert ratio <= 1.05
    if rows[0] == 1000:
        assert result.capped["0"] < 150
        assert Result.load(tmp_path / "with").capped == result.capped


def test_a_device_that_has_far_more_rows_counts_in_full_if_it_suits_the_others(tmp_path):
    rng, data = np.random.default_rng(0), {}
    for name, n in enumerate([1000, 30, 40, 50, 60, 70]):
        X = rng.normal(size=(n, 3))
        data[str(name)] = X, X @ [1.0, -2.0, 3.0] + 0.5 * rng.normal(size=n)
    federation = ff.Federation.from_arrays(data)
    result = served(federation, tmp_path / "run", METHODS["fpfc and refit, models"])
    X, y = (
        np.concatenate(each)
        for each in zip(*(federation.rows("train+validation").of(i) for i in range(6)), strict=True)
    )
    best = np.linalg.lstsq(np.column_stack([X, np.ones(len(X))]), y, rcond=None)[0]
    assert result.capped == {}
    np.testing.assert_allclose(result.models, np.tile(best, (6, 1)), atol=1e-3)


def test_a_false_loss_does_not_stop_the_training_of_its_group():
    federation = planted(m=8, groups=1, noise=0.05)

    class Stop(ff.engines.base.EngineWrapper):
        def collect(self, patience=None):
            replies = super().collect(patience)
            return [replace(r, values=self._lie(r.values)) if r.device == 0 else r for r in replies]

        def _lie(self, values):
            return np.append(values[:-1], 1e12) if len(values) == 6 else values

    engine = Stop(ff.engines.InProcess(federation, ff.models.model_for(federation, None)))
    result = ff.fit(federation, engine=engine, share="models")
    assert result.score("test") < 1.1 * ff.fit(federation, share="models").score("test")


def test_rows_that_nobody_else_makes_credible_weigh_less(tmp_path):
    federation = planted(m=8, groups=1, noise=0.05)
    claimed = served(federation, tmp_path / "run", METHODS["fpfc"], hello_with("0", rows=[10**5, 10**4, 10]))
    assert claimed.left_out == {}
    assert claimed.capped.keys() == {"0"}
    assert claimed.capped["0"] < 30 * 40  # of 110,000
    assert claimed.summary()["capped"] == Result.load(tmp_path / "run").capped == claimed.capped
    audit = map(json.loads, (tmp_path / "run" / "audit.jsonl").read_text().splitlines())
    assert [line["capped"] for line in audit if line["event"] == "start"] == [claimed.capped]
    honest = served(federation, tmp_path / "honest", METHODS["fpfc"])
    assert np.abs(claimed.models - honest.models).max() < 0.02


FALSE_SUMS = {
    "a million times the rows": lambda sums: 1e6 * sums,
    "three times the rows": lambda sums: 3 * sums,
    "absurd squares": lambda sums: np.add(sums, [0, 1e12, 0, 0]),
    "negative errors": lambda sums: sums * [-1, 1, 1, 1],
}


@pytest.mark.parametrize(
    ("metric", "lie"),
    [(metric, lie) for metric in ("auc", "f1", "r2") for lie in FALSE_SUMS if metric == "r2" or "rows" in lie],
)
def test_false_sums_do_not_move_the_score_of_all_rows(metric, lie, tmp_path):
    federation = planted("regression" if metric == "r2" else "classification", m=8, groups=1, noise=1.0, seed=3)

    def forge(task, values):
        return FALSE_SUMS[lie](values) if isinstance(task, Score) and task.metric else values

    config = {**METHODS["fpfc"], "num-server-rounds": 5}
    config["set"] += f" metric={metric}"
    honest, liar = (served(federation, tmp_path / str(f), config, f and reply_with(0, forge)) for f in (None, True))
    assert honest.left_out == {}
    assert list(liar.left_out) == ["0"]
    assert liar.score("test") == honest.score("test", np.arange(1, 8))


def test_a_false_validation_score_does_not_choose_the_others_groups(tmp_path):
    federation = planted(m=8, groups=2, noise=0.05)

    def lie(task, values):
        return np.append(values[:-1], 1e30 * (1 + values[-1])) if getattr(task, "score", None) else values

    config = {"lam": "warmup", "set": "solver=exact", "num-server-rounds": 60}
    honest, liar = (served(federation, tmp_path / str(f), config, f and reply_with(0, lie)) for f in (None, True))
    assert honest.labels[1:].tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert liar.labels[1:].tolist() == [1, 1, 1, 2, 2, 2, 2]  # The liar is alone.
    assert np.abs(liar.models[1:] - honest.models[1:]).max() < 0.1


def test_honest_devices_are_not_named():
    for seed in range(3):
        for share in ("moments", "models"):
            assert ff.fit(planted(m=8, groups=2, seed=seed), share=share).left_out == {}
