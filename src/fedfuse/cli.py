"""The command line: ``fedfuse run``, ``resume``, ``predict``, ``data``, ``bench``."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler

from fedfuse._version import __version__
from fedfuse.errors import FedfuseError
from fedfuse.store import without_nan

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Find which devices of a federation share a model, and train one good model per group.",
)
data_app = typer.Typer(help="Data sets that have a name.")
app.add_typer(data_app, name="data")

console = Console(stderr=True)
# click's ClickException; newer typers carry a click of their own, so it has no other name that always holds
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object, and nothing else.")]
DataDir = Annotated[Path | None, typer.Option(help="Where data files are (default: $FEDFUSE_DATA).")]


def main() -> None:
    """Run the command line; bad input is one line on standard error and status 2."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[RichHandler(
        console=console, show_time=False, show_path=False)])  # fmt: skip
    try:
        app(standalone_mode=False)
    except FedfuseError as error:
        _fail(str(error), 2)
    except _UsageError as error:
        _fail(f"{error.format_message()} (fedfuse --help shows how it is used)", 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", 130)


def _fail(message: str, status: int) -> None:
    print("fedfuse: " + " ".join(message.split()), file=sys.stderr)  # noqa: T201 - one plain line, no wrapping
    raise SystemExit(status)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fedfuse {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def run(
    dataset: Annotated[str, typer.Argument(help="synthetic:S1 … S5, housing-bodyfat, or a .csv/.parquet file.")],
    method: Annotated[str, typer.Option(help="fpfc or fpfc-l1.")] = "fpfc",
    lam: Annotated[float | None, typer.Option(help="Strength of the penalty.")] = None,
    rounds: Annotated[int | None, typer.Option(help="At most so many rounds.")] = None,
    seed: Annotated[int, typer.Option(help="Every random draw depends on it.")] = 0,
    features: Annotated[str, typer.Option(help="Synthetic data: uniform or normal.")] = "uniform",
    device: Annotated[str | None, typer.Option(help="Table: the column that says which device a row is of.")] = None,
    target: Annotated[str | None, typer.Option(help="Table: the column to predict.")] = None,
    task: Annotated[str | None, typer.Option(help="Table: classification or regression (told from the target).")] = None,
    engine: Annotated[str, typer.Option(help="Where devices compute: inprocess.")] = "inprocess",
    out: Annotated[Path | None, typer.Option(help="A new directory for the run (default: below runs/).")] = None,
    set_: Annotated[list[str], typer.Option("--set", help="key=value, e.g. start=normal, steps=grow(20).")] = [],  # noqa: B006
    yardsticks: Annotated[bool, typer.Option(help="Compare with local and pooled models.")] = True,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Train on a data set and show which devices belong together."""
    from fedfuse.data.sources import load
    from fedfuse.options import build_method, parse_options, preset

    if engine != "inprocess":
        raise FedfuseError(f"unknown engine {engine!r}; known: inprocess")
    options, defaults = parse_options(set_), preset(dataset)
    chosen = build_method(method, lam, defaults.work, options)
    settings = {**defaults.settings, **options.settings, "seed": seed}
    if rounds is not None:
        settings["rounds"] = rounds
    source = {
        "dataset": dataset, "features": features, "device": device, "target": target, "goal": task, "seed": seed,
        "data_dir": str(data_dir) if data_dir else None,
    }  # fmt: skip
    from fedfuse.training import Settings, fit

    Settings(**settings)  # complain about settings before loading data
    federation = load(**source)  # type: ignore[arg-type]
    directory = out or _next_directory(dataset, method, seed)

    def train(callbacks: list[Any]) -> Any:
        return fit(federation, chosen, out=directory, callbacks=callbacks, dataset=dataset, source=source, **settings)

    _train_and_show(train, directory, json_, federation if yardsticks else None)


@app.command()
def resume(directory: Annotated[Path, typer.Argument(help="The directory of an interrupted run.")], json_: Json = False) -> None:
    """Go on with an interrupted run; the result is the same as without the interruption."""
    from fedfuse.training import resume as go_on

    _train_and_show(lambda callbacks: go_on(directory, callbacks=callbacks), directory, json_, None)


@app.command()
def predict(
    directory: Annotated[Path, typer.Argument(help="The directory of a finished run on a table.")],
    table: Annotated[Path, typer.Argument(help="A .csv or .parquet file with the same columns.")],
    out: Annotated[Path | None, typer.Option(help="Where to write the answers (default: standard output).")] = None,
) -> None:
    """Predict each row by its device's group; rows of unknown devices are named, not guessed."""
    from fedfuse.data.tables import read_table
    from fedfuse.result import Result

    result = Result.load(directory)
    answer = result.predict_frame(read_table(table))
    unknown = answer["device"][answer["cluster"].isna()]
    if len(unknown):
        names = ", ".join(sorted(set(unknown))[:10])
        console.print(f"[yellow]{len(unknown)} rows left empty: no model for device {names}[/yellow]", highlight=False)
    text = answer.to_csv(index_label="row", lineterminator="\n")
    if out:
        out.write_text(text, encoding="utf-8")
    else:
        typer.echo(text, nl=False)


@app.command()
def bench(
    out: Annotated[Path, typer.Option(help="Where to write the figures.")] = Path("bench.json"),
    quick: Annotated[bool, typer.Option(help="Small sizes, for a first look.")] = False,
) -> None:
    """Measure fedfuse against textbook loops, plain NumPy and this machine's memory, in one process."""
    from fedfuse.bench import run_all

    run_all(out, quick=quick, console=Console())


@data_app.command("list")
def data_list(data_dir: DataDir = None) -> None:
    """Show the data sets that have a name, and whether their files are here."""
    from rich.table import Table

    from fedfuse.data.sources import available, data_directory

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "what", "here"):
        table.add_column(heading)
    for source in available(data_dir):
        table.add_row(source.name, source.description, "yes" if source.present else "no")
    Console().print(table)
    console.print(f"data directory: {data_directory(data_dir)}", highlight=False)


def _train_and_show(train: Any, directory: Path, as_json: bool, federation: Any) -> None:
    from fedfuse.terminal import ProgressBar, show

    bar = ProgressBar(console)
    try:
        result = train([bar])
    except KeyboardInterrupt:
        bar.close()
        _fail(f"interrupted; go on with: fedfuse resume {directory}", 130)
    finally:
        bar.close()
    sticks: dict[str, Any] = {}
    if federation is not None:
        from fedfuse.yardsticks import yardsticks

        with console.status("fitting local and pooled models to compare with …"):
            sticks = yardsticks(federation, result.model)
    if as_json:
        typer.echo(json.dumps(without_nan(result.summary())))
        return
    show(result, sticks, console)
    console.print(f"\nfiles: {directory}", highlight=False)


def _next_directory(dataset: str, method: str, seed: int) -> Path:
    """Return the first free directory below runs/ for this data set."""
    stem = f"{Path(dataset).stem if Path(dataset).suffix else dataset.replace(':', '-')}-{method}-seed{seed}"
    number = 1
    while (path := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return path


if __name__ == "__main__":
    main()
