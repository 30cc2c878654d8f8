"""A module's tensors as one flat vector, and a working copy of the module whose tensors are views into it.

The order is: parameters that are not fused, floating-point buffers (running statistics), fused parameters. Frozen
parameters, everything below a module that is frozen as a whole, and whole-number buffers stay in the module.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod

import torch
from torch import Tensor, nn

from fedfuse.errors import FedfuseError
from fedfuse.models.model import Shape, plain
from fedfuse.protocol.local_work import Work

# Rows of one forward pass when nothing is learned from it.
CHUNK_ROWS = 1000
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors of the vector, in its order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    shared: int  # how many numbers are parameters that are not fused,
    s: int  # where the fused ones begin (between the two: buffers),
    d: int  # and how many there are in all

    def views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Return every tensor's part of a flat vector, in its shape."""
        at = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            size = prod(shape)
            yield name, flat[at : at + size].view(shape)
            at += size


def layout_of(module: nn.Module, fuse: str | Sequence[str]) -> Layout:
    """Decide which tensors make up the vector: ``fuse`` is ``"last"``, ``"all"``, or patterns of names."""
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not parameters:
        raise FedfuseError("the module has nothing to train: all its parameters are frozen (requires_grad=False)")
    if any(nn.parameter.is_lazy(p) for p in parameters.values()):
        raise FedfuseError("the module has uninitialised lazy layers: pass one batch through it first")
    fused = _chosen(module, list(parameters), fuse)
    shared = [name for name in parameters if name not in fused]
    still = tuple(f"{name}." for name in frozen_modules(module))
    floating = ((name, b) for name, b in module.named_buffers() if b.is_floating_point())
    buffers = {name: b for name, b in floating if not name.startswith(still)}
    tensors = {**parameters, **buffers}
    names = (*shared, *buffers, *fused)
    a, b, c = (sum(tensors[name].numel() for name in group) for group in (shared, buffers, fused))
    return Layout(names, tuple(tuple(tensors[name].shape) for name in names), a, a + b, a + b + c)


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def frozen_modules(module: nn.Module) -> dict[str, nn.Module]:
    """Return the submodules whose parameters are all frozen: they stay as they are, statistics and all."""
    flags = {name: [p.requires_grad for p in inner.parameters()] for name, inner in module.named_modules()}
    return {name: module.get_submodule(name) for name, trained in flags.items() if trained and not any(trained)}


def _chosen(module: nn.Module, names: list[str], fuse: str | Sequence[str]) -> list[str]:
    if fuse == "all":
        return names
    if fuse == "last":
        last = [prefix for prefix, inner in module.named_modules() if _own(prefix, inner, names)][-1]
        return _own(last, module.get_submodule(last), names)
    patterns = [fuse] if isinstance(fuse, str) else list(fuse)
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in names):
            raise FedfuseError(f"fused={pattern!r} names no parameter that is trained; there are: {', '.join(names)}")
    return [name for name in names if any(_matches(name, pattern) for pattern in patterns)]


def _own(prefix: str, inner: nn.Module, names: list[str]) -> list[str]:
    own = [f"{prefix}.{name}" if prefix else name for name, _ in inner.named_parameters(recurse=False)]
    return [name for name in own if name in names]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


class ParameterBackend:
    """A copy of the module that computes from one flat tensor ``w`` and writes its gradient into another, ``g``."""

    def __init__(
        self, module: nn.Module, layout: Layout, shape: Shape, loss: Loss, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.module, self.loss, self.layout, self.shape = copy.deepcopy(module).to(device, dtype), loss, layout, shape
        self.w, self.g = (torch.zeros(layout.d, dtype=dtype, device=device) for _ in range(2))
        self._rest = [(b, b.clone()) for n, b in self.module.named_buffers() if n not in layout.names]
        self._still = list(frozen_modules(self.module).values())
        still = {id(inner) for frozen in self._still for inner in frozen.modules()}
        norms = (m for m in self.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
        self.couples_rows = any(id(m) not in still for m in norms)
        tensors = named_tensors(self.module)
        for (name, value), (_, slope) in zip(layout.views(self.w), layout.views(self.g), strict=True):
            # .data: in-place updates of the flat vector must not look like changes to autograd
            tensors[name].data = value
            if tensors[name].requires_grad:
                tensors[name].grad = slope

    def mode(self, training: bool) -> None:
        """Switch dropout and batch norm to training or use; what is frozen as a whole is always in use."""
        self.module.train(training)
        for inner in self._still:
            inner.eval()

    def scores(self, x: Tensor) -> Tensor:
        """Return what the module returns for rows (n x features)."""
        scores: Tensor = self.module(x.view(len(x), *self.shape))
        return scores

    @torch.enable_grad()
    def add_gradient(self, x: Tensor, y: Tensor, weight: float = 1.0) -> None:
        """Add the gradient of the mean loss of these rows to ``g``."""
        loss = self.loss(self.scores(x), y)
        (loss if weight == 1.0 else loss * weight).backward()  # type: ignore[no-untyped-call]

    def descend(
        self, x: Tensor, y: Tensor, batches: Iterable[Tensor | None], anchor: Tensor | None, rho: float, work: Work
    ) -> None:
        """Take one step of SGD for each batch of row numbers (None: all rows), in place."""
        step = self._stepper(anchor, rho, work)
        self.mode(training=True)
        for buffer, first in self._rest:  # counters: what another device has done here must not show
            buffer.copy_(first)
        for rows in batches:
            self.g.zero_()
            if len(x):  # without rows: the proximal term alone
                self.add_gradient(*((x, y) if rows is None else (x.index_select(0, rows), y.index_select(0, rows))))
            step()

    def _stepper(self, anchor: Tensor | None, rho: float, work: Work) -> Callable[[], None]:
        lr, w, g, at = plain(work)[1], self.w, self.g, self.layout
        fused, slope = w[at.s :], g[at.s :]
        velocity = torch.zeros_like(g) if work.momentum else g
        held = slice(at.d - (0 if anchor is None else len(anchor)), at.d)  # what the anchor pulls on
        pulled, pull = w[held], g[held]

        def fast() -> None:
            if anchor is not None:  # w - lr rho (w - anchor)
                pulled.lerp_(anchor, lr * rho)
            w.add_(g, alpha=-lr)

        def general() -> None:
            if anchor is not None:
                pull.add_(pulled - anchor, alpha=rho)
            if work.decay:  # statistics do not decay
                g[: at.shared].add_(w[: at.shared], alpha=work.decay)
                slope.add_(fused, alpha=work.decay)
            if work.momentum:
                velocity.mul_(work.momentum).add_(g)
            w.add_(velocity, alpha=-lr)

        return general if work.momentum or work.decay else fast

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Return the module's outputs in use, some rows at a time, with the number of their first row."""
        self.mode(training=False)
        for first in range(0, len(x), CHUNK_ROWS):
            yield first, self.scores(x[first : first + CHUNK_ROWS])

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of the mean loss in use (statistics as they are, nothing dropped)."""
        self.mode(training=False)
        self.g.zero_()
        for first in range(0, len(x), CHUNK_ROWS):
            part = slice(first, first + CHUNK_ROWS)
            self.add_gradient(x[part], y[part], weight_of(y[part]) / weight_of(y))
        return self.g


def weight_of(y: Tensor) -> float:
    """Return the sum of the weights of rows: their number, where y has targets alone."""
    return float(len(y)) if y.ndim == 1 else float(y[:, 1].sum())


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread: devices are spread over threads instead, and the bits are always the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Let torch draw from this seed, and leave its global generators as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
