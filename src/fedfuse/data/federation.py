"""Federations: devices with their rows, cut into training, validation and test parts."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard, get_args

import numpy as np
import numpy.typing as npt

from fedfuse.core.robust_mean import upper_fence
from fedfuse.data import checks, targets
from fedfuse.data.checks import default_features as default_features
from fedfuse.data.targets import Goal as Goal
from fedfuse.errors import FedfuseError
from fedfuse.utils.lazy import load
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

    from fedfuse.data.encoders import Encoder

Part: TypeAlias = Literal["train", "train/1", "train/2", "validation", "train+validation", "test", "all"]

# A device's rows lie in the order train, validation, test; a part is a span of cut points.
_SPANS: dict[str, tuple[int, int]] = {
    "train": (0, 1),
    "validation": (1, 2),
    "train+validation": (0, 2),
    "test": (2, 3),
    "all": (0, 3),
}
PARTS: tuple[Part, ...] = ("train", "validation", "test")
# Limits to what a remote device may say of itself, and what all must say alike.
MAX_REMOTE_CLASSES = 100_000
MAX_REMOTE_ROWS = 10**12
MAX_REMOTE_TEXT = 200
# A device that claims so many times the rows that others make credible is left out; one that claims less is capped.
MAX_ROWS_RATIO = 1000
_ALIKE = ("goal", "columns", "features", "shape")


@dataclass(frozen=True)
class Rows:
    """One part of every device's rows: ``X[start[i]:stop[i]]`` belongs to device i; they may have weights."""

    X: Floats
    y: npt.NDArray[Any]
    start: Ints
    stop: Ints
    weights: Floats | None = None

    @property
    def counts(self) -> Ints:
        return self.stop - self.start

    @cached_property
    def totals(self) -> npt.NDArray[Any]:
        """Sum of the weights of every device's rows: their number, where they have none."""
        if self.weights is None:
            return self.counts
        return np.array([self.weights[a:b].sum() for a, b in zip(self.start, self.stop, strict=True)])

    def weights_of(self, device: int) -> Floats | None:
        """Return the weights of the rows of one device."""
        return None if self.weights is None else self.weights[self.start[device] : self.stop[device]]

    def of(self, device: int) -> tuple[Floats, npt.NDArray[Any]]:
        """Return the (X, y) of one device, without a copy."""
        span = slice(self.start[device], self.stop[device])
        return self.X[span], self.y[span]

    def weighted(self, device: int) -> tuple[Floats, npt.NDArray[Any], Floats]:
        """Return the (X, y, weights) of one device, 1 for each row where rows have no weights."""
        X, y = self.of(device)
        return X, y, np.ones(len(y)) if self.weights is None else self.weights_of(device)  # type: ignore[return-value]


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
    goal, classes
        ``"classification"`` with the labels behind the class numbers, or ``"regression"``.
    features
        Column names.
    truth
        The true group of every device, where known.
    encoder
        How a table's columns became numbers, where they did.
    shape
        The shape of one row's features before they were flattened, (1, 28, 28) for instance; None for tables.
    weights
        What each row counts for, 1 in the mean over all; None where all count the same.
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
    weights: Floats | None = None

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
        """Whether the rows are in this process; those of a `RemoteFederation` stay with the devices."""
        return True

    def rows(self, part: Part) -> Rows:
        """Return one part of every device's rows."""
        half = part.partition("/")[2]  # Halves of the training rows are independent because rows lie at random.
        start, stop = (self.cuts[:, cut] for cut in _SPANS[part.partition("/")[0]])
        middle = (start + stop) // 2
        return Rows(self.X, self.y, middle if half == "2" else start, middle if half == "1" else stop, self.weights)

    def totals(self, part: Part) -> npt.NDArray[Any]:
        """Return what every device's rows of a part count for: their number, or the sum of their weights."""
        return self.rows(part).totals

    def class_weights(self, given: str | Mapping[Any, float] | None) -> tuple[float, ...]:
        """Return the weight of every class, given as ``"balanced"``, ``"a=1,b=5"`` or ``{"a": 1, "b": 5}``."""
        if given is None:
            return ()
        if self.goal != "classification" or not self.here:
            why = "the target has values" if self.here else "rows are elsewhere"
            raise FedfuseError(
                f"class weights need classes and rows in this process, but {why}: use row weights instead"
            )
        rows = self.rows("train+validation")
        known = np.concatenate([np.arange(a, b) for a, b in zip(rows.start, rows.stop, strict=True)])
        own = None if self.weights is None else self.weights[known]
        return targets.class_weights(given, self.classes, np.bincount(self.y[known], own, self.n_classes))

    def weighted(self, class_weights: Sequence[float]) -> Federation:
        """Return the federation whose rows count as their classes do, besides their own weights.

        Together they count as the rows without class weights that tell as much (Kish's effective sample size).
        """
        if not class_weights:
            return self
        own, of_class = 1.0 if self.weights is None else self.weights, np.array(class_weights)[self.y]
        weights = own * of_class
        return replace(self, weights=weights * weights.sum() / (weights * of_class).sum())

    def index(self, device: str | int) -> int:
        """Return the position of a device given by name or position."""
        return checks.position_of(device, self._positions)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def only(self, devices: Sequence[int] | npt.ArrayLike) -> Federation:
        """Return the federation of these devices, in this order, with their rows in the same parts.

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
        names, truth = tuple(self.names[i] for i in order), None if self.truth is None else self.truth[order]
        weights = None if self.weights is None else self.weights[rows]
        return replace(self, names=names, X=self.X[rows], y=self.y[rows], cuts=cuts, truth=truth, weights=weights)

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of all that training sees; a checkpoint belongs to one fingerprint."""
        digest = hashlib.sha256()
        for part in (self.X, self.y, self.cuts, *([] if self.weights is None else [self.weights])):
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

        Data that cannot be used raise a `FedfuseError` that names the device, and the column where there is one.

        Parameters
        ----------
        data
            ``{name: (X, y)}`` or a list of (X, y): arrays, data frames or tensors. Rows with more than one
            dimension (channels x height x width, say) are flattened to float32, and `shape` keeps their shape.
            Values are taken as they are: scale images beforehand.
        goal
            Told from y when not given: text, booleans, objects, categories and whole numbers (also as floats)
            with at most 20 distinct values over all devices mean classes, which are numbered in sorted order.
        truth
            The true group of every device, if known; only used to report the adjusted Rand index.
        features
            Column names; told from data frames when not given, else x0, x1, …
        shape
            Of one row, where images are flattened already; told from X when not given.
        test, validation
            Shares: of a device's rows for the test, and of the rest for validation. Every part with a share
            above 0 gets at least one row of every device.
        seed
            Draws the rows of each part, independently for each device.

        Examples
        --------
        >>> X = np.random.default_rng(0).normal(size=(40, 3))
        >>> Federation.from_arrays({"a": (X, X[:, 0]), "b": (X, -X[:, 0])})
        Federation(2 devices, 80 rows (40 to 40 each), 3 features, regression)
        """
        checks.check_splits(test, validation, seed)
        pairs = checks.named_pairs(data)
        names = tuple(pairs)
        Xs, columns, form = checks.feature_arrays({name: X for name, (X, _) in pairs.items()}, features, shape)
        counts = np.array([len(X) for X in Xs], dtype=np.int64)
        ys = {name: targets.target_array(pairs[name][1], name, n) for name, n in zip(names, counts, strict=True)}
        words = "the target of device {device!r} is {value}, that of device {first!r} is {first_value}: "
        kinds = {name: targets.KIND_WORDS[y.dtype.kind] for name, y in ys.items()}
        checks.check_same(kinds, words + "give all devices the same kind")
        checks.check_counts(counts, names, test, validation)
        found, y, classes = targets.encode_target(np.concatenate([*ys.values()]), goal, "the target")
        rows, cuts = shuffled_rows(counts, seed), cut_points(counts, test, validation)
        X: Floats = np.empty((len(rows), Xs[0].shape[1]), np.float64 if form is None else np.float32)
        for Xi, (start, *_, stop) in zip(Xs, cuts, strict=True):  # Copied once, from each device's array to its place.
            place, order = X[start:stop], rows[start:stop] - start
            if Xi.dtype == X.dtype:
                np.take(Xi, order, axis=0, out=place, mode="clip")
            else:
                place[:] = Xi[order]
        groups = checks.truth_array(truth, len(names))
        return cls(names, X, y[rows], cuts, found, classes, columns, groups, shape=form)

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, *, device: str, target: str, **options: Any) -> Federation:
        """Build a federation from a table: see `fedfuse.data.tables.federation_from_frame` for all options."""
        build: Callable[..., Federation] = load("fedfuse.data.tables:federation_from_frame")
        return build(frame, device=device, target=target, **options)


@dataclass(frozen=True, repr=False)
class RemoteFederation(Federation):
    """Devices that are known by numbers of rows, columns and classes, and by their own hashes of their rows."""

    digests: tuple[str, ...] = ()
    part_weights: Floats | None = None  # m x 3, where devices have weights of rows

    def totals(self, part: Part) -> npt.NDArray[Any]:
        sums = self.part_weights
        return super().totals(part) if sums is None else np.asarray(sums[:, slice(*_SPANS[part])].sum(axis=1))

    @property
    def here(self) -> bool:
        return False

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for word in (*self.names, *self.digests, *map(str, self.classes), str(self.cuts.tolist())):
            digest.update(word.encode() + b"\0")
        return digest.hexdigest()

    @classmethod
    def from_facts(cls, facts: Mapping[str, Mapping[str, Any]]) -> RemoteFederation:
        """Build the federation of devices that say this of themselves (see `flower.client.facts_of`)."""
        names = tuple(sorted(facts, key=checks.natural_key))
        for name, why in misfits(facts).items():
            raise FedfuseError(f"device {name!r} cannot take part: {why}")
        said = [facts[name] for name in names]
        cuts = np.array([[0, *np.cumsum(s["rows"])] for s in said], np.int64)
        cuts += (np.cumsum(cuts[:, 3]) - cuts[:, 3])[:, None]
        goal, p, shape = said[0]["goal"], int(said[0]["columns"]), said[0].get("shape")
        X, y = np.empty((0, p)), np.empty(0, np.int64 if goal == "classification" else np.float64)
        features = tuple(said[0].get("features") or default_features(p))
        classes = tuple(sorted({c for s in said for c in s["classes"]}))
        form, digests = None if shape is None else tuple(shape), tuple(str(s["digest"]) for s in said)
        sums = None
        if any(s.get("weights") for s in said):
            sums = np.array([s.get("weights") or s["rows"] for s in said], np.float64)
            per_row = sums.sum(axis=1) / np.diff(cuts).sum(axis=1)
            sums /= np.median(per_row)  # A median: nobody who claims large weights makes those of others small.
        told: dict[str, Any] = {"shape": form, "digests": digests, "part_weights": sums}
        return cls(names, X, y, cuts, goal, classes, features, **told)


def impossible(said: Mapping[str, Any]) -> str:
    """Say what is wrong with what a remote device says of itself; empty if it can be."""
    keys = ("goal", "rows", "columns", "classes", "shape", "features", "digest", "weights")
    goal, rows, columns, classes, shape, names, digest, weights = map(said.get, keys)
    labels = classes if isinstance(classes, list) and len(classes) <= MAX_REMOTE_CLASSES else [None]
    sums = weights if isinstance(weights, list) and all(type(v) in (int, float) for v in weights) else []
    numbers = all(isinstance(c, (int, float)) and c == c for c in labels)  # NaN differs from itself.
    listed = (numbers or all(map(is_text, labels))) and bool(labels) == (goal == "classification")
    good = {
        "goal": isinstance(goal, str) and goal in get_args(Goal),
        "rows": _are_counts(rows, 0) and len(rows) == 3 and rows[0] > 0,
        "columns": _are_counts([columns], 1),
        "classes": listed and len(set(labels)) == len(labels),
        "digest": is_text(digest),
        "weights": weights is None or (len(sums) == 3 and sums[0] > 0 and all(0 <= v <= MAX_REMOTE_ROWS for v in sums)),
        "shape": shape is None or (_are_counts(shape, 1) and prod(shape) == columns),
        "features": names is None or (isinstance(names, list) and len(names) == columns and all(map(is_text, names))),
    }
    wrong = [key for key, fits in good.items() if not fits]
    return f"it says impossible things of its rows ({', '.join(wrong)})" if wrong else ""


def is_text(given: Any) -> bool:
    """Whether a name or a label of a remote device can be written to a file and shown on one line."""
    control = ("Cc", "Cs")  # Control characters, and halves of surrogate pairs.
    short = isinstance(given, str) and 0 < len(given) <= MAX_REMOTE_TEXT
    return short and not any(unicodedata.category(c) in control for c in given)


def misfits(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return which remote devices cannot go with the others, and why: what most of them say holds."""
    reasons = {name: why for name, said in facts.items() if (why := impossible(said))}
    for key in _ALIKE:
        values = {name: json.dumps(said.get(key)) for name, said in facts.items() if name not in reasons}
        reasons |= _minority(values, f"it has {key} {{}}, most others {{}}")
    rest = {name: said for name, said in facts.items() if name not in reasons}
    kinds = {name: "text" if isinstance((*f["classes"], 0)[0], str) else "numbers" for name, f in rest.items()}
    reasons |= _minority(kinds, "its classes are {}, those of most others {}")
    rows = {name: sum(said["rows"][:2]) for name, said in rest.items()}
    classes = {name: len(said["classes"]) for name, said in rest.items()}
    return _excess(rows, MAX_ROWS_RATIO, "rows") | _excess(classes, 1, "classes") | reasons


