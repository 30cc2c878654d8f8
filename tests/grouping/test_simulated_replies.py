"""Stand-ins answer as the devices do that they stand for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfuse as ff
from fedfuse.core.partitions import adjusted_rand
from fedfuse.engines import InProcess
from fedfuse.grouping.simulated_replies import SimulatedReplies
from fedfuse.models import LinearRegression
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.reply_checks import possible_statistics
from fedfuse.protocol.sufficient_statistics import SufficientStatistics
from fedfuse.protocol.tasks import (
    FitLocally,
    Gradient,
    GradientCosine,
    Order,
    Rescale,
    SendMoments,
    SendSufficientStatistics,
    Train,
)
from support.planted import planted


def perform(engine, task, m):
    engine.submit([Order(i, 0, task) for i in range(m)])
    return [reply.values for reply in sorted(engine.collect(), key=lambda reply: reply.device)]


@pytest.fixture
def two():
    """Five devices, one without validation rows and one with hardly any rows; and their stand-ins."""
    rng = np.random.default_rng(0)
    data = []
    for n in (40, 30, 4, 25, 60):
        X = rng.normal([5.0, -1e3, 0.0], [1.0, 20.0, 1e-3], size=(n, 3))
        data.append((X, X @ [1.0, 0.1, 300.0] + rng.normal(size=n)))
    federation = ff.Federation.from_arrays(data)
    engine = InProcess(federation, LinearRegression().sized(3, 0), dtype="float64")
    counts = {part: federation.rows(part).counts for part in ("train", "validation")}
    return engine, SimulatedReplies(np.stack(perform(engine, SendSufficientStatistics(4), 5)), counts)


def test_stand_ins_answer_as_devices(two):
    engine, simulated = two
    rng, everyone = np.random.default_rng(1), np.arange(5)
    v, w = rng.normal(size=(2, 4))
    moments = perform(engine, SendMoments(4), 5)
    first, second = np.split(np.mean(moments, axis=0), 2)
    scale = np.sqrt(second - first**2)
    both = "train+validation"
    tasks = [SendMoments(4), Gradient(v, "train", ("train", "validation")), Gradient(w, both, (both,))]
    scaled = [Rescale(first, scale), *tasks, GradientCosine(v, w), FitLocally((0.1, 0.01))]
    for task in (*tasks, *scaled):
        ours = simulated.answers([task] * 5, everyone)
        for mine, theirs in zip(ours, perform(engine, task, 5), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-8)


def test_a_ridge_fit_is_the_devices_own(two):
    engine, simulated = two
    task = Train(Work(solver="exact"), rho=0.3)
    for task_rows in ("train", "validation"):
        theirs = perform(engine, Train(task.work, rho=0.3, rows=task_rows), 5)
        np.testing.assert_allclose(simulated.part(task_rows, np.arange(5)).fit(0.3), theirs, rtol=1e-4, atol=1e-6)


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 99))
def test_parts_add_up(n, k, seed):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(n + k, 3))

    def summary(rows):
        mean = rows.mean(axis=0) if len(rows) else np.zeros(3)
        covariance = (rows - mean).T @ (rows - mean) / max(len(rows), 1)
        return SufficientStatistics(np.array([len(rows)]), mean[None], covariance[None])

    whole, parts = summary(table), summary(table[:n]) + summary(table[n:])
    np.testing.assert_allclose(parts.mean, whole.mean, atol=1e-12)
    np.testing.assert_allclose(parts.covariance, whole.covariance, atol=1e-12)


@given(st.integers(2, 30), st.integers(1, 5), st.integers(-6, 6), st.integers(0, 999))
@settings(deadline=None)
def test_honest_summaries_are_possible(n, p, power, seed):
    """Constant and repeated columns, columns of very different sizes, a single training row."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) * 10.0 ** rng.integers(-6, 7, p) + 10.0**power
    X = np.column_stack([X, X[:, 0], np.full(n, 0.538)])
    federation = ff.Federation.from_arrays([(X, X.sum(axis=1))] * 2, validation=0.2 if n > 9 else 0.0)
    engine = InProcess(federation, LinearRegression().sized(p + 2, 0), dtype="float64")
    for i, answer in enumerate(perform(engine, SendSufficientStatistics(p + 3), 2)):
        assert possible_statistics(answer, [int(federation.rows(part).counts[i]) for part in ("train", "validation")])


@pytest.mark.parametrize("attack", ["same-value", "sign-flip", "gaussian", "inner-product"])
def test_whoever_lies_about_its_rows_is_found(attack):
    federation = planted(m=10, n=100, p=4)
    result = ff.fit(federation, attack=attack, liars=0.4)
    liars = result.attack["who"]
    assert sorted(result.suspects) == sorted(liars)
    honest = np.setdiff1d(np.arange(10), liars)
    assert adjusted_rand(federation.truth[honest], result.labels[honest]) == 1


def test_noise_that_is_uneven_is_told():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 2))
    noise = rng.normal(size=4000)
    federation = ff.Federation.from_arrays([(X, X[:, 0] + noise), (X, X[:, 0] + noise * X[:, 1] ** 2)])
    engine = InProcess(federation, LinearRegression().sized(2, 0), dtype="float64")
    even, uneven = (answer[-1] for answer in perform(engine, SendSufficientStatistics(3), 2))
    assert abs(even - 1) < 0.05
    assert uneven > 1.5
