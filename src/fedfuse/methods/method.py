"""What a method is: the server's state and its rule, in four hooks. It never touches data, processes or the network.

    init     the state before the first round
    tasks    what each active device is asked
    update   what the replies do to the state
    outcome  every device's model and group

A state is a dataclass of arrays and plain values; it is saved as it is (`methods.state_arrays`). What only some methods
have is in `methods.mixins`: they admit newcomers, have settings to search for, take single replies, and so on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from fedfuse.data.federation import Part
from fedfuse.errors import FedfuseError
from fedfuse.methods.parameters import check_field, choice
from fedfuse.models.model import Model, Start
from fedfuse.pairs.state import Residuals as Residuals
from fedfuse.protocol.local_work import SCHEDULES, Work, parse
from fedfuse.protocol.tasks import Task
from fedfuse.utils.typing import Floats, Ints

State = TypeVar("State")
# What devices may be asked for: parameters, gradients and losses; or second moments of their columns too.
Share: TypeAlias = Literal["models", "moments"]


@dataclass(frozen=True)
class FederationInfo:
    """What the server knows of a federation: sizes and counts, never rows."""

    m: int
    model: Model[Any]
    counts: Mapping[str, npt.NDArray[Any]]  # rows of every device, by part; where they have weights, sums of these
    initial: Callable[..., Floats]  # (start, number of the draw = 0)
    dtype: np.dtype[Any]
    truth: Ints | None = None  # for the oracle alone
    seed: int = 0  # for draws of the server's own
    share: Share = "moments"
    claimed: bool = False  # whether row counts are what devices say of rows that nobody here has seen

    @property
    def d(self) -> int:
        return self.model.d

    @property
    def free(self) -> float:
        """Parameters that are free: of the scores of classes, one can be zero."""
        classes = self.model.n_classes
        return self.d * (classes - 1) / classes if classes else self.d


class Outcome(NamedTuple):
    """What a method has found, and what the next stage of a run begins with."""

    models: Floats  # of every device
    labels: Ints
    lam: float | None = None  # strength of the penalty that was used, where there was one
    settings: Mapping[str, Any] = MappingProxyType({})  # that were left open and have been chosen
    kept: Mapping[str, npt.NDArray[Any]] = MappingProxyType({})  # what newcomers and the next stage need besides
    suspects: npt.ArrayLike = ()  # devices that seem to lie
    # Models that never saw the validation rows, for their score; None: ``models``, unless trained on these rows.
    validated: Floats | None = None
    stability: float | None = None  # how sure the grouping is (0 to 1), where the method can tell,
    confidence: Floats | None = None  # and for every device
    reasons: Mapping[str, str] = MappingProxyType({})  # why devices are suspects, by device (as text)
    alternatives: Mapping[str, Floats] = MappingProxyType({})  # models "personal" and "alone" of every device
    verdict: str | None = None  # what predicts best (`grouping.personal`)

    @property
    def in_use(self) -> Floats:
        """The models that devices predict with."""
        return self.models if self.verdict is None else self.alternatives.get(self.verdict, self.models)


@dataclass(frozen=True)
class Method(ABC, Generic[State]):
    """A rule for the server: four hooks, and a few more with defaults that most methods keep.

    Parameters
    ----------
    start
        First parameters of all devices: ``"zero"``, ``"normal"`` for one draw of N(0, 1), or ``"auto"`` for what suits
        the model: zero for linear and softmax regression, its own first weights for a network.
    work
        What a device does when it is active.
    rows
        Which rows devices train on: ``"train"``, or ``"train+validation"`` as validation rows are held back
        only while something is chosen by them.
    """

    name: ClassVar[str]
    finds_groups: ClassVar[bool] = True
    needs_steps: ClassVar[bool] = False  # whether devices must take gradient steps: an exact solver has none
    start: Start = choice("auto", Start)
    work: Work = field(default_factory=Work)
    rows: Part = "train+validation"

    def __post_init__(self) -> None:
        make_plain(self)
        for f in fields(self):
            check_field(f, getattr(self, f.name))
        if self.needs_steps and self.work.solver != "gd":
            raise FedfuseError(f"{self.name} takes gradient steps: it needs solver='gd', got {self.work.solver!r}")
        if self.rows not in ("train", "train+validation"):
            words = "rows must be 'train' or 'train+validation' (test rows are never trained on)"
            raise FedfuseError(f"{words}, got {self.rows!r}")

    @abstractmethod
    def init(self, info: FederationInfo, previous: Outcome | None = None) -> State:
        """Return the state before the first round; ``previous`` is what the stage before has found."""

    @abstractmethod
    def tasks(self, state: State, devices: Ints, k: int) -> list[Task]:
        """Return one task for each active device of round k."""

    @abstractmethod
    def update(self, state: State, devices: Ints, values: list[Floats]) -> Residuals | None:
        """Take in the replies of a round, in place; say how far it moved things, where the method can tell."""

    @abstractmethod
    def outcome(self, state: State) -> Outcome:
        """Return every device's model and group."""

    # -- with defaults

    def current(self, state: State) -> Outcome:
        """Return what devices have in the course of training, where the end differs from it."""
        return self.outcome(state)

    def opening(self, state: State) -> dict[int, Task]:
        """Return what is sent before the first round (device: task)."""
        return {}

    def opened(self, state: State, devices: Ints, values: list[Floats]) -> None:
        """Take in what was answered to the opening, where devices were asked something."""

    def broadcast(self, state: State) -> dict[int, Task]:
        """Return what devices are sent when a round's replies have been taken in; nothing comes back."""
        return {}

    def recovery(self, state: State) -> list[dict[int, Task]]:
        """Return what brings devices up to date that have lost their memory, in this order."""
        return [self.opening(state)]

    def weigh(self, info: FederationInfo, devices: Ints) -> Floats:
        """Return what each of these devices counts for in a mean: its rows."""
        return info.counts[self.rows][devices].astype(np.float64)

    def devices(self, state: State, drawn: Ints) -> Ints:
        """Return who is asked in this round: the devices drawn, unless the method has reasons of its own."""
        return drawn

    def finished(self, state: State) -> bool:
        """Whether the method itself has come to an end."""
        return False

    def settled(self, state: State) -> bool:
        """Whether it has, and not because it ran out of rounds."""
        return self.finished(state)

    def phase(self, state: State) -> str:
        """Return what the history calls the round to come, where a stage has parts."""
        return ""

    def describe(self, state: State) -> dict[str, Any]:
        """Return what the history says of a round besides the common columns."""
        return {}

    def to_config(self) -> dict[str, Any]:
        """Return the method as JSON-ready data (see `methods.registry.from_config`)."""
        return {"method": self.name, **{f.name: _plain(getattr(self, f.name)) for f in fields(self)}}


def moved(old: Floats, new: Floats) -> Residuals:
    """Say how far a round moved parameters (rows), relative to their size."""
    size = float(np.sqrt(np.square(new).sum(axis=1).mean())) or 1.0
    return Residuals(0.0, 0.0, float(np.sqrt(np.square(new - old).sum(axis=1).mean())) / size)


def make_plain(settings: Any) -> None:
    """Turn NumPy's numbers among the fields of a dataclass into Python's, which JSON has words for."""
    for f in fields(settings):
        value = getattr(settings, f.name)
        if isinstance(value, np.generic):
            object.__setattr__(settings, f.name, value.item())


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Work):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Method):
        return value.to_config()
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, SCHEDULES) else value


def work_from_config(config: dict[str, Any]) -> Work:
    """Build the work that a method's configuration describes."""
    return Work(**{**config, "steps": parse(config["steps"]), "lr": parse(config["lr"])})


def check_share(name: str, value: float) -> None:
    """Raise unless 0 < value <= 1."""
    if not isinstance(value, Real) or not 0 < value <= 1:
        raise FedfuseError(f"{name} must be a share above 0 and at most 1, got {value!r}")
