"""Simulated latency on a virtual clock: a day of federation in a few seconds.

A reply arrives ``compute + delay`` seconds after its order was sent, both drawn by key: (seed, "delay" or "compute",
round of the order, device). The virtual clock jumps from arrival to arrival. So a synchronous round takes as long as
its slowest device, and an asynchronous one gets the earliest reply. Orders without an answer (`Install`, `Add`,
`Rescale`) and those of no round (openings, evaluation) take no time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.engines.base import Engine, EngineWrapper, pack_replies, unpack_replies
from fedfuse.engines.distributions import Distribution, DistributionLike
from fedfuse.protocol.tasks import Add, Install, Order, Reply, Rescale


@dataclass(frozen=True, order=True)
class Arrival:
    """Arrival time of the reply to an order; of those that come together, the one asked first is first."""

    time: float
    number: int
    device: int
    round: int


class Latency(EngineWrapper):
    """An engine on a virtual clock.

    Parameters
    ----------
    engine
        Where devices really compute.
    delay, compute
        Distributions of the seconds on the way and at work, as text (`engines.distributions.Distribution`) or numbers.
    seed
        Every draw depends on it.
    """

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
            arrival = Arrival(self._clock + self._seconds(order), self._number, order.device, order.round)
            heappush(self._queue, arrival)
            self._number += 1

    def collect(self, patience: float | None = None) -> list[Reply]:
        """Return what arrives next: one reply, or several to the same order; the clock moves on to it."""
        limit = np.inf if patience is None else self._clock + patience
        while self._queue and self._queue[0].time <= limit:
            arrival = heappop(self._queue)
            replies = self._fetch((arrival.device, arrival.round))
            if replies:
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
            "delayed_queue": np.array([astuple(a) for a in self._queue], np.float64).reshape(-1, 4),
            **pack_replies(waiting, "delayed"),
        }

    def unpack(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        self.inner.unpack(arrays)
        clock, number = arrays["delayed_clock"]
        self._clock, self._number = float(clock), int(number)
        self._queue = [Arrival(float(t), int(n), int(i), int(k)) for t, n, i, k in arrays["delayed_queue"]]
        self._here.clear()
        self._sort(unpack_replies(arrays, "delayed"))

    def _seconds(self, order: Order) -> float:
        if order.round < 0 or isinstance(order.task, (Install, Add, Rescale)):
            return 0.0
        parts = (("compute", self._compute), ("delay", self._delay))
        return sum(times.draw(self._seed, purpose, order.round, order.device) for purpose, times in parts)

    def _fetch(self, key: tuple[int, int]) -> list[Reply]:
        """Return the replies to an order, when they are computed; none if the device does not answer."""
        while key not in self._here and (computed := self.inner.collect()):
            self._sort(computed)
        return self._here.pop(key, [])

    def _compute_all(self) -> None:
        while computed := self.inner.collect():
            self._sort(computed)

    def _sort(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            self._here[reply.device, reply.round].append(reply)
