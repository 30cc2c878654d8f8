"""How long and how to train, whatever the method."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import floor
from typing import Any, Literal, TypeAlias

import numpy as np

from fedfuse.engines.attacks import Attack, Lies, Scope
from fedfuse.engines.base import Engine
from fedfuse.engines.faults import Faults, Trouble
from fedfuse.engines.latency import Distribution, Latency
from fedfuse.errors import FedfuseError, guess
from fedfuse.methods.method import Method, Share, check_share, make_plain
from fedfuse.methods.mixins import TakesSingleReplies
from fedfuse.methods.parameters import check_field, choice, number
from fedfuse.protocol.privacy import Noise, calibrated
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Ints

Sampler: TypeAlias = Callable[[int, int], Ints]
Mode: TypeAlias = Literal["sync", "async"]
Late: TypeAlias = Literal["refuse", "use"]
Dtype: TypeAlias = Literal["float32", "float64"]
# Settings of rounds of several devices.
SYNCHRONOUS_ONLY = ("minimum", "budget")


@dataclass(frozen=True)
class Settings:
    """How long and how to train, whatever the method.

    Parameters
    ----------
    rounds
        The maximum number of rounds.
    seed
        Every random draw of the run depends on it.
    participation
        Share of the devices that is active in a round; ``"sizes(0.3)"`` for a share drawn in proportion to the
        devices' rows; for every device its own probability to take part (the paper's Assumption 3); or a function
        ``(round, m) -> device numbers``.
    tol
        Stop when no residual of the last rounds exceeds this; 0 to go on to the last round.
    evaluate_every, metric
        Rounds between two evaluations of groups, validation and test, and what devices are scored by (`core.metrics`):
        ``"accuracy"`` by default, ``"balanced-accuracy"``, ``"log-loss"``, ``"auc"``, ``"f1"``; ``"rmse"`` by default,
        ``"mae"``, ``"r2"``. Groups, and settings that are left open, are chosen in their own ways whatever it is.
    class_weight
        What rows of each class count for in training and in the choice of groups: ``"balanced"``, or by class,
        ``{"a": 1, "b": 5}`` or ``"a=1,b=5"`` (1 for classes left out). Scores are without it.
    checkpoint_every
        Rounds between two checkpoints, where a directory is given.
    dtype
        ``"float32"`` or ``"float64"``, on server and devices.
    attack, liars, lies, scope
        For experiments: this share of the devices lies, and how (`engines.Attacks`). Scores are then means over the
        others.
    clip, epsilon, delta
        Devices clip what they send to the norm ``clip`` and add Gaussian noise, so that all uploads of a device
        together are (``epsilon``, ``delta``) differentially private (`privacy`); 0 for no noise.
    mode
        ``"sync"``: a round waits for all devices that were asked. ``"async"`` (the paper's Algorithm 3): all devices
        are at work, every single reply is a round, and its device gets the next order at once. It is for FPFC and
        FPFC-l1 with a given lambda and for FedAvg (then `FedAsync`). Stages in which everybody is asked once
        (fusion tree, refit) are synchronous in either mode.
    at_once
        Asynchronous: the maximum number of devices at work at a time (all by default); those with the fewest turns go
        first.
    ahead
        Asynchronous: a device that has had so many turns more than the slowest waits for it.
    deadline
        Seconds that a round waits for replies (asynchronous: that the server waits for each reply), on the engine's
        clock.
    minimum
        A round with fewer replies is given up, and others are drawn in the next; ten such rounds in a row are an
        error. Methods whose replies add up over rounds (fusion tree, refit) use what has come.
    late
        What comes after its round: ``"refuse"`` it, or ``"use"`` it if it is the newest that its device was asked for
        and the method can (those that can be asynchronous).
    delay, compute
        Distributions of the seconds that messages and work take, on a virtual clock (`engines.Latency`):
        ``"uniform(0,20)"``.
    lossy
        Faults of replies (`engines.Faults`): ``"lost:0.3,late:0.2,twice:0.1,stale:0.1,nan:0.05"``.
    budget
        Gradient steps in all, over the rounds: training ends when they are spent, the last round is cut short.
    share
        What devices may be asked for: ``"models"`` (parameters, gradients and losses), or ``"moments"`` (also means and
        covariances of their columns, which saves rounds on linear regression). A Flower app's default is ``"models"``.
    """

    mode: Mode = choice("sync", Mode)
    at_once: int | None = number(None, least=1, whole=True)
    ahead: int = number(50, least=1)
    deadline: float | None = number(None, above=0)
    minimum: int = number(0, least=0)
    late: Late = choice("refuse", Late)
    delay: str | float | None = None
    compute: str | float | None = None
    lossy: str | None = None
    budget: int | None = number(None, least=1, whole=True)
    rounds: int = number(500, least=1)
    seed: int = number(0, least=0)
    participation: float | str | Sequence[float] | Sampler = 1.0
    tol: float = number(1e-4, least=0)
    evaluate_every: int = number(10, least=1)
    metric: str | None = None
    class_weight: str | Mapping[Any, float] | None = None
    checkpoint_every: int = number(25, least=1)
    dtype: Dtype = choice("float32", Dtype)
    attack: Attack | None = choice(None, Attack)
    liars: float = number(0.2, least=0, most=1)
    lies: Lies = choice("all", Lies)
    scope: Scope = choice("all", Scope)
    clip: float = 0.0
    epsilon: float = 0.0
    delta: float = 1e-5
    share: Share = choice("moments", Share)

    def __post_init__(self) -> None:
        make_plain(self)
        for f in fields(self):
            check_field(f, getattr(self, f.name))
        object.__setattr__(self, "participation", _read_participation(self.participation))
        if (self.clip == 0) != (self.epsilon == 0):
            raise FedfuseError(f"clip and epsilon go together, got clip={self.clip!r}, epsilon={self.epsilon!r}")
        given = [name for name in SYNCHRONOUS_ONLY if getattr(self, name)]
        if self.mode == "async" and given:
            raise FedfuseError(f"{given[0]} applies to rounds of several devices and has no meaning with mode=async")
        for seconds in (self.delay, self.compute):
            Distribution.of(seconds or 0.0)
        if self.lossy is not None:
            Trouble.read(self.lossy)

    def around(self, engine: Engine) -> Engine:
        """Return the engine with the latency and the faults of these settings."""
        if self.delay is not None or self.compute is not None:
            engine = Latency(engine, self.delay or 0.0, self.compute or 0.0, seed=self.seed)
        if self.lossy is not None:
            engine = Faults(engine, seed=self.seed, **vars(Trouble.read(self.lossy)))
        return engine

    @classmethod
    def named(cls, **given: Any) -> Settings:
        """Return settings by their names; an unknown name is an error that says which was meant."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise FedfuseError(
                    f"there is no setting {name!r}; {guess(name, known)}those of a run are {', '.join(known)}; lam, xi "
                    "and the like are the method's: FPFC(lam=0.5)"
                )
        return cls(**given)

    def active(self, k: int, m: int, rows: Ints | None = None) -> Ints:
        """Return the devices that are asked in round k; ``rows`` are those of every device."""
        if callable(self.participation):
            return _distinct_devices(self.participation(k, m), k, m)
        rng = generator(self.seed, "participation", k)
        if isinstance(self.participation, tuple):
            return np.flatnonzero(rng.random(m) < np.array(self.participation))
        by_size = isinstance(self.participation, str) and rows is not None
        weights = rows / rows.sum() if by_size else None  # type: ignore[union-attr]
        drawn: Ints = rng.choice(m, self.wanted(m), replace=False, p=weights)
        return np.sort(drawn)

    def check_devices(self, m: int) -> None:
        """Refuse probabilities to take part that are not one for each device."""
        if isinstance(self.participation, tuple) and len(self.participation) != m:
            words = f"one probability for each of {m} devices, got {len(self.participation)}"
            raise FedfuseError(f"participation needs {words}")

    def wanted(self, m: int) -> int:
        """Return how many devices make a round, where that is a share of them."""
        share = self.participation
        return max(1, floor((_share_of(share) if isinstance(share, str) else share) * m + 1e-9))  # type: ignore

    def noise(self) -> Noise | None:
        """Return how devices protect what they send: within the budget even if they answer in every round."""
        return calibrated(self.clip, self.epsilon, self.delta, self.rounds) if self.epsilon else None


