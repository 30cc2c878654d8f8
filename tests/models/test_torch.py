from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from fedfuse.data.federation import Rows
from fedfuse.errors import FedfuseError
from fedfuse.models import LinearRegression, SoftmaxRegression
from fedfuse.protocol.local_work import Work
from fedfuse.utils import threads as _threads
from support import plain_models as plain

torch = pytest.importorskip("torch", reason="networks need the extra fedfuse[torch]")
from torch import nn  # noqa: E402

from fedfuse.models.flat_parameters import ParameterBackend  # noqa: E402
from fedfuse.models.networks import CNN, MLP  # noqa: E402
from fedfuse.models.torch import TorchModel  # noqa: E402

COUNTS = [1, 7, 0, 30, 101]
BATCHES = Work(2, 0.1, batch=10)


def mlp(p=6, C=4, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(p, 5), nn.Tanh(), nn.Linear(5, C))


def setup(module=None, counts=COUNTS, p=6, C=4, dtype=np.float64, seed=0, **kwargs):
    rows = plain.ragged(counts, p, C, seed)
    module = module or mlp(p, max(C, 1))
    if dtype == np.float64:
        module.double()
    model = TorchModel(module, "cross_entropy" if C else "mse", **kwargs).sized(p, C)
    rng = np.random.default_rng(seed + 1)
    w = model.initial("auto", rng) + 0.1 * rng.normal(size=(len(counts), model.d))
    anchor = rng.normal(size=(len(counts), model.d))[:, model.fused]
    return model, rows, model.load(rows, dtype), np.arange(len(counts)), w.astype(dtype), anchor.astype(dtype)


def generators(devices):
    return [np.random.default_rng([5, int(i)]) for i in devices]


def batches(n, work, rng):
    """The row numbers of every batch, epoch after epoch."""
    while n:
        order = rng.permutation(n)
        yield from (order[first : first + work.batch] for first in range(0, n, work.batch))


def optimised(model, x, y, w, anchor, rho, work, rng, loss=nn.functional.cross_entropy):
    """The same training by torch's own optimiser: the proximal term is a part of the loss."""
    module = model.module_with(w).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=work.lr, momentum=work.momentum, weight_decay=work.decay)
    names = dict(module.named_parameters())
    fused = [names[name] for name in model.layout.names if name in names][-len(anchor) :]
    steps = work.steps * -(-len(x) // work.batch) if work.unit == "epochs" else work.steps
    stream = batches(len(x), work, rng)
    for _ in range(steps):
        rows = next(stream)
        optimiser.zero_grad()
        pull = sum((p - a).square().sum() for p, a in zip(fused, anchor, strict=True))
        (loss(module(x[rows]), y[rows]) + rho / 2 * pull).backward()
        optimiser.step()
    tensors = {**names, **dict(module.named_buffers())}
    return torch.cat([tensors[name].detach().ravel() for name in model.layout.names]).numpy()


def pieces(model, anchor):
    """Anchors of the fused tensors in their shapes."""
    whole = torch.zeros(model.d, dtype=torch.float64)
    whole[model.fused] = torch.from_numpy(anchor)
    first = model.layout.s
    views, at = [], 0
    for _, view in model.layout.views(whole):
        at += view.numel()
        if at > first:
            views.append(view)
    return views


# -- the vector


def test_the_fused_part_comes_last():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 4))
    model = TorchModel(net)
    assert model.layout.names[-2:] == ("2.weight", "2.bias")
    assert model.layout.names[4:6] == ("1.running_mean", "1.running_var")
    assert model.fused == slice(8 + 4 + 4, 16 + 12)
    first = TorchModel(net, fused="0")
    assert first.layout.names == (
        "1.weight", "1.bias", "2.weight", "2.bias", "1.running_mean", "1.running_var", "0.weight", "0.bias",
    )  # fmt: skip
    assert first.fused == slice(4 + 12 + 4, 28)
    assert TorchModel(mlp(), fused="all").fused == slice(0, 6 * 5 + 5 + 24)
    assert TorchModel(mlp(), fused=["*.bias"]).fused == slice(30 + 20, 30 + 20 + 9)


