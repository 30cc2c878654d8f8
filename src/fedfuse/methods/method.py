"""What a method is: the server's state and its rule. It never touches data, processes or the network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from fedfuse.core.partitions import cluster_means
from fedfuse.data.federation import Part
from fedfuse.errors import FedfuseError
from fedfuse.models.model import Model, Start
from fedfuse.pairs.state import Residuals
from fedfuse.protocol.local_work import SCHEDULES, Work, parse
from fedfuse.protocol.tasks import Task
from fedfuse.utils.typing import Floats, Ints

State = TypeVar("State")
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class FederationInfo:
    """What the server knows of a federation: sizes and counts, never rows."""

    m: int
    model: Model[Any]
    counts: Mapping[str, Ints]  # rows of every device, by part
    initial: Callable[..., Floats]  # (start, number of the draw = 0)
    dtype: np.dtype[Any]
    truth: Ints | None = None  # for the oracle alone

    @property
    def d(self) -> int:
        return self.model.d


class Outcome(NamedTuple):
    """What a method ends with, and what the next one of a run may begin with."""

    models: Floats  # of every device
    labels: Ints
    lam: float | None = None
    settings: Mapping[str, Any] = MappingProxyType({})  # that were left open, and have been chosen
    kept: Mapping[str, npt.NDArray[Any]] = MappingProxyType({})  # what devices need not send again
    suspects: npt.ArrayLike = ()  # devices that seem to lie


class RunSummary(NamedTuple):
    """What the server still knows when a run is over and somebody new comes."""

    models: Floats  # of every device
    labels: Ints
    counts: Ints  # rows of each
    lam: float | None
    kept: Arrays  # what `Method.keep` kept

    @property
    def clusters(self) -> Ints:
        """The numbers of the clusters; those of suspects alone are not among them."""
        return np.unique(self.labels)

    @property
    def cluster_models(self) -> Floats:
        """One model for each of the clusters; where devices have models of their own, their mean."""
        return cluster_means(self.models, np.searchsorted(self.clusters, self.labels), self.counts)


class AdmissionResult(NamedTuple):
    """A newcomer's model, and the cluster it has come to (None: to none)."""

    model: Floats
    cluster: int | None = None
    sureness: float | None = None


AdmissionDialogue: TypeAlias = Generator[Task, Floats, AdmissionResult]


