"""Commands on finished and running runs: report, watch, predict, join, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedfuse.cli import arguments as args
from fedfuse.cli.arguments import Arg, Opt
from fedfuse.cli.console import Answers, console, print_json
from fedfuse.cli.display import write_page
from fedfuse.errors import FedfuseError
from fedfuse.utils.files import csv_text, write_csv

if TYPE_CHECKING:
    from fedfuse.training.newcomers import Arrivals, Newcomers

Finished = Annotated[Path, Arg(help="The directory of a finished run.")]


def report(
    directory: Annotated[Path, Arg(help="The directory of a finished run, or of a comparison.")],
    out: Annotated[Path | None, Opt(help="The page (default: report.html in the directory).")] = None,
    baselines: Annotated[bool, Opt(help="Fit separate and pooled models for comparison, unless the run has.")] = True,
) -> None:
    """Write the report of a run or comparison: one web page that opens offline."""
    Answers().say(write_page(directory, baselines, out))


def watch(
    directory: Annotated[Path, Arg(help="The directory of a run or comparison in progress.")],
    web: Annotated[bool, Opt("--web", help="Serve a page for the browser on this computer, until Ctrl-C.")] = False,
    port: Annotated[int, Opt(help="For --web (default: a free one).")] = 0,
    every: Annotated[float, Opt(min=0.1, help="Seconds between updates.")] = 1.0,
) -> None:
    """Show the progress of a run in this terminal or in the browser; only reads the run's directory."""
    from fedfuse.report.watch import LiveServer
    from fedfuse.report.watch import watch as look

    if not web:
        look(directory, Answers(), every)
        return
    with LiveServer(directory, port) as server:
        Answers().say(f"{server.url} (Ctrl-C ends it)")
        server.serve_forever(poll_interval=0.2)


def predict(
    directory: Annotated[Path, Arg(help="The directory of a finished run on a table.")],
    table: Annotated[Path, Arg(help="A table file with the same columns; the target may be missing.")],
    out: Annotated[Path | None, Opt(help="A .csv file for the predictions (default: standard output).")] = None,
    proba: Annotated[bool | None, Opt(help="A column of probabilities for each class (default: for classes).")] = None,
) -> None:
    """Predict each row with the model of its device (newcomers: of their group; unknown devices: one for all)."""
    from fedfuse.data.readers import read_table
    from fedfuse.results.result import Result
    from fedfuse.training.newcomers import with_noted

    _check_csv(out)
    result = Result.load(directory)
    if proba and result.profile.goal == "regression":
        raise FedfuseError("--proba: this run predicts values, which have no probabilities; leave it out")
    answer = with_noted(result, directory).predict_frame(read_table(table)).rename_axis("row")
    if proba is False:
        answer = answer.loc[:, :"prediction"]
    if out:
        write_csv(out, answer, index=True)
    else:
        sys.stdout.write(csv_text(answer, index=True))
    unknown = answer.loc[answer["cluster"].isna(), "device"]
    if len(unknown):
        names = sorted(set(unknown))
        shown = ", ".join(name or "(none)" for name in names[:10])
        more = f" and {len(names) - 10} more" if len(names) > 10 else ""
        how = "left empty" if answer["prediction"].isna().any() else "predicted by one model for all"
        console.say(f"{len(unknown)} of {len(answer)} rows of unknown devices {how}: {shown}{more}", "yellow")


def join(
    directory: Finished,
    newcomers: Annotated[Path, Arg(help="A table file with the same columns as that of the run.")],
    out: Annotated[Path | None, Opt(help="A .csv file for predictions of rows without a target.")] = None,
    json_: args.Json = False,
) -> None:
    """Admit new devices to a finished run: find their group and its probability, and predict."""
    from fedfuse.data.readers import read_table
    from fedfuse.results.result import Result
    from fedfuse.training.newcomers import admit, from_table, note

    _check_csv(out)
    result = Result.load(directory)
    arrived = from_table(result, read_table(newcomers), seed=result.seed)
    if arrived.federation is None and arrived.strangers:
        who = ", ".join(arrived.strangers[:6])
        raise FedfuseError(f"no row of the newcomers {who} has a target, so they cannot be admitted")
    if arrived.federation is None:
        raise FedfuseError(f"this table has no newcomers: all {arrived.familiar} rows are of devices of the run")
    joined = admit(result, arrived.federation)
    note(joined, directory)
    _predict_waiting(arrived, joined, out)
    if json_:
        print_json(joined.summary())
    else:
        from fedfuse.report.terminal import show_newcomers

        show_newcomers(joined, Answers())
    if arrived.familiar:
        known = "their devices are in the run already (fedfuse predict)"
        console.say(f"{arrived.familiar} rows ignored: {known}", "yellow")
    if arrived.strangers:
        console.say(f"not admitted, as no row has a target: {', '.join(arrived.strangers[:10])}", "yellow")


def export(
    directory: Finished,
    out: Annotated[Path | None, Opt(help="Where to write (default: export/ in the run's directory).")] = None,
    to: Annotated[Path | None, Opt(help="A single file instead: .json or .onnx for models, .xlsx for tables.")] = None,
) -> None:
    """Export each group's model for other programs: safetensors files and export.json, or a single file."""
    from fedfuse.report.workbook import write_workbook
    from fedfuse.results.export import export as write
    from fedfuse.results.export import export_file
    from fedfuse.results.result import Result
    from fedfuse.training.newcomers import with_noted

    result = Result.load(directory)
    if to is None:
        for path in write(result, out or directory / "export"):
            Answers().say(path)
    elif to.suffix == ".xlsx":
        Answers().say(write_workbook(directory, to))
    else:
        Answers().say(export_file(with_noted(result, directory), to))
    if to is None and result.verdict in ("personal", "alone"):
        own = "devices' own models predict better, and are used here"
        console.say(f"note: these are the groups' models; {own}: --to FILE.json has them", "yellow")


def _check_csv(out: Path | None) -> None:
    if out and out.suffix.lower() != ".csv":
        raise FedfuseError(f"predictions are written as .csv, got --out {out}")


def _predict_waiting(arrived: Arrivals, joined: Newcomers, out: Path | None) -> None:
    """Write predictions for the newcomers' rows without a target."""
    rows = arrived.waiting
    if out is not None and len(rows):
        write_csv(out, joined.predict_frame(rows).rename_axis("row"), index=True)
    elif out is not None:
        console.say("no rows without a target: nothing to predict", "yellow")
    elif len(rows):
        console.say(f"{len(rows)} rows without a target: --out FILE.csv writes predictions", "yellow")
