"""Under which conditions a run trains: who waits for whom, how long things take, and what goes wrong on the way."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

import numpy as np

from fedfuse.engines import Engine, Faults, Latency
from fedfuse.engines.distributions import Distribution
from fedfuse.engines.faults import Trouble
from fedfuse.errors import FedfuseError
from fedfuse.methods.method import Method, TakesSingleReplies

Mode: TypeAlias = Literal["sync", "async"]
Late: TypeAlias = Literal["refuse", "use"]


@dataclass(frozen=True)
class Conditions:
    """What `Settings` say of time and trouble.

    Parameters
    ----------
    mode
        ``"sync"``: a round waits for all devices that were asked. ``"async"`` (the paper's Algorithm 3): all devices
        are at work, every single reply is a round, and its device gets the next order at once. It is for FPFC and
        FPFC-l1 with a given lambda and for FedAvg (then `FedAsync`). Parts of a run in which everybody is asked once
        (``lam="auto"``, refit) are synchronous in either mode.
    at_once
        Asynchronous: at most so many devices are at work at a time (all by default); those with the fewest turns go
        first.
    ahead
        Asynchronous: a device that has had so many turns more than the slowest waits for it.
    deadline
        Seconds that a round waits for replies (asynchronous: that the server waits for each reply), on the engine's
        clock.
    minimum
        A round with fewer replies is given up, and others are drawn in the next; ten such rounds in a row are an
        error. Methods whose replies add up over rounds (``lam="auto"``, refit) use what has come.
    overselect
        Draw this share more devices than take part, and go on with the first ones that answer.
    late
        What comes after its round: ``"refuse"`` it, or ``"use"`` it if it is the newest that its device was asked for
        and the method can (those that can be asynchronous).
    delay, compute
        Laws of the seconds that messages and work take, on a virtual clock (`engines.Latency`): ``"uniform(0,20)"``.
    lossy
        What happens to replies (`engines.Faults`): ``"lost:0.3,late:0.2,twice:0.1,stale:0.1,nan:0.05"``.
    budget
        Gradient steps in all, over the rounds: training ends when they are spent, the last round is cut short.
    """

    mode: Mode = "sync"
    at_once: int | None = None
    ahead: int = 50
    deadline: float | None = None
    minimum: int = 0
    overselect: float = 0.0
    late: Late = "refuse"
    delay: str | float | None = None
    compute: str | float | None = None
    lossy: str | None = None
    budget: int | None = None

    def _check_conditions(self) -> None:
        for name, allowed in (("mode", ("sync", "async")), ("late", ("refuse", "use"))):
            if getattr(self, name) not in allowed:
                raise FedfuseError(f"{name} must be {' or '.join(allowed)}, got {getattr(self, name)!r}")
        for name, least in (("at_once", 1), ("ahead", 1), ("minimum", 0), ("budget", 1)):
            number = getattr(self, name)
            left_out = number is None and name in ("at_once", "budget")
            if not left_out and (not isinstance(number, Integral) or number < least):
                raise FedfuseError(f"{name} must be a whole number of at least {least}, got {number!r}")
        if self.deadline is not None and (not isinstance(self.deadline, Real) or not 0 < self.deadline < np.inf):
            raise FedfuseError(f"deadline must be a positive number of seconds, got {self.deadline!r}")
        if not isinstance(self.overselect, Real) or not 0 <= self.overselect < np.inf:
            raise FedfuseError(f"overselect must be a share of at least 0, got {self.overselect!r}")
        if self.mode == "async":
            self._check_no_rounds()
        for law in (self.delay, self.compute):
            Distribution.of(0 if law is None else law)
        Trouble.read(self.lossy) if self.lossy is not None else None

    def _check_no_rounds(self) -> None:
        for name, none in (("minimum", 0), ("overselect", 0), ("budget", None)):
            if getattr(self, name) != none:
                raise FedfuseError(f"{name} is for rounds of several devices: it has no meaning with mode=async")

    def around(self, engine: Engine, seed: int) -> Engine:
        """Return the engine under these conditions."""
        if self.delay is not None or self.compute is not None:
            engine = Latency(engine, self.delay or 0.0, self.compute or 0.0, seed=seed)
        if self.lossy is not None:
            engine = Faults(engine, seed=seed, **vars(Trouble.read(self.lossy)))
        return engine


def takes_single_replies(method: Method[Any]) -> bool:
    """Whether a method can be trained asynchronously."""
    return isinstance(method, TakesSingleReplies) and method.takes_single_replies


def check_mode(method: Method[Any], mode: Mode) -> None:
    """Refuse a method that has nothing to do asynchronously."""
    if mode == "async" and not takes_single_replies(method):
        words = "it needs the replies of a whole round; fpfc, fpfc-l1 and fedavg do not"
        raise FedfuseError(f"{method.name} cannot be trained asynchronously: {words}")
