"""Sentences on the outcome of a run that terminal and report have in common."""

from __future__ import annotations

import numpy as np

from fedfuse.result import Result

# what the ledger calls them, and what a reader does
REFUSED = {
    "late": "came after its round was over",
    "not asked for, or too late": "answer to an order no longer open",
}


def counted(n: int, word: str) -> str:
    """Write how many there are.

    >>> counted(1, "group"), counted(1200, "device")
    ('1 group', '1,200 devices')
    """
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def refusals(result: Result) -> list[tuple[str, int]]:
    """Return why uploads were refused, and how many."""
    return [(REFUSED.get(reason, reason), n) for reason, n in result.refused.items()]


def silence(result: Result) -> str:
    """Say what is known of devices that were never heard in time: nothing."""
    who = counted(len(result.unheard), "device")
    others = np.setdiff1d(np.arange(len(result.labels)), result.unheard)
    if np.isin(result.labels[result.unheard], result.labels[others]).any():
        return f"{who} never answered in time: no group was found for them, nor a model of their own"
    return f"{who} never answered in time and {'has' if len(result.unheard) == 1 else 'have'} no model of their own"
