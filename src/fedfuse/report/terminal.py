"""What a person sees in a terminal: the progress of a run, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from fedfuse.results.formatting import counted, cut_short, exposed, refusals, silence
from fedfuse.results.result import Result, mean_score
from fedfuse.studies.comparison import cells, footnotes, headings
from fedfuse.studies.jobs import DONE, FAILED, RUNNING, Board, Job, JobState, Watcher
from fedfuse.training.loop import Callback, Row, Run
from fedfuse.utils.typing import Floats, Ints

if TYPE_CHECKING:
    from fedfuse.studies.comparison import Comparison
    from fedfuse.studies.tune import Tuning
    from fedfuse.training.newcomers import Newcomers

MOST_CLUSTERS = 12
MOST_FEATURES = 6
MOST_COLUMNS = 6
WIDE = 110  # columns of a terminal that has room for the spread of everything
_DIVERGED = ("not finite", "too large")


STAGES = {
    "summaries": "devices sum up their rows",
    "tell": "telling devices their models",
    "moments": "finding a common scale",
    "rescale": "finding a common scale",
    "half": "every device alone",
    "local": "every device alone",
    "tree": "judging who may share a model",
    "candidates": "comparing groupings",
    "fit": "one model per group",
    "check": "checking the groups",
    "residue": "looking for structure left",
    "alone": "devices without companions",
    "again": "final fit",
    "end": "done",
}


class ProgressBar(Callback):
    """One line: stage, lambda, clusters so far, a score on held-out rows, what was sent, how much still moves."""

    def __init__(self, console: Console) -> None:
        columns = (SpinnerColumn(), TextColumn("round"), BarColumn(20), MofNCompleteColumn())
        self._progress = Progress(
            *columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("rounds", note="")
        self._known: Row = {}

    def on_start(self, run: Run) -> None:
        self._progress.update(self._task, total=run.settings.rounds, completed=run.k)
        self._progress.start()

    def on_round(self, run: Run, row: Row) -> None:
        self._known |= row
        self._progress.update(self._task, completed=run.k, total=run.settings.rounds, note=self._note(run))

    def on_end(self, run: Run, result: Result) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back, also after an error."""
        self._progress.stop()

    def _note(self, run: Run) -> str:
        row = self._known
        words = [f"{row['cost_floats']:.2g} floats sent"]
        if np.isfinite(row["moved"]):
            words.append(f"moving {100 * row['moved']:.2g} %")
        if "stage" in row:
            words.insert(0, STAGES.get(row["stage"]) or row["stage"])
        if np.isfinite(row.get("lam", np.nan)) and getattr(run.method, "lam", None) != "auto":
            words.insert(0, f"lambda {row['lam']:.3g}")
        if "validation" in row:
            held_out = "validation" if np.isfinite(row["validation"]) else "test"
            score = f"{held_out} {run.federation.metric} {row[held_out]:.4f}"
            words = [counted(row["n_clusters"], "group"), score, *words]
        return " · ".join(words)


