"""The command line: run, compare, tune, resume, report, watch, predict, join, export, data, flower, paper, …"""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer

from fedfuse._version import __version__
from fedfuse.cli.arguments import Command, Opt
from fedfuse.cli.console import INTERRUPTED_STATUS, fail, notes
from fedfuse.cli.data_commands import data_fetch, data_list, flower_new
from fedfuse.cli.result_commands import export, join, predict, report, watch
from fedfuse.cli.run_commands import resume, run, tune
from fedfuse.cli.study_commands import bench, compare, paper
from fedfuse.errors import FedfuseError, Terminated

__all__ = ["app", "main"]

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Find which devices of a federation share a model, and train one good model per group.",
)
data_app = typer.Typer(help="Data sets that have a name.")
app.add_typer(data_app, name="data")
flower_app = typer.Typer(help="Federations of real hosts, on Flower.")
app.add_typer(flower_app, name="flower")
for _command in (run, compare, tune, resume, report, watch, predict, join, export, bench, paper):
    app.command(cls=Command)(_command)  # in the order of --help
data_app.command("list", cls=Command)(data_list)
data_app.command("fetch", cls=Command)(data_fetch)
flower_app.command("new", cls=Command)(flower_new)

# New objects between two garbage collections: with Python's 700, a fifth of the time to compile is collecting.
GARBAGE_COLLECTION_OBJECTS = 200_000
# click's ClickException; newer typers carry a click of their own, so it has no other name that always holds
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]


def main() -> None:
    """Run the command line; bad input is one line on standard error and status 2."""
    logger, often = logging.getLogger("fedfuse"), gc.get_threshold()
    logger.addHandler(notes)
    gc.set_threshold(GARBAGE_COLLECTION_OBJECTS, *often[1:])
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        # some versions of typer raise an interruption, others return its status
        if app(prog_name="fedfuse", standalone_mode=False) == INTERRUPTED_STATUS:
            raise KeyboardInterrupt
        notes.show()
    except FedfuseError as error:
        fail(_as_typed(str(error)), 2)
    except _UsageError as error:
        fail(_usage(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        fail("interrupted", INTERRUPTED_STATUS)
    except Terminated as stop:
        fail("terminated", int(stop.args[0]))
    except BrokenPipeError:  # the reader of our output has gone; nothing is wrong here
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except MemoryError as error:
        fail(f"not enough memory: {error}", 2)
    except OSError as error:
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 2)
    finally:
        signal.signal(signal.SIGTERM, before)
        gc.set_threshold(*often)
        logger.removeHandler(notes)
        notes.forget()


def _terminate(number: int, frame: Any) -> NoReturn:
    raise Terminated(128 + number)


def _as_typed(message: str) -> str:
    """Write Python's arguments as the command line has them: goal='regression' is --task regression."""
    written = re.sub(r"\b(goal|features|device|target|split_by)='([^']*)'", r"--\1 \2", message)
    written = re.sub(r"\b(test|validation|min_rows)=([\d.]+)", r"--\1 \2", written)
    for word, option in (("goal", "task"), ("split_by", "split-by"), ("min_rows", "min-rows")):
        written = written.replace(f"--{word} ", f"--{option} ")
    return written


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "fedfuse"
    # some versions of click and typer both ask what was meant
    words = re.sub(r"( Did you mean .*?\?)\1", r"\1", error.format_message().rstrip("."))
    return f"{words} ({command} --help says more)"


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fedfuse {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    context: typer.Context,
    version: Annotated[bool, Opt("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
