"""Parts of every experiment of the paper: its runs, and their tables, picture and notes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from fedfuse import Result
from fedfuse.paper.setup import PRINTED, PaperSetup
from fedfuse.paper.trials import Trial
from fedfuse.protocol.local_work import value
from fedfuse.studies.comparison import NOTHING, floats

# Columns of a data set begin with this where the printed numbers of several stand in one table.
PREFIXES = {"synthetic:S1": "syn_", "housing-bodyfat": "hbf_", "mnist": "mnist_", "fashion-mnist": "fmnist_"}
EVALUATION_STAGES = ("tree", "check")  # In their rounds networks are scored, not trained.


@dataclass
class Findings:
    """Tables, numbers, picture and notes of an experiment."""

    tables: dict[str, pd.DataFrame] = field(default_factory=dict)  # cells ready to be read, by title
    numbers: dict[str, pd.DataFrame] = field(default_factory=dict)  # the same and more as numbers, by file name
    draw: Callable[[], Any] | None = None  # draws the picture and returns its axes
    notes: list[str] = field(default_factory=list)  # how ours compare with the printed numbers


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """A kind of experiment; its fields are what a table or figure declares."""

    data: tuple[str, ...]  # names of data sets
    numbers: str = ""  # file of the numbers printed in the paper, with x where it has none

    keys: ClassVar[tuple[str, ...]] = ("method",)  # what the parts of the keys of `runs` are

    @abstractmethod
    def runs(self, setup: PaperSetup, name: str) -> Mapping[Any, Trial]:
        """Return the runs on a data set, as far as they are known: some depend on what others came to."""

    @abstractmethod
    def findings(self, setup: PaperSetup) -> Findings:
        """Return what the runs came to; all of them are done."""

    def finished_rows(self, setup: PaperSetup) -> dict[str, pd.DataFrame]:
        """Return rows of the tables whose runs are done although others are not, by title."""
        return {}

    def datasets(self, setup: PaperSetup) -> list[str]:
        """Return the data sets that are here."""
        return [name for name in self.data if setup.here(name)]

    def trials(self, setup: PaperSetup) -> list[Trial]:
        """Return all runs that are known so far."""
        return [trial for name in self.datasets(setup) for trial in self.runs(setup, name).values()]

    def results(self, setup: PaperSetup) -> Iterator[tuple[str, Any, Trial, Result]]:
        """Yield data set, key, trial and result of every run."""
        for name in self.datasets(setup):
            for key, trial in self.runs(setup, name).items():
                yield name, key, trial, trial.result()

    def tables(self, setup: PaperSetup, *columns: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the `measures` of every run, and these columns of its rounds in which test rows were scored."""
        rows, courses = [], []
        for name, key, trial, result in self.results(setup):
            parts = dict(zip(self.keys, key if isinstance(key, tuple) else (key,), strict=True))
            run = {"name": name, "data": setup.words(name), **parts, "metric": result.profile.metric}
            rows.append(run | measures(trial, result))
            if columns:
                history = result.history.assign(device_epochs=_device_epochs(trial, result.history))
                courses.append(history[history["test"].notna()][list(columns)].assign(**run))
        return pd.DataFrame(rows), pd.concat(courses, ignore_index=True) if courses else pd.DataFrame()

    def printed(self, name: str | None = None) -> pd.DataFrame:
        """Return the paper's numbers; with a name, the columns of that data set without their prefix."""
        with (files("fedfuse.paper") / "printed_numbers" / self.numbers).open(encoding="utf-8") as file:
            table: pd.DataFrame = pd.read_csv(file, na_values="x", index_col=0)
        if prefix := PREFIXES.get(name or "", ""):
            table = table.filter(regex=f"^{prefix}").rename(columns=lambda column: column.removeprefix(prefix))
        return table


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper."""

    name: str  # on the command line
    title: str
    where: str  # its place in the paper
    experiment: Experiment
    why: tuple[str, ...] = ()  # headings of reasons.md: why our numbers may differ from the printed ones

    def possible(self, setup: PaperSetup) -> bool:
        """Whether some of its data are here, or it needs none."""
        return bool(self.experiment.datasets(setup)) or not self.experiment.data


def measures(trial: Trial, result: Result) -> dict[str, float]:
    """Return the numbers of a run that tables show."""
    groups = trial.method.finds_groups
    return {
        "test": result.score("test"),
        "num": float(result.n_clusters) if groups else np.nan,
        "ari": result.ari if groups and result.ari is not None else np.nan,
        "cost": float(result.cost_floats),
        "rounds": float(result.rounds),
        "seconds": result.seconds,
        "time": float(result.history["time"].iloc[-1]),
    }


def _device_epochs(trial: Trial, history: pd.DataFrame) -> pd.Series[int]:
    """Return the passes of devices over their rows so far; rounds that only evaluate count none."""
    active = history["active"]
    if "stage" in history:  # Runs of old versions with one stage have no such column.
        active = active.where(~history["stage"].isin(EVALUATION_STAGES), 0)
    spent: pd.Series[int] = active.cumsum() * int(value(trial.method.work.steps, 0))
    return spent


def score_heading(metric: str) -> tuple[str, int]:
    """Return the heading of a column of scores, and by what they are multiplied in it."""
    return ("accuracy %", 100) if metric == "accuracy" else ("RMSE", 1)


def readable(some: pd.DataFrame, first: str, *names: str) -> pd.DataFrame:
    """Return the table of a data set in words: the column that tells runs apart, the score, and these measures."""
    heading, scale = score_heading(some["metric"].iloc[0])
    told = [PRINTED.get(key, key) if isinstance(key, str) else f"{key:g}" for key in some[first]]
    cells = {first: told, heading: [both(scale * test) for test in some["test"]]}
    for name in names:
        heading, write = WRITERS[name]
        cells[heading] = [write(number) for number in some[name]]
    table: pd.DataFrame = pd.DataFrame(cells)
    return table


def both(mean: float, sd: float | None = None, places: int = 2) -> str:
    """Write a mean and its spread.

    >>> both(93.037, 2.584), both(float("nan")), both(4.0, 0.0, 1)
    ('93.04 ± 2.58', '—', '4.0 ± 0.0')
    """
    if mean is None or not np.isfinite(mean):
        return NOTHING
    return f"{mean:.{places}f}" + (f" ± {sd:.{places}f}" if sd is not None and np.isfinite(sd) else "")


def count(mean: float, sd: float | None = None) -> str:
    """Write a number of clusters: whole where all seeds agree.

    >>> count(4.0, 0.0), count(11.67, 8.81), count(3.0)
    ('4', '11.67 ± 8.81', '3')
    """
    if sd or not np.isfinite(mean):
        return both(mean, sd)
    return both(mean, places=0 if mean == round(mean) else 2)


def markdown(table: pd.DataFrame, *, left: bool = False) -> str:
    """Return a table of texts in Markdown, all but the first column to the right unless they are words.

    >>> print(markdown(pd.DataFrame({"method": ["a"], "printed ": ["1"]})))
    | method | printed |
    | --- | ---: |
    | a | 1 |
    """
    headings = [str(name).strip() for name in table.columns]
    rule = ["---", *(["---" if left else "---:"] * (len(headings) - 1))]
    rows = [headings, rule, *([str(cell) for cell in row] for row in table.itertuples(index=False))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# Headings of measures, and how they are written.
WRITERS: dict[str, tuple[str, Callable[[float], str]]] = {
    "num": ("clusters", count), "ari": ("ARI", both), "cost": ("floats sent", floats),
    "rounds": ("rounds", "{:,.0f}".format),
}  # fmt: skip