def test_the_module_is_the_start_and_comes_back_with_other_weights():
    model, _, _, _, w, _ = setup()
    start = model.initial("auto", np.random.default_rng(0))
    for p, q in zip(model.module.parameters(), model.module_with(start).parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)
    own = copy.deepcopy(model.module.state_dict())
    changed = model.module_with(w[0])
    assert not changed.training
    np.testing.assert_array_equal(changed[0].weight.detach().numpy().ravel(), w[0, :30])
    assert all(torch.equal(own[name], value) for name, value in model.module.state_dict().items())
    assert set(model.tensors(w[0])) == set(own)


def test_frozen_parameters_are_not_in_the_vector_and_never_change():
    trunk = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.9))
    for p in trunk.parameters():
        p.requires_grad = False
    net = nn.Sequential(trunk, nn.Linear(5, 4))
    model, rows, data, devices, w, anchor = setup(net)
    assert model.layout.names == ("1.weight", "1.bias")
    assert model.fused == slice(0, 24)
    before = copy.deepcopy(net.state_dict())
    model.train(data, devices, w, anchor, 1.0, BATCHES, generators(devices))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    # a trunk in use is a fixed function: the head is softmax regression on what it says
    with torch.no_grad():
        features = copy.deepcopy(trunk).eval()(torch.from_numpy(rows.X)).numpy()
    head = SoftmaxRegression().sized(5, 4)
    lot = head.load(Rows(features, rows.y, rows.start, rows.stop), np.float64)
    expected = head.train(lot, devices, w, anchor, 1.0, BATCHES, generators(devices))
    new = model.train(data, devices, w, anchor, 1.0, BATCHES, generators(devices))
    np.testing.assert_allclose(new, expected, rtol=0, atol=1e-12)


# -- mathematics


@pytest.mark.parametrize("C", [4, 0])
def test_gradient_is_the_derivative_of_the_loss(C):
    model, _, data, devices, w, _ = setup(C=C)
    G = model.gradients(data, devices, w)
    for i in devices:
        slope = approx_fprime(w[i], lambda v, i=i: model.losses(data, devices[i : i + 1], v[None])[0], 1e-7)
        np.testing.assert_allclose(G[i], slope, rtol=0, atol=1e-5)


@pytest.mark.parametrize("C", [4, 0])
def test_one_look_at_rows_is_as_good_as_two(C):
    model, _, data, devices, w, _ = setup(C=C)
    losses, scores = model.losses_and_metric(data, devices, w)
    np.testing.assert_array_equal(losses, model.losses(data, devices, w))
    np.testing.assert_array_equal(scores, model.metric(data, devices, w))
    assert np.isnan(scores).tolist() == (data.counts == 0).tolist()


