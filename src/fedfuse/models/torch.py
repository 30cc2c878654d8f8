"""Any PyTorch module as a model."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import prod
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfuse.data.federation import Goal, Rows
from fedfuse.errors import FedfuseError
from fedfuse.models import flat_parameters
from fedfuse.models.flat_parameters import CHUNK_ROWS, Layout, ParameterBackend, named_tensors, one_thread, weight_of
from fedfuse.models.model import Model, Rngs, Shape, Start, batch_orders, one_each, plain
from fedfuse.protocol.local_work import Work
from fedfuse.utils.threads import spread
from fedfuse.utils.typing import Floats, Ints

T = TypeVar("T", bound="TorchModel")
LossName: TypeAlias = Literal["cross_entropy", "mse"]
Loss: TypeAlias = "LossName | Callable[[Tensor, Tensor], Tensor]"
_GOALS: dict[Any, Goal] = {"cross_entropy": "classification", "mse": "regression"}
_DTYPES: dict[np.dtype[Any], torch.dtype] = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


@dataclass(frozen=True)
class TorchData(Rows):
    """Rows as tensors (n x features), and the precision of parameters; y is (target, weight) of rows with weights."""

    X: Any
    y: Any
    dtype: np.dtype[Any] = field(kw_only=True)

    def of(self, device: int) -> tuple[Any, Any]:
        return super().of(device)


@dataclass(frozen=True, init=False, eq=False)
class TorchModel(Model[TorchData]):
    """A `torch.nn.Module` with a loss; it is copied, never changed.

    The flat vector holds what is learned: first the parameters that all devices share, then floating-point buffers
    (the running statistics of batch norm: averaged like parameters, but without gradient, decay or anchor), last the
    ``fused`` parameters. Frozen parameters (``requires_grad=False``) are never sent; a submodule that is frozen as a
    whole also keeps its statistics and drops nothing. Whole-number buffers stay in the module. With batch norm, a lone
    last row of an epoch joins the batch before it.

    Parameters
    ----------
    module
        Takes a batch of rows; returns one score per class (classification) or one value (regression) for each.
    loss
        ``"cross_entropy"``, ``"mse"``, or a function of outputs and targets that returns the mean over rows, or one
        number per row. For values, the outputs it gets have the shape of the targets.
    fused
        Which parameters take part in fusion: ``"last"`` (those of the last module with parameters of its own),
        ``"all"``, or names or patterns of parameters or modules, e.g. ``["head.*", "norm"]``.
    shape
        The shape of one row, e.g. ``(1, 28, 28)``; that of the federation, or a plain vector, when not given.
    device
        Where torch computes: ``"auto"`` takes a GPU if there is one. On the CPU, the same seed gives the same bits.

    Examples
    --------
    >>> model = TorchModel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))).sized(4, 3)
    >>> model.d, model.fused
    (67, slice(40, 67, None))
    """

    module: nn.Module
    loss: Loss
    fuse: str | tuple[str, ...]
    shape: Shape | None
    device: str

    convex: ClassVar[bool] = False

    def __init__(
        self,
        module: nn.Module,
        loss: Loss = "cross_entropy",
        fused: str | Sequence[str] = "last",
        shape: Sequence[int] | None = None,
        device: str = "auto",
    ) -> None:
        if not isinstance(module, nn.Module):
            raise FedfuseError(f"module must be a torch.nn.Module, got {type(module).__name__}")
        self._set(module=module, **checked_options(loss, fused, shape, device))
        self.layout  # noqa: B018 - says what is wrong with the names before data are loaded

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)  # frozen, as all models are

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # without working copies

    def sized(self: T, n_features: int, n_classes: int, shape: Shape | None = None) -> T:
        """Return this model for such rows; its own ``shape``, where it has one, counts."""
        self.check("classification" if n_classes else "regression")
        shape = self.shape or shape
        if shape is not None and prod(shape) != n_features:
            raise FedfuseError(f"rows have {n_features} features, which cannot have the shape {tuple(shape)}")
        return self._with(n_features=n_features, n_classes=n_classes, shape=shape)

    def _with(self: T, **changes: Any) -> T:
        new = copy.copy(self)
        new._set(**changes)
        return new

    @property
    def goal(self) -> Goal:
        own: Goal = "classification" if self.n_classes else "regression"
        return own if callable(self.loss) else _GOALS[self.loss]

    def check(self, goal: Goal) -> None:
        if callable(self.loss) or goal == self.goal:
            return
        fitting = "cross_entropy" if goal == "classification" else "mse"
        raise FedfuseError(f"loss={self.loss!r} is for {self.goal}, but the target needs {goal}: use loss={fitting!r}")

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of what is in the vector."""
        return flat_parameters.layout_of(self.module, self.fuse)

    @property
    def d(self) -> int:
        return self.layout.d

    @property
    def fused(self) -> slice:
        return slice(self.layout.s, self.layout.d)

    def initial(self, start: Start, rng: np.random.Generator) -> Floats:
        """Return the module's own weights: a network that starts from zero learns nothing."""
        if start != "auto":
            raise FedfuseError(f"a network starts from its own weights: leave start='auto', got {start!r}")
        return vector(self.module, self.layout)

    def load(self, rows: Rows, dtype: npt.DTypeLike) -> TorchData:
        self._check_load(rows, dtype)
        dtype = np.dtype(dtype)
        self._draws  # noqa: B018 - says what is wrong with the module before it trains
        X = _tensor(rows.X, dtype)
        y = _tensor(rows.y, np.dtype(np.int64) if self.n_classes else dtype)
        if rows.weights is not None:  # In one tensor: batches of rows have their targets and weights.
            y = torch.stack([y.to(X.dtype), _tensor(rows.weights, dtype)], dim=1)
        return TorchData(X.to(self._place), y.to(self._place), rows.start, rows.stop, dtype=dtype)

    def train(
        self, data: TorchData, devices: Ints, start: Floats, anchor: Floats | None, rho: float, work: Work,
        rngs: Rngs = None,
    ) -> Floats:  # fmt: skip
        if work.solver == "exact":
            raise FedfuseError("a network has no exact solver: give Work(steps=…, lr=…, batch=…)")
        if work.batch is not None or self._draws:
            rngs = one_each(rngs, devices)
        W = np.array(np.reshape(start, (-1, self.d)), data.dtype)

        def train(engine: ParameterBackend, k: int) -> None:
            rng = rngs[k] if rngs else None
            x, y = data.of(devices[k])
            if engine.couples_rows and 1 in (len(x), work.batch):
                raise FedfuseError(f"batch norm needs at least two rows; device {devices[k]} would have one")
            engine.w.copy_(torch.from_numpy(W[k]))
            pull = None if anchor is None or not rho else self._on_place(anchor[k], data.dtype)
            # a child of the device's generator: the batches are the same with and without dropout
            seed = int(rng.spawn(1)[0].integers(2**63)) if rng and self._draws else None
            with nullcontext() if seed is None else flat_parameters.seeded(seed, self._place):
                engine.descend(x, y, _batches(x, work, rng, engine.couples_rows), pull, float(rho), work)
            W[k] = engine.w.cpu().numpy()

        passes = plain(work)[0] if work.batch is None or work.unit == "epochs" else 1
        self._each(data, devices, train, passes, alone=self._draws)
        return W

    def losses(self, data: TorchData, devices: Ints, w: Floats) -> Floats:
        return self.losses_and_metric(data, devices, w)[0]

    def metric(self, data: TorchData, devices: Ints, w: Floats) -> Floats:
        return self.losses_and_metric(data, devices, w)[1]

    def losses_and_metric(self, data: TorchData, devices: Ints, w: Floats) -> tuple[Floats, Floats]:
        losses, scores, classes = np.zeros(len(devices)), np.zeros(len(devices)), self.goal == "classification"

        def evaluate(engine: ParameterBackend, k: int) -> None:
            x, y = data.of(devices[k])
            total = weight_of(y)
            engine.w.copy_(self._on_place(w[k], data.dtype))
            for first, out in engine.outputs(x):
                part = y[first : first + len(out)]
                losses[k] += float(self._mean_loss(out, part)) * weight_of(part) / total
                target, weights = (part, None) if part.ndim == 1 else (part[:, 0], part[:, 1])
                score = out.argmax(1) == target if classes else (_flat(out) - target).square()
                scores[k] += float((score if weights is None else score * weights).sum())
            scores[k] = scores[k] / total if total else np.nan

        self._each(data, devices, evaluate)
        return losses, scores if classes else np.sqrt(scores)

    def gradients(self, data: TorchData, devices: Ints, w: Floats) -> Floats:
        G = np.zeros((len(devices), self.d), data.dtype)

        def slope(engine: ParameterBackend, k: int) -> None:
            engine.w.copy_(self._on_place(w[k], data.dtype))
            G[k] = engine.gradient(*data.of(devices[k])).cpu().numpy()

        self._each(data, devices, slope)
        return G

    def outputs(self, w: Floats, X: Floats) -> Floats:
        out = self._outputs(w, X)
        answer = functional.softmax(out, dim=1) if self.goal == "classification" else out
        return np.asarray(answer.cpu().numpy().astype(np.float64))

    def row_losses(self, models: Floats, X: Floats, y: npt.NDArray[Any]) -> Floats:
        kind = np.dtype(np.int64) if self.n_classes else self._precision
        target = torch.from_numpy(np.ascontiguousarray(y, kind)).to(self._place)
        losses = [self._row_losses(self._outputs(w, X), target) for w in np.asarray(models)]
        return np.stack([row.cpu().numpy().astype(np.float64) for row in losses])

    @cached_property
    def head(self) -> Ints | None:
        name, layer = self._last_layer
        named = {key: place.numpy() for key, place in self.layout.views(torch.arange(self.d))}
        weight, bias = (named.get(f"{name}.{part}".lstrip(".")) for part in ("weight", "bias"))
        if self.loss != "cross_entropy" or not self.n_classes or layer is None or weight is None or bias is None:
            return None
        place: Ints = np.column_stack([weight, bias])
        w = vector(self.module, self.layout)
        X = np.random.default_rng(0).normal(size=(3, self.n_features))
        with torch.no_grad():
            seen = self._outputs(w, X).cpu().numpy()
        linear = self.features(w, X) @ w[place][:, :-1].T + w[place][:, -1]
        return place if linear.shape == seen.shape and np.allclose(linear, seen, rtol=1e-3, atol=1e-4) else None

    @property
    def _last_layer(self) -> tuple[str, nn.Linear | None]:
        layers = [(name, part) for name, part in self.module.named_modules() if list(part.parameters(recurse=False))]
        name, layer = layers[-1]
        return name, layer if isinstance(layer, nn.Linear) else None

    def features(self, w: Floats, X: Floats) -> Floats:
        module, seen = self.module_with(w), []
        layer = module.get_submodule(self._last_layer[0])
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
        shape = self.shape or (self.n_features,)
        with one_thread(), torch.no_grad():
            for first in range(0, len(X), CHUNK_ROWS):
                part = np.ascontiguousarray(X[first : first + CHUNK_ROWS], self._precision)
                module(torch.from_numpy(part).reshape(-1, *shape))
        return np.concatenate([part.numpy().reshape(len(part), -1) for part in seen]) if seen else np.empty((0, 0))

    def module_with(self, w: Floats) -> nn.Module:
        """Return a copy of the module with these weights, ready for use (in eval mode)."""
        module = copy.deepcopy(self.module)
        tensors = named_tensors(module)
        with torch.no_grad():
            for name, value in self.layout.views(torch.tensor(np.asarray(w))):
                tensors[name].copy_(value)
        return module.eval()

    def tensors(self, w: Floats) -> dict[str, npt.NDArray[Any]]:
        state = self.module_with(w).state_dict()
        return {name: value.detach().cpu().contiguous().numpy() for name, value in state.items()}

    def to_config(self) -> dict[str, Any]:
        loss = self.loss if isinstance(self.loss, str) else "custom"
        fuse = self.fuse if isinstance(self.fuse, str) else list(self.fuse)
        tensors = [[n, list(s)] for n, s in zip(self.layout.names, self.layout.shapes, strict=True)]
        shape = self.shape and list(self.shape)
        return {"name": type(self).__name__, "loss": loss, "fused": fuse, "shape": shape, "tensors": tensors}

    def check_config(self, config: dict[str, Any]) -> None:
        super().check_config(config)
        saved = {name: tuple(shape) for name, shape in config["tensors"]}
        own = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        for name in {**saved, **own}:
            if saved.get(name) != own.get(name):
                was, now = (f"has the shape {t[name]}" if name in t else "is missing" for t in (saved, own))
                raise FedfuseError(f"this is not the model of the run: there {name} {was}, here it {now}")
        if list(saved) != list(own):
            raise FedfuseError(f"this is not the model of the run: there fused={config['fused']!r}, here {self.fuse!r}")

    # -- how it is done

    @cached_property
    def _place(self) -> torch.device:
        if self.device != "auto":
            return torch.device(self.device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @cached_property
    def _precision(self) -> np.dtype[Any]:
        double = any(p.dtype == torch.float64 for p in self.module.parameters())
        return np.dtype(np.float64 if double else np.float32)

    @cached_property
    def _idle(self) -> dict[np.dtype[Any], list[ParameterBackend]]:
        return {dtype: [] for dtype in _DTYPES}

    @contextmanager
    def _engine(self, dtype: np.dtype[Any]) -> Iterator[ParameterBackend]:
        """Lend a working copy of the module; there are as many as threads that want one."""
        idle = self._idle[dtype]
        try:
            engine = idle.pop()
        except IndexError:
            engine = self._new_engine(_DTYPES[dtype])
        yield engine
        idle.append(engine)  # not after an error: its state would not be known

    def _new_engine(self, dtype: torch.dtype, kind: type[ParameterBackend] = ParameterBackend) -> ParameterBackend:
        shape = self.shape or (self.n_features,)
        return kind(self.module, self.layout, shape, self._mean_loss, dtype, self._place)

    def _each(
        self, data: TorchData, devices: Ints, do: Callable[[ParameterBackend, int], None], passes: int = 1,
        alone: bool = False,
    ) -> None:  # fmt: skip
        """Do something for each position in ``devices``, in as many threads as there are unless ``alone``."""

        def run(jobs: Ints) -> None:
            torch.set_num_threads(1)  # in every thread: convolutions of several have other last bits
            with self._engine(data.dtype) as engine:
                for k in jobs.tolist():
                    do(engine, k)

        # a GPU, and torch's one random generator for all threads, ask for one device after the other
        with one_thread():
            if alone or self._place.type != "cpu":
                run(np.arange(len(devices)))
            else:
                spread(run, data.counts[devices] * float(self.d * passes))

    def _on_place(self, w: Floats, dtype: np.dtype[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(w, dtype)).to(self._place)

    def _mean_loss(self, out: Tensor, y: Tensor) -> Tensor:
        if y.ndim > 1:
            target, weights = y[:, 0].long() if self.n_classes else y[:, 0], y[:, 1]
            return (self._row_losses(out, target) * weights).sum() / weights.sum().clamp(min=1e-30)
        if callable(self.loss):
            value = self.loss(out if self.goal == "classification" else _flat(out), y)
            return value.mean() if value.ndim else value
        return self._row_losses(out, y, "mean")

    def _row_losses(self, out: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        if callable(self.loss):
            return torch.stack([self._mean_loss(out[i : i + 1], y[i : i + 1]) for i in range(len(y))])
        if self.loss == "cross_entropy":
            return functional.cross_entropy(out, y, reduction=reduction)
        return functional.mse_loss(_flat(out), y, reduction=reduction)

    def _outputs(self, w: Floats, X: Floats) -> Tensor:
        """Return the module's outputs for rows, in its own precision."""
        dtype = self._precision
        x = self._on_place(X, dtype)
        with one_thread(), self._engine(dtype) as engine:
            engine.w.copy_(self._on_place(w, dtype))
            parts = [out if self.goal == "classification" else _flat(out) for _, out in engine.outputs(x)]
        width = (0, self.n_classes) if self.goal == "classification" else (0,)
        return torch.cat(parts) if parts else torch.zeros(width)

    @cached_property
    def _draws(self) -> bool:
        """Try the module once, on rows of zeros: does it fit, and does it draw random numbers, as dropout does?"""
        engine = self._new_engine(torch.float32)
        engine.w.copy_(self._on_place(vector(self.module, self.layout), np.dtype(np.float32)))
        rows = torch.zeros(2, self.n_features, device=self._place)
        self._check_outputs(engine, rows)
        state = torch.cuda.get_rng_state if self._place.type == "cuda" else torch.get_rng_state
        with flat_parameters.seeded(0, self._place), torch.no_grad():
            before = state()
            engine.mode(training=True)
            engine.scores(rows)
            return not torch.equal(before, state())

    def _check_outputs(self, engine: ParameterBackend, rows: Tensor) -> None:
        try:
            shape = tuple(next(engine.outputs(rows))[1].shape)
        except Exception as problem:  # whatever a user's module raises
            line = str(problem).partition("\n")[0]
            raise FedfuseError(f"the module cannot take rows of shape {engine.shape}: {line}") from problem
        C, classes = self.n_classes, self.goal == "classification"
        if shape not in ([(2, C)] if classes else [(2,), (2, 1)]):
            need = f"one score for each of {C} classes (n x {C})" if classes else "one value per row"
            raise FedfuseError(f"the module must return {need}, but for two rows it returned shape {shape}")


def _batches(x: Tensor, work: Work, rng: np.random.Generator | None, couples_rows: bool) -> Iterator[Tensor | None]:
    """Yield the row numbers of every batch in turn; None stands for all rows."""
    if work.batch is None or rng is None:
        yield from (None for _ in range(plain(work)[0]))
        return
    for orders in batch_orders(len(x), work, rng):
        for order in torch.from_numpy(orders).to(x.device):
            parts = list(order.split(work.batch))
            if couples_rows and work.batch > 1 and len(parts) > 1 and len(parts[-1]) == 1:
                parts[-2:] = [torch.cat(parts[-2:])]  # batch norm cannot learn from one row
            yield from parts


def _flat(out: Tensor) -> Tensor:
    return out.reshape(len(out))


def checked_options(loss: Loss, fused: str | Sequence[str], shape: Sequence[int] | None, device: str) -> dict[str, Any]:
    """Return the fields of a model for these options."""
    if loss not in _GOALS and not callable(loss):
        raise FedfuseError(f"loss must be 'cross_entropy', 'mse' or a function, got {loss!r}")
    fuse, own = fused if isinstance(fused, str) else tuple(fused), tuple(shape) if shape else None
    return {"loss": loss, "fuse": fuse, "shape": own, "device": device}


def vector(module: nn.Module, layout: Layout) -> Floats:
    """Return the module's own weights as the flat vector."""
    tensors = named_tensors(module)
    return np.concatenate([tensors[n].detach().cpu().numpy().astype(np.float64).ravel() for n in layout.names])


_TENSORS: dict[tuple[int, np.dtype[Any]], Tensor] = {}


def _tensor(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> Tensor:
    """Return an array as a tensor: its own memory if its type is the same, else one copy for all parts of rows."""
    key = (id(array), dtype)
    if key in _TENSORS:
        return _TENSORS[key]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # read-only memory: nobody writes
        tensor = torch.from_numpy(np.ascontiguousarray(array, dtype))
    if tensor.data_ptr() != array.ctypes.data:
        _TENSORS[key] = tensor
        weakref.finalize(array, _TENSORS.pop, key, None)
    return tensor
