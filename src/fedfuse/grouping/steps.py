"""Methods made of steps: in each step every device is asked once, then the server draws its conclusions.

Devices are asked as many at a time as take part in a round, those that were asked least often first. A device that does
not answer is asked again. The step goes on without it after three orders, if it has also been silent for so long that
it must be gone: even where every second reply is lost, nobody is left out.

A device that sends what no honest device can send becomes a suspect: its answers are dropped, it is a group of its
own from then on, and it is asked again only in steps where it can harm nobody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from fedfuse.core.partitions import canonical
from fedfuse.core.robust_mean import Robust
from fedfuse.errors import FedfuseError, check_choice
from fedfuse.grouping.admission import admit_by_losses
from fedfuse.grouping.simulated_replies import SimulatedReplies
from fedfuse.methods.method import FederationInfo, Method, Outcome, Residuals
from fedfuse.methods.mixins import AdmissionDialogue, AdmitsNewcomers, GathersReplies, RunSummary
from fedfuse.protocol.reply_checks import apart, possible_judgement
from fedfuse.protocol.tasks import Task
from fedfuse.utils.typing import Bools, Floats, Ints

# Orders to a device in one step before the step may go on without it.
MAX_TRIES = 3
# Orders in a row without an answer, over all steps, after which a device counts as gone. Where every second reply is
# lost this happens once in 30,000 times.
MAX_SILENT_ORDERS = 15
# Value of `StepState.asked` for a device that takes no part in a step.
SKIPPED = 10**6
# What the last step names as the next one.
END = "end"


@dataclass
class StepState:
    """Where a method is, who has answered, and what it has found so far."""

    info: FederationInfo
    labels: Ints
    previous: InitVar[Outcome | None] = None
    step: str = END
    lam: float | None = None  # of the stage before
    suspects: Bools = field(init=False)
    reasons: dict[str, str] = field(default_factory=dict)  # for being a suspect, by device (as text, for JSON)
    models: Floats = field(init=False)  # one row per group
    validated_models: Floats | None = None  # the same, trained without validation rows
    confidence: Floats | None = None
    asked: Ints = field(init=False)  # orders to each device in this step
    silent: Ints = field(init=False)  # orders since each device was last heard
    answers: dict[int, Floats] = field(default_factory=dict)

    def __post_init__(self, previous: Outcome | None) -> None:
        m = self.info.m
        self.suspects, self.asked, self.silent = np.zeros(m, np.bool_), np.zeros(m, np.int64), np.zeros(m, np.int64)
        if previous is not None:
            self.lam, self.reasons = previous.lam, dict(previous.reasons)
            self.suspects[np.asarray(previous.suspects, np.int64)] = True
        self.labels = apart(self.labels, self.suspects)
        self.models = np.zeros((int(self.labels.max()) + 1, self.info.d))

    @property
    def waiting(self) -> Bools:
        """Which devices have still to answer in this step."""
        waiting = (self.asked < MAX_TRIES) | ((self.silent < MAX_SILENT_ORDERS) & (self.asked < SKIPPED))
        waiting[list(self.answers)] = False
        return waiting

    @property
    def trusted(self) -> Ints:
        """The devices that are not suspects."""
        return np.flatnonzero(~self.suspects)

    @property
    def n_trusted_groups(self) -> int:
        """How many groups have trusted members; they come first."""
        return int(self.labels[~self.suspects].max(initial=-1)) + 1

    def expel(self, devices: Ints | list[int], reason: str) -> None:
        """Make devices suspects, and drop what they have answered."""
        self.reasons |= {str(int(i)): reason for i in devices if not self.suspects[i]}
        self.suspects[devices] = True
        self.asked[self.suspects] = SKIPPED
        self.answers = {i: answer for i, answer in self.answers.items() if not self.suspects[i]}

    def filled(self, values: Floats) -> Floats:
        """Return a copy of one row per device, with the answers in place of the rows of devices that answered."""
        new: Floats = values.copy()
        for i, answer in self.answers.items():
            new[i] = answer
        return new

    # -- what kinds of states have of their own

    @property
    def simulable(self) -> Bools | None:
        """Which devices the server can reply for; None if all are to be asked themselves."""
        return None

    def simulated(self) -> SimulatedReplies:
        """Return what replies in the place of devices."""
        raise NotImplementedError

    def active(self, drawn: int) -> int:
        """Return how many devices are asked in a round for which so many were drawn."""
        return drawn

    def device_models(self, models: Floats) -> Floats:
        """Return the model of every device, from one per group."""
        return np.asarray(models[self.labels])

    def stability(self) -> float | None:
        """Return how sure the grouping is as a whole (0 to 1), where that can be told."""
        return None

    def recovery(self) -> list[dict[int, Task]]:
        """Return what brings devices up to date that have lost their memory."""
        return []


S = TypeVar("S", bound=StepState)


class Step(ABC, Generic[S]):
    """One exchange with all devices."""

    name: ClassVar[str]
    # Whether suspects take part, because their answers concern nobody else.
    for_all: ClassVar[bool] = False
    # Whether it takes the devices themselves, even where the server can simulate their replies.
    on_devices: ClassVar[bool] = False
    # Whether it is done only where the server can simulate replies.
    with_statistics: ClassVar[bool] = False
    # Whether it is repeated for as many rounds as there are.
    open_ended: ClassVar[bool] = False
    # Whether the size of its tasks does not depend on what was found before.
    size_is_known: ClassVar[bool] = True

    @abstractmethod
    def ask(self, state: S, devices: Ints) -> list[Task]:
        """Return a task for each of these devices."""

    def hear(self, state: S, answers: dict[int, Floats]) -> Residuals | None:
        """Take in the answers of one round, where that need not wait for all; say how far it moved things."""
        return None

    @abstractmethod
    def take(self, state: S) -> str:
        """Draw conclusions from ``state.answers`` when all have answered; return the name of the next step."""

    def skip(self, state: S) -> Bools:
        """Return which devices need not be asked."""
        return np.zeros(state.info.m, np.bool_)

    def possible(self, state: S, device: int, answer: Floats) -> bool:
        """Whether an honest device can send this; called once for each answer."""
        return True

    def __repr__(self) -> str:
        return f"{self.name}: {(type(self).__doc__ or '').splitlines()[0]}"


class EvaluationStep(Step[S]):
    """Devices send mean losses of several models on their validation rows, with covariances."""

    size_is_known = False

    def possible(self, state: S, device: int, answer: Floats) -> bool:
        return possible_judgement(answer)


@dataclass(frozen=True)
class StepMethod(Method[S], GathersReplies, AdmitsNewcomers):
    """A method that goes from step to step.

    Parameters
    ----------
    robust
        ``"screen"``: devices that send what no honest device can send are left out. ``"median"``, ``"trimmed"`` and
        ``"krum"`` also take the place of the mean over a group's members. ``"none"``: everybody is believed.
    """

    robust: Robust = "screen"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("robust", self.robust, Robust)

    @abstractmethod
    def steps(self) -> dict[str, Step[Any]]:
        """Return the steps by name, the first one first."""

    @abstractmethod
    def first_state(self, info: FederationInfo, previous: Outcome | None) -> S:
        """Return the state before the first step."""

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> S:
        state = self.first_state(info, previous)
        self._enter(state, next(iter(self.steps())))
        self._advance(state)
        return state

    def step(self, state: S) -> Step[Any] | None:
        """Return the step that a method is at; None at the end."""
        return self.steps().get(state.step)

    def devices(self, state: S, drawn: Ints) -> Ints:
        # Those asked least often come first, so that silent devices do not hold up the others. At least one: steps end.
        waiting = np.flatnonzero(state.waiting)
        order = np.argsort(state.asked[waiting], kind="stable")
        return np.sort(waiting[order[: max(state.active(len(drawn)), 1)]])

    def tasks(self, state: S, devices: Ints, k: int) -> list[Task]:
        step = self.step(state)
        assert step is not None, "the method has come to its end"
        state.asked[devices] += 1
        state.silent[devices] += 1
        return step.ask(state, devices)

    def update(self, state: S, devices: Ints, values: list[Floats]) -> Residuals | None:
        residuals = self._take_in(state, devices, values)
        if self._simulates(state):
            simulated = state.simulated()
            while self._simulates(state):
                devices = np.flatnonzero(state.waiting)
                self._take_in(state, devices, simulated.answers(self.tasks(state, devices, 0), devices))
        return residuals

    def _simulates(self, state: S) -> bool:
        step = self.step(state)
        return step is not None and not step.on_devices and state.simulable is not None

    def _take_in(self, state: S, devices: Ints, values: list[Floats]) -> Residuals | None:
        """Take in the answers that honest devices can give, and go on if they are complete."""
        step, answers = self.step(state), {int(i): v for i, v in zip(devices, values, strict=True)}
        if step is not None and not step.for_all:
            wrong = [i for i, answer in answers.items() if not step.possible(state, i, answer)]
            if self.robust != "none":
                state.expel(wrong, f"its answer is none that an honest device can give ({step.name})")
            answers = {i: answer for i, answer in answers.items() if not state.suspects[i]}
        state.answers |= answers
        state.silent[list(answers)] = 0
        residuals = step.hear(state, answers) if step is not None and answers else None
        self._advance(state)
        return residuals

    def _advance(self, state: S) -> None:
        while (step := self.step(state)) is not None and not state.waiting.any():
            self._enter(state, step.take(state))

    def _enter(self, state: S, name: str) -> None:
        state.step, state.answers = name, {}
        state.asked = np.zeros(state.info.m, np.int64)
        step = self.step(state)
        if step is None:
            return
        state.asked[step.skip(state)] = SKIPPED
        if not step.for_all:
            state.asked[state.suspects] = SKIPPED
        if state.simulable is not None and not step.on_devices:
            state.asked[~state.simulable] = SKIPPED

    def phase(self, state: S) -> str:
        return state.step

    def finished(self, state: S) -> bool:
        return state.step == END

    def settled(self, state: S) -> bool:
        step = self.step(state)
        return step is None or step.open_ended

    def current(self, state: S) -> Outcome:
        validated = None if state.validated_models is None else state.device_models(state.validated_models)
        models, suspects = state.device_models(state.models), np.flatnonzero(state.suspects)
        found = Outcome(models, canonical(state.labels), state.lam, suspects=suspects, validated=validated)
        return found._replace(reasons=state.reasons)

    def outcome(self, state: S) -> Outcome:
        return self.current(state)._replace(stability=state.stability(), confidence=state.confidence)

    def describe(self, state: S) -> dict[str, Any]:
        return {} if state.lam is None else {"lam": state.lam}

    def recovery(self, state: S) -> list[dict[int, Task]]:
        return state.recovery()

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        return admit_by_losses(known, info, self.work, "train+validation", device)


def by_name(*steps: Step[Any]) -> dict[str, Step[Any]]:
    """Return steps in a table by their names."""
    return {step.name: step for step in steps}


def found_labels(previous: Outcome | None) -> Ints:
    """Return the groups that the stage before has found."""
    assert previous is not None, "a refit comes after a stage that finds groups"
    return canonical(previous.labels)


def true_labels(info: FederationInfo) -> Ints:
    """Return the true groups."""
    if info.truth is None:
        raise FedfuseError("the oracle needs the true groups, but these data have none")
    return canonical(info.truth)
