"""LOCAL against steps written out, and FPFC without a penalty against damped local training."""

from __future__ import annotations

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.models import default_model
from fedfuse.training.fit import fit
from support.planted import Keep, descended, planted

WORK = ff.Work(steps=3, lr=0.05)


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_every_device_goes_on_from_its_own_model_in_every_round(goal):
    """Four rounds are twelve steps, whoever is drawn."""
    federation = planted(goal, m=5)
    result = fit(federation, ff.Local(work=WORK), rounds=4, participation=0.2, tol=0, dtype="float64")
    twelve = ff.Work(steps=12, lr=0.05)
    for i in range(5):
        w = descended(federation, i, np.zeros(result.model.d), twelve)
        np.testing.assert_allclose(result.models[i], w, atol=1e-12)
    assert result.cost_floats == 0
    assert result.history["active"].tolist() == [5] * 4


def test_nothing_of_the_others_is_felt():
    federation, models = planted(m=4), []
    for scale in (1.0, -50.0):
        federation.y[federation.cuts[2, 0] : federation.cuts[2, 3]] *= scale
        models.append(fit(federation, ff.Local(work=WORK), rounds=5).models)
    assert (models[0] == models[1]).all(axis=1).tolist() == [True, True, False, True]


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_fpfc_without_a_penalty_is_local_training_with_damping(goal):
    """T steps on f_i + rho/2 ||w - w_i||^2 from w_i, for those who are active; the others stay."""
    federation, keep, rng = planted(goal, m=6), Keep(), np.random.default_rng(1)
    turns = [rng.choice(6, 3, replace=False) for _ in range(8)]
    method = ff.FPFC(lam=0.0, refit=False, rho=2.0, work=WORK)
    settings = {"rounds": 8, "tol": 0, "participation": lambda k, m: turns[k], "dtype": "float64"}
    fit(federation, method, callbacks=[keep], **settings)
    model = default_model(goal).sized(federation.n_features, federation.n_classes)
    data = model.load(federation.rows("train+validation"), np.float64)
    omega = np.zeros((6, model.d))
    for active in turns:
        omega[active] = model.train(data, active, omega[active], omega[active], 2.0, WORK)
    np.testing.assert_allclose(keep.run.state.models, omega, rtol=0, atol=1e-12)
