"""Tables: federations from a data frame with a device column and a target column."""

from __future__ import annotations

import logging
import re
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedfuse.data.checks import check_counts, check_splits, natural_key, relative_weights
from fedfuse.data.encoders import Encoder, Table, fit_column
from fedfuse.data.federation import Federation, Goal, cut_points, cuts_with_test, shuffled_rows
from fedfuse.data.targets import MAX_INTEGER_CLASSES, encode_target
from fedfuse.errors import FedfuseError
from fedfuse.utils.typing import Floats, Ints

log = logging.getLogger(__name__)

TRAIN, VALIDATION, TEST = range(3)
_PARTS = {"train": TRAIN, "training": TRAIN, "validation": VALIDATION, "val": VALIDATION, "test": TEST}
# A column with more values than this has no periods.
MAX_PERIODS = 20
# A class in fewer rows than this can be neither learned nor tested.
MIN_CLASS_ROWS = 5


def federation_from_frame(
    frame: pd.DataFrame,
    *,
    device: str,
    target: str,
    goal: Goal | None = None,
    test: float = 0.2,
    validation: float = 0.2,
    seed: int = 0,
    split_by: str | None = None,
    min_rows: int = 1,
    weight: str | None = None,
) -> Federation:
    """Build a federation from a table: one device per value of a column, features from all other columns.

    Parameters
    ----------
    frame
        The table; it is not changed.
    device
        The column that says which device a row is of. Devices are named by its values as text and sorted in
        natural order (site2 before site10).
    target
        The column to predict.
    goal
        Told from the target when not given: text, booleans, categories and whole numbers with at most 20
        distinct values mean classification. A regression's target stays in its own units.
    test, validation, seed
        As in `Federation.from_arrays`.
    split_by
        A column that says which rows are for the test: the words train, test and perhaps validation; or periods (years,
        waves, quarters like 2024Q3, True), the last of which is the test; or, with more than 20 values, dates or
        numbers, the last share ``test`` of which is. It is a feature like others where training rows differ in it.
    min_rows
        Devices with fewer rows before the test are left out; `Result.admit` takes them in afterwards.
    weight
        A column of numbers: what each row counts for, in training and in scores. It is no feature.

    Notes
    -----
    Columns are encoded with what the training rows of all devices together say:

    - numbers, dates and durations (as days, with parts of the calendar), also as text, are standardised; missing ones
      become the median, and a 0/1 column "NAME missing" says where. Whole numbers are numbers: make codes text.
    - text, categories and booleans get a 0/1 column "NAME=LEVEL" per level, or a single one if there are two.
      "missing" is a level of its own. Levels in fewer than 1 % of the training rows, or in fewer than 10
      (5 % of a small table), are pooled as "other".
    - dropped with a logged warning: columns that are empty or do not vary, text columns in which nearly every
      row has a different value (identifiers), rows without a device or target, and the rows of classes with
      fewer than 5 rows.

    Examples
    --------
    >>> frame = pd.DataFrame({"site": ["a", "b"] * 20, "dose": range(40), "sex": list("ffmm") * 10})
    >>> frame["gain"] = 0.5 * frame["dose"]
    >>> fed = federation_from_frame(frame, device="site", target="gain")
    >>> fed, fed.features
    (Federation(2 devices, 40 rows (20 to 20 each), 2 features, regression), ('dose', 'sex=m'))
    """
    check_splits(test, validation, seed)
    table = Table.of(frame, device)
    table.require([device], "device column")
    table.require([target], "target column")
    if device == target:
        raise FedfuseError(f"the device column and the target column are both {device!r}: name two columns")
    if table.kind(target) == "date":
        raise FedfuseError(f"the target column {target!r} holds dates; turn it into numbers or classes first")
    if weight is not None:
        table.require([weight], "weight column")
    table = _known_rows(table, device, target, split_by)
    parts = None
    if split_by is not None:
        parts = np.zeros(len(frame), np.int64)
        parts[table.frame.index] = _parts_by_column(table, split_by, test)
    table, goal, y, classes = _targets(_large_devices(table, parts, min_rows), target, goal)
    weights = None if weight is None else relative_weights(table.weights(weight), len(table))
    names, owner = _sorted_levels(table, device)
    order, cuts = _split(owner, names, None if parts is None else parts[table.frame.index], test, validation, seed)
    train = np.flatnonzero(np.arange(len(table)) < np.repeat(cuts[:, 1], cuts[:, 3] - cuts[:, 0]))
    table = table.at(order)
    fitted = [fit_column(table, name, train) for name in table.frame.columns if name not in (device, target, weight)]
    columns = tuple(column for column in fitted if column is not None)
    if not columns:
        raise FedfuseError(
            f"no usable feature column is left beside {device!r} and {target!r}; "
            "columns that are empty, do not vary or are identifiers are dropped"
        )
    encoder = Encoder(device, target, goal, classes, columns)
    X, weights = encoder.transform(table), None if weights is None else weights[order]
    return Federation(names, X, y[order], cuts, goal, classes, encoder.features, None, encoder, weights=weights)


