"""Compiled loops of the models.

Softmax regression reads rows in strips of `STRIP_ROWS`, feature after feature inside a strip: every inner loop runs
over neighbouring rows in vector instructions, and memory is read from beginning to end. A strip stays in the
first-level cache for the scores of all classes; a panel is a few strips, and its scores stay there until its gradient
is done, for which every four features of it are read once more from wherever they are. After its features a row
carries a 1 (the intercept), then zeros up to a multiple of four; zero rows pad the last strip of a device. Parameters
are matrices of the same shape: classes (an even number, the last one perhaps unused) by features. The padding changes
no sum.

Each device is computed from beginning to end by one thread, with sums in a fixed order: its result depends
neither on the other devices nor on the number of threads.
"""

from __future__ import annotations

import math
from typing import Any

from numba import njit

from fedfuse.models.panels import PANEL_ROWS, STRIP_ROWS, Panels, Space
from fedfuse.utils.jit import COMMON, kernel
from fedfuse.utils.simd import choose, exp, line, load, prefetch, splat, store, totals
from fedfuse.utils.simd import width as lanes
from fedfuse.utils.typing import Floats, Ints

# Rows after which sums in the rows' own precision are added up in float64.
MAX_SUM_ROWS = 16 * PANEL_ROWS
# Multiply-adds may be fused. Sums may not be reordered: all processes must get the same bits, whichever compiles.
FASTMATH = {"contract", "nsz", "arcp"}
_INNER: dict[str, Any] = {**COMMON, "fastmath": FASTMATH}


@njit(**_INNER)
def _dot(a: Floats, b: Floats) -> Any:
    # four sums at a time: none waits for another
    whole = a.size // 4 * 4
    s0 = s1 = s2 = s3 = a.dtype.type(0)
    for e in range(0, whole, 4):
        s0, s1 = s0 + a[e] * b[e], s1 + a[e + 1] * b[e + 1]
        s2, s3 = s2 + a[e + 2] * b[e + 2], s3 + a[e + 3] * b[e + 3]
    for e in range(whole, a.size):
        s0 += a[e] * b[e]
    return (s0 + s1) + (s2 + s3)


# ----------------------------------------------------------------------------------------------- panels
# S and L are those of a `Space`: scores, and a gradient in the rows' own precision.


@njit(**_INNER)
def _place(row: int, features: int, width: int, lanes: int) -> int:
    # where these lanes of rows begin; those behind the last are the last once more, and nobody asks for their scores
    row = min(row, width - lanes)
    return row // STRIP_ROWS * STRIP_ROWS * features + row % STRIP_ROWS


@njit(**_INNER)
def _scores(panel: Floats, width: int, W: Floats, S: Floats) -> None:
    # S[c, r] = sum_f W[c, f] x[r, f]; two classes and four lanes of rows at a time stay in registers
    w, n = lanes(panel), line(panel)
    zero = splat(panel.dtype.type(0))
    for r in range(0, width, 4 * w):
        p0, p1 = _place(r, W.shape[1], width, w), _place(r + w, W.shape[1], width, w)
        p2, p3 = _place(r + 2 * w, W.shape[1], width, w), _place(r + 3 * w, W.shape[1], width, w)
        for c in range(0, W.shape[0], 2):
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
            ahead = (r + 4 * w) * W.shape[1] + c // 2 * W.shape[1] * n
            for f in range(W.shape[1]):
                e = f * STRIP_ROWS
                prefetch(panel, ahead + f * n)  # of the rows after these, which may lie far away
                x0, x1, x2, x3 = load(panel, p0 + e), load(panel, p1 + e), load(panel, p2 + e), load(panel, p3 + e)
                a, b = splat(W[c, f]), splat(W[c + 1, f])
                a0, a1, a2, a3 = a0 + a * x0, a1 + a * x1, a2 + a * x2, a3 + a * x3
                b0, b1, b2, b3 = b0 + b * x0, b1 + b * x1, b2 + b * x2, b3 + b * x3
            _put(S, c * PANEL_ROWS + r, a0, a1, a2, a3)
            _put(S, (c + 1) * PANEL_ROWS + r, b0, b1, b2, b3)


