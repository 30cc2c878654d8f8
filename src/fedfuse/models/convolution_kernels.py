"""Compiled loops of the paper's CNN: twice convolve, take the largest of four, cut off below zero; then a linear layer.

A processor's lanes (`utils.simd`) are for as many images at once: pixel (c, y, x) of all of them is one vector. So every
operation, convolutions and maxima and their derivatives, is arithmetic on whole vectors with weights that are the same
for all, and nothing is ever moved between lanes. A group of images stays in the second-level cache from its pixels to
the gradient.

Arrays are flat; those of vectors have ``lanes`` numbers for each place. Channels of both convolutions come in pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fedfuse.models.loss_kernels import _INNER, FASTMATH
from fedfuse.utils.jit import kernel
from fedfuse.utils.simd import choose, larger, load, splat, store, total
from fedfuse.utils.simd import width as lanes


@njit(**_INNER)
def _pack(rows: Any, first: Any, last_channel: Any, s: Any, pixels: Any) -> None:
    """Lay some rows beside each other; pixels of rows have their channels last, or first."""
    w, high, wide = lanes(pixels), s.height + 2 * s.pad1, s.width + 2 * s.pad1
    for lane in range(w):
        there = first + lane < rows.shape[0]
        for c in range(s.inputs):
            for y in range(s.height):
                e = ((c * high + y + s.pad1) * wide + s.pad1) * w + lane
                for x in range(s.width):
                    at = (y * s.width + x) * s.inputs + c if last_channel else (c * s.height + y) * s.width + x
                    pixels[e] = rows[first + lane, at] if there else 0
                    e += w


@njit(**_INNER)
def _largest(a: Any, b: Any, c: Any, d: Any, zero: Any, marks: Any) -> Any:
    """The largest of four, or zero, and which it was: the first of those that are alike."""
    one, two, three = marks
    where, best = choose(b, a, one, zero), larger(b, a)
    where, best = choose(c, best, two, where), larger(c, best)
    where, best = choose(d, best, three, where), larger(d, best)
    return choose(zero, best, zero, best), where  # what is not a number stays so


@njit(**_INNER)
def _convolve(source: Any, plan: Any, weights: Any, bias: Any, maxima: Any, pad: Any, where: Any) -> None:
    """Convolve, and take the largest of every four neighbours; two channels of them at a time stay in registers."""
    inputs, high, wide, k = plan
    w, rows, columns = lanes(source), (high - k + 1) // 2, (wide - k + 1) // 2
    kind = source.dtype.type
    zero, marks = splat(kind(0)), (splat(kind(1)), splat(kind(2)), splat(kind(3)))
    size = inputs * k * k
    for o in range(0, bias.size, 2):
        for y in range(rows):
            for x in range(columns):
                a0 = a1 = a2 = a3 = splat(bias[o])
                b0 = b1 = b2 = b3 = splat(bias[o + 1])
                t = o * size
                for c in range(inputs):
                    for i in range(k):
                        e = ((c * high + 2 * y + i) * wide + 2 * x) * w
                        f = e + wide * w
                        for _ in range(k):
                            p, q = splat(weights[t]), splat(weights[t + size])
                            u, v, n, m = load(source, e), load(source, e + w), load(source, f), load(source, f + w)
                            a0, a1, a2, a3 = a0 + p * u, a1 + p * v, a2 + p * n, a3 + p * m
                            b0, b1, b2, b3 = b0 + q * u, b1 + q * v, b2 + q * n, b3 + q * m
                            t, e, f = t + 1, e + w, f + w
                for more in range(2):
                    best, which = (
                        _largest(b0, b1, b2, b3, zero, marks) if more else _largest(a0, a1, a2, a3, zero, marks)
                    )
                    place = ((o + more) * (rows + 2 * pad) + y + pad) * (columns + 2 * pad) + x + pad
                    store(maxima, place * w, best)
                    store(where, (((o + more) * rows + y) * columns + x) * w, which)


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
def _forward(rows: Any, first: Any, last_channel: Any, s: Any, model: Any, room: Any) -> None:
    w1, b1, w2, b2, w3, b3 = model
    _pack(rows, first, last_channel, s, room.pixels)
    plan = s.inputs, s.height + 2 * s.pad1, s.width + 2 * s.pad1, s.kernel
    _convolve(room.pixels, plan, w1, b1, room.maxima1, s.pad2, room.where1)
    plan = s.first, s.high1 + 2 * s.pad2, s.wide1 + 2 * s.pad2, s.kernel
    _convolve(room.maxima1, plan, w2, b2, room.maxima2, 0, room.where2)
    _score(room.maxima2, w3, b3, room.scores)


@kernel(fastmath=FASTMATH)
def outputs(rows: Any, last_channel: bool, s: Any, model: Any, space: Any, scores: Any) -> None:
    """Write the scores of all classes for these rows (n x classes)."""
    w = lanes(space.scores)
    for first in range(0, rows.shape[0], w):
        _forward(rows, first, last_channel, s, model, space)
        for r in range(first, min(first + w, rows.shape[0])):
            for c in range(s.classes):
                scores[r, c] = space.scores[c * w + r - first]


@njit(**_INNER)
def _slopes(scores: Any, y: Any, first: Any, classes: Any, share: Any) -> None:
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
def _linear_back(features: Any, weights: Any, slopes: Any, gradient: Any, below: Any, classes: Any) -> None:
    w = lanes(features)
    n = weights.size // classes
    for f in range(n):
        x, back = load(features, f * w), splat(features.dtype.type(0))
        for c in range(classes):
            slope, e = load(slopes, c * w), (c * n + f) * w
            store(gradient, e, load(gradient, e) + slope * x)
            back = back + splat(weights[c * n + f]) * slope
        store(below, f * w, back)
    for c in range(classes):
        e = (classes * n + c) * w
        store(gradient, e, load(gradient, e) + load(slopes, c * w))


@njit(**_INNER)
def _unpool(slopes: Any, maxima: Any, where: Any, plan: Any, spread: Any, biases: Any) -> None:
    """Give every derivative to the one of four that was the largest, if it was above zero; sum up those of biases."""
    channels, rows, columns, stride, pad, border, here = plan
    w, kind = lanes(slopes), slopes.dtype.type
    zero, low, middle, high = splat(kind(0)), splat(kind(0.5)), splat(kind(1.5)), splat(kind(2.5))
    wide = 2 * columns + 2 * border
    for o in range(channels):
        sum_ = zero
        for y in range(rows):
            for x in range(columns):
                top = load(maxima, ((o * (rows + 2 * pad) + y + pad) * (columns + 2 * pad) + x + pad) * w)
                slope = choose(top, zero, load(slopes, ((o * stride[0] + y) * stride[1] + x) * w), zero)
                which = load(where, ((o * rows + y) * columns + x) * w)
                a, d = choose(low, which, slope, zero), choose(which, high, slope, zero)
                b = choose(middle, which, slope - a, zero)
                e = ((o * (2 * rows + 2 * border) + 2 * y + border) * wide + 2 * x + border) * w
                store(spread, e, a)
                store(spread, e + w, b)
                store(spread, e + wide * w, slope - a - b - d)
                store(spread, e + wide * w + w, d)
                sum_ = sum_ + slope
        store(biases, (here + o) * w, load(biases, (here + o) * w) + sum_)


@njit(**_INNER)
def _weights_back(source: Any, plan: Any, spread: Any, sizes: Any, gradient: Any) -> None:
    """Add derivatives by the weights: of two channels and one row of the kernel at a time, in registers."""
    inputs, high, wide, k = plan
    channels, rows, columns, border = sizes
    w, zero = lanes(source), splat(source.dtype.type(0))
    tall, broad = rows + 2 * border, columns + 2 * border
    for o in range(0, channels, 2):
        for c in range(inputs):
            for i in range(k):
                a0 = a1 = a2 = a3 = a4 = b0 = b1 = b2 = b3 = b4 = zero
                for y in range(rows):
                    e = (c * high + y + i) * wide * w
                    f = ((o * tall + y + border) * broad + border) * w
                    g = f + tall * broad * w
                    for _ in range(columns):
                        p, q = load(spread, f), load(spread, g)
                        u, v, n = load(source, e), load(source, e + w), load(source, e + 2 * w)
                        a0, a1, a2 = a0 + p * u, a1 + p * v, a2 + p * n
                        b0, b1, b2 = b0 + q * u, b1 + q * v, b2 + q * n
                        u, v = load(source, e + 3 * w), load(source, e + 4 * w)
                        a3, a4, b3, b4 = a3 + p * u, a4 + p * v, b3 + q * u, b4 + q * v
                        e, f, g = e + w, f + w, g + w
                e = ((o * inputs + c) * k + i) * k * w
                _add_taps(gradient, e, k, a0, a1, a2, a3, a4)
                _add_taps(gradient, e + inputs * k * k * w, k, b0, b1, b2, b3, b4)


@njit(**_INNER)
def _add_taps(gradient: Any, e: Any, k: Any, a: Any, b: Any, c: Any, d: Any, f: Any) -> None:
    w = lanes(gradient)
    store(gradient, e, load(gradient, e) + a)
    if k > 1:
        store(gradient, e + w, load(gradient, e + w) + b)
    if k > 2:
        store(gradient, e + 2 * w, load(gradient, e + 2 * w) + c)
    if k > 3:
        store(gradient, e + 3 * w, load(gradient, e + 3 * w) + d)
    if k > 4:
        store(gradient, e + 4 * w, load(gradient, e + 4 * w) + f)


@njit(**_INNER)
def _input_back(spread: Any, weights: Any, s: Any, slopes: Any) -> None:
    """Write derivatives by the first maxima: of four neighbours in two channels at a time, in registers.

    Beyond its border of one, ``spread`` is zero: rows and columns of the kernel that would lead there are left out.
    """
    w, k = lanes(spread), s.kernel
    rows, columns = 2 * s.high2, 2 * s.wide2
    tall, broad = rows + 2, columns + 2
    high, wide = s.high1 + s.high1 % 2, s.wide1 + s.wide1 % 2
    size, kind = k * k, spread.dtype.type
    for c in range(0, s.first, 2):
        for y in range(0, s.high1, 2):
            top = y + s.pad2
            i0, i1 = max(0, top + 1 - rows), min(k, top + 2)
            for x in range(0, s.wide1, 2):
                left = x + s.pad2
                j0, j1 = max(0, left + 1 - columns), min(k, left + 2)
                a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = splat(kind(0))
                for o in range(s.second):
                    for i in range(i0, i1):
                        e = ((o * tall + top + 1 - i) * broad + left + 1 - j0) * w
                        f, t = e + broad * w, (o * s.first + c) * size + i * k + j0
                        for _ in range(j0, j1):
                            p, q = splat(weights[t]), splat(weights[t + size])
                            u, v, n, m = load(spread, e), load(spread, e + w), load(spread, f), load(spread, f + w)
                            a0, a1, a2, a3 = a0 + p * u, a1 + p * v, a2 + p * n, a3 + p * m
                            b0, b1, b2, b3 = b0 + q * u, b1 + q * v, b2 + q * n, b3 + q * m
                            t, e, f = t + 1, e - w, f - w
                e = ((c * high + y) * wide + x) * w
                f = e + wide * w
                store(slopes, e, a0)
                store(slopes, e + w, a1)
                store(slopes, f, a2)
                store(slopes, f + w, a3)
                e, f = e + high * wide * w, f + high * wide * w
                store(slopes, e, b0)
                store(slopes, e + w, b1)
                store(slopes, f, b2)
                store(slopes, f + w, b3)


@njit(**_INNER)
def _backward(s: Any, model: Any, room: Any) -> None:
    _, b1, w2, b2, w3, _ = model
    _linear_back(room.maxima2, w3, room.scores, room.gradient3, room.slopes2, s.classes)
    plan = s.second, s.high2, s.wide2, (s.high2, s.wide2), 0, 1, w2.size
    _unpool(room.slopes2, room.maxima2, room.where2, plan, room.spread2, room.gradient2)
    source = s.first, s.high1 + 2 * s.pad2, s.wide1 + 2 * s.pad2, s.kernel
    _weights_back(room.maxima1, source, room.spread2, (b2.size, 2 * s.high2, 2 * s.wide2, 1), room.gradient2)
    _input_back(room.spread2, w2, s, room.slopes1)
    stride = s.high1 + s.high1 % 2, s.wide1 + s.wide1 % 2
    plan = s.first, s.high1, s.wide1, stride, s.pad2, 0, s.first * s.inputs * s.kernel**2
    _unpool(room.slopes1, room.maxima1, room.where1, plan, room.spread1, room.gradient1)
    source = s.inputs, s.height + 2 * s.pad1, s.width + 2 * s.pad1, s.kernel
    _weights_back(room.pixels, source, room.spread1, (b1.size, 2 * s.high1, 2 * s.wide1, 0), room.gradient1)


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
def add_gradient(
    rows: Any, y: Any, last_channel: bool, s: Any, model: Any, gradient: Any, space: Any, weight: float
) -> None:
    """Add ``weight`` times the gradient of the mean cross-entropy of these rows; ``gradient`` is like ``model``."""
    share = weight / rows.shape[0]
    for first in range(0, rows.shape[0], lanes(space.scores)):
        _forward(rows, first, last_channel, s, model, space)
        _slopes(space.scores, y, first, s.classes, share)
        _backward(s, model, space)
    _flush(space.gradient1, gradient[0], gradient[1])
    _flush(space.gradient2, gradient[2], gradient[3])
    _flush(space.gradient3, gradient[4], gradient[5])
