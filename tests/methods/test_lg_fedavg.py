"""LG-FedAvg: where devices are evaluated, and what never leaves them."""

from __future__ import annotations

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.engines import InProcess
from fedfuse.protocol.tasks import EVALUATION_ROUND, Install, PeekModel, Train
from fedfuse.training.fit import fit
from support.partly_fused import PartlyFused
from support.planted import begun, descended, planted

WORK = ff.Work(steps=3, lr=0.05)
TURNS = [[0, 3], [4, 1, 3]]


def in_turns(k, m):
    return np.array(TURNS[k])


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_one_layer_is_evaluated_before_the_mean_is_taken(goal):
    """Active devices with what they have just trained, the others with the global model of which those set out."""
    federation = planted(goal, m=5)
    n, w = federation.rows("train+validation").counts, 0.0
    for rounds in (1, 2):
        result = fit(federation, ff.LGFedAvg(work=WORK), rounds=rounds, tol=0, participation=in_turns, dtype="float64")
        active, w = TURNS[rounds - 1], w + np.zeros(result.model.d)
        expected = np.tile(w, (5, 1))
        expected[active] = [descended(federation, i, w, WORK) for i in active]
        np.testing.assert_allclose(result.models, expected, atol=1e-12)
        w = n[active] @ expected[active] / n[active].sum()
        np.testing.assert_allclose(result.kept["model"], w, atol=1e-12)


@pytest.mark.parametrize("model", [None, PartlyFused(cut=2)], ids=["one-layer", "two-layers"])
@pytest.mark.parametrize("weights", ["rows", "equal"])
def test_evaluated_locally_every_device_has_its_own_last_model(weights, model):
    """The start for who was never active, and for all others what they trained when they last were."""
    federation = planted(m=5)
    method = ff.LGFedAvg(work=WORK, start="normal", evaluate="local", weights=weights)
    run = begun(federation, method, model, participation=in_turns)
    share = np.ones(5) if weights == "equal" else federation.rows("train+validation").counts
    start, fused = run.state.start, run.model.fused
    own, head = np.tile(start, (5, 1)), start[fused]
    for active in TURNS:
        run.round()
        for i in active:
            own[i] = descended(federation, i, np.concatenate([own[i, : fused.start], head]), WORK)
        np.testing.assert_allclose(run.in_use().models, own, atol=1e-12)
        head = share[active] @ own[active][:, fused] / share[active].sum()
        np.testing.assert_allclose(run.state.part, head, atol=1e-12)


@pytest.mark.parametrize("settings", [{"evaluate": "cluster"}, {"weights": "sqrt"}])
def test_settings_out_of_range(settings):
    with pytest.raises(ff.FedfuseError, match="must be"):
        ff.LGFedAvg(**settings)


class Border(InProcess):
    """Lets pass what goes over the network, and keeps a list of it."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.passed = []

    def submit(self, orders):
        self.passed += [v for o in orders if isinstance(o.task, Train) for v in (o.task.start, o.task.anchor)]
        self.passed += [o.task.model[o.task.known :] for o in orders if isinstance(o.task, Install)]
        super().submit(orders)

    def collect(self):
        replies = super().collect()
        self.passed += [r.values for r in replies if r.round != EVALUATION_ROUND]
        return replies


def test_the_representation_never_leaves_a_device_and_the_head_is_the_mean():
    federation, model = planted(m=5), PartlyFused(cut=2).sized(3, 0)
    border = Border(federation, model, dtype=np.float64)
    method = ff.LGFedAvg(work=WORK, start="normal")
    options = {"rounds": 2, "tol": 0, "participation": in_turns, "dtype": "float64"}
    result = fit(federation, method, model, engine=border, **options)

    n, start = federation.rows("train+validation").counts, result.kept["model"][:2]
    own, head = np.tile(start, (5, 1)), border.passed[0]
    for active in TURNS:
        new = {i: descended(federation, i, np.concatenate([own[i], head]), WORK) for i in active}
        for i in active:
            own[i] = new[i][:2]
        head = sum(n[i] * new[i][2:] for i in active) / n[active].sum()
    # a device has its own representation, and all have the last head
    np.testing.assert_allclose(result.models, np.hstack([own, np.tile(head, (5, 1))]), atol=1e-12)

    assert {v.size for v in border.passed if v is not None} <= {0, 2}
    for v in (v for v in border.passed if v is not None and v.size):
        assert np.abs(v - own[:, None]).min() > 1e-9  # nobody's representation is among what was sent
    assert result.cost_floats == 5 * 2 + 2 * 2 * sum(map(len, TURNS))
    np.testing.assert_array_equal(border._own[2], np.concatenate([start, border.passed[0]]))  # never active


def test_a_look_is_no_message():
    federation = planted(m=4)
    border = Border(federation, PartlyFused(cut=2).sized(3, 0))
    run = fit(federation, ff.LGFedAvg(work=WORK), PartlyFused(cut=2), rounds=3, engine=border, evaluate_every=1)
    assert run.cost_floats == 4 * 2 + 3 * 4 * 2 * 2
    assert PeekModel().floats_down == 0
