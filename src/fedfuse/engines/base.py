"""Engine: where devices compute; and wrappers that change what another engine does."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.protocol.tasks import Order, Reply


class Engine(ABC):
    """Sends orders to devices and collects their replies; knows nothing of methods.

    A device keeps its own last model between orders: `Train` without a start goes on from there.
    """

    @abstractmethod
    def submit(self, orders: Sequence[Order]) -> None:
        """Send these orders, at most one per device; also while others are under way."""

    @abstractmethod
    def collect(self, patience: float | None = None) -> list[Reply]:
        """Wait for replies, at most ``patience`` seconds, and return those that have come.

        An empty list says that none has come in time or, without ``patience``, that no more will come.
        """

    @property
    def time(self) -> float | None:
        """Seconds on the engine's own clock; None where that is the wall clock."""
        return None

    @property
    def busy(self) -> frozenset[int]:
        """The devices that are still at work on an order, and so cannot take another."""
        return frozenset()

    @property
    def trouble(self) -> dict[str, int]:
        """Counts of what has gone wrong, by name."""
        return {}

    def pack(self) -> dict[str, npt.NDArray[Any]] | None:
        """Return what is under way, for a checkpoint; None where it must be asked for again."""
        return None

    def unpack(self, arrays: dict[str, npt.NDArray[Any]]) -> None:  # noqa: B027 - most engines keep nothing
        """Take back what `pack` returned."""

    def close(self) -> None:  # noqa: B027 - most engines have nothing to end
        """End all that the engine has started."""


class EngineWrapper(Engine):
    """An engine around another one: it changes what it overrides, and nothing else."""

    def __init__(self, engine: Engine) -> None:
        self.inner = engine

    def submit(self, orders: Sequence[Order]) -> None:
        self.inner.submit(orders)

    def collect(self, patience: float | None = None) -> list[Reply]:
        return self.inner.collect() if patience is None else self.inner.collect(patience)

    @property
    def time(self) -> float | None:
        return self.inner.time

    @property
    def busy(self) -> frozenset[int]:
        return self.inner.busy

    @property
    def trouble(self) -> dict[str, int]:
        return self.inner.trouble

    def pack(self) -> dict[str, npt.NDArray[Any]] | None:
        return self.inner.pack()

    def unpack(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        self.inner.unpack(arrays)

    def close(self) -> None:
        self.inner.close()


def clock(engine: Engine) -> float:
    """Return the seconds on the engine's clock, or on the wall."""
    return time.monotonic() if engine.time is None else engine.time


def pack_replies(replies: Sequence[Reply], name: str) -> dict[str, npt.NDArray[Any]]:
    """Return replies as arrays (see `unpack_replies`)."""
    heads = [(r.device, r.round, np.size(r.values)) for r in replies]
    return {
        f"{name}_heads": np.array(heads, np.int64).reshape(-1, 3),
        f"{name}_values": np.concatenate([np.empty(0, np.float32), *(np.ravel(r.values) for r in replies)]),
    }


def unpack_replies(arrays: dict[str, npt.NDArray[Any]], name: str) -> list[Reply]:
    """Build the replies that `pack_replies` took apart."""
    heads = arrays[f"{name}_heads"]
    pieces = np.split(arrays[f"{name}_values"], np.cumsum(heads[:, 2])[:-1]) if len(heads) else []
    return [Reply(int(i), int(k), values) for (i, k, _), values in zip(heads, pieces, strict=True)]