def _distinct_devices(devices: Any, k: int, m: int) -> Ints:
    chosen = np.asarray(devices)
    whole = chosen.ndim == 1 and (chosen.dtype.kind in "iu" or not chosen.size)
    if not whole or np.unique(chosen).size < chosen.size or not ((chosen >= 0) & (chosen < m)).all():
        raise FedfuseError(
            f"participation must return different device numbers from 0 to {m - 1}, in round {k} it returned "
            f"{devices!r}"
        )
    return chosen.astype(np.int64)


def _read_participation(given: Any) -> float | str | tuple[float, ...] | Sampler:
    """Return a valid share, the text of a share by sizes, probabilities as a tuple, or a function."""
    if callable(given):
        return given  # type: ignore[no-any-return]
    if isinstance(given, str):
        check_share("participation by sizes", _share_of(given))
        return given
    if np.ndim(given) == 1:
        for p in given:
            check_share("a device's probability to take part", p)
        return tuple(float(p) for p in given)
    check_share("participation", given)
    return given  # type: ignore[no-any-return]


def _share_of(text: str) -> float:
    """Read ``sizes`` or ``sizes(share)``."""
    call = re.fullmatch(r"\s*sizes\s*(?:\(\s*([^()]*)\))?\s*", text)
    try:
        return float(call[1] or 0.3)  # type: ignore[index]
    except (TypeError, ValueError):
        raise FedfuseError(
            f"participation must be a share above 0 and at most 1, sizes(share) or probabilities, got {text!r}"
        ) from None


def takes_single_replies(method: Method[Any]) -> bool:
    """Whether a method can be trained asynchronously."""
    return isinstance(method, TakesSingleReplies) and method.takes_single_replies


def check_mode(method: Method[Any], mode: Mode) -> None:
    """Refuse a method that has nothing to do asynchronously."""
    if mode == "async" and not takes_single_replies(method):
        words = "it needs the replies of a whole round; fpfc and fpfc-l1 with a given lambda and fedavg do not"
        raise FedfuseError(f"{method.name} cannot be trained asynchronously: {words}")
