"""Numbers, dates and durations that a table holds as text: 1.234,50, $99, 12 %, 51 kg, 31.12.2024, 12:30.

A column is read as such if all its values can be, and their marks leave one way to read them.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from datetime import time
from typing import Any, TypeAlias

import pandas as pd

log = logging.getLogger(__name__)

Text: TypeAlias = "pd.Series[Any]"
# What people write into a column of numbers where they have none.
GAP_WORDS = ("", "?", "-", "--", ".", "unknown", "missing", "not known", "not available", "n.a.")
_SPACES, _QUOTES = " \u00a0\u202f", "'\u2019"
_DIGITS = rf"(?:[1-9]\d{{0,2}}(?:(?P<group>[.,{_QUOTES}{_SPACES}])\d{{3}})(?:(?P=group)\d{{3}})*|\d+|(?=[.,]\d))"
# A unit has a blank before it or begins in lower case: 12A is a name.
_UNIT = rf"%|[$€£¥₹]|[{_SPACES}][A-Za-zµ°]\S{{0,6}}|[a-zµ°][^\s\d]{{0,6}}"
_NUMBER = (
    rf"(?P<sign>[-+(]?)(?P<before>[$€£¥₹]|[A-Z]{{3}}[{_SPACES}])?[{_SPACES}]?(?P<number>[-+]?{_DIGITS}"
    rf"(?:(?P<mark>[.,])\d+)?(?:[eE][-+]?\d+)?)\)?[{_SPACES}]?(?P<after>{_UNIT})?"
)
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?"
_DATE = (
    r"(?:(?P<first>\d{1,2})(?P<mark>[./-])(?P<second>\d{1,2})(?P=mark)\d{4}|\d{4}(?P<dash>[-/])\d{1,2}(?P=dash)\d{1,2}"
    r"|\d{1,2}[ -][A-Za-z]{3,9}[ -]\d{4}|[A-Za-z]{3,9} \d{1,2}, \d{4})"
    rf"(?:[T ]{_CLOCK}(?: ?[AaPp][Mm])?(?P<zone>Z| ?[-+]\d\d:?\d\d)?)?"
)
_DURATION = rf"-?\d+ days?(?: [-+]?{_CLOCK})?|{_CLOCK}"
_SAMPLE_VALUES = 100


def plain_table(frame: pd.DataFrame, as_given: Container[str] = (), digits: bool = False) -> pd.DataFrame:
    """Return the table with columns of text read as numbers, dates or durations where they can be; log how.

    With ``digits`` text without any mark may be a number, too: in a file nobody has made it text.
    """
    changed: dict[Any, Text] = {}
    for name in frame.columns:
        series = frame[name]
        if name in as_given or series.dtype.kind != "O" or isinstance(series.dtype, pd.CategoricalDtype):
            continue
        given, kinds = series.dropna(), (str, time, int, float) if digits else (str, time)
        head = _known(given[:_SAMPLE_VALUES])  # Most columns of words are told by a few values.
        if not any(head.str.fullmatch(pattern).all() for pattern in (_NUMBER, _DATE, _DURATION)):
            continue
        if not all(isinstance(value, kinds) for value in given):
            continue
        codes, levels = pd.factorize(series)
        known = _known(pd.Series(levels, dtype=object))
        values = _numbers(name, known, digits)
        values = _dates(name, known) if values is None else values
        values = _durations(known) if values is None else values
        if values is not None:
            # Code -1, a missing value, is no row of the levels.
            changed[name] = values.reindex(codes).set_axis(series.index)
            gaps = changed[name].isna() & series.notna()
            if gaps.any():
                log.warning("column %r: %r in %d rows is taken as missing", name, series[gaps].iloc[0], gaps.sum())
    return frame.assign(**changed) if changed else frame


def are_numbers(text: Text) -> Text:
    """Return which values are numbers, perhaps with the marks and units that people write."""
    return text.astype(str).str.strip().str.fullmatch(_NUMBER)


def _known(values: Text) -> Text:
    """Return values as text, without those that stand for nothing."""
    text: Text = values.astype(object).astype(str).str.strip().str.replace("\u2212", "-")
    return text[~text.str.lower().isin(GAP_WORDS)]


def _all_match(text: Text, pattern: str) -> bool:
    return bool(len(text) and text.str.fullmatch(pattern).all())


def _numbers(name: str, text: Text, digits: bool) -> Text | None:
    if not _all_match(text, _NUMBER):
        return None
    parts = text.str.extract(f"^{_NUMBER}$")
    money = parts[["before", "after"]].isin(list("$€£¥₹")).any(axis=1) | parts["before"].notna()
    units = {unit.strip() for unit in parts["after"].dropna()}
    marks, groups = set(parts["mark"].dropna()), set(parts["group"].dropna())
    if len(units) > 1 or len(marks) > 1 or not (digits or units or groups or marks == {","} or money.any()):
        return None
    point = next(iter(marks), None)
    if point is None:
        # 1,234 is a thousand and more. So is 1.234 if it is money; if not, points are decimals.
        repeated = parts["number"].str.count(r"\.").max() > 1
        decimals = "." in groups and not (repeated or money.any())
        point = "." if decimals or groups <= set("," + _QUOTES + _SPACES) else ","
    number = parts["number"].str.replace(rf"[^\d{point}eE+-]", "", regex=True).str.replace(point, ".", regex=False)
    values: Text = pd.to_numeric(number, errors="coerce")
    if values.isna().any():
        return None
    values = values.where(~parts["sign"].isin(["-", "("]), -values)
    if units or groups or money.any():
        shown = text[parts[["after", "group", "before"]].notna().any(axis=1)].index[0]
        log.warning("column %r: %r is read as the number %s", name, text[shown], f"{values[shown]:g}")
    return values


def _dates(name: str, text: Text) -> Text | None:
    if not _all_match(text, _DATE):
        return None
    parts = text.str.extract(f"^{_DATE}$")
    first, second = (pd.to_numeric(parts[part]) for part in ("first", "second"))
    # Dates with points have the day first everywhere; of others one beyond the twelfth must tell.
    day_first, month_first = (first > 12).any() or (parts["mark"] == ".").any(), (second > 12).any()
    if first.notna().any() and bool(day_first) == bool(month_first):
        shown = text[first.first_valid_index()]
        log.warning("column %r: %r is ambiguous (day or month first?); write such dates as 2024-03-31", name, shown)
        return None
    zones = bool(parts["zone"].notna().any())
    dates: Text = pd.to_datetime(text, format="mixed", dayfirst=bool(day_first), utc=zones, errors="coerce")
    return None if dates.isna().any() else dates


def _durations(text: Text) -> Text | None:
    if not _all_match(text, _DURATION):
        return None
    short = text.str.fullmatch(r"\d{1,2}:\d\d")
    durations: Text = pd.to_timedelta(text.where(~short, text + ":00"))
    return durations
