"""What every method must hold to, whatever its rule."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfuse as ff
from fedfuse.core.partitions import canonical
from fedfuse.engines import InProcess
from fedfuse.grouping.refit import Oracle
from fedfuse.methods.registry import METHODS
from fedfuse.methods.state import fill_state, pack_state
from fedfuse.models import default_model
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import EVALUATION_ROUND, Install
from fedfuse.results.result import Result
from fedfuse.training.fit import fit, resume
from fedfuse.training.loop import Callback
from support.planted import permuted, planted

GOALS = ["regression", "classification"]
WORKS = {"gd": Work(steps=5, lr=0.1), "sgd": Work(steps=2, lr=0.1, batch=10), "exact": Work(solver="exact")}
# what a name of METHODS may stand for
VARIANTS = {
    "fusion-tree": ff.FusionTree,
    "fpfc": partial(ff.FPFC, lam=0.6),
    "fpfc-refit": partial(ff.FPFC, lam=0.6, refit=True),
    "fpfc-l1": ff.FPFCL1,
    "fpfc-l1-refit": partial(ff.FPFCL1, refit=True),
    "local": ff.Local,
    "fedavg": ff.FedAvg,
    "fedasync": ff.FedAsync,
    "lg-fedavg": ff.LGFedAvg,
    "per-fedavg": ff.PerFedAvg,
    "per-fedavg-hf": partial(ff.PerFedAvg, variant="hessian-free"),
    "ifca": partial(ff.IFCA, n_models=2),
    "ifca-gradient": partial(ff.IFCA, n_models=2, average="gradient"),
    "ifca-soft": partial(ff.IFCA, n_models=2, temperature=0.5),
    "ifca-searched": ff.IFCA,
    "cfl": partial(ff.CFL, eps1=10.0, eps2=0.0),
    "cfl-searched": ff.CFL,
    "pacfl": partial(ff.PACFL, threshold=10.0, p=1),
    "pacfl-cluster": partial(ff.PACFL, threshold=10.0, p=1, evaluate="cluster"),
    "pacfl-searched": ff.PACFL,
    "oracle": Oracle,
}
PAPER = (
    "fpfc",
    "fpfc-l1",
    "fedavg",
    "fedasync",
    "lg-fedavg",
    "per-fedavg",
)  # one exchange of models per round, and nothing else
DRAWS_NOTHING = ("fusion-tree", "oracle")  # every device is asked in turn, and answers without chance
SEARCHED = ("ifca-searched", "cfl-searched", "pacfl-searched")  # many rounds: not in every check
OWN_MODELS = ("local", "lg-fedavg", "per-fedavg", "pacfl")  # devices of a cluster may differ


def over(*names):
    return pytest.mark.parametrize("kind", [VARIANTS[n] for n in names], ids=names)


KINDRED = ("per-fedavg-hf", "ifca-gradient", "ifca-soft", "pacfl-cluster")  # as others in all but one step
every_variant = over(*(name for name in VARIANTS if name not in SEARCHED + KINDRED))
every_goal = pytest.mark.parametrize("goal", GOALS)
every_work = pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)


def test_every_method_has_its_variants():
    assert {kind().name for kind in VARIANTS.values()} == set(METHODS)
    assert all(any(kind() == method() for kind in VARIANTS.values()) for method in METHODS.values())


def able(kind, work, **options):
    """The method with this work; a method that cannot do such work is not checked with it."""
    if kind().name == "per-fedavg" and work.solver == "exact":
        pytest.skip("per-fedavg takes gradient steps")
    return kind(work=work, **options)


# what two runs must share to be the same run
SAME = (
    *("labels", "models", "cost_floats", "rounds", "stages", "converged", "refused", "orders"),
    *("lam", "stability", "confidence"),
)


def assert_same(a, b):
    for name in SAME:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for part in a.scores:
        np.testing.assert_array_equal(a.scores[part], b.scores[part])
    histories = (r.history.drop(columns=["seconds", "time"]) for r in (a, b))
    # a file may lose a last digit, depending on the reader
    pd.testing.assert_frame_equal(*histories, check_dtype=False, rtol=1e-14)


@every_variant
@every_goal
@every_work
def test_labels_partition_the_devices(kind, goal, work):
    federation = planted(goal)
    result = fit(federation, able(kind, work), rounds=30, participation=0.5)
    assert result.labels.shape == (federation.m,)
    assert (result.labels == canonical(result.labels)).all()
    assert sorted(name for group in result.clusters for name in group) == sorted(federation.names)
    assert all(group for group in result.clusters)
    assert result.models.shape == (federation.m, result.model.d)
    assert np.isfinite(result.models).all()
    for c in range(0 if kind().name in OWN_MODELS else result.n_clusters):
        assert np.ptp(result.models[result.labels == c], axis=0).max() == 0


@every_variant
@every_goal
@settings(max_examples=4, deadline=None)
@given(order=st.permutations(range(6)))
def test_the_order_of_devices_does_not_matter(kind, goal, order):
    federation, method = planted(goal), kind(work=WORKS["gd"])
    plain, other = (
        fit(f, method, rounds=40, tol=0, dtype="float64") for f in (federation, permuted(federation, order))
    )
    assert (other.labels == canonical(plain.labels[order])).all()
    assert (other.lam or 0) == pytest.approx(plain.lam or 0, rel=1e-6)
    np.testing.assert_allclose(other.models, plain.models[order], atol=1e-6 * np.abs(plain.models).max())
    np.testing.assert_allclose(other.scores["test"], plain.scores["test"][order], atol=1e-6)


def one_run(kind, goal, work, seed):
    return fit(planted(goal), able(kind, work, start="normal"), rounds=20, seed=seed, participation=0.5, tol=0)


@every_variant
@every_goal
@every_work
def test_same_seed_same_result(kind, goal, work):
    assert_same(one_run(kind, goal, work, seed=1), one_run(kind, goal, work, seed=1))


@over(*(name for name in VARIANTS if name not in (*DRAWS_NOTHING, *SEARCHED, *KINDRED)))
@every_goal
@pytest.mark.parametrize("work", [WORKS["gd"], WORKS["sgd"]], ids=["gd", "sgd"])
def test_another_seed_another_run(kind, goal, work):
    """Another start and other devices in every round, so what a round moves differs from the first on."""
    one, two = (one_run(kind, goal, work, seed) for seed in (1, 2))
    moves = [r.history["moved"].dropna().to_numpy()[:20] for r in (one, two)]
    assert (moves[0] != moves[1]).any() or (one.models != two.models).any()


@over(*DRAWS_NOTHING)
@every_goal
def test_nothing_is_drawn(kind, goal):
    one, two = (one_run(kind, goal, WORKS["gd"], seed) for seed in (1, 2))
    np.testing.assert_array_equal(one.models, two.models)
    assert one.cost_floats == two.cost_floats


class StopAt(Callback):
    """Raises what Ctrl-C raises, after some round."""

    def __init__(self, k):
        self.k = k

    def on_round(self, run, row):
        if run.k == self.k:
            raise KeyboardInterrupt


@every_variant
@every_goal
@every_work
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_resumed_is_uninterrupted(kind, goal, work, dtype, tmp_path):
    federation = planted(goal)
    options = {"rounds": 23, "participation": 0.5, "tol": 0, "checkpoint_every": 4, "dtype": dtype, "seed": 3}
    method = able(kind, work)
    whole = fit(federation, method, out=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        fit(federation, method, out=tmp_path / "cut", callbacks=[StopAt(1)], **options)
    last = len(whole.history) - 1
    for k in sorted(k for k in {2, 8, 14, last - 8, last} if 1 < k <= last):
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "cut", federation, callbacks=[StopAt(k)])
    assert_same(whole, resume(tmp_path / "cut", federation))
    files = {p.name for p in (tmp_path / "whole").iterdir()}
    assert files == {p.name for p in (tmp_path / "cut").iterdir()}
    for name in (
        "models.npz",
        "labels.csv",
        "coefficients.csv",
        "contrasts.csv",
        "profile.json",
        "config.json",
    ):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name
    assert_same(whole, Result.load(tmp_path / "cut"))


@over(*PAPER)
@pytest.mark.parametrize("share", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("rounds", [1, 7])
def test_cost_is_the_formula(kind, share, rounds):
    """M d once, then K k_a 2 d: counted by the ledger from what was sent, equal to Table 1's formula."""
    federation = planted(m=10, n=20)
    result = fit(federation, kind(), rounds=rounds, participation=share, tol=0)
    m, d, active = 10, result.model.d, int(share * 10)
    assert result.cost_floats == m * d + rounds * active * 2 * d
    assert result.history["cost_floats"].iloc[-1] == result.cost_floats
    assert (result.history["active"] == active).all()


