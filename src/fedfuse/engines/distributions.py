"""Distributions of times: read from text, written, and drawn by key.

``"uniform(0,20)"``, ``"exponential(5)"`` (mean), ``"lognormal(1,0.5)"`` (mean and standard deviation of the logarithm)
or a number, each drawn anew for every update; ``"per_node(…)"`` around one of them is drawn once for each device and
kept. Factors may be multiplied: ``"per_node(lognormal(0,1))*uniform(0,20)"`` has slow and fast devices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from fedfuse.errors import FedfuseError
from fedfuse.utils.random import generator

_NUMBERS = {"constant": 1, "uniform": 2, "exponential": 1, "lognormal": 2}
_PER_NODE = "per_node"


@dataclass(frozen=True)
class Factor:
    """One distribution, drawn for every update or, with ``per_node``, once for every device."""

    word: str
    numbers: tuple[float, ...]
    per_device: bool = False

    def __post_init__(self) -> None:
        if len(self.numbers) != _NUMBERS[self.word]:
            raise FedfuseError(f"{self.word} takes {_NUMBERS[self.word]} number(s), got {self}")
        free = self.word == "lognormal"  # a logarithm may be negative, a time not
        if not all(-inf < n < inf and (free or n >= 0) for n in self.numbers):
            raise FedfuseError(f"the numbers of a distribution of times must be finite and not negative, got {self}")
        if self.word == "uniform" and self.numbers[0] > self.numbers[1]:
            raise FedfuseError(f"uniform(a,b) needs a <= b, got {self}")
        if free and self.numbers[1] < 0:
            raise FedfuseError(f"lognormal(mean,sd) needs sd >= 0, got {self}")

    def __str__(self) -> str:
        inside = ",".join(f"{n:g}" if float(f"{n:g}") == n else repr(n) for n in self.numbers)
        text = inside if self.word == "constant" else f"{self.word}({inside})"
        return f"{_PER_NODE}({text})" if self.per_device else text

    def draw(self, seed: int, purpose: str, turn: int, device: int) -> float:
        """Return the number that belongs to this turn of this device."""
        if self.word == "constant":
            return self.numbers[0]
        key = (f"{purpose} of a node", device) if self.per_device else (purpose, turn, device)
        rng = generator(seed, *key)
        if self.word == "exponential":
            return float(rng.exponential(self.numbers[0]))
        a, b = self.numbers
        return float(rng.uniform(a, b) if self.word == "uniform" else rng.lognormal(a, b))


@dataclass(frozen=True)
class Distribution:
    """A product of factors; `Distribution.of` reads one.

    >>> times = Distribution.of("per_node(uniform(1,2)) * exponential(5)")
    >>> str(times), times.draw(0, "delay", 3, 1) == times.draw(0, "delay", 3, 1)
    ('per_node(uniform(1,2))*exponential(5)', True)
    >>> Distribution.of(3).draw(0, "delay", 3, 1)
    3.0
    """

    factors: tuple[Factor, ...]

    @classmethod
    def of(cls, given: DistributionLike) -> Distribution:
        """Read a distribution; one that is read already is returned as it is."""
        if isinstance(given, Distribution):
            return given
        return cls(tuple(_read(part, given) for part in str(given).split("*")))

    def __str__(self) -> str:
        return "*".join(str(f) for f in self.factors)

    def draw(self, seed: int, purpose: str, turn: int, device: int) -> float:
        """Return the number that belongs to this turn of this device, whatever was drawn before."""
        product = 1.0
        for place, factor in enumerate(self.factors):
            product *= factor.draw(seed, f"{purpose} {place}" if place else purpose, turn, device)
        return product


DistributionLike: TypeAlias = "float | str | Distribution"


def _read(text: str, whole: DistributionLike) -> Factor:
    text = text.strip()
    kept = re.fullmatch(rf"{_PER_NODE}\s*\((.*)\)", text)
    inner = kept[1].strip() if kept else text
    call = re.fullmatch(r"(\w+)\s*\(([^()]*)\)", inner)
    try:
        word, numbers = (call[1], [float(n) for n in call[2].split(",")]) if call else ("constant", [float(inner)])
        return Factor(word, tuple(numbers), kept is not None)
    except FedfuseError:
        raise
    except (KeyError, ValueError):
        known = "a number, uniform(a,b), exponential(mean), lognormal(mean,sd), per_node(…), or a product of them"
        raise FedfuseError(f"{whole!r} is not a distribution of times; known: {known}") from None
