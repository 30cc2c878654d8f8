"""Weights of rows: a whole number k is the same as a row that comes k times."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfuse.data.federation import Federation, Rows
from fedfuse.engines import InProcess
from fedfuse.models import LinearRegression, SoftmaxRegression
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import EvaluateModels, Order, SendMoments, SendSufficientStatistics, Subspace
from support.plain_models import ragged
from support.planted import planted

CLASSES = {"softmax": 3, "linear": 0}
MODELS = {"softmax": SoftmaxRegression, "linear": LinearRegression}


def weighted_and_repeated(counts, kind, seed=0, p=4):
    """Rows with whole weights, some 0, and the same rows repeated."""
    rng = np.random.default_rng(seed)
    rows = ragged(counts, p, CLASSES[kind], seed, gaps=2)
    times = rng.integers(0, 4, len(rows.y))
    keep = [np.repeat(np.arange(a, b), times[a:b]) for a, b in zip(rows.start, rows.stop, strict=True)]
    stop = np.cumsum([len(k) for k in keep])
    index = np.concatenate(keep).astype(np.int64)
    once = replace(rows, weights=times.astype(np.float64))
    return once, Rows(rows.X[index], rows.y[index], stop - [len(k) for k in keep], stop)


def loaded(kind, rows, dtype=np.float64):
    model = MODELS[kind]().sized(rows.X.shape[1], CLASSES[kind])
    return model, model.load(rows, dtype)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["softmax", "linear"]), st.lists(st.integers(3, 40), min_size=1, max_size=4), st.integers(0, 99))
def test_losses_gradients_scores_and_solutions(kind, counts, seed):
    once, repeated = weighted_and_repeated(counts, kind, seed)
    devices, rng = np.arange(len(counts)), np.random.default_rng(seed)
    (model, a), (_, b) = loaded(kind, once), loaded(kind, repeated)
    w, anchor = rng.normal(size=(2, len(counts), model.d))
    for ask in (model.losses, model.gradients, model.metric):
        np.testing.assert_allclose(ask(a, devices, w), ask(b, devices, w), atol=1e-10)
    for work in (Work(steps=5, lr=0.1), Work(solver="exact")):
        new = [model.train(data, devices, w, anchor, 0.5, work) for data in (a, b)]
        np.testing.assert_allclose(*new, atol=1e-10 if work.solver != "exact" or kind == "linear" else 1e-7)


@pytest.mark.parametrize("kind", MODELS)
def test_many_rows_and_batches_of_all(kind):
    """More than one panel; a mini-batch is a weighted mean, so that one of all rows is a step of full batch."""
    once, repeated = weighted_and_repeated([700, 300], kind)
    devices = np.arange(2)
    (model, a), (_, b) = loaded(kind, once), loaded(kind, repeated)
    w = np.random.default_rng(0).normal(size=(2, model.d))
    np.testing.assert_allclose(model.losses(a, devices, w), model.losses(b, devices, w), rtol=1e-10)
    np.testing.assert_allclose(model.gradients(a, devices, w), model.gradients(b, devices, w), atol=1e-10)
    rngs = [np.random.default_rng(i) for i in devices]
    batches = model.train(a, devices, w, None, 0.0, Work(steps=3, lr=0.1, batch=1000), rngs)
    whole = model.train(b, devices, w, None, 0.0, Work(steps=3, lr=0.1))
    np.testing.assert_allclose(batches, whole, atol=1e-10)


@pytest.mark.parametrize("kind", MODELS)
def test_single_precision_is_close(kind):
    once, repeated = weighted_and_repeated([50, 90], kind)
    (model, a), (_, b) = loaded(kind, once, np.float32), loaded(kind, repeated, np.float32)
    w = np.random.default_rng(0).normal(size=(2, model.d))
    np.testing.assert_allclose(*(model.losses(data, np.arange(2), w) for data in (a, b)), rtol=1e-5)


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("own_loss", [False, True])
def test_torch_modules(classes, own_loss):
    torch = pytest.importorskip("torch", reason="pip install 'fedfuse[torch]'")
    from fedfuse.models.torch import TorchModel

    once, repeated = weighted_and_repeated([40, 25], "softmax" if classes else "linear")
    plain = torch.nn.functional.cross_entropy if classes else torch.nn.functional.mse_loss
    loss = plain if own_loss else "cross_entropy" if classes else "mse"
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, classes or 1)).double()
    model = TorchModel(module, loss=loss).sized(4, classes)
    a, b = (model.load(rows, np.float64) for rows in (once, repeated))
    devices, w = np.arange(2), np.random.default_rng(0).normal(size=(2, model.d))
    for ask in (model.losses, model.gradients, model.metric):
        np.testing.assert_allclose(ask(a, devices, w), ask(b, devices, w), atol=1e-10)
    work = Work(steps=4, lr=0.05)
    np.testing.assert_allclose(*(model.train(data, devices, w, None, 0.0, work) for data in (a, b)), atol=1e-10)


def test_the_compiled_network_leaves_weights_to_torch():
    pytest.importorskip("torch", reason="pip install 'fedfuse[torch]'")
    from fedfuse.models.networks import CNN

    rng = np.random.default_rng(0)
    rows = Rows(rng.normal(size=(30, 64)), rng.integers(3, size=30), np.array([0]), np.array([30]))
    model = CNN().sized(64, 3, (1, 8, 8))
    w, device = model.initial("auto", rng)[None], np.array([0])
    same = model.load(replace(rows, weights=np.full(30, 2.0)), np.float64)
    plain = model.load(rows, np.float64)
    np.testing.assert_allclose(model.gradients(same, device, w), model.gradients(plain, device, w), atol=1e-10)
    first = model.load(replace(rows, weights=(np.arange(30) < 10.0).astype(float)), np.float64)
    some = model.load(replace(rows, stop=np.array([10])), np.float64)
    np.testing.assert_allclose(model.gradients(first, device, w), model.gradients(some, device, w), atol=1e-10)


@pytest.mark.parametrize("kind", MODELS)
def test_what_devices_say_of_their_rows(kind):
    """Statistics, moments, subspaces and means of losses; how these vary is told by the rows that there are."""
    once, repeated = weighted_and_repeated([30, 50], kind)
    goal, classes = ("classification", tuple(range(3))) if CLASSES[kind] else ("regression", ())
    model = MODELS[kind]().sized(4, CLASSES[kind])
    tasks = [SendMoments(4), Subspace(2, 4, CLASSES[kind]), EvaluateModels(np.ones((2, model.d)), "train")]
    tasks += [EvaluateModels(np.ones((1, model.d)), "train", balanced=True)]
    tasks += [SendSufficientStatistics(5)] if kind == "linear" else []
    answers = []
    for rows in (once, repeated):
        middle = rows.start if kind == "softmax" else rows.stop
        cuts = np.stack([rows.start, rows.stop, np.maximum(rows.stop, middle), rows.stop], axis=1)
        federation = Federation(("a", "b"), rows.X, rows.y, cuts, goal, classes, weights=rows.weights)
        engine = InProcess(federation, model, dtype=np.float64)
        engine.submit([Order(i, 0, task) for task in tasks for i in range(2)])
        answers.append([r.values for r in engine.collect()])
    for task, a, b in zip(np.repeat(np.array(tasks, object), 2), *answers, strict=True):
        n = len(task.models) if isinstance(task, EvaluateModels) else len(a)
        np.testing.assert_allclose(a[:n], b[:n], atol=1e-10)


def test_weights_are_relative_and_belong_to_their_rows():
    federation = planted("classification", m=3)
    heavy = replace(federation, weights=np.arange(1.0, len(federation.y) + 1))
    assert heavy.fingerprint != federation.fingerprint
    one = heavy.only([2])
    np.testing.assert_array_equal(one.weights, heavy.rows("all").weights_of(2))
    np.testing.assert_allclose(heavy.rows("train").totals[1], heavy.rows("train").weights_of(1).sum())
    np.testing.assert_allclose(heavy.weighted((3.0, 3.0, 3.0)).weights, heavy.weights)
    of_class = np.array([1.0, 1.0, 5.0])[federation.y]
    tells = (heavy.weights @ of_class) ** 2 / (heavy.weights @ of_class**2)
    assert heavy.weighted((1.0, 1.0, 5.0)).weights.sum() == pytest.approx(tells)
