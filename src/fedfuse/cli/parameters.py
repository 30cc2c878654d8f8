"""Arguments and options that several commands have."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

Arg, Opt = typer.Argument, typer.Option


def whole(text: str) -> int:
    """Read a whole number, or say in one line that it is none."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


ROUNDS = "(default: by data set and method, 500 for a table)"


class Command(TyperCommand):
    """A command whose arguments have the help that they were given: some typers lose it with newer clicks."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        given = get_type_hints(inspect.unwrap(self.callback), include_extras=True) if self.callback else {}
        for parameter in self.params:
            known = (getattr(note, "help", None) for note in getattr(given.get(parameter.name), "__metadata__", ()))
            if not getattr(parameter, "help", None):
                parameter.help = next(filter(None, known), None)


def place(text: str) -> Path:
    """Read where to write; nothing at all is no directory, though Python takes it for this one."""
    if not text:
        raise typer.BadParameter("'' is no directory; give a name, or . for this one")
    return Path(text)


Json = Annotated[bool, Opt("--json", help="Print the summary as one JSON object, and nothing else.")]
DataDir = Annotated[Path | None, Opt(help="Where data files are (default: $FEDFUSE_DATA).")]
_DATA = "A name from 'fedfuse data list', synthetic:5,5,5,5 for group sizes, or a .csv or .parquet file."
Dataset = Annotated[str, Arg(help=_DATA)]
Seed = Annotated[int, Opt(parser=whole, metavar="N", help="Every random draw depends on it.")]
Features = Annotated[str, Opt(help="Synthetic data: uniform or normal.")]
Device = Annotated[str | None, Opt(help="Table: the column that says which device a row is of.")]
Target = Annotated[str | None, Opt(help="Table: the column to predict.")]
Task = Annotated[str | None, Opt(help="Table: classification or regression (told from the target).")]
Place = Annotated[str, Opt("--engine", help="Where devices compute: inprocess, workers (processes) or flower.")]
Out = Annotated[
    Path | None, Opt(parser=place, metavar="PATH", help="A new directory for the run (default: below runs/).")
]
Page = Annotated[bool | None, Opt("--report/--no-report", help="Write report.html (default: unless --json).")]
Set = Annotated[list[str], Opt("--set", help="key=value, e.g. steps=grow(20), mode=async, delay=uniform(0,20).")]
Jobs = Annotated[int | None, Opt(parser=whole, metavar="N", help="Runs at a time (default: one per core).")]
Rounds = Annotated[int | None, Opt(parser=whole, metavar="N", help=f"At most so many rounds in each run {ROUNDS}.")]
