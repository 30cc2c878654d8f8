"""The paper's CNN by compiled loops, against torch's own layers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="networks need the extra fedfuse[torch]")

from fedfuse.data.federation import Rows  # noqa: E402
from fedfuse.models.compiled_cnn import CompiledCNN  # noqa: E402
from fedfuse.models.flat_parameters import ParameterBackend  # noqa: E402
from fedfuse.models.networks import CNN  # noqa: E402
from fedfuse.protocol.local_work import Work  # noqa: E402

PAPER = (1, 28, 28)


def sized(shape=PAPER, classes=10, **options):
    return CNN(**options).sized(int(np.prod(shape)), classes, shape)


def engines(model, dtype):
    """The compiled one and torch's, with weights that are not small."""
    given = model.module, model.layout, model.shape, model._mean_loss, dtype, model._place
    found = [model._new_engine(dtype), ParameterBackend(*given)]
    assert [type(e) for e in found] == [CompiledCNN, ParameterBackend]
    w = 0.3 * torch.randn(model.d, dtype=dtype, generator=torch.Generator().manual_seed(5))
    for engine in found:
        engine.w.copy_(w)
    return found


def drawn(shape, n, classes, dtype, seed=0):
    """Images of which large parts are blank, as those of digits: there neighbours are alike."""
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(n, *shape))
    images[:, :, : shape[1] // 2] = 0
    return torch.from_numpy(images.reshape(n, -1)).to(dtype), torch.from_numpy(rng.integers(0, classes, n))


@settings(max_examples=25, deadline=None)
@given(
    inputs=st.integers(1, 3),
    height=st.integers(4, 31),
    width=st.integers(4, 31),
    channels=st.tuples(st.sampled_from([2, 4, 6]), st.sampled_from([2, 4])),
    classes=st.integers(2, 4),
    n=st.integers(1, 11),
    seed=st.integers(0, 100),
)
def test_scores_and_gradients_are_those_of_torch(inputs, height, width, channels, classes, n, seed):
    shape = (inputs, height, width)
    model = sized(shape, classes, channels=channels)
    ours, theirs = engines(model, torch.float64)
    x, y = drawn(shape, n, classes, torch.float64, seed)
    for (_, found), (_, expected) in zip(ours.outputs(x), theirs.outputs(x), strict=True):
        np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-11)
    for weight in (1.0, 0.3):  # a second gradient is added to the first
        for engine in (ours, theirs):
            engine.add_gradient(x, y, weight)
        np.testing.assert_allclose(ours.g, theirs.g, rtol=0, atol=1e-11)


def test_single_precision_is_as_good_as_torch():
    model = sized()
    ours, theirs = engines(model, torch.float32)
    exact = engines(model, torch.float64)[1]
    exact.w.copy_(ours.w.double())
    x, y = drawn(PAPER, 50, 10, torch.float32)
    for engine in (ours, theirs):
        engine.add_gradient(x, y)
    exact.add_gradient(x.double(), y)
    off = [float((engine.g - exact.g).abs().max()) for engine in (ours, theirs)]
    assert off[0] <= 2 * off[1] + 1e-7


def test_training_is_that_of_torch(monkeypatch):
    """Devices of unequal size, one without rows; batches, momentum, decay and an anchor."""
    X, y = drawn(PAPER, 60, 10, torch.float64)
    rows = Rows(X.numpy(), y.numpy(), np.array([0, 25, 25]), np.array([25, 25, 60]))
    model, devices = sized(), np.arange(3)
    start = np.tile(model.initial("auto", np.random.default_rng(0)), (3, 1))
    anchor = np.zeros((3, model.d - model.fused.start))
    work = Work(steps=2, lr=0.05, batch=8, momentum=0.9, decay=1e-3)

    def trained():
        fresh = sized()
        data = fresh.load(rows, np.float64)
        rngs = [np.random.default_rng(i) for i in devices]
        return fresh.train(data, devices, start, anchor, 0.5, work, rngs), fresh.losses(data, devices, start)

    ours, losses = trained()
    monkeypatch.setattr("fedfuse.models.compiled_cnn.CompiledCNN", ParameterBackend)
    theirs, expected = trained()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-12)


def test_what_is_not_a_number_is_not_hidden():
    model = sized()
    ours, _ = engines(model, torch.float64)
    x, y = drawn(PAPER, 5, 10, torch.float64)
    x[2, 400] = float("nan")
    scores = next(ours.outputs(x))[1].numpy()
    assert np.isnan(scores).any(axis=1).tolist() == [False, False, True, False, False]
    ours.add_gradient(x, y)
    assert torch.isnan(ours.g).any()


@pytest.mark.parametrize(
    ("options", "classes"), [({"channels": (3, 4)}, 10), ({"loss": lambda out, y: out.sum()}, 10), ({}, 0)]
)
def test_other_networks_are_torchs(options, classes):
    model = sized((1, 8, 8), classes, **options)
    assert type(model._new_engine(torch.float64)) is ParameterBackend
