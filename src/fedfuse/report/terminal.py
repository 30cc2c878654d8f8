"""Progress and outcome of runs in a terminal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import progress as bars
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedfuse.core.metrics import METRICS, metric_for
from fedfuse.report import explanations as words
from fedfuse.results.formatting import NOTHING, counted, data_size, duration, refusals, score
from fedfuse.results.result import Result, mean_score
from fedfuse.studies.comparison import Comparison, cells, footnotes
from fedfuse.studies.jobs import DONE, FAILED, Job, Watcher
from fedfuse.training.loop import Callback, Row, Run
from fedfuse.utils.typing import Floats

if TYPE_CHECKING:
    from fedfuse.training.newcomers import Newcomers

MAX_GROUPS, MAX_FEATURES, MAX_COLUMNS = 12, 6, 6
NAMES_WIDTH = 60
# Models that moved by a larger share of their length in the last round may still change the groups.
MAX_MOVED_RATIO = 1e-3
REPORT_SECONDS = 60.0  # Between two lines where there is no terminal to draw a bar on.
DIVERGED = ("not finite", "too large")


def _bars(console: Console, *columns: bars.ProgressColumn, transient: bool = True) -> bars.Progress:
    return bars.Progress(*columns, console=console, transient=transient, disable=not console.is_terminal)


class ProgressBar(Callback):
    """One line: stage, lambda, groups so far, a score on held-out rows, what was sent, how much still moves.

    ``begun`` is called before the first round, when all input has been checked.
    """

    def __init__(self, console: Console, begun: Callable[[], None] = lambda: None) -> None:
        self._begun = begun
        columns = (bars.SpinnerColumn(), bars.TextColumn("round"), bars.BarColumn(20), bars.MofNCompleteColumn())
        note = bars.TextColumn("{task.fields[note]}")
        self._progress = _bars(console, *columns, bars.TimeRemainingColumn(), note)
        self._task = self._progress.add_task("rounds", note="")
        self._known: Row = {}

    def on_start(self, run: Run) -> None:
        self._begun()
        self._progress.update(self._task, total=run.settings.rounds, completed=run.k)
        self._progress.start()

    def on_round(self, run: Run, row: Row) -> None:
        self._known |= row
        self._progress.update(self._task, completed=run.k, total=run.settings.rounds, note=self._note(run))

    def close(self) -> None:
        """Give the terminal back, also after an error."""
        self._progress.stop()

    def _note(self, run: Run) -> str:
        facts, lam = words.progress(self._known, run.metric.name), self._known.get("lam", np.nan)
        facts.pop("time", None)
        if np.isfinite(lam) and getattr(run.method, "lam", None) != "auto":
            facts = {"lambda": f"{lam:.3g}", **facts}
        return " · ".join(f"{name} {value}" for name, value in facts.items())


@contextmanager
def download_bars(console: Console) -> Iterator[Callable[[str, int, int | None], None]]:
    """Give a function that notes how much of a file has come: one line for each, with speed and time left."""
    name, speed = bars.TextColumn("{task.description}"), (bars.DownloadColumn(), bars.TransferSpeedColumn())
    progress = _bars(console, name, bars.BarColumn(20), *speed, bars.TimeRemainingColumn(), transient=False)
    tasks: dict[str, bars.TaskID] = {}

    def note(file: str, done: int, total: int | None) -> None:
        if file not in tasks:
            tasks[file] = progress.add_task(file)
        progress.update(tasks[file], completed=done, total=total)

    with progress:
        yield note


class ComparisonBars(Watcher):
    """A bar for all runs of a comparison, and about how long is left.

    ``effort`` says about how long a run takes, in any unit. Where there is no terminal, a line a minute says the same.
    """

    def __init__(self, console: Console, effort: Callable[[Any], float] = lambda job: 1.0) -> None:
        columns = (bars.SpinnerColumn(), bars.TextColumn("runs"), bars.BarColumn(20))
        self._progress = _bars(console, *columns, bars.TextColumn("{task.description}"), bars.TimeElapsedColumn())
        self._console, self._effort, self._bar = console, effort, self._progress.add_task("")
        self._efforts: list[float] = []
        self._began = self._said = 0.0

    def begin(self, jobs: Sequence[Job]) -> None:
        self._efforts = [max(self._effort(job), 0.1) for job in jobs]
        self._began = self._said = time.monotonic()
        self._progress.reset(self._bar, total=sum(self._efforts))
        self._progress.start()

    def look(self, shares: Sequence[float]) -> None:
        failed, ended = (sum(share in kinds for share in shares) for kinds in ((FAILED,), (DONE, FAILED)))
        finished = sum(work * abs(share) for work, share in zip(self._efforts, shares, strict=True))
        note = f"{ended} of {len(shares)}{f' {failed} failed' if failed else ''}{self._left(finished)}"
        self._progress.update(self._bar, completed=finished, description=note)
        if not self._console.is_terminal and time.monotonic() - self._said > REPORT_SECONDS:
            self._said = time.monotonic()
            _say(self._console, f"runs: {note}")

    def stopping(self) -> None:
        self._progress.update(self._bar, description="stopping after this round (Ctrl-C again to stop at once)")

    def close(self) -> None:
        """Give the terminal back, also after an error."""
        self._progress.stop()

    def _left(self, finished: float) -> str:
        total, passed = sum(self._efforts), time.monotonic() - self._began
        if finished < 0.01 * total or passed < 5:
            return ""
        return f", about {duration(passed * (total - finished) / finished)} left"


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print one row per method, the best score in bold, and what a reader must know of the table."""
    heads, *rows = cells(comparison)
    table = plain_table(heads, left=1)
    for row, best, runs in zip(rows, comparison.table["best"], comparison.table["runs"], strict=True):
        name, test, *others = map(escape, row)
        table.add_row(name, f"[bold]{test}[/bold]" if best else test, *others, style="" if runs else "dim")
    console.print(table)
    console.print()
    for note in footnotes(comparison):
        _say(console, escape(note))


