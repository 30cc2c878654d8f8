"""Simulated faults: replies that are lost, late, doubled, stale or not numbers, as in real federations.

The fate of a reply is a function of (seed, round, device). Replies without numbers and those of no round (openings,
evaluation) pass untouched: the first are repeated until they are heard, the second are no messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.engines.base import Engine, EngineWrapper, clock, pack_replies, unpack_replies
from fedfuse.errors import FedfuseError
from fedfuse.protocol.tasks import Order, Reply
from fedfuse.utils.random import generator

# A late reply comes one to so many rounds after its own.
MAX_ROUNDS_LATE = 3


@dataclass(frozen=True)
class Trouble:
    """Probabilities of what may happen to a reply, each independent of the others."""

    lost: float = 0.0  # it never comes
    late: float = 0.0  # it comes one to three rounds after its own
    twice: float = 0.0
    stale: float = 0.0  # it says that it belongs to the round before
    nan: float = 0.0  # it holds no numbers

    def __post_init__(self) -> None:
        for name, share in vars(self).items():
            if not 0 <= share <= 1:
                raise FedfuseError(f"{name} must be a probability from 0 to 1, got {share!r}")

    @classmethod
    def read(cls, text: str) -> Trouble:
        """Read the words of the command line.

        >>> Trouble.read("lost:0.3,nan:0.05")
        Trouble(lost=0.3, late=0.0, twice=0.0, stale=0.0, nan=0.05)
        """
        try:
            pairs = [word.split(":") for word in text.replace(" ", "").split(",")]
            return cls(**{name: float(share) for name, share in pairs})
        except FedfuseError:
            raise
        except (TypeError, ValueError):
            known = ", ".join(cls.__dataclass_fields__)
            raise FedfuseError(f"lossy takes name:probability with commas ({known}), got {text!r}") from None


class Faults(EngineWrapper):
    """An engine whose replies meet with faults (see `Trouble` for the probabilities)."""

    def __init__(self, engine: Engine, *, seed: int = 0, **trouble: float) -> None:
        super().__init__(engine)
        self._trouble, self._seed = Trouble(**trouble), seed
        self._counts: Counter[str] = Counter()
        self._held: list[tuple[int, Reply]] = []  # late ones, and the round that they come with
        self._due: list[Reply] = []

    @property
    def trouble(self) -> dict[str, int]:
        return dict(Counter(self.inner.trouble) + self._counts)

    def submit(self, orders: Sequence[Order]) -> None:
        now = max((o.round for o in orders), default=-1)
        self._due += [reply for k, reply in self._held if k <= now]
        self._held = [(k, reply) for k, reply in self._held if k > now]
        self.inner.submit(orders)

    def collect(self, patience: float | None = None) -> list[Reply]:
        if self._due:
            due, self._due = self._due, []
            return due
        end = None if patience is None else clock(self.inner) + patience
        while arrived := super().collect(None if end is None else max(0.0, end - clock(self.inner))):
            replies = [r for reply in arrived for r in self._fate(reply)]
            if replies:
                return replies
        return []

    def pack(self) -> dict[str, npt.NDArray[Any]] | None:
        inner = self.inner.pack()
        if inner is None:
            return None
        held = pack_replies([reply for _, reply in self._held], "lossy")
        held["lossy_rounds"] = np.array([k for k, _ in self._held], np.int64)
        return inner | held | pack_replies(self._due, "lossy_due")

    def unpack(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        self.inner.unpack(arrays)
        self._held = list(zip(arrays["lossy_rounds"].tolist(), unpack_replies(arrays, "lossy"), strict=True))
        self._due = unpack_replies(arrays, "lossy_due")

    def _fate(self, reply: Reply) -> list[Reply]:
        """Return what arrives of a reply now."""
        if reply.round < 0 or not np.size(reply.values):
            return [reply]
        trouble, rng = self._trouble, generator(self._seed, "lossy", reply.round, reply.device)
        lost, late, twice, stale, nan = rng.random(5)
        if lost < trouble.lost:
            self._counts["lost"] += 1
            return []
        k, values = reply.round, reply.values
        if nan < trouble.nan:
            values = np.full_like(values, np.nan)
            self._counts["nan"] += 1
        if stale < trouble.stale:
            k = max(k - 1, 0)
        replies = [Reply(reply.device, k, values)] * (2 if twice < trouble.twice else 1)
        if late < trouble.late:
            self._held += [(reply.round + int(rng.integers(1, MAX_ROUNDS_LATE + 1)), r) for r in replies]
            return []
        return replies
