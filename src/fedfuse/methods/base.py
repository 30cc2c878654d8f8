"""What a method is: the server's state and its rule. It never touches data, processes or the network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError
from fedfuse.fusion import Residuals
from fedfuse.models.base import Model, Start
from fedfuse.schedules import Decay, Grow, parse
from fedfuse.tasks import Part, Task, Work
from fedfuse.types import Floats, Ints

State = TypeVar("State")
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class World:
    """What the server knows of a federation: sizes and counts, never rows."""

    m: int
    model: Model[Any]
    counts: Mapping[str, Ints]  # rows of every device, by part
    initial: Callable[[Start], Floats]
    dtype: np.dtype[Any]
    truth: Ints | None = None  # for the oracle alone

    @property
    def d(self) -> int:
        return self.model.d


class Found(NamedTuple):
    """What a method ends with, and what the next one of a run may begin with."""

    models: Floats  # of every device
    labels: Ints
    lam: float | None = None


@dataclass(frozen=True)
class Method(ABC, Generic[State]):
    """A rule for the server. Parameters are stored here; what changes is in the state of `begin`.

    One round: `tasks` says what each active device is asked, `update` takes in what came back. A state may
    be large, so `update` changes it in place. `pack` and `unpack` turn it into plain arrays and back: that is
    all a checkpoint needs.

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
    start: Start = "auto"
    work: Work = field(default_factory=Work)
    rows: Part = "train+validation"

    def __post_init__(self) -> None:
        if self.start not in get_args(Start):
            raise FedfuseError(f"start must be 'auto', 'zero' or 'normal', got {self.start!r}")
        if self.rows not in ("train", "train+validation"):
            words = "rows must be 'train' or 'train+validation' (test rows are never trained on)"
            raise FedfuseError(f"{words}, got {self.rows!r}")

    @property
    def plan(self) -> tuple[Method[Any], ...]:
        """What really runs, one after the other: most methods are their own plan."""
        return (self,)

    @property
    def rounds(self) -> int | None:
        """A limit on rounds of the method's own, in place of the run's."""
        return None

    @abstractmethod
    def begin(self, world: World, before: Found | None = None) -> State:
        """Return the state before the first round; ``before`` is what the plan's last method has found."""

    @abstractmethod
    def opening(self, state: State) -> dict[int, Task]:
        """Return what is sent before the first round (device: task)."""

    def closing(self, state: State) -> dict[int, Task]:
        """Return what is sent before the plan's next method begins."""
        return {}

    def recovery(self, state: State) -> list[dict[int, Task]]:
        """Return what brings devices up to date that have lost their memory, in this order."""
        return [self.opening(state)]

    def given(self, lam: float | None) -> Method[Any]:
        """Return the method with the lambda that the plan's last method has found, where it waits for one."""
        return self

    def sureness(self, state: State) -> tuple[float, Floats] | None:
        """Return how sure the grouping is, as a whole and for every device (0 to 1), where the method can tell."""
        return None

    def devices(self, state: State, drawn: Ints) -> Ints:
        """Return who is asked in this round: the devices drawn, unless the method has reasons of its own."""
        return drawn

    def finished(self, state: State) -> bool:
        """Whether the method itself has come to an end."""
        return False

    def settled(self, state: State) -> bool:
        """Whether it has, and not because it ran out of rounds."""
        return self.finished(state)

    @abstractmethod
    def tasks(self, state: State, devices: Ints, k: int) -> list[Task]:
        """Return one task for each active device of round k."""

    @abstractmethod
    def update(self, state: State, devices: Ints, values: list[Floats]) -> Residuals | None:
        """Take in the replies of a round; say how far it moved things, where the method can tell."""

    @abstractmethod
    def models(self, state: State) -> Floats:
        """Return the parameters that every device has now (m x d)."""

    @abstractmethod
    def labels(self, state: State) -> Ints:
        """Return the cluster of every device now."""

    @abstractmethod
    def final(self, state: State, world: World) -> Found:
        """Return every device's parameters and cluster at the end."""

    def validated(self, state: State, found: Found) -> Floats | None:
        """Return the models that never saw the validation rows, for their score; None if there are none."""
        return None if "validation" in self.rows else found.models

    @abstractmethod
    def pack(self, state: State) -> Arrays:
        """Return the state as arrays."""

    @abstractmethod
    def unpack(self, arrays: Arrays, world: World) -> State:
        """Build the state that `pack` took apart."""

    def describe(self, state: State) -> dict[str, Any]:
        """Return what the history should say of the state besides the common columns."""
        return {}

    def to_config(self) -> dict[str, Any]:
        """Return the method as JSON-ready data (see `methods.from_config`)."""
        return {"method": self.name, **{f.name: _plain(getattr(self, f.name)) for f in fields(self)}}


def _plain(value: Any) -> Any:
    if isinstance(value, Work):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Method):
        return value.to_config()
    return str(value) if isinstance(value, (Grow, Decay)) else value


def work_from_config(config: dict[str, Any]) -> Work:
    """Build the work that a method's configuration describes."""
    return Work(**{**config, "steps": parse(config["steps"]), "lr": parse(config["lr"])})


def check_share(name: str, value: float) -> None:
    """Raise unless 0 < value <= 1."""
    if not isinstance(value, Real) or not 0 < value <= 1:
        raise FedfuseError(f"{name} must be a share above 0 and at most 1, got {value!r}")
