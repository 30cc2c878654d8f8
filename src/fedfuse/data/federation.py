"""Who has which data: devices with their rows, cut into train, validation and test parts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fedfuse.data import checks as check
from fedfuse.data.targets import encode
from fedfuse.errors import FedfuseError
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

    from fedfuse.data.tables import Encoder

Goal: TypeAlias = Literal["classification", "regression"]
Part: TypeAlias = Literal["train", "train/1", "train/2", "validation", "train+validation", "test", "all"]

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
    shape
        The shape of one row's features before they were laid in a line, (1, 28, 28) for instance; None for
        tables.
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
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.shape is not None and prod(self.shape) != self.X.shape[1]:
            raise FedfuseError(f"shape {self.shape} has {prod(self.shape)} values, but rows have {self.X.shape[1]}")

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

    @property
    def here(self) -> bool:
        """Whether the rows are here, and not with the devices alone."""
        return True

    def rows(self, part: Part) -> Rows:
        """Return one part of every device's rows."""
        if part in ("train/1", "train/2"):  # two independent halves of the training rows, which lie at random
            first, last = self.cuts[:, 0], self.cuts[:, 1]
            middle = (first + last) // 2
            return Rows(self.X, self.y, *((first, middle) if part == "train/1" else (middle, last)))
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

    def only(self, devices: Sequence[int] | npt.ArrayLike) -> Federation:
        """Return the federation of these devices, in this order, with their rows in the same parts.

        Examples
        --------
        >>> X = np.ones((5, 1))
        >>> Federation.from_arrays({"a": (X, X[:, 0]), "b": (X, X[:, 0])}, goal="regression").only([1]).names
        ('b',)
        """
        order = [self.index(int(i)) for i in np.asarray(devices, dtype=np.int64)]
        if not order:
            raise FedfuseError("a federation needs at least one device")
        rows = np.concatenate([np.arange(self.cuts[i, 0], self.cuts[i, 3]) for i in order])
        counts = self.cuts[order, 3] - self.cuts[order, 0]
        cuts = self.cuts[order] - self.cuts[order, :1] + (np.cumsum(counts) - counts)[:, None]
        return replace(
            self,
            names=tuple(self.names[i] for i in order),
            X=self.X[rows],
            y=self.y[rows],
            cuts=cuts,
            truth=None if self.truth is None else self.truth[order],
        )

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of all that training sees; a checkpoint belongs to one fingerprint."""
        digest = hashlib.sha256()  # for which processors have instructions
        for part in (self.X, self.y, self.cuts):
            digest.update(str((part.shape, part.dtype)).encode())
            digest.update(np.ascontiguousarray(part).data)
        digest.update("\0".join(self.names).encode())
        if self.shape is not None:
            digest.update(str(self.shape).encode())
        return digest.hexdigest()[:32]

    def __repr__(self) -> str:
        n = self.rows("all").counts
        what = f"{self.n_classes} classes" if self.goal == "classification" else "regression"
        features = " x ".join(map(str, self.shape)) if self.shape else str(self.n_features)
        return (
            f"Federation({self.m} devices, {n.sum():,} rows ({n.min():,} to {n.max():,} each), "
            f"{features} features, {what})"
        )

    @classmethod
    def from_arrays(
        cls,
        data: Mapping[Any, tuple[npt.ArrayLike, npt.ArrayLike]] | Sequence[tuple[npt.ArrayLike, npt.ArrayLike]],
        *,
        goal: Goal | None = None,
        truth: Sequence[int] | npt.ArrayLike | None = None,
        features: Sequence[str] | None = None,
        shape: Sequence[int] | None = None,
        test: float = 0.2,
        validation: float = 0.2,
        seed: int = 0,
    ) -> Federation:
        """Build a federation from one (X, y) per device.

        Parameters
        ----------
        data
            ``{name: (X, y)}`` or a list of (X, y): arrays, data frames or tensors. With more than two
            dimensions (rows x channels x height x width, say) rows are laid in a line, as float32, and `shape`
            remembers theirs. Values are taken as they are: scale images beforehand.
        goal
            Told from y when not given: text, booleans, objects, categories and whole numbers (also as floats)
            with at most 20 distinct values over all devices mean classes, which are numbered in sorted order.
        truth
            The true group of every device, if known; only used to report the adjusted Rand index.
        features
            Column names; told from data frames when not given, else x0, x1, …
        shape
            Of one row, where rows are images that lie in a line already; told from X when not given.
        test, validation
            Shares: of a device's rows for the test, and of the rest for validation. Every part with a share
            above 0 gets at least one row of every device.
        seed
            Draws the rows of each part, for each device on its own.

        Raises
        ------
        FedfuseError
            For data that cannot be used; the sentence names the device, and the column where there is one.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(40, 3))
        >>> Federation.from_arrays({"a": (X, X[:, 0]), "b": (X, -X[:, 0])})
        Federation(2 devices, 80 rows (40 to 40 each), 3 features, regression)
        """
        check.check_splits(test, validation, seed)
        names, pairs = check.named_pairs(data)
        columns = check.feature_names(names, [X for X, _ in pairs], features)
        arrays = [check.as_numpy(X, "X", name) for (X, _), name in zip(pairs, names, strict=True)]
        form = check.row_shape(arrays, names, shape)
        Xs = [check.feature_array(X, name, keep=form is not None) for X, name in zip(arrays, names, strict=True)]
        check.check_widths(Xs, names, columns)
        columns = columns or default_features(Xs[0].shape[1])
        for X, name in zip(Xs, names, strict=True):
            check.check_finite(X, name, columns)
        ys = [check.target_array(y, name, len(X)) for (_, y), name, X in zip(pairs, names, Xs, strict=True)]
        check.check_same_kind(ys, names)
        counts = np.array([len(X) for X in Xs], dtype=np.int64)
        check.check_counts(counts, names, test, validation)
        found, y, classes = encode(np.concatenate(ys), goal, "the target")
        rows, cuts = shuffled_rows(counts, seed), cut_points(counts, test, validation)
        groups = check.truth_array(truth, len(names))
        X = _gathered(Xs, rows, cuts, np.float64 if form is None else np.float32)
        return cls(names, X, y[rows], cuts, found, classes, columns, groups, shape=form)

    @classmethod
    def from_frame(
        cls, frame: pd.DataFrame, *, device: str, target: str, goal: Goal | None = None, **splits: Any
    ) -> Federation:
        """Build a federation from a table with a device column and a target column.

        The other columns become features as `fedfuse.data.tables.federation_from_frame` describes, which also
        says what ``splits`` (test, validation, seed) are.
        """
        from fedfuse.data.tables import federation_from_frame

        return federation_from_frame(frame, device=device, target=target, goal=goal, **splits)

    @classmethod
    def from_datasets(
        cls,
        data: Mapping[Any, Any] | Sequence[Any],
        *,
        goal: Goal | None = None,
        truth: Sequence[int] | npt.ArrayLike | None = None,
        **splits: Any,
    ) -> Federation:
        """Build a federation from one data set per device, or one (training set, test set).

        A data set is anything with a length whose items are (x, y), a PyTorch Dataset for instance, as
        `fedfuse.data.datasets.federation_from_datasets` describes, which also says what ``splits`` (test,
        validation, seed) are.
        """
        from fedfuse.data.datasets import federation_from_datasets

        return federation_from_datasets(data, goal=goal, truth=truth, **splits)


def cut_points(counts: Ints, test: float, validation: float) -> Ints:
    """Return the cut points (m x 4) for devices with these numbers of rows.

    Every part that is asked for, and training always, has at least one row where there are rows enough.

    >>> cut_points(np.array([10, 3]), test=0.2, validation=0.2).tolist()
    [[0, 6, 8, 10], [10, 11, 12, 13]]
    """
    n_test = _share(counts, test, keep=1 + (validation > 0))
    return cuts_beside(counts - n_test, n_test, validation)


def cuts_beside(counts: Ints, n_test: Ints, validation: float) -> Ints:
    """Return the cut points (m x 4) for devices with these numbers of rows to learn from, and for the test.

    >>> cuts_beside(np.array([10, 5]), np.array([3, 1]), validation=0.2).tolist()
    [[0, 8, 10, 13], [13, 17, 18, 19]]
    """
    n_validation = _share(counts, validation, keep=1)
    ends = np.cumsum(counts + n_test)
    return np.stack([ends - counts - n_test, ends - n_test - n_validation, ends - n_test, ends], axis=1)


def _share(counts: Ints, share: float, keep: int) -> Ints:
    wanted: Ints = np.maximum(np.rint(share * counts), share > 0).astype(np.int64)
    return np.minimum(wanted, np.maximum(counts - keep, 0))


def shuffled_rows(counts: Ints, seed: int) -> Ints:
    """Return row numbers, device after device, each device's shuffled by its own key."""
    starts = np.cumsum(counts) - counts
    return np.concatenate(
        [s + generator(seed, "split", i).permutation(n) for i, (s, n) in enumerate(zip(starts, counts, strict=True))]
    )


def default_features(n: int) -> tuple[str, ...]:
    """Return names for columns without names: x0, x1, … as scikit-learn has them."""
    return tuple(f"x{j}" for j in range(n))


def _gathered(Xs: Sequence[Floats], rows: Ints, cuts: Ints, dtype: npt.DTypeLike) -> Floats:
    # straight from each device's array to its place: one copy in all
    X: Floats = np.empty((len(rows), Xs[0].shape[1]), dtype)
    for Xi, (start, *_, stop) in zip(Xs, cuts, strict=True):
        place, order = X[start:stop], rows[start:stop] - start
        if Xi.dtype == X.dtype:
            np.take(Xi, order, axis=0, out=place, mode="clip")
        else:
            place[:] = Xi[order]
    return X


def _some(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(repr(n) for n in names[:most])
    return shown + (f", … ({len(names)} in all)" if len(names) > most else "")
