"""How much a setting matters: lambda, local epochs, xi (appendix E), each on the paper's four data sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedfuse.methods.method import Method
from fedfuse.paper import figures
from fedfuse.paper.experiment import Experiment, Shown, both
from fedfuse.paper.setup import PaperSetup
from fedfuse.paper.trial import Trial
from fedfuse.protocol.local_work import Uneven

ALL = ("synthetic:S1", "housing-bodyfat", "mnist", "fashion-mnist")


@dataclass(frozen=True)
class SettingSweep(Experiment):
    """The paper's loop with each value of a setting.

    Attributes
    ----------
    key
        ``lam`` and ``xi`` of the penalty, or ``epochs``: the most local epochs; every device and round draws its own.
    values
        By kind of data.
    quick
        The values of a quick look.
    """

    key: Literal["lam", "xi", "epochs"]
    values: Mapping[str, tuple[float, ...]]
    quick: Mapping[str, tuple[float, ...]]
    sets: tuple[str, ...] = ALL

    @property
    def data(self) -> tuple[str, ...]:
        return self.sets

    def trials(self, setup: PaperSetup) -> list[Trial]:
        return [trial for name in self.datasets(setup) for trial in self._of(setup, name).values()]

    def _of(self, setup: PaperSetup, name: str) -> dict[float, Trial]:
        method, settings = setup.entry(name, "fpfc", figure=True)
        values = (self.quick if setup.scale.few else self.values)[setup.recipe(name).kind]
        return {value: setup.trial(name, "fpfc", self._with(method, value), settings) for value in values}

    def _with(self, method: Method[Any], value: float) -> Method[Any]:
        if self.key == "epochs":
            return replace(method, work=replace(method.work, steps=Uneven(value)))
        changed: dict[str, Any] = {self.key: value}
        return replace(method, **changed)

    def show(self, setup: PaperSetup) -> Shown:
        rows: list[dict[str, Any]] = []
        for name in self.datasets(setup):
            for value, trial in self._of(setup, name).items():
                result = trial.result()
                row = {"data": setup.words(name), self.key: value, "metric": result.profile.metric}
                rows.append({**row, "test": result.score("test"), "clusters": result.n_clusters, "ari": result.ari})
        table = pd.DataFrame(rows)
        shown = Shown(numbers={f"{self.key}.csv": table}, draw=lambda: figures.sweep(table, self.key))
        for data, some in table.groupby("data", sort=False):
            accuracy = some["metric"].iloc[0] == "accuracy"
            best = some["test"].idxmax() if accuracy else some["test"].idxmin()
            spread = np.ptp(some["test"]) * (100 if accuracy else 1)
            words = f"{data}: best at {self.key} {some.loc[best, self.key]:g} ({some.loc[best, 'test']:.4f})"
            shown.notes.append(f"{words}; from worst to best {spread:.2f} {'points' if accuracy else 'RMSE'}")
            lines = {
                self.key: [f"{v:g}" for v in some[self.key]],
                "accuracy %" if accuracy else "RMSE": [both((100 if accuracy else 1) * v) for v in some["test"]],
                "clusters": [str(n) for n in some["clusters"]],
                "ARI": [both(np.nan if v is None else v) for v in some["ari"]],
            }
            shown.tables[str(data)] = pd.DataFrame(lines)
        return shown


@dataclass(frozen=True)
class Starts(Experiment):
    """FPFC and IFCA on one data set from many random initial values."""

    sets: tuple[str, ...] = ("synthetic:S1", "synthetic:S3")
    methods: tuple[str, ...] = ("fpfc", "ifca")

    @property
    def data(self) -> tuple[str, ...]:
        return self.sets

    def trials(self, setup: PaperSetup) -> list[Trial]:
        return [trial for trials in self._all(setup).values() for trial in trials]

    def _all(self, setup: PaperSetup) -> dict[tuple[str, str], list[Trial]]:
        found = {}
        for name in self.sets:
            for label in self.methods:
                method, settings = setup.entry(name, label, figure=True)
                method = replace(method, start="normal")
                found[name, label] = [
                    setup.trial(name, label, method, settings, start, data_seed=0)
                    for start in range(setup.scale.starts)
                ]
        return found

    def show(self, setup: PaperSetup) -> Shown:
        rows = [
            {"data": setup.words(name), "method": label, "start": trial.seed, "test": result.score("test"),
             "ari": result.ari, "clusters": result.n_clusters}
            for (name, label), trials in self._all(setup).items() for trial in trials for result in [trial.result()]
        ]  # fmt: skip
        table = pd.DataFrame(rows)
        shown = Shown(numbers={"starts.csv": table}, draw=lambda: figures.starts(table))
        groups = table.groupby(["data", "method"], sort=False)
        lines = [
            {"data": data, "method": label.upper(), "accuracy %": both(100 * s.mean(), 100 * s.std(ddof=0)),
             "ARI": both(a.mean(), a.std(ddof=0)), "starts": str(len(s))}
            for (data, label), some in groups for s, a in [(some["test"], some["ari"])]
        ]  # fmt: skip
        shown.tables["mean and population standard deviation over random initial values"] = pd.DataFrame(lines)
        return shown
