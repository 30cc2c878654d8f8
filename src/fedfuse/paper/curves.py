"""Figures of the course of runs: curves, cost, distances, communication strategies, asynchrony, solution paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from scipy.spatial.distance import pdist

from fedfuse import Work
from fedfuse.paper import figures
from fedfuse.paper.experiment import Experiment, Findings, both, readable, score_heading
from fedfuse.paper.setup import DEFAULT, PAPER, PRINTED, PaperSetup
from fedfuse.paper.solution_path import figure_1
from fedfuse.paper.trials import Trial
from fedfuse.protocol.local_work import Schedule
from fedfuse.results.snapshots import DistanceSnapshot
from fedfuse.studies.comparison import NOTHING

MIN_SNAPSHOT_ROUNDS = 50  # Shorter runs are shown at their start and end only.


@dataclass(frozen=True, kw_only=True)
class Curves(Experiment):
    """All methods on images: training loss, training and test accuracy by round, or cost in all."""

    show_as: Literal["curves", "cost"] = "curves"

    def runs(self, setup: PaperSetup, name: str) -> dict[str, Trial]:
        found = {}
        for label in (*PAPER, DEFAULT):
            method, settings = setup.entry(name, label)
            settings |= {"evaluate_every": max(1, settings["rounds"] // 20)}
            found[label] = setup.trial(name, label, method, settings, curve=True)
        return found

    def findings(self, setup: PaperSetup) -> Findings:
        table, course = self.tables(setup, "round", "train_loss", "train", "test", "device_epochs")
        found = Findings(numbers={"end.csv": table, "curves.csv": course})
        for data, some in table.groupby("data", sort=False):
            found.tables[str(data)] = readable(some, "method", "num", "ari", "cost")
            best, ours = some.set_index("method")["test"].idxmax(), some.set_index("method").loc[DEFAULT]
            spent = course.query("data == @data and method == @DEFAULT")["device_epochs"].max()
            score = f"{PRINTED[DEFAULT]} has {100 * ours['test']:.2f} % after {spent:,.0f} device-epochs"
            found.notes.append(f"{data}: best at the end is {PRINTED[str(best)]}; {score}, ARI {both(ours['ari'])}")
        found.draw = (lambda: figures.curves(course)) if self.show_as == "curves" else (lambda: figures.cost(table))
        return found


@dataclass(frozen=True, kw_only=True)
class Snapshots(Experiment):
    """FPFC with some lambdas: distances between devices' models after some rounds; for the first a picture by t-SNE."""

    rounds: tuple[int, ...] = (0, 5, 50, 600)
    lambdas: tuple[float, ...] = (0.6, 0.7)

    keys: ClassVar[tuple[str, ...]] = ("lambda",)

    def runs(self, setup: PaperSetup, name: str) -> dict[float, Trial]:
        found = {}
        for lam in self.lambdas:
            method, settings = setup.entry(name, "fpfc", {"lam": lam}, figure=True)
            at = self.rounds if settings["rounds"] >= MIN_SNAPSHOT_ROUNDS else (0, settings["rounds"])
            found[lam] = setup.trial(name, "fpfc", method, {**settings, "rounds": at[-1]}, at=at)
        return found

    def findings(self, setup: PaperSetup) -> Findings:
        rows, shown = [], dict[int, Any]()
        for _, lam, trial, result in self.results(setup):
            truth = np.asarray(result.profile.truth)
            models = {k: trial.models_at(k).astype(np.float64) for k in trial.at}
            shown, pairs = shown or models, np.triu_indices(len(truth), 1)
            between = truth[pairs[0]] != truth[pairs[1]]
            for k, gaps in ((k, pdist(w)) for k, w in models.items()):
                distances = {"within groups": gaps[~between].mean(), "largest within": gaps[~between].max()}
                distances |= {"between groups": gaps[between].mean(), "smallest between": gaps[between].min()}
                rows.append({"lambda": lam, "round": k, **distances})
        table, title = pd.DataFrame(rows), f"{trial.recipe.words}: distances between devices' models"
        seen = [DistanceSnapshot.of(k, w, truth) for k, w in shown.items()]
        readable = table.map(lambda number: f"{number:.4g}")
        return Findings({title: readable}, {"distances.csv": table}, lambda: figures.snapshots(seen, shown, truth))