def test_gradient_is_that_of_the_plain_module():
    model, rows, data, devices, w, _ = setup()
    G = model.gradients(data, devices, w)
    for i in (0, 1, 3, 4):
        module = model.module_with(w[i])
        X, y = rows.of(i)
        nn.functional.cross_entropy(module(torch.from_numpy(X)), torch.from_numpy(y)).backward()
        expected = torch.cat([p.grad.ravel() for p in module.parameters()]).numpy()
        np.testing.assert_allclose(G[i], expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(G[2], 0)  # no rows


WORKS = {
    "gd": Work(5, 0.1),
    "epochs": Work(2, 0.1, batch=10),
    "batches": Work(7, 0.1, batch=10, unit="batches"),
    "decay": Work(2, 0.1, batch=10, decay=0.3),
}


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-6)])
def test_a_linear_layer_is_softmax_regression(work, dtype, tolerance):
    model, rows, data, devices, w, anchor = setup(nn.Linear(6, 4), dtype=dtype, fused="all")
    other = SoftmaxRegression().sized(6, 4)
    lot = other.load(rows, dtype)
    for pull, rho in ((None, 0.0), (anchor, 0.7)):
        new = model.train(data, devices, w, pull, rho, work, generators(devices))
        assert new.dtype == dtype
        expected = other.train(lot, devices, w, pull, rho, work, generators(devices))
        np.testing.assert_allclose(new, expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(model.losses(data, devices, w), other.losses(lot, devices, w), atol=tolerance)
    np.testing.assert_allclose(model.metric(data, devices, w), other.metric(lot, devices, w))
    np.testing.assert_allclose(model.outputs(w[0], rows.X), other.outputs(w[0], rows.X), atol=tolerance)
    X, y = rows.of(4)
    np.testing.assert_allclose(model.row_losses(w[:2], X, y), other.row_losses(w[:2], X, y), atol=10 * tolerance)


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_a_linear_layer_is_linear_regression(work, dtype, tolerance):
    model, rows, data, devices, w, anchor = setup(nn.Linear(6, 1), C=0, dtype=dtype, fused="all")
    other = LinearRegression().sized(6, 0)
    lot = other.load(rows, dtype)
    new = model.train(data, devices, w, anchor, 0.7, work, generators(devices))
    expected = other.train(lot, devices, w, anchor, 0.7, work, generators(devices))
    np.testing.assert_allclose(new, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(model.losses(data, devices, w), other.losses(lot, devices, w), rtol=tolerance)
    np.testing.assert_allclose(model.metric(data, devices, w), other.metric(lot, devices, w), rtol=tolerance)
    np.testing.assert_allclose(model.outputs(w[0], rows.X), other.outputs(w[0], rows.X), rtol=0, atol=10 * tolerance)
    X, y = rows.of(4)
    rough = {"rtol": 0, "atol": 100 * tolerance}
    np.testing.assert_allclose(model.row_losses(w[:2], X, y), other.row_losses(w[:2], X, y), **rough)


@pytest.mark.parametrize("fused", ["last", "0", "all"])
@pytest.mark.parametrize("unit", ["epochs", "batches"])
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.1), (0.9, 0.1)])
def test_training_is_that_of_torch_optim_sgd(fused, unit, momentum, decay):
    work = Work(3, 0.1, 20, momentum=momentum, decay=decay, unit=unit)
    model, rows, data, devices, w, anchor = setup(fused=fused)
    new = model.train(data, devices, w, anchor, 0.5, work, generators(devices))
    for i, rng in zip(devices, generators(devices), strict=True):
        if rows.counts[i]:
            x, y = (torch.from_numpy(a) for a in rows.of(i))
            expected = optimised(model, x, y, w[i], pieces(model, anchor[i]), 0.5, work, rng)
            np.testing.assert_allclose(new[i], expected, rtol=0, atol=1e-12)


def test_training_works_where_gradients_are_switched_off():
    model, _, data, devices, w, anchor = setup()
    expected = model.train(data, devices, w, anchor, 0.5, BATCHES, generators(devices))
    with torch.no_grad():
        np.testing.assert_array_equal(
            model.train(data, devices, w, anchor, 0.5, BATCHES, generators(devices)), expected
        )


def test_without_rows_only_the_anchor_pulls():
    model, _, data, _, w, anchor = setup()
    new = model.train(data, np.array([2]), w[2:3], anchor[2:3], 0.5, Work(2, 0.1))
    s = model.fused.start
    np.testing.assert_allclose(new[0, s:], anchor[2] + 0.95**2 * (w[2, s:] - anchor[2]), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(new[0, :s], w[2, :s])


# -- statistics and chance


def normed(p=6, C=4):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(p, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, C))


