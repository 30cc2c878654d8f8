"""Scores on held-out rows, baselines to compare groups with (local models, and one pooled model), and certificates.

Baselines and certificates are computed directly from the training rows (no federation, no communication). Baselines
have a small ridge penalty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.core.certificate import Certificate, interval
from fedfuse.core.lbfgs import LBFGS
from fedfuse.core.metrics import Metric, metric_for
from fedfuse.core.partitions import group_means
from fedfuse.data.federation import Federation, Part, Rows
from fedfuse.errors import FedfuseError
from fedfuse.grouping.fusion_tree import COMMON_RIDGE, RIDGES
from fedfuse.models import Model
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import Score
from fedfuse.results.result import Result
from fedfuse.results.snapshots import DistanceSnapshot
from fedfuse.training.settings import Settings
from fedfuse.training.transport import Transport
from fedfuse.utils.files import read_arrays, write_arrays
from fedfuse.utils.typing import Floats

BASELINE_RIDGE = 1e-3
FILE = "baselines.npz"
NAMES = ("local", "pooled")
# For a certificate: evaluations of all groups at once, and what is left of their mean gradients, by those of devices.
MAX_EVALUATIONS, RESIDUAL_RATIO = 100, 0.01


def local_models(federation: Federation, model: Model[Any], rows: Part = "train+validation") -> Floats:
    """Return each device's model fitted to its own rows alone (m x d)."""
    return _fitted(federation.rows(rows), model)


def pooled_model(federation: Federation, model: Model[Any], dtype: npt.DTypeLike = np.float32) -> Floats:
    """Return one model fitted to all devices' training and validation rows together (1 x d)."""
    part = federation.rows("train+validation")
    chosen = np.concatenate([np.arange(a, b) for a, b in zip(part.start, part.stop, strict=True)])
    weights = None if part.weights is None else part.weights[chosen]
    together = Rows(part.X[chosen], part.y[chosen], np.array([0]), np.array([chosen.size]), weights)
    return _fitted(together, model, dtype)


@dataclass(frozen=True)
class Baselines:
    """Local and pooled models beside a run."""

    scores: dict[str, Floats]  # every device's test score, or sums, with its "local" and with the "pooled" model
    alone: DistanceSnapshot  # distances between the local models

    @classmethod
    def of(
        cls, federation: Federation, model: Model[Any], metric: str | None = None, class_weights: Sequence[float] = ()
    ) -> Baselines:
        """Fit local and pooled models, and score every device with them."""
        trained = federation.weighted(class_weights)
        local = local_models(trained, model)
        pooled = np.repeat(pooled_model(trained, model), federation.m, axis=0)
        everyone = np.arange(federation.m)
        evaluator = Evaluator(federation, model, np.float32, metric_for(federation.goal, metric))
        scores = {name: evaluator.score("test", w) for name, w in zip(NAMES, (local, pooled), strict=True)}
        return cls(scores, DistanceSnapshot.of(0, local[:, model.fused], everyone))

    def save(self, directory: str | PathLike[str]) -> None:
        """Write them beside a run."""
        alone = {"levels": self.alone.levels, "largest": np.array(self.alone.largest), "devices": self.alone.devices}
        write_arrays(Path(directory) / FILE, {**self.scores, **alone}, compress=True)

    @classmethod
    def load(cls, directory: str | PathLike[str]) -> Baselines | None:
        """Read what `save` wrote; None if there is nothing."""
        path = Path(directory) / FILE
        if not path.exists():
            return None
        arrays = read_arrays(path)
        try:
            devices, scores = arrays["devices"], {name: arrays[name] for name in NAMES}
            alone = DistanceSnapshot(0, arrays["levels"], float(arrays["largest"]), np.arange(len(devices)), devices)
        except (KeyError, TypeError) as gap:
            raise FedfuseError(f"{path} holds no baselines of fedfuse: {gap} is missing; remove it") from None
        return cls(scores, alone)


