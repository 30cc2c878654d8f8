"""Sizes of the paper's CNN, and what its loops (`_convolution`) work in; here, as it needs nothing compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedfuse.utils.alignment import lane_bytes
from fedfuse.utils.typing import Floats

TAPS = 5  # weights in a row of a kernel, at the most


class LayerSizes(NamedTuple):
    """Of images and layers; convolution ``l`` has ``pad_l`` zeros around its input and ``high_l x wide_l`` maxima."""

    inputs: int
    height: int
    width: int
    first: int
    second: int
    kernel: int
    pad1: int
    pad2: int
    high1: int
    wide1: int
    high2: int
    wide2: int
    classes: int

    @classmethod
    def of(
        cls, shape: tuple[int, ...], channels: tuple[int, int], kernel: int, pads: tuple[int, int], classes: int
    ) -> Any:
        """Return those of a network for images of this shape."""
        inputs, height, width = shape
        high1, wide1 = ((side + 2 * pads[0] - kernel + 1) // 2 for side in (height, width))
        high2, wide2 = ((side + 2 * pads[1] - kernel + 1) // 2 for side in (high1, wide1))
        return cls(inputs, height, width, *channels, kernel, *pads, high1, wide1, high2, wide2, classes)

    @property
    def features(self) -> int:
        """What the linear layer takes."""
        return self.second * self.high2 * self.wide2


class Room(NamedTuple):
    """Space for a group of images, as vectors: what layers give, and derivatives by it."""

    pixels: Floats  # with zeros around them, as the maxima of the first convolution
    maxima1: Floats
    where1: Floats  # which of four: 0 to 3
    maxima2: Floats
    where2: Floats
    scores: Floats  # then derivatives by them
    slopes2: Floats  # by the second maxima
    spread2: Floats  # by what the second convolution gives, with a zero around it
    slopes1: Floats
    spread1: Floats
    gradient1: Floats  # by weights and, behind them, by biases
    gradient2: Floats
    gradient3: Floats


def room(s: LayerSizes, dtype: npt.DTypeLike) -> Room:
    """Return space for networks of these sizes."""
    width = lane_bytes() // np.dtype(dtype).itemsize

    def vectors(*shape: int) -> Floats:
        # rows of kernels are read as if they had TAPS weights, so a little beyond the last one
        return np.zeros((int(np.prod(shape)) + TAPS) * width, dtype)

    taps = s.kernel**2
    return Room(
        vectors(s.inputs, s.height + 2 * s.pad1, s.width + 2 * s.pad1),
        vectors(s.first, s.high1 + 2 * s.pad2, s.wide1 + 2 * s.pad2),
        vectors(s.first, s.high1, s.wide1),
        vectors(s.features),
        vectors(s.features),
        vectors(s.classes),
        vectors(s.features),
        vectors(s.second, 2 * s.high2 + 2, 2 * s.wide2 + 2),
        vectors(s.first, s.high1 + s.high1 % 2, s.wide1 + s.wide1 % 2),
        vectors(s.first, 2 * s.high1, 2 * s.wide1),
        vectors(s.first * (s.inputs * taps + 1)),
        vectors(s.second * (s.first * taps + 1)),
        vectors(s.classes * (s.features + 1)),
    )
