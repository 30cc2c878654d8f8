"""Figures of the course of runs: curves, cost, distances, communication strategies, asynchrony, solution paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.spatial.distance import pdist, squareform

from fedfuse import Result, Work
from fedfuse.paper import figures
from fedfuse.paper.experiment import Experiment, Findings, both, count, floats, score_heading
from fedfuse.paper.paper_tables import measures
from fedfuse.paper.setup import DEFAULT, PAPER, PRINTED, PaperSetup
from fedfuse.paper.trials import Trial, evaluated, true_groups
from fedfuse.protocol.local_work import Schedule, value
from fedfuse.studies.comparison import NOTHING

# A quick look divides the local steps of strategies by this.
STEP_DIVISORS = {"synthetic": 20, "images": 4}
EVALUATION_STAGES = ("tree", "check")  # In their rounds networks are scored, not trained.
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
        curves, rows = [], []
        for name, label, trial, result in self.results(setup):
            seen, run = evaluated(result), {"data": setup.words(name), "method": label}
            epochs = _device_epochs(trial, result.history)[seen.index]
            curves.append(seen[["round", "train_loss", "train", "test"]].assign(device_epochs=epochs, **run))
            rows.append(run | measures(label, result))
        table, course = pd.DataFrame(rows), pd.concat(curves, ignore_index=True)
        found = Findings(numbers={"end.csv": table, "curves.csv": course})
        for data, some in table.groupby("data", sort=False):
            found.tables[str(data)] = pd.DataFrame({
                "method": [PRINTED[label] for label in some["method"]],
                "test accuracy %": [both(100 * test) for test in some["test"]],
                "clusters": [count(number) for number in some["num"]],
                "ARI": [both(ari) for ari in some["ari"]],
                "floats sent": [floats(cost) for cost in some["cost"]],
            })  # fmt: skip
            best, ours = some.loc[some["test"].idxmax(), "method"], some.set_index("method").loc[DEFAULT]
            spent = course[(course["data"] == data) & (course["method"] == DEFAULT)]["device_epochs"].max()
            score = f"{PRINTED[DEFAULT]} has {100 * ours['test']:.2f} % after {spent:,.0f} device-epochs"
            found.notes.append(f"{data}: best at the end is {PRINTED[str(best)]}; {score}, ARI {both(ours['ari'])}")
        found.draw = (lambda: figures.curves(course)) if self.show_as == "curves" else (lambda: figures.cost(table))
        return found


def _device_epochs(trial: Trial, history: pd.DataFrame) -> pd.Series[int]:
    """Return the passes of devices over their rows so far; rounds that only evaluate count none."""
    active = history["active"]
    if "stage" in history:  # Runs of old versions with one stage have no such column.
        active = active.where(~history["stage"].isin(EVALUATION_STAGES), 0)
    spent: pd.Series[int] = active.cumsum() * int(value(trial.method.work.steps, 0))
    return spent


@dataclass(frozen=True, kw_only=True)
class Snapshots(Experiment):
    """FPFC with one lambda: distances between devices' models, or their t-SNE, after some rounds."""

    show_as: Literal["distances", "tsne"]
    rounds: tuple[int, ...] = (0, 5, 50, 600)

    def runs(self, setup: PaperSetup, name: str) -> dict[str, Trial]:
        method, settings = setup.entry(name, "fpfc", figure=True)
        at = self.rounds if settings["rounds"] >= MIN_SNAPSHOT_ROUNDS else (0, settings["rounds"])
        return {"fpfc": setup.trial(name, "fpfc", method, {**settings, "rounds": at[-1]}, at=at)}

    def findings(self, setup: PaperSetup) -> Findings:
        ((_, _, trial, result),) = self.results(setup)
        truth = true_groups(result.profile.truth)
        models = {k: trial.models_at(k).astype(np.float64) for k in trial.at}
        between = truth[:, None] != truth[None, :]
        within = ~between & ~np.eye(len(truth), dtype=bool)
        gaps = {k: squareform(pdist(w)) for k, w in models.items()}
        table = pd.DataFrame([
            {"round": k, "within groups": gap[within].mean(), "largest within": gap[within].max(),
             "between groups": gap[between].mean(), "smallest between": gap[between].min()}
            for k, gap in gaps.items()
        ])  # fmt: skip
        readable = table.map(lambda number: f"{number:.4g}")
        draw = {"distances": lambda: figures.distances(gaps), "tsne": lambda: figures.tsne(models, truth)}
        title = f"{trial.recipe.words}: distances between devices' models"
        return Findings({title: readable}, {"distances.csv": table}, draw[self.show_as])


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

    def runs(self, setup: PaperSetup, name: str) -> dict[str, Trial]:
        method, settings = setup.entry(name, "fpfc")
        budget, kind = self.budgets[name], setup.recipe(name).kind
        # The paper counts mini-batch steps on images.
        unit: dict[str, Any] = {"unit": "batches"} if kind == "images" else {}
        total, after = budget.total, budget.compare_after
        if setup.scale.short:
            total = max(20, int(setup.scale.short * total / STEP_DIVISORS.get(kind, 1)))
        found = {}
        for words, steps in budget.strategies.items():
            work = replace(method.work, steps=steps, **unit)
            rounds = _rounds(work, total)
            every = max(1, rounds // 25) if after is None or rounds < after else 1
            options = {**settings, "rounds": rounds, "budget": total, "evaluate_every": every}
            found[words] = setup.trial(name, "fpfc", replace(method, work=work), options)
        return found

    def findings(self, setup: PaperSetup) -> Findings:
        curves, rows, theirs = [], [], self.printed().set_index("strategy", append=True)["acc"]
        for name, words, _, result in self.results(setup):
            seen, run = evaluated(result), {"data": setup.words(name), "metric": result.profile.metric}
            run["strategy"] = words
            curves.append(seen[["round", "test", "cost_floats"]].assign(**run))
            after = seen.loc[seen["round"] + 1 == self.budgets[name].compare_after, "test"]
            rows.append({
                **run, "rounds": result.rounds, "test": result.score("test"), "cost": result.cost_floats,
                "after": after.mean(), "printed": theirs.get((name, words), np.nan) / 100,
            })  # fmt: skip
        table, course = pd.DataFrame(rows), pd.concat(curves, ignore_index=True)
        found = Findings(numbers={"end.csv": table, "curves.csv": course})
        found.draw = lambda: figures.score_lines(course.assign(x=course["round"] + 1), "x", "strategy", "round")
        for data, some in table.groupby("data", sort=False):
            heading, scale = score_heading(some["metric"].iloc[0])
            frame = {
                "strategy": list(some["strategy"]), "rounds": [str(rounds) for rounds in some["rounds"]],
                heading: [both(scale * test) for test in some["test"]],
                "floats sent": [floats(cost) for cost in some["cost"]],
            }  # fmt: skip
            if some["printed"].notna().any():
                frame["after 62 rounds %"] = [both(100 * test) for test in some["after"]]
                frame["printed"] = [both(100 * test) for test in some["printed"]]
            found.tables[str(data)] = pd.DataFrame(frame)
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
    quick: int


@dataclass(frozen=True, kw_only=True)
class Asynchronous(Experiment):
    """Synchronous against asynchronous FPFC (Algorithm 3), on nodes with random delays.

    Uniform delays from 0 to s take s / 2 on average and the slowest of n takes n / (n + 1) s, so that in the time of
    K rounds with n of m nodes there are 2 m K n / (n + 1) single updates. Half as many are run.
    """

    nodes: Mapping[str, SlowNodes]  # by data set

    def runs(self, setup: PaperSetup, name: str) -> dict[str, Trial]:
        method, settings = setup.entry(name, "fpfc", figure=True)
        given = self.nodes[name]
        rounds = max(2, int(setup.scale.short * given.quick)) if setup.scale.short else given.rounds
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
        curves, results = [], dict[str, dict[str, Result]]()
        for name, mode, _, result in self.results(setup):
            data = setup.words(name)
            results.setdefault(data, {})[mode] = result
            run = {"data": data, "mode": mode, "metric": result.profile.metric}
            curves.append(evaluated(result)[["time", "test"]].assign(**run))
        course = pd.concat(curves, ignore_index=True)
        table = pd.DataFrame([{"data": data, **_waiting(*runs.values())} for data, runs in results.items()])
        title = "test score (accuracy in %) with and without waiting"
        draw = lambda: figures.score_lines(course, "time", "mode", "simulated seconds")  # noqa: E731
        return Findings({title: table}, {"curves.csv": course, "end.csv": table}, draw)


def _waiting(sync: Result, single: Result) -> dict[str, str]:
    """Return the readable row of a synchronous and an asynchronous run."""
    whole, share = float(sync.history["time"].iloc[-1]), _share_of_time(sync, single)
    scale = score_heading(sync.profile.metric)[1]
    return {
        "metric": sync.profile.metric,
        "synchronous": both(scale * sync.score("test")),
        "simulated s": f"{whole:,.0f}",
        "asynchronous": both(scale * single.score("test")),
        "in share of the time": both(float(single.history["time"].iloc[-1]) / whole),
        "as good after": NOTHING if np.isinf(share) else f"{share:.2f} of the time",
    }


def _share_of_time(sync: Result, single: Result) -> float:
    """Return after which share of the synchronous time the other run is as good for good as that one is at its end."""
    target, seen = evaluated(sync)["test"].iloc[-1], evaluated(single)
    sign = 1 if sync.profile.metric == "accuracy" else -1
    worse = np.flatnonzero(sign * seen["test"].to_numpy() < sign * target)
    first = worse[-1] + 1 if worse.size else 0
    return float(seen["time"].iloc[first] / sync.history["time"].iloc[-1]) if first < len(seen) else float("inf")


@dataclass(frozen=True, kw_only=True)
class SolutionPaths(Experiment):
    """The toy example under four penalties: no runs, a few seconds of arithmetic."""

    data: tuple[str, ...] = ()
    points: int = 41

    def runs(self, setup: PaperSetup, name: str) -> dict[str, Trial]:
        return {}

    def findings(self, setup: PaperSetup) -> Findings:
        from fedfuse.report.plots import plot_figure1
        from fedfuse.studies.solution_path import figure_1

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
            lambda: plot_figure1(paths),
            ["the paper reads off its figure: SCAD has the two groups from about 0.4 on, l1 one at 0.08"],
        )
