"""Figures of how runs go on: curves and cost on images, pairwise distances, communication strategies, asynchrony."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedfuse.methods.method import Method
from fedfuse.paper import figures
from fedfuse.paper.experiment import Experiment, Shown, both, count, floats, printed
from fedfuse.paper.setup import AUTO, CLUSTERING, PAPER, PRINTED, PaperSetup
from fedfuse.paper.trial import Trial, evaluated, training_cost
from fedfuse.protocol.local_work import Schedule, Work, value
from fedfuse.studies.comparison import NOTHING

METHODS = (*PAPER, AUTO)
_SHORTER = {"synthetic": 20, "images": 4}
SHORT = 50  # rounds: who has so few does not want all of a picture either


@dataclass(frozen=True)
class Curves(Experiment):
    """All methods on images: training loss, training and test accuracy by round, or what they cost in all."""

    sets: tuple[str, ...]
    show_as: Literal["curves", "cost"] = "curves"

    @property
    def data(self) -> tuple[str, ...]:
        return self.sets

    def trials(self, setup: PaperSetup) -> list[Trial]:
        return [trial for name in self.datasets(setup) for trial in self._of(setup, name).values()]

    def _of(self, setup: PaperSetup, name: str) -> dict[str, Trial]:
        found = {}
        for label in METHODS:
            method, settings = setup.entry(name, label)
            every = max(1, settings["rounds"] // 20)
            settings |= {"evaluate_every": every}
            found[label] = setup.trial(name, label, method, settings, curve=True)
        return found

    def show(self, setup: PaperSetup) -> Shown:
        curves, lines = [], []
        for name in self.datasets(setup):
            data = setup.words(name)
            for label, trial in self._of(setup, name).items():
                result, seen = trial.result(), evaluated(trial.result())
                epochs = _device_epochs(trial, result.history)[seen.index]
                some = seen[["round", "train_loss", "train", "test"]].assign(
                    device_epochs=epochs, data=data, method=label
                )
                curves.append(some)
                lines.append({
                    "data": data, "method": label, "test": result.score("test"),
                    "clusters": result.n_clusters if label in CLUSTERING else np.nan,
                    "ari": result.ari if label in CLUSTERING else np.nan, "cost": training_cost(result),
                })  # fmt: skip
        table, course = pd.DataFrame(lines), pd.concat(curves, ignore_index=True)
        shown = Shown(numbers={"end.csv": table, "curves.csv": course})
        for data, some in table.groupby("data", sort=False):
            shown.tables[str(data)] = pd.DataFrame({
                "method": [PRINTED[m] for m in some["method"]],
                "test accuracy %": [both(100 * v) for v in some["test"]],
                "clusters": [count(v) for v in some["clusters"]],
                "ARI": [both(v) for v in some["ari"]],
                "floats sent": [floats(v) for v in some["cost"]],
            })  # fmt: skip
            best = some.loc[some["test"].idxmax(), "method"]
            ours = some.set_index("method").loc[AUTO]
            spent = course[(course["data"] == data) & (course["method"] == AUTO)]["device_epochs"].max()
            shown.notes.append(
                f"{data}: best at the end is {PRINTED[str(best)]}; FPFC auto has {100 * ours['test']:.2f} % after "
                f"{spent:,.0f} device-epochs, ARI {both(ours['ari'])}"
            )
        shown.draw = (lambda: figures.curves(course)) if self.show_as == "curves" else (lambda: figures.cost(table))
        return shown


def _device_epochs(trial: Trial, history: pd.DataFrame) -> pd.Series[int]:
    """Return how many passes of a device over its rows there have been; judging is none."""
    inner: Method[Any] = getattr(trial.method, "inner", trial.method)
    active = history["active"]
    if "stage" in history:  # a row names the stage that comes next
        active = active.where(~history["stage"].shift(fill_value="together").isin(["tree", "check"]), 0)
    spent: pd.Series[int] = active.cumsum() * int(value(inner.work.steps, 0))
    return spent


@dataclass(frozen=True)
class Snapshots(Experiment):
    """FPFC on S1 with one lambda: distances between devices' models, or their t-SNE, after some rounds."""

    show_as: Literal["distances", "tsne"]
    name: str = "synthetic:S1"
    rounds: tuple[int, ...] = (0, 5, 50, 600)

    @property
    def data(self) -> tuple[str, ...]:
        return (self.name,)

    def trials(self, setup: PaperSetup) -> list[Trial]:
        method, settings = setup.entry(self.name, "fpfc", figure=True)
        at = self.rounds if settings["rounds"] >= SHORT else (0, settings["rounds"])
        return [setup.trial(self.name, "fpfc", method, {**settings, "rounds": at[-1]}, at=at)]

    def show(self, setup: PaperSetup) -> Shown:
        (trial,) = self.trials(setup)
        truth = trial.result().profile.truth
        if truth is None:
            raise AssertionError("the paper's groups are known")
        models = {k: trial.models_at(k).astype(np.float64) for k in trial.at}
        apart = truth[:, None] != truth[None, :]
        other = ~apart & ~np.eye(len(truth), dtype=bool)
        gaps = {k: _distances(w) for k, w in models.items()}
        table = pd.DataFrame({
            "round": list(gaps), "within groups": [float(d[other].mean()) for d in gaps.values()],
            "largest within": [float(d[other].max()) for d in gaps.values()],
            "between groups": [float(d[apart].mean()) for d in gaps.values()],
            "smallest between": [float(d[apart].min()) for d in gaps.values()],
        })  # fmt: skip
        shown = Shown(numbers={"distances.csv": table})
        shown.tables[f"{trial.recipe.words}: distances between devices' models"] = table.map(lambda v: f"{v:.4g}")
        if self.show_as == "distances":
            shown.draw = lambda: figures.distances(gaps)
        else:
            shown.draw = lambda: figures.tsne(models, truth)
        return shown