def show(result: Result, baselines: Mapping[str, Floats], console: Console) -> None:
    """Print the outcome: groups, scores against local and pooled models, what tells the groups apart."""
    _show_tried(result, console)
    noun = words.noun_of(result.profile)
    ari = "" if result.ari is None else f" Agreement with the true groups: ARI {result.ari:.3f}."
    _say(console, f"[bold]{escape(words.headline(result))}[/bold]{ari}")
    _say(console, f"{escape(words.verdict(result, baselines))}\n")
    console.print(_group_table(result, noun, console.width))
    scores = words.compared_scores(result, baselines)
    if len(scores) > 1:
        console.print()
        console.print(_score_table(result, noun, scores))
    if result.n_clusters == 1 and "pooled" in baselines and words.finds_groups(result) and not result.compared:
        _say(console, f"({words.ONE_GROUP})")
    if not result.model.convex:
        _say(console, "(no comparison: separate and pooled models are fitted for linear and softmax models only)")
    _show_contrasts(result, console)
    how = "converged after" if result.converged else "stopped after"
    sent = f"{data_size(result.cost_floats)} sent ({result.cost_floats:,} numbers)"
    lam = f", lambda {result.lam:.3g}" if result.lam is not None else ""
    _say(console, f"\n{how} {counted(result.rounds, 'round')}, {sent}, {result.seconds:.1f} s{lam}")
    if result.certificate is not None:
        _say(console, escape(result.certificate.sentence(result.lam)))
    for warning in _warnings(result):
        _say(console, f"\n[yellow]{escape(warning)}[/yellow]")


def _show_tried(result: Result, console: Console) -> None:
    """Print the score of every lambda that was tried, and which one was chosen."""
    table = words.tried_lambdas(result)
    if table is None:
        return
    heads, rows = words.lambda_table(table, metric_for(result.profile.goal).name)
    marks = ["[bold]chosen[/bold]" if chosen else "" for chosen in table["chosen"]]
    console.print(plain_table([*heads, ""], ([*row, mark] for row, mark in zip(rows, marks, strict=True))))
    _say(console, f"\n[bold]lambda {result.lam:g}[/bold] in {table['seconds'].sum():.1f} s; with it:")


def show_newcomers(joined: Newcomers, console: Console) -> None:
    """Print the group and the score of newcomers."""
    rows, alone, metric = [], [], joined.run.profile.metric
    for i, name in enumerate(joined.names):
        group, sure = joined.run.cluster_numbers.get(joined.clusters[i]), joined.confidence[i]
        if group is None:
            alone.append(name)
        shown = group or ("none" if joined.grouped else NOTHING)
        sureness = NOTHING if sure is None else f"{sure:.2f}"
        rows.append([escape(name), f"{joined.counts[i]:,}", shown, sureness, score(joined.scores[i], metric)])
    console.print(plain_table(["newcomer", "rows", "group", "confidence", "test"], rows))
    if joined.grouped and alone:
        who = escape(words.some_names(alone, NAMES_WIDTH))
        _say(console, f"\n[yellow]No group fits {who}: separate models predict better[/yellow]")
    sent = f"{data_size(joined.cost_floats)} sent ({joined.cost_floats:,} numbers)"
    mean = f"mean test {words.metric_name(metric)} of newcomers {score(joined.score(), metric)}"
    _say(console, f"\n{mean}; {sent}, at most {max(joined.iterations)} exchanges each")


