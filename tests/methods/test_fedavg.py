"""FedAvg and FedAvg within groups: by hand, and against least squares and the oracle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.grouping.refit import Oracle
from fedfuse.methods.one_model.fedavg import Averaging
from fedfuse.training.fit import fit
from support.planted import begun, descended, planted

WORK = ff.Work(steps=3, lr=0.05)


@dataclass(frozen=True)
class GroupedFedAvg(Averaging):
    """FedAvg within groups that are given."""

    name = "grouped-fedavg"
    given_labels: tuple[int, ...] = ()

    def init(self, info, previous=None):
        return self._state(info, np.array(self.given_labels))


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_two_rounds_by_hand(goal):
    """Every active device starts at w; w becomes the mean of theirs, by rows."""
    federation, turns = planted(goal, m=5), [[0, 3], [4, 1, 2]]
    settings = {"rounds": 2, "tol": 0, "participation": lambda k, m: np.array(turns[k]), "dtype": "float64"}
    result = fit(federation, ff.FedAvg(work=WORK), **settings)
    n, w = federation.rows("train+validation").counts, np.zeros(result.model.d)
    for active in turns:
        w = sum(n[i] * descended(federation, i, w, WORK) for i in active) / n[active].sum()
    np.testing.assert_allclose(result.models, np.tile(w, (5, 1)), atol=1e-12)
    assert len(set(n)) > 1  # or the weights would not show


def test_groups_train_apart_and_wait_for_their_members():
    """The model of a group without active members stays bit by bit."""
    federation = planted(m=6)
    method = GroupedFedAvg(given_labels=(0, 1, 0, 1, 0, 1), work=WORK)
    run = begun(federation, method, participation=lambda k, m: np.array([[0, 2], [1], [3, 5, 4]][k]))
    run.round()
    first = run.state.models.copy()
    assert (first[1] == 0).all()
    run.round()
    np.testing.assert_array_equal(run.state.models[0], first[0])
    np.testing.assert_allclose(run.state.models[1], descended(federation, 1, np.zeros(4), WORK), atol=1e-12)
    run.round()
    np.testing.assert_allclose(run.state.models[0], descended(federation, 4, first[0], WORK), atol=1e-12)


def test_one_step_each_within_the_true_groups_ends_at_the_oracle():
    """One step and everybody there is gradient descent on the pooled rows: it ends at their least squares."""
    federation = planted(m=8, n=120)
    method = GroupedFedAvg(given_labels=tuple(federation.truth.tolist()), work=ff.Work(steps=1, lr=0.2))
    result = fit(federation, method, rounds=200, tol=0, dtype="float64")
    rows = federation.rows("train+validation")
    for c in range(2):
        pooled = [rows.of(i) for i in np.flatnonzero(federation.truth == c)]
        Z = np.column_stack([np.vstack([X for X, _ in pooled]), np.ones(sum(len(y) for _, y in pooled))])
        best = np.linalg.lstsq(Z, np.concatenate([y for _, y in pooled]), rcond=None)[0]
        np.testing.assert_allclose(result.models[federation.truth == c], np.tile(best, (4, 1)), atol=1e-8)
    oracle = fit(federation, Oracle(), dtype="float64")
    assert np.abs(result.models - oracle.models).max() < 5e-3
    assert result.labels.tolist() == oracle.labels.tolist() == federation.truth.tolist()
