"""What a device does in a round: its local work, and schedules of the numbers in it.

A schedule may stand wherever a number stands.

On the command line they are written as they are printed: ``--set steps=grow(20)``,
``--set lr=decay(0.01,0.9,5)``, ``--set steps=uneven(10)``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, inf
from numbers import Integral
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from fedfuse.errors import FedfuseError, check_choice
from fedfuse.utils.random import generator

MAX_STEPS = 2**31 - 1  # Of a device in one round.


class _Written:
    """A schedule is printed as the command line reads it."""

    word: ClassVar[str]

    def __post_init__(self) -> None:
        if not all(0 < n < inf for n in vars(self).values()):
            raise FedfuseError(f"the numbers of a schedule must be positive, got {self}")

    def __str__(self) -> str:
        # Short where that is exact: what is written must be read again to the bit.
        numbers = (f"{n:g}" if float(f"{n:g}") == n else repr(float(n)) for n in vars(self).values())
        return f"{self.word}({','.join(numbers)})"


@dataclass(frozen=True)
class Grow(_Written):
    """``ceil(k / every)`` in round k = 1, 2, …: little local work at first, more later (paper, 6.4.4)."""

    word: ClassVar[str] = "grow"
    every: float = 20

    def __call__(self, k: int) -> float:
        return ceil((k + 1) / self.every)


@dataclass(frozen=True)
class Decay(_Written):
    """``first * factor ** (k // every)`` in round k = 0, 1, …"""

    word: ClassVar[str] = "decay"
    first: float
    factor: float = 0.9
    every: float = 5

    def __call__(self, k: int) -> float:
        return float(self.first * self.factor ** (k // self.every))


@dataclass(frozen=True)
class Uneven(_Written):
    """A whole number from 1 to ``most``, drawn for every device and round: not all can do the same (paper, E.2)."""

    word: ClassVar[str] = "uneven"
    per_round: ClassVar[bool] = True
    most: float

    def __post_init__(self) -> None:
        if not 1 <= self.most < inf or self.most != int(self.most):
            raise FedfuseError(f"{self.word} takes a whole number of at least 1, got {self}")

    def drawn(self, seed: int, k: int, device: int) -> int:
        """Return the number of a device in round k."""
        key = (k, device) if self.per_round else (device,)
        return int(generator(seed, self.word, *key).integers(1, int(self.most) + 1))


class Paced(Uneven):
    """A whole number from 1 to ``most``, drawn once for every device: some are slow, others fast, for the whole run."""

    word: ClassVar[str] = "paced"
    per_round: ClassVar[bool] = False


Schedule: TypeAlias = "float | Grow | Decay | Uneven | Paced"
SCHEDULES = (Grow, Decay, Uneven, Paced)
_KINDS: dict[str, Callable[..., Schedule]] = {kind.word: kind for kind in SCHEDULES}


def value(schedule: Schedule, k: int) -> float:
    """Return the schedule's number in round ``k`` (counted from 0); of one that is drawn for each device, the largest.

    >>> value(0.1, 7), value(Grow(20), 0), value(Grow(20), 20), value(Decay(0.01, 0.9, 5), 5)
    (0.1, 1, 2, 0.009000000000000001)
    """
    if isinstance(schedule, Uneven):
        return schedule.most
    return schedule(k) if isinstance(schedule, (Grow, Decay)) else schedule


def parse(text: str | float) -> Schedule:
    """Read a number or a schedule as it is written on the command line; a number stays what it is.

    >>> parse("0.1"), parse("grow(20)"), str(parse("decay(0.01, 0.9, 5)"))
    (0.1, Grow(every=20.0), 'decay(0.01,0.9,5)')
    """
    if not isinstance(text, str):
        return text
    call = re.fullmatch(r"\s*(\w+)\s*\(([^)]*)\)\s*", text)
    try:
        if not call:
            return float(text)
        numbers = [float(n) for n in call[2].split(",") if n.strip()]
        return _KINDS[call[1]](*numbers)
    except FedfuseError:
        raise
    except (KeyError, TypeError, ValueError):
        known = ", ".join(f"{word}(…)" for word in _KINDS)
        raise FedfuseError(f"{text!r} is neither a number nor a schedule ({known})") from None


Solver: TypeAlias = Literal["gd", "exact"]
Unit: TypeAlias = Literal["epochs", "batches"]


@dataclass(frozen=True)
class Work:
    """How a device trains: gradient steps, mini-batch steps, or its problem solved to the end.

    Parameters
    ----------
    steps
        Full-batch gradient steps; with ``batch``, passes over the data or mini-batch steps, as ``unit`` says.
    lr
        Step size.
    batch
        Rows per mini-batch; ``None`` for full-batch gradient descent.
    solver
        ``"gd"`` follows ``steps``, ``lr`` and ``batch``; ``"exact"`` solves the device's convex problem
        (linear regression in closed form, softmax regression by Newton's method) and needs none of them.
    momentum
        As `torch.optim.SGD` has it, from rest in every round; for networks only.
    decay
        Weight decay: ``decay * w`` is added to the gradient.
    unit
        What ``steps`` counts when ``batch`` is given: ``"epochs"`` or ``"batches"``. Batches go on through reshuffled
        epochs; the last batch of an epoch may be smaller.
    """

    steps: Schedule = 10
    lr: Schedule = 0.1
    batch: int | None = None
    solver: Solver = "gd"
    momentum: float = 0.0
    decay: float = 0.0
    unit: Unit = "epochs"

    def __post_init__(self) -> None:
        steps, lr = value(self.steps, 0), value(self.lr, 0)
        if not 1 <= steps <= MAX_STEPS or (steps is self.steps and steps != int(steps)):
            limit = f"at most {MAX_STEPS:,}" if steps > MAX_STEPS else "at least 1"
            raise FedfuseError(f"steps must be a whole number of {limit}, got {self.steps}")
        if not 0 < lr < np.inf:
            raise FedfuseError(f"lr must be a positive number, got {self.lr}")
        if isinstance(self.lr, Uneven):
            raise FedfuseError(f"lr cannot be drawn for each device, got {self.lr}; steps can")
        if self.batch is not None and not (self.batch >= 1 and isinstance(self.batch, Integral)):
            raise FedfuseError(f"batch must be a whole number of at least 1, got {self.batch}")
        check_choice("solver", self.solver, Solver)
        if not 0 <= self.momentum < 1:
            raise FedfuseError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        if not 0 <= self.decay < np.inf:
            raise FedfuseError(f"decay must be a number of at least 0, got {self.decay}")
        check_choice("unit", self.unit, Unit)

    def at(self, k: int) -> Work:
        """Return the work of round ``k``: plain numbers for schedules but those of each device (`for_device`)."""
        # a schedule that falls ends at the smallest work there is, not in an error after hours
        steps, lr = max(1, int(value(self.steps, k))), max(value(self.lr, k), sys.float_info.min)
        return replace(self, steps=self.steps if isinstance(self.steps, Uneven) else steps, lr=lr)
