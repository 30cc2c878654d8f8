"""Sentences on the outcome of a run, for terminal and report."""

from __future__ import annotations

import numpy as np

from fedfuse.results.result import Result

BYTES_PER_NUMBER = 4
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
    return f"stopped at --rounds {rounds:,} before its groups were found"


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
