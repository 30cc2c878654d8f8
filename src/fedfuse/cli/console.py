"""Where commands write: answers to standard output, what is under way to standard error."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console

PAGE = 160  # columns of a file or a pipe, which have no edge at which a table would have to be cut


class Lines(Console):
    """A console for lines that are printed as they are: paths and names are no markup, and nothing is broken in two."""

    def say(self, text: object, style: str | None = None) -> None:
        """Print a line."""
        self.print(str(text), style=style, highlight=False, markup=False, soft_wrap=True)


class Answers(Lines):
    """Standard output."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        if not self.is_terminal and "COLUMNS" not in os.environ and "width" not in how:
            self.width = PAGE