def test_batch_norm_statistics_are_in_the_vector_without_gradient_decay_or_pull():
    model, rows, data, _, w, anchor = setup(normed(), fused="all", counts=[30, 43])
    devices = np.arange(2)
    span = slice(model.layout.shared, model.layout.s)
    assert model.layout.names[:2] == ("1.running_mean", "1.running_var")
    assert (span.start, span.stop) == (0, 10)
    w[:, 5:10] = np.abs(w[:, 5:10]) + 0.5
    work = Work(2, 0.1, 10, momentum=0.9, decay=0.2)
    new = model.train(data, devices, w, anchor, 0.5, work, generators(devices))
    for i, rng in zip(devices, generators(devices), strict=True):
        x, y = (torch.from_numpy(a) for a in rows.of(i))
        expected = optimised(model, x, y, w[i], pieces(model, anchor[i]), 0.5, work, rng)
        np.testing.assert_allclose(new[i], expected, rtol=0, atol=1e-11)
    assert (new[:, span] != w[:, span]).all()
    np.testing.assert_array_equal(model.gradients(data, devices, w)[:, span], 0)


def test_a_lone_last_row_joins_the_batch_before_it_where_batch_norm_needs_two():
    model, _, data, devices, w, anchor = setup(normed(), counts=[31, 2])
    new = model.train(data, devices, w, anchor, 0.5, BATCHES, generators(devices))
    assert np.isfinite(new).all()
    model, _, data, devices, w, anchor = setup(normed(), counts=[31, 1])
    with pytest.raises(FedfuseError, match="device 1 would have one"):
        model.train(data, devices, w, anchor, 0.5, BATCHES, generators(devices))


def dropping():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 4))


@pytest.mark.parametrize("work", [Work(3, 0.1), BATCHES], ids=["gd", "batches"])
def test_dropout_is_a_function_of_the_generator_and_leaves_torch_alone(work):
    model, _, data, devices, w, anchor = setup(dropping())
    before = torch.get_rng_state()
    a = model.train(data, devices, w, anchor, 1.0, work, generators(devices))
    torch.manual_seed(99)
    after = torch.get_rng_state()
    b = model.train(data, devices, w, anchor, 1.0, work, generators(devices))
    np.testing.assert_array_equal(a, b)
    assert torch.equal(after, torch.get_rng_state())
    torch.set_rng_state(before)
    other = model.train(data, devices, w, anchor, 1.0, work, [np.random.default_rng([6, i]) for i in devices])
    assert (a[3] != other[3]).any()
    with pytest.raises(FedfuseError, match="one random generator per device"):
        model.train(data, devices, w, anchor, 1.0, work)


def test_what_dropout_draws_does_not_change_the_batches():
    net = dropping()
    still = copy.deepcopy(net)
    still[1].p = 0.0
    model, _, data, devices, w, _ = setup(still)
    net[1].p = 0.0
    none, _, data, devices, w, _ = setup(nn.Sequential(net[0], nn.Identity(), net[2]))
    args = (data, devices, w, None, 0.0, BATCHES)
    np.testing.assert_array_equal(model.train(*args, generators(devices)), none.train(*args, generators(devices)))


def test_every_thread_is_told_to_compute_alone(monkeypatch):
    """OpenMP's numbers of threads are those of a thread, and a new one begins with all cores."""
    monkeypatch.setattr(_threads, "MIN_PARALLEL_WORK", 0.0)
    told, worked = set(), set()
    model, _, data, devices, w, _ = setup(counts=[40] * 12)
    tell, descend = torch.set_num_threads, ParameterBackend.descend
    both = threading.Barrier(2)

    def listen(n):
        told.add((threading.get_ident(), n))
        tell(n)

    def work(self, *args):
        if not worked:
            worked.add(threading.get_ident())
            both.wait(timeout=60)  # until the other thread has a device, too
        elif len(worked) == 1 and threading.get_ident() not in worked:
            worked.add(threading.get_ident())
            both.wait(timeout=60)
        return descend(self, *args)

    monkeypatch.setattr(torch, "set_num_threads", listen)
    monkeypatch.setattr(ParameterBackend, "descend", work)
    monkeypatch.setattr(_threads, "_limit", 2)
    model.train(data, devices, w, None, 0.0, BATCHES, generators(devices))
    assert len(worked) == 2
    assert {(thread, 1) for thread in worked} <= told