@dataclass
class ArrayState:
    """A state that is a few arrays under names."""

    info: FederationInfo
    arrays: Arrays = field(default_factory=dict)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.arrays[name]

    def __setitem__(self, name: str, value: npt.ArrayLike) -> None:
        self.arrays[name] = np.asarray(value)

    def __contains__(self, name: str) -> bool:
        return name in self.arrays


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
    clusters: ClassVar[bool] = True  # whether it finds groups of devices
    private: ClassVar[bool] = False  # whether devices hold what the server never sees
    asynchronous: ClassVar[bool] = False  # whether a single reply, to a question of some time ago, is of use
    gathers: ClassVar[bool] = False  # whether replies add up over rounds, however few come in one
    start: Start = "auto"
    work: Work = field(default_factory=Work)
    rows: Part = "train+validation"

    def __post_init__(self) -> None:
        make_plain(self)
        if self.start not in get_args(Start):
            raise FedfuseError(f"start must be 'auto', 'zero' or 'normal', got {self.start!r}")
        if self.rows not in ("train", "train+validation"):
            words = "rows must be 'train' or 'train+validation' (test rows are never trained on)"
            raise FedfuseError(f"{words}, got {self.rows!r}")

    @property
    def plan(self) -> tuple[Method[Any], ...]:
        """What really runs, one after the other: most methods are their own plan."""
        return (self,)

    def plan_for(self, model: Model[Any]) -> tuple[Method[Any], ...]:
        """Return the plan with this model: networks may need another."""
        return self.plan

    @property
    def rounds(self) -> int | None:
        """A limit on rounds of the method's own, in place of the run's."""
        return None

    def within(self, rounds: int) -> Method[Any]:
        """Return the method for a run of so many rounds: a search tries nothing for longer than that."""
        return self

    @abstractmethod
    def begin(self, info: FederationInfo, before: Outcome | None = None) -> State:
        """Return the state before the first round; ``before`` is what the plan's last method has found."""

    @abstractmethod
    def opening(self, state: State) -> dict[int, Task]:
        """Return what is sent before the first round (device: task)."""

    def opened(self, state: State, devices: Ints, values: list[Floats]) -> None:
        """Take in what was answered to `opening`."""

    def broadcast(self, state: State) -> dict[int, Task]:
        """Return what is sent when a round's replies have been taken in. Nothing comes back."""
        return {}

    def at_home(self, state: State) -> list[Task] | None:
        """Return what every device does for itself before it uses its model, one task each; None for nothing.

        It costs nothing and changes nothing: the answers go to `deployed`, for evaluation and for the result.
        """
        return None

    def deployed(self, state: State, found: Outcome, seen: list[Floats]) -> Outcome:
        """Return what devices really use, from what was found and their answers to `at_home`."""
        return found

    def keep(self, state: State) -> Arrays:
        """Return what a newcomer may need later, besides models, labels and lambda."""
        return {}

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Take in a newcomer, device ``device`` of ``world``: yield tasks for it, return its model and cluster."""
        raise FedfuseError(f"{self.name} has no way to take in newcomers")
        yield

    def fresh(self, info: FederationInfo, used: State) -> State:
        """Return a first state for a new training, for which devices need not send again what ``used`` has of them."""
        return self.begin(info)

    def candidates(self, state: State) -> list[dict[str, Any]]:
        """Return the settings to choose from on validation rows, where some were left open (`tuning.grid_search`)."""
        return []

    def closing(self, state: State) -> dict[int, Task]:
        """Return what is sent before the plan's next method begins."""
        return {}

    def recovery(self, state: State) -> list[dict[int, Task]]:
        """Return what brings devices up to date that have lost their memory, in this order."""
        return [self.opening(state)]

    def given(self, before: Outcome | None) -> Method[Any]:
        """Return the method with the settings that the plan's last method has chosen, where it waits for some."""
        return replace(self, **before.settings) if before else self

    def one_at_a_time(self) -> Method[Any]:
        """Return the rule for replies that come one at a time, where the method is `asynchronous`."""
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
    def final(self, state: State, info: FederationInfo) -> Outcome:
        """Return every device's parameters and cluster at the end."""

    def validated(self, state: State, found: Outcome) -> Floats | None:
        """Return the models that never saw the validation rows, for their score; None if there are none."""
        return None if "validation" in self.rows else found.models

    @abstractmethod
    def pack(self, state: State) -> Arrays:
        """Return the state as arrays."""

    @abstractmethod
    def unpack(self, arrays: Arrays, info: FederationInfo) -> State:
        """Build the state that `pack` took apart."""

    def describe(self, state: State) -> dict[str, Any]:
        """Return what the history should say of the state besides the common columns."""
        return {}

    def to_config(self) -> dict[str, Any]:
        """Return the method as JSON-ready data (see `methods.from_config`)."""
        return {"method": self.name, **{f.name: _plain(getattr(self, f.name)) for f in fields(self)}}


@dataclass(frozen=True)
class ArrayStateMethod(Method[ArrayState]):
    """A method whose state is a `ArrayState`: it packs by itself."""

    def pack(self, state: ArrayState) -> Arrays:
        return dict(state.arrays)

    def unpack(self, arrays: Arrays, info: FederationInfo) -> ArrayState:
        return ArrayState(info, dict(arrays))


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
    return str(value) if isinstance(value, SCHEDULES) else value


def work_from_config(config: dict[str, Any]) -> Work:
    """Build the work that a method's configuration describes."""
    return Work(**{**config, "steps": parse(config["steps"]), "lr": parse(config["lr"])})


def check_share(name: str, value: float) -> None:
    """Raise unless 0 < value <= 1."""
    if not isinstance(value, Real) or not 0 < value <= 1:
        raise FedfuseError(f"{name} must be a share above 0 and at most 1, got {value!r}")
