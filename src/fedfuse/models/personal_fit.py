"""Personal models: a device's own rows draw its model away from a centre, judged by leave-one-out at home.

A device minimises, over its n rows and columns that are standardised over the federation,

    sum_r loss_r(w) / s^2 + sum_j |w_j - c_j|^2 / (2 v_j)

where c is the centre, v_j how much devices differ in column j, and s^2 half the noise of its rows (1 for classes).
That is the mode of the posterior of w where devices' models are normal around c (empirical Bayes; a mixed model). The
inverse Hessian there is its covariance, and also says what each row would be predicted as without it (approximate
leave-one-out, exact for squared errors). Everything is computed for many devices at once, in double precision.

References
----------
N. Laird, J. Ware. Random-effects models for longitudinal data. Biometrics 1982.
D. MacKay. Bayesian interpolation. Neural Computation 1992 (the update of the variances, `grouping.personal`).
K. Rad, A. Maleki. A scalable estimate of the out-of-sample prediction error via approximate leave-one-out. JRSS B 2020.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfuse.data.federation import Rows
from fedfuse.models.model import Model
from fedfuse.protocol.tasks import JudgePersonalModels, SendPosterior
from fedfuse.utils.typing import Bools, Floats, Ints

MAX_NEWTON_STEPS, MAX_HALVINGS, NEWTON_TOLERANCE = 25, 8, 1e-7
# How many rows of average noise a device's own estimate of its noise is drawn to, and how often it is renewed.
PRIOR_NOISE_ROWS, NOISE_UPDATES = 3.0, 2
# Numbers of a Hessian matrix that are computed at once.
MAX_HESSIAN_NUMBERS = 20_000_000
# The same where rows are left out, of copies that are read over and over again: they fit into a processor's cache.
MAX_FITTED_NUMBERS = 500_000
# How far a logit may move for one Newton step to be trusted; beyond, the last step of a fit (the error is its square).
MAX_LOGIT_STEP, COARSE_TOLERANCE = 0.5, 0.03
# What is left of a row's weight where the model goes through it: such a row is not predicted without it.
MIN_FREEDOM = 1e-6
# Rows of standardised columns, for each parameter, that a device's curvature is mixed with.
RIDGE_ROWS = 0.1
# Variance of a column, over that in the federation, below which a device cannot tell what it does: so it does nothing.
MIN_VARIANCE = 1e-6


@dataclass(frozen=True)
class DeviceTables:
    """Rows of k devices side by side: k x n x columns (the last is 1), targets, and weights of rows (0: none there)."""

    Z: Floats
    y: Floats
    there: Floats
    classes: int

    @property
    def counts(self) -> Floats:
        return np.asarray(self.there.sum(axis=1))

    @property
    def outputs(self) -> int:
        return max(self.classes, 1)

    def of(self, who: Bools | Ints) -> DeviceTables:
        """Return those of these devices."""
        return DeviceTables(self.Z[who], self.y[who], self.there[who], self.classes)

    def predicted(self, W: Floats) -> Floats:
        """Return values or logits (k x n x outputs) by models that are k x outputs x columns."""
        return np.asarray(self.Z @ W.swapaxes(1, 2))

    def losses(self, U: Floats) -> Floats:
        """Return the loss of every row (k x n) with these values or logits: half of it where it is squared."""
        if not self.classes:
            return np.asarray(self.there * np.square(U[..., 0] - self.y) / 2)
        top = U.max(axis=2, keepdims=True)
        right = np.take_along_axis(U - top, self.y[..., None].astype(np.int64), axis=2)[..., 0]
        return np.asarray(self.there * (np.log(np.exp(U - top).sum(axis=2)) - right))

    def derivatives(self, U: Floats) -> tuple[Floats, Floats]:
        """Return gradients (k x n x outputs) and Hessian matrices of these losses by values or logits."""
        if not self.classes:
            return (U - self.y[..., None]) * self.there[..., None], self.there[..., None, None]
        p = np.exp(U - U.max(axis=2, keepdims=True))
        p /= p.sum(axis=2, keepdims=True)
        g = (p - np.eye(self.classes)[self.y.astype(np.int64)]) * self.there[..., None]
        h = p[..., None] * (np.eye(self.classes) - p[..., None, :]) * self.there[..., None, None]
        return g, h

    def hessian(self, h: Floats) -> Floats:
        """Return the Hessian matrices (k x d x d) of summed losses, from those by values or logits."""
        k, _, p = self.Z.shape
        C = self.outputs
        H = np.empty((k, C, p, C, p))
        for a in range(C):
            for b in range(a, C):
                H[:, a, :, b] = (self.Z * h[..., a, b, None]).swapaxes(1, 2) @ self.Z
                H[:, b, :, a] = H[:, a, :, b].swapaxes(1, 2)
        return H.reshape(k, C * p, C * p)

    def means(self, losses: Floats) -> Floats:
        """Return each device's mean loss, of the squared error itself."""
        return np.asarray((1 if self.classes else 2) * losses.sum(axis=1) / np.maximum(self.counts, 1))


