"""Sentences on the outcome of a run, for terminal and report."""

from __future__ import annotations

import numpy as np

from fedfuse.results.result import Result

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
