"""Tables with a device column and a target column, and how their columns become numbers."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedfuse.data.checks import check_counts, check_splits
from fedfuse.data.encoders import Column, column_from_json, fit_column
from fedfuse.data.federation import Federation, Goal, cut_points, shuffled_rows
from fedfuse.data.files import read_table
from fedfuse.data.table_columns import Table, as_text, natural, text_array
from fedfuse.data.targets import MOST_CLASSES, check_goal, encode
from fedfuse.errors import FedfuseError
from fedfuse.utils.files import Kinds, check_fields
from fedfuse.utils.typing import Floats, Ints

__all__ = ["Encoder", "federation_from_frame", "read_table"]

log = logging.getLogger(__name__)

# A class in fewer rows than this can be neither learned nor tested.
RARE_CLASS = 5
SAVED: dict[str, Kinds] = {
    "version": int, "device": str, "target": str, "goal": str, "classes": list, "columns": list,
}  # fmt: skip


@dataclass(frozen=True)
class Encoder:
    """How a table's columns became numbers: plain data, saved as JSON, enough to predict for new tables.

    Attributes
    ----------
    device, target
        The columns that say which device a row is of and what is to be predicted.
    goal
        ``"classification"`` or ``"regression"``.
    classes
        The labels behind the class numbers; empty for regression.
    columns
        What was learned of each feature column.

    Examples
    --------
    >>> frame = pd.DataFrame({"site": ["a"] * 8 + ["b"] * 8, "age": [30, 50] * 8, "y": ["no", "yes"] * 8})
    >>> encoder = federation_from_frame(frame, device="site", target="y").encoder
    >>> encoder.features, encoder.transform(frame[:2]).ravel().tolist()
    (('age',), [-1.0, 1.0])
    >>> Encoder.from_json(encoder.to_json()) == encoder
    True
    """

    device: str
    target: str
    goal: Goal
    classes: tuple[Any, ...]
    columns: tuple[Column, ...]

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the columns of `transform`."""
        return tuple(name for column in self.columns for name in column.features)

    def transform(self, frame: pd.DataFrame) -> Floats:
        """Return the features of each row of a table (rows x features). The target need not be there.

        Missing numbers become the training median; a level never seen in training counts as "other" where
        training had rare levels, else all 0/1 columns of that table column are 0.
        """
        return self._write(Table.of(frame, self.device))

    def _write(self, table: Table) -> Floats:
        table.require([column.name for column in self.columns])
        X = np.zeros((table.n, len(self.features)))
        first = 0
        for column in self.columns:
            last = first + len(column.features)
            column.write(table, X[:, first:last])
            first = last
        return X

    def devices(self, frame: pd.DataFrame) -> npt.NDArray[np.object_]:
        """Return the device name of each row of a table, "" where it is missing."""
        table = Table.of(frame, self.device)
        table.require([self.device], "device column")
        return text_array(*table.levels(self.device))

    def targets(self, frame: pd.DataFrame) -> npt.NDArray[Any]:
        """Return the target of each row of a table: class numbers (-1: unknown), or values (NaN: missing)."""
        table = Table.of(frame, self.device)
        table.require([self.target], "target column")
        if self.goal == "regression":
            return table.numbers(self.target)
        codes, found = table.levels(self.target)
        known = {as_text(c): k for k, c in enumerate(self.classes)}
        return np.array([*(known.get(v, -1) for v in found), -1], dtype=np.int64)[codes]

    def unscale(self, coef: Floats) -> Floats:
        """Return coefficients in the table's own units, for the same predictions.

        Parameters
        ----------
        coef
            For standardised features: outputs x (features + 1), the intercept last.
        """
        offsets = np.array([v for column in self.columns for v in column.offsets])
        scales = np.array([v for column in self.columns for v in column.scales])
        slopes = np.asarray(coef)[..., :-1] / scales
        intercept = np.asarray(coef)[..., -1:] - slopes @ offsets[:, None]
        return np.concatenate([slopes, intercept], axis=-1)

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and text, as `json.dump` wants them."""
        return {
            "version": 1,
            "device": self.device,
            "target": self.target,
            "goal": self.goal,
            "classes": list(self.classes),
            "columns": [
                {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(column).items()}
                for column in self.columns
            ],
        }

    @classmethod
    def from_json(cls, spec: dict[str, Any]) -> Encoder:
        """Return the encoder that `to_json` wrote."""
        check_fields(spec, SAVED, "the encoder", whole=False)
        try:
            if spec["version"] != 1:
                raise FedfuseError(f"this encoder is of version {spec['version']}; fedfuse here reads version 1")
            columns = tuple(column_from_json(c) for c in spec["columns"])
            return cls(spec["device"], spec["target"], spec["goal"], tuple(spec["classes"]), columns)
        except (KeyError, TypeError) as problem:
            raise FedfuseError(f"this is not the description of an encoder ({problem!r} is wrong)") from None


def federation_from_frame(
    frame: pd.DataFrame,
    *,
    device: str,
    target: str,
    goal: Goal | None = None,
    test: float = 0.2,
    validation: float = 0.2,
    seed: int = 0,
) -> Federation:
    """Build a federation from a table: one device per value of a column, every other column a feature.

    Parameters
    ----------
    frame
        The table; it is not changed.
    device
        The column that says which device a row is of. Devices are named by its values as text and stand in
        natural order (site2 before site10).
    target
        The column to predict.
    goal
        Told from the target when not given: text, booleans, categories and whole numbers with at most 20
        distinct values mean classification. A regression's target stays in its own units.
    test, validation, seed
        As in `Federation.from_arrays`.

    Notes
    -----
    What is learned of a column is learned from training rows only, over all devices together:

    - numbers are standardised; missing ones become the median, and if training rows had any, a 0/1 column
      "NAME missing" says where. Whole numbers are numbers: make codes text or categories beforehand.
    - dates (also text like 2024-03-31) and durations become a number of days, then as numbers.
    - text, categories and booleans get a 0/1 column "NAME=LEVEL" per level, or a single one if there are two.
      "missing" is a level of its own. Levels in fewer than 1 % of the training rows, or in fewer than 10
      (5 % of a small table), are pooled as "other".
    - dropped with a logged warning: columns that are empty or do not vary, text columns in which nearly every
      row has a value of its own (identifiers), rows without a device or target, and the rows of classes with
      fewer than 5 rows.

    Raises
    ------
    FedfuseError
        For a table that cannot be used: unknown columns, infinite numbers, text where numbers are needed,
        fewer than two classes, devices with too few rows.

    Examples
    --------
    >>> frame = pd.DataFrame({"site": ["a", "b"] * 20, "dose": range(40), "sex": list("ffmm") * 10})
    >>> frame["gain"] = 0.5 * frame["dose"]
    >>> fed = federation_from_frame(frame, device="site", target="gain")
    >>> fed
    Federation(2 devices, 40 rows (20 to 20 each), 2 features, regression)
    >>> fed.features
    ('dose', 'sex=m')
    """
    check_splits(test, validation, seed)
    check_goal(goal)
    table = Table.of(frame, device)
    _check_roles(table, device, target)
    rows, goal, y, classes = _targets(table, _known_rows(table, device, target), target, goal)
    names, owner = _devices(table.at(rows), device)
    counts = np.bincount(owner, minlength=len(names)).astype(np.int64)
    check_counts(counts, names, test, validation)
    order = np.argsort(owner, kind="stable")[shuffled_rows(counts, seed)]
    cuts = cut_points(counts, test, validation)
    train = np.flatnonzero(np.arange(len(rows)) < np.repeat(cuts[:, 1], counts))
    table = table.at(rows[order])
    encoder = Encoder(device, target, goal, classes, _fit_columns(table, train, (device, target)))
    X = encoder._write(table)
    return Federation(names, X, y[order], cuts, goal, classes, encoder.features, None, encoder)


def _check_roles(table: Table, device: str, target: str) -> None:
    table.require([device], "device column")
    table.require([target], "target column")
    if device == target:
        raise FedfuseError(f"the device column and the target column are both {device!r}: name two columns")
    if table.kind(target) == "date":
        raise FedfuseError(f"the target column {target!r} holds dates; turn it into numbers or classes first")


def _known_rows(table: Table, device: str, target: str) -> Ints:
    """Return the rows with a target and a device; the others are dropped, and the log says how many."""
    known = np.ones(table.n, dtype=np.bool_)
    for name, what in ((target, "target"), (device, "device")):
        gaps = table.missing(name)
        if gaps.any():
            log.warning("%d of %d rows are dropped: no %s (column %r)", gaps.sum(), table.n, what, name)
        known &= ~gaps
    if not known.any():
        raise FedfuseError(f"no row has both a device (column {device!r}) and a target (column {target!r})")
    return np.flatnonzero(known)


def _targets(
    table: Table, rows: Ints, target: str, goal: Goal | None
) -> tuple[Ints, Goal, npt.NDArray[Any], tuple[Any, ...]]:
    """Return the rows that stay, the goal, their target as numbers, and the classes."""
    where = f"the target column {target!r}"
    _refuse_text_among_numbers(table.at(rows), target, goal)
    raw = _raw_target(table.at(rows), target)
    found, y, classes = encode(raw, goal, where)
    if found == "regression":
        return rows, found, y, classes
    frequent = np.bincount(y) >= RARE_CLASS
    if frequent.all():
        return rows, found, y, classes
    if frequent.sum() < 2:
        raise FedfuseError(
            f"{where} has {len(classes)} different values, {frequent.sum()} of them in at least {RARE_CLASS} "
            "rows, but two such classes are needed; for numbers try goal='regression'"
        )
    rare = [c for c, ok in zip(classes, frequent, strict=True) if not ok]
    keep = frequent[y]
    log.warning(
        "%d of %d rows are dropped: %d classes have fewer than %d rows each (%s)",
        *(np.sum(~keep), len(y), len(rare), RARE_CLASS, ", ".join(map(str, rare[:6]))),
    )
    return rows[keep], *encode(raw[keep], "classification", where)


def _refuse_text_among_numbers(table: Table, target: str, goal: Goal | None) -> None:
    """Name the value that makes a target of numbers text: as classes it would only be said that there are too many."""
    series = table.series(target)
    if goal == "classification" or pd.api.types.infer_dtype(series) not in ("string", "mixed", "mixed-integer"):
        return
    numbers = pd.to_numeric(series.astype(object), errors="coerce")
    if 0 < numbers.isna().mean() < 0.5 and (goal == "regression" or numbers.nunique() > MOST_CLASSES):
        table.numbers(target)


def _raw_target(table: Table, target: str) -> npt.NDArray[Any]:
    if table.kind(target) == "number":
        return table.numbers(target)
    series = table.series(target)
    if pd.api.types.infer_dtype(series) == "boolean":
        return series.to_numpy(dtype=np.bool_)
    # text, and categories whatever they are made of
    return series.to_numpy(dtype=object)


def _devices(table: Table, device: str) -> tuple[tuple[str, ...], Ints]:
    codes, found = table.levels(device)
    order = sorted(range(len(found)), key=lambda j: natural(found[j]))
    rank = np.empty(len(found), dtype=np.int64)
    rank[order] = np.arange(len(found))
    return tuple(found[j] for j in order), rank[codes]


def _fit_columns(table: Table, train: Ints, roles: tuple[str, str]) -> tuple[Column, ...]:
    fitted = [fit_column(table, name, train) for name in table.columns if name not in roles]
    columns = tuple(column for column in fitted if column is not None)
    if not columns:
        raise FedfuseError(
            f"no usable feature column is left beside {roles[0]!r} and {roles[1]!r}; "
            "columns that are empty, do not vary or are identifiers are dropped"
        )
    return columns
