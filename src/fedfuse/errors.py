"""The one exception that bad input raises, the one of SIGTERM, the guess what was meant, and checks of settings."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, get_args


class FedfuseError(ValueError):
    """Input that fedfuse cannot use: says what was given, what is allowed and what to do.

    The command line prints the same words on one line and exits with status 2.
    """


class Terminated(SystemExit):
    """SIGTERM. In training it is raised after the round, and the process exits with status 0."""

    def __str__(self) -> str:
        return "told to stop"


def guess(word: str, known: Iterable[str]) -> str:
    """Return a question with the nearest of the known words, for the middle of a message, or nothing.

    >>> guess("digist", ["digits", "mnist"])
    "did you mean 'digits'? "
    """
    plain = {name.strip().lower(): name for name in known}
    near = get_close_matches(word.strip().lower(), plain, n=1)
    return f"did you mean {plain[near[0]]!r}? " if near else ""


def check_choice(name: str, value: object, allowed: Any) -> None:
    """Raise unless a setting is one of the words of a ``Literal``.

    >>> from typing import Literal
    >>> check_choice("linkage", "ward", Literal["average", "complete", "single"])
    Traceback (most recent call last):
    fedfuse.errors.FedfuseError: linkage must be 'average', 'complete' or 'single', got 'ward'
    """
    words = [repr(word) for word in get_args(allowed)]
    if value not in get_args(allowed):
        raise FedfuseError(f"{name} must be {', '.join(words[:-1])} or {words[-1]}, got {value!r}")
