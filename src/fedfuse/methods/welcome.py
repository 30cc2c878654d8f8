"""A newcomer among clusters with refitted models: whichever predicts its rows best, and whether that is good enough.

    newcomer: sends the losses of all cluster models on its rows, none of which they have seen, with covariances
    newcomer: trains alone on its training rows; sends how its own model and the best of the clusters' do on validation

Distances between parameters, which decide while clusters are being found, say little here: a device with few rows is
far from its own cluster's model, and predicts with it all the same.
"""

from __future__ import annotations

import numpy as np
from scipy.special import stdtr

from fedfuse.methods.base import Admission, Joined, Known, World
from fedfuse.tasks import Judge, Part, Train, Work
from fedfuse.types import Floats

RIDGE = 0.01  # of the newcomer's own model
CERTAIN = 0.99  # chance that a device's own model is better, from which on it is said to fit no cluster


def judged(known: Known, world: World, work: Work, rows: Part, device: int) -> Admission:
    """Find the cluster of a newcomer by how well the clusters' models predict its rows."""
    models = known.cluster_models.astype(world.dtype)
    means, covariance = _read((yield Judge(models, rows)), len(models))
    best = int(means.argmin())
    sure = 1.0
    if len(models) > 1:
        second = int(np.where(np.arange(len(models)) == best, np.inf, means).argmin())
        sure = _chance(_z(means, covariance, best, second), int(world.counts[rows][device]))
    own = yield _alone(world, work)
    pair, spread = _read((yield Judge(models[best][None], "validation", own=True)), 2)
    better = _chance(_z(pair, spread, 0, 1), int(world.counts["validation"][device]))
    if better > CERTAIN:
        return Joined(own, None, sure)
    return Joined(models[best], int(known.clusters[best]), sure)


def _chance(z: float, rows: int) -> float:
    """Return the chance that one model is better, by Student's t: a few rows say little, and a single one nothing."""
    return float(stdtr(rows - 1, z)) if rows > 1 else 0.5


def _alone(world: World, work: Work) -> Train:
    if world.model.convex:
        return Train(Work(solver="exact"), start=np.zeros(world.d, world.dtype), rho=RIDGE)
    return Train(work, start=world.initial("auto").astype(world.dtype))


def _read(answer: Floats, n: int) -> tuple[Floats, Floats]:
    """Return means and covariance matrix from the answer to `Judge`."""
    covariance = np.zeros((n, n))
    covariance[np.triu_indices(n)] = answer[n:]
    return answer[:n], covariance + np.triu(covariance, 1).T


def _z(means: Floats, covariance: Floats, better: int, other: int) -> float:
    """Return by how many standard errors one model is better than another."""
    variance = covariance[better, better] + covariance[other, other] - 2 * covariance[better, other]
    return float((means[other] - means[better]) / np.sqrt(max(variance, 1e-30)))
