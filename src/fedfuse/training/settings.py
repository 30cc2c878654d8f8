"""How long and how to train, whatever the method."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import ceil, floor
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np

from fedfuse.engines.attacks import Attack, Lies, Scope, check_attack
from fedfuse.errors import FedfuseError, guess
from fedfuse.methods.method import check_share, make_plain
from fedfuse.protocol.privacy import Noise, calibrated
from fedfuse.training.conditions import Conditions
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Floats, Ints

Sampler: TypeAlias = Callable[[int, int], Ints]


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
