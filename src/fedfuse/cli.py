"""The command line: run, compare, tune, path, resume, report, watch, predict, join, export, data, flower, paper, …"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from fedfuse._console import Answers, Lines
from fedfuse._version import __version__
from fedfuse.errors import FedfuseError
from fedfuse.store import Store, without_nan, written_whole

if TYPE_CHECKING:
    from fedfuse.arrivals import Arrivals
    from fedfuse.comparison import Comparison
    from fedfuse.comparison.jobs import Watcher
    from fedfuse.data.federation import Federation
    from fedfuse.newcomers import Newcomers
    from fedfuse.result import Result
    from fedfuse.training import Callback
    from fedfuse.tuning import Tuning

Outcome = TypeVar("Outcome")
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

# the answer goes to standard output; progress, notes and errors to standard error
console = Lines(stderr=True)
# click's ClickException; newer typers carry a click of their own, so it has no other name that always holds
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


Json = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object, and nothing else.")]
DataDir = Annotated[Path | None, typer.Option(help="Where data files are (default: $FEDFUSE_DATA).")]
Arg, Opt = typer.Argument, typer.Option
INTERRUPTED = 130
Dataset = Annotated[str, Arg(help="synthetic:S1 … S5, housing-bodyfat, mnist, digits, …, or a .csv/.parquet file.")]
Seed = Annotated[int, Opt(parser=_whole, metavar="N", help="Every random draw depends on it.")]
Features = Annotated[str, Opt(help="Synthetic data: uniform or normal.")]
Device = Annotated[str | None, Opt(help="Table: the column that says which device a row is of.")]
Target = Annotated[str | None, Opt(help="Table: the column to predict.")]
Task = Annotated[str | None, Opt(help="Table: classification or regression (told from the target).")]
Place = Annotated[str, Opt("--engine", help="Where devices compute: inprocess, workers (processes) or flower.")]
Out = Annotated[Path | None, Opt(help="A new directory for the run (default: below runs/).")]
Page = Annotated[bool | None, Opt("--report/--no-report", help="Write report.html (default: unless --json).")]
Set = Annotated[list[str], Opt("--set", help="key=value, e.g. steps=grow(20), mode=async, delay=uniform(0,20).")]


def main() -> None:
    """Run the command line; bad input is one line on standard error and status 2."""
    logger = logging.getLogger("fedfuse")
    logger.addHandler(_notes)
    try:
        # some versions of typer raise an interruption, others return its status
        if app(prog_name="fedfuse", standalone_mode=False) == INTERRUPTED:
            raise KeyboardInterrupt
        _notes.show()
    except FedfuseError as error:
        _fail(_as_typed(str(error)), 2)
    except _UsageError as error:
        _fail(_usage(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has gone; nothing is wrong here
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except MemoryError as error:
        _fail(f"not enough memory: {error}", 2)
    except OSError as error:
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 2)
    finally:
        logger.removeHandler(_notes)
        _notes.forget()


class _Notes(logging.Handler):
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


_notes = _Notes()


def _as_typed(message: str) -> str:
    """Write Python's arguments as the command line has them: goal='regression' is --task regression."""
    written = re.sub(r"\b(goal|features|device|target)='([^']*)'", r"--\1 \2", message)
    return written.replace("--goal ", "--task ")


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "fedfuse"
    # some versions of click and typer both ask what was meant
    words = re.sub(r"( Did you mean .*?\?)\1", r"\1", error.format_message().rstrip("."))
    return f"{words} ({command} --help says more)"


def _fail(message: str, status: int) -> None:
    print("fedfuse: " + " ".join(message.split()), file=sys.stderr)  # one plain line, whatever the width
    raise SystemExit(status)


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


