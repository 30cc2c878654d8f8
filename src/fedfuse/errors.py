"""The one exception that bad input raises."""

from __future__ import annotations


class FedfuseError(ValueError):
    """Input that fedfuse cannot use: says what was given, what is allowed and what to do.

    The command line prints the same words on one line and exits with status 2.
    """
