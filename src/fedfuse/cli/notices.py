"""What is said while commands work, and how they end."""

from __future__ import annotations

import logging
import sys
from typing import NoReturn

from fedfuse.cli.console import Lines

INTERRUPTED = 130
# the answer goes to standard output; progress, notes and errors to standard error
console = Lines(stderr=True)


class Notes(logging.Handler):
    """What the library logs, shown when the work on it has succeeded: an error is to stand alone."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._shown: dict[str, bool] = {}  # many runs on the same data say the same

    def emit(self, record: logging.LogRecord) -> None:
        self._shown.setdefault(record.getMessage(), False)

    def show(self) -> None:
        for line, shown in self._shown.items():
            if not shown:
                console.say("note: " + line, "yellow")
        self._shown = dict.fromkeys(self._shown, True)

    def forget(self) -> None:
        self._shown.clear()


notes = Notes()


def fail(message: str, status: int) -> NoReturn:
    """End the command with one line on standard error."""
    print("fedfuse: " + " ".join(message.split()), file=sys.stderr)  # one plain line, whatever the width
    raise SystemExit(status)
