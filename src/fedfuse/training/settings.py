"""How long and how to train, whatever the method."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import ceil, floor
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

import numpy as np

from fedfuse.engines import Engine, Faults, Latency
from fedfuse.engines.attacks import Attack, Lies, Scope, check_attack
from fedfuse.engines.distributions import Distribution
from fedfuse.engines.faults import Trouble
from fedfuse.errors import FedfuseError, guess
from fedfuse.methods.method import Method, TakesSingleReplies, check_share, make_plain
from fedfuse.protocol.privacy import Noise, calibrated
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Floats, Ints

Sampler: TypeAlias = Callable[[int, int], Ints]
Mode: TypeAlias = Literal["sync", "async"]
Late: TypeAlias = Literal["refuse", "use"]


@dataclass(frozen=True)
class Conditions:
    """What `Settings` say of time and trouble.

    Parameters
    ----------
    mode
        ``"sync"``: a round waits for all devices that were asked. ``"async"`` (the paper's Algorithm 3): all devices
        are at work, every single reply is a round, and its device gets the next order at once. It is for FPFC and
        FPFC-l1 with a given lambda and for FedAvg (then `FedAsync`). Parts of a run in which everybody is asked once
        (``lam="auto"``, refit) are synchronous in either mode.
    at_once
        Asynchronous: at most so many devices are at work at a time (all by default); those with the fewest turns go
        first.
    ahead
        Asynchronous: a device that has had so many turns more than the slowest waits for it.
    deadline
        Seconds that a round waits for replies (asynchronous: that the server waits for each reply), on the engine's
        clock.
    minimum
        A round with fewer replies is given up, and others are drawn in the next; ten such rounds in a row are an
        error. Methods whose replies add up over rounds (``lam="auto"``, refit) use what has come.
    overselect
        Draw this share more devices than take part, and go on with the first ones that answer.
    late
        What comes after its round: ``"refuse"`` it, or ``"use"`` it if it is the newest that its device was asked for
        and the method can (those that can be asynchronous).
    delay, compute
        Laws of the seconds that messages and work take, on a virtual clock (`engines.Latency`): ``"uniform(0,20)"``.
    lossy
        What happens to replies (`engines.Faults`): ``"lost:0.3,late:0.2,twice:0.1,stale:0.1,nan:0.05"``.
    budget
        Gradient steps in all, over the rounds: training ends when they are spent, the last round is cut short.
    """

    mode: Mode = "sync"
    at_once: int | None = None
    ahead: int = 50
    deadline: float | None = None
    minimum: int = 0
    overselect: float = 0.0
    late: Late = "refuse"
    delay: str | float | None = None
    compute: str | float | None = None
    lossy: str | None = None
    budget: int | None = None

    def _check_conditions(self) -> None:
        for name, allowed in (("mode", ("sync", "async")), ("late", ("refuse", "use"))):
            if getattr(self, name) not in allowed:
                raise FedfuseError(f"{name} must be {' or '.join(allowed)}, got {getattr(self, name)!r}")
        for name, least in (("at_once", 1), ("ahead", 1), ("minimum", 0), ("budget", 1)):
            number = getattr(self, name)
            left_out = number is None and name in ("at_once", "budget")
            if not left_out and (not isinstance(number, Integral) or number < least):
                raise FedfuseError(f"{name} must be a whole number of at least {least}, got {number!r}")
        if self.deadline is not None and (not isinstance(self.deadline, Real) or not 0 < self.deadline < np.inf):
            raise FedfuseError(f"deadline must be a positive number of seconds, got {self.deadline!r}")
        if not isinstance(self.overselect, Real) or not 0 <= self.overselect < np.inf:
            raise FedfuseError(f"overselect must be a share of at least 0, got {self.overselect!r}")
        if self.mode == "async":
            self._check_no_rounds()
        for law in (self.delay, self.compute):
            Distribution.of(0 if law is None else law)
        Trouble.read(self.lossy) if self.lossy is not None else None

    def _check_no_rounds(self) -> None:
        for name, none in (("minimum", 0), ("overselect", 0), ("budget", None)):
            if getattr(self, name) != none:
                raise FedfuseError(f"{name} is for rounds of several devices: it has no meaning with mode=async")

    def around(self, engine: Engine, seed: int) -> Engine:
        """Return the engine under these conditions."""
        if self.delay is not None or self.compute is not None:
            engine = Latency(engine, self.delay or 0.0, self.compute or 0.0, seed=seed)
        if self.lossy is not None:
            engine = Faults(engine, seed=seed, **vars(Trouble.read(self.lossy)))
        return engine


@dataclass(frozen=True)
class Settings(Conditions):
    """How long and how to train, whatever the method; `Conditions` has what concerns time and trouble.

    Parameters
    ----------
    rounds
        At most so many.
    seed
        Every random draw of the run depends on it.
    participation
        Share of the devices that is active in a round; ``"sizes(0.3)"`` for a share drawn in proportion to the
        devices' rows; for every device its own probability to take part (the paper's Assumption 3); or a function
        ``(round, m) -> device numbers``.
    tol
        Stop when no residual of the last rounds exceeds this; 0 to go on to the last round.
    evaluate_every
        Rounds between two looks at clusters, validation and test.
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
    screen
        Refuse models whose length is far outside that of the others of a round (`protocol.reply_checks.overlong`).
    """

    rounds: int = 500
    seed: int = 0
    participation: float | str | Sequence[float] | Sampler = 1.0
    tol: float = 1e-4
    evaluate_every: int = 10
    checkpoint_every: int = 25
    dtype: str = "float32"
    attack: Attack | None = None
    liars: float = 0.2
    lies: Lies = "all"
    scope: Scope = "all"
    screen: bool = False
    clip: float = 0.0
    epsilon: float = 0.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        make_plain(self)
        for name, least in (("rounds", 1), ("seed", 0), ("evaluate_every", 1), ("checkpoint_every", 1)):
            number = getattr(self, name)
            if not isinstance(number, Integral) or number < least:
                raise FedfuseError(f"{name} must be a whole number of at least {least}, got {number!r}")
        object.__setattr__(self, "participation", _read_participation(self.participation))
        if self.overselect and not isinstance(self.participation, (Real, str)):
            raise FedfuseError("overselect needs a participation share: else there is no number of devices to exceed")
        self._check_conditions()
        if not isinstance(self.tol, Real) or not 0 <= self.tol < np.inf:
            raise FedfuseError(f"tol must be a number of at least 0, got {self.tol!r}")
        if self.dtype not in ("float32", "float64"):
            raise FedfuseError(f"dtype must be float32 or float64, got {self.dtype!r}")
        if (self.clip == 0) != (self.epsilon == 0):
            raise FedfuseError(f"clip and epsilon go together, got clip={self.clip!r}, epsilon={self.epsilon!r}")
        if self.attack is not None:
            check_attack(self.attack, self.lies, self.scope)
        if not isinstance(self.liars, Real) or not 0 <= self.liars <= 1:
            raise FedfuseError(f"liars must be a share from 0 to 1, got {self.liars!r}")

    @classmethod
    def named(cls, **given: Any) -> Settings:
        """Return settings by their names; a name that there is not is an error that says which was meant."""
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
            return np.flatnonzero(rng.random(m) < _one_each(self.participation, m))
        by_size = isinstance(self.participation, str) and rows is not None
        weights = rows / rows.sum() if by_size else None  # type: ignore[union-attr]
        count = min(m, ceil(self.wanted(m) * (1 + self.overselect) - 1e-9))
        drawn: Ints = rng.choice(m, count, replace=False, p=weights)
        # of those drawn in excess nobody may be preferred because of a small number
        return drawn if self.overselect else np.sort(drawn)

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
    """Return a share, the word for a share by sizes, probabilities as a tuple, or a function; each looked at."""
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


def _one_each(probabilities: tuple[float, ...], m: int) -> Floats:
    if len(probabilities) != m:
        raise FedfuseError(f"participation needs one probability for each of {m} devices, got {len(probabilities)}")
    return np.array(probabilities)


def takes_single_replies(method: Method[Any]) -> bool:
    """Whether a method can be trained asynchronously."""
    return isinstance(method, TakesSingleReplies) and method.takes_single_replies


def check_mode(method: Method[Any], mode: Mode) -> None:
    """Refuse a method that has nothing to do asynchronously."""
    if mode == "async" and not takes_single_replies(method):
        words = "it needs the replies of a whole round; fpfc, fpfc-l1 and fedavg do not"
        raise FedfuseError(f"{method.name} cannot be trained asynchronously: {words}")
