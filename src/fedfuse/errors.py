"""The one exception that bad input raises, and the guess what was meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedfuseError(ValueError):
    """Input that fedfuse cannot use: says what was given, what is allowed and what to do.

    The command line prints the same words on one line and exits with status 2.
    """


def guess(word: str, known: Iterable[str]) -> str:
    """Return a question with the nearest of the known words, for the middle of a message, or nothing.

    >>> guess("digist", ["digits", "mnist"])
    "did you mean 'digits'? "
    """
    near = get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""