def certify(result: Result, federation: Federation) -> Certificate:
    """Return the certificate of a grouping (`core.certificate`), at the minimisers of the groups' summed losses.

    FPFC's own models are biased by other groups or not yet at rest, and a refit weighs rows and not devices, so L-BFGS
    goes on from there. A weight decay of the run's devices is part of their losses. Where lambda was found along a
    fusion path, columns and losses are as there: rescaled over the federation, with a ridge.
    """
    model, labels, devices = result.model, result.labels, np.arange(federation.m)
    if not model.convex:
        raise FedfuseError("a certificate needs a convex model; networks have no unique minimum")
    config, dtype = result.method.get("inner", result.method), result.models.dtype
    decay, start = float(config.get("work", {}).get("decay", 0.0)), result.cluster_models
    if config.get("lam") == "auto":
        federation, decay, start = standardised(federation), RIDGES[COMMON_RIDGE], np.zeros_like(start)
    rows = model.load(federation.weighted(result.profile.class_weights).rows("train+validation"), dtype)

    def gradients_at(models: Floats) -> tuple[Floats, Floats]:
        w = models[labels].astype(dtype)
        return model.gradients(rows, devices, w) + decay * w, w

    search = LBFGS.start(start)
    for _ in range(MAX_EVALUATIONS):
        gradients, w = gradients_at(search.trial)
        losses = model.losses(rows, devices, w) + decay / 2 * np.square(w).sum(axis=1)
        means = group_means(np.column_stack([losses, gradients]), labels, np.ones(federation.m))
        search.tell(means[:, 0], means[:, 1:], tol=max(1e-4, RESIDUAL_RATIO * float(np.abs(gradients).max())))
        if search.done.all():
            break
    return interval(search.x, labels, gradients_at(search.x)[0], config.get("a", 3.7))


def standardised(federation: Federation) -> Federation:
    """Return a federation whose columns, and target if a value, have mean 0 and deviation 1 over all training rows."""
    rows = federation.rows("train")
    used = np.concatenate([np.arange(a, b) for a, b in zip(rows.start, rows.stop, strict=True)])

    def scaled(columns: Floats) -> Floats:
        deviation = columns[used].std(axis=0)
        return np.asarray((columns - columns[used].mean(axis=0)) / np.where(deviation > 0, deviation, 1.0))

    y = scaled(federation.y) if federation.goal == "regression" else federation.y
    return replace(federation, X=scaled(federation.X), y=y)


def _fitted(rows: Rows, model: Model[Any], dtype: npt.DTypeLike = np.float32) -> Floats:
    data = model.load(rows, dtype)
    zero = np.zeros((len(rows.start), model.d), dtype)
    return model.train(data, np.arange(len(rows.start)), zero, zero, BASELINE_RIDGE, Work(solver="exact"))


class Evaluator:
    """Scores on held-out rows. Test rows are used for scoring only."""

    def __init__(self, federation: Federation, model: Model[Any], dtype: npt.DTypeLike, metric: Metric) -> None:
        self._federation, self._model, self._dtype, self._metric = federation, model, np.dtype(dtype), metric
        self._everyone, self._loaded = np.arange(federation.m), dict[Part, Any]()

    def score(self, part: Part, models: Floats) -> Floats:
        """Return every device's score; its sums (m x size), where the metric is taken over all rows together."""
        rows = self._federation.rows(part)
        with np.errstate(all="ignore"):  # Models that diverged have no score.
            if self._metric is not metric_for(self._federation.goal):
                sums = self._model.metric_sums(self._metric, rows, self._everyone, models)
                return sums if self._metric.pooled else self._metric.by_device(sums)
            if part not in self._loaded:
                self._loaded[part] = self._model.load(rows, self._dtype)
            return self._model.metric(self._loaded[part], self._everyone, models)


class RemoteEvaluator:
    """Scores that devices send of themselves; none where what they send is protected by noise."""

    def __init__(self, federation: Federation, transport: Transport, metric: Metric, settings: Settings) -> None:
        self._federation, self._transport, self._metric, self._settings = federation, transport, metric, settings

    def score(self, part: Part, models: Floats) -> Floats:
        """Return what `Evaluator.score` returns, as devices say."""
        if self._settings.epsilon:
            return np.full(len(models), np.nan)
        asked: dict[str, Any] = {}
        if self._settings.metric is not None:
            asked = {"metric": self._metric.name, "size": self._metric.size(self._federation.n_classes)}
        tasks = [Score(np.asarray(w), part, raw=True, **asked) for w in models]
        seen = np.array(self._transport.look(tasks, [np.full(task.size, np.nan) for task in tasks]), np.float64)
        if asked:
            sums = np.nan_to_num(seen)  # A device that does not answer has no rows.
            return sums if self._metric.pooled else self._metric.by_device(sums)
        return np.where(self._federation.rows(part).counts > 0, seen[:, 0], np.nan)
