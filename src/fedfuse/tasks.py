"""The small vocabulary that server and devices share.

A task is what the server asks of one device, a reply is what the device sends back. A task knows how many floats
it carries down and how many must come up, so that the cost of every method is counted from what is really sent
(`Ledger`) and an upload of another size is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from fedfuse.errors import FedfuseError
from fedfuse.schedules import Schedule, value
from fedfuse.types import Floats

Part: TypeAlias = Literal["train", "validation", "train+validation", "test", "all"]
Solver: TypeAlias = Literal["gd", "exact"]


@dataclass(frozen=True)
class Work:
    """How a device trains: gradient steps, mini-batch steps, or its problem solved to the end.

    Parameters
    ----------
    steps
        Full-batch gradient steps, or passes over the data (epochs) when ``batch`` is given.
    lr
        Step size.
    batch
        Rows per mini-batch; ``None`` for full-batch gradient descent.
    solver
        ``"gd"`` follows ``steps``, ``lr`` and ``batch``; ``"exact"`` solves the device's convex problem (linear
        regression in closed form, softmax regression by Newton's method) and needs neither.
    """

    steps: Schedule = 10
    lr: Schedule = 0.1
    batch: int | None = None
    solver: Solver = "gd"

    def __post_init__(self) -> None:
        if isinstance(self.steps, (int, float)) and (self.steps < 1 or self.steps != int(self.steps)):
            raise FedfuseError(f"steps must be a whole number of at least 1, got {self.steps:g}")
        if isinstance(self.lr, (int, float)) and not 0 < self.lr < np.inf:
            raise FedfuseError(f"lr must be a positive number, got {self.lr:g}")
        if self.batch is not None and self.batch < 1:
            raise FedfuseError(f"batch must be at least 1, got {self.batch}")
        if self.solver not in ("gd", "exact"):
            raise FedfuseError(f"solver must be 'gd' or 'exact', got {self.solver!r}")

    def at(self, k: int) -> Work:
        """Return the work of round ``k``: the same with plain numbers for schedules."""
        return Work(int(value(self.steps, k)), value(self.lr, k), self.batch, self.solver)


@dataclass(frozen=True)
class Install:
    """Keep this vector as your own model (the first broadcast). Answered without floats."""

    model: Floats

    @property
    def floats_down(self) -> int:
        return self.model.size

    def floats_up(self, d: int) -> int:
        return 0


@dataclass(frozen=True)
class Train:
    """Minimise ``f_i(w) + rho/2 ||w - anchor||^2`` from ``start``; send the new w.

    ``start=None`` means: from your own last model, which you keep. Nothing is sent for it.
    """

    work: Work
    start: Floats | None = None
    anchor: Floats | None = None
    rho: float = 0.0
    rows: Part = "train"

    @property
    def floats_down(self) -> int:
        return sum(v.size for v in (self.start, self.anchor) if v is not None)

    def floats_up(self, d: int) -> int:
        return d


@dataclass(frozen=True)
class Gradient:
    """Send the gradient of your loss at this vector."""

    at: Floats
    rows: Part = "train"

    @property
    def floats_down(self) -> int:
        return self.at.size

    def floats_up(self, d: int) -> int:
        return d


@dataclass(frozen=True)
class Losses:
    """Send the loss of each of these models (one row each) on your data."""

    models: Floats
    rows: Part = "train"

    @property
    def floats_down(self) -> int:
        return self.models.size

    def floats_up(self, d: int) -> int:
        return len(self.models)


Task: TypeAlias = Install | Train | Gradient | Losses


@dataclass(frozen=True)
class Order:
    """A task for one device in one round."""

    device: int
    round: int
    task: Task


@dataclass(frozen=True)
class Reply:
    """What a device sent back, as it arrived: not yet checked (see `training.inspect`)."""

    device: int
    round: int
    values: Floats

    @property
    def floats_up(self) -> int:
        return int(np.size(self.values))


@dataclass
class Ledger:
    """The one place that counts communication, in floats sent in either direction."""

    down: int = 0
    up: int = 0
    refused: dict[str, int] = field(default_factory=dict)

    def sent(self, order: Order) -> None:
        self.down += order.task.floats_down

    def received(self, reply: Reply) -> None:
        self.up += reply.floats_up

    def refuse(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    @property
    def floats(self) -> int:
        return self.down + self.up
