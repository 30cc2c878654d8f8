"""What every method must hold to, whatever its rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfuse.clusters import canonical
from fedfuse.methods import METHODS
from fedfuse.result import Result
from fedfuse.tasks import Work
from fedfuse.training import Callback, fit, resume
from planted import Keep, permuted, planted

GOALS = ["regression", "classification"]
WORKS = {"gd": Work(steps=5, lr=0.1), "sgd": Work(steps=2, lr=0.1, batch=10), "exact": Work(solver="exact")}
every_method = pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
every_goal = pytest.mark.parametrize("goal", GOALS)
every_work = pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
# what two runs must share to be the same run
SAME = ("labels", "models", "cost_floats", "rounds", "converged", "refused")


def assert_same(a, b):
    for name in SAME:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for part in a.scores:
        np.testing.assert_array_equal(a.scores[part], b.scores[part])
    histories = (r.history.drop(columns="seconds") for r in (a, b))
    # a file may lose a last digit, depending on the reader
    pd.testing.assert_frame_equal(*histories, check_dtype=False, rtol=1e-14)


@every_method
@every_goal
@every_work
def test_labels_partition_the_devices(kind, goal, work):
    federation = planted(goal)
    result = fit(federation, kind(work=work), rounds=30, participation=0.5)
    assert result.labels.shape == (federation.m,)
    assert (result.labels == canonical(result.labels)).all()
    assert sorted(name for group in result.clusters for name in group) == sorted(federation.names)
    assert all(group for group in result.clusters)
    assert result.models.shape == (federation.m, result.model.d)
    assert np.isfinite(result.models).all()
    for c in range(result.n_clusters):
        assert np.ptp(result.models[result.labels == c], axis=0).max() == 0


@every_method
@every_goal
@settings(max_examples=8, deadline=None)
@given(order=st.permutations(range(6)))
def test_the_order_of_devices_does_not_matter(kind, goal, order):
    federation, method = planted(goal), kind(lam=0.3, work=WORKS["gd"])
    plain, other = (
        fit(f, method, rounds=40, tol=0, dtype="float64") for f in (federation, permuted(federation, order))
    )
    assert (other.labels == canonical(plain.labels[order])).all()
    np.testing.assert_allclose(other.models, plain.models[order], atol=1e-9)
    np.testing.assert_allclose(other.scores["test"], plain.scores["test"][order], atol=1e-9)


@every_method
@every_goal
@every_work
def test_same_seed_same_result(kind, goal, work):
    def run(seed):
        method = kind(start="normal", work=work)
        return fit(planted(goal), method, rounds=20, seed=seed, participation=0.5, tol=0)

    assert_same(run(1), run(1))
    assert (run(1).models != run(2).models).any()


class StopAt(Callback):
    """Raises what Ctrl-C raises, after some round."""

    def __init__(self, k):
        self.k = k

    def on_round(self, run, row):
        if run.k == self.k:
            raise KeyboardInterrupt


@every_method
@every_goal
@every_work
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_resumed_is_uninterrupted(kind, goal, work, dtype, tmp_path):
    federation = planted(goal)
    options = {"rounds": 23, "participation": 0.5, "tol": 0, "checkpoint_every": 4, "dtype": dtype, "seed": 3}
    whole = fit(federation, kind(work=work), out=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        fit(federation, kind(work=work), out=tmp_path / "cut", callbacks=[StopAt(1)], **options)
    for k in (8, 14):
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


@every_method
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


def scrambled(federation, part, seed=0):
    """The same federation with nonsense in one part's rows."""
    X, y, rng = federation.X.copy(), federation.y.copy(), np.random.default_rng(seed)
    rows = federation.rows(part)
    for start, stop in zip(rows.start, rows.stop, strict=True):
        X[start:stop] = 100 * rng.normal(size=X[start:stop].shape)
        y[start:stop] = rng.permutation(y[start:stop])
    return replace(federation, X=X, y=y)


@every_method
@every_goal
@every_work
def test_held_out_rows_influence_nothing(kind, goal, work):
    """Models, labels and the end of training are the same with other test rows; the score is not."""
    federation = planted(goal)
    for rows, part in (("train+validation", "test"), ("train", "test"), ("train", "validation")):
        method = kind(rows=rows, work=work)
        plain, other = (fit(f, method, rounds=40, tol=1e-3) for f in (federation, scrambled(federation, part)))
        np.testing.assert_array_equal(plain.models, other.models)
        np.testing.assert_array_equal(plain.labels, other.labels)
        assert plain.rounds == other.rounds
        assert (plain.scores[part] != other.scores[part]).any()


@every_method
@every_goal
def test_state_survives_packing(kind, goal):
    keep = Keep()
    fit(planted(goal), kind(), rounds=5, callbacks=[keep])
    method, state = keep.run.method, keep.run.state
    arrays = method.pack(state)
    assert all(isinstance(a, np.ndarray) and a.dtype.kind != "O" for a in arrays.values())
    again = method.unpack({name: a.copy() for name, a in arrays.items()})
    np.testing.assert_array_equal(method.models(again), method.models(state))
    np.testing.assert_array_equal(method.labels(again), method.labels(state))
    for one, two in zip(method.tasks(state, np.arange(3), 5), method.tasks(again, np.arange(3), 5), strict=True):
        np.testing.assert_array_equal(one.anchor, two.anchor)


@every_method
def test_one_device_is_a_federation_too(kind):
    result = fit(planted(m=1, groups=1), kind(work=WORKS["exact"]), rounds=20)
    assert result.labels.tolist() == [0]
