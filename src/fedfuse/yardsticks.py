"""Two plain answers to compare groups with: a model for every device alone, and one model for all.

Both are fitted directly to the training rows (no federation, no communication) with a touch of ridge, so that
they are what a data scientist would try first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedfuse.data.federation import Federation, Rows
from fedfuse.models import Model
from fedfuse.tasks import Part, Work
from fedfuse.types import Floats

RIDGE = 1e-3


def local_models(federation: Federation, model: Model[Any], rows: Part = "train+validation") -> Floats:
    """Return each device's model fitted to its own rows alone (m x d)."""
    return _fitted(federation.rows(rows), model)


def pooled_model(federation: Federation, model: Model[Any], rows: Part = "train+validation") -> Floats:
    """Return one model fitted to all devices' rows together (1 x d)."""
    part = federation.rows(rows)
    chosen = np.concatenate([np.arange(a, b) for a, b in zip(part.start, part.stop, strict=True)])
    together = Rows(part.X[chosen], part.y[chosen], np.array([0]), np.array([chosen.size]))
    return _fitted(together, model)


def yardsticks(federation: Federation, model: Model[Any]) -> dict[str, Floats]:
    """Return every device's test score with its local and with the pooled model."""
    local = local_models(federation, model)
    pooled = np.repeat(pooled_model(federation, model), federation.m, axis=0)
    everyone = np.arange(federation.m)
    data = model.load(federation.rows("test"), np.float32)
    return {name: model.metric(data, everyone, w) for name, w in (("local", local), ("pooled", pooled))}


def _fitted(rows: Rows, model: Model[Any]) -> Floats:
    data = model.load(rows, np.float32)
    zero = np.zeros((len(rows.start), model.d), np.float32)
    return model.train(data, np.arange(len(rows.start)), zero, zero, RIDGE, Work(solver="exact"))
