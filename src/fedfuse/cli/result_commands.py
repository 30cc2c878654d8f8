"""What is done with a run: report, watch, predict, join, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedfuse.cli.arguments import Arg, DataDir, DataOptions, Features, Json, Opt, load_data, whole
from fedfuse.cli.console import Answers, console, print_json
from fedfuse.cli.display import write_page
from fedfuse.errors import FedfuseError
from fedfuse.utils.files import atomic_write

if TYPE_CHECKING:
    from fedfuse.training.newcomer_rows import Arrivals
    from fedfuse.training.newcomers import Newcomers


def report(
    directory: Annotated[Path, Arg(help="The directory of a finished run, or of a comparison.")],
    out: Annotated[Path | None, Opt(help="The page (default: report.html in the directory).")] = None,
    baselines: Annotated[bool, Opt(help="Fit local and pooled models to compare with, if it was not done.")] = True,
    runs: Annotated[bool, Opt(help="Comparison: write the page of each of its runs, too.")] = False,
) -> None:
    """Write one page that shows what was found: it opens from disk, without a network."""
    from fedfuse.studies.compare import is_comparison

    if runs and is_comparison(directory):
        for place in sorted(directory.glob("runs/*/summary.json")):
            write_page(place.parent, baselines)
    page = write_page(directory, baselines, out)
    Answers().say(str(page))


def watch(
    directory: Annotated[Path, Arg(help="The directory of a run or a comparison that goes on.")],
    web: Annotated[bool, Opt("--web", help="In the browser: serve a page on this computer, until Ctrl-C.")] = False,
    port: Annotated[int, Opt(parser=whole, metavar="N", help="For --web (default: a free one).")] = 0,
    every: Annotated[float, Opt(min=0.1, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Show how a run gets on, in this terminal or in the browser, from its directory alone."""
    from fedfuse.report.watch import watch as look

    if not web:
        look(directory, Answers(), every)
        return
    from fedfuse.report.live_page import Server

    with Server(directory, port) as server:
        Answers().say(f"{server.url} (Ctrl-C ends it)")
        server.serve_forever(poll_interval=0.2)


def predict(
    directory: Annotated[Path, Arg(help="The directory of a finished run on a table.")],
    table: Annotated[Path, Arg(help="A .csv or .parquet file with the same columns; the target may be missing.")],
    out: Annotated[Path | None, Opt(help="A .csv file for the answers (default: standard output).")] = None,
) -> None:
    """Predict each row by its device's group; rows of unknown devices are named, not guessed."""
    from fedfuse.data.tables import read_table
    from fedfuse.results.result import Result

    if out and out.suffix.lower() != ".csv":
        raise FedfuseError(f"answers are written as .csv, got --out {out}")
    result = Result.load(directory)
    answer = result.predict_frame(read_table(table))
    text = answer.to_csv(index_label="row", lineterminator="\n")
    if out:
        with atomic_write(out) as file:
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
    from fedfuse.data.tables import read_table
    from fedfuse.results.result import Result
    from fedfuse.training.newcomer_rows import from_table
    from fedfuse.training.newcomers import admit

    if out and out.suffix.lower() != ".csv":
        raise FedfuseError(f"answers are written as .csv, got --out {out}")
    result = Result.load(directory)
    path = Path(newcomers).expanduser()
    if path.suffix.lower() not in (".csv", ".parquet"):
        number = result.seed if seed is None else seed
        given = load_data(DataOptions(features, data_dir=data_dir).source_of(newcomers, number))
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


def export(
    directory: Annotated[Path, Arg(help="The directory of a finished run.")],
    out: Annotated[Path | None, Opt(help="Where to write (default: export/ in the run's directory).")] = None,
) -> None:
    """Write each group's model for other programs: safetensors files, and export.json."""
    from fedfuse.results.export import export as write
    from fedfuse.results.result import Result

    for path in write(Result.load(directory), out or directory / "export"):
        Answers().say(str(path))


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
    if not len(rows):
        console.say("no rows without a target: nothing to predict", "yellow")
    text = joined.predict_rows(arrived.devices[rows], arrived.X[rows], rows).to_csv(index=False, lineterminator="\n")
    with atomic_write(out) as file:
        file.write(text.encode())


def _noted(joined: Newcomers, directory: Path) -> Newcomers:
    """Write newcomers down beside the run, for its report; one that comes again is written anew."""
    from fedfuse.training.newcomers import note

    note(joined, directory)
    return joined


def _show_newcomers(joined: Newcomers, as_json: bool) -> None:
    if as_json:
        print_json(joined.summary())
        return
    from fedfuse.report.terminal import show_newcomers

    show_newcomers(joined, Answers())
