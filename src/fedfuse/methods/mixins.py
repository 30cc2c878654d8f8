"""What only some methods have: a mix-in for each, next to the four hooks of `methods.method`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from fedfuse.core.partitions import group_means
from fedfuse.methods.method import FederationInfo, Outcome
from fedfuse.methods.parameters import choice
from fedfuse.protocol.tasks import PeekModel, Task
from fedfuse.utils.files import Arrays
from fedfuse.utils.typing import Floats, Ints


class RunSummary(NamedTuple):
    """What the server still knows when a run is over and a newcomer arrives."""

    models: Floats  # of every device
    labels: Ints
    counts: Ints  # rows of each
    lam: float | None
    kept: Arrays  # `Outcome.kept`

    @property
    def groups(self) -> Ints:
        """The numbers of the groups; those of suspects alone are not among them."""
        return np.unique(self.labels)

    @property
    def group_models(self) -> Floats:
        """One model for each of the groups; where devices have models of their own, their mean."""
        return group_means(self.models, np.searchsorted(self.groups, self.labels), self.counts)


class AdmissionResult(NamedTuple):
    """A newcomer's model, and the group it has come to (None: to none)."""

    model: Floats
    group: int | None = None
    confidence: float | None = None


Weights: TypeAlias = Literal["rows", "equal"]
AdmissionDialogue: TypeAlias = Generator[Task, Floats, AdmissionResult]


class AdmitsNewcomers(ABC):
    """A method with a rule for devices that come when training is over."""

    @abstractmethod
    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Take in a newcomer, device ``device`` of ``info``: yield tasks for it, return its model and group."""


class TakesSingleReplies:
    """A method that can be trained asynchronously: a single reply, to an order of some time ago, is of use."""

    takes_single_replies: ClassVar[bool] = True

    def single_reply_rule(self) -> Any:
        """Return the rule for replies that come one at a time: the method itself, unless it needs another."""
        return self


class WorksAtHome:
    """A method whose devices make something of their model before they use it: it is looked at, not sent or counted."""

    keeps_models: ClassVar[bool] = False  # whether devices hold models that the server never sees

    def at_home(self, state: Any) -> list[Task]:
        """Return what every device does for itself, one task each: by default it is asked for its model."""
        return [PeekModel()] * state.info.m

    def in_use(self, state: Any, found: Outcome, seen: list[Floats]) -> Outcome:
        """Return what devices really use, from what was found and what was seen of them: by default their model."""
        return found._replace(models=np.stack(seen))


@dataclass(frozen=True)
class WeighsDevices:
    """A method with means over devices that its original takes without weights.

    Parameters
    ----------
    weights
        What a device counts for in a mean over devices: its ``"rows"``, or all are ``"equal"``, as in the original.
    """

    weights: Weights = choice("rows", Weights)

    def weigh(self, info: FederationInfo, devices: Ints) -> Floats:
        """Return the weights of these devices."""
        rows: Floats = super().weigh(info, devices)  # type: ignore[misc]
        return rows if self.weights == "rows" else np.ones(len(devices))


class GathersReplies:
    """A method whose replies add up over rounds, however few come in one: it ends when all are there."""