@app.command()
def run(
    dataset: Dataset,
    method: Annotated[
        str, Opt(help="fpfc, fpfc-l1, local, fedavg, lg-fedavg, per-fedavg, ifca, cfl, pacfl or oracle.")
    ] = "fpfc",
    lam: Annotated[str | None, Opt(help="Strength of the penalty, or auto: found by itself.")] = None,
    rounds: Annotated[int | None, Opt(parser=_whole, metavar="N", help="At most so many rounds.")] = None,
    seed: Seed = 0,
    features: Features = "uniform",
    device: Device = None,
    target: Target = None,
    task: Task = None,
    model: Annotated[str | None, Opt(help="softmax, linear, cnn or mlp (default: by target; images: cnn).")] = None,
    engine: Place = "inprocess",
    out: Out = None,
    set_: Set = [],  # noqa: B006
    yardsticks: Annotated[bool, Opt(help="Compare with local and pooled models.")] = True,
    report: Page = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Train on a data set and show which devices belong together."""
    from fedfuse.fitting import fit
    from fedfuse.options import read_lambda

    # first look at all that can be wrong, then load, and only then write
    strength = None if lam is None else read_lambda(lam)
    chosen, settings = _method_and_settings(dataset, method, strength, set_, rounds, seed, engine, model)
    directory = _free_directory(out, dataset, method, seed)
    source = _source(dataset, features, device, target, task, seed, data_dir)
    federation = _load(source)

    def train(callbacks: list[Callback]) -> Result:
        named: dict[str, Any] = {"dataset": dataset, "source": source}
        return fit(federation, chosen, model, out=directory, callbacks=callbacks, **named, **settings)

    _train_and_show(train, directory, json_, federation if yardsticks else None, report)


@app.command()
def compare(
    dataset: Dataset,
    methods: Annotated[str, Opt(help="all, or names with commas between them.")] = "all",
    seeds: Annotated[str, Opt(help="How many (3), or which (0,5,7).")] = "3",
    rounds: Annotated[int | None, Opt(parser=_whole, metavar="N", help="At most so many rounds in each run.")] = None,
    jobs: Annotated[int | None, Opt(parser=_whole, metavar="N", help="Runs at a time (default: one per core).")] = None,
    features: Features = "uniform",
    device: Device = None,
    target: Target = None,
    task: Task = None,
    out: Annotated[Path | None, Opt(help="A directory; one with this comparison is gone on with.")] = None,
    set_: Annotated[list[str], Opt("--set", help="key=value or method.key=value, e.g. fpfc.lam=0.6.")] = [],  # noqa: B006
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Compare methods by mean and spread over seeds, with the same data for all."""
    from fedfuse.comparison import compare
    from fedfuse.options import read_seeds

    numbers = read_seeds(seeds)
    directory = out or _next_directory(dataset, "compare")
    columns = {"device": device, "target": target, "goal": _goal(task)}
    source: dict[str, Any] = {"features": features, **columns, "data_dir": data_dir}

    def work(watcher: Watcher) -> Comparison:
        return compare(
            dataset, methods, numbers, out=directory, jobs=jobs, rounds=rounds, words=set_,
            watcher=watcher, **source,
        )  # fmt: skip

    _compare_and_show(work, directory, json_)


@app.command()
def sweep(
    dataset: Dataset,
    over: Annotated[str, Opt(help="A setting and its values, e.g. lam=0.1,0.2,0.4; or start=50 for random starts.")],
    method: Annotated[str, Opt(help="Names with commas between them.")] = "fpfc",
    seeds: Annotated[str, Opt(help="How many (1), or which (0,5,7).")] = "1",
    rounds: Annotated[int | None, Opt(parser=_whole, metavar="N", help="At most so many rounds in each run.")] = None,
    jobs: Annotated[int | None, Opt(parser=_whole, metavar="N", help="Runs at a time (default: one per core).")] = None,
    features: Features = "uniform",
    device: Device = None,
    target: Target = None,
    task: Task = None,
    out: Annotated[Path | None, Opt(help="A directory; one with this sweep is gone on with.")] = None,
    plot: Annotated[Path | None, Opt(help="A picture (.png, .svg or .pdf).")] = None,
    set_: Set = [],  # noqa: B006
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Show how much a setting matters: the same runs for each of its values, or from random starts."""
    from fedfuse.options import read_seeds
    from fedfuse.plots import check_picture, save_picture
    from fedfuse.sweep import Over, sweep

    key = Over.read(over).key
    if plot:
        check_picture(plot)
    numbers = read_seeds(seeds)
    directory = out or _next_directory(dataset, f"sweep-{key}")
    source: dict[str, Any] = {
        "features": features, "device": device, "target": target, "goal": _goal(task), "data_dir": data_dir,
    }  # fmt: skip

    def work(watcher: Watcher) -> Comparison:
        found = sweep(
            dataset, over, method, numbers, words=set_, rounds=rounds, out=directory, jobs=jobs, watcher=watcher,
            **source,
        )  # fmt: skip
        if plot:
            save_picture(found.plot(), plot)
        return found.comparison

    _compare_and_show(work, directory, json_)


@app.command()
def tune(
    dataset: Dataset,
    strategy: Annotated[str | None, Opt(help="For lambda: warmup (default) or separate.")] = None,
    grid: Annotated[
        str | None, Opt(help="Lambdas, 0,0.5,1, or other settings, eps1=0.1,eps2=0.2;eps1=0.5,eps2=1.")
    ] = None,
    method: Annotated[str, Opt(help="fpfc, fpfc-l1, cfl, pacfl or ifca.")] = "fpfc",
    rounds: Annotated[int | None, Opt(help="At most so many for each lambda (separate), or in all (warmup).")] = None,
    cap: Annotated[int | None, Opt(help="At most so many rounds for one lambda (warmup) or other candidate.")] = None,
    seed: Seed = 0,
    features: Features = "uniform",
    device: Device = None,
    target: Target = None,
    task: Task = None,
    engine: Place = "inprocess",
    out: Out = None,
    set_: Set = [],  # noqa: B006
    plot: Annotated[Path | None, Opt(help="A picture of the tuning (.png, .svg or .pdf).")] = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Choose lambda, or the settings of another method, by validation rows, and train with them."""
    from fedfuse.methods import method_called
    from fedfuse.options import read_candidates, read_grid
    from fedfuse.plots import check_picture
    from fedfuse.tuning import check_tuning, is_searched, tune

    kind = method_called(method)
    searched, lam = is_searched(kind), 0.0 if hasattr(kind, "lam") else None
    candidates: Any = None if grid is None else (read_candidates if searched else read_grid)(grid)
    chosen, settings = _method_and_settings(dataset, method, lam, set_, rounds, seed, engine)
    limits: dict[str, Any] = {"rounds": settings.pop("rounds", None), "cap": cap}
    check_tuning(chosen, strategy, candidates, dataset=dataset, **limits)
    if plot:
        check_picture(plot)
    way = "search" if searched else strategy or "warmup"
    directory = _free_directory(out, dataset, f"tune-{way}-{method}", seed)
    source = _source(dataset, features, device, target, task, seed, data_dir)
    federation = _load(source)
    named: dict[str, Any] = {"dataset": dataset, "source": source, **limits}

    def train(callbacks: list[Callback]) -> Tuning:
        how: Any = strategy
        return tune(federation, chosen, how, candidates, out=directory, callbacks=callbacks, **named, **settings)

    _show_tuning(_trained(train, directory), directory, json_, plot)


@app.command()
def path(
    out: Annotated[Path, Opt(help="The picture (.png, .svg or .pdf).")],
    dataset: Annotated[str | None, Arg(help="As for run; without it, the paper's toy example (its Figure 1).")] = None,
    penalty: Annotated[str, Opt(help="smoothed-scad, scad, mcp, l1 or l2.")] = "smoothed-scad",
    grid: Annotated[str | None, Opt(help="Increasing lambdas, e.g. 0,0.5,1 (default: from distances).")] = None,
    seed: Seed = 0,
    features: Features = "uniform",
    device: Device = None,
    target: Target = None,
    task: Task = None,
    data_dir: DataDir = None,
) -> None:
    """Draw how devices' models meet as lambda grows, each device's problem solved exactly."""
    from fedfuse.options import read_grid
    from fedfuse.paths import check_penalty, solution_path
    from fedfuse.plots import check_picture, plot_figure1, save_picture

    check_picture(out)
    check_penalty(penalty)
    lambdas = None if grid is None else read_grid(grid)
    if dataset is None:
        with console.status("the toy example under four penalties …"):
            axes = plot_figure1()
    else:
        federation = _load(_source(dataset, features, device, target, task, seed, data_dir))
        with console.status("following the devices' models along lambda …"):
            found = solution_path(federation, penalty, lambdas)
        Answers().say(repr(found))
        axes = found.plot()
    save_picture(axes, out)
    Answers().say(f"picture: {out}")


@app.command()
def resume(
    directory: Annotated[Path, Arg(help="The directory of an interrupted run or comparison.")],
    engine: Annotated[str | None, Opt(help="Where devices compute, if elsewhere than before.")] = None,
    json_: Json = False,
) -> None:
    """Go on with an interrupted run or comparison; the result is the same as without the interruption."""
    from fedfuse.comparison import is_comparison, resume_comparison
    from fedfuse.fitting import resume as go_on
    from fedfuse.tuning import Tuning, is_tuning

    if is_comparison(directory):
        _compare_and_show(lambda watcher: resume_comparison(directory, None, watcher), directory, json_)
        return

    def train(callbacks: list[Callback]) -> Result:
        return go_on(directory, callbacks=callbacks, engine=engine)

    if not is_tuning(directory):
        _train_and_show(train, directory, json_, None, None)
        return
    tuning = Tuning.of(_trained(train, directory))
    tuning.save(directory)
    _show_tuning(tuning, directory, json_, None)


@app.command()
def report(
    directory: Annotated[Path, Arg(help="The directory of a finished run, or of a comparison.")],
    out: Annotated[Path | None, Opt(help="The page (default: report.html in the directory).")] = None,
    yardsticks: Annotated[bool, Opt(help="Fit local and pooled models to compare with, if it was not done.")] = True,
    runs: Annotated[bool, Opt(help="Comparison: write the page of each of its runs, too.")] = False,
) -> None:
    """Write one page that shows what was found: it opens from disk, without a network."""
    from fedfuse.comparison import is_comparison

    if runs and is_comparison(directory):
        for place in sorted(directory.glob("runs/*/summary.json")):
            _write_page(place.parent, yardsticks)
    page = _write_page(directory, yardsticks, out)
    Answers().say(str(page))


@app.command()
def watch(
    directory: Annotated[Path, Arg(help="The directory of a run or a comparison that goes on.")],
    web: Annotated[bool, Opt("--web", help="In the browser: serve a page on this computer, until Ctrl-C.")] = False,
    port: Annotated[int, Opt(parser=_whole, metavar="N", help="For --web (default: a free one).")] = 0,
    every: Annotated[float, Opt(min=0.1, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Show how a run gets on, in this terminal or in the browser, from its directory alone."""
    from fedfuse.watch import watch as look

    if not web:
        look(directory, Answers(), every)
        return
    from fedfuse.report.web import Server

    with Server(directory, port) as server:
        Answers().say(f"{server.url} (Ctrl-C ends it)")
        server.serve_forever(poll_interval=0.2)


@app.command()
def predict(
    directory: Annotated[Path, Arg(help="The directory of a finished run on a table.")],
    table: Annotated[Path, Arg(help="A .csv or .parquet file with the same columns; the target may be missing.")],
    out: Annotated[Path | None, Opt(help="A .csv file for the answers (default: standard output).")] = None,
) -> None:
    """Predict each row by its device's group; rows of unknown devices are named, not guessed."""
    from fedfuse.data.tables import read_table
    from fedfuse.result import Result

    if out and out.suffix.lower() != ".csv":
        raise FedfuseError(f"answers are written as .csv, got --out {out}")
    result = Result.load(directory)
    answer = result.predict_frame(read_table(table))
    text = answer.to_csv(index_label="row", lineterminator="\n")
    if out:
        with written_whole(out) as file:
            file.write(text.encode())
    else:
        sys.stdout.write(text)
    unknown = answer.loc[answer["cluster"].isna(), "device"]
    if len(unknown):
        names = sorted(set(unknown))
        shown = ", ".join(name or "(none)" for name in names[:10])
        more = f" and {len(names) - 10} more" if len(names) > 10 else ""
        words = f"{len(unknown)} of {len(answer)} rows left empty, no model is known for: {shown}{more}"
        console.say(words, "yellow")


@app.command()
def join(
    directory: Annotated[Path, Arg(help="The directory of a finished run.")],
    newcomers: Annotated[str, Arg(help="A .csv or .parquet file like that of the run, or a data set with a name.")],
    out: Annotated[Path | None, Opt(help="A .csv file for predictions of rows without a target.")] = None,
    seed: Annotated[int | None, Opt(help="Draws a data set with a name (default: that of the run).")] = None,
    features: Features = "uniform",
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Take in devices that the run does not know: their cluster, how sure that is, and predictions."""
    from fedfuse.arrivals import from_table
    from fedfuse.data.tables import read_table
    from fedfuse.newcomers import admit
    from fedfuse.result import Result

    if out and out.suffix.lower() != ".csv":
        raise FedfuseError(f"answers are written as .csv, got --out {out}")
    result = Result.load(directory)
    path = Path(newcomers).expanduser()
    if path.suffix.lower() not in (".csv", ".parquet"):
        number = result.seed if seed is None else seed
        given = _load(_source(newcomers, features, None, None, None, number, data_dir))
        _show_newcomers(_noted(admit(result, given), directory), json_)
        return
    arrived = from_table(result, read_table(path), seed=result.seed)
    if arrived.federation is None:
        raise FedfuseError(_nobody(arrived))
    joined = _noted(admit(result, arrived.federation), directory)
    _predict_waiting(arrived, joined, out)
    _show_newcomers(joined, json_)
    for note in _arrival_notes(arrived):
        console.say(note, "yellow")


@app.command()
def export(
    directory: Annotated[Path, Arg(help="The directory of a finished run.")],
    out: Annotated[Path | None, Opt(help="Where to write (default: export/ in the run's directory).")] = None,
) -> None:
    """Write each group's model for other programs: safetensors files, and export.json."""
    from fedfuse.export import export as write
    from fedfuse.result import Result

    for path in write(Result.load(directory), out or directory / "export"):
        Answers().say(str(path))


@app.command()
def bench(
    out: Annotated[Path, typer.Option(help="Where to write the figures.")] = Path("bench.json"),
    quick: Annotated[bool, typer.Option(help="Small sizes, for a first look.")] = False,
    only: Annotated[str, typer.Option(help="Parts to measure, as server,local (default: all).")] = "",
    history: Annotated[
        Path | None, typer.Option(help="Add the figures to this file, one line of JSON for each time.")
    ] = Path("bench-history.jsonl"),
    page: Annotated[Path | None, typer.Option(help="Write a page in Markdown, with a picture beside it.")] = None,
) -> None:
    """Measure fedfuse against textbook loops, plain NumPy, plain PyTorch and this machine's limits, in one process."""
    from fedfuse.bench import chosen, run_all

    run_all(out, quick=quick, console=Answers(), only=chosen(only), history=history, page=page)


@flower_app.command("new")
def flower_new(directory: Annotated[Path, Arg(help="A new directory.")]) -> None:
    """Write a small Flower app: say in its task.py how a device loads its rows and which model it has."""
    from fedfuse.flower.scaffold import write_app

    for path in write_app(directory):
        typer.echo(str(path))
    typer.echo(f'next: flwr run {directory} --stream --federation-config "num-supernodes=8"')


@app.command()
def paper(
    names: Annotated[list[str], Arg(metavar="NAME", help="list, all, page, or names as list shows them.")],
    quick: Annotated[bool, Opt("--quick", help="Less data, fewer rounds and seeds: minutes.")] = False,
    middle: Annotated[bool, Opt("--middle", help="All data, one seed, fewer rounds: an hour or two.")] = False,
    out: Annotated[Path, Opt(help="Where runs are kept, and tables and figures written.")] = Path("runs/paper"),
    page: Annotated[Path, Opt(help="Where 'paper page' writes.")] = Path("docs/reproduction.md"),
    jobs: Annotated[int | None, Opt(parser=_whole, metavar="N", help="Runs at a time (default: one per core).")] = None,
    data_dir: DataDir = None,
) -> None:
    """Reproduce a table or figure of the paper, its numbers beside ours; what is done is not done again."""
    from fedfuse.paper.command import SPECIAL, make, show_list, write_page
    from fedfuse.paper.setup import check_size
    from fedfuse.plots import check_picture

    size = check_size(quick, middle)
    place = str(data_dir.absolute()) if data_dir else None
    special = [name for name in names if name in (*SPECIAL, "all")]
    if special and len(names) > 1:
        raise FedfuseError(f"{special[0]} stands alone, got {' '.join(names)}")
    if jobs is not None and jobs < 1:
        raise FedfuseError(f"--jobs must be at least 1, got {jobs}")
    if names == ["list"]:
        show_list(out, place, Answers())
        return
    check_picture("figure.svg")
    if names == ["page"]:
        write_page(page, out, place, Answers())
        return
    try:
        make(names, size, out, place, jobs, console, Answers())
    except KeyboardInterrupt:
        _fail("interrupted; the same command goes on where it was", INTERRUPTED)


@data_app.command("list")
def data_list(data_dir: DataDir = None) -> None:
    """Show the data sets that have a name, and whether their files are here."""
    from rich.table import Table

    from fedfuse.data.directory import data_directory
    from fedfuse.data.sources import available

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "what", "here"):
        table.add_column(heading)
    for source in available(data_dir):
        table.add_row(source.name, source.description, "yes" if source.present else "no")
    Answers().print(table)
    console.say(f"data directory: {data_directory(data_dir)}")


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, Arg(help="A data set with files: mnist, fashion-mnist.")], data_dir: DataDir = None
) -> None:
    """Download the files of a data set, checked; what is there is not touched, half a file is gone on with."""
    from fedfuse.data.fetch import fetch
    from fedfuse.terminal import Downloads

    with Downloads(console) as downloads:
        done = fetch(name, data_dir, progress=downloads)
    if not done.new and not done.present:
        words = f"{name} needs no files"
    else:
        words = f"{name}: {len(done.new)} files fetched, {len(done.present)} already there, in {done.directory}"
    Answers().say(words)


def _method_and_settings(
    dataset: str,
    method: str,
    lam: float | Literal["auto"] | None,
    pairs: list[str],
    rounds: int | None,
    seed: int,
    engine: str = "inprocess",
    model: str | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Return the method, and what else `fit` is told by the options; all of it looked at."""
    from fedfuse.conditions import check_mode
    from fedfuse.fleet import Engine
    from fedfuse.models import is_network
    from fedfuse.options import build, parse_options
    from fedfuse.settings import Settings

    options = parse_options(pairs)
    chosen, settings = build(dataset, method, options, lam, network=model is not None and is_network(model))
    settings["seed"] = seed
    if rounds is not None:
        settings["rounds"] = rounds
    check_mode(chosen, Settings(**settings).mode)
    Engine(engine, **options.engine)
    return chosen, {**settings, "engine": engine, **options.engine}


def _source(
    dataset: str,
    features: str,
    device: str | None,
    target: str | None,
    task: str | None,
    seed: int,
    data_dir: Path | None,
) -> dict[str, Any]:
    """Return what `data.sources.load` needs to find the data, now and when a run is resumed."""
    from fedfuse.data.sources import absolute

    return {
        "dataset": absolute(dataset), "features": features, "device": device, "target": target, "goal": _goal(task),
        "seed": seed, "data_dir": str(data_dir.absolute()) if data_dir else None,
    }  # fmt: skip


def _goal(task: str | None) -> str | None:
    if task not in (None, "classification", "regression"):
        raise FedfuseError(f"--task must be classification or regression, got {task!r}")
    return task


def _load(source: dict[str, Any]) -> Federation:
    from fedfuse.data.sources import load

    federation = load(**source)
    _notes.show()
    return federation


def _free_directory(out: Path | None, dataset: str, method: str, seed: int) -> Path:
    directory = out or _next_directory(dataset, f"{method}-seed{seed}")
    Store(directory).check_free()
    return directory


def _trained(train: Callable[[list[Callback]], Outcome], directory: Path) -> Outcome:
    """Train with a progress display; say how to go on when interrupted."""
    from fedfuse.terminal import ProgressBar

    bar = ProgressBar(console)
    try:
        return train([bar])
    except KeyboardInterrupt:
        bar.close()
        if not Store(directory).started:
            raise
        _fail(f"interrupted; go on with: fedfuse resume {shlex.quote(str(directory))}", INTERRUPTED)
    finally:
        bar.close()
    raise AssertionError  # _fail has left


def _train_and_show(
    train: Callable[[list[Callback]], Result],
    directory: Path,
    as_json: bool,
    federation: Federation | None,
    report: bool | None,
) -> None:
    """Train, show the outcome, and write the page; local and pooled models are fitted where a federation is given."""
    from fedfuse.terminal import show

    result = _trained(train, directory)
    if as_json:
        if report:
            _write_page(directory, federation is not None)
        typer.echo(json.dumps(without_nan(result.summary())))
        return
    sticks = {}
    if federation is not None and result.model.convex:
        from fedfuse.yardsticks import measured

        with console.status("fitting local and pooled models to compare with …"):
            found = measured(federation, result.model)
        found.save(directory)
        sticks = found.scores
    answers = Answers()
    show(result, sticks, answers)
    answers.say(f"\nfiles: {directory}")
    if report is not False:
        page = _write_page(directory, federation is not None)
        answers.say(f"report: {page}")
    if result.profile.encoder is not None:
        hint = f"predict new rows: fedfuse predict {shlex.quote(str(directory))} new.csv"
        answers.say(hint)


def _write_page(directory: Path, yardsticks: bool = True, out: Path | None = None) -> Path:
    from fedfuse.report import write_report

    with console.status("writing the report …"):
        return write_report(directory, out, yardsticks=yardsticks)


def _nobody(arrived: Arrivals) -> str:
    if arrived.strangers:
        return f"no row of the newcomers {', '.join(arrived.strangers[:6])} has a target: nothing can be told of them"
    return f"there is no newcomer in this table: all {arrived.familiar} rows are of devices that the run knows"


def _arrival_notes(arrived: Arrivals) -> list[str]:
    notes = []
    if arrived.familiar:
        notes.append(f"{arrived.familiar} rows left alone: their devices are in the run already (fedfuse predict)")
    if arrived.strangers:
        notes.append(f"no row has a target, so nothing can be told of: {', '.join(arrived.strangers[:10])}")
    return notes


def _predict_waiting(arrived: Arrivals, joined: Newcomers, out: Path | None) -> None:
    """Write predictions for the newcomers' rows without a target."""
    rows = arrived.waiting.nonzero()[0]
    if out is None:
        if len(rows):
            console.say(f"{len(rows)} rows without a target: --out FILE.csv writes predictions", "yellow")
        return
    text = joined.predict_rows(arrived.devices[rows], arrived.X[rows], rows).to_csv(index=False, lineterminator="\n")
    with written_whole(out) as file:
        file.write(text.encode())


def _noted(joined: Newcomers, directory: Path) -> Newcomers:
    """Write newcomers down beside the run, for its report; one that comes again is written anew."""
    from fedfuse.newcomers import note

    note(joined, directory)
    return joined


def _show_newcomers(joined: Newcomers, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(without_nan(joined.summary())))
        return
    from fedfuse.terminal import show_newcomers

    show_newcomers(joined, Answers())


def _compare_and_show(work: Callable[[Watcher], Comparison], directory: Path, as_json: bool) -> None:
    """Compare with a progress display, and show the table; say how to go on when interrupted."""
    from fedfuse.comparison import is_comparison
    from fedfuse.terminal import ComparisonBars, show_comparison

    bars = ComparisonBars(console)
    try:
        comparison = work(bars)
    except KeyboardInterrupt:
        bars.close()
        if not is_comparison(directory):
            raise
        _fail(f"interrupted; go on with: fedfuse resume {shlex.quote(str(directory))}", INTERRUPTED)
    if as_json:
        typer.echo(json.dumps(comparison.summary()))
        return
    answers = Answers()
    show_comparison(comparison, answers)
    answers.say(f"\nfiles: {directory}")
    answers.say(f"report: {_write_page(directory)}")


def _show_tuning(tuning: Tuning, directory: Path, as_json: bool, plot: Path | None) -> None:
    from fedfuse.terminal import show_tuning

    if plot:
        from fedfuse.plots import save_picture

        save_picture(tuning.plot(), plot)
    if as_json:
        typer.echo(json.dumps(without_nan(tuning.summary())))
        return
    answers = Answers()
    show_tuning(tuning, answers)
    page = _write_page(directory)
    for line in (f"\nfiles: {directory}", f"report: {page}", *([f"picture: {plot}"] if plot else [])):
        answers.say(line)


def _next_directory(dataset: str, what: str) -> Path:
    """Return the first free directory below runs/ for this data set."""
    stem = f"{Path(dataset).stem if Path(dataset).suffix else dataset.replace(':', '-')}-{what}"
    number = 1
    while (path := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return path


if __name__ == "__main__":
    main()
