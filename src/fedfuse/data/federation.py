"""Who has which data: devices with their rows, cut into train, validation and test parts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError
from fedfuse.randomness import generator
from fedfuse.tasks import Part
from fedfuse.types import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

    from fedfuse.data.tables import Encoder

Goal: TypeAlias = Literal["classification", "regression"]

# A device's rows lie in the order train, validation, test; a part is a span of cut points.
_SPANS: dict[str, tuple[int, int]] = {
    "train": (0, 1),
    "validation": (1, 2),
    "train+validation": (0, 2),
    "test": (2, 3),
    "all": (0, 3),
}


@dataclass(frozen=True)
class Rows:
    """One part of every device's rows: ``X[start[i]:stop[i]]`` belongs to device i."""

    X: Floats
    y: npt.NDArray[Any]
    start: Ints
    stop: Ints

    @property
    def counts(self) -> Ints:
        return self.stop - self.start

    def of(self, device: int) -> tuple[Floats, npt.NDArray[Any]]:
        """Return the (X, y) of one device, without a copy."""
        span = slice(self.start[device], self.stop[device])
        return self.X[span], self.y[span]


@dataclass(frozen=True)
class Federation:
    """Devices with private rows. Build one with `from_arrays`, `from_frame` or a named data set.

    Attributes
    ----------
    names
        One name per device; the order of all results.
    X, y
        All rows, device after device; ``y`` holds class numbers or values.
    cuts
        For each device where its train, validation and test rows begin, and where they end (m x 4).
    goal
        ``"classification"`` or ``"regression"``.
    classes
        The labels behind the class numbers; empty for regression.
    features
        Column names.
    truth
        The true group of every device, where known.
    encoder
        How a table's columns became numbers, where they did.
    """

    names: tuple[str, ...]
    X: Floats
    y: npt.NDArray[Any]
    cuts: Ints
    goal: Goal
    classes: tuple[Any, ...] = ()
    features: tuple[str, ...] = ()
    truth: Ints | None = None
    encoder: Encoder | None = None

    @property
    def m(self) -> int:
        """Number of devices."""
        return len(self.names)

    @property
    def n_features(self) -> int:
        return int(self.X.shape[1])

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def metric(self) -> Literal["accuracy", "rmse"]:
        return "accuracy" if self.goal == "classification" else "rmse"

    def rows(self, part: Part) -> Rows:
        """Return one part of every device's rows."""
        a, b = _SPANS[part]
        return Rows(self.X, self.y, self.cuts[:, a], self.cuts[:, b])

    def index(self, device: str | int) -> int:
        """Return the position of a device given by name or position."""
        if isinstance(device, str):
            try:
                return self._positions[device]
            except KeyError:
                raise FedfuseError(f"no device is called {device!r}; known: {_some(self.names)}") from None
        if not 0 <= device < self.m:
            raise FedfuseError(f"device {device} is outside 0 … {self.m - 1}")
        return int(device)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of all that training sees; a checkpoint belongs to one fingerprint."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.X, self.y, self.cuts):
            digest.update(str((part.shape, part.dtype)).encode())
            digest.update(np.ascontiguousarray(part))
        digest.update("\0".join(self.names).encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        n = self.rows("all").counts
        what = f"{self.n_classes} classes" if self.goal == "classification" else "regression"
        return (
            f"Federation({self.m} devices, {n.sum():,} rows ({n.min():,} to {n.max():,} each), "
            f"{self.n_features} features, {what})"
        )

    @classmethod
    def from_arrays(
        cls,
        data: Mapping[Any, tuple[npt.ArrayLike, npt.ArrayLike]] | Sequence[tuple[npt.ArrayLike, npt.ArrayLike]],
        *,
        goal: Goal | None = None,
        truth: Sequence[int] | npt.ArrayLike | None = None,
        features: Sequence[str] | None = None,
        test: float = 0.2,
        validation: float = 0.2,
        seed: int = 0,
    ) -> Federation:
        """Build a federation from one (X, y) per device.

        Parameters
        ----------
        data
            ``{name: (X, y)}`` or a list of (X, y).
        goal
            Told from y when not given: text, booleans and few whole numbers mean classes.
        truth
            The true group of every device, if known; only used to report the adjusted Rand index.
        features
            Column names.
        test, validation
            Shares: of a device's rows for the test, and of the rest for validation.
        seed
            Draws the rows of each part, for each device on its own.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(40, 3))
        >>> Federation.from_arrays({"a": (X, X[:, 0]), "b": (X, -X[:, 0])})
        Federation(2 devices, 80 rows (40 to 40 each), 3 features, regression)
        """
        raise NotImplementedError

    @classmethod
    def from_frame(
        cls, frame: pd.DataFrame, *, device: str, target: str, goal: Goal | None = None, **splits: Any
    ) -> Federation:
        """Build a federation from a table with a device column and a target column (see `data.tables`)."""
        from fedfuse.data.tables import federation_from_frame

        return federation_from_frame(frame, device=device, target=target, goal=goal, **splits)


def cut_points(counts: Ints, test: float, validation: float) -> Ints:
    """Return the cut points (m x 4) for devices with these numbers of rows."""
    n_test = np.rint(test * counts).astype(np.int64)
    n_validation = np.rint(validation * (counts - n_test)).astype(np.int64)
    ends = np.cumsum(counts)
    return np.stack([ends - counts, ends - n_test - n_validation, ends - n_test, ends], axis=1)


def shuffled_rows(counts: Ints, seed: int) -> Ints:
    """Return row numbers, device after device, each device's shuffled by its own key."""
    starts = np.cumsum(counts) - counts
    return np.concatenate(
        [s + generator(seed, "split", i).permutation(n) for i, (s, n) in enumerate(zip(starts, counts, strict=True))]
    )


def _some(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(repr(n) for n in names[:most])
    return shown + (f", … ({len(names)} in all)" if len(names) > most else "")