@every_variant
@every_goal
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_every_float_sent_is_counted(kind, goal, share):
    """By an engine that weighs what it gets and gives."""

    class Scales(InProcess):
        down = up = 0

        def submit(self, orders):
            orders = list(orders)
            self.down -= sum(o.task.known for o in orders if isinstance(o.task, Install))
            fields = [v for o in orders if o.round != EVALUATION_ROUND for v in vars(o.task).values()]
            lists = [np.array(v) for v in fields if isinstance(v, (np.ndarray, tuple))]
            self.down += sum(v.size for v in lists if v.dtype.kind == "f")
            super().submit(orders)

        def collect(self):
            replies = super().collect()
            self.up += sum(r.values.size for r in replies if r.round != EVALUATION_ROUND)
            return replies

    federation = planted(goal, m=10, n=20)
    scales = Scales(federation, default_model(goal).sized(federation.n_features, federation.n_classes))
    result = fit(federation, kind(), rounds=7, participation=share, tol=0, engine=scales)
    assert result.cost_floats == scales.down + scales.up == result.history["cost_floats"].iloc[-1]


def scrambled(federation, part, seed=0):
    """The same federation with nonsense in one part's rows."""
    X, y, rng = federation.X.copy(), federation.y.copy(), np.random.default_rng(seed)
    rows = federation.rows(part)
    for start, stop in zip(rows.start, rows.stop, strict=True):
        X[start:stop] = 100 * rng.normal(size=X[start:stop].shape)
        y[start:stop] = rng.permutation(y[start:stop])
    return replace(federation, X=X, y=y)


