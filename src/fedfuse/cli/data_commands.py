"""Commands on data sets and Flower apps: data list, data fetch, flower new."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedfuse.cli import arguments as args
from fedfuse.cli.arguments import Arg
from fedfuse.cli.console import Answers, console


def data_list(data_dir: args.DataDir = None) -> None:
    """List the named data sets, and whether their files are present."""
    from fedfuse.data.catalog import available
    from fedfuse.data.download import data_directory
    from fedfuse.report.terminal import plain_table

    rows = ((source.name, source.description, "yes" if source.present else "no") for source in available(data_dir))
    Answers().print(plain_table(["name", "what", "here"], rows, left=3))
    console.say(f"data directory: {data_directory(data_dir)}")


def data_fetch(
    name: Annotated[str, Arg(help="A data set with files: mnist, fashion-mnist.")], data_dir: args.DataDir = None
) -> None:
    """Download and verify the files of a data set; existing files are kept."""
    from fedfuse.data.download import fetch
    from fedfuse.report.terminal import download_bars

    with download_bars(console) as progress:
        done = fetch(name, data_dir, progress)
    words = f"{name}: {len(done.new)} files fetched, {len(done.present)} already there, in {done.directory}"
    Answers().say(words if done.new or done.present else f"{name} needs no files")


def flower_new(directory: Annotated[Path, Arg(help="A new directory.")]) -> None:
    """Create a small Flower app; edit its task.py to load a device's rows and choose the model."""
    from fedfuse.flower.project_template import INSTALL_NOTHING, write_app

    for path in write_app(directory):
        typer.echo(str(path))
    typer.echo(f"next: {INSTALL_NOTHING}")
    typer.echo(f'      flwr run {directory} --stream --federation-config "num-supernodes=8"')
