"""What a person sees in a terminal: the progress of a run, and its outcome. All of it on standard error."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedfuse.result import Result, mean_score
from fedfuse.training import Callback, Row, Run
from fedfuse.types import Floats

MOST_CLUSTERS = 12
MOST_FEATURES = 6


class ProgressBar(Callback):
    """One line: rounds, clusters so far, validation, how much still moves, what has been sent."""

    def __init__(self, console: Console) -> None:
        columns = (SpinnerColumn(), TextColumn("round"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[note]}"), console=console, transient=True)
        self._task = self._progress.add_task("rounds", note="")
        self._known: Row = {}

    def on_start(self, run: Run) -> None:
        self._progress.start()
        self._progress.update(self._task, total=run.settings.rounds, completed=run.k)

    def on_round(self, run: Run, row: Row) -> None:
        self._known |= row
        self._progress.update(self._task, completed=run.k, note=self._note(run))

    def on_end(self, run: Run, result: Result) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back, also after an error."""
        self._progress.stop()

    def _note(self, run: Run) -> str:
        row = self._known
        words = [f"sent {row['cost_floats']:.3g} floats", f"moving {row['moved']:.1e}"]
        if "validation" in row:
            held_out = "validation" if np.isfinite(row["validation"]) else "test"
            score = f"{held_out} {run.federation.metric} {row[held_out]:.4f}"
            words = [f"{row['n_clusters']} clusters", score, *words]
        return " · ".join(words)


def show(result: Result, yardsticks: dict[str, dict[str, Floats]], console: Console) -> None:
    """Print the outcome: groups, scores against local and pooled models, what tells the groups apart."""
    profile = result.profile
    ari = "" if result.ari is None else f" (agreement with the truth: ARI {result.ari:.3f})"
    how = "converged after" if result.converged else "stopped at"
    console.print(
        f"\n[bold]{len(profile.names)} devices fall into {result.n_clusters} "
        f"group{'s' if result.n_clusters > 1 else ''}[/bold]{ari}; {how} {result.rounds} rounds, "
        f"{result.cost_floats:,} floats sent, {result.seconds:.1f} s\n"
    )
    console.print(_cluster_table(result))
    console.print(_score_table(result, yardsticks))
    if result.n_clusters > 1 and profile.encoder is not None:
        _show_contrasts(result, console)
    for reason, count in result.refused.items():
        console.print(f"[yellow]{count} uploads refused: {reason}[/yellow]")


def profile_metric(result: Result) -> str:
    """Return the metric with its direction."""
    return "accuracy" if result.profile.metric == "accuracy" else "RMSE (less is better)"


def _cluster_table(result: Result) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("group", "devices", "rows", "test"):
        table.add_column(heading, justify="right")
    table.add_column("members", overflow="ellipsis", no_wrap=True)
    sizes = np.bincount(result.labels)
    for c in np.argsort(-sizes, kind="stable")[:MOST_CLUSTERS]:
        inside = result.labels == c
        rows, test = int(result.profile.counts[inside].sum()), float(np.nanmean(result.scores["test"][inside]))
        members = escape(", ".join(result.clusters[c]))
        table.add_row(str(c), str(sizes[c]), f"{rows:,}", f"{test:.4f}", members)
    if result.n_clusters > MOST_CLUSTERS:
        table.add_row("…", str(sizes.size - MOST_CLUSTERS), "", "", "more groups, in labels.csv")
    return table


def _score_table(result: Result, yardsticks: dict[str, dict[str, Floats]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(f"\ntest {profile_metric(result)}, mean over devices")
    table.add_column("", justify="right")
    table.add_row("one model per group", f"[bold]{result.score('test'):.4f}[/bold]")
    for name, words in (("local", "every device alone"), ("pooled", "one model for all")):
        if name in yardsticks:
            table.add_row(words, f"{mean_score(yardsticks[name]['test']):.4f}")
    return table


def _show_contrasts(result: Result, console: Console) -> None:
    contrasts = result.contrasts()[:MOST_FEATURES]
    coefficients = result.coefficients()
    console.print("\nWhat tells the groups apart (coefficient per group, in the table's units):")
    table = Table(box=None, pad_edge=False)
    table.add_column("feature")
    if len(result.profile.classes) > 2:
        table.add_column("contrast", justify="right")
        for name, contrast in contrasts.items():
            table.add_row(escape(str(name)), f"{contrast:.3g}")
    else:
        shown = range(min(result.n_clusters, 6))
        output = coefficients.index.get_level_values("output")[-1]
        for c in shown:
            table.add_column(f"group {c}", justify="right")
        for name in contrasts.index:
            table.add_row(escape(str(name)), *(f"{_effect(result, c, output, name):.3g}" for c in shown))
    console.print(table)


def _effect(result: Result, cluster: int, output: str, feature: str) -> float:
    """Return a coefficient; for two classes the one of the log-odds of the second against the first."""
    rows = result.coefficients().loc[cluster][feature]
    return float(rows.loc[output] - (rows.iloc[0] if len(rows) == 2 else 0.0))