@dataclass(frozen=True)
class StepBudget:
    """A number of local steps in all, which strategies divide into rounds in different ways."""

    total: int
    strategies: Mapping[str, Schedule]
    compare_after: int | None = None  # rounds after which the paper compares


@dataclass(frozen=True, kw_only=True)
class Strategies(Experiment):
    """FPFC with the same number of local steps in all: many rounds of few, few of many, or growing ones."""

    budgets: Mapping[str, StepBudget]  # by data set

    keys: ClassVar[tuple[str, ...]] = ("strategy",)

    def runs(self, setup: PaperSetup, name: str) -> dict[str, Trial]:
        method, settings = setup.entry(name, "fpfc")
        budget, kind = self.budgets[name], setup.recipe(name).kind
        # The paper counts mini-batch steps on images.
        unit: dict[str, Any] = {"unit": "batches"} if kind == "images" else {}
        total, after = max(20, int(setup.scale.length * budget.total)), budget.compare_after
        found = {}
        for words, steps in budget.strategies.items():
            work = replace(method.work, steps=steps, **unit)
            rounds = _rounds(work, total)
            every = max(1, rounds // 25) if after is None or rounds < after else 1
            options = {**settings, "rounds": rounds, "budget": total, "evaluate_every": every}
            found[words] = setup.trial(name, "fpfc", replace(method, work=work), options)
        return found

    def findings(self, setup: PaperSetup) -> Findings:
        table, course = self.tables(setup, "round", "test", "cost_floats")
        course["rounds"] = course["round"] + 1
        runs = ["name", "strategy"]
        after = course[course["rounds"] == course["name"].map(lambda name: self.budgets[name].compare_after)]
        printed = self.printed().set_index("strategy", append=True)["acc"] / 100
        for column, scores in (("after", after.set_index(runs)["test"]), ("printed", printed)):
            table[column] = [scores.get(run, np.nan) for run in table[runs].itertuples(index=False, name=None)]
        found = Findings(numbers={"end.csv": table, "curves.csv": course})
        found.draw = lambda: figures.score_lines(course, "rounds", "strategy", "round")
        for data, some in table.groupby("data", sort=False):
            frame = readable(some, "strategy", "rounds", "cost")
            if some["printed"].notna().any():
                frame["after 62 rounds %"] = [both(100 * test) for test in some["after"]]
                frame["printed"] = [both(100 * test) for test in some["printed"]]
            found.tables[str(data)] = frame
        return found


def _rounds(work: Work, total: int) -> int:
    """Return after how many rounds all steps are spent.

    >>> from fedfuse import Grow
    >>> _rounds(Work(steps=5), 1000), _rounds(Work(steps=10), 1000), _rounds(Work(steps=Grow(2)), 1000)
    (200, 100, 63)
    """
    k = spent = 0
    while spent < total:
        spent += int(work.at(k).steps)  # type: ignore[arg-type]
        k += 1
    return k


@dataclass(frozen=True)
class SlowNodes:
    """Nodes with random delays: how many of them a synchronous round asks, and for how many rounds."""

    nodes: int
    active: int
    delay: str
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Asynchronous(Experiment):
    """Synchronous against asynchronous FPFC (Algorithm 3), on nodes with random delays.

    Uniform delays from 0 to s take s / 2 on average and the slowest of n takes n / (n + 1) s, so that in the time of
    K rounds with n of m nodes there are 2 m K n / (n + 1) single updates. Half as many are run.
    """

    nodes: Mapping[str, SlowNodes]  # by data set

    keys: ClassVar[tuple[str, ...]] = ("mode",)

    def runs(self, setup: PaperSetup, name: str) -> dict[str, Trial]:
        method, settings = setup.entry(name, "fpfc", figure=True)
        given = self.nodes[name]
        rounds = max(2, int(setup.scale.length * given.rounds))
        updates = ceil(given.nodes * rounds * given.active / (given.active + 1))
        common = {**settings, "delay": given.delay, "checkpoint_every": 200}
        sync = {"rounds": rounds, "participation": given.active / given.nodes, "evaluate_every": max(1, rounds // 40)}
        single = {"rounds": updates, "mode": "async", "evaluate_every": max(1, updates // 40)}
        single = {key: setting for key, setting in (common | single).items() if key != "participation"}
        return {
            "synchronous": setup.trial(name, "fpfc", method, common | sync),
            "asynchronous": setup.trial(name, "fpfc", method, single),
        }

    def findings(self, setup: PaperSetup) -> Findings:
        table, course = self.tables(setup, "time", "test")
        rows = []
        for (data, runs), (_, seen) in zip(*(t.groupby("data", sort=False) for t in (table, course)), strict=True):
            (_, sync), (_, single) = runs.iterrows()
            scale, slow, fast = score_heading(sync["metric"])[1], *_times_to_target(seen)
            rows.append({
                "data": data, "metric": sync["metric"], "synchronous": both(scale * sync["test"]),
                "after s": f"{sync['time']:,.0f}", "asynchronous": both(scale * single["test"]),
                "after s ": f"{single['time']:,.0f}", "synchronous to 99 %": f"{slow:,.0f} s",
                "asynchronous to 99 %": NOTHING if np.isinf(fast) else f"{fast:,.0f} s",
                "share of time": NOTHING if np.isinf(fast) else f"{fast / slow:.2f}",
            })  # fmt: skip
        title = "test score (accuracy in %) with and without waiting"
        draw = lambda: figures.score_lines(course, "time", "mode", "simulated seconds")  # noqa: E731
        return Findings({title: pd.DataFrame(rows)}, {"curves.csv": course, "end.csv": table}, draw)


def _times_to_target(seen: pd.DataFrame) -> Iterator[float]:
    """Yield when each mode is for good as good as the synchronous run is at its end, but for 1 %."""
    runs = dict(iter(seen.groupby("mode")))
    end = runs["synchronous"].iloc[-1]
    sign = 1 if end["metric"] == "accuracy" else -1
    for mode in ("synchronous", "asynchronous"):
        worse = np.flatnonzero(sign * runs[mode]["test"].to_numpy() < sign * end["test"] * (1 - 0.01 * sign))
        first = worse[-1] + 1 if worse.size else 0
        yield float(runs[mode]["time"].iloc[first]) if first < len(runs[mode]) else float("inf")


@dataclass(frozen=True, kw_only=True)
class SolutionPaths(Experiment):
    """The toy example under four penalties: no runs, a few seconds of arithmetic."""

    data: tuple[str, ...] = ()
    points: int = 41

    def runs(self, setup: PaperSetup, name: str) -> dict[str, Trial]:
        return {}

    def findings(self, setup: PaperSetup) -> Findings:
        paths = figure_1(points=self.points)
        lines, numbers = [], []
        for path in paths:
            two = [(a, b) for n, a, b in path.spans() if n == 2 and b > a]
            one = [a for n, a, _ in path.spans() if n == 1]
            lines.append({
                "penalty": path.penalty,
                "two clusters": f"{two[0][0]:.3g} to {two[-1][1]:.3g}" if two else "never",
                "one cluster from": f"{one[0]:.3g}" if one else "never",
                "best ARI": f"{np.nanmax(path.ari):.2f}",
            })  # fmt: skip
            columns = {"penalty": path.penalty, "lam": path.grid, "clusters": path.n_clusters, "ari": path.ari}
            numbers.append(pd.DataFrame(columns))
        return Findings(
            {"where devices meet along lambda": pd.DataFrame(lines)},
            {"paths.csv": pd.concat(numbers, ignore_index=True)},
            lambda: figures.paths(paths),
            ["the paper reads off its figure: SCAD has the two groups from about 0.4 on, l1 one at 0.08"],
        )