def _known_rows(table: Table, device: str, target: str, split_by: str | None) -> Table:
    """Return the rows with a target, a device and a place in the split; log how many others are dropped."""
    known, roles = np.ones(len(table), dtype=np.bool_), {target: "target", device: "device"}
    if split_by is not None:
        table.require([split_by], "column to split by")
        if split_by in roles:
            raise FedfuseError(f"split_by={split_by!r} is the device or target column; name a third one")
        roles[split_by] = "value to split by"
    for name, what in roles.items():
        gaps = table.missing(name)
        if gaps.any():
            log.warning("%d of %d rows are dropped: no %s (column %r)", gaps.sum(), len(table), what, name)
        known &= ~gaps
    if not known.any():
        raise FedfuseError(f"no row has both a device (column {device!r}) and a target (column {target!r})")
    return table.at(known)


def _large_devices(table: Table, parts: Ints | None, min_rows: int) -> Table:
    """Return the rows of devices with at least so many rows outside the test; log how many devices are left out."""
    if not isinstance(min_rows, Integral) or min_rows < 1:
        raise FedfuseError(f"min_rows must be a whole number of at least 1, got {min_rows!r}")
    if min_rows == 1:
        return table
    names, owner = _sorted_levels(table, table.device)
    counts = np.bincount(owner, None if parts is None else parts[table.frame.index] < TEST, len(names))
    large = counts >= min_rows
    if large.all():
        return table
    if not large.any():
        raise FedfuseError(f"no device has min_rows={min_rows} rows; the largest has {int(counts.max())}")
    words = "devices with fewer than %d rows are left out of the search for groups: %d of %d (%s)"
    small = [name for name, ok in zip(names, large, strict=True) if not ok]
    log.warning(words, min_rows, len(small), len(names), ", ".join(small[:6]) + ", …" * (len(small) > 6))
    return table.at(large[owner])


def _parts_by_column(table: Table, name: str, test: float) -> Ints:
    """Return the part of each row, by words, the last period or the last share of a column; log what was done."""
    if not test:
        raise FedfuseError(f"test=0 and split_by={name!r} contradict each other: leave out one")
    codes, levels = table.levels(name)
    named = np.array([_PARTS.get(level.lower(), -1) for level in levels])
    if TEST in named and named.min() >= 0:
        parts: Ints = named[codes]
        log.warning("%d rows are test rows, as given by column %r", np.sum(parts == TEST), name)
        return parts
    periods = _periods(table, name)
    values, position, counts = np.unique(periods, return_inverse=True, return_counts=True)
    if len(values) < 2:
        raise FedfuseError(f"column {name!r} is {levels[0]} in every row, so there is no last period to test on")
    first = len(values) - 1
    if len(values) > MAX_PERIODS:
        from_here_on = np.cumsum(counts[::-1])[::-1]
        first = max(int(np.flatnonzero(from_here_on >= test * len(table))[-1]), 1)
    last = position >= first
    begin = levels[codes[int(np.argmax(position == first))]].removesuffix(" 00:00:00")
    words = "%d of %d rows are for the test: those with %s " + ("from %s on" if first < len(values) - 1 else "%s")
    log.warning(words, last.sum(), len(last), name, begin)
    return np.where(last, TEST, TRAIN)


