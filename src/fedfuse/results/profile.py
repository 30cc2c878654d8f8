"""Profile of a federation: all that a result keeps of it besides its rows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfuse.core.metrics import metric_for
from fedfuse.data.federation import Federation, Goal, default_features
from fedfuse.utils.typing import Ints

if TYPE_CHECKING:
    from fedfuse.data.encoders import Encoder


@dataclass(frozen=True)
class Profile:
    """What is known of a federation besides its rows; ``counts`` are all rows of each device."""

    names: tuple[str, ...]
    goal: Goal
    classes: tuple[Any, ...]
    features: tuple[str, ...]
    counts: Ints
    truth: Ints | None = None
    encoder: Encoder | None = None
    shape: tuple[int, ...] | None = None
    metric: str = ""
    class_weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", self.metric or metric_for(self.goal).name)

    @classmethod
    def of(cls, federation: Federation, metric: str = "", class_weights: tuple[float, ...] = ()) -> Profile:
        """Return the profile of a federation, scored by this metric and trained with these weights of classes."""
        f = federation
        features = f.features or default_features(f.n_features)
        told = (f.truth, f.encoder, f.shape, metric, class_weights)
        return cls(f.names, f.goal, f.classes, features, f.rows("all").counts, *told)

    def to_json(self) -> dict[str, Any]:
        """Return the profile as JSON-ready data."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Profile:
        """Build the profile that `to_json` described."""
        from fedfuse.data.encoders import Encoder

        numbers = partial(np.array, dtype=np.int64)
        kinds: dict[str, Any] = {"goal": str, "metric": str, "counts": numbers, "truth": numbers}
        kinds["encoder"] = Encoder.from_json
        known = {f.name: data.get(f.name) for f in fields(cls)}
        return cls(**{name: kinds.get(name, tuple)(value) for name, value in known.items() if value is not None})


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return [each.item() if isinstance(each, np.generic) else each for each in value]
    return value.to_json() if hasattr(value, "to_json") else value
