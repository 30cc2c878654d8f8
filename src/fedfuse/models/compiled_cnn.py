"""The paper's CNN by compiled loops in place of torch's: three times as fast on a processor, the same function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfuse.models.cnn_layers import LayerSizes, room
from fedfuse.models.flat_parameters import CHUNK, ParameterBackend
from fedfuse.utils.jit import Kernels
from fedfuse.utils.typing import Floats

_convolution = Kernels("fedfuse.models.convolution_kernels")


class CompiledCNN(ParameterBackend):
    """An `ParameterBackend` for `networks.CNN` with cross-entropy and channels in pairs, on the CPU."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        first, second, linear = self.module[0], self.module[3], self.module[-1]  # type: ignore[index]
        sizes = LayerSizes.of(
            self.form.shape,
            (first.out_channels, second.out_channels),
            first.kernel_size[0],
            (first.padding[0], second.padding[0]),
            linear.out_features,
        )
        self._model, self._slope = (self._tensors(flat) for flat in (self.w, self.g))
        self._sizes, self._room = sizes, room(sizes, self._model[0].dtype)

    def _tensors(self, flat: Tensor) -> tuple[Floats, ...]:
        """Return weights and biases of the three layers, as they lie in a flat vector."""
        views = dict(self.layout.views(flat))
        return tuple(views[name].numpy().reshape(-1) for name, _ in self.module.named_parameters())

    def add_gradient(self, x: Tensor, y: Tensor, weight: float = 1.0) -> None:
        given = x.numpy(), y.numpy(), self.form.channels_last
        _convolution.add_gradient(*given, self._sizes, self._model, self._slope, self._room, float(weight))

    def look(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        for first in range(0, len(x), CHUNK):
            rows = x[first : first + CHUNK].numpy()
            scores = np.empty((len(rows), self._sizes.classes), rows.dtype)
            _convolution.outputs(rows, self.form.channels_last, self._sizes, self._model, self._room, scores)
            yield first, torch.from_numpy(scores)
