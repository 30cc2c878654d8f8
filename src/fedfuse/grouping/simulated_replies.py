"""Replies that the server computes in the place of devices, where their sufficient statistics tell all of the loss.

For linear regression these are the means and covariances of the columns. A device that has sent them once need not be
asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedfuse.core.dendrogram import alike
from fedfuse.data.federation import Part
from fedfuse.methods.method import FederationInfo
from fedfuse.protocol import tasks
from fedfuse.protocol.sufficient_statistics import SufficientStatistics, parts
from fedfuse.protocol.tasks import SUMMARISED, Task
from fedfuse.utils.typing import Floats, Ints

# Sufficient statistics may be as long as so many models; a fit without them takes the floats of 60 to 120.
MAX_STATISTICS_MODELS = 50


def n_columns(info: FederationInfo) -> int:
    """Return how many columns devices have, the target included where it is a value."""
    return int(info.model.n_features) + (info.model.goal == "regression")


def sends_statistics(info: FederationInfo) -> bool:
    """Whether sufficient statistics of a device's rows exist, are short, and may be shared."""
    size = tasks.SendSufficientStatistics(n_columns(info)).floats_up(info.d)
    return info.share == "moments" and bool(info.model.quadratic) and size <= MAX_STATISTICS_MODELS * info.d


class SimulatedReplies:
    """Answers tasks in the place of devices, from what was ``sent`` for `SendSufficientStatistics` (a row each)."""

    def __init__(self, sent: Floats, counts: Mapping[str, Ints]) -> None:
        self.uneven = np.asarray(sent[:, -1], np.float64)
        self._sent = {part: SufficientStatistics.read(piece, counts[part]) for part, piece in parts(sent).items()}
        self._now = self._sent

    def rescale(self, shift: Floats, scale: Floats) -> None:
        """Take ``(column - shift) / scale`` in place of every column as it was sent."""
        self._now = {name: part.rescaled(shift, scale) for name, part in self._sent.items()}

    def part(self, part: Part, devices: Ints) -> SufficientStatistics:
        """Return the summary of these devices' rows."""
        if part == "train+validation":
            return self.part("train", devices) + self.part("validation", devices)
        return self._now[part].of(devices)

    def answers(self, asked: Sequence[Task], devices: Ints) -> list[Floats]:
        """Return what these devices would answer; all tasks are of one kind."""
        lot: list[Any] = list(asked)
        match lot[0]:
            case tasks.SendMoments(rows=rows):
                part = self.part(rows, devices)
                return list(np.hstack([part.mean, np.einsum("kcc->kc", part.covariance) + part.mean**2]))
            case tasks.Rescale(shift=shift, scale=scale):
                self.rescale(shift, scale)
                return [np.empty(0)] * len(lot)
            case tasks.Gradient(rows=rows, also=also):
                at = np.stack([t.at for t in lot]).astype(np.float64)
                losses = [self.part(part, devices).evaluate(at)[0] for part in also]
                return list(np.column_stack([self.part(rows, devices).evaluate(at)[1], *losses]))
            case tasks.GradientCosine():
                at, common = np.stack([t.at for t in lot]), np.stack([t.common for t in lot])
                a, b = (self.part(part, devices).evaluate(at)[1] - common for part in SUMMARISED)
                return list(alike(a, b)[:, None])
            case tasks.FitLocally(ridges=ridges):
                return self._alone(ridges, devices)
        raise AssertionError(f"{type(lot[0]).__name__} takes the devices themselves")

    def _alone(self, ridges: tuple[float, ...], devices: Ints) -> list[Floats]:
        train, validation, both = (self.part(p, devices) for p in ("train", "validation", "train+validation"))
        losses = [validation.evaluate(train.fit(ridge))[0] for ridge in ridges]
        models = np.stack([both.fit(ridge) for ridge in ridges])
        return list(models[np.argmin(losses, axis=0), np.arange(len(devices))])
