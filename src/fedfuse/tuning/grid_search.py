"""Settings that were left open: each candidate is tried on training rows, and validation rows choose.

    for each candidate: a fresh start, some rounds on the training rows; every device then sends the score of its model
    on its validation rows; the best is handed on, to be trained from a fresh start on all rows that it may use

Everything that is sent for this is counted. `grouping.lambda_path` does the same for lambda, where warm starts save rounds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from fedfuse.data.federation import Part
from fedfuse.errors import FedfuseError
from fedfuse.methods.method import Arrays, FederationInfo, Method, Outcome
from fedfuse.pairs.state import Residuals
from fedfuse.protocol.tasks import Score, Task
from fedfuse.utils.typing import Floats, Ints

TRYING, JUDGING, END = "trying", "judging", "end"
TRIAL = 50  # rounds for each candidate, where nothing else is said and training is no shorter


@dataclass
class SearchState:
    """The state of the candidate at work, and which it is."""

    info: FederationInfo
    inner: Any
    grid: list[dict[str, Any]] = field(default_factory=list)
    place: int = 0
    stage: str = TRYING
    age: int = 0  # rounds of this stage
    scores: Floats = field(default_factory=lambda: np.empty(0))  # of every device with this candidate; nan: not known
    outcome: list[float] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)  # what the last round was
    opening: bool = False  # whether devices are still to hear of a fresh start


_PLAIN = ("grid", "place", "stage", "age", "outcome", "row")


@dataclass(frozen=True)
class GridSearch(Method[SearchState]):
    """Choose open settings of ``inner`` on validation rows, then train with them.

    Parameters
    ----------
    inner
        `CFL`, `PACFL` or `IFCA`: a method with `candidates`.
    trial
        Rounds for each candidate; 50 by default, or as many as will be trained, if these are fewer.
    grid
        Candidates, settings by name each; default: the method's own.
    """

    name: ClassVar[str] = "searched"
    inner: Method[Any] = None  # type: ignore[assignment]
    trial: int | None = None
    grid: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.inner, Method):
            raise FedfuseError(f"a search needs a method to search settings for, got {self.inner!r}")
        if self.trial is not None and self.trial < 1:
            raise FedfuseError(f"trial must be at least 1 round, got {self.trial}")
        object.__setattr__(self, "grid", tuple(dict(settings) for settings in self.grid))
        known = {f.name for f in fields(self.inner)}
        for settings in self.grid:
            if not settings or not known.issuperset(settings):
                words = f"method {self.inner.name!r} has no such settings to choose from: {settings}"
                raise FedfuseError(f"{words}; it has {', '.join(sorted(known))}")
            self.at(settings)

    @property
    def plan(self) -> tuple[Method[Any], ...]:
        return (self, self.inner)

    def at(self, settings: dict[str, Any], rows: Part = "train") -> Method[Any]:
        """Return the method with these settings."""
        return replace(self.inner, **settings, rows=rows)

    def _now(self, state: SearchState) -> Method[Any]:
        if not state.grid:  # candidates may depend on what devices send first
            return replace(self.inner, rows="train")
        return self.at(state.grid[state.place])

    def given(self, before: Outcome | None) -> Method[Any]:
        return self

    @property
    def rounds(self) -> int | None:
        return 10**9  # ends by itself

    def within(self, rounds: int) -> GridSearch:
        return self if self.trial else replace(self, trial=min(TRIAL, rounds))

    def begin(self, info: FederationInfo, before: Outcome | None = None) -> SearchState:
        if not (info.counts["validation"] > 0).any():
            raise FedfuseError(f"{self.inner.name} chooses its settings by validation rows, and no device has any")
        state = SearchState(info, replace(self.inner, rows="train").begin(info, before))
        state.scores = np.full(info.m, np.nan)
        return state

    def opening(self, state: SearchState) -> dict[int, Task]:
        return self._now(state).opening(state.inner)

    def opened(self, state: SearchState, devices: Ints, values: list[Floats]) -> None:
        self._now(state).opened(state.inner, devices, values)
        state.grid = [dict(c) for c in self.grid] or self.inner.candidates(state.inner)
        state.inner = self._now(state).fresh(state.info, state.inner)

    def recovery(self, state: SearchState) -> list[dict[int, Task]]:
        return self._now(state).recovery(state.inner) if state.stage != END else []

    def devices(self, state: SearchState, drawn: Ints) -> Ints:
        if state.stage == JUDGING:
            return np.flatnonzero(state.info.counts["validation"] > 0)
        return self._now(state).devices(state.inner, drawn)

    def tasks(self, state: SearchState, devices: Ints, k: int) -> list[Task]:
        method = self._now(state)
        if state.stage == JUDGING:
            return [Score(w) for w in method.models(state.inner)[devices]]
        return method.tasks(state.inner, devices, state.age)

    def update(self, state: SearchState, devices: Ints, values: list[Floats]) -> Residuals | None:
        state.age += 1
        state.row = {"stage": state.stage, "candidate": state.place, **state.grid[state.place], "watched": np.nan}
        if state.stage == JUDGING:
            self._judged(state, devices, values)
            return None
        self._now(state).update(state.inner, devices, values)
        if state.age >= (self.trial or TRIAL):
            state.stage, state.age = JUDGING, 0
        return None  # a candidate may have converged, but not the search

    def _judged(self, state: SearchState, devices: Ints, values: list[Floats]) -> None:
        scores = [float(v[0]) for v in values]
        state.row["watched"] = float(np.mean(scores)) if scores else float("nan")
        state.row["groups"] = int(self._now(state).labels(state.inner).max()) + 1
        state.outcome.append(state.row["watched"])
        state.age = 0
        if state.place + 1 == len(state.grid):
            state.stage, state.place = END, self._best(state)
            return
        state.stage, state.place = TRYING, state.place + 1
        state.inner = self._now(state).fresh(state.info, state.inner)
        state.opening = True

    def _best(self, state: SearchState) -> int:
        sign = 1 if state.info.model.goal == "classification" else -1
        return int(np.argmax(sign * np.nan_to_num(np.array(state.outcome), nan=-sign * np.inf)))

    def broadcast(self, state: SearchState) -> dict[int, Task]:
        method = self._now(state)
        if state.opening:
            state.opening = False
            return method.opening(state.inner)
        return method.broadcast(state.inner) if state.stage == TRYING else {}

    def at_home(self, state: SearchState) -> list[Task] | None:
        return self._now(state).at_home(state.inner)

    def deployed(self, state: SearchState, found: Outcome, seen: list[Floats]) -> Outcome:
        return self._now(state).deployed(state.inner, found, seen)

    def finished(self, state: SearchState) -> bool:
        return state.stage == END

    def models(self, state: SearchState) -> Floats:
        return self._now(state).models(state.inner)

    def labels(self, state: SearchState) -> Ints:
        return self._now(state).labels(state.inner)

    def final(self, state: SearchState, info: FederationInfo) -> Outcome:
        """Return the choice; models and labels are those of the candidate tried last."""
        found = self._now(state).final(state.inner, info)
        return found._replace(settings=state.grid[state.place], kept=self._now(state).keep(state.inner))

    def describe(self, state: SearchState) -> dict[str, Any]:
        return dict(state.row)

    def pack(self, state: SearchState) -> Arrays:
        plain = {name: getattr(state, name) for name in _PLAIN}
        inner = {f"inner_{name}": array for name, array in self._now(state).pack(state.inner).items()}
        return {"header": np.frombuffer(json.dumps(plain).encode(), np.uint8), "scores": state.scores, **inner}

    def unpack(self, arrays: Arrays, info: FederationInfo) -> SearchState:
        plain = json.loads(arrays["header"].tobytes())
        state = SearchState(info, None, **plain, scores=arrays["scores"])
        inner = {k.removeprefix("inner_"): v for k, v in arrays.items() if k.startswith("inner_")}
        state.inner = self._now(state).unpack(inner, info)
        return state
