"""The paper's CNN by compiled loops: two conv-maxpool-ReLU blocks and a linear layer, in a third of torch's time.

The lanes of a processor (`utils.simd`) hold as many images: pixel (c, y, x) of all of them is one vector. So every
operation, convolutions and maxima and their derivatives, is arithmetic on whole vectors with weights that are the same
for all, and nothing is ever moved between lanes. A group of images stays in the second-level cache from its pixels to
the gradient.

Arrays are flat; those of vectors have ``lanes`` numbers for each place. Channels of both convolutions come in pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numba import njit
from torch import Tensor

from fedfuse.models.flat_parameters import CHUNK_ROWS, ParameterBackend
from fedfuse.models.loss_kernels import _INNER, FASTMATH
from fedfuse.utils.jit import kernel
from fedfuse.utils.simd import BYTES, choose, load, splat, store, total
from fedfuse.utils.simd import width as lanes
from fedfuse.utils.typing import Floats

# Weights in a row of a kernel, at the most.
MAX_TAPS = 5


class CompiledCNN(ParameterBackend):
    """A `ParameterBackend` for `networks.CNN` with cross-entropy and channels in pairs, on the CPU."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        one, two, last = self.module[0], self.module[3], self.module[-1]  # type: ignore[index]
        (inputs, height, width), pad, margin = self.shape, one.padding[0], two.padding[0]
        first = _sizes(one, inputs, height + 2 * pad, width + 2 * pad, margin)
        second = _sizes(two, one.out_channels, first.rows + 2 * margin, first.columns + 2 * margin, 0)
        self._net = Net(first, second, last.out_features, pad)
        self._model, self._slope = (self._tensors(flat) for flat in (self.w, self.g))
        self._space = space(self._net, self._model[0].dtype)

    def _tensors(self, flat: Tensor) -> tuple[Floats, ...]:
        """Return weights and biases of the three layers, as they lie in a flat vector."""
        views = dict(self.layout.views(flat))
        return tuple(views[name].numpy().reshape(-1) for name, _ in self.module.named_parameters())

    def add_gradient(self, x: Tensor, y: Tensor, weight: float = 1.0) -> None:
        if y.ndim > 1:  # Rows with weights are left to torch.
            super().add_gradient(x, y, weight)
            return
        add_gradient(x.numpy(), y.numpy(), self._net, self._model, self._slope, self._space, float(weight))

    def outputs(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        for first in range(0, len(x), CHUNK_ROWS):
            rows = x[first : first + CHUNK_ROWS].numpy()
            scores = np.empty((len(rows), self._net.classes), rows.dtype)
            write_scores(rows, self._net, self._model, self._space, scores)
            yield first, torch.from_numpy(scores)


class Convolution(NamedTuple):
    """Sizes of a convolution with pooling."""

    inputs: int
    outputs: int
    kernel: int
    height: int  # of an input channel, with padding
    width: int
    rows: int  # of a channel of maxima
    columns: int
    margin: int  # zeros around the maxima: the padding of the next convolution


def _sizes(layer: Any, inputs: int, height: int, width: int, margin: int) -> Convolution:
    kernel = layer.kernel_size[0]
    rows, columns = ((side - kernel + 1) // 2 for side in (height, width))
    return Convolution(inputs, layer.out_channels, kernel, height, width, rows, columns, margin)


class Net(NamedTuple):
    """Sizes of a network."""

    first: Convolution
    second: Convolution
    classes: int
    pad: int  # zeros around the images


class LayerSpace(NamedTuple):
    """Space for a convolution's results, and for derivatives by them."""

    maxima: Floats  # with zeros around them
    where: Floats  # which of four each was: 0 to 3
    slopes: Floats  # derivatives by the maxima; of the first layer in even numbers of rows and columns
    spread: Floats  # derivatives by what was pooled; of the second layer with one zero around it
    gradient: Floats  # by weights and, behind them, by biases


class NetSpace(NamedTuple):
    """Space for a group of images, as vectors."""

    pixels: Floats  # with zeros around them
    first: LayerSpace
    second: LayerSpace
    scores: Floats  # then derivatives by them
    gradient: Floats


def space(net: Net, dtype: npt.DTypeLike) -> NetSpace:
    """Return space for networks of these sizes."""

    def vectors(*shape: int) -> Floats:
        # rows of kernels are read as if they had MAX_TAPS weights, so a little beyond the last one
        return np.zeros((int(np.prod(shape)) + MAX_TAPS) * (BYTES // np.dtype(dtype).itemsize), dtype)

    def layer(c: Convolution, even: int, frame: int) -> LayerSpace:
        return LayerSpace(
            vectors(c.outputs, c.rows + 2 * c.margin, c.columns + 2 * c.margin),
            vectors(c.outputs, c.rows, c.columns),
            vectors(c.outputs, c.rows + even * (c.rows % 2), c.columns + even * (c.columns % 2)),
            vectors(c.outputs, 2 * (c.rows + frame), 2 * (c.columns + frame)),
            vectors(c.outputs * (c.inputs * c.kernel**2 + 1)),
        )

    first, second, classes, _ = net
    features = second.outputs * second.rows * second.columns
    pixels = vectors(first.inputs, first.height, first.width)
    last = vectors(classes), vectors(classes * (features + 1))
    return NetSpace(pixels, layer(first, 1, 0), layer(second, 0, 1), *last)


# ------------------------------------------------------------------------------------------------- forward


@njit(**_INNER)
def _pack(rows: Any, first: Any, net: Any, pixels: Any) -> None:
    """Lay some rows beside each other, with zeros in place of rows beyond the last."""
    w, c, pad = lanes(pixels), net.first, net.pad
    height, width = c.height - 2 * pad, c.width - 2 * pad
    for lane in range(w):
        there = first + lane < rows.shape[0]
        for channel in range(c.inputs):
            for y in range(height):
                e = ((channel * c.height + y + pad) * c.width + pad) * w + lane
                for x in range(width):
                    pixels[e] = rows[first + lane, (channel * height + y) * width + x] if there else 0
                    e += w


@njit(**_INNER)
def _largest(four: Any, zero: Any, marks: Any) -> Any:
    """The largest of four, or zero, and which it was: the first of those that are alike."""
    where, best = zero, four[0]
    for i in range(3):
        where, best = choose(four[i + 1], best, marks[i], where), choose(four[i + 1], best, four[i + 1], best)
    return choose(zero, best, zero, best), where  # what is not a number stays so


@njit(**_INNER)
def _convolve(source: Any, c: Any, weights: Any, bias: Any, maxima: Any, where: Any) -> None:
    """Convolve, and take the largest of every four neighbours; two channels of them at a time stay in registers."""
    w, kind = lanes(source), source.dtype.type
    zero, marks = splat(kind(0)), (splat(kind(1)), splat(kind(2)), splat(kind(3)))
    size = c.inputs * c.kernel * c.kernel
    for o in range(0, c.outputs, 2):
        for y in range(c.rows):
            for x in range(c.columns):
                a0 = a1 = a2 = a3 = splat(bias[o])
                b0 = b1 = b2 = b3 = splat(bias[o + 1])
                t = o * size
                for channel in range(c.inputs):
                    for i in range(c.kernel):
                        e = ((channel * c.height + 2 * y + i) * c.width + 2 * x) * w
                        f = e + c.width * w
                        for _ in range(c.kernel):
                            p, q = splat(weights[t]), splat(weights[t + size])
                            u, v, n, m = load(source, e), load(source, e + w), load(source, f), load(source, f + w)
                            a0, a1, a2, a3 = a0 + p * u, a1 + p * v, a2 + p * n, a3 + p * m
                            b0, b1, b2, b3 = b0 + q * u, b1 + q * v, b2 + q * n, b3 + q * m
                            t, e, f = t + 1, e + w, f + w
                for more in range(2):
                    four = (b0, b1, b2, b3) if more else (a0, a1, a2, a3)
                    best, which = _largest(four, zero, marks)
                    store(maxima, _place(c, o + more, y, x) * w, best)
                    store(where, (((o + more) * c.rows + y) * c.columns + x) * w, which)


@njit(**_INNER)
def _place(c: Any, channel: Any, y: Any, x: Any) -> Any:
    """Where among the maxima, with their margin, this one is."""
    high, wide = c.rows + 2 * c.margin, c.columns + 2 * c.margin
    return (channel * high + y + c.margin) * wide + x + c.margin


@njit(**_INNER)
def _score(features: Any, weights: Any, bias: Any, scores: Any) -> None:
    w = lanes(features)
    n = weights.size // bias.size
    for c in range(bias.size):
        a, b = splat(bias[c]), splat(features.dtype.type(0))
        for f in range(0, n - 1, 2):
            a = a + splat(weights[c * n + f]) * load(features, f * w)
            b = b + splat(weights[c * n + f + 1]) * load(features, (f + 1) * w)
        if n % 2:
            a = a + splat(weights[c * n + n - 1]) * load(features, (n - 1) * w)
        store(scores, c * w, a + b)


@njit(**_INNER)
def _forward(rows: Any, first: Any, net: Any, model: Any, space: Any) -> None:
    w1, b1, w2, b2, w3, b3 = model
    _pack(rows, first, net, space.pixels)
    _convolve(space.pixels, net.first, w1, b1, space.first.maxima, space.first.where)
    _convolve(space.first.maxima, net.second, w2, b2, space.second.maxima, space.second.where)
    _score(space.second.maxima, w3, b3, space.scores)


@kernel(fastmath=FASTMATH)
def write_scores(rows: Any, net: Any, model: Any, space: Any, scores: Any) -> None:
    """Write the scores of all classes for these rows (n x classes)."""
    w = lanes(space.scores)
    for first in range(0, rows.shape[0], w):
        _forward(rows, first, net, model, space)
        for r in range(first, min(first + w, rows.shape[0])):
            for c in range(net.classes):
                scores[r, c] = space.scores[c * w + r - first]


# ------------------------------------------------------------------------------------------------ backward


@njit(**_INNER)
def _softmax_back(scores: Any, y: Any, first: Any, classes: Any, share: Any) -> None:
    """Put derivatives of the loss in the place of scores: share (softmax - e_y); none for what fills up a group."""
    w = lanes(scores)
    for lane in range(w):
        if first + lane >= y.size:
            for c in range(classes):
                scores[c * w + lane] = 0
            continue
        top, sum_ = scores[lane], 0.0
        for c in range(classes):
            top = max(top, scores[c * w + lane])
        for c in range(classes):
            sum_ += np.exp(np.float64(scores[c * w + lane] - top))
        for c in range(classes):
            scores[c * w + lane] = share * np.exp(np.float64(scores[c * w + lane] - top)) / sum_
        scores[y[first + lane] * w + lane] -= share


@njit(**_INNER)
def _add(array: Any, e: Any, vector: Any) -> None:
    store(array, e, load(array, e) + vector)


@njit(**_INNER)
def _store_square(array: Any, e: Any, row: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    w = lanes(array)
    store(array, e, a)
    store(array, e + w, b)
    store(array, e + row, c)
    store(array, e + row + w, d)


@njit(**_INNER)
def _linear_back(features: Any, weights: Any, slopes: Any, gradient: Any, below: Any, classes: Any) -> None:
    w = lanes(features)
    n = weights.size // classes
    for f in range(n):
        x, back = load(features, f * w), splat(features.dtype.type(0))
        for c in range(classes):
            slope = load(slopes, c * w)
            _add(gradient, (c * n + f) * w, slope * x)
            back = back + splat(weights[c * n + f]) * slope
        store(below, f * w, back)
    for c in range(classes):
        _add(gradient, (classes * n + c) * w, load(slopes, c * w))


@njit(**_INNER)
def _unpool(c: Any, room: Any, high: Any, wide: Any, frame: Any) -> None:
    """Give every derivative to the one of four that was the largest, if it was above zero; sum up those of biases.

    ``high`` and ``wide`` are the sizes of a channel of derivatives.
    """
    w, kind = lanes(room.slopes), room.slopes.dtype.type
    zero, low, middle, top = splat(kind(0)), splat(kind(0.5)), splat(kind(1.5)), splat(kind(2.5))
    tall, broad, biases = 2 * (c.rows + frame), 2 * (c.columns + frame), c.outputs * c.inputs * c.kernel**2
    for o in range(c.outputs):
        sum_ = zero
        for y in range(c.rows):
            for x in range(c.columns):
                value = load(room.maxima, _place(c, o, y, x) * w)
                slope = choose(value, zero, load(room.slopes, ((o * high + y) * wide + x) * w), zero)
                which = load(room.where, ((o * c.rows + y) * c.columns + x) * w)
                p, s = choose(low, which, slope, zero), choose(which, top, slope, zero)
                q = choose(middle, which, slope - p, zero)
                e = ((o * tall + 2 * y + frame) * broad + 2 * x + frame) * w
                _store_square(room.spread, e, broad * w, p, q, slope - p - q - s, s)
                sum_ = sum_ + slope
        _add(room.gradient, (biases + o) * w, sum_)


@njit(**_INNER)
def _weights_back(source: Any, c: Any, room: Any, frame: Any) -> None:
    """Add derivatives by the weights: of two channels and one row of the kernel at a time, in registers."""
    w, zero, k = lanes(source), splat(source.dtype.type(0)), c.kernel
    tall, broad = 2 * (c.rows + frame), 2 * (c.columns + frame)
    for o in range(0, c.outputs, 2):
        for channel in range(c.inputs):
            for i in range(k):
                a0 = a1 = a2 = a3 = a4 = b0 = b1 = b2 = b3 = b4 = zero
                for y in range(2 * c.rows):
                    e = (channel * c.height + y + i) * c.width * w
                    f = ((o * tall + y + frame) * broad + frame) * w
                    g = f + tall * broad * w
                    for _ in range(2 * c.columns):
                        p, q = load(room.spread, f), load(room.spread, g)
                        u, v, n = load(source, e), load(source, e + w), load(source, e + 2 * w)
                        a0, a1, a2 = a0 + p * u, a1 + p * v, a2 + p * n
                        b0, b1, b2 = b0 + q * u, b1 + q * v, b2 + q * n
                        u, v = load(source, e + 3 * w), load(source, e + 4 * w)
                        a3, a4, b3, b4 = a3 + p * u, a4 + p * v, b3 + q * u, b4 + q * v
                        e, f, g = e + w, f + w, g + w
                e = ((o * c.inputs + channel) * k + i) * k * w
                _add_taps(room.gradient, e, k, (a0, a1, a2, a3, a4))
                _add_taps(room.gradient, e + c.inputs * k * k * w, k, (b0, b1, b2, b3, b4))


@njit(**_INNER)
def _add_taps(gradient: Any, e: Any, k: Any, taps: Any) -> None:
    for i in range(k):
        _add(gradient, e + i * lanes(gradient), taps[i])


@njit(**_INNER)
def _input_back(first: Any, second: Any, weights: Any, spread: Any, slopes: Any) -> None:
    """Write derivatives by the first maxima: of four neighbours in two channels at a time, in registers.

    Beyond its frame of one, ``spread`` is zero: rows and columns of the kernel that would lead there are left out.
    """
    w, k, kind = lanes(spread), second.kernel, spread.dtype.type
    rows, columns, size = 2 * second.rows, 2 * second.columns, k * k
    high, wide = first.rows + first.rows % 2, first.columns + first.columns % 2
    for c in range(0, first.outputs, 2):
        for y in range(0, first.rows, 2):
            top = y + first.margin
            i0, i1 = max(0, top + 1 - rows), min(k, top + 2)
            for x in range(0, first.columns, 2):
                left = x + first.margin
                j0, j1 = max(0, left + 1 - columns), min(k, left + 2)
                a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = splat(kind(0))
                for o in range(second.outputs):
                    for i in range(i0, i1):
                        e = ((o * (rows + 2) + top + 1 - i) * (columns + 2) + left + 1 - j0) * w
                        f, t = e + (columns + 2) * w, (o * first.outputs + c) * size + i * k + j0
                        for _ in range(j0, j1):
                            p, q = splat(weights[t]), splat(weights[t + size])
                            u, v, n, m = load(spread, e), load(spread, e + w), load(spread, f), load(spread, f + w)
                            a0, a1, a2, a3 = a0 + p * u, a1 + p * v, a2 + p * n, a3 + p * m
                            b0, b1, b2, b3 = b0 + q * u, b1 + q * v, b2 + q * n, b3 + q * m
                            t, e, f = t + 1, e - w, f - w
                e = ((c * high + y) * wide + x) * w
                _store_square(slopes, e, wide * w, a0, a1, a2, a3)
                _store_square(slopes, e + high * wide * w, wide * w, b0, b1, b2, b3)


@njit(**_INNER)
def _backward(net: Any, model: Any, space: Any) -> None:
    _, _, w2, _, w3, _ = model
    first, second = net.first, net.second
    _linear_back(space.second.maxima, w3, space.scores, space.gradient, space.second.slopes, net.classes)
    _unpool(second, space.second, second.rows, second.columns, 1)
    _weights_back(space.first.maxima, second, space.second, 1)
    _input_back(first, second, w2, space.second.spread, space.first.slopes)
    _unpool(first, space.first, first.rows + first.rows % 2, first.columns + first.columns % 2, 0)
    _weights_back(space.pixels, first, space.first, 0)


@njit(**_INNER)
def _flush(vectors: Any, weights: Any, biases: Any) -> None:
    """Add up lanes, and make them zero again."""
    w = lanes(vectors)
    for e in range(weights.size):
        weights[e] += total(load(vectors, e * w))
    for e in range(biases.size):
        biases[e] += total(load(vectors, (weights.size + e) * w))
    for e in range((weights.size + biases.size) * w):
        vectors[e] = 0


@kernel(fastmath=FASTMATH)
def add_gradient(rows: Any, y: Any, net: Any, model: Any, gradient: Any, space: Any, weight: float) -> None:
    """Add ``weight`` times the gradient of the mean cross-entropy of these rows; ``gradient`` is like ``model``."""
    share = weight / rows.shape[0]
    for first in range(0, rows.shape[0], lanes(space.scores)):
        _forward(rows, first, net, model, space)
        _softmax_back(space.scores, y, first, net.classes, share)
        _backward(net, model, space)
    _flush(space.first.gradient, gradient[0], gradient[1])
    _flush(space.second.gradient, gradient[2], gradient[3])
    _flush(space.gradient, gradient[4], gradient[5])
