"""Methods that go through stages: in each, every device is asked once, and then the server draws its conclusions.

Devices are asked as many at a time as take part in a round; one that does not answer is asked again. It is left out
of the stage after three times in vain, if it has said nothing for so long that it must be gone: every second answer may
get lost, and nobody is left out.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedfuse.methods.method import FederationInfo, GathersReplies, Method, Outcome
from fedfuse.methods.state import Arrays
from fedfuse.pairs.state import Residuals
from fedfuse.protocol.tasks import Task
from fedfuse.utils.typing import Bools, Floats, Ints

TRIES = 3
GONE = 15  # orders in a row, over all stages, without an answer: with every second one lost, once in 30,000 times
SKIPPED = 10**6  # for tries: is not asked at all
END = "end"


@dataclass
class StagedState:
    """Where a staged method is: plain arrays under names, the stage, and who has answered in it."""

    info: FederationInfo
    stage: str
    memory: Arrays = field(default_factory=dict)
    asked: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    answers: dict[int, Floats] = field(default_factory=dict)
    silent: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # orders since a device was last heard

    def number(self, name: str) -> int:
        """Return a whole number kept in memory."""
        return int(self.memory[name][0])

    def put(self, name: str, value: Any) -> None:
        """Keep something in memory."""
        self.memory[name] = np.atleast_1d(np.asarray(value))

    @property
    def waiting(self) -> Bools:
        """Who has still to answer in this stage."""
        waiting = (self.asked < TRIES) | ((self.silent < GONE) & (self.asked < SKIPPED))
        waiting[list(self.answers)] = False
        return waiting


@dataclass(frozen=True)
class Staged(Method[StagedState], GathersReplies):
    """A method whose stages are pairs of methods ``_ask_X(state, devices)`` and ``_take_X(state)``.

    The first returns a task for each device. The second is called when all have answered and returns the name of
    the next stage. ``_skip_X(state)`` names the devices that need not be asked, where there are any.
    """

    first: ClassVar[str]

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> StagedState:
        state = StagedState(info, self.first, silent=np.zeros(info.m, np.int64))
        self._prepare(state, previous)
        self._enter(state, self._first(info))
        return state

    def _first(self, info: FederationInfo) -> str:
        """Return the stage to begin with."""
        return self.first

    @abstractmethod
    def _prepare(self, state: StagedState, before: Outcome | None) -> None:
        """Put into memory what the first stage needs."""

    def devices(self, state: StagedState, drawn: Ints) -> Ints:
        # the least asked first, so that one who is silent does not hold up the others; at least one: stages must end
        waiting = np.flatnonzero(state.waiting)
        order = np.argsort(state.asked[waiting], kind="stable")
        return np.sort(waiting[order[: max(len(drawn), 1)]])

    def tasks(self, state: StagedState, devices: Ints, k: int) -> list[Task]:
        state.asked[devices] += 1
        state.silent[devices] += 1
        asked: list[Task] = getattr(self, f"_ask_{state.stage}")(state, devices)
        return asked

    def update(self, state: StagedState, devices: Ints, values: list[Floats]) -> Residuals | None:
        state.answers |= {int(i): v for i, v in zip(devices, values, strict=True)}
        state.silent[devices] = 0
        while state.stage != END and not state.waiting.any():
            self._enter(state, getattr(self, f"_take_{state.stage}")(state))
        return None

    def _enter(self, state: StagedState, stage: str) -> None:
        state.stage, state.answers = stage, {}
        state.asked = np.zeros(state.info.m, np.int64)
        skip = getattr(self, f"_skip_{stage}", None)
        if skip is not None:
            state.asked[skip(state)] = SKIPPED

    def phase(self, state: StagedState) -> str:
        return state.stage

    def finished(self, state: StagedState) -> bool:
        return state.stage == END
