"""Noise on uploads: no more than the budget, no more than the norm, and nothing unprotected leaves a device."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("dp_accounting", reason="pip install 'fedfuse[privacy]'")

from scipy.stats import norm

import fedfuse as ff
from fedfuse.engines import InProcess
from fedfuse.errors import FedfuseError
from fedfuse.models import LinearRegression
from fedfuse.protocol.privacy import Noise, calibrated, spent
from fedfuse.protocol.tasks import EvaluateModels, Gradient, Order, Train
from support.planted import planted

METHOD = ff.FPFC(lam=0.5, work=ff.Work(steps=5, lr=0.05), refit=False)


def exact_delta(epsilon, multiplier, uploads):
    """Delta of Gaussian noise over independent uploads, in closed form (Balle and Wang, 2018)."""
    mu = np.sqrt(uploads) / multiplier
    return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize("epsilon", [0.5, 3, 30, 300])
@pytest.mark.parametrize("uploads", [1, 10, 200])
def test_the_budget_holds_and_is_used(epsilon, uploads):
    noise = calibrated(1.0, epsilon, 1e-5, uploads)
    assert spent(noise, 1e-5, uploads) == pytest.approx(epsilon, rel=1e-3)
    assert exact_delta(epsilon, noise.multiplier, uploads) <= 1e-5
    assert exact_delta(epsilon, 0.75 * noise.multiplier, uploads) > 1e-5  # not far more than needed


def test_fewer_uploads_spend_less():
    noise = calibrated(1.0, 10.0, 1e-5, 50)
    assert spent(noise, 1e-5, 0) == 0
    assert spent(noise, 1e-5, 5) < spent(noise, 1e-5, 50)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6), st.floats(0.1, 10))
def test_without_noise_a_change_is_clipped(change, clip):
    change = np.array(change)
    sent = Noise(clip, 0.0).protect(change, np.random.default_rng(0))
    assert np.linalg.norm(sent) <= clip * (1 + 1e-9)
    if np.linalg.norm(change) <= clip:
        assert np.allclose(sent, change)
    else:
        assert sent @ change == pytest.approx(clip * np.linalg.norm(change), rel=1e-6)  # in the same direction


def test_noise_has_its_size():
    sent = Noise(2.0, 0.5).protect(np.zeros(20_000), np.random.default_rng(0))
    assert sent.std() == pytest.approx(2.0, rel=0.03)


def test_diverged_training_sends_noise_alone():
    sent = Noise(1.0, 1.0).protect(np.full(3, np.nan), np.random.default_rng(0))
    assert np.isfinite(sent).all()


def test_a_device_goes_on_with_what_it_sent():
    federation = planted(m=3)
    model = LinearRegression().sized(3, 0)
    engine = InProcess(federation, model, noise=Noise(1.0, 1.0))
    engine.submit([Order(0, 0, Train(ff.Work()))])
    (reply,) = engine.collect()
    assert np.array_equal(engine._own[0], reply.values)


@pytest.mark.parametrize(
    "task", [Gradient(np.zeros(4)), EvaluateModels(np.zeros((1, 4))), Train(ff.Work(), score="validation")]
)
def test_what_cannot_be_protected_is_not_answered(task):
    engine = InProcess(planted(m=3), LinearRegression().sized(3, 0), noise=Noise(1.0, 1.0))
    engine.submit([Order(0, 0, task)])
    with pytest.raises(FedfuseError, match="does not answer"):
        engine.collect()


def test_the_result_says_what_was_spent(tmp_path):
    result = ff.fit(planted(), METHOD, rounds=10, tol=0, clip=1.0, epsilon=50.0, out=tmp_path / "run")
    assert result.privacy["uploads"] == 10
    assert result.privacy["epsilon"] == pytest.approx(50, rel=1e-3)
    assert ff.Result.load(tmp_path / "run").privacy == result.privacy
    half = ff.fit(planted(), METHOD, rounds=10, tol=0, clip=1.0, epsilon=50.0, participation=0.5)
    assert half.privacy["epsilon"] < 50


def test_much_noise_costs_accuracy_and_little_does_not():
    plain, little, much = (
        ff.fit(planted(noise=0.1), METHOD, rounds=20, tol=0, **how).score("test")
        for how in ({}, {"clip": 5.0, "epsilon": 1e9}, {"clip": 5.0, "epsilon": 1.0})
    )
    assert little == pytest.approx(plain, rel=0.05)
    assert much > 10 * plain


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"epsilon": 1.0}, "clip and epsilon go together"),
        ({"clip": 1.0}, "clip and epsilon go together"),
        ({"clip": -1.0, "epsilon": 1.0}, "clip, the largest norm"),
        ({"clip": 1.0, "epsilon": -1.0}, "epsilon must be a positive number, got -1"),
        ({"clip": 1.0, "epsilon": 1.0, "delta": 1.0}, "delta must be above 0 and below 1"),
    ],
)
def test_bad_settings(how, words):
    with pytest.raises(FedfuseError, match=words):
        ff.fit(planted(), METHOD, rounds=2, **how)


@pytest.mark.parametrize("method", [ff.FusionTree(), ff.FPFC(lam=0.5, refit=True), ff.IFCA(n_models=2), ff.PACFL()])
def test_methods_that_ask_for_more_are_refused(method):
    with pytest.raises(FedfuseError, match="which noise cannot protect"):
        ff.fit(planted(), method, rounds=2, clip=1.0, epsilon=1.0)