@pytest.mark.parametrize("module", [mlp, normed, dropping], ids=["plain", "batch norm", "dropout"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_depend_neither_on_companions_nor_on_threads(module, dtype, monkeypatch):
    counts = [30, 12, 47, 22, 101]
    model, _, data, devices, w, anchor = setup(module(), counts=counts, dtype=dtype)
    work = Work(2, 0.1, batch=10, momentum=0.5)
    together = model.train(data, devices, w, anchor, 0.7, work, generators(devices))
    monkeypatch.setattr(_threads, "MIN_PARALLEL_WORK", 0.0)
    threads = torch.get_num_threads()
    try:
        for n in (1, None):
            _threads.keep_to(n)
            again = model.train(data, devices, w, anchor, 0.7, work, generators(devices))
            np.testing.assert_array_equal(together, again)
    finally:
        _threads.keep_to(None)
    assert torch.get_num_threads() == threads
    for i in devices:
        alone = model.train(data, devices[[i]], w[[i]], anchor[[i]], 0.7, work, generators([i]))
        np.testing.assert_array_equal(together[[i]], alone)
        for what in (model.losses, model.metric, model.gradients):
            np.testing.assert_array_equal(what(data, devices, w)[[i]], what(data, devices[[i]], w[[i]]))


def test_counters_of_a_module_do_not_carry_over_from_device_to_device():
    net = normed()
    net[1].momentum = None  # a plain mean over all batches so far, by a counter in the module
    model, _, data, devices, w, _ = setup(net, counts=[30, 30])
    a = model.train(data, devices, w, None, 0.0, BATCHES, generators(devices))
    b = model.train(data, devices[::-1], w[::-1], None, 0.0, BATCHES, generators(devices[::-1]))
    np.testing.assert_array_equal(a, b[::-1])


# -- images


class Viewing(nn.Module):
    """As many write it: flattened by view, which wants channels first in memory."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(3 * 36, 4)

    def forward(self, x):
        x = self.conv(x)
        return self.head(x.view(x.size(0), -1))


def test_images_of_several_channels():
    torch.manual_seed(0)
    net = Viewing()
    model, rows, data, devices, w, anchor = setup(net, p=72, counts=[25, 13], shape=(2, 6, 6))
    new = model.train(data, devices, w, anchor, 0.5, BATCHES, generators(devices))
    for i, rng in zip(devices, generators(devices), strict=True):
        X, y = rows.of(i)
        x, y = torch.from_numpy(X).view(-1, 2, 6, 6), torch.from_numpy(y)
        expected = optimised(model, x, y, w[i], pieces(model, anchor[i]), 0.5, BATCHES, rng)
        np.testing.assert_allclose(new[i], expected, rtol=0, atol=1e-12)
    module = model.module_with(w[0])
    with torch.no_grad():
        expected = torch.softmax(module(torch.from_numpy(rows.X).view(-1, 2, 6, 6)), 1).numpy()
    np.testing.assert_allclose(model.outputs(w[0], rows.X), expected, rtol=0, atol=1e-12)


def test_the_papers_network():
    model = CNN().sized(784, 10, (28, 28))
    assert model.shape == (1, 28, 28)
    assert (model.d, model.fused) == (6582, slice(2572, 6582))
    assert [tuple(s) for s in model.layout.shapes] == [(6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,), (10, 400), (10,)]
    w = model.initial("auto", np.random.default_rng(3))
    np.testing.assert_array_equal(w, model.initial("auto", np.random.default_rng(3)))
    assert (w != model.initial("auto", np.random.default_rng(4))).any()
    assert np.abs(w[2572:]).max() <= 1 / 20  # torch's default: uniform up to 1 / sqrt(400)


def test_the_network_for_digits_learns_them():
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    rows = Rows(X / 16, y, np.array([0, 1400]), np.array([1400, len(y)]))
    model = CNN().sized(64, 10, (8, 8))
    data, w = model.load(rows, np.float32), model.initial("auto", np.random.default_rng(0))[None]
    w = model.train(data, np.array([0]), w, None, 0.0, Work(15, 0.05, 32, momentum=0.9), generators([0]))
    assert model.metric(data, np.array([1]), w)[0] > 0.9


# -- what else may be given


@pytest.mark.parametrize("rowwise", [False, True])
def test_a_loss_of_ones_own(rowwise):
    def huber(out, y):
        return nn.functional.huber_loss(out, y, reduction="none" if rowwise else "mean")

    rows = plain.ragged([20, 30], 6, 0)
    model = TorchModel(mlp(6, 1).double(), huber).sized(6, 0)
    data, devices = model.load(rows, np.float64), np.arange(2)
    w = np.tile(model.initial("auto", np.random.default_rng(0)), (2, 1))
    new = model.train(data, devices, w, None, 0.0, Work(50, 0.1))
    assert (model.losses(data, devices, new) < model.losses(data, devices, w)).all()
    X, y = rows.of(1)
    assert model.row_losses(new, X, y)[1].mean() == pytest.approx(model.losses(data, devices, new)[1])


def test_models_can_be_sent_to_other_processes():
    model, rows, data, devices, w, anchor = setup()
    new = model.train(data, devices, w, anchor, 0.5, BATCHES, generators(devices))
    other = pickle.loads(pickle.dumps(model))
    again = other.train(other.load(rows, np.float64), devices, w, anchor, 0.5, BATCHES, generators(devices))
    np.testing.assert_array_equal(new, again)


def test_rows_are_shared_with_torch_where_the_type_is_right():
    rows = plain.ragged([20, 30], 6, 4)
    model = TorchModel(mlp()).sized(6, 4)
    assert model.load(rows, np.float64).X.data_ptr() == rows.X.ctypes.data
    one, two = model.load(rows, np.float32), model.load(rows, np.float32)
    assert one.X.data_ptr() == two.X.data_ptr()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TorchModel(mlp(), "mae"), "loss must be"),
        (lambda: TorchModel("net"), "module must be a torch.nn.Module"),
        (lambda: TorchModel(mlp(), fused="tail"), "names no parameter that is trained; there are: 0.weight"),
        (lambda: TorchModel(mlp().requires_grad_(False)), "nothing to train"),
        (lambda: TorchModel(mlp()).sized(6, 0), "loss='cross_entropy' is for classification"),
        (lambda: TorchModel(mlp()).sized(6, 4, (2, 4)), "cannot have the shape"),
        (lambda: TorchModel(mlp()).initial("zero", None), "leave start='auto'"),
        (lambda: CNN().sized(64, 10), "needs to know the shape"),
        (lambda: CNN(channels=(3,)), "channels must be two"),
        (lambda: MLP(hidden=()), "hidden must be"),
        (lambda: setup(mlp(6, 3)), "one score for each of 4 classes"),
        (lambda: setup(mlp(6, 2), C=0), "one value per row"),
        (lambda: setup(mlp(5, 4)), "cannot take rows of shape"),
    ],
)
def test_what_cannot_be_used_is_named(make, words):
    with pytest.raises(FedfuseError, match=words):
        make()


def test_work_that_a_network_cannot_do():
    model, _, data, devices, w, anchor = setup()
    with pytest.raises(FedfuseError, match="no exact solver"):
        model.train(data, devices, w, anchor, 1.0, Work(solver="exact"))
    with pytest.raises(FedfuseError, match="momentum is for networks"):
        SoftmaxRegression().sized(6, 4).train(
            SoftmaxRegression().sized(6, 4).load(plain.ragged([5], 6, 4), np.float64), np.array([0]),
            np.zeros((1, 28)), None, 0.0, Work(momentum=0.5),
        )  # fmt: skip
