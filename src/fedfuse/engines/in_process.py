"""Engine in this process: many devices in one compiled call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedfuse.core.metrics import METRICS
from fedfuse.data.federation import Federation, Part, Rows
from fedfuse.engines.base import Engine, pack_replies, unpack_replies
from fedfuse.errors import FedfuseError
from fedfuse.models.head_fit import head_answers
from fedfuse.models.model import Model, plain
from fedfuse.models.personal_fit import in_lots, personal_answers
from fedfuse.protocol import tasks
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.privacy import Noise
from fedfuse.protocol.reply_checks import largest_value
from fedfuse.protocol.sufficient_statistics import column_means, written
from fedfuse.protocol.tasks import Order, Reply
from fedfuse.utils.random import generator
from fedfuse.utils.threads import one_blas_thread
from fedfuse.utils.typing import Floats, Ints

# Step of the difference quotient that stands for a Hessian.
DIFFERENCE_STEP = 1e-3
EXACT = Work(solver="exact")
# Tasks whose answers can be protected by noise on a change; none with a score can.
_PROTECTED = (tasks.Install, tasks.Add, tasks.Rescale, tasks.Train, tasks.MetaTrain)
# (parameters, positions of their devices, generators of these) -> what is descended along
Slope: TypeAlias = Callable[[Floats, Ints, list[np.random.Generator]], Floats]


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
        self._loaded: dict[tuple[Part, bool], Any] = {}
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
        # training may diverge; the receiver refuses what is not finite, so it needs no warning
        with one_blas_thread(), np.errstate(all="ignore"):
            for alike in group_orders(self._waiting):
                self._done += self._perform(alike)
        self._waiting = []

    def load(self, part: Part, *, raw: bool = False) -> Any:
        """Return one part of the data in the model's own form (made once); ``raw``: never rescaled."""
        if (part, raw) not in self._loaded:
            rows = self._federation.rows(part) if raw else self._rows(part)
            self._loaded[part, raw] = self._model.load(rows, self._dtype)
        return self._loaded[part, raw]

    def _rows(self, part: Part) -> Rows:
        rows, scaled = self._federation.rows(part), self._scaled
        return rows if scaled is None else replace(rows, X=scaled.X, y=scaled.y)

    def _perform(self, orders: list[Order]) -> list[Reply]:
        devices = np.array([o.device for o in orders], dtype=np.int64)
        asked: list[Any] = [o.task for o in orders]
        values: Sequence[Floats] = [np.empty(0)] * len(asked)
        if self._noise is not None and (not isinstance(asked[0], _PROTECTED) or getattr(asked[0], "score", None)):
            raise FedfuseError(
                f"a device that adds noise does not answer {type(asked[0]).__name__}: use fpfc with a "
                "lambda and refit=no, or fedavg"
            )
        match asked[0]:
            case tasks.Install():
                self._own[devices] = _stacked(orders, "model")
            case tasks.Add():
                self._own[devices] += _stacked(orders, "update")
            case tasks.PeekModel():
                values = list(self._own[devices])
            case tasks.Train() as first:
                values = self._train(first, orders, devices)
            case tasks.MetaTrain() as first:
                values = self._meta_train(first, orders, devices)
            case tasks.TrainPair() as first:
                values = self._train_pair(first, orders, devices)
            case tasks.EnvelopeTrain() as first:
                values = self._train_envelope(first, orders, devices)
            case tasks.MixtureTrain():
                values = [self._train_mixture(t, o, i) for t, o, i in zip(asked, orders, devices, strict=True)]
            case tasks.Choose():
                values = self._choose(orders, devices)
            case tasks.Subspace():
                values = [_subspace(self._rows(t.rows), i, t) for t, i in zip(asked, devices, strict=True)]
            case tasks.Score():
                values = self._scores(asked, devices)
            case tasks.FitLocally(ridges=ridges):
                values = self._fit_locally(ridges, devices)
            case tasks.Gradient(rows=rows, also=also):
                at = _stacked(orders, "at")
                losses = [self._model.losses(self.load(part), devices, at)[:, None] for part in also]
                values = list(np.hstack([self._model.gradients(self.load(rows), devices, at), *losses]))
            case tasks.Losses(rows=rows):
                counts, models = [len(t.models) for t in asked], np.concatenate([t.models for t in asked])
                sent = self._model.losses(self.load(rows), np.repeat(devices, counts), models)
                values = np.split(sent, np.cumsum(counts)[:-1])
            case tasks.EvaluateModels():
                values = [self._evaluate(t, i) for t, i in zip(asked, devices, strict=True)]
            case tasks.GradientCosine(curvature=curvature):
                values = self._cosines(_stacked(orders, "at"), _stacked(orders, "common"), devices, curvature)
            case tasks.JudgePersonalModels() | tasks.SendPosterior() | tasks.PeekPersonalModels():
                values = self._personal(asked, devices)
            case tasks.JudgeDrawnModels() | tasks.PeekDrawnModels() if not self._model.convex:
                own = self._rows("train+validation")
                values = [head_answers(self._model, own, i, t) for t, i in zip(asked, devices, strict=True)]
            case tasks.JudgeDrawnModels():
                values = self._judge_drawn(asked, devices)
            case tasks.PeekDrawnModels(variance=variance, alone=alone):
                centres, rows = np.stack([t.model for t in asked]), self.load("train+validation")
                drawn = self._drawn(rows, devices, centres, variance)
                lone = self._drawn(rows, devices, np.zeros_like(centres), alone or 1.0)
                values = list(np.hstack([drawn, lone]))
            case tasks.SendMoments():
                values = [_moments(self._rows(t.rows), i, t.columns) for t, i in zip(asked, devices, strict=True)]
            case tasks.SendSufficientStatistics():
                summarised = [self._rows(part) for part in tasks.SUMMARISED]
                values = [written([(_table(r, i), r.weights_of(i)) for r in summarised]) for i in devices]
            case tasks.Rescale():
                self._rescale(asked[0])  # the same for every device
        return [Reply(o.device, o.round, v) for o, v in zip(orders, values, strict=True)]

    def _rescale(self, task: tasks.Rescale | None) -> None:
        """Use rows with columns on this scale, or as they are."""
        self._loaded, self._scaled = {}, None  # release the old ones first
        if task is not None:
            rows, p, shift, scale = self._federation.rows("all"), self._federation.n_features, task.shift, task.scale
            y = (rows.y - shift[p]) / scale[p] if len(shift) > p else rows.y
            self._scaled = replace(rows, X=(rows.X - shift[:p]) / scale[:p], y=y)

    def _fit_locally(self, ridges: tuple[float, ...], devices: Ints) -> Sequence[Floats]:
        zero = np.zeros((len(devices), self._model.d), self._dtype)
        losses, models = [], []
        for ridge in ridges:
            w = self._model.train(self.load("train"), devices, zero, zero, ridge, EXACT)
            losses.append(self._model.losses(self.load("validation"), devices, w))
            models.append(self._model.train(self.load("train+validation"), devices, zero, zero, ridge, EXACT))
        return list(np.stack(models)[np.argmin(losses, axis=0), np.arange(len(devices))])

    def _judge_drawn(self, asked: list[tasks.JudgeDrawnModels], devices: Ints) -> Sequence[Floats]:
        first, centres = asked[0], np.stack([t.model for t in asked]).astype(self._dtype)
        none = np.zeros_like(centres)
        rows, models = self.load("train"), [centres]
        for centre, variances in ((centres, first.to_group), (none, first.alone)):
            start = centre
            for variance in variances:
                start = self._drawn(rows, devices, centre, variance, start)
                models.append(start)
        return list(np.stack([self._model.losses(self.load("validation"), devices, w) for w in models], axis=1))

    def _drawn(self, rows: Any, devices: Ints, centres: Floats, variance: float, start: Floats | None = None) -> Floats:
        """Return models of own rows with this variance around a centre; ridges are powers of two, to share calls."""
        ridges = np.exp2(np.rint(-np.log2(variance * np.maximum(rows.rows.totals[devices], 1))))
        models: Floats = (centres if start is None else start).astype(self._dtype)
        for ridge in np.unique(ridges):
            who = np.flatnonzero(ridges == ridge)
            models[who] = self._model.train(rows, devices[who], models[who], centres[who], float(ridge), EXACT)
        return models

    def _scores(self, asked: list[tasks.Score], devices: Ints) -> Sequence[Floats]:
        first, given = asked[0], [t.model for t in asked if t.model is not None]
        models = np.stack(given) if given else self._own[devices]
        if first.metric is None:
            scores = self._model.metric(self.load(first.rows, raw=first.raw), devices, models)
            return list(np.nan_to_num(scores)[:, None])
        rows = self._federation.rows(first.rows) if first.raw else self._rows(first.rows)
        return list(np.nan_to_num(self._model.metric_sums(METRICS[first.metric], rows, devices, models)))

    def _cosines(self, at: Floats, common: Floats, devices: Ints, curvature: bool) -> Sequence[Floats]:
        parts: tuple[Part, ...] = ("train", "validation")
        a, b = (self._model.gradients(self.load(part), devices, at) - common for part in parts)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosines = (np.einsum("kd,kd->k", a, b) / np.maximum(lengths, 1e-30))[:, None]
        if not curvature:
            return list(cosines)
        rows, model = self._rows("train+validation"), self._model
        hessians = [model.hessian_numbers(w, rows.of(i)[0]) for w, i in zip(at, devices, strict=True)]
        return list(np.hstack([cosines, hessians]))

    def _evaluate(self, task: tasks.EvaluateModels, device: int) -> Floats:
        models = np.vstack([self._own[device], task.models]) if task.own else task.models
        X, y, own = self._rows(task.rows).weighted(device)
        losses, n = self._model.row_losses(models, X, y), len(y)
        if not own.any():
            return np.zeros(task.floats_up(self._model.d))
        weights = own / own.sum()
        if task.balanced and self._model.goal == "classification":
            place = np.unique(y[own > 0], return_inverse=True)[1]
            counts = np.bincount(place, own[own > 0])
            weights[own > 0] = own[own > 0] / (len(counts) * counts[place])
        means = losses @ weights
        away = (losses - means[:, None]) * weights
        covariance = away @ away.T * n / max(n - 1, 1)
        return np.concatenate([means, covariance[np.triu_indices(len(models))]])

    def _personal(self, asked: list[Any], devices: Ints) -> Sequence[Floats]:
        """Answer tasks about models of devices' own; rows are handled in lots of similar size."""
        model, answers = self._model, [np.empty(0)] * len(asked)
        for place, tables in in_lots(self._rows("train+validation"), devices, model):
            lot = [asked[i] for i in place]
            for i, answer in zip(place, personal_answers(model, tables, lot), strict=True):
                answers[i] = answer
        return answers

    def _train(self, first: tasks.Train, orders: list[Order], devices: Ints) -> Sequence[Floats]:
        start: Floats = self._own[devices]
        part = tasks.part_of(first.into, self._model.d, self._model.fused)
        if first.start is not None:  # the part that was sent, in its place
            given = _stacked(orders, "start")
            start[:, part] = given if first.share == 1 else start[:, part] + first.share * (given - start[:, part])
        anchor = None if first.anchor is None else _stacked(orders, "anchor")
        if anchor is None and first.rho:
            anchor = start.copy() if first.near else np.zeros_like(start[:, self._model.fused])
        if first.slope is not None or first.rest_steps:
            new = self._train_by_gradients(first, orders, devices, start, part)
        else:
            rngs = self._training_generators(orders, first.work)
            new = self._model.train(self.load(first.rows), devices, start, anchor, first.rho, first.work, rngs)
        new = self._protected(orders, start, new)  # what the device goes on with is what it has sent
        if first.send != "update":
            self._keep(devices, new)
        sent = {"model": new, "part": new[:, part], "update": new - start, "nothing": new[:, :0]}[first.send]
        if first.score is None:
            return list(sent)
        scores = np.nan_to_num(self._model.metric(self.load(first.score), devices, new))
        return list(np.column_stack([sent, scores]))

    def _keep(self, devices: Ints, new: Floats) -> None:
        """Let devices keep models; one whose training diverged goes on from the last that the server could use."""
        usable = np.abs(new).max(axis=1) <= largest_value(self._model.d, self._dtype)
        self._own[devices[usable]] = new[usable]

    def _protected(self, orders: list[Order], start: Floats, new: Floats) -> Floats:
        """Return new models with their changes as these may be sent."""
        if self._noise is None:
            return new
        noisy = [self._noise.protect(c, self._noise_source(o)) for c, o in zip(new - start, orders, strict=True)]
        return np.asarray(start + np.stack(noisy))

    def _noise_source(self, order: Order) -> np.random.Generator:
        # for experiments: the seed gives the noise away, so devices of real federations have another source
        return generator(self._seed, "noise", order.round + 2, order.device)

    def _training_generators(self, orders: list[Order], work: Work) -> list[np.random.Generator] | None:
        return self._generators(orders) if work.batch is not None or not self._model.convex else None

    def _generators(self, orders: list[Order]) -> list[np.random.Generator]:
        return [generator(self._seed, *(("batches", o.round) if o.round >= 0 else ("look",)), o.device) for o in orders]

    def _train_pair(self, first: tasks.TrainPair, orders: list[Order], devices: Ints) -> Sequence[Floats]:
        data, start = self.load(first.rows), _stacked(orders, "start").astype(self._dtype)
        second = self._own[devices] if first.second is None else _stacked(orders, "second").astype(self._dtype)
        # Both see the same batches: each is what it would be without the other.
        rngs = [self._training_generators(orders, first.work) for _ in range(2)]
        new = self._model.train(data, devices, start, None, 0.0, first.work, rngs[0])
        personal = self._model.train(data, devices, second, start, first.rho, first.work, rngs[1])
        if first.second is not None:
            return list(np.hstack([new, personal]))
        self._keep(devices, personal)
        return list(new)

    def _train_envelope(self, first: tasks.EnvelopeTrain, orders: list[Order], devices: Ints) -> Sequence[Floats]:
        data, rngs = self.load(first.rows), self._training_generators(orders, first.work)
        w = theta = _stacked(orders, "start").astype(self._dtype)
        for _ in range(first.local_rounds):
            theta = self._model.train(data, devices, theta, w, first.rho, first.work, rngs)
            w = (w - first.rate * (w - theta)).astype(self._dtype)
        return list(w)

    def _train_mixture(self, task: tasks.MixtureTrain, order: Order, device: int) -> Floats:
        X, y, own = self._rows(task.rows).weighted(device)
        if not own.any():
            return np.concatenate([task.components.ravel(), task.shares])
        rng = self._generators([order])[0]
        with np.errstate(divide="ignore"):  # a component that a device has none of
            scores = np.log(task.shares)[:, None] - self._model.row_losses(task.components, X, y)
        posterior = np.exp(scores - scores.max(axis=0))
        posterior = posterior / posterior.sum(axis=0) * (own / own.mean())
        models, work = task.components.astype(self._dtype), task.work
        turns: list[Any] = [slice(None)]  # rows of each call
        if work.batch is not None and work.batch < len(y):
            count = plain(work)[0] * (1 if work.unit == "batches" else -(-len(y) // work.batch))
            turns, work = [rng.permutation(len(y))[: work.batch] for _ in range(count)], replace(work, steps=1)
        work = replace(work, batch=None)
        for chosen in turns:
            pairs = zip(models, posterior, strict=True)
            models = np.stack([self._component(w, X[chosen], y[chosen], q[chosen], work) for w, q in pairs])
        return np.concatenate([models.ravel(), posterior.mean(axis=1)])

    def _component(self, w: Floats, X: Floats, y: Any, weights: Floats, work: Work) -> Floats:
        """Take full-batch steps on the mean over rows of their losses times these weights."""
        share = float(weights.mean())
        rate = plain(work)[1] * share
        if not rate:
            return w
        rows = Rows(X, y, np.array([0]), np.array([len(y)]), weights)  # Losses of these are divided by their sum.
        scaled = replace(work, lr=rate, decay=work.decay / share)
        data = self._model.load(rows, self._dtype)
        return np.asarray(self._model.train(data, np.array([0]), w[None], None, 0.0, scaled)[0])

    def _train_by_gradients(
        self, first: tasks.Train, orders: list[Order], devices: Ints, start: Floats, part: slice
    ) -> Floats:
        """Train with a slope added to every gradient, or one part of the model after the other."""
        rngs = self._generators(orders)
        added = 0 if first.slope is None else _stacked(orders, "slope").astype(self._dtype)
        mask = np.ones(self._model.d, self._dtype)
        work, w = first.work, start

        def slope(w: Floats, which: Ints, some: list[np.random.Generator]) -> Floats:
            own = added[which] if isinstance(added, np.ndarray) else 0
            return np.asarray(mask * (self._model.gradients(*self._batch(devices[which], first, some), w) + own))

        if first.rest_steps:
            mask[part] = 0
            w = self._descend(w, devices, first.rows, replace(work, steps=first.rest_steps), rngs, slope)
            mask = 1 - mask
        return self._descend(w, devices, first.rows, work, rngs, slope)

    def _meta_train(self, first: tasks.MetaTrain, orders: list[Order], devices: Ints) -> Sequence[Floats]:
        start = _stacked(orders, "start").astype(self._dtype)

        def slope(w: Floats, which: Ints, rngs: list[np.random.Generator]) -> Floats:
            """Return the gradient of the loss after one step; each of its own is on another batch."""
            batches = (self._batch(devices[which], first, rngs) for _ in range(3))
            adapted = w - first.inner * self._model.gradients(*next(batches), w)
            g = self._model.gradients(*next(batches), adapted)
            if first.hessian:  # both ends of the difference are on the same batch
                data, who = next(batches)
                ends = [self._model.gradients(data, who, w + sign * DIFFERENCE_STEP * g) for sign in (1, -1)]
                g = g - first.inner * (ends[0] - ends[1]) / (2 * DIFFERENCE_STEP)
            return np.asarray(g)

        w = self._descend(start, devices, first.rows, first.work, self._generators(orders), slope)
        return list(self._protected(orders, start, w))

    def _descend(
        self, start: Floats, devices: Ints, rows: Part, work: Work, rngs: list[np.random.Generator], slope: Slope
    ) -> Floats:
        """Take the steps of the work against a slope of the task's own."""
        steps = np.full(len(devices), plain(work)[0])
        if work.batch is not None and work.unit == "epochs":  # passes over a device's own rows
            steps *= -(-self._rows(rows).counts[devices] // work.batch)
        w: Floats = start.copy()
        speed = np.zeros_like(start)  # momentum, from rest
        for k in range(int(steps.max())):
            still = np.flatnonzero(steps > k)
            g = slope(w[still], still, [rngs[i] for i in still])
            speed[still] = work.momentum * speed[still] + g + work.decay * w[still]
            w[still] -= plain(work)[1] * speed[still]
        return w

    def _batch(
        self, devices: Ints, task: tasks.MetaTrain | tasks.Train, rngs: list[np.random.Generator]
    ) -> tuple[Any, Ints]:
        """Return rows, and the devices' places in them: all rows, or some of each device that are drawn anew."""
        if task.work.batch is None:
            return self.load(task.rows), devices
        rows = self._rows(task.rows)
        drawn = [rng.permutation(int(rows.counts[i]))[: task.work.batch] for rng, i in zip(rngs, devices, strict=True)]
        index = np.concatenate([rows.start[i] + d for i, d in zip(devices, drawn, strict=True)])
        stop = np.cumsum([len(d) for d in drawn])
        weights = None if rows.weights is None else rows.weights[index]
        some = Rows(rows.X[index], rows.y[index], np.concatenate([[0], stop[:-1]]), stop, weights)
        return self._model.load(some, self._dtype), np.arange(len(devices))

    def _choose(self, orders: list[Order], devices: Ints) -> Sequence[Floats]:
        asked = [o.task for o in orders if isinstance(o.task, tasks.Choose)]
        first, data, heads = asked[0], self.load(asked[0].rows), len(asked[0].heads)
        models = np.stack([np.hstack([np.tile(t.shared, (heads, 1)), t.heads]) for t in asked]).astype(self._dtype)
        each = np.repeat(devices, heads)
        losses = self._model.losses(data, each, models.reshape(len(each), -1)).reshape(-1, heads)
        if first.temperature:
            from scipy.special import softmax  # a process for one message is spared it

            weights = softmax(-losses / first.temperature, axis=1)
            start = models.reshape(len(each), -1)
        else:
            best = losses.argmin(axis=1)
            weights = np.eye(heads)[best]
            start, each = models[np.arange(len(asked)), best], devices
        if first.work is None:
            answers = self._model.gradients(data, each, start)
        else:
            repeated = [o for o in orders for _ in range(len(each) // len(orders))]
            rngs = self._training_generators(repeated, first.work)
            answers = self._model.train(data, each, start, None, 0.0, first.work, rngs)
        return list(np.hstack([answers.reshape(len(asked), -1), weights]))


def _stacked(orders: Sequence[Order], name: str) -> Floats:
    """Return a vector of each task as one array."""
    return np.stack([getattr(order.task, name) for order in orders])


def group_orders(orders: Sequence[Order]) -> list[list[Order]]:
    """Put orders together that differ only in their vectors, so that each lot is one compiled call."""
    lots: dict[Any, list[Order]] = {}
    for order in orders:
        settings = [v.shape if isinstance(v, np.ndarray) else v for v in vars(order.task).values()]
        lots.setdefault((type(order.task), *settings), []).append(order)
    return list(lots.values())


def _subspace(rows: Rows, device: int, task: tasks.Subspace) -> Floats:
    """Return the first left singular vectors of X' (features x rows) or of each class, none with a negative sum."""
    (X, y), weights = rows.of(device), rows.weights_of(device)
    X = np.asarray(X if weights is None else X * np.sqrt(weights)[:, None], dtype=np.float64)
    bases = []
    for lot in [X[y == c] for c in range(task.classes) if (y == c).any()] if task.classes else [X]:
        if len(lot) > lot.shape[1]:  # of X = QR, where Q is large and R small, X' and R' have the same
            lot = np.asarray(np.linalg.qr(lot, mode="r"))
        U = np.linalg.svd(lot.T, full_matrices=False)[0][:, : task.p]
        bases.append((U * np.where(U.sum(axis=0) < 0, -1.0, 1.0)).T.ravel())
    return np.concatenate(bases)


def _table(rows: Rows, device: int) -> Floats:
    """Return a device's columns, the target last."""
    return np.column_stack(rows.of(device)).astype(np.float64)


def _moments(rows: Rows, device: int, columns: int) -> Floats:
    X, weights = rows.of(device)[0], rows.weights_of(device)
    table = _table(rows, device) if columns > X.shape[1] else X
    return np.concatenate([column_means(table, weights), column_means(np.square(table), weights)])
