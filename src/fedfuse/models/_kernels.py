"""Compiled loops of the models.

Softmax regression reads rows in panels: at most `PANEL` rows, feature after feature inside the panel, so that
every inner loop runs over neighbouring rows and becomes vector instructions. After its features a row carries
a 1 (the intercept), then zeros up to a multiple of four; zero rows fill up a device's last panel.
Parameters are matrices of the same shape: classes (an even number, the last one perhaps unused) by features.
None of the filling changes a sum.

Each device is computed from beginning to end by one thread, with sums in a fixed order: its result depends
neither on the other devices nor on the number of threads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic, overload

from fedfuse._lanes import prefetch
from fedfuse.models._panels import GRAIN, PANEL, Panels
from fedfuse.types import Floats, Ints

# Bytes in a line of the cache.
LINE = 64
# Sums may be reordered and multiply-adds fused; nan and infinity stay what they are.
_ENTRY: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "no_cfunc_wrapper": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}
_INNER = {**_ENTRY, "no_cpython_wrapper": True}
_EXACT = {**_INNER, "fastmath": {"contract"}}  # where the order of operations is the point


# ------------------------------------------------------------------------------------------ exponential


def _read_bits(typing_context: Any, bits: Any) -> Any:
    # the float of the same size that has the bits of an integer
    single = bits == types.int32
    target = ir.FloatType() if single else ir.DoubleType()

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], target)

    return (types.float32 if single else types.float64)(bits), generate


_float_of_bits: Any = intrinsic(_read_bits)


# exp(x) = 2^k exp(r), k = round(x / log 2), |r| <= log(2) / 2. log 2 is cut in two to make r exact; exp(r)
# is its Taylor series, as long as terms are felt; 2^k is made of bits. math.exp does not become vector code.
_C32 = tuple(np.float32(1 / math.factorial(k)) for k in range(8))
_C64 = tuple(1 / math.factorial(k) for k in range(14))
_LEAST_32, _HALF_32, _LOG2E_32 = np.float32(-87), np.float32(0.5), np.float32(math.log2(math.e))
_LEAST_64, _HALF_64, _LOG2E_64 = -708.0, 0.5, math.log2(math.e)
_LN2_HIGH_32, _LN2_LOW_32 = np.float32(355 / 512), np.float32(math.log(2) - 355 / 512)  # 355 k / 512 is exact
_LN2_HIGH_64, _LN2_LOW_64 = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # as in fdlibm


@njit(**_EXACT)
def _exp_32(x: Any) -> Any:
    c = _C32
    x = _LEAST_32 if x < _LEAST_32 else x
    k = np.floor(x * _LOG2E_32 + _HALF_32)
    r = (x - k * _LN2_HIGH_32) - k * _LN2_LOW_32
    s = c[0] + r * (c[1] + r * (c[2] + r * (c[3] + r * (c[4] + r * (c[5] + r * (c[6] + r * c[7]))))))
    return s * _float_of_bits(np.int32((np.int32(k) + 127) << 23))


@njit(**_EXACT)
def _exp_64(x: Any) -> Any:
    c = _C64
    x = _LEAST_64 if x < _LEAST_64 else x
    k = np.floor(x * _LOG2E_64 + _HALF_64)
    r = (x - k * _LN2_HIGH_64) - k * _LN2_LOW_64
    s = c[7] + r * (c[8] + r * (c[9] + r * (c[10] + r * (c[11] + r * (c[12] + r * c[13])))))
    s = c[0] + r * (c[1] + r * (c[2] + r * (c[3] + r * (c[4] + r * (c[5] + r * (c[6] + r * s))))))
    return s * _float_of_bits((np.int64(np.int32(k)) + 1023) << 52)


def exp(x: Any) -> Any:
    """Return exp(x) for x <= 0, but not less than the smallest normal number. Compiled code only."""
    raise NotImplementedError


@overload(exp, strict=False)
def _exp_of_type(x: Any) -> Any:
    chosen = _exp_32 if x == types.float32 else _exp_64
    return lambda x: chosen(x)


# ----------------------------------------------------------------------------------------------- panels
# S is working memory: PANEL numbers for every class, then twice PANEL for the helpers' own use.


@njit(**_INNER)
def _scores(panel: Floats, W: Floats, S: Floats) -> None:
    # S[c, r] = sum_f W[c, f] panel[f, r]; two classes and four features at a time stay in registers
    features, width = panel.shape
    for j in range(W.shape[0] * PANEL):
        S[j] = 0
    for f in range(0, features, 4):
        for c in range(0, W.shape[0], 2):
            s = S[c * PANEL : (c + 2) * PANEL]
            a0, a1, a2, a3 = W[c, f], W[c, f + 1], W[c, f + 2], W[c, f + 3]
            b0, b1, b2, b3 = W[c + 1, f], W[c + 1, f + 1], W[c + 1, f + 2], W[c + 1, f + 3]
            for r in range(width):
                x0, x1, x2, x3 = panel[f, r], panel[f + 1, r], panel[f + 2, r], panel[f + 3, r]
                s[r] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                s[r + PANEL] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3


@njit(**_INNER)
def _accumulate(panel: Floats, S: Floats, G: Floats, X: Floats, following: int) -> None:
    # G[c, f] += sum_r S[c, r] panel[f, r]; within a panel in the rows' own precision, over panels in float64
    # meanwhile the panel that follows in X (any X, where none does) comes into the cache: its pieces are too short for
    # the processor to look ahead by itself
    features, width = panel.shape
    zero = panel.dtype.type(0)
    for f in range(0, features, 4):
        for e in range(following + f * width, following + (f + 4) * width, LINE // X.itemsize):
            prefetch(X, e)
        for c in range(0, G.shape[0], 2):
            s = S[c * PANEL : (c + 2) * PANEL]
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
            for r in range(width):
                x0, x1, x2, x3 = panel[f, r], panel[f + 1, r], panel[f + 2, r], panel[f + 3, r]
                u, v = s[r], s[r + PANEL]
                a0 += u * x0
                a1 += u * x1
                a2 += u * x2
                a3 += u * x3
                b0 += v * x0
                b1 += v * x1
                b2 += v * x2
                b3 += v * x3
            G[c, f] += a0
            G[c, f + 1] += a1
            G[c, f + 2] += a2
            G[c, f + 3] += a3
            G[c + 1, f] += b0
            G[c + 1, f + 1] += b1
            G[c + 1, f + 2] += b2
            G[c + 1, f + 3] += b3


@njit(**_INNER)
def _tops(S: Floats, classes: int, width: int) -> Floats:
    # top[r] = max_c S[c, r]
    top = S[S.size - 2 * PANEL : S.size - PANEL]
    for r in range(width):
        top[r] = S[r]
    for c in range(1, classes):
        s = S[c * PANEL : (c + 1) * PANEL]
        for r in range(width):
            top[r] = s[r] if s[r] > top[r] else top[r]
    return top


@njit(**_INNER)
def _softmax(S: Floats, classes: int, width: int, top: Floats) -> Floats:
    # share[r] = 1 / sum_c exp(S[c, r] - top[r]); S[c, r] <- exp(S[c, r] - top[r]) share[r]
    share = S[S.size - PANEL :]
    for r in range(width):
        share[r] = 0
    for c in range(classes):
        s = S[c * PANEL : (c + 1) * PANEL]
        for r in range(width):
            e = exp(s[r] - top[r])
            s[r] = e
            share[r] += e
    one = share.dtype.type(1)
    for r in range(width):
        share[r] = one / share[r]
    for c in range(classes):
        s = S[c * PANEL : (c + 1) * PANEL]
        for r in range(width):
            s[r] *= share[r]
    return share


@njit(**_INNER)
def _panel(data: Panels, device: int, first: int) -> tuple[Floats, Ints]:
    # the panel that begins with this row of the device, and the classes of its true rows
    rows = min(PANEL, data.counts[device] - first)
    width = (rows + GRAIN - 1) // GRAIN * GRAIN
    a, q = data.start[device] + first, data.features
    return data.X[a * q : (a + width) * q].reshape((q, width)), data.y[a : a + rows]


@njit(**_INNER)
def _add_gradient(
    panel: Floats, y: Ints, classes: int, W: Floats, G: Floats, S: Floats, X: Floats, following: int
) -> None:
    # G += sum over the panel's rows of (softmax(W x) - e_y) x'; the panel that follows begins at X[following]
    width = panel.shape[1]
    _scores(panel, W, S)
    _softmax(S, classes, width, _tops(S, classes, width))
    for r in range(y.size):
        S[y[r] * PANEL + r] -= 1
    _accumulate(panel, S, G, X, following)


@njit(**_INNER)
def _step(W: Floats, A: Floats, G: Floats, rows: int, rho: float, lr: float) -> None:
    # W <- W - lr (G / rows + rho (W - A))
    share = 1 / max(rows, 1)
    for c in range(W.shape[0]):
        for f in range(W.shape[1]):
            W[c, f] -= lr * (share * G[c, f] + rho * (W[c, f] - A[c, f]))


@njit(**_INNER)
def _clear(G: Floats) -> None:
    for c in range(G.shape[0]):
        for f in range(G.shape[1]):
            G[c, f] = 0


# -------------------------------------------------------------------------------- softmax: what is called


@njit(**_ENTRY)
def descend(data: Panels, devices: Ints, jobs: Ints, W: Floats, A: Floats, rho: float, lr: float, steps: int) -> None:
    """Take full-batch gradient steps on W[k], in place, for k in ``jobs``."""
    S, G = np.empty((W.shape[1] + 2) * PANEL, W.dtype), np.empty((W.shape[1], W.shape[2]))
    for k in jobs:
        w, a, device = W[k], A[k], devices[k]
        for _ in range(steps):
            _clear(G)
            for first in range(0, data.counts[device], PANEL):
                panel, y = _panel(data, device, first)
                after = first + PANEL if first + PANEL < data.counts[device] else 0
                following = (data.start[device] + after) * data.features
                _add_gradient(panel, y, data.classes, w, G, S, data.X, following)
            _step(w, a, G, data.counts[device], rho, lr)


@njit(**_INNER)
def _gather(X: Floats, chosen: Ints, panel: Floats) -> None:
    # panel[f, r] = X[chosen[r], f], then 1 for the intercept; zeros where there is nothing
    p = X.shape[1]
    for r in range(chosen.size):
        x = X[chosen[r]]
        for f in range(p):
            panel[f, r] = x[f]
    for r in range(chosen.size):
        panel[p, r] = 1
    for f in range(panel.shape[0]):
        for r in range(chosen.size if f <= p else 0, panel.shape[1]):
            panel[f, r] = 0


@njit(**_ENTRY)
def descend_batches(
    X: Floats, y: Ints, classes: int, orders: Ints, W: Floats, A: Floats, rho: float, lr: float, batch: int
) -> None:
    """Take a gradient step on W, in place, for every ``batch`` rows in each of the orders (epochs x rows)."""
    S, G = np.empty((W.shape[0] + 2) * PANEL, W.dtype), np.empty(W.shape)
    q, n = W.shape[1], orders.shape[1]
    pieces = -(-batch // (PANEL - GRAIN))
    size = -(-batch // pieces)
    store, labels = np.empty(q * PANEL, W.dtype), np.empty(PANEL, np.int64)
    for epoch in range(orders.shape[0]):
        for first in range(0, max(n, 1), batch):  # without rows: the proximal term alone
            last = min(first + batch, n)
            _clear(G)
            for a in range(first, last, size):
                chosen = orders[epoch, a : min(a + size, last)]
                # an odd multiple: lines a power of two apart would push each other out of the cache
                width = (chosen.size + GRAIN - 1) // (2 * GRAIN) * 2 * GRAIN + GRAIN
                panel = store[: q * width].reshape((q, width))
                _gather(X, chosen, panel)
                for r in range(chosen.size):
                    labels[r] = y[chosen[r]]
                _add_gradient(panel, labels[: chosen.size], classes, W, G, S, store, 0)
            _step(W, A, G, last - first, rho, lr)


@njit(**_INNER)
def _judge(S: Floats, y: Ints, top: Floats) -> tuple[float, int]:
    # sum_r (top[r] - S[y[r], r]), and how many rows have y as the first class with the largest score
    gap, hits = 0.0, 0
    for r in range(y.size):
        gap += top[r] - S[y[r] * PANEL + r]
        best = 0
        while S[best * PANEL + r] < top[r]:
            best += 1
        hits += best == y[r]
    return gap, hits


@njit(**_ENTRY)
def evaluate(data: Panels, devices: Ints, jobs: Ints, W: Floats, loss: Floats, hits: Ints, G: Floats) -> None:
    """Add the sums over rows of loss and hits, and of the gradient unless G is empty, for k in ``jobs``."""
    S = np.empty((W.shape[1] + 2) * PANEL, W.dtype)
    for k in jobs:
        w, device = W[k], devices[k]
        for first in range(0, data.counts[device], PANEL):
            panel, y = _panel(data, device, first)
            width = panel.shape[1]
            _scores(panel, w, S)
            top = _tops(S, data.classes, width)
            gap, right = _judge(S, y, top)
            share = _softmax(S, data.classes, width, top)
            for r in range(y.size):
                gap -= math.log(share[r])
            loss[k] += gap
            hits[k] += right
            if G.size:
                for r in range(y.size):
                    S[y[r] * PANEL + r] -= 1
                _accumulate(panel, S, G[k], S, 0)


@njit(**_INNER)
def _curve(P: Floats, S: Floats, classes: int, width: int) -> None:
    # S[c, r] <- P[c, r] (S[c, r] - sum_k P[k, r] S[k, r])
    mean = S[S.size - PANEL :]
    for r in range(width):
        mean[r] = 0
    for c in range(classes):
        s, p = S[c * PANEL : (c + 1) * PANEL], P[c * PANEL : (c + 1) * PANEL]
        for r in range(width):
            mean[r] += p[r] * s[r]
    for c in range(classes):
        s, p = S[c * PANEL : (c + 1) * PANEL], P[c * PANEL : (c + 1) * PANEL]
        for r in range(width):
            s[r] = p[r] * (s[r] - mean[r])


@njit(**_INNER)
def _hessian_times(data: Panels, device: int, P: Floats, V: Floats, v: Floats, H: Floats, S: Floats) -> None:
    # H = (hessian of the device's mean loss) V; v is room for V / rows in the rows' precision
    n = max(data.counts[device], 1)
    for c in range(V.shape[0]):
        for f in range(V.shape[1]):
            v[c, f] = V[c, f] / n
            H[c, f] = 0
    for first in range(0, data.counts[device], PANEL):
        panel, _ = _panel(data, device, first)
        _scores(panel, v, S)
        _curve(P[first // PANEL], S, data.classes, panel.shape[1])
        _accumulate(panel, S, H, S, 0)


@njit(**_INNER)
def _curvature(V: Floats, H: Floats, rho: float) -> tuple[float, float]:
    # H <- H + rho V; returns V.H and V.V
    along, length = 0.0, 0.0
    for c in range(V.shape[0]):
        for f in range(V.shape[1]):
            H[c, f] += rho * V[c, f]
            along += V[c, f] * H[c, f]
            length += V[c, f] * V[c, f]
    return along, length


@njit(**_INNER)
def _advance(D: Floats, R: Floats, V: Floats, H: Floats, t: float) -> float:
    # D <- D + t V, R <- R - t H; returns R.R
    square = 0.0
    for c in range(D.shape[0]):
        for f in range(D.shape[1]):
            D[c, f] += t * V[c, f]
            R[c, f] -= t * H[c, f]
            square += R[c, f] * R[c, f]
    return square


@njit(**_ENTRY)
def newton_direction(
    data: Panels, device: int, W: Floats, rho: float, accuracy: float, most: int, room: Floats, v: Floats
) -> None:
    """Add to D the solution of (hessian at W + rho) D = R, by at most ``most`` conjugate-gradient steps.

    ``room`` is D, R and space for two more, ``v`` is space for one like W.
    """
    D, R, V, H = room[0], room[1], room[2], room[3]
    n, size = data.counts[device], (W.shape[0] + 2) * PANEL
    S, P = np.empty(size, W.dtype), np.empty(((n + PANEL - 1) // PANEL, size), W.dtype)
    for first in range(0, n, PANEL):
        panel, _ = _panel(data, device, first)
        _scores(panel, W, P[first // PANEL])
        top = _tops(P[first // PANEL], data.classes, panel.shape[1])
        _softmax(P[first // PANEL], data.classes, panel.shape[1], top)
    square, last, enough = _advance(D, R, V, H, 0.0), 1.0, 0.0
    for step in range(most):
        for c in range(V.shape[0]):
            for f in range(V.shape[1]):
                V[c, f] = R[c, f] + (square / last * V[c, f] if step else 0.0)
        _hessian_times(data, device, P, V, v, H, S)
        along, length = _curvature(V, H, rho)
        if along <= 1e-12 * length:  # flat, as far as rounding can tell
            break
        last = square
        square = _advance(D, R, V, H, square / along)
        enough = accuracy * accuracy * last if step == 0 else enough
        if square <= enough:
            break


# ------------------------------------------------------------------------------ linear: float64 throughout


@njit(**_ENTRY)
def moments(X: Floats, y: Floats, out: Floats) -> None:
    """Fill in the mean of z z' over rows, z = (x, 1, y), zeros up to a multiple of four."""
    p, q = X.shape[1], out.shape[0]
    store, rows = np.empty(q * PANEL), np.empty(PANEL, np.int64)
    panel = store.reshape((q, PANEL))
    _clear(out)
    for first in range(0, y.size, PANEL):
        width = min(PANEL, y.size - first)
        for r in range(width):
            rows[r] = first + r
        _gather(X, rows[:width], panel)
        for r in range(width):
            panel[p + 1, r] = y[first + r]
        _accumulate(panel, store, out, store, 0)
    for i in range(q):
        for j in range(q):
            out[i, j] /= max(y.size, 1)


