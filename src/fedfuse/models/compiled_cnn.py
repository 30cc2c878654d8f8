"""The paper's CNN by compiled loops: two conv-maxpool-ReLU blocks and a linear layer, in a third of torch's time.

The lanes of a processor (`utils.simd`) hold as many images: pixel (c, y, x) of all of them is one vector. So every
operation, convolutions and maxima and their derivatives, is arithmetic on whole vectors with weights that are the same
for all, and nothing is ever moved between lanes. A group of images stays in the second-level cache from its pixels to
the gradient.

Arrays are flat; those of vectors have ``lanes`` numbers for each place. Channels of both convolutions come in pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

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

# Maximum number of weights in a row of a kernel.
MAX_TAPS = 5
Pair: TypeAlias = tuple[Floats, Floats]  # Parameters, and derivatives by them.


class CompiledCNN(ParameterBackend):
    """A `ParameterBackend` for `networks.CNN` with cross-entropy and channels in pairs, on the CPU."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        one, two = self.module[0], self.module[3]  # type: ignore[index]
        weights, slopes = (dict(self.layout.views(flat)) for flat in (self.w, self.g))
        tensors = [(weights[n].numpy(), slopes[n].numpy()) for n, _ in self.module.named_parameters()]
        (inputs, height, width), pad = self.shape, 2 * one.padding[0]
        dtype = tensors[0][0].dtype
        pixels = _vectors(dtype, inputs, height + pad, width + pad)
        first = _layer(pixels, tensors[0], tensors[1], margin=two.padding[0], even=True)
        second = _layer(first.maxima, tensors[2], tensors[3], frame=1)
        classes, features = tensors[4][0].shape
        scores, gradient = (_vectors(dtype, n) for n in (classes, classes * (features + 1)))
        self._net = Net(first, second, LastLayer(*_flat(tensors[4], tensors[5]), scores, gradient))

    def add_gradient(self, x: Tensor, y: Tensor, weight: float = 1.0) -> None:
        if y.ndim > 1:  # Rows with weights are left to torch.
            super().add_gradient(x, y, weight)
        else:
            add_gradient(x.numpy().reshape(-1, *self.shape), y.numpy(), self._net, float(weight))

    def outputs(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        for first in range(0, len(x), CHUNK_ROWS):
            rows = x[first : first + CHUNK_ROWS].numpy().reshape(-1, *self.shape)
            scores = np.empty((len(rows), self._net.last.bias.size), rows.dtype)
            write_scores(rows, self._net, scores)
            yield first, torch.from_numpy(scores)


class ConvLayer(NamedTuple):
    """A convolution with pooling: parameters, derivatives by them, and space for a group of images, as vectors."""

    weights: Floats
    weights_slope: Floats
    bias: Floats
    bias_slope: Floats
    kernel: int
    source: Floats  # channels x height x width, with zeros around them
    maxima: Floats  # channels x rows x columns, with zeros around them: the source of the next layer
    where: Floats  # which of four each was: 0 to 3
    slopes: Floats  # derivatives by the maxima; of the first layer in even numbers of rows and columns
    spread: Floats  # derivatives by what was pooled; of the second layer with one zero around it
    gradient: Floats  # by weights and, behind them, by biases


class LastLayer(NamedTuple):
    weights: Floats
    weights_slope: Floats
    bias: Floats
    bias_slope: Floats
    scores: Floats  # then derivatives by them
    gradient: Floats


class Net(NamedTuple):
    first: ConvLayer
    second: ConvLayer
    last: LastLayer


def _vectors(dtype: npt.DTypeLike, *shape: int) -> Floats:
    # rows of kernels are read as if they had MAX_TAPS weights, so a little beyond the last one
    width = BYTES // np.dtype(dtype).itemsize
    size = int(np.prod(shape)) * width
    return np.zeros(size + MAX_TAPS * width, dtype)[:size].reshape(*shape, width)


def _flat(weights: Pair, biases: Pair) -> tuple[Floats, Floats, Floats, Floats]:
    return weights[0].reshape(-1), weights[1].reshape(-1), biases[0], biases[1]


def _layer(
    source: Floats, weights: Pair, biases: Pair, margin: int = 0, even: bool = False, frame: int = 0
) -> ConvLayer:
    outputs, inputs, kernel, _ = weights[0].shape
    rows, columns = ((side - kernel + 1) // 2 for side in source.shape[1:3])
    return ConvLayer(
        *_flat(weights, biases),
        kernel,
        source,
        _vectors(source.dtype, outputs, rows + 2 * margin, columns + 2 * margin),
        _vectors(source.dtype, outputs, rows, columns),
        _vectors(source.dtype, outputs, rows + even * (rows % 2), columns + even * (columns % 2)),
        _vectors(source.dtype, outputs, 2 * (rows + frame), 2 * (columns + frame)),
        _vectors(source.dtype, outputs * (inputs * kernel**2 + 1)),
    )


# ------------------------------------------------------------------------------------------------- forward


@njit(**_INNER)
def _pack(rows: Any, first: Any, pixels: Any) -> None:
    """Lay some rows beside each other, with zeros in place of rows beyond the last."""
    pad = (pixels.shape[1] - rows.shape[2]) // 2
    for lane in range(pixels.shape[3]):
        there = first + lane < rows.shape[0]
        for channel in range(rows.shape[1]):
            for y in range(rows.shape[2]):
                for x in range(rows.shape[3]):
                    pixels[channel, y + pad, x + pad, lane] = rows[first + lane, channel, y, x] if there else 0


@njit(**_INNER)
def _largest(four: Any, zero: Any, marks: Any) -> Any:
    """The largest of four, or zero, and which it was: the first of those that are alike."""
    where, best = zero, four[0]
    for i in range(3):
        where, best = choose(four[i + 1], best, marks[i], where), choose(four[i + 1], best, four[i + 1], best)
    return choose(zero, best, zero, best), where  # what is not a number stays so


@njit(**_INNER)
def _convolve(layer: Any) -> None:
    """Convolve, and take the largest of every four neighbours; two channels of them at a time stay in registers."""
    source, weights, bias, where, kernel = layer.source, layer.weights, layer.bias, layer.where, layer.kernel
    w, kind = lanes(source), source.dtype.type
    zero, marks = splat(kind(0)), (splat(kind(1)), splat(kind(2)), splat(kind(3)))
    (inputs, height, width, _), (outputs, rows, columns, _) = source.shape, where.shape
    size = inputs * kernel * kernel
    for o in range(0, outputs, 2):
        for y in range(rows):
            for x in range(columns):
                a0 = a1 = a2 = a3 = splat(bias[o])
                b0 = b1 = b2 = b3 = splat(bias[o + 1])
                t = o * size
                for channel in range(inputs):
                    for i in range(kernel):
                        e = ((channel * height + 2 * y + i) * width + 2 * x) * w
                        f = e + width * w
                        for _ in range(kernel):
                            p, q = splat(weights[t]), splat(weights[t + size])
                            u, v, n, m = load(source, e), load(source, e + w), load(source, f), load(source, f + w)
                            a0, a1, a2, a3 = a0 + p * u, a1 + p * v, a2 + p * n, a3 + p * m
                            b0, b1, b2, b3 = b0 + q * u, b1 + q * v, b2 + q * n, b3 + q * m
                            t, e, f = t + 1, e + w, f + w
                for more in range(2):
                    four = (b0, b1, b2, b3) if more else (a0, a1, a2, a3)
                    best, which = _largest(four, zero, marks)
                    store(layer.maxima, _place(layer, o + more, y, x) * w, best)
                    store(where, (((o + more) * rows + y) * columns + x) * w, which)


@njit(**_INNER)
def _place(layer: Any, channel: Any, y: Any, x: Any) -> Any:
    """Where among the maxima, with their margin, this one is."""
    _, high, wide, _ = layer.maxima.shape
    margin = (high - layer.where.shape[1]) // 2
    return (channel * high + y + margin) * wide + x + margin


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
def _forward(rows: Any, first: Any, net: Any) -> None:
    _pack(rows, first, net.first.source)
    _convolve(net.first)
    _convolve(net.second)
    _score(net.second.maxima, net.last.weights, net.last.bias, net.last.scores)


@kernel(fastmath=FASTMATH)
def write_scores(rows: Any, net: Any, scores: Any) -> None:
    """Write the scores of all classes for these rows (n x classes)."""
    found = net.last.scores
    w = lanes(found)
    for first in range(0, rows.shape[0], w):
        _forward(rows, first, net)
        for r in range(first, min(first + w, rows.shape[0])):
            for c in range(scores.shape[1]):
                scores[r, c] = found[c, r - first]


# ------------------------------------------------------------------------------------------------ backward


@njit(**_INNER)
def _softmax_back(scores: Any, y: Any, first: Any, share: Any) -> None:
    """Put derivatives of the loss in the place of scores: share (softmax - e_y); none for what fills up a group."""
    classes, w = scores.shape
    for lane in range(w):
        if first + lane >= y.size:
            for c in range(classes):
                scores[c, lane] = 0
            continue
        top, sum_ = scores[0, lane], 0.0
        for c in range(classes):
            top = max(top, scores[c, lane])
        for c in range(classes):
            sum_ += np.exp(np.float64(scores[c, lane] - top))
        for c in range(classes):
            scores[c, lane] = share * np.exp(np.float64(scores[c, lane] - top)) / sum_
        scores[y[first + lane], lane] -= share


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
def _linear_back(features: Any, last: Any, below: Any) -> None:
    w, weights, classes = lanes(features), last.weights, last.bias.size
    n = weights.size // classes
    for f in range(n):
        x, back = load(features, f * w), splat(features.dtype.type(0))
        for c in range(classes):
            slope = load(last.scores, c * w)
            _add(last.gradient, (c * n + f) * w, slope * x)
            back = back + splat(weights[c * n + f]) * slope
        store(below, f * w, back)
    for c in range(classes):
        _add(last.gradient, (classes * n + c) * w, load(last.scores, c * w))


@njit(**_INNER)
def _unpool(layer: Any) -> None:
    """Give every derivative to the one of four that was the largest, if it was above zero; sum up those of biases."""
    w, kind, (outputs, rows, columns, _) = lanes(layer.slopes), layer.slopes.dtype.type, layer.where.shape
    zero, low, middle, top = splat(kind(0)), splat(kind(0.5)), splat(kind(1.5)), splat(kind(2.5))
    (_, high, wide, _), (_, tall, broad, _) = layer.slopes.shape, layer.spread.shape
    frame = tall // 2 - rows
    for o in range(outputs):
        sum_ = zero
        for y in range(rows):
            for x in range(columns):
                value = load(layer.maxima, _place(layer, o, y, x) * w)
                slope = choose(value, zero, load(layer.slopes, ((o * high + y) * wide + x) * w), zero)
                which = load(layer.where, ((o * rows + y) * columns + x) * w)
                p, s = choose(low, which, slope, zero), choose(which, top, slope, zero)
                q = choose(middle, which, slope - p, zero)
                e = ((o * tall + 2 * y + frame) * broad + 2 * x + frame) * w
                _store_square(layer.spread, e, broad * w, p, q, slope - p - q - s, s)
                sum_ = sum_ + slope
        _add(layer.gradient, (layer.weights.size + o) * w, sum_)


@njit(**_INNER)
def _weights_back(layer: Any) -> None:
    """Add derivatives by the weights: of two channels and one row of the kernel at a time, in registers."""
    source, spread, k = layer.source, layer.spread, layer.kernel
    w, zero = lanes(source), splat(source.dtype.type(0))
    (inputs, height, width, _), (outputs, rows, columns, _) = source.shape, layer.where.shape
    _, tall, broad, _ = spread.shape
    frame = tall // 2 - rows
    for o in range(0, outputs, 2):
        for channel in range(inputs):
            for i in range(k):
                a0 = a1 = a2 = a3 = a4 = b0 = b1 = b2 = b3 = b4 = zero
                for y in range(2 * rows):
                    e = (channel * height + y + i) * width * w
                    f = ((o * tall + y + frame) * broad + frame) * w
                    g = f + tall * broad * w
                    for _ in range(2 * columns):
                        p, q = load(spread, f), load(spread, g)
                        u, v, n = load(source, e), load(source, e + w), load(source, e + 2 * w)
                        a0, a1, a2 = a0 + p * u, a1 + p * v, a2 + p * n
                        b0, b1, b2 = b0 + q * u, b1 + q * v, b2 + q * n
                        u, v = load(source, e + 3 * w), load(source, e + 4 * w)
                        a3, a4, b3, b4 = a3 + p * u, a4 + p * v, b3 + q * u, b4 + q * v
                        e, f, g = e + w, f + w, g + w
                e = ((o * inputs + channel) * k + i) * k * w
                _add_taps(layer.gradient, e, k, (a0, a1, a2, a3, a4))
                _add_taps(layer.gradient, e + inputs * k * k * w, k, (b0, b1, b2, b3, b4))


@njit(**_INNER)
def _add_taps(gradient: Any, e: Any, k: Any, taps: Any) -> None:
    for i in range(k):
        _add(gradient, e + i * lanes(gradient), taps[i])


@njit(**_INNER)
def _input_back(first: Any, second: Any) -> None:
    """Write derivatives by the first maxima, of four neighbours in two channels at a time; ``spread`` ends in zeros."""
    spread, weights, k = second.spread, second.weights, second.kernel
    w, kind, size = lanes(spread), spread.dtype.type, k * k
    (_, tall, broad, _), (outputs, rows, columns, _) = spread.shape, first.where.shape
    _, high, wide, _ = first.slopes.shape
    margin = (first.maxima.shape[1] - rows) // 2
    for c in range(0, outputs, 2):
        for y in range(0, rows, 2):
            top = y + margin
            i0, i1 = max(0, top + 3 - tall), min(k, top + 2)
            for x in range(0, columns, 2):
                left = x + margin
                j0, j1 = max(0, left + 3 - broad), min(k, left + 2)
                a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = splat(kind(0))
                for o in range(second.bias.size):
                    for i in range(i0, i1):
                        e = ((o * tall + top + 1 - i) * broad + left + 1 - j0) * w
                        f, t = e + broad * w, (o * outputs + c) * size + i * k + j0
                        for _ in range(j0, j1):
                            p, q = splat(weights[t]), splat(weights[t + size])
                            u, v, n, m = load(spread, e), load(spread, e + w), load(spread, f), load(spread, f + w)
                            a0, a1, a2, a3 = a0 + p * u, a1 + p * v, a2 + p * n, a3 + p * m
                            b0, b1, b2, b3 = b0 + q * u, b1 + q * v, b2 + q * n, b3 + q * m
                            t, e, f = t + 1, e - w, f - w
                e = ((c * high + y) * wide + x) * w
                _store_square(first.slopes, e, wide * w, a0, a1, a2, a3)
                _store_square(first.slopes, e + high * wide * w, wide * w, b0, b1, b2, b3)


@njit(**_INNER)
def _flush(layer: Any) -> None:
    """Add up lanes, and make them zero again."""
    w, vectors, size = lanes(layer.gradient), layer.gradient, layer.weights.size
    for e in range(size):
        layer.weights_slope[e] += total(load(vectors, e * w))
    for e in range(layer.bias.size):
        layer.bias_slope[e] += total(load(vectors, (size + e) * w))
    vectors[:] = 0


@kernel(fastmath=FASTMATH)
def add_gradient(rows: Any, y: Any, net: Any, weight: float) -> None:
    """Add ``weight`` times the gradient of the mean cross-entropy of these rows to those of the layers."""
    share = weight / rows.shape[0]
    for first in range(0, rows.shape[0], lanes(net.last.scores)):
        _forward(rows, first, net)
        _softmax_back(net.last.scores, y, first, share)
        _linear_back(net.second.maxima, net.last, net.second.slopes)
        _unpool(net.second)
        _weights_back(net.second)
        _input_back(net.first, net.second)
        _unpool(net.first)
        _weights_back(net.first)
    _flush(net.first)
    _flush(net.second)
    _flush(net.last)