@dataclass(frozen=True)
class Posterior:
    """Modes (k x outputs x columns), their covariance matrices (k x d x d), and the noise (k)."""

    W: Floats
    V: Floats
    noise: Floats

    @property
    def variances(self) -> Floats:
        """Of every column, the mean over outputs (k x columns)."""
        return np.asarray(np.einsum("kdd->kd", self.V).reshape(self.W.shape).mean(axis=1))


@dataclass(frozen=True)
class Prior:
    """What devices are drawn to: centres (k x outputs x columns), precisions of the same shape, average noise.

    Where ``noise`` is 0 there is none to be estimated: losses are taken as they are.
    """

    centre: Floats
    precision: Floats
    noise: Floats | float = 0.0

    @classmethod
    def of(cls, centre: Floats, variances: Floats, noise: Floats | float) -> Prior:
        """Return that of models around centres, with these variances of columns."""
        return cls(centre, np.broadcast_to(1 / variances, centre.shape), noise)

    @classmethod
    def alone(cls, tables: DeviceTables, strength: float) -> Prior:
        """Return a ridge on columns that each device standardises for itself, the intercept left free."""
        n = tables.counts[:, None]
        mean = (tables.Z * tables.there[..., None]).sum(axis=1) / np.maximum(n, 1)
        away = (tables.Z - mean[:, None]) * tables.there[..., None]
        variance = np.square(away).sum(axis=1) / np.maximum(n, 1)
        variance[variance < MIN_VARIANCE] = 1.0
        variance[:, -1] = MIN_VARIANCE
        shape = (len(n), tables.outputs, variance.shape[1])
        return cls(np.zeros(shape), np.broadcast_to((n * strength * variance)[:, None], shape))


def posterior(tables: DeviceTables, prior: Prior) -> Posterior:
    """Return where devices' own rows draw their models; the noise of each is estimated on the way."""
    average = np.broadcast_to(np.asarray(prior.noise, np.float64), len(tables.Z))
    noisy = not tables.classes and bool(average.all())
    found = _mode(tables, prior, average if noisy else np.ones(len(tables.Z)), prior.centre)
    for _ in range(NOISE_UPDATES if noisy else 0):
        U = tables.predicted(found.W)
        left = 2 * tables.losses(U).sum(axis=1)
        left += np.einsum("kab,kba->k", tables.hessian(tables.derivatives(U)[1]), found.V)
        own = (left + PRIOR_NOISE_ROWS * average) / (tables.counts + PRIOR_NOISE_ROWS)
        found = _mode(tables, prior, own, found.W)
    return found


def leave_one_out(tables: DeviceTables, prior: Prior) -> Floats:
    """Return values or logits of every row (k x n x outputs) by the device's own model, had it not seen the row.

    One Newton step away, which is exact for squared errors. For classes long steps fall short, most of all those of the
    few rows of a rare class: where logits move by more than `MAX_LOGIT_STEP` the model is fitted without the row.
    """
    found = posterior(tables, prior)
    U = tables.predicted(found.W)
    g, h = (each / found.noise.reshape(-1, *[1] * (each.ndim - 1)) for each in tables.derivatives(U))
    C, p = tables.outputs, tables.Z.shape[2]
    V = found.V.reshape(-1, C, p, C, p)
    S = np.stack([[((tables.Z @ V[:, a, :, b]) * tables.Z).sum(axis=2) for b in range(C)] for a in range(C)])
    S = np.moveaxis(S, (0, 1), (2, 3))
    if C == 1:
        away = S[..., 0] * g / np.maximum(1 - S[..., 0] * h[..., 0], MIN_FREEDOM)
    else:
        away = (S @ np.linalg.solve(np.eye(C) * (1 + MIN_FREEDOM) - h @ S, g[..., None]))[..., 0]
    U = U + away
    if tables.classes:
        _fit_without(tables, prior, found.W, np.argwhere(np.abs(away).max(axis=2) > MAX_LOGIT_STEP), U)
    return np.asarray(U)


