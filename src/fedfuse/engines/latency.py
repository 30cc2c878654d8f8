"""Simulated latency on a virtual clock: a day of federation in a few seconds.

A reply arrives ``compute + delay`` seconds after its order was sent, both drawn by key: (seed, "delay" or "compute",
round of the order, device). The virtual clock jumps from arrival to arrival. So a synchronous round takes as long as
its slowest device, and an asynchronous one gets the earliest reply. Orders without an answer (`Install`, `Add`,
`Rescale`) and those of no round (openings, evaluation) take no time.

Distributions of times are read from text: ``"uniform(0,20)"``, ``"exponential(5)"`` (mean), ``"lognormal(1,0.5)"``
(mean and standard deviation of the logarithm) or a number, each drawn anew for every update; ``"per_node(…)"`` around
one of them is drawn once for each device and kept. Factors may be multiplied:
``"per_node(lognormal(0,1))*uniform(0,20)"`` has slow and fast devices.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fedfuse.engines.base import Engine, EngineWrapper, pack_replies, unpack_replies
from fedfuse.errors import FedfuseError
from fedfuse.protocol.tasks import Add, Install, Order, Reply, Rescale
from fedfuse.utils.random import generator

_NUMBERS = {"constant": 1, "uniform": 2, "exponential": 1, "lognormal": 2}
_KNOWN = "a number, uniform(a,b), exponential(mean), lognormal(mean,sd), per_node(…), or a product of them"


class Factor(NamedTuple):
    """One distribution, drawn for every update or, with ``per_node``, once for every device."""

    word: str
    numbers: tuple[float, ...]
    per_device: bool


@dataclass(frozen=True)
class Distribution:
    """A product of factors; `Distribution.of` reads one.

    >>> times = Distribution.of("per_node(uniform(1,2)) * exponential(5)")
    >>> times.draw(0, "delay", 3, 1) == times.draw(0, "delay", 3, 1)
    True
    >>> Distribution.of(3).draw(0, "delay", 3, 1)
    3.0
    """

    factors: tuple[Factor, ...]

    @classmethod
    def of(cls, given: DistributionLike) -> Distribution:
        """Read a distribution; one that is read already is returned as it is."""
        if isinstance(given, Distribution):
            return given
        return cls(tuple(_read(part.strip(), given) for part in str(given).split("*")))

    def draw(self, seed: int, purpose: str, turn: int, device: int) -> float:
        """Return the number that belongs to this turn of this device, whatever was drawn before."""
        product = 1.0
        for place, (word, numbers, per_device) in enumerate(self.factors):
            name = f"{purpose} {place}" if place else purpose
            key = (f"{name} of a node", device) if per_device else (name, turn, device)
            product *= numbers[0] if word == "constant" else float(getattr(generator(seed, *key), word)(*numbers))
        return product


DistributionLike: TypeAlias = "float | str | Distribution"


def _read(text: str, whole: DistributionLike) -> Factor:
    kept = re.fullmatch(r"per_node\s*\((.*)\)", text)
    inner = kept[1].strip() if kept else text
    call = re.fullmatch(r"(\w+)\s*\(([^()]*)\)", inner)
    word, written = (call[1], call[2].split(",")) if call else ("constant", [inner])
    try:
        wanted, numbers = _NUMBERS[word], tuple(float(n) for n in written)
    except (KeyError, ValueError):
        raise FedfuseError(f"{whole!r} is not a distribution of times; known: {_KNOWN}") from None
    if len(numbers) != wanted:
        raise FedfuseError(f"{word} takes {wanted} number(s), got {text}")
    times = numbers[1:] if word == "lognormal" else numbers  # a logarithm may be negative
    if not all(-inf < n < inf for n in numbers) or min(times) < 0:
        raise FedfuseError(f"the numbers of a distribution of times must be finite and not negative, got {text}")
    if word == "uniform" and numbers[0] > numbers[1]:
        raise FedfuseError(f"uniform(a,b) needs a <= b, got {text}")
    return Factor(word, numbers, kept is not None)


class Arrival(NamedTuple):
    """Arrival time of the reply to an order; of those that come together, the one asked first is first."""

    time: float
    number: int
    device: int
    round: int


class Latency(EngineWrapper):
    """An engine on a virtual clock; ``delay`` and ``compute`` are distributions of seconds on the way and at work."""

    def __init__(
        self, engine: Engine, delay: DistributionLike = 0.0, compute: DistributionLike = 0.0, *, seed: int = 0
    ) -> None:
        super().__init__(engine)
        self._delay, self._compute, self._seed = Distribution.of(delay), Distribution.of(compute), seed
        self._clock = 0.0
        self._number = 0
        self._queue: list[Arrival] = []
        self._here: dict[tuple[int, int], list[Reply]] = defaultdict(list)  # computed, but not yet arrived

    @property
    def time(self) -> float:
        return self._clock

    @property
    def busy(self) -> frozenset[int]:
        return frozenset(a.device for a in self._queue)

    def submit(self, orders: Sequence[Order]) -> None:
        if self.inner.busy:  # devices that are at work for us ahead of the virtual time
            self._compute_all()
        self.inner.submit(orders)
        for order in orders:
            seconds = 0.0
            if order.round >= 0 and not isinstance(order.task, (Install, Add, Rescale)):
                key = order.round, order.device
                seconds = self._compute.draw(self._seed, "compute", *key) + self._delay.draw(self._seed, "delay", *key)
            heappush(self._queue, Arrival(self._clock + seconds, self._number, order.device, order.round))
            self._number += 1

    def collect(self, patience: float | None = None) -> list[Reply]:
        """Return what arrives next: one reply, or several to the same order; the clock moves on to it."""
        limit = np.inf if patience is None else self._clock + patience
        while self._queue and self._queue[0].time <= limit:
            arrival = heappop(self._queue)
            key = arrival.device, arrival.round
            while key not in self._here and (computed := self.inner.collect()):
                self._sort(computed)
            if replies := self._here.pop(key, []):  # none if the device does not answer
                self._clock = max(self._clock, arrival.time)
                return replies
        if patience is not None:
            self._clock = limit
        return []

    def pack(self) -> dict[str, npt.NDArray[Any]] | None:
        self._compute_all()
        inner = self.inner.pack()
        if inner is None:
            return None
        waiting = [r for replies in self._here.values() for r in replies]
        return {
            **inner,
            "delayed_clock": np.array([self._clock, self._number]),
            "delayed_queue": np.array(self._queue, np.float64).reshape(-1, 4),
            **pack_replies(waiting, "delayed"),
        }

    def unpack(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        self.inner.unpack(arrays)
        clock, number = arrays["delayed_clock"]
        self._clock, self._number = float(clock), int(number)
        self._queue = [Arrival(float(t), int(n), int(i), int(k)) for t, n, i, k in arrays["delayed_queue"]]
        self._here.clear()
        self._sort(unpack_replies(arrays, "delayed"))

    def _compute_all(self) -> None:
        while computed := self.inner.collect():
            self._sort(computed)

    def _sort(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            self._here[reply.device, reply.round].append(reply)