@njit(**_INNER)
def _accumulate(panel: Floats, width: int, S: Floats, L: Floats) -> None:
    # L[c, f] += sum_r S[c, r] x[r, f]; two classes and four features at a time stay in registers
    q, w, here = panel.size // width, lanes(panel), 0
    zero, ahead, n = splat(panel.dtype.type(0)), panel.size, line(panel)
    for f in range(0, q, 4):
        for c in range(0, 4 * L.size // (q * w), 2):
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
            for first in range(0, width, STRIP_ROWS):
                e, g = first * q + f * STRIP_ROWS, c * PANEL_ROWS + first
                prefetch(panel, ahead)  # of the next panel
                ahead += n
                for r in range(0, STRIP_ROWS, w):
                    x0, x1 = load(panel, e + r), load(panel, e + STRIP_ROWS + r)
                    x2, x3 = load(panel, e + 2 * STRIP_ROWS + r), load(panel, e + 3 * STRIP_ROWS + r)
                    u, v = load(S, g + r), load(S, g + PANEL_ROWS + r)
                    a0, a1, a2, a3 = a0 + u * x0, a1 + u * x1, a2 + u * x2, a3 + u * x3
                    b0, b1, b2, b3 = b0 + v * x0, b1 + v * x1, b2 + v * x2, b3 + v * x3
            store(L, here, load(L, here) + totals(a0, a1, a2, a3))
            store(L, here + w, load(L, here + w) + totals(b0, b1, b2, b3))
            here += 2 * w


@njit(**_INNER)
def _put(array: Floats, e: int, a: Any, b: Any, c: Any, d: Any) -> None:
    w = lanes(array)
    store(array, e, a)
    store(array, e + w, b)
    store(array, e + 2 * w, c)
    store(array, e + 3 * w, d)


@njit(**_INNER)
def _flush(L: Floats, G: Floats) -> None:
    # G[c, f] += its part of L, which becomes zero
    w, here, zero = lanes(L), 0, splat(L.dtype.type(0))
    for f in range(0, G.shape[1], 4):
        for c in range(G.shape[0]):
            s0 = s1 = s2 = s3 = 0.0
            for k in range(here, here + w, 4):
                s0, s1, s2, s3 = s0 + L[k], s1 + L[k + 1], s2 + L[k + 2], s3 + L[k + 3]
            G[c, f] += s0
            G[c, f + 1] += s1
            G[c, f + 2] += s2
            G[c, f + 3] += s3
            store(L, here, zero)
            here += w


@njit(**_INNER)
def _due(first: int, rows: int) -> bool:
    # whether L is to be added up after the panel that begins with this row, of so many
    return (first + PANEL_ROWS) % MAX_SUM_ROWS == 0 or first + PANEL_ROWS >= rows


@njit(**_INNER)
def _tops(S: Floats, classes: int, width: int, top: Floats) -> None:
    # top[r] = max_c S[c, r]
    for r in range(0, width, lanes(S)):
        largest = load(S, r)
        for c in range(1, classes):
            score = load(S, c * PANEL_ROWS + r)
            largest = choose(score, largest, score, largest)
        store(top, r, largest)


@njit(**_INNER)
def _softmax(S: Floats, classes: int, width: int, top: Floats, share: Floats) -> None:
    # share[r] = 1 / sum_c exp(S[c, r] - top[r]); S[c, r] <- exp(S[c, r] - top[r]) share[r]
    w = lanes(S)
    zero, one = splat(S.dtype.type(0)), splat(S.dtype.type(1))
    for r in range(0, width, 2 * w):  # two at a time: one waits for its next term, the other computes
        a, b = zero, zero
        for c in range(classes):
            here = c * PANEL_ROWS + r
            u, v = exp(load(S, here) - load(top, r)), exp(load(S, here + w) - load(top, r + w))
            store(S, here, u)
            store(S, here + w, v)
            a, b = a + u, b + v
        a, b = one / a, one / b
        for c in range(classes):
            here = c * PANEL_ROWS + r
            store(S, here, load(S, here) * a)
            store(S, here + w, load(S, here + w) * b)
        store(share, r, a)
        store(share, r + w, b)


@njit(**_INNER)
def _helpers(S: Floats) -> tuple[Floats, Floats]:
    # the last two parts of S: largest scores of rows, and shares
    return S[S.size - 2 * PANEL_ROWS : S.size - PANEL_ROWS], S[S.size - PANEL_ROWS :]


@njit(**_INNER)
def _filled(rows: int) -> int:
    return (rows + STRIP_ROWS - 1) // STRIP_ROWS * STRIP_ROWS


@njit(**_INNER)
def _panel(data: Panels, device: int, first: int) -> tuple[Floats, int, Ints, Floats]:
    # the panel that begins with this row of the device, its width, and the classes and weights (if any) of true rows
    rows = min(PANEL_ROWS, data.counts[device] - first)
    width, a, q = _filled(rows), data.start[device] + first, data.features
    return data.X[a * q : (a + width) * q], width, data.y[a : a + rows], data.weights[a : a + rows]


@njit(**_INNER)
def _weigh(S: Floats, weights: Floats, classes: int) -> None:
    # S[c, r] <- weights[r] S[c, r], where rows have weights
    for c in range(classes):
        for r in range(weights.size):
            S[c * PANEL_ROWS + r] *= weights[r]


@njit(**_INNER)
def _add_gradient(
    panel: Floats, width: int, y: Ints, weights: Floats, classes: int, W: Floats, L: Floats, S: Floats
) -> None:
    # L += sum over the panel's rows of (softmax(W x) - e_y) x', by their weights
    top, share = _helpers(S)
    _scores(panel, width, W, S)
    _tops(S, classes, width, top)
    _softmax(S, classes, width, top, share)
    for r in range(y.size):
        S[y[r] * PANEL_ROWS + r] -= 1
    _weigh(S, weights, classes)
    _accumulate(panel, width, S, L)


@njit(**_INNER)
def _step(W: Floats, A: Floats, G: Floats, total: float, rho: float, lr: float) -> None:
    # W <- W - lr (G / total + rho (W - A))
    share = 1 / total if total > 0 else 1.0
    for c in range(W.shape[0]):
        for f in range(W.shape[1]):
            W[c, f] -= lr * (share * G[c, f] + rho * (W[c, f] - A[c, f]))


# -------------------------------------------------------------------------------- softmax: what is called


@kernel(fastmath=FASTMATH)
def descend(
    data: Panels, devices: Ints, jobs: Ints, W: Floats, A: Floats, rho: float, lr: float, steps: int, space: Space
) -> None:
    """Take full-batch gradient steps on W[k], in place, for k in ``jobs``."""
    S, L, G = space
    for k in jobs:
        w, a, device = W[k], A[k], devices[k]
        for _ in range(steps):
            G[:] = 0
            for first in range(0, data.counts[device], PANEL_ROWS):
                panel, width, y, weights = _panel(data, device, first)
                _add_gradient(panel, width, y, weights, data.classes, w, L, S)
                if _due(first, data.counts[device]):
                    _flush(L, G)
            _step(w, a, G, data.totals[device], rho, lr)


@njit(**_INNER)
def _gather(X: Floats, chosen: Ints, panel: Floats, q: int) -> None:
    # the rows X[chosen] as a panel, then 1 for the intercept; zeros where there is nothing
    p = X.shape[1]
    for first in range(0, chosen.size, STRIP_ROWS):
        strip = panel[first * q : (first + STRIP_ROWS) * q]
        rows = min(STRIP_ROWS, chosen.size - first)
        for r in range(rows):
            x = X[chosen[first + r]]
            for f in range(p):
                strip[f * STRIP_ROWS + r] = x[f]
            strip[p * STRIP_ROWS + r] = 1
        for f in range(q):
            for r in range(rows if f <= p else 0, STRIP_ROWS):
                strip[f * STRIP_ROWS + r] = 0


@kernel(fastmath=FASTMATH)
def descend_batches(
    X: Floats, y: Ints, weights: Floats, classes: int, orders: Ints, W: Floats, A: Floats, rho: float, lr: float,
    batch: int, space: Space, room: Floats, labels: Ints, heavy: Floats,
) -> None:  # fmt: skip
    """Take a gradient step on W, in place, for every ``batch`` rows in each of the orders (epochs x rows).

    ``room``, ``labels`` and ``heavy`` are for the rows of a panel, their classes and their weights.
    """
    S, L, G = space
    q, n = W.shape[1], orders.shape[1]
    for epoch in range(orders.shape[0]):
        for first in range(0, max(n, 1), batch):  # without rows: the proximal term alone
            last, total = min(first + batch, n), 0.0
            G[:] = 0
            for a in range(first, last, PANEL_ROWS):
                chosen = orders[epoch, a : min(a + PANEL_ROWS, last)]
                width = _filled(chosen.size)
                panel = room[: q * width]
                _gather(X, chosen, panel, q)
                for r in range(chosen.size):
                    labels[r] = y[chosen[r]]
                    heavy[r] = weights[chosen[r]]
                    total += heavy[r]
                _add_gradient(panel, width, labels[: chosen.size], heavy[: chosen.size], classes, W, L, S)
                if _due(a - first, last - first):
                    _flush(L, G)
            _step(W, A, G, total, rho, lr)


@njit(**_INNER)
def _hits(S: Floats, y: Ints, weights: Floats, top: Floats) -> float:
    # how many rows have y as the first class with the largest score
    hits = 0.0
    for r in range(y.size):
        if S[y[r] * PANEL_ROWS + r] == top[r]:
            best = 0
            while S[best * PANEL_ROWS + r] < top[r]:
                best += 1
            if best == y[r]:
                hits += weights[r] if weights.size else 1.0
    return hits


@njit(**_INNER)
def _gap(S: Floats, y: Ints, weights: Floats, top: Floats) -> float:
    # sum_r (top[r] - S[y[r], r])
    gap = 0.0
    for r in range(y.size):
        away = top[r] - S[y[r] * PANEL_ROWS + r]
        gap += away * weights[r] if weights.size else away
    return gap


@njit(**_INNER)
def _logs(share: Floats, rows: int, weights: Floats) -> float:
    # sum_r log(share[r]), of products of a strip: none is so small that a double could not hold it
    total = 0.0
    if weights.size:
        for r in range(rows):
            total += weights[r] * math.log(share[r])
        return total
    share[rows : _filled(rows)] = 1
    for first in range(0, rows, STRIP_ROWS):
        a = b = c = d = 1.0
        for r in range(first, first + STRIP_ROWS, 4):
            a, b, c, d = a * share[r], b * share[r + 1], c * share[r + 2], d * share[r + 3]
        total += math.log((a * b) * (c * d))
    return total


@kernel(fastmath=FASTMATH)
def evaluate(
    data: Panels, devices: Ints, jobs: Ints, W: Floats, loss: Floats, hits: Floats, G: Floats, space: Space
) -> None:
    """Add the sums over rows of loss, hits and gradient for k in ``jobs``; of those that are not empty."""
    S, L, _ = space
    top, share = _helpers(S)
    for k in jobs:
        w, device = W[k], devices[k]
        for first in range(0, data.counts[device], PANEL_ROWS):
            panel, width, y, weights = _panel(data, device, first)
            _scores(panel, width, w, S)
            _tops(S, data.classes, width, top)
            if hits.size:
                hits[k] += _hits(S, y, weights, top)
            if loss.size:
                loss[k] += _gap(S, y, weights, top)
            if loss.size or G.size:
                _softmax(S, data.classes, width, top, share)
            if loss.size:
                loss[k] -= _logs(share, y.size, weights)
            if G.size:
                for r in range(y.size):
                    S[y[r] * PANEL_ROWS + r] -= 1
                _weigh(S, weights, data.classes)
                _accumulate(panel, width, S, L)
                if _due(first, data.counts[device]):
                    _flush(L, G[k])


@njit(**_INNER)
def _curve(P: Floats, S: Floats, classes: int, width: int) -> None:
    # S[c, r] <- P[c, r] (S[c, r] - sum_k P[k, r] S[k, r])
    mean = S[S.size - PANEL_ROWS :]
    for r in range(width):
        mean[r] = 0
    for c in range(classes):
        s, p = S[c * PANEL_ROWS : (c + 1) * PANEL_ROWS], P[c * PANEL_ROWS : (c + 1) * PANEL_ROWS]
        for r in range(width):
            mean[r] += p[r] * s[r]
    for c in range(classes):
        s, p = S[c * PANEL_ROWS : (c + 1) * PANEL_ROWS], P[c * PANEL_ROWS : (c + 1) * PANEL_ROWS]
        for r in range(width):
            s[r] = p[r] * (s[r] - mean[r])


@njit(**_INNER)
def _hessian_times(data: Panels, device: int, P: Floats, V: Floats, v: Floats, H: Floats, S: Floats, L: Floats) -> None:
    # H = (hessian of the device's mean loss) V; v is room for V / total in the rows' precision
    total = data.totals[device] if data.totals[device] > 0 else 1.0
    for c in range(V.shape[0]):
        for f in range(V.shape[1]):
            v[c, f] = V[c, f] / total
            H[c, f] = 0
    for first in range(0, data.counts[device], PANEL_ROWS):
        panel, width, _, weights = _panel(data, device, first)
        _scores(panel, width, v, S)
        _curve(P[first // PANEL_ROWS], S, data.classes, width)
        _weigh(S, weights, data.classes)
        _accumulate(panel, width, S, L)
        if _due(first, data.counts[device]):
            _flush(L, H)


@njit(**_INNER)
def _curvature(V: Floats, H: Floats, rho: float) -> tuple[float, float]:
    # H <- H + rho V; returns V.H and V.V
    along, length = 0.0, 0.0
    for c in range(V.shape[0]):
        for f in range(V.shape[1]):
            H[c, f] += rho * V[c, f]
        along += _dot(V[c], H[c])
        length += _dot(V[c], V[c])
    return along, length


@njit(**_INNER)
def _advance(D: Floats, R: Floats, V: Floats, H: Floats, t: float) -> float:
    # D <- D + t V, R <- R - t H; returns R.R
    square = 0.0
    for c in range(D.shape[0]):
        for f in range(D.shape[1]):
            D[c, f] += t * V[c, f]
            R[c, f] -= t * H[c, f]
        square += _dot(R[c], R[c])
    return square


@kernel(fastmath=FASTMATH)
def newton_direction(
    data: Panels, device: int, W: Floats, rho: float, accuracy: float, most: int, room: Floats, v: Floats, P: Floats,
    space: Space,
) -> None:  # fmt: skip
    """Add to D the solution of (hessian at W + rho) D = R, by at most ``most`` conjugate-gradient steps.

    ``room`` is D, R and space for two more, ``v`` is space for one like W, and P for scores of every panel.
    """
    D, R, V, H = room[0], room[1], room[2], room[3]
    S, L, _ = space
    n = data.counts[device]
    for first in range(0, n, PANEL_ROWS):
        panel, width, _, _ = _panel(data, device, first)
        p = P[first // PANEL_ROWS]
        top, share = _helpers(p)
        _scores(panel, width, W, p)
        _tops(p, data.classes, width, top)
        _softmax(p, data.classes, width, top, share)
    square, last, enough = _advance(D, R, V, H, 0.0), 1.0, 0.0
    for step in range(most):
        for c in range(V.shape[0]):
            for f in range(V.shape[1]):
                V[c, f] = R[c, f] + (square / last * V[c, f] if step else 0.0)
        _hessian_times(data, device, P, V, v, H, S, L)
        along, length = _curvature(V, H, rho)
        if along <= 1e-12 * length:  # flat, as far as rounding can tell
            break
        last = square
        square = _advance(D, R, V, H, square / along)
        enough = accuracy * accuracy * last if step == 0 else enough
        if square <= enough:
            break


# -------------------------------------------------------------------------------- linear regression, float64


@kernel(fastmath=FASTMATH)
def descend_rows(
    X: Floats, y: Floats, weights: Floats, orders: Ints, epochs: int, w: Floats, a: Floats, rho: float, lr: float,
    batch: int, g: Floats,
) -> None:  # fmt: skip
    """Take one gradient step on w, in place, for every ``batch`` rows, over the orders in turn; g is space for it."""
    p = X.shape[1]
    for epoch in range(epochs):
        order = orders[epoch % orders.shape[0]]
        for first in range(0, max(order.size, 1), batch):  # without rows: the proximal term alone
            last = min(first + batch, order.size)
            for j in range(g.size):
                g[j] = 0
            total = 0.0
            for i in range(first, last):
                x, weight = X[order[i]], weights[order[i]]
                r = (_dot(w[:p], x) + w[p] - y[order[i]]) * weight
                total += weight
                for f in range(p):
                    g[f] += 2 * r * x[f]
                g[p] += 2 * r
            for j in range(g.size):
                w[j] -= lr * (g[j] / (total if total > 0 else 1.0) + rho * (w[j] - a[j]))
