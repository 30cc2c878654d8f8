"""Fields of a method that say what they take: numbers in a range, words, and values to try for what is left open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, field
from typing import Any, Literal, TypeAlias

import numpy as np

from fedfuse.errors import FedfuseError, check_choice

Auto: TypeAlias = Literal["auto"]
AUTO = "auto"


def number(
    default: float | Auto | None,
    *,
    least: float = -np.inf,
    most: float = np.inf,
    above: float = -np.inf,
    below: float = np.inf,
    whole: bool = False,
    tried: Sequence[float] = (),
) -> Any:
    """Return the field of a number within a range; ``tried`` are values to try where it is left open, as ``"auto"``.

    With ``whole``, or a whole number as default, only such are taken. None is taken where it is the default.
    """
    takes = {"least": least, "most": most, "above": above, "below": below, "whole": whole or isinstance(default, int)}
    return field(default=default, metadata=takes | {"open": default == AUTO, "tried": tuple(tried)})


def choice(default: str, words: Any) -> Any:
    """Return the field of one of the words of a ``Literal``."""
    return field(default=default, metadata={"words": words})


def check_field(given: Field[Any], value: object) -> None:
    """Raise unless a field that was declared by `number` or `choice` has a value that it takes."""
    takes = given.metadata
    if "words" in takes:
        check_choice(given.name, value, takes["words"])
    if "least" not in takes or (takes["open"] and value == AUTO) or (value is None and given.default is None):
        return
    real = float(value) if isinstance(value, int if takes["whole"] else (int, float)) else np.nan  # in no range
    if takes["least"] <= real <= takes["most"] and takes["above"] < real < takes["below"]:
        return
    kind = f"a {'whole ' * takes['whole']}number"
    limits = [("of at least", "least"), ("above", "above"), ("at most", "most"), ("below", "below")]
    ends = " and ".join(f"{word} {takes[name]:g}" for word, name in limits if np.isfinite(takes[name]))
    raise FedfuseError(f"{given.name} must be {kind} {ends}{' or auto' * takes['open']}, got {value!r}")
