"""Networks by name, for rows of any shape: the paper's CNN and a multilayer perceptron.

The module is built when the sizes are known; a run starts from torch's default weights, drawn by its seed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from fedfuse.data.federation import Goal
from fedfuse.errors import FedfuseError
from fedfuse.models.flat_parameters import ParameterBackend, seeded
from fedfuse.models.model import Shape, Start
from fedfuse.models.torch import Loss, TorchModel, checked_options, vector
from fedfuse.utils.typing import Floats

N = TypeVar("N", bound="Network")
# Images with a side below this get kernels of 3 x 3.
MIN_SIDE_5X5 = 16


@dataclass(frozen=True, init=False, eq=False)
class Network(TorchModel):
    """A `TorchModel` that makes its own module: cross-entropy for classes, squares for values."""

    def __init__(
        self,
        fused: str | Sequence[str] = "last",
        shape: Sequence[int] | None = None,
        device: str = "auto",
        loss: Loss | None = None,
    ) -> None:
        given = checked_options(loss or "mse", fused, shape, device)
        self._set(**{**given, "module": None, "loss": loss})  # both are known when the sizes are

    @abstractmethod
    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return a fresh module for rows of this shape, with torch's default weights."""

    def check(self, goal: Goal) -> None:
        if self.loss is not None:
            super().check(goal)

    def sized(self: N, n_features: int, n_classes: int, shape: Shape | None = None) -> N:
        own = self.loss or ("cross_entropy" if n_classes else "mse")
        sized = super().sized(n_features, n_classes, shape)._with(loss=own)
        return sized._with(module=sized._drawn(0))

    def initial(self, start: Start, rng: np.random.Generator) -> Floats:
        """Return torch's default weights, drawn by ``rng``."""
        super().initial(start, rng)
        return vector(self._drawn(int(rng.integers(2**63))), self.layout)

    def _drawn(self, seed: int) -> nn.Module:
        with seeded(seed, torch.device("cpu")):
            return self.build(self.shape or (self.n_features,), self.n_classes or 1)


@dataclass(frozen=True, init=False, eq=False)
class CNN(Network):
    """The paper's network for images: two convolutions, each with ReLU and pooling, and a linear layer.

    For 28 x 28 it is the paper's (5 x 5 kernels, the first padded; 2,572 shared and 4,010 fused parameters); for sides
    below 16, as in scikit-learn's digits, kernels are 3 x 3 and padded. On the CPU, for classes, and with even numbers
    of channels, it is computed by compiled loops in a third of torch's time.

    Parameters
    ----------
    channels
        Of the two convolutions.
    **common
        ``fused``, ``shape``, ``device`` and ``loss`` as `TorchModel` has them; ``shape`` is (channels, height, width)
        or (height, width).

    Examples
    --------
    >>> model = CNN().sized(784, 10, (1, 28, 28))
    >>> model.d, model.fused
    (6582, slice(2572, 6582, None))
    """

    channels: tuple[int, int] = (6, 16)

    def __init__(self, channels: Sequence[int] = (6, 16), **common: Any) -> None:
        super().__init__(**common)
        if len(channels) != 2 or min(channels) < 1:
            raise FedfuseError(f"channels must be two positive numbers, got {channels}")
        self._set(channels=tuple(channels))

    def sized(self, n_features: int, n_classes: int, shape: Shape | None = None) -> CNN:
        shape = self.shape or shape
        if shape is None:
            raise FedfuseError("a CNN needs to know the shape of an image: CNN(shape=(1, 28, 28))")
        image = (1, *shape) if len(shape) == 2 else tuple(shape)
        if len(image) != 3 or min(image[1:]) < 4:
            raise FedfuseError(f"a CNN takes images of at least 4 x 4, got rows of shape {tuple(shape)}")
        return super(CNN, self._with(shape=image)).sized(n_features, n_classes)

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        inputs, height, width = shape
        size, *pad = (3, 1, 1) if min(height, width) < MIN_SIDE_5X5 else (5, 2, 0)
        first, second = self.channels
        # the same function as ReLU before pooling, with a quarter of the work
        trunk = nn.Sequential(
            nn.Conv2d(inputs, first, size, padding=pad[0]), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(first, second, size, padding=pad[1]), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        with torch.no_grad():
            features = trunk(torch.zeros(1, *shape)).shape[1]
        return nn.Sequential(*trunk, nn.Linear(features, outputs))

    def _new_engine(self, dtype: torch.dtype, kind: type[ParameterBackend] = ParameterBackend) -> ParameterBackend:
        paired = not any(channels % 2 for channels in self.channels)
        if paired and self.loss == "cross_entropy" and self._place.type == "cpu":
            from fedfuse.models.compiled_cnn import CompiledCNN  # which imports numba

            kind = CompiledCNN
        return super()._new_engine(dtype, kind)

    def to_config(self) -> dict[str, Any]:
        return {**super().to_config(), "channels": list(self.channels)}


@dataclass(frozen=True, init=False, eq=False)
class MLP(Network):
    """A multilayer perceptron with ReLU between its layers.

    Parameters
    ----------
    hidden
        Units of each hidden layer.
    **common
        ``fused``, ``shape``, ``device`` and ``loss`` as `TorchModel` has them.

    Examples
    --------
    >>> MLP(hidden=(16, 8)).sized(4, 3).fused
    slice(216, 243, None)
    """

    hidden: tuple[int, ...] = (32,)

    def __init__(self, hidden: Sequence[int] = (32,), **common: Any) -> None:
        super().__init__(**common)
        if not hidden or min(hidden) < 1:
            raise FedfuseError(f"hidden must be positive numbers of units, got {hidden}")
        self._set(hidden=tuple(hidden))

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        sizes = (int(np.prod(shape)), *self.hidden)
        layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], outputs))

    def to_config(self) -> dict[str, Any]:
        return {**super().to_config(), "hidden": list(self.hidden)}
