"""Sentences on the outcome of a run, for terminal and report."""

from __future__ import annotations

import numpy as np

from fedfuse.core.metrics import METRICS
from fedfuse.results.result import Result

BYTES_PER_NUMBER = 4
SMALLEST_WRITTEN_OUT = 1e-5  # Smaller scores are written as 1.234e-06.
NOTHING = "\N{EN DASH}"  # Where a number is not known.
# From the ledger's words to a reader's.
REFUSED = {
    "late": "came after its round was over",
    "not asked for, or too late": "answer to an order no longer open",
}


def counted(n: int, word: str) -> str:
    """Write a count and its noun.

    >>> counted(1, "group"), counted(1200, "device")
    ('1 group', '1,200 devices')
    """
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def compact(value: float) -> str:
    """Write a number in few characters.

    >>> [compact(v) for v in (0, 0.25, 12, 1500, 2.5e6, 11_754_835, 3e9, 1e-7)]
    ['0', '0.25', '12', '1,500', '2.5 M', '11.8 M', '3 G', '1e-07']
    """
    for size, letter in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def decimals(value: float) -> int:
    """Return how many decimals give four significant digits.

    >>> [decimals(v) for v in (0.01234, 4.089, 51234.5)]
    [5, 3, 0]
    """
    size = np.floor(np.log10(abs(value))) if value and np.isfinite(value) else 0
    return int(np.clip(3 - size, 0, 9))


def score(value: float | None, metric: str) -> str:
    """Write an accuracy in per cent, other metrics with four digits.

    >>> score(0.9166, "accuracy"), score(0.753, "rmse"), score(51234.5, "rmse"), score(float("nan"), "rmse")
    ('91.7 %', '0.7530', '51,234', '–')
    >>> score(1.2345e-13, "rmse")
    '1.234e-13'
    """
    if value is None or not np.isfinite(value):
        return NOTHING
    if metric in METRICS and METRICS[metric].percent:
        return f"{100 * value:.1f} %"
    return f"{value:.4g}" if 0 < abs(value) < SMALLEST_WRITTEN_OUT else f"{value:,.{decimals(value)}f}"


def data_size(numbers: float) -> str:
    """Write how many bytes so many numbers take in single precision.

    >>> data_size(203), data_size(10_709), data_size(11_754_835), data_size(417_250_000)
    ('812 B', '42.8 kB', '47 MB', '1.67 GB')
    """
    n = BYTES_PER_NUMBER * numbers
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n:.0f} B"


def duration(seconds: float) -> str:
    """Write a time that is only roughly known.

    >>> duration(42), duration(400), duration(9000)
    ('42 s', '7 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def cut_short(rounds: int) -> str:
    """Say that rounds ran out before groups were found."""
    return f"stopped after {rounds:,} rounds, before it had finished"


def exposed(result: Result) -> str:
    """Say how many liars are among the suspects, and how many honest devices; empty where nobody was made to lie."""
    if not result.attack or not result.attack["who"]:
        return ""
    liars, found = len(result.attack["who"]), len(np.intersect1d(result.attack["who"], result.suspects))
    wrong = len(result.suspects) - found
    caught = f"all {liars} liars found" if found == liars else f"{found} of {counted(liars, 'liar')} found"
    if liars == found == 1:
        caught = "the one liar found"
    return f"{caught}, nobody else accused" if not wrong else f"{caught}; {counted(wrong, 'honest device')} accused"


def refusals(result: Result) -> list[tuple[str, int]]:
    """Return why uploads were refused, and how many."""
    return [(REFUSED.get(reason, reason), n) for reason, n in result.refused.items()]
