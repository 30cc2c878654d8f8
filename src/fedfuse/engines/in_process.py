"""All devices in this process, many of them in one compiled call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.data.federation import Federation, Part, Rows
from fedfuse.engines.base import Engine, pack_replies, unpack_replies
from fedfuse.errors import FedfuseError
from fedfuse.models.model import Model, plain
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.privacy import Noise
from fedfuse.protocol.reply_checks import largest_value
from fedfuse.protocol.sufficient_statistics import written
from fedfuse.protocol.tasks import (
    SUMMARISED,
    Add,
    Choose,
    EvaluateModels,
    FitLocally,
    Gradient,
    GradientCosine,
    Install,
    Into,
    Losses,
    MetaTrain,
    Order,
    PeekModel,
    Reply,
    Rescale,
    Score,
    SendMoments,
    SendSufficientStatistics,
    Subspace,
    Train,
)
from fedfuse.utils.random import generator
from fedfuse.utils.threads import one_blas_thread
from fedfuse.utils.typing import Floats, Ints

EPSILON = 1e-3  # step of the difference that stands for a Hessian


class InProcess(Engine):
    """Devices as slices of one federation's arrays."""

    def __init__(
        self,
        federation: Federation,
        model: Model[Any],
        *,
        seed: int = 0,
        dtype: npt.DTypeLike = np.float32,
        noise: Noise | None = None,
    ) -> None:
        self._federation = federation
        self._noise = noise
        self._model = model
        self._seed = seed
        self._dtype = np.dtype(dtype)
        self._own: Floats = np.zeros((federation.m, model.d), self._dtype)
        self._loaded: dict[str, Any] = {}
        self._scaled: Rows | None = None
        self._waiting: list[Order] = []
        self._done: list[Reply] = []

    def submit(self, orders: Sequence[Order]) -> None:
        self._waiting.extend(orders)

    def collect(self, patience: float | None = None) -> list[Reply]:
        self._perform_all()
        replies, self._done = self._done, []
        return replies

    def pack(self) -> dict[str, npt.NDArray[Any]]:
        self._perform_all()
        return pack_replies(self._done, "inprocess") if self._done else {}

    def unpack(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        self._done = unpack_replies(arrays, "inprocess") if "inprocess_heads" in arrays else []

    def _perform_all(self) -> None:
        # training may diverge; what is not finite is refused by whoever gets it, and needs no warning
        with one_blas_thread(), np.errstate(all="ignore"):
            for alike in group_orders(self._waiting):
                self._done += self._perform(alike)
        self._waiting = []

    def load(self, part: Part) -> Any:
        """Return one part of the data in the model's own form (made once)."""
        if part not in self._loaded:
            self._loaded[part] = self._model.load(self._rows(part), self._dtype)
        return self._loaded[part]

    def _load_raw(self, part: Part) -> Any:
        if f"raw {part}" not in self._loaded:
            self._loaded[f"raw {part}"] = self._model.load(self._federation.rows(part), self._dtype)
        return self._loaded[f"raw {part}"]

    def _rows(self, part: Part) -> Rows:
        a, b = self._federation.rows(part), self._scaled
        return a if b is None else Rows(b.X, b.y, a.start, a.stop)

    def _perform(self, orders: list[Order]) -> list[Reply]:
        devices = np.array([o.device for o in orders], dtype=np.int64)
        tasks: list[Any] = [o.task for o in orders]
        values: Sequence[Floats]
        if self._noise is not None:
            _check_protected(tasks[0])
        match tasks[0]:
            case Install():
                self._own[devices] = np.stack([t.model for t in tasks])
                values = [np.empty(0)] * len(tasks)
            case Add():
                self._own[devices] += np.stack([t.update for t in tasks])
                values = [np.empty(0)] * len(tasks)
            case PeekModel():
                values = list(self._own[devices])
            case Train():
                values = self._train(orders, devices)
            case MetaTrain():
                values = self._meta_train(orders, devices)
            case Choose():
                values = self._choose(orders, devices)
            case Subspace():
                values = [_subspace(self._rows(t.rows), i, t) for t, i in zip(tasks, devices, strict=True)]
            case Score(rows=rows, raw=raw):
                data = self._load_raw(rows) if raw else self.load(rows)
                scores = self._model.metric(data, devices, np.stack([t.model for t in tasks]))
                values = list(np.nan_to_num(scores)[:, None])
            case FitLocally(ridges=ridges):
                values = self._alone(ridges, devices)
            case Gradient():
                values = self._gradients(tasks, devices)
            case Losses():
                values = self._losses(tasks, devices)
            case EvaluateModels():
                values = [self._judgement(t, i) for t, i in zip(tasks, devices, strict=True)]
            case GradientCosine():
                values = self._residues(np.stack([t.at for t in tasks]), np.stack([t.common for t in tasks]), devices)
            case SendMoments():
                values = [_moments(self._rows(t.rows), i, t.columns) for t, i in zip(tasks, devices, strict=True)]
            case SendSufficientStatistics():
                values = [written([_table(self._rows(part), i) for part in SUMMARISED]) for i in devices]
            case Rescale():
                self._rescale(tasks[0])  # the same for every device
                values = [np.empty(0)] * len(tasks)
        return [Reply(o.device, o.round, v) for o, v in zip(orders, values, strict=True)]

    def _rescale(self, task: Rescale | None) -> None:
        """Use rows with columns on this scale, or as they are."""
        self._loaded, self._scaled = {}, None  # let go of the old ones first
        if task is not None:
            self._scaled = _rescaled(self._federation.rows("all"), task.shift, task.scale)

    def _alone(self, ridges: tuple[float, ...], devices: Ints) -> Sequence[Floats]:
        zero, work = np.zeros((len(devices), self._model.d), self._dtype), Work(solver="exact")
        losses, models = [], []
        for ridge in ridges:
            w = self._model.train(self.load("train"), devices, zero, zero, ridge, work)
            losses.append(self._model.losses(self.load("validation"), devices, w))
            models.append(self._model.train(self.load("train+validation"), devices, zero, zero, ridge, work))
        return list(np.stack(models)[np.argmin(losses, axis=0), np.arange(len(devices))])

    def _gradients(self, tasks: list[Gradient], devices: Ints) -> Sequence[Floats]:
        at, first = np.stack([t.at for t in tasks]), tasks[0]
        parts = [self._model.gradients(self.load(first.rows), devices, at)]
        parts += [self._model.losses(self.load(part), devices, at)[:, None] for part in first.also]
        return list(np.hstack(parts))

    def _losses(self, tasks: list[Losses], devices: Ints) -> Sequence[Floats]:
        counts = [len(t.models) for t in tasks]
        models = np.concatenate([t.models for t in tasks])
        losses = self._model.losses(self.load(tasks[0].rows), np.repeat(devices, counts), models)
        return np.split(losses, np.cumsum(counts)[:-1])

    def _residues(self, at: Floats, common: Floats, devices: Ints) -> Sequence[Floats]:
        parts: tuple[Part, ...] = ("train", "validation")
        a, b = (self._model.gradients(self.load(part), devices, at) - common for part in parts)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        return list((np.einsum("kd,kd->k", a, b) / np.maximum(lengths, 1e-30))[:, None])

    def _judgement(self, task: EvaluateModels, device: int) -> Floats:
        models = np.vstack([self._own[device], task.models]) if task.own else task.models
        X, y = self._rows(task.rows).of(device)
        losses = self._model.row_losses(models, X, y)
        n = losses.shape[1]
        if not n:
            return np.zeros(task.floats_up(self._model.d))
        weights = np.full(n, 1 / n)
        if task.balanced and self._model.goal == "classification":
            _, place, counts = np.unique(y, return_inverse=True, return_counts=True)
            weights = 1 / (len(counts) * counts[place])
        means = losses @ weights
        away = (losses - means[:, None]) * weights
        covariance = away @ away.T * n / max(n - 1, 1)
        return np.concatenate([means, covariance[np.triu_indices(len(models))]])

    def _train(self, orders: list[Order], devices: Ints) -> Sequence[Floats]:
        tasks = [o.task for o in orders if isinstance(o.task, Train)]
        first = tasks[0]
        start = self._starts(tasks, devices)
        anchor = None if first.anchor is None else _stack(t.anchor for t in tasks)
        if anchor is None and first.rho:
            anchor = np.zeros_like(start[:, self._model.fused])
        drawing = first.work.batch is not None or not self._model.convex
        rngs = self._generators(orders) if drawing else None
        new = self._model.train(self.load(first.rows), devices, start, anchor, first.rho, first.work, rngs)
        if self._noise is not None:  # what the device goes on with is what it has sent
            new = start + self._protected(orders, new - start)
        if first.send != "update":
            # a device whose training diverged goes on from the last model that the server could use
            usable = np.abs(new).max(axis=1) <= largest_value(self._model.d, self._dtype)
            self._own[devices[usable]] = new[usable]
        sent = {
            "model": new,
            "part": new[:, self._part(first.into)],
            "update": new - start,
            "nothing": new[:, :0],
        }[first.send]
        if first.score is None:
            return list(sent)
        scores = np.nan_to_num(self._model.metric(self.load(first.score), devices, new))
        return list(np.column_stack([sent, scores]))

    def _protected(self, orders: list[Order], changes: Floats) -> Floats:
        """Return changes as they may be sent."""
        noise = self._noise
        if noise is None:
            return changes
        return _stack(noise.protect(c, self._noise_source(o)) for c, o in zip(changes, orders, strict=True))

    def _noise_source(self, order: Order) -> np.random.Generator:
        # for experiments: who knows the seed knows the noise, so that devices of real federations have another
        return generator(self._seed, "noise", order.round + 2, order.device)

    def _starts(self, tasks: list[Train], devices: Ints) -> Floats:
        """Return the devices' own models, with the part that was sent in its place."""
        own: Floats = self._own[devices]
        if tasks[0].start is not None:
            own[:, self._part(tasks[0].into)] = _stack(t.start for t in tasks)
        return own

    def _part(self, into: Into) -> slice:
        fused = self._model.fused
        return {"all": slice(0, self._model.d), "shared": slice(0, fused.start), "fused": fused}[into]

    def _generators(self, orders: list[Order]) -> list[np.random.Generator]:
        return [generator(self._seed, *(("batches", o.round) if o.round >= 0 else ("look",)), o.device) for o in orders]

    def _meta_train(self, orders: list[Order], devices: Ints) -> Sequence[Floats]:
        tasks = [o.task for o in orders if isinstance(o.task, MetaTrain)]
        first, w, rngs = tasks[0], _stack(t.start for t in tasks).astype(self._dtype), self._generators(orders)
        steps = np.full(len(devices), plain(first.work)[0])
        if first.work.batch is not None and first.work.unit == "epochs":  # passes over a device's own rows
            steps *= -(-self._rows(first.rows).counts[devices] // first.work.batch)
        speed = np.zeros_like(w)  # of momentum, from rest
        for k in range(int(steps.max())):
            still = np.flatnonzero(steps > k)
            slope = self._meta_gradient(w[still], devices[still], first, [rngs[i] for i in still])
            speed[still] = first.work.momentum * speed[still] + slope + first.work.decay * w[still]
            w[still] -= plain(first.work)[1] * speed[still]
        start = _stack(t.start for t in tasks).astype(self._dtype)
        return list(start + self._protected(orders, w - start) if self._noise is not None else w)

    def _meta_gradient(self, w: Floats, devices: Ints, task: MetaTrain, rngs: list[np.random.Generator]) -> Floats:
        """Return the gradient of the loss after one step; each of its own is on another batch."""
        batches = (self._batch(devices, task, rngs) for _ in range(3))
        adapted = w - task.inner * self._model.gradients(*next(batches), w)
        g = self._model.gradients(*next(batches), adapted)
        if task.hessian:  # both ends of the difference are on the same batch
            data, who = next(batches)
            ends = [self._model.gradients(data, who, w + sign * EPSILON * g) for sign in (1, -1)]
            g = g - task.inner * (ends[0] - ends[1]) / (2 * EPSILON)
        return np.asarray(g)

    def _batch(self, devices: Ints, task: MetaTrain, rngs: list[np.random.Generator]) -> tuple[Any, Ints]:
        """Return rows, and the devices' places in them: all rows, or some of each device that are drawn anew."""
        if task.work.batch is None:
            return self.load(task.rows), devices
        rows = self._rows(task.rows)
        drawn = [rng.permutation(int(rows.counts[i]))[: task.work.batch] for rng, i in zip(rngs, devices, strict=True)]
        index = np.concatenate([rows.start[i] + d for i, d in zip(devices, drawn, strict=True)])
        stop = np.cumsum([len(d) for d in drawn])
        some = Rows(rows.X[index], rows.y[index], np.concatenate([[0], stop[:-1]]), stop)
        return self._model.load(some, self._dtype), np.arange(len(devices))

    def _choose(self, orders: list[Order], devices: Ints) -> Sequence[Floats]:
        tasks = [o.task for o in orders if isinstance(o.task, Choose)]
        first, data, heads = tasks[0], self.load(tasks[0].rows), len(tasks[0].heads)
        models = _stack(np.hstack([np.tile(t.shared, (heads, 1)), t.heads]) for t in tasks).astype(self._dtype)
        each = np.repeat(devices, heads)
        losses = self._model.losses(data, each, models.reshape(len(each), -1)).reshape(-1, heads)
        if first.temperature:
            from scipy.special import softmax  # a process for one message is spared it

            weights = softmax(-losses / first.temperature, axis=1)
            start, each = models.reshape(len(each), -1), each
        else:
            best = losses.argmin(axis=1)
            weights = np.eye(heads)[best]
            start, each = models[np.arange(len(tasks)), best], devices
        if first.work is None:
            answers = self._model.gradients(data, each, start)
        else:
            repeated = [o for o in orders for _ in range(len(each) // len(orders))]
            drawing = first.work.batch is not None or not self._model.convex
            rngs = self._generators(repeated) if drawing else None
            answers = self._model.train(data, each, start, None, 0.0, first.work, rngs)
        return list(np.hstack([answers.reshape(len(tasks), -1), weights]))


_PROTECTED = (Install, Add, Rescale, Train, MetaTrain)


def _check_protected(task: Any) -> None:
    """Raise an error for a task whose answer cannot be protected by noise on a change."""
    if not isinstance(task, _PROTECTED) or getattr(task, "score", None) is not None:
        raise FedfuseError(
            f"a device that protects its rows by noise does not answer {type(task).__name__}: use fpfc with a lambda "
            "and refit=no, or fedavg"
        )


def _stack(vectors: Any) -> Floats:
    return np.stack(list(vectors))


def group_orders(orders: Sequence[Order]) -> list[list[Order]]:
    """Put orders together that differ only in their vectors, so that each lot is one compiled call."""
    lots: dict[Any, list[Order]] = {}
    for order in orders:
        task = order.task
        key: tuple[Any, ...] = (type(task),)
        if isinstance(task, Train):
            given = (task.start is None, task.anchor is None, task.into, task.send)
            key = (Train, task.work, task.rho, task.rows, task.score, *given)
        elif isinstance(task, MetaTrain):
            key = (MetaTrain, task.work, task.inner, task.hessian, task.rows)
        elif isinstance(task, Choose):
            key = (Choose, len(task.heads), task.work, task.temperature, task.rows)
        elif isinstance(task, Score):
            key = (Score, task.rows, task.raw)
        elif isinstance(task, Gradient):
            key = (Gradient, task.rows, task.also)
        elif isinstance(task, Losses):
            key = (Losses, task.rows)
        lots.setdefault(key, []).append(order)
    return list(lots.values())


def _rescaled(rows: Rows, shift: Floats, scale: Floats) -> Rows:
    p = rows.X.shape[1]
    y = (rows.y - shift[p]) / scale[p] if len(shift) > p else rows.y
    return Rows((rows.X - shift[:p]) / scale[:p], y, rows.start, rows.stop)


def _subspace(rows: Rows, device: int, task: Subspace) -> Floats:
    X, y = rows.of(device)
    lots = [X[y == c] for c in range(task.classes)] if task.classes else [X]
    bases = [_leading(lot, task.p) for lot in lots if len(lot)]
    return np.concatenate([basis.T.ravel() for basis in bases])


def _leading(X: Floats, p: int) -> Floats:
    """Return the first left singular vectors of X' (features x p), none with a negative sum."""
    X = np.asarray(X, dtype=np.float64)
    if len(X) > X.shape[1]:  # of X = QR, where Q is large and R small, X' and R' have the same
        X = np.asarray(np.linalg.qr(X, mode="r"))
    U = np.linalg.svd(X.T, full_matrices=False)[0][:, :p]
    return np.asarray(U * np.where(U.sum(axis=0) < 0, -1.0, 1.0))


def _table(rows: Rows, device: int) -> Floats:
    """Return a device's columns, the target last."""
    return np.column_stack(rows.of(device)).astype(np.float64)


def _moments(rows: Rows, device: int, columns: int) -> Floats:
    X = rows.of(device)[0]
    table = _table(rows, device) if columns > X.shape[1] else X
    return np.concatenate([table.mean(axis=0), np.square(table).mean(axis=0)])
