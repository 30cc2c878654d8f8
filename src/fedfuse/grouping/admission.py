"""A newcomer among clusters with refitted models: whichever predicts its rows best, and whether that is good enough.

    newcomer: sends the losses of all cluster models on its rows, none of which they have seen, with covariances
    newcomer: trains alone on its training rows; sends how its own model and the best of the clusters' do on validation
    newcomer: does the same with either half of its training rows for the other, as validation rows are few

It fits none if its own model is better beyond doubt, in the one comparison or in the other. Distances between
parameters, which decide while clusters are being found, say little here: a device with few rows is far from its own
cluster's model, and predicts with it all the same.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import numpy as np
import scipy

from fedfuse.data.federation import Part
from fedfuse.methods.method import AdmissionDialogue, AdmissionResult, FederationInfo, RunSummary
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import EvaluateModels, Task, Train
from fedfuse.utils.typing import Floats

RIDGE = 0.01  # of the newcomer's own model
CERTAIN = 0.995  # chance that a device's own model is better, from which on it is said to fit no cluster


def judged(known: RunSummary, info: FederationInfo, work: Work, rows: Part, device: int) -> AdmissionDialogue:
    """Find the cluster of a newcomer by how well the clusters' models predict its rows."""
    models = known.group_models.astype(info.dtype)
    means, covariance = _read((yield EvaluateModels(models, rows)), len(models))
    best = int(means.argmin())
    sure = 1.0
    if len(models) > 1:
        next_best = int(np.where(np.arange(len(models)) == best, np.inf, means).argmin())
        sure = _chance(_z(means, covariance, best, next_best), int(info.counts[rows][device]))
    first = yield from _against(models[best], info, work, "train/1", "train/2")
    second = yield from _against(models[best], info, work, "train/2", "train/1")
    whole = yield from _against(models[best], info, work, "train", "validation")
    train, validation = (int(info.counts[part][device]) for part in ("train", "validation"))
    better = max(_sum((first, train - train // 2), (second, train // 2)), _sum((whole, validation)))
    if better > CERTAIN:
        return AdmissionResult(whole.own, None, sure)
    return AdmissionResult(models[best], int(known.groups[best]), sure)


class Compared(NamedTuple):
    """A newcomer's own model, by how much its mean loss is less than that of a cluster's, and the variance of that."""

    own: Floats
    gain: float
    variance: float


def _against(
    model: Floats, info: FederationInfo, work: Work, rows: Part, others: Part
) -> Generator[Task, Floats, Compared]:
    """Train alone on some rows, and compare with a cluster's model on others."""
    own = yield _alone(info, work, rows)
    means, covariance = _read((yield EvaluateModels(model[None], others, own=True)), 2)
    variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    return Compared(own, float(means[1] - means[0]), float(variance))


def _sum(*parts: tuple[Compared, int]) -> float:
    """Return the chance that own models are better, over rows that are taken together."""
    rows = sum(n for _, n in parts)
    gain, variance = sum(n * c.gain for c, n in parts), sum(n * n * c.variance for c, n in parts)
    return _chance(gain / float(np.sqrt(max(variance, 1e-30))), rows) if gain > 0 else 0.0


def _chance(z: float, rows: int) -> float:
    """Return the chance that one model is better, by Student's t: a few rows say little, and a single one nothing."""
    return float(scipy.special.stdtr(rows - 1, z)) if rows > 1 else 0.5


def _alone(info: FederationInfo, work: Work, rows: Part) -> Train:
    if info.model.convex:
        return Train(Work(solver="exact"), start=np.zeros(info.d, info.dtype), rho=RIDGE, rows=rows)
    return Train(work, start=info.initial("auto").astype(info.dtype), rows=rows)


def _read(answer: Floats, n: int) -> tuple[Floats, Floats]:
    """Return means and covariance matrix from the answer to `EvaluateModels`."""
    covariance = np.zeros((n, n))
    covariance[np.triu_indices(n)] = answer[n:]
    return answer[:n], covariance + np.triu(covariance, 1).T


def _z(means: Floats, covariance: Floats, better: int, other: int) -> float:
    """Return by how many standard errors one model is better than another."""
    variance = covariance[better, better] + covariance[other, other] - 2 * covariance[better, other]
    return float((means[other] - means[better]) / np.sqrt(max(variance, 1e-30)))
