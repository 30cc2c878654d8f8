"""What every method must hold to, whatever its rule: checks that are run over all methods, and over new ones.

A check takes a case: a function that makes the method with some work, the goal, the work and the precision.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedfuse.core.partitions import canonical
from fedfuse.engines import InProcess
from fedfuse.methods.state_arrays import fill_state, pack_state
from fedfuse.models import default_model
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import EVALUATION_ROUND, Install
from fedfuse.results.result import Result
from fedfuse.training.fit import fit, resume
from fedfuse.training.loop import Callback
from support.planted import planted

GOALS = ("regression", "classification")
WORKS = {"gd": Work(steps=5, lr=0.1), "sgd": Work(steps=2, lr=0.1, batch=10), "exact": Work(solver="exact")}
DTYPES = ("float32", "float64")
OWN_MODELS = ("local", "lg-fedavg", "per-fedavg", "pacfl", "fedavg-ft", "ditto", "fedper", "fedrep", "pfedme", "l2gd")
OWN_MODELS += ("fedamp", "mocha", "fedem")
# devices of these may differ within a group


@dataclass(frozen=True)
class Case:
    """What a check is run on."""

    kind: Callable[..., Any]
    goal: str
    work: str
    dtype: str

    def method(self, **options: Any) -> Any:
        """Return the method; one that takes gradient steps only does so."""
        name = "gd" if self.work == "exact" and self.kind().needs_steps else self.work
        return self.kind(work=WORKS[name], **options)

    def fit(self, federation: Any = None, *, rows: str | None = None, start: str = "auto", **settings: Any) -> Result:
        """Train on planted groups, or on another federation."""
        method = self.method(start=start, **({"rows": rows} if rows else {}))
        options = {"participation": 0.5, "tol": 0, "dtype": self.dtype, "rounds": 20} | settings
        return fit(planted(self.goal) if federation is None else federation, method, **options)


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


class StopAt(Callback):
    """Raises what Ctrl-C raises, after some round."""

    def __init__(self, k):
        self.k = k

    def on_round(self, run, row):
        if run.k == self.k:
            raise KeyboardInterrupt


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


def check_groups_partition_the_devices(case: Case) -> None:
    result, federation = case.fit(rounds=30), planted(case.goal)
    assert result.labels.shape == (federation.m,)
    assert (result.labels == canonical(result.labels)).all()
    assert sorted(name for group in result.clusters for name in group) == sorted(federation.names)
    assert all(group for group in result.clusters)
    assert result.models.shape == (federation.m, result.model.d)
    assert np.isfinite(result.models).all()
    for c in range(0 if case.kind().name in OWN_MODELS else result.n_clusters):
        assert np.ptp(result.models[result.labels == c], axis=0).max() == 0


def check_stages_add_up(case: Case) -> None:
    """Rounds and floats of the stages are those of the run, and never more rounds than were given."""
    result = case.fit(rounds=17)
    assert sum(stage["rounds"] for stage in result.stages) == result.rounds == len(result.history) <= 17
    assert sum(stage["floats"] for stage in result.stages) == result.cost_floats
    assert result.summary()["stages"] == list(result.stages)


def check_same_seed_same_result(case: Case) -> None:
    assert_same(*(case.fit(seed=1, start="normal") for _ in range(2)))


def check_resumed_is_uninterrupted(case: Case) -> None:
    federation, method = planted(case.goal), case.method()
    options = {"rounds": 23, "participation": 0.5, "tol": 0, "checkpoint_every": 4, "dtype": case.dtype, "seed": 3}
    with tempfile.TemporaryDirectory() as place:
        one, two = Path(place) / "whole", Path(place) / "cut"
        whole = fit(federation, method, out=one, **options)
        last = len(whole.history) - 1
        with pytest.raises(KeyboardInterrupt):
            fit(federation, method, out=two, callbacks=[StopAt(1)], **options)
        for k in sorted(k for k in {2, 8, 14, last - 8, last} if 1 < k <= last):
            with pytest.raises(KeyboardInterrupt):
                resume(two, federation, callbacks=[StopAt(k)])
        assert_same(whole, resume(two, federation))
        assert {p.name for p in one.iterdir()} == {p.name for p in two.iterdir()}
        plain = {"models.npz", "labels.csv", "profile.json", "config.json"}
        for name in plain | ({"coefficients.csv", "contrasts.csv"} & {p.name for p in one.iterdir()}):
            assert (one / name).read_bytes() == (two / name).read_bytes(), name
        assert_same(whole, Result.load(two))


def check_every_float_sent_is_counted(case: Case) -> None:
    """By an engine that weighs what it gets and gives."""
    for share in (0.3, 1.0):
        federation = planted(case.goal, m=10, n=20)
        model = default_model(case.goal).sized(federation.n_features, federation.n_classes)
        scales = Scales(federation, model, dtype=case.dtype)
        result = case.fit(federation, rounds=7, participation=share, engine=scales)
        assert result.cost_floats == scales.down + scales.up == result.history["cost_floats"].iloc[-1]


def check_test_rows_influence_nothing(case: Case) -> None:
    """Models, labels and the end of training are the same with other test rows; the score is not."""
    federation = planted(case.goal)
    for rows in ("train+validation", "train"):
        both = (federation, scrambled(federation, "test"))
        plain, other = (case.fit(f, rows=rows, rounds=40, tol=1e-3, participation=1.0) for f in both)
        assert_found_the_same(plain, other)
        np.testing.assert_array_equal(plain.scores["validation"], other.scores["validation"])
        assert (plain.scores["test"] != other.scores["test"]).any()


def check_state_survives_packing(case: Case) -> None:
    assert_same(*(case.fit(rounds=12, callbacks=callbacks) for callbacks in ((), [PackedAtEveryRound()])))


CHECKS = {name.removeprefix("check_"): check for name, check in dict(globals()).items() if name.startswith("check_")}