@njit(**_ENTRY)
def descend_moments(
    M: Floats, slots: Ints, jobs: Ints, W: Floats, A: Floats, rho: float, lr: float, steps: int
) -> None:
    """Take full-batch gradient steps on W[jobs[i]], in place, with gradient 2 M[slots[i]] (w, -1)."""
    d = W.shape[1]
    g = np.empty(d)
    for s in range(jobs.size):
        m, w, a = M[slots[s]], W[jobs[s]], A[jobs[s]]
        for _ in range(steps):
            for i in range(d):
                total = -m[i, d]
                for j in range(d):
                    total += m[i, j] * w[j]
                g[i] = 2 * total + rho * (w[i] - a[i])
            for i in range(d):
                w[i] -= lr * g[i]


@njit(**_INNER)
def _add_row(x: Floats, y: float, w: Floats, g: Floats) -> Any:
    # r = w'x + b - y; g += 2 r (x, 1); returns r^2
    p = x.size
    r = w[p] - y
    for f in range(p):
        r += w[f] * x[f]
    for f in range(p):
        g[f] += 2 * r * x[f]
    g[p] += 2 * r
    return r * r


@njit(**_ENTRY)
def squares(X: Floats, y: Floats, start: Ints, stop: Ints, jobs: Ints, W: Floats, loss: Floats, G: Floats) -> None:
    """Add the sums of squared residuals and of their gradients over rows start[k] … stop[k], for ``jobs``."""
    for k in jobs:
        w, g, total = W[k], G[k], 0.0
        for r in range(start[k], stop[k]):
            total += _add_row(X[r], y[r], w, g)
        loss[k] += total


@njit(**_ENTRY)
def descend_rows(
    X: Floats, y: Floats, orders: Ints, epochs: int, w: Floats, a: Floats, rho: float, lr: float, batch: int
) -> None:
    """Take one gradient step on w, in place, for every ``batch`` rows, over the orders in turn."""
    g = np.empty(w.size)
    for epoch in range(epochs):
        order = orders[epoch % orders.shape[0]]
        for first in range(0, max(order.size, 1), batch):  # without rows: the proximal term alone
            last = min(first + batch, order.size)
            for j in range(g.size):
                g[j] = 0
            for r in range(first, last):
                _add_row(X[order[r]], y[order[r]], w, g)
            for j in range(g.size):
                w[j] -= lr * (g[j] / max(last - first, 1) + rho * (w[j] - a[j]))