def _periods(table: Table, name: str) -> Floats:
    kind, series = table.kind(name), table.frame[name]
    if kind != "level":
        return table.values(name, kind)
    if pd.api.types.infer_dtype(series) == "boolean":
        return series.to_numpy(dtype=np.float64)
    levels, position = _sorted_levels(table, name)
    strange = [level for level in levels if not re.match(r"\d{4}", level)]
    if strange:
        need = "numbers, dates, text that begins with a year, or the words train, validation, test"
        raise FedfuseError(f"column {name!r} to split by holds {strange[0]!r}, but {need} are needed")
    return position.astype(np.float64)


def _split(
    owner: Ints, names: tuple[str, ...], parts: Ints | None, test: float, validation: float, seed: int
) -> tuple[Ints, Ints]:
    """Return the rows device after device, those for validation and test last, and the cut points."""
    counts = np.bincount(owner, minlength=len(names)).astype(np.int64)
    order = np.argsort(owner, kind="stable")[shuffled_rows(counts, seed)]
    advice = "let devices with few rows join afterwards (min_rows={})"
    if parts is None:
        check_counts(counts, names, test, validation, advice)
        return order, cut_points(counts, test, validation)
    order = order[np.lexsort((parts[order], owner[order]))]
    train, given, held_out = (np.bincount(owner, parts == k, len(names)).astype(np.int64) for k in range(3))
    check_counts(train, names, 0, 0 if given.any() else validation, advice)
    if not given.any():
        return order, cuts_with_test(train, held_out, validation)
    ends = np.cumsum(counts)
    return order, np.stack([ends - counts, ends - held_out - given, ends - held_out, ends], axis=1)


def _targets(table: Table, target: str, goal: Goal | None) -> tuple[Table, Goal, npt.NDArray[Any], tuple[Any, ...]]:
    """Return the rows that are kept, the goal, their target as numbers, and the classes."""
    where, series = f"the target column {target!r}", table.frame[target]
    holds = pd.api.types.infer_dtype(series)
    if goal != "classification" and holds in ("string", "mixed", "mixed-integer"):
        numbers = pd.to_numeric(series.astype(object), errors="coerce")
        if 0 < numbers.isna().mean() < 0.5 and (goal == "regression" or numbers.nunique() > MAX_INTEGER_CLASSES):
            table.numbers(target)  # Names the value that is text, rather than complain of too many classes.
    if table.kind(target) == "number":
        raw: npt.NDArray[Any] = table.numbers(target)
    else:
        raw = series.to_numpy(dtype=np.bool_ if holds == "boolean" else object)
    found, y, classes = encode_target(raw, goal, where)
    # Two values are hardly ever measured; grades, counts and years with few values may be meant as numbers.
    if goal is None and raw.dtype.kind == "f" and len(classes) > 2:
        words = "%s has %d different whole numbers: taken as classes; --task regression (goal='regression') as numbers"
        log.warning(words, where, len(classes))
    frequent = np.bincount(y) >= MIN_CLASS_ROWS if found == "classification" else np.ones(1, np.bool_)
    if frequent.all():
        return table, found, y, classes
    if frequent.sum() < 2:
        raise FedfuseError(
            f"{where} has {len(classes)} different values, {frequent.sum()} of them in at least {MIN_CLASS_ROWS} "
            "rows, but two such classes are needed; for numbers try goal='regression'"
        )
    rare = [c for c, ok in zip(classes, frequent, strict=True) if not ok]
    keep = frequent[y]
    log.warning(
        "%d of %d rows are dropped: %d classes have fewer than %d rows each (%s)",
        *(np.sum(~keep), len(y), len(rare), MIN_CLASS_ROWS, ", ".join(map(str, rare[:6]))),
    )
    return table.at(keep), *encode_target(raw[keep], "classification", where)


def _sorted_levels(table: Table, name: str) -> tuple[tuple[str, ...], Ints]:
    codes, found = table.levels(name)
    order = sorted(range(len(found)), key=lambda j: natural_key(found[j]))
    return tuple(found[j] for j in order), np.argsort(order)[codes]