class Downloads:
    """One line for each file that is coming: bytes so far, how fast, how long still."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(20), DownloadColumn(), TransferSpeedColumn(),
            TimeRemainingColumn(), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Downloads:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __call__(self, file: str, done: int, total: int | None) -> None:
        """Note how much of a file has come."""
        if file not in self._tasks:
            self._tasks[file] = self._progress.add_task(file)
        self._progress.update(self._tasks[file], completed=done, total=total)


class ComparisonBars(Watcher):
    """A bar for all runs of a comparison, and one for each that is at work."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._bars: dict[int, TaskID] = {}
        self._jobs: Sequence[Job] = ()
        self._all = self._progress.add_task("runs", note="")
        self._hint = ""

    def begin(self, jobs: Sequence[Job]) -> None:
        while self._bars:
            self._progress.remove_task(self._bars.popitem()[1])
        self._jobs = jobs
        self._progress.reset(self._all, total=self._work())
        self._progress.start()

    def look(self, board: Board) -> None:
        states = [board.get(number) for number in range(len(self._jobs))]
        for number, (state, done, most) in enumerate(states):
            if state == RUNNING:
                # where the method itself says when it is done, the bar cannot tell how much is left
                note = f"round {done} of {most}" if most else f"round {done}"
                self._progress.update(self._bar(number), completed=done, total=most or done + 1, note=note)
            elif number in self._bars:
                self._progress.remove_task(self._bars.pop(number))
        completed, words = self._told(states)
        self._progress.update(self._all, completed=completed, note=f"{words} {self._hint}".rstrip())

    def stopping(self) -> None:
        self._hint = "stopping after this round (Ctrl-C again: at once)"
        self._progress.update(self._all, note=self._hint)

    def close(self) -> None:
        """Give the terminal back, also after an error."""
        self._progress.stop()

    def _work(self) -> float:
        """Return how much there is to do in all."""
        return len(self._jobs)

    def _told(self, states: Sequence[JobState]) -> tuple[float, str]:
        """Return how much of it is done, and the words for that."""
        failed = sum(state == FAILED for state, _, _ in states)
        ended = failed + sum(state == DONE for state, _, _ in states)
        return ended, " ".join([f"{ended} of {len(states)}", *([f"{failed} failed"] if failed else [])])

    def _bar(self, number: int) -> TaskID:
        if number not in self._bars:
            job = self._jobs[number]
            self._bars[number] = self._progress.add_task(f"{job.label}, seed {job.seed}", note="")
        return self._bars[number]


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print one row per method, the best score in bold, and what a reader must know of the table."""
    table = _plain_table(*headings(comparison))
    table.columns[0].justify = "left"
    rows = cells(comparison, spreads=console.width >= WIDE)
    for row, best, runs in zip(rows, comparison.table["best"], comparison.table["runs"], strict=True):
        name, score, *others = map(escape, row)
        table.add_row(name, f"[bold]{score}[/bold]" if best else score, *others, style="" if runs else "dim")
    console.print(table)
    console.print()
    for note in footnotes(comparison):
        _say(console, escape(note))


def show(result: Result, baselines: Mapping[str, Floats], console: Console) -> None:
    """Print the outcome: groups, scores against local and pooled models, what tells the groups apart."""
    m, ari = len(result.profile.names), ""
    if result.ari is not None:
        ari = f" (agreement with the truth: ARI {result.ari:.3f})"
    how = "converged after" if result.converged else "stopped after"
    others = f", {len(result.apart):,} in none" if result.apart.size else ""
    inside = counted(m - len(result.apart), "device")
    _say(console, f"[bold]{inside} in {counted(len(result.groups), 'group')}{others}[/bold]{ari}")
    sent = f"{result.cost_floats:,} floats sent, {result.seconds:.1f} s"
    lam = f", lambda {result.lam:.3g}" if result.lam is not None else ""
    sure = "" if result.stability is None else f", stability {result.stability:.2f}"
    _say(console, f"{how} {counted(result.rounds, 'round')}, {sent}{lam}{sure}\n")
    console.print(_cluster_table(result, console.width))
    console.print()
    console.print(_score_table(result, baselines))
    if not result.model.convex:
        _say(console, "(no score of local and pooled models beside it: they are fitted for linear and softmax models)")
    if len(result.groups) > 1 and result.profile.encoder is not None and result.model.convex:
        console.print()
        _show_contrasts(result, console)
    for warning in _warnings(result):
        _say(console, f"\n[yellow]{warning}[/yellow]")


def show_tuning(tuning: Tuning, console: Console) -> None:
    """Print what every candidate came to, which one was chosen, and the outcome of training on with it."""
    result, metric, names = tuning.result, tuning.result.profile.metric, list(tuning.settings)
    headings = ["lambda" if name == "lam" else name for name in names]
    table = _plain_table(*headings, "rounds", "seconds", "floats sent", "groups", f"validation {metric}")
    table.add_column("")
    for row in tuning.table.to_dict("records"):
        settings = [f"{row[name]:g}" for name in names]
        numbers = (*settings, f"{row['rounds']}", f"{row['seconds']:.1f}", f"{row['cost_floats']:,}")
        groups = "-" if row["n_clusters"] is None else str(row["n_clusters"])
        mark = "[bold]chosen[/bold]" if row["chosen"] else ""
        table.add_row(*numbers, groups, _number(row["validation"]), mark)
    console.print(table)
    how = "search" if tuning.strategy == "search" else f"{tuning.strategy} tuning"
    _say(console, f"\n[bold]{tuning.words}[/bold] by {how} in {tuning.seconds:.1f} s; with it:")
    show(result, {}, console)


def show_newcomers(joined: Newcomers, console: Console) -> None:
    """Print what has become of newcomers."""
    table = _plain_table("newcomer", "rows", "group", "confidence", "test")
    for i, name in enumerate(joined.names):
        group, sure = joined.clusters[i], joined.confidence[i]
        fits = "none" if joined.grouped else "-"
        words = (f"{joined.counts[i]:,}", fits if group is None else str(group), "-" if sure is None else f"{sure:.2f}")
        table.add_row(escape(name), *words, _number(joined.scores[i]))
    console.print(table)
    alone = [name for name, group in zip(joined.names, joined.clusters, strict=True) if group is None]
    if joined.grouped and alone:
        who = escape(_some(alone, 60))
        _say(console, f"\n[yellow]no group of the run suits {who}: a model of their own predicts better[/yellow]")
    sent = f"{joined.cost_floats:,} floats sent, at most {max(joined.iterations)} exchanges each"
    metric = "RMSE" if joined.run.profile.metric == "rmse" else joined.run.profile.metric
    _say(console, f"\nmean test {metric} of newcomers {_number(joined.score())}; {sent}")


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def _number(value: float) -> str:
    return f"{value:.4f}" if np.isfinite(value) else "-"


def _warnings(result: Result) -> list[str]:
    words = []
    if result.uncertain:
        words.append(_doubt(result))
    if result.cut_short:
        words.append(f"{result.method['method']} {cut_short(result.rounds)}: give it more")
    moved = float(result.history["moved"].iloc[-1])
    if not result.converged and moved > 1e-3:
        words.append(
            f"not converged: models still moved by {100 * moved:.2g} % in the last round; "
            "more rounds (--rounds) may change groups and scores"
        )
    if result.suspects.size:
        words.append(_suspicion(result))
    if result.unheard.size:
        words.append(f"{silence(result)}: {_named(result, result.unheard)}")
    words += [f"{counted(n, 'upload')} refused: {reason}" for reason, n in refusals(result)]
    if result.refused and result.orders.get("unanswered"):
        words.append(f"{counted(result.orders['unanswered'], 'order')} of {result.orders['sent']:,} without an answer")
    if any(reason in _DIVERGED for reason in result.refused) and not _asked_for(result):
        words.append("local training diverges: try a smaller step (--set lr=…) or --set solver=exact")
    return words


def _asked_for(result: Result) -> bool:
    """Whether uploads that cannot be used were part of the experiment, and no sign of training that diverges."""
    return result.attack is not None or "nan" in result.trouble


def _named(result: Result, devices: Ints) -> str:
    return escape(_some([result.profile.names[i] for i in devices], 60))


def _suspicion(result: Result) -> str:
    names = _named(result, result.suspects)
    told, n = exposed(result), result.suspects.size
    alone = np.isin(result.suspects, result.apart).all()
    lie, stand = ("seems to lie", " and stands alone") if n == 1 else ("seem to lie", " and stand alone")
    return f"{counted(n, 'device')} {lie}{stand if alone else ''}: {names}" + (f" ({told})" if told else "")


def _doubt(result: Result) -> str:
    unsure = [result.profile.names[i] for i in result.unsure]
    who = f"; unsure: {escape(_some(unsure, 60))}" if unsure else ""
    return f"the grouping is uncertain (stability {result.stability:.2f}, 1 is sure){who}"


def _plain_table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _cluster_table(result: Result, width: int) -> Table:
    table = _plain_table("group", "devices", "rows", "test")
    table.add_column("members", no_wrap=True)
    room = max(20, width - 40)
    for c in result.groups[:MOST_CLUSTERS]:
        inside = result.labels == c
        rows = int(result.profile.counts[inside].sum())
        test = _number(mean_score(result.scores["test"][inside]))
        members = escape(_some(result.clusters[c], room))
        table.add_row(str(c), str(inside.sum()), f"{rows:,}", test, members)
    if len(result.groups) > MOST_CLUSTERS:
        table.add_row("…", "", "", "", f"{len(result.groups) - MOST_CLUSTERS} more groups, in labels.csv")
    if result.apart.size:
        rows = int(result.profile.counts[result.apart].sum())
        members = escape(_some([result.profile.names[i] for i in result.apart], room))
        table.add_row("none", str(len(result.apart)), f"{rows:,}", "-", members)
    return table


def _some(names: Sequence[str], room: int) -> str:
    """Write as many names as there is room for, and how many there are besides.

    >>> _some(["north", "south", "east"], 30), _some(["north", "south", "east"], 17)
    ('north, south, east', 'north, … (2 more)')
    """
    whole = ", ".join(names)
    if len(whole) <= room:
        return whole
    for shown in range(len(names) - 1, 0, -1):
        text = f"{', '.join(names[:shown])}, … ({len(names) - shown} more)"
        if len(text) <= room:
            return text
    return whole[: room - 1] + "…"


def _score_table(result: Result, baselines: Mapping[str, Floats]) -> Table:
    metric = "accuracy" if result.profile.metric == "accuracy" else "RMSE (less is better)"
    table = Table(box=None, pad_edge=False)
    whom = "devices" if result.attack is None else f"the {len(result.honest):,} honest devices"
    table.add_column(f"test {metric}, mean over {whom}", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_row("one model per group", f"[bold]{_number(result.score('test'))}[/bold]")
    for name, words in (("local", "every device alone"), ("pooled", "one model for all")):
        if name in baselines:
            table.add_row(words, _number(mean_score(baselines[name][result.honest])))
    return table


def _show_contrasts(result: Result, console: Console) -> None:
    """Show the features whose coefficients differ most, group by group where one number says it."""
    names = [str(c) for c in result.profile.classes]
    chosen = result.contrasts()[:MOST_FEATURES]
    table = Table(box=None, pad_edge=False)
    table.add_column("feature", no_wrap=True, overflow="ellipsis")
    if len(names) > 2:
        what = "root mean square difference of coefficients, per standard deviation of the feature"
        table.add_column("contrast", justify="right", no_wrap=True)
        for name, contrast in chosen.items():
            table.add_row(escape(str(name)), f"{contrast:.3g}")
    else:
        what = f"log-odds of {names[1]} against {names[0]}" if names else f"{_target(result)}"
        what += " per unit of the feature"
        shown = result.groups[:MOST_COLUMNS]
        effects = _effects(result)
        for c in shown:
            table.add_column(f"group {c}", justify="right", no_wrap=True)
        places = {name: j for j, name in enumerate(result.profile.features)}
        for name in chosen.index:
            table.add_row(escape(str(name)), *(f"{effects[c, places[name]]:.3g}" for c in shown))
    _say(console, f"what tells the groups apart ({escape(what)}):")
    console.print(table)


def _target(result: Result) -> str:
    encoder = result.profile.encoder
    return encoder.target if encoder else "target"


def _effects(result: Result) -> Floats:
    """Return groups x features: the slope, or for two classes that of the log-odds of the second."""
    table = result.coefficients().to_numpy()[:, :-1].reshape(result.n_clusters, -1, len(result.profile.features))
    return np.asarray(table[:, 0] if table.shape[1] == 1 else table[:, 1] - table[:, 0])
