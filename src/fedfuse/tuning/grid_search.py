"""Grid search for settings that were left open: each candidate is tried on training rows, and validation rows choose.

    for each candidate: a fresh start, some rounds on the training rows; every device then sends the score of its model
    on its validation rows; the best is handed on, to be trained from a fresh start on all rows that it may use

Everything that is sent for this is counted. `grouping.lambda_path` does the same for lambda, where warm starts save
rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from fedfuse.data.federation import Part
from fedfuse.errors import FedfuseError
from fedfuse.methods.method import FederationInfo, Method, Outcome
from fedfuse.methods.mixins import GathersReplies, WorksAtHome
from fedfuse.methods.parameters import Searchable
from fedfuse.pairs.state import Residuals
from fedfuse.protocol.tasks import Task
from fedfuse.utils.typing import Floats, Ints

if TYPE_CHECKING:

    class Candidate(Method[Any], Searchable):
        """A method whose settings may be left open."""


TRYING, JUDGING, END = "trying", "judging", "end"
# Rounds for each candidate where nothing else is said and all fit.
TRIAL_ROUNDS = 50


@dataclass
class SearchState:
    """The state of the candidate at work, and which it is."""

    info: FederationInfo
    inner: Any
    grid: list[dict[str, Any]] = field(default_factory=list)
    place: int = 0
    stage: str = TRYING
    age: int = 0  # rounds of this stage
    trial: int = TRIAL_ROUNDS
    outcome: list[float] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)  # what the last round was
    opening: bool = False  # whether devices are still to hear of a fresh start


@dataclass(frozen=True)
class GridSearch(Method[SearchState], WorksAtHome):
    """Choose open settings of ``inner`` on validation rows, then train with them.

    Parameters
    ----------
    inner
        A method with `candidates`, as `CFL`, `PACFL` or `IFCA`.
    trial
        Rounds for each candidate; 50 by default, or as many as fit.
    grid
        Candidates, settings by name each; default: the method's own.
    limit
        Maximum number of rounds of the whole search.
    """

    name: ClassVar[str] = "searched"
    inner: Any = None
    trial: int | None = None
    grid: tuple[dict[str, Any], ...] = ()
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(inner := self.inner, Searchable):
            raise FedfuseError(f"a grid search needs a method with settings to search for, got {inner!r}")
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
    def keeps_models(self) -> bool:  # type: ignore[override]
        """Whether devices hold models that the server never sees."""
        return bool(getattr(self.inner, "keeps_models", False))

    def at(self, settings: dict[str, Any], rows: Part = "train") -> Method[Any]:
        """Return the method with these settings."""
        return replace(self.inner, **settings, rows=rows)

    def _now(self, state: SearchState) -> Candidate:
        """Return the method at work: before there is a grid, which may depend on what devices send first, as given."""
        return cast("Candidate", self.at(state.grid[state.place] if state.grid else {}))

    def _affordable(self, grid: list[dict[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
        """Return how long to try each candidate, and which ones: of too many, those in the middle of equal parts."""
        if self.limit is None or isinstance(self.inner, GathersReplies):  # one exchange does for all candidates
            return self.trial or TRIAL_ROUNDS, grid
        least = max(1, min(self.inner.min_trial_rounds, self.limit // 2 - 1))
        trial = self.trial or min(TRIAL_ROUNDS, max(least, self.limit // len(grid) - 1))
        number = max(1, min(len(grid), self.limit // (trial + 1)))
        if self.trial and number < len(grid):
            need = (trial + 1) * len(grid)
            raise FedfuseError(
                f"{len(grid)} candidates of {trial} rounds need {need} rounds besides training: raise rounds, or "
                "lower trial or the number of candidates"
            )
        return trial, [grid[(2 * k + 1) * len(grid) // (2 * number)] for k in range(number)]

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> SearchState:
        if not (info.counts["validation"] > 0).any():
            raise FedfuseError(f"{self.inner.name} tunes its settings on validation rows, but no device has any")
        return SearchState(info, replace(self.inner, rows="train").init(info, previous))

    def opening(self, state: SearchState) -> dict[int, Task]:
        return self._now(state).opening(state.inner)

    def opened(self, state: SearchState, devices: Ints, values: list[Floats]) -> None:
        method = self._now(state)
        method.opened(state.inner, devices, values)
        state.trial, state.grid = self._affordable([dict(c) for c in self.grid] or method.candidates(state.inner))
        state.inner = self._now(state).restart(state.info, state.inner)

    def recovery(self, state: SearchState) -> list[dict[int, Task]]:
        return self._now(state).recovery(state.inner) if state.stage != END else []

    def devices(self, state: SearchState, drawn: Ints) -> Ints:
        if state.stage == JUDGING:
            return np.flatnonzero(state.info.counts["validation"] > 0)
        return self._now(state).devices(state.inner, drawn)

    def tasks(self, state: SearchState, devices: Ints, k: int) -> list[Task]:
        method = self._now(state)
        if state.stage == JUDGING:
            return method.judging(state.inner, devices)
        return method.tasks(state.inner, devices, state.age)

    def update(self, state: SearchState, devices: Ints, values: list[Floats]) -> Residuals | None:
        state.age += 1
        # A column of the history has numbers: yes and no are 1 and 0.
        tried = {name: int(it) if isinstance(it, bool) else it for name, it in state.grid[state.place].items()}
        state.row = {"candidate": state.place, **tried, "watched": np.nan}
        if state.stage == JUDGING:
            self._judged(state, devices, values)
            return None
        method = self._now(state)
        method.update(state.inner, devices, values)
        if state.age >= state.trial or method.finished(state.inner):
            state.stage, state.age = JUDGING, 0
        return None  # a candidate may have converged, but not the search

    def _judged(self, state: SearchState, devices: Ints, values: list[Floats]) -> None:
        scores = [float(v[0]) for v in values]
        state.row["watched"] = float(np.mean(scores)) if scores else float("nan")
        state.row["groups"] = int(self._now(state).current(state.inner).labels.max()) + 1
        state.outcome.append(state.row["watched"])
        state.age = 0
        if state.place + 1 == len(state.grid):
            state.stage, state.place = END, self._best(state)
            return
        state.place += 1
        method = self._now(state)
        state.inner = method.restart(state.info, state.inner)
        state.stage = JUDGING if method.finished(state.inner) else TRYING
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

    def at_home(self, state: SearchState) -> list[Task]:
        method = self._now(state)
        return method.at_home(state.inner) if isinstance(method, WorksAtHome) else []

    def in_use(self, state: SearchState, found: Outcome, seen: list[Floats]) -> Outcome:
        method = self._now(state)
        return method.in_use(state.inner, found, seen) if isinstance(method, WorksAtHome) else found

    def finished(self, state: SearchState) -> bool:
        return state.stage == END

    def current(self, state: SearchState) -> Outcome:
        return self._now(state).current(state.inner)

    def outcome(self, state: SearchState) -> Outcome:
        """Return the choice; models and labels are those of the candidate tried last."""
        return self._now(state).outcome(state.inner)._replace(settings=state.grid[state.place])

    def phase(self, state: SearchState) -> str:
        return state.stage

    def describe(self, state: SearchState) -> dict[str, Any]:
        return dict(state.row)
