"""FPFC with its lambda chosen from a grid: the paper's two strategies (section 4.3 and 6.3).

    separate: for each lambda a fresh start, trained until nothing changes any more; the best on validation rows is kept
    warm-up:  lambda_1 < lambda_2 < …, each from where the last one ended (omega, theta and v); a lambda is done when
              the validation metric changes by less than tol from one round to the next; as soon as a lambda ends
              worse than the one before it, go back to that one and train on with it; keep what that comes to unless it
              is worse than what was gone back to

Where we depart from the paper: it lets a single small change between two rounds end a lambda. With 30 % of the devices
in a round such a change is an accident, so warm-up looks at the mean change per round over ten rounds. A lambda is
"worse" when its omega_i end worse than the best so far by more than tol, and by more than a standard error (of the
differences between devices' scores). Separate tuning has converged when no residual exceeds tol, as everywhere in
fedfuse: a flat validation curve says little there.

Of the lambdas tried, what they come to decides: in the last of its rounds every device scores its group's model on its
validation rows. FPFC's own omega_i would favour a lambda that is too small wherever the loop rests before devices are
fused, as on housing and body fat. Scores of few rows are noisy, so that of lambdas that are not worse than the best by
more than a standard error the one with the fewest groups is chosen: the one-standard-error rule of Breiman, Friedman,
Olshen and Stone (1984).

Devices train on their training rows and send, with each upload, one number more: their accuracy or RMSE on their
validation rows. After a fresh start or a step back the server sends a device its model again before its next turn. All
of this is counted. A grid that is not given comes, without a further message, from the distances between the models of
lambda = 0, from their 5 % quantile to the largest: the penalty reaches as far as a lambda.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from fedfuse.errors import FedfuseError, check_choice
from fedfuse.methods.fpfc import FPFC, FPFCL1, BaseFPFC, FPFCState
from fedfuse.methods.method import FederationInfo, Method, Outcome
from fedfuse.pairs.state import FusionState, Residuals
from fedfuse.protocol.tasks import Install, Score, Task, Train
from fedfuse.results.result import mean_score
from fedfuse.utils.files import Arrays
from fedfuse.utils.typing import Bools, Floats, Ints

Strategy: TypeAlias = Literal["warmup", "separate"]
# Lambdas besides 0 in a grid that is not given.
N_LAMBDAS = 8
# Rounds over which warm-up takes the mean change per round.
SLOPE_ROUNDS = 10
# What the history calls the rounds after the choice.
FINAL_STAGE = "training on"


@dataclass
class LambdaPathState:
    """The pairs, and where in the grid we are."""

    info: FederationInfo
    fusion: FPFCState
    grid: list[float]
    place: int = 0  # in the grid
    age: int = 0  # rounds with this lambda
    lineage: int = 0  # rounds that have led to these models
    calm: int = 0  # uploads, the last ones with this lambda, that moved nothing
    choosing: bool = True
    judging: bool = False  # whether this lambda is done, and its groups' models are to be scored
    goal: int = 0  # rounds that shall lead to the final models
    ended: bool = False
    watched: list[float] = field(default_factory=list)  # validation metric, round by round, with this lambda
    groups: list[int] = field(default_factory=list)  # that each lambda ended with
    # Lambdas x devices: scores of omega_i, more is better.
    ends: Floats = field(default_factory=lambda: np.empty((0, 0)))
    judged: Floats = field(default_factory=lambda: np.empty((0, 0)))  # the same of the groups' models
    best: int = 0  # place of the lambda that is kept
    row: dict[str, Any] = field(default_factory=dict)  # what the last round was
    scores: Floats = field(default_factory=lambda: np.empty(0))  # of every device; nan if not known
    stale: Bools = field(default_factory=lambda: np.empty(0, np.bool_))  # who has another model than the server thinks
    kept: Arrays = field(default_factory=dict)  # the best so far

    @property
    def lam(self) -> float:
        return self.grid[self.place]


@dataclass(frozen=True)
class LambdaPath(Method[LambdaPathState]):
    """Choose lambda for ``inner`` from ``grid`` by the validation metric; warm-up then trains on with it."""

    name: ClassVar[str] = "tuned"
    inner: BaseFPFC = field(default_factory=lambda: FPFC(lam=0.0))  # its own lambda and rows do not matter
    strategy: Strategy = "warmup"
    grid: tuple[float, ...] = ()  # increasing; none: from the distances between the models of lambda = 0
    # Rounds of one training: of each lambda with ``separate``, of the way from the start to the final models with
    # ``warmup`` (training on may always take a quarter of it). Each lambda has a round more, in which it is judged.
    limit: int = 2000
    precision: float = 1e-4  # the change in the validation metric that no longer counts

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.inner, BaseFPFC):
            other = getattr(self.inner, "name", self.inner)
            raise FedfuseError(f"lambda can be tuned for fpfc and fpfc-l1, not for {other}")
        check_choice("strategy", self.strategy, Strategy)
        object.__setattr__(self, "grid", tuple(float(lam) for lam in self.grid))
        if any(b <= a for a, b in zip(self.grid, self.grid[1:], strict=False)):
            raise FedfuseError(f"the grid of lambdas must increase, got {', '.join(f'{g:g}' for g in self.grid)}")
        for lam in self.grid:
            self.at(lam)
        if self.limit < 1:
            raise FedfuseError(f"rounds must be at least 1, got {self.limit}")

    def at(self, lam: float) -> BaseFPFC:
        """Return the method that trains with this lambda."""
        return replace(self.inner, lam=lam, refit=False, rows="train")

    # -- one round

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> LambdaPathState:
        state = LambdaPathState(info, self._fresh(info, previous), list(self.grid) or [0.0])
        state.scores, state.stale = np.full(info.m, np.nan), np.zeros(info.m, np.bool_)
        state.ends = state.judged = np.empty((0, info.m))
        return state

    def _fresh(self, info: FederationInfo, previous: Outcome | None = None) -> FPFCState:
        return self.at(self.grid[0] if self.grid else 0.0).init(info, previous)

    def opening(self, state: LambdaPathState) -> dict[int, Task]:
        return {i: Install(w) for i, w in enumerate(state.fusion.models)}

    def devices(self, state: LambdaPathState, drawn: Ints) -> Ints:
        return np.flatnonzero(state.info.counts["validation"] > 0) if state.judging else drawn

    def tasks(self, state: LambdaPathState, devices: Ints, k: int) -> list[Task]:
        if state.judging:
            return [Score(w) for w in self.outcome(state).models[devices]]
        work, fusion = self.inner.work.at(state.lineage), state.fusion
        fusion.pairs.penalty = self.at(state.lam).penalty
        anchors, models = fusion.pairs.anchors(devices), fusion.models
        # who is up to date needs the shared part alone, where there is one
        trunk: dict[str, Any] = {"start": fusion.shared, "into": "shared"} if fusion.shared.size else {}
        starts = [{"start": models[i].copy()} if state.stale[i] else trunk for i in devices]
        return [
            Train(work, anchor=zeta, rho=self.inner.rho, rows="train", score="validation", **start)
            for start, zeta in zip(starts, anchors, strict=True)
        ]

    def update(self, state: LambdaPathState, devices: Ints, values: list[Floats]) -> Residuals | None:
        if state.judging:
            if values:
                self._judge(state, devices, np.array([float(v[0]) for v in values]))
            return None
        replies = np.array(values).reshape(len(devices), state.info.d + 1)
        residuals = state.fusion.update(devices, replies[:, :-1])
        judge = state.info.counts["validation"][devices] > 0
        state.scores[devices[judge]] = replies[judge, -1]
        state.stale[devices] = False
        state.age, state.lineage = state.age + 1, state.lineage + 1
        state.calm = state.calm + len(devices) if residuals.largest <= self.precision else 0
        state.watched.append(mean_score(state.scores))
        state.row = {"lam": state.lam, "watched": state.watched[-1], "groups": np.nan}
        if not state.choosing:
            state.judging = state.lineage >= state.goal
            return residuals
        state.judging = self._done(state)
        return None  # one lambda may have converged, but not the method

    def phase(self, state: LambdaPathState) -> str:
        of = f"{state.place + 1} of {len(state.grid)}" if len(state.grid) > 1 else "1"
        return f"trying {of}" if state.choosing else FINAL_STAGE

    # -- when a lambda is done, and what comes then

    def _done(self, state: LambdaPathState) -> bool:
        if state.calm >= 2 * state.info.m:
            return True
        if self.strategy == "separate":
            return state.age >= self.limit
        return state.age >= self._cap or _change(state.watched, SLOPE_ROUNDS) / SLOPE_ROUNDS < self.precision

    @property
    def _cap(self) -> int:
        """The most rounds for one lambda with ``warmup``."""
        return -(-self.limit // 4)

    def _judge(self, state: LambdaPathState, devices: Ints, scores: Floats) -> None:
        judged = np.full(state.info.m, np.nan)
        judged[devices] = np.where(np.isnan(scores), np.inf, scores)  # what diverged is the worst
        sign = 1 if state.info.model.goal == "classification" else -1
        state.judged = np.vstack([state.judged, sign * judged])
        state.ends = np.vstack([state.ends, sign * state.scores])
        state.groups.append(int(self.current(state).labels.max()) + 1)
        state.row |= {"watched": float(np.mean(scores)), "groups": state.groups[-1]}
        state.judging = False
        self._next(state) if state.choosing else self._end(state)

    def _next(self, state: LambdaPathState) -> None:
        if not self.grid and len(state.grid) == 1:
            state.grid += self._grid_from(state.fusion.pairs)
        here, good = state.place, no_worse(state.judged, self.precision)
        means = np.nanmean(state.judged, axis=1)
        # The best one is good, and it is either this one or what kept its place beside it.
        state.best = min((k for k in {state.best, here} if good[k]), key=lambda k: (state.groups[k], -means[k], k))
        if state.best == here:
            self._keep(state)
        worse = not no_worse(state.ends, self.precision)[here]
        if here + 1 == len(state.grid) or (worse and self.strategy == "warmup"):
            self._go_back(state)
            return
        state.place += 1
        if self.strategy == "separate":
            state.fusion = self._fresh(state.info)
            state.scores[:], state.stale[:], state.lineage = np.nan, True, 0
        self._restart(state)

    def _keep(self, state: LambdaPathState) -> None:
        packed = {name: array.copy() for name, array in state.fusion.pack().items()}
        state.kept = {**packed, "scores": state.scores.copy(), "lineage": np.array([state.lineage])}

    def _go_back(self, state: LambdaPathState) -> None:
        if state.best != state.place:
            self._restore(state)
        state.choosing = False
        state.goal = max(self.limit, state.lineage + self._cap)
        state.ended = self.strategy == "separate"  # it has been trained to the end
        self._restart(state)

    def _end(self, state: LambdaPathState) -> None:
        """Keep what training on has come to, unless it is worse than what was chosen."""
        if not no_worse(state.judged[[state.best, -1]], self.precision)[1]:
            self._restore(state)
        state.ended = True

    def _restore(self, state: LambdaPathState) -> None:
        own = ("scores", "lineage")
        state.place, state.scores = state.best, state.kept["scores"].copy()
        state.lineage = int(state.kept["lineage"][0])
        state.fusion = state.fusion.filled({name: array for name, array in state.kept.items() if name not in own})
        state.stale[:] = True

    def _restart(self, state: LambdaPathState) -> None:
        state.fusion.pairs.penalty = self.at(state.lam).penalty
        state.age = state.calm = 0
        state.watched = []

    def _grid_from(self, pairs: FusionState) -> list[float]:
        distances = pairs.distances()[np.tril_indices(pairs.m, -1)]
        distances = distances[distances > 0]
        if not distances.size:
            return []
        largest = distances.max() / self.inner.reach
        # l1 pulls at any distance, and so acts long before it reaches
        smallest = largest / 50 if isinstance(self.inner, FPFCL1) else np.quantile(distances, 0.05) / self.inner.reach
        lambdas = np.geomspace(smallest, largest, N_LAMBDAS)
        least = 2 * getattr(self.inner, "xi", 0.0)
        return sorted({float(f"{lam:.3g}") for lam in lambdas if lam > least})

    # -- what there is to see

    def finished(self, state: LambdaPathState) -> bool:
        return state.ended

    def settled(self, state: LambdaPathState) -> bool:
        # whether training on has converged, the run can tell
        return self.strategy == "separate" and state.lineage < self.limit

    def current(self, state: LambdaPathState) -> Outcome:
        # All lambdas are trained on training rows alone, so validation rows may score the models.
        found = self.at(state.lam).current(state.fusion)
        return found._replace(validated=found.models)

    def outcome(self, state: LambdaPathState) -> Outcome:
        found = self.at(state.lam).outcome(state.fusion)
        return found._replace(validated=found.models)

    def describe(self, state: LambdaPathState) -> dict[str, Any]:
        return state.row


def path_rounds(strategy: Strategy, n_lambdas: int, limit: int) -> int:
    """Return how many rounds a path can take: those of each lambda, with the one in which it is judged, and the rest.

    >>> path_rounds("separate", 11, 200), path_rounds("warmup", 11, 200)
    (2211, 812)
    """
    cap = -(-limit // 4)
    return n_lambdas * (limit + 1) if strategy == "separate" else n_lambdas * (cap + 1) + limit + cap + 1


def path_limit(strategy: Strategy, n_lambdas: int, rounds: int) -> int:
    """Return the limit of a path that takes at most so many rounds.

    >>> path_limit("separate", 11, 2211), path_limit("warmup", 11, 812)
    (200, 200)
    """
    warm = 4 * (rounds - n_lambdas - 1) // (n_lambdas + 5)
    return max(1, rounds // n_lambdas - 1 if strategy == "separate" else warm)


def no_worse(scores: Floats, precision: float = 0.0) -> Bools:
    """Return which rows are not worse than the best by more than the standard error of the difference between them.

    Columns are devices, more is better, and nan is not known.

    >>> no_worse(np.array([[0.9, 0.8, 0.7], [0.8, 0.8, 0.7], [0.5, 0.4, 0.3]])).tolist()
    [True, True, False]
    """
    with np.errstate(invalid="ignore"):  # of rows that are infinitely bad
        behind = scores[int(np.nanmean(scores, axis=1).argmax())] - scores
        error = np.nanstd(behind, axis=1) / np.sqrt(np.maximum(np.sum(~np.isnan(behind), axis=1) - 1, 1))
        return np.asarray(np.nanmean(behind, axis=1) <= np.fmax(error, precision))


def _change(values: list[float], window: int) -> float:
    """Return how much the mean of the last ``window`` values differs from that of as many before; inf if too few."""
    if len(values) < 2 * window:
        return np.inf
    return float(abs(np.mean(values[-window:]) - np.mean(values[-2 * window : -window])))
