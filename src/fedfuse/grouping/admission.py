"""Admission of newcomers by losses: which group's model predicts a newcomer's rows best, and whether well enough.

    newcomer: sends the losses of all groups' models on its rows, which none of them has seen, with covariances
    newcomer: trains alone on its training rows; sends how its own model and the best group's do on validation rows
    newcomer: does the same with either half of its training rows for the other, as validation rows are few

It fits no group if its own model is better beyond doubt in either comparison. Distances between parameters, which
decide while groups are being found, say little here: a device with few rows is far from its own group's model, and
predicts with it all the same.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import numpy as np
import scipy

from fedfuse.core.dendrogram import PairedLosses
from fedfuse.data.federation import Part
from fedfuse.methods.method import FederationInfo
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, RunSummary
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import EvaluateModels, Task, Train
from fedfuse.utils.typing import Floats

# Ridge of the newcomer's own model.
OWN_MODEL_RIDGE = 0.01
# Chance that a newcomer's own model is better from which on it fits no group.
MIN_OUTSIDER_CHANCE = 0.995


def admit_by_losses(known: RunSummary, info: FederationInfo, work: Work, rows: Part, device: int) -> AdmissionDialogue:
    """Find the group of a newcomer by how well the groups' models predict its rows."""
    models = known.group_models.astype(info.dtype)
    losses = PairedLosses(device, 1, (yield EvaluateModels(models, rows)))
    best = int(losses.means.argmin())
    confidence = 1.0
    if len(models) > 1:
        next_best = int(np.where(np.arange(len(models)) == best, np.inf, losses.means).argmin())
        gain, variance = losses.difference(next_best, best)
        confidence = _chance(gain / np.sqrt(max(variance, 1e-30)), int(info.counts[rows][device]))
    first = yield from _compare(models[best], info, work, "train/1", "train/2")
    second = yield from _compare(models[best], info, work, "train/2", "train/1")
    whole = yield from _compare(models[best], info, work, "train", "validation")
    train, validation = (int(info.counts[part][device]) for part in ("train", "validation"))
    halves = _chance_of_own((first, train - train // 2), (second, train // 2))
    if max(halves, _chance_of_own((whole, validation))) > MIN_OUTSIDER_CHANCE:
        return AdmissionResult(whole.own, None, confidence)
    return AdmissionResult(models[best], int(known.groups[best]), confidence)


class OwnModelGain(NamedTuple):
    """A newcomer's own model, by how much its mean loss is less than a group's, and the variance of that."""

    own: Floats
    gain: float
    variance: float


def _compare(
    model: Floats, info: FederationInfo, work: Work, rows: Part, others: Part
) -> Generator[Task, Floats, OwnModelGain]:
    """Train alone on some rows, and compare with a group's model on others."""
    if info.model.convex:
        alone = Train(Work(solver="exact"), start=np.zeros(info.d, info.dtype), rho=OWN_MODEL_RIDGE, rows=rows)
    else:
        alone = Train(work, start=info.initial("auto").astype(info.dtype), rows=rows)
    own = yield alone
    losses = PairedLosses(0, 1, (yield EvaluateModels(model[None], others, own=True)))
    return OwnModelGain(own, *losses.difference(1, 0))


def _chance_of_own(*parts: tuple[OwnModelGain, int]) -> float:
    """Return the chance that own models are better, over rows that are taken together; a single row has no variance."""
    parts = tuple((c, n) for c, n in parts if n > 1)
    rows = sum(n for _, n in parts)
    gain, variance = sum(n * c.gain for c, n in parts), sum(n * n * c.variance for c, n in parts)
    return _chance(gain / float(np.sqrt(max(variance, 1e-30))), rows) if gain > 0 else 0.0


def _chance(z: float, rows: int) -> float:
    """Return the chance that one model is better, by Student's t: a few rows say little, and a single one nothing."""
    return float(scipy.special.stdtr(rows - 1, z)) if rows > 1 else 0.5