def assert_found_the_same(plain, other):
    np.testing.assert_array_equal(plain.models, other.models)
    np.testing.assert_array_equal(plain.labels, other.labels)
    for name in ("rounds", "stages", "cost_floats", "lam", "stability", "converged"):
        assert getattr(plain, name) == getattr(other, name), name


@every_variant
@every_goal
@every_work
def test_test_rows_influence_nothing(kind, goal, work):
    """Models, labels and the end of training are the same with other test rows; the score is not."""
    federation = planted(goal)
    for rows in ("train+validation", "train"):
        method = able(kind, work, rows=rows)
        plain, other = (fit(f, method, rounds=40, tol=1e-3) for f in (federation, scrambled(federation, "test")))
        assert_found_the_same(plain, other)
        np.testing.assert_array_equal(plain.scores["validation"], other.scores["validation"])
        assert (plain.scores["test"] != other.scores["test"]).any()


@over(*PAPER)
@every_goal
@every_work
def test_validation_rows_influence_nothing_where_they_are_held_back(kind, goal, work):
    """Nothing is chosen here; where something is (auto, refit), they choose, and may."""
    federation, method = planted(goal), able(kind, work, rows="train")
    plain, other = (fit(f, method, rounds=40, tol=1e-3) for f in (federation, scrambled(federation, "validation")))
    assert_found_the_same(plain, other)
    assert (plain.scores["validation"] != other.scores["validation"]).any()


class PackedAtEveryRound(Callback):
    """Takes the state apart after every round and goes on with what comes back."""

    def on_round(self, run, row):
        arrays = pack_state(run.state)
        assert all(isinstance(a, np.ndarray) and a.dtype.kind != "O" for a in arrays.values())
        fresh = run.rule.init(run.info, run.previous)
        again = fill_state(fresh, {name: a.copy() for name, a in arrays.items()})
        np.testing.assert_array_equal(run.rule.current(again).models, run.rule.current(run.state).models)
        np.testing.assert_array_equal(run.rule.current(again).labels, run.rule.current(run.state).labels)
        run.state = again


@every_variant
@every_goal
@every_work
def test_state_survives_packing(kind, goal, work):
    options = {"rounds": 12, "participation": 0.5, "tol": 0}
    plain, packed = (fit(planted(goal), able(kind, work), callbacks=c, **options) for c in ((), [PackedAtEveryRound()]))
    assert_same(plain, packed)


@over(*KINDRED)
@every_goal
def test_kindred_are_resumed_too(kind, goal, tmp_path):
    federation, options = planted(goal), {"rounds": 15, "participation": 0.5, "tol": 0, "checkpoint_every": 4}
    method = kind(work=WORKS["sgd"])
    whole = fit(federation, method, **options)
    with pytest.raises(KeyboardInterrupt):
        fit(federation, method, out=tmp_path / "cut", callbacks=[StopAt(9)], **options)
    assert_same(whole, resume(tmp_path / "cut", federation))


@every_variant
@every_goal
def test_one_device_is_a_federation_too(kind, goal):
    work = WORKS["gd" if kind().name == "per-fedavg" else "exact"]
    result = fit(planted(goal, m=1, groups=1), kind(work=work), rounds=20)
    assert result.labels.tolist() == [0]
    assert np.isfinite(result.models).all()


@over(*SEARCHED)
@every_goal
def test_a_search_is_a_run_like_others(kind, goal, tmp_path):
    """Counted, resumable, without a look at test rows, and done again with what was chosen."""
    federation = planted(goal)
    options = {"rounds": 25, "participation": 0.5, "tol": 0, "checkpoint_every": 7}
    method = kind(work=WORKS["gd"])
    if method.name == "cfl":
        method = replace(method, eps1=1.0)  # three candidates in place of 15
    whole = fit(federation, method, out=tmp_path / "whole", **options)
    assert whole.chosen
    assert whole.history["round"].iloc[-1] > 25
    with pytest.raises(KeyboardInterrupt):
        fit(federation, method, out=tmp_path / "cut", callbacks=[StopAt(40)], **options)
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "cut", federation, callbacks=[StopAt(len(whole.history) - 3)])
    assert_same(whole, resume(tmp_path / "cut", federation))
    assert_found_the_same(whole, fit(scrambled(federation, "test"), method, **options))
    other = fit(scrambled(federation, "validation"), method, **options)
    assert whole.history["watched"].dropna().to_numpy()[0] != other.history["watched"].dropna().to_numpy()[0]
