"""Fields of a method that say what they take: numbers in a range, words, and values to try for what is left open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, field, fields
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from fedfuse.errors import FedfuseError, check_choice
from fedfuse.protocol.tasks import Score, Task
from fedfuse.utils.typing import Ints

Auto: TypeAlias = Literal["auto"]


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
    return field(default=default, metadata=takes | {"open": default == "auto", "tried": tuple(tried)})


def choice(default: str | None, words: Any) -> Any:
    """Return the field of one of the words of a ``Literal``; None is taken where it is the default."""
    return field(default=default, metadata={"words": words})


def check_field(given: Field[Any], value: object) -> None:
    """Raise unless a field that was declared by `number` or `choice` has a value that it takes."""
    takes = given.metadata
    if value is None and given.default is None:
        return
    if "words" in takes:
        check_choice(given.name, value, takes["words"])
    if "least" not in takes or (takes["open"] and value == "auto"):
        return
    real = float(value) if isinstance(value, int if takes["whole"] else (int, float)) else np.nan  # in no range
    if takes["least"] <= real <= takes["most"] and takes["above"] < real < takes["below"]:
        return
    limits = [("of at least", "least"), ("above", "above"), ("at most", "most"), ("below", "below")]
    ends = " and ".join(f"{word} {takes[name]:g}" for word, name in limits if np.isfinite(takes[name]))
    raise FedfuseError(
        f"{given.name} must be a {'whole ' * takes['whole']}number {ends}{' or auto' * takes['open']}, got {value!r}"
    )


class Searchable:
    """A method with settings that may be left open: they are chosen on validation rows (`tuning.grid_search`)."""

    min_trial_rounds: ClassVar[int] = 10  # that a candidate needs to show what it is worth

    def _open(self) -> list[Field[Any]]:
        """Return the settings that may be left open, as `methods.parameters.number` declares them."""
        return [f for f in fields(self) if f.metadata.get("open")]  # type: ignore[arg-type]

    @property
    def has_open_settings(self) -> bool:
        """Whether some are left open."""
        return any(getattr(self, f.name) == "auto" for f in self._open())

    @property
    def setting(self) -> float:
        """The only such setting as a number; while it is still open, the first to be tried."""
        (f,) = self._open()
        value = getattr(self, f.name)
        return float(f.metadata["tried"][0] if value == "auto" else value)

    def candidates(self, state: Any) -> list[dict[str, Any]]:
        """Return the settings to choose from; of numbers of models, those that there are devices for."""
        tried = [(f, value) for f in self._open() for value in f.metadata["tried"]]
        return [{f.name: value} for f, value in tried if not f.metadata["whole"] or value <= state.info.m]

    def judging(self, state: Any, devices: Ints) -> list[Task]:
        """Return one task each that is answered by a score on validation rows."""
        return [Score(w) for w in self.current(state).models[devices]]  # type: ignore[attr-defined]

    def restart(self, info: Any, used: Any) -> Any:
        """Return a first state for a new training; what ``used`` has of devices they need not send again."""
        return self.init(info)  # type: ignore[attr-defined]