def _fit_without(tables: DeviceTables, prior: Prior, W: Floats, rows: Ints, U: Floats) -> None:
    """Put logits into ``U`` for these rows (device, row) by models that are fitted without them."""
    (_, n, p), C = tables.Z.shape, tables.outputs
    size = max(1, MAX_FITTED_NUMBERS // (n * (p + C**2) + (C * p) ** 2))
    for lot in (rows[i : i + size] for i in range(0, len(rows), size)):
        k, r = lot.T
        some, others = tables.of(k), Prior(prior.centre[k], prior.precision[k])
        some.there[np.arange(len(k)), r] = 0
        fitted = _mode(some, others, np.ones(len(k)), W[k], COARSE_TOLERANCE)
        U[k, r] = np.einsum("kcp,kp->kc", fitted.W, some.Z[np.arange(len(k)), r])


def without_device(tables: DeviceTables, centre: Floats, share: Floats) -> Floats:
    """Return what centres (k x outputs x columns) would be without the device, which has this share of its rows.

    One Newton step; the curvature of the other rows is taken to be like that of the device's own, and of standardised
    columns where these are few.
    """
    k, C, p = centre.shape
    g, h = tables.derivatives(tables.predicted(centre))
    n = tables.counts
    few = RIDGE_ROWS * C * p
    H = (tables.hessian(h) + few * np.eye(C * p)) / (n + few)[:, None, None]
    slope = (g.swapaxes(1, 2) @ tables.Z).reshape(k, C * p) / np.maximum(n, 1)[:, None]
    step = np.linalg.solve(H, slope[..., None])[..., 0].reshape(k, C, p)
    return np.asarray(centre + (share / np.maximum(1 - share, MIN_FREEDOM))[:, None, None] * step)


def nearest_centres(tables: DeviceTables, centres: Floats) -> Ints:
    """Return for every row the centre (k x centres x outputs x columns) that suits the device's other rows best."""
    losses = np.stack([tables.losses(tables.predicted(centres[:, g])) for g in range(centres.shape[1])])
    return np.asarray((losses.sum(axis=2, keepdims=True) - losses).argmin(axis=0))


def judge(tables: DeviceTables, asked: JudgePersonalModels, centres: Floats, common: Floats, share: Floats) -> Floats:
    """Return every device's mean loss of every candidate, each of its rows left out in turn (k x candidates).

    Of what devices are ``asked`` for, ``centres`` (k x groups x outputs x columns), the ``common`` one and ``share``
    (k) are given as tables; the others are the same for all.
    """
    centre, noise = np.broadcast_to(common, centres[:, 0].shape), float(asked.noise[0])
    first = np.where((share < 1)[:, None, None], without_device(tables, centres[:, 0], share), centre)
    centres = np.concatenate([first[:, None], centres[:, 1:]], axis=1)
    suited = nearest_centres(tables, centres)
    by_group = _drawn_to_nearest(tables, centres, suited, None)
    loud = noise or np.maximum(tables.means(tables.losses(by_group)), np.finfo(np.float64).tiny)
    scaled = [factor * asked.variances for factor in asked.to_group]
    seen = [_drawn_to_nearest(tables, centres, suited, (variances, loud)) for variances in scaled]
    priors = [Prior.of(centre, factor * asked.variances, loud) for factor in asked.to_common]
    priors += [Prior.alone(tables, strength) for strength in asked.alone]
    seen += [leave_one_out(tables, prior) for prior in priors]
    blends = [np.tensordot(weights, np.stack(seen), 1) for weights in asked.blends]
    return np.stack([tables.means(tables.losses(U)) for U in (by_group, *seen, *blends)], axis=1)


def _drawn_to_nearest(
    tables: DeviceTables, centres: Floats, suited: Ints, drawn: tuple[Floats, Floats | float] | None
) -> Floats:
    """Return values or logits of rows by the centre that suits the other rows best, or by models drawn to it."""
    found = np.zeros((*tables.there.shape, tables.outputs))
    for g in range(centres.shape[1]):
        who = (suited == g).any(axis=1)
        if not who.any():
            continue
        some, centre = tables.of(who), centres[who, g]
        if drawn is None:
            seen = some.predicted(centre)
        else:
            noise = np.broadcast_to(drawn[1], len(who))[who]
            seen = leave_one_out(some, Prior.of(centre, drawn[0], noise))
        found[who] = np.where((suited[who] == g)[..., None], seen, found[who])
    return found


def personal_answers(model: Model[Any], tables: DeviceTables, asked: list[Any]) -> Floats:
    """Return what devices with these rows answer to tasks about models of their own (one row each)."""
    first = asked[0]
    if isinstance(first, JudgePersonalModels):
        centres, share = as_tables(model, np.stack([t.centres for t in asked])), np.array([t.share[0] for t in asked])
        return judge(tables, first, centres, as_tables(model, first.common), share)
    noise = float(first.noise[0])
    if isinstance(first, SendPosterior):
        centre = as_tables(model, np.stack([t.centre for t in asked]))
        found = posterior(tables, Prior.of(centre, first.variances, noise))
        return np.column_stack([as_vectors(model, found.W), found.variances, found.noise])
    centres = as_tables(model, np.stack([t.centres for t in asked]))
    factors, strength = first.strengths[:2], float(first.strengths[2])
    priors = [Prior.of(centres[:, k], factor * first.variances, noise) for k, factor in enumerate(factors)]
    own = [as_vectors(model, posterior(tables, prior).W) for prior in (*priors, Prior.alone(tables, strength))]
    return np.column_stack([np.tensordot(first.weights, np.stack(own), 1), own[-1]])


def in_lots(rows: Rows, devices: Ints, model: Model[Any]) -> Iterator[tuple[Ints, DeviceTables]]:
    """Give devices' rows in lots of similar size, with the places of their devices in ``devices``."""
    counts = rows.counts[devices]
    order, size = np.argsort(counts, kind="stable"), max(1, MAX_HESSIAN_NUMBERS // model.d**2)
    start = 0
    while start < len(order):
        fits = counts[order] <= max(2 * int(counts[order[start]]), 16)
        stop = min(start + size, int(np.count_nonzero(fits)))
        yield order[start:stop], _tables(rows, devices[order[start:stop]], model)
        start = stop


def as_tables(model: Model[Any], w: Floats) -> Floats:
    """Return parameter vectors (… x d) as tables (… x outputs x columns), the intercept last."""
    flat = np.asarray(w, np.float64).reshape(-1, model.d)
    return np.stack([model.coefficients(v) for v in flat]).reshape(*np.shape(w)[:-1], -1, model.n_features + 1)


def as_vectors(model: Model[Any], W: Floats) -> Floats:
    """Return tables (k x outputs x columns) as parameter vectors (k x d)."""
    return np.stack([model.flat(w) for w in W])


def _tables(rows: Rows, devices: Ints, model: Model[Any]) -> DeviceTables:
    n, p = max(int(rows.counts[devices].max(initial=0)), 1), model.n_features
    Z, y, there = np.zeros((len(devices), n, p + 1)), np.zeros((len(devices), n)), np.zeros((len(devices), n))
    for k, i in enumerate(devices):
        X, target, weights = rows.weighted(int(i))
        some = slice(len(target))
        Z[k, some, :p], Z[k, some, p], y[k, some], there[k, some] = X, 1.0, target, weights
    return DeviceTables(Z, y, there, model.n_classes)


def _mode(
    tables: DeviceTables, prior: Prior, noise: Floats, start: Floats, tolerance: float = NEWTON_TOLERANCE
) -> Posterior:
    """Minimise by Newton's method, halving steps of devices whose objective would rise."""
    k, C, p = start.shape
    scale = noise[:, None]

    def objective(W: Floats) -> Floats:
        data = (tables.losses(tables.predicted(W)) / scale).sum(axis=1)
        return np.asarray(data + (prior.precision * np.square(W - prior.centre)).sum(axis=(1, 2)) / 2)

    W, V = start.copy(), np.asarray(prior.precision)
    diagonal = np.arange(C * p)
    for _ in range(MAX_NEWTON_STEPS):
        g, h = tables.derivatives(tables.predicted(W))
        H = tables.hessian(h) / scale[..., None]
        H[:, diagonal, diagonal] += prior.precision.reshape(k, -1) + 1e-12
        slope = (g.swapaxes(1, 2) @ tables.Z) / scale[..., None] + prior.precision * (W - prior.centre)
        V = np.linalg.inv(H)
        step = (V @ slope.reshape(k, -1, 1)).reshape(k, C, p)
        if tables.classes:
            step = _halved(objective, W, step)
        W = W - step
        if not tables.classes or np.abs(step).max(initial=0) < tolerance:
            break
    return Posterior(W, V, noise)


def _halved(objective: Any, W: Floats, step: Floats) -> Floats:
    before = objective(W)
    for _ in range(MAX_HALVINGS):
        worse = objective(W - step) > before + 1e-12 * np.abs(before)
        if not worse.any():
            break
        step = np.where(worse[:, None, None], step / 2, step)
    return step