def _distances(models: Any) -> Any:
    from scipy.spatial.distance import pdist, squareform

    return squareform(pdist(models))


@dataclass(frozen=True)
class Plan:
    """A data set with a fixed number of local steps in all, of which some strategies make different rounds."""

    name: str
    total: int
    strategies: Mapping[str, Schedule]
    after: int | None = None  # rounds after which the paper compares


@dataclass(frozen=True)
class Strategies(Experiment):
    """FPFC with the same number of local steps in all: many rounds of few, few of many, or growing ones."""

    plans: tuple[Plan, ...]
    numbers: str

    @property
    def data(self) -> tuple[str, ...]:
        return tuple(plan.name for plan in self.plans)

    def trials(self, setup: PaperSetup) -> list[Trial]:
        here = (plan for plan in self.plans if setup.here(plan.name))
        return [trial for plan in here for trial in self._of(setup, plan).values()]

    def _of(self, setup: PaperSetup, plan: Plan) -> dict[str, Trial]:
        method, settings = setup.entry(plan.name, "fpfc")
        kind = setup.recipe(plan.name).kind
        # the paper counts mini-batch steps on images, and compares after a given round there
        unit: dict[str, Any] = {"unit": "batches"} if kind == "images" else {}
        total = plan.total
        if setup.scale.short:
            total = max(20, int(setup.scale.short * total / _SHORTER.get(kind, 1)))
        found = {}
        for words, steps in plan.strategies.items():
            work = replace(method.work, steps=steps, **unit)
            rounds = _rounds(work, total)
            every = max(1, rounds // 25) if plan.after is None or rounds < plan.after else 1
            options = {**settings, "rounds": rounds, "budget": total, "evaluate_every": every}
            found[words] = setup.trial(plan.name, "fpfc", replace(method, work=work), options)
        return found

    def show(self, setup: PaperSetup) -> Shown:
        curves, lines, theirs = [], [], printed(self.numbers, "data")
        for plan in self.plans:
            if not setup.here(plan.name):
                continue
            data = setup.words(plan.name)
            for words, trial in self._of(setup, plan).items():
                result = trial.result()
                seen = evaluated(result)
                curves.append(seen[["round", "test", "cost_floats"]].assign(data=data, strategy=words))
                same = theirs[(theirs.index == plan.name) & (theirs["strategy"] == words)]
                at = seen.loc[seen["round"] + 1 == plan.after, "test"]
                lines.append({
                    "data": data, "strategy": words, "rounds": result.rounds, "test": result.score("test"),
                    "metric": result.profile.metric, "cost": result.cost_floats,
                    "after": float(at.iloc[0]) if len(at) else np.nan,
                    "printed": float(same["acc"].iloc[0]) / 100 if len(same) else np.nan,
                })  # fmt: skip
        table, course = pd.DataFrame(lines), pd.concat(curves, ignore_index=True)
        shown = Shown(numbers={"end.csv": table, "curves.csv": course}, draw=lambda: figures.strategies(course, table))
        for data, some in table.groupby("data", sort=False):
            scale = 100 if some["metric"].iloc[0] == "accuracy" else 1
            frame = {
                "strategy": list(some["strategy"]), "rounds": [str(n) for n in some["rounds"]],
                "accuracy %" if scale == 100 else "RMSE": [both(scale * v) for v in some["test"]],
                "floats sent": [floats(v) for v in some["cost"]],
            }  # fmt: skip
            if some["printed"].notna().any():
                frame |= {"after 62 rounds %": [both(100 * v) for v in some["after"]]}
                frame |= {"printed": [both(100 * v) for v in some["printed"]]}
            shown.tables[str(data)] = pd.DataFrame(frame)
        return shown


def _rounds(work: Work, total: int) -> int:
    """Return after how many rounds all steps are spent.

    >>> from fedfuse.protocol.local_work import Grow
    >>> _rounds(Work(steps=5), 1000), _rounds(Work(steps=10), 1000), _rounds(Work(steps=Grow(2)), 1000)
    (200, 100, 63)
    """
    k = spent = 0
    while spent < total:
        spent += int(work.at(k).steps)  # type: ignore[arg-type]
        k += 1
    return k


@dataclass(frozen=True)
class ComputingNodes:
    """Nodes with random delays: how many of them a synchronous round asks, and for how many rounds."""

    name: str
    nodes: int
    active: int
    delay: str
    rounds: int
    quick: int


@dataclass(frozen=True)
class Asynchronous(Experiment):
    """FPFC against itself without waiting (Algorithm 3), on nodes with random delays.

    Uniform delays from 0 to s take s / 2 on average and the slowest of n takes n / (n + 1) s, so that in the time of
    K rounds with n of m nodes there are 2 m K n / (n + 1) single updates. Half as many are run.
    """

    sets: tuple[ComputingNodes, ...]

    @property
    def data(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.sets)

    def trials(self, setup: PaperSetup) -> list[Trial]:
        here = (s for s in self.sets if setup.here(s.name))
        return [trial for s in here for trial in self._of(setup, s).values()]

    def _of(self, setup: PaperSetup, given: ComputingNodes) -> dict[str, Trial]:
        method, settings = setup.entry(given.name, "fpfc", figure=True)
        rounds = max(2, int(setup.scale.short * given.quick)) if setup.scale.short else given.rounds
        updates = ceil(given.nodes * rounds * given.active / (given.active + 1))
        common = {**settings, "delay": given.delay, "checkpoint_every": 200}
        sync = {**common, "rounds": rounds, "participation": given.active / given.nodes}
        alone = {**common, "rounds": updates, "mode": "async", "evaluate_every": max(1, updates // 40)}
        alone.pop("participation", None)
        return {
            "synchronous": setup.trial(given.name, "fpfc", method, {**sync, "evaluate_every": max(1, rounds // 40)}),
            "asynchronous": setup.trial(given.name, "fpfc", method, alone),
        }

    def show(self, setup: PaperSetup) -> Shown:
        curves, lines = [], []
        for given in self.sets:
            if not setup.here(given.name):
                continue
            data, results = setup.words(given.name), {}
            for words, trial in self._of(setup, given).items():
                results[words] = trial.result()
                seen = evaluated(results[words])
                curves.append(seen[["time", "test"]].assign(data=data, mode=words))
            sync, alone = results.values()
            metric = sync.profile.metric
            whole, share = float(sync.history["time"].iloc[-1]), _share_of_time(sync, alone)
            scale = 100 if metric == "accuracy" else 1
            lines.append({
                "data": data, "metric": metric, "synchronous": both(scale * sync.score("test")),
                "simulated s": f"{whole:,.0f}", "asynchronous": both(scale * alone.score("test")),
                "in share of the time": both(float(alone.history["time"].iloc[-1]) / whole),
                "as good after": NOTHING if np.isinf(share) else f"{share:.2f} of the time",
            })  # fmt: skip
        course, table = pd.concat(curves, ignore_index=True), pd.DataFrame(lines)
        shown = Shown(
            numbers={"curves.csv": course, "end.csv": table}, draw=lambda: figures.asynchronous(course, table)
        )
        shown.tables["test score (accuracy in %) with and without waiting"] = table
        return shown


def _share_of_time(sync: Any, alone: Any) -> float:
    """Return after which share of the synchronous time the other is as good for good as that is at its end."""
    target, seen = evaluated(sync)["test"].iloc[-1], evaluated(alone)
    sign = 1 if sync.profile.metric == "accuracy" else -1
    worse = np.flatnonzero(sign * seen["test"].to_numpy() < sign * target)
    first = worse[-1] + 1 if worse.size else 0
    return float(seen["time"].iloc[first] / sync.history["time"].iloc[-1]) if first < len(seen) else float("inf")