def show_small(joined: Newcomers, console: Console) -> None:
    """Print how many devices with few rows joined which group."""
    groups = Counter(joined.run.cluster_numbers.get(group, 0) for group in joined.clusters)
    told = ", ".join(f"{n:,} in {f'group {g}' if g else 'no group'}" for g, n in sorted(groups.items()))
    who = words.noun_of(joined.run.profile).count(len(joined.names))
    _say(console, f"\n{who} with few rows joined after the groups were found: {told} (newcomers.json)")


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def _warnings(result: Result) -> list[str]:
    """Return what a reader must know before using the groups, and what to try."""
    found, moved = words.warnings(result, NAMES_WIDTH), float(result.history["moved"].iloc[-1])
    if not result.converged and moved > MAX_MOVED_RATIO:
        found.append(
            f"not converged: models still moved by {100 * moved:.2g} % in the last round; "
            "more rounds (--rounds) may change groups and scores"
        )
    found += [f"{counted(n, 'upload')} refused: {reason}" for reason, n in refusals(result)]
    if result.refused and result.orders.get("unanswered"):
        found.append(f"{counted(result.orders['unanswered'], 'order')} of {result.orders['sent']:,} unanswered")
    # Uploads that cannot be used may be part of the experiment, and then are no sign of training that diverges.
    planned = result.attack is not None or "nan" in result.trouble
    if any(reason in DIVERGED for reason in result.refused) and not planned:
        found.append("local training diverges: try a smaller step (--set lr=…) or --set solver=exact")
    return found


def plain_table(heads: Sequence[object], rows: Iterable[Iterable[object]] = (), left: int = 0) -> Table:
    """Return a table of numbers; the first columns, ``left`` of them, are text."""
    table = Table(box=None, pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(str(head).strip(), justify="left" if place < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _group_table(result: Result, noun: words.Noun, width: int) -> Table:
    table = plain_table(["group", noun.many, "rows", "test"])
    table.add_column("members", no_wrap=True)
    room = max(20, width - 40)
    parts = [(str(number), np.flatnonzero(result.group_numbers == number)) for number in range(1, MAX_GROUPS + 1)]
    if result.apart.size:
        parts.append(("none", result.apart))
    for name, inside in parts:
        if not inside.size:
            continue
        test = NOTHING if name == "none" else score(result.score("test", inside), result.profile.metric)
        members = escape(words.some_names(words.device_names(result, inside), room))
        table.add_row(name, f"{inside.size:,}", f"{result.profile.counts[inside].sum():,}", test, members)
    if len(result.groups) > MAX_GROUPS:
        table.add_row("…", "", "", "", f"{counted(len(result.groups) - MAX_GROUPS, 'more group')}, in labels.csv")
    return table


def _score_table(result: Result, noun: words.Noun, scores: Mapping[str, Floats]) -> Table:
    name, metric = result.profile.metric, METRICS[result.profile.metric]
    what = f"test {metric.label}{'' if metric.greater_is_better else ' (lower is better)'}"
    names, rows = words.kinds_of_models(noun), []
    for kind, values in scores.items():
        mean = score(mean_score(values[result.scored], name), name)
        name_shown = names["pooled" if result.compared and kind == "groups" and result.n_clusters == 1 else kind]
        rows.append([name_shown, f"[bold]{mean}[/bold]" if kind == words.used(result, scores) else mean])
    over = "all rows of" if metric.pooled else "mean over"
    return plain_table([f"{what}, {over} {words.whom(result)}", ""], rows, left=1)


def _show_contrasts(result: Result, console: Console) -> None:
    """Print the coefficients that differ most, group by group where one number says it."""
    contrasts = words.ContrastTable.of(result, MAX_FEATURES, MAX_COLUMNS)
    if contrasts is None:
        return
    heads = [f"group {number}" for number in contrasts.groups] or ["contrast"]
    tested = ["p", "detectable"][: len(contrasts.tests[0])] if contrasts.tests else []
    columns = zip_longest(contrasts.names, contrasts.values, contrasts.tests, fillvalue=())
    rows = ([escape(str(name)), *(f"{value:.3g}" for value in values), *tests] for name, values, tests in columns)
    table = plain_table(["feature", *heads, *tested], rows, left=1)
    table.columns[0].overflow = "ellipsis"
    _say(console, f"\nwhat tells the groups apart ({escape(contrasts.what)}):")
    console.print(table)
    if tested:
        _say(console, f"({'; '.join([words.TESTS, words.DETECTABLE][: len(tested)])}; intervals.csv has the rest)")
