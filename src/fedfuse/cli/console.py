"""Consoles: answers on standard output; progress, notes and errors on standard error."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from typing import Any, NoReturn

import typer
from rich.console import Console

from fedfuse.utils.files import without_nan

PIPE_WIDTH = 160  # Columns of a file or a pipe, where no table needs to be cut.
INTERRUPTED_STATUS = 130


class Lines(Console):
    """Print lines verbatim: no markup in paths and names, no wrapping."""

    def say(self, text: object, style: str | None = None) -> None:
        """Print a line."""
        self.print(str(text), style=style, highlight=False, markup=False, soft_wrap=True)


class Answers(Lines):
    """Standard output."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        if not self.is_terminal and "COLUMNS" not in os.environ and "width" not in how:
            self.width = PIPE_WIDTH


console = Lines(stderr=True)


class Notes(logging.Handler):
    """Hold back the library's warnings until the work has succeeded, so that an error stands alone."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._shown: dict[str, bool] = {}  # Many runs on the same data warn of the same things.

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


def print_json(data: Any) -> None:
    """Print one JSON object on a line; NaN becomes null."""
    typer.echo(json.dumps(without_nan(data)))


def fail(message: str, status: int) -> NoReturn:
    """End the command with one line on standard error; if it was interrupted, the next Ctrl-C ends it at once."""
    if status == INTERRUPTED_STATUS:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED_STATUS))
    print("fedfuse: " + " ".join(message.split()), file=sys.stderr)  # one line at any width
    raise SystemExit(status)