def _excess(counts: Mapping[str, int], most: float, noun: str) -> dict[str, str]:
    """Return who claims absurdly many of something."""
    fence = most * upper_fence(np.array([*counts.values()]))[0]
    return {name: f"it claims {n} {noun}, far more than is credible" for name, n in counts.items() if n > fence}


def _minority(values: Mapping[str, str], words: str) -> dict[str, str]:
    """Return whose value is not that of most, in these words; where two are as common, the first one holds."""
    usual = max(values.values(), key=Counter(values.values()).__getitem__, default="")
    return {name: words.format(value, usual) for name, value in values.items() if value != usual}


def _are_counts(values: Any, least: int) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(v) is int and least <= v <= MAX_REMOTE_ROWS for v in values)


def cut_points(counts: Ints, test: float, validation: float) -> Ints:
    """Return cut points (m x 4) for so many rows; parts that are asked for have a row where there are enough."""
    n_test = _share(counts, test, keep=1 + (validation > 0))
    return cuts_with_test(counts - n_test, n_test, validation)


def cuts_with_test(counts: Ints, n_test: Ints, validation: float) -> Ints:
    """Return the cut points (m x 4) for devices with these numbers of training and validation rows, and test rows."""
    n_validation = _share(counts, validation, keep=1)
    ends = np.cumsum(counts + n_test)
    return np.stack([ends - counts - n_test, ends - n_test - n_validation, ends - n_test, ends], axis=1)


def _share(counts: Ints, share: float, keep: int) -> Ints:
    wanted: Ints = np.maximum(np.rint(share * counts), share > 0).astype(np.int64)
    return np.minimum(wanted, np.maximum(counts - keep, 0))


def shuffled_rows(counts: Ints, seed: int) -> Ints:
    """Return row numbers, device after device; each device's are shuffled by its own key."""
    starts = np.cumsum(counts) - counts
    return np.concatenate(
        [s + generator(seed, "split", i).permutation(n) for i, (s, n) in enumerate(zip(starts, counts, strict=True))]
    )
