"""Lambda: the two strategies that choose it (Table 2 and its figure), and solution paths along it (Figure 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from fedfuse.grouping.lambda_path import LambdaPath, Strategy
from fedfuse.methods.fpfc import BaseFPFC
from fedfuse.paper import figures
from fedfuse.paper.experiment import Experiment, Shown, printed
from fedfuse.paper.setup import PaperSetup
from fedfuse.paper.trial import Trial
from fedfuse.studies.tune import Tuning

UNITS = {"s": 1.0, "h": 3600.0}
ORDER: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True)
class TuningTable(Experiment):
    """Warm-up against separate tuning: lambda chosen, time taken.

    Attributes
    ----------
    grids
        Lambdas, by data set; ``quick`` has those of a quick look.
    numbers
        The paper's, as CSV.
    """

    grids: Mapping[str, tuple[float, ...]]
    quick: Mapping[str, tuple[float, ...]]
    numbers: str
    show_as: Literal["table", "figure"] = "table"

    @property
    def data(self) -> tuple[str, ...]:
        return tuple(self.grids)

    @property
    def printed(self) -> pd.DataFrame:
        table = printed(self.numbers, "data")
        table["seconds"] = table["time"] * table["unit"].map(UNITS)
        return table

    def trials(self, setup: PaperSetup) -> list[Trial]:
        return [trial for name in self.datasets(setup) for trial in self._of(setup, name).values()]

    def _of(self, setup: PaperSetup, name: str) -> dict[Strategy, Trial]:
        method, settings = setup.entry(name, "fpfc", figure=True)
        if not isinstance(method, BaseFPFC):
            raise AssertionError("lambda is FPFC's")
        grid = (self.quick if setup.scale.few else self.grids)[name]
        tuned: dict[Strategy, LambdaPath] = {
            way: LambdaPath(inner=replace(method, lam=0.0), strategy=way, grid=grid, limit=settings["rounds"])
            for way in ORDER
        }
        return {way: setup.trial(name, f"FPFC ({way})", tuned[way], settings) for way in ORDER}

    def show(self, setup: PaperSetup) -> Shown:
        tunings = {
            setup.words(name): {way: Tuning.of(t.result()) for way, t in self._of(setup, name).items()}
            for name in self.datasets(setup)
        }
        lines: list[dict[str, Any]] = []
        notes = []
        for name, (data, found) in zip(self.datasets(setup), tunings.items(), strict=True):
            paper = self.printed[self.printed.index == name].set_index("strategy")
            for way, tuning in found.items():
                lines.append({
                    "data": data, "strategy": way, "lambda": f"{tuning.lam:g}",
                    "printed": f"{paper.loc[way, 'lambda']:g}", "seconds": f"{tuning.seconds:,.1f}",
                    "printed ": f"{paper.loc[way, 'time']:g} {paper.loc[way, 'unit']}",
                    "rounds": f"{int(tuning.table['rounds'].sum()):,}",
                    "validation": f"{tuning.result.score('validation'):.4f}",
                })  # fmt: skip
            ours = found["separate"].seconds / found["warmup"].seconds
            theirs = float(paper.loc["separate", "seconds"] / paper.loc["warmup", "seconds"])
            notes.append(f"{data}: separate tuning takes {ours:.1f} times as long as warm-up; printed: {theirs:.1f}")
        table = pd.DataFrame(lines)
        shown = Shown({"lambda chosen and time until it was": table}, {"tuning.csv": table}, notes=notes)
        if self.show_as == "figure":
            shown.draw = lambda: figures.tuning(tunings)
        return shown


@dataclass(frozen=True)
class Paths(Experiment):
    """The toy example under four penalties: no runs, a few seconds of arithmetic."""

    points: int = 41

    @property
    def data(self) -> tuple[str, ...]:
        return ()

    def trials(self, setup: PaperSetup) -> list[Trial]:
        return []

    def show(self, setup: PaperSetup) -> Shown:
        from fedfuse.report.plots import plot_figure1
        from fedfuse.studies.solution_path import figure_1

        paths = figure_1(points=self.points)
        lines, numbers = [], []
        for path in paths:
            joined = [(a, b) for n, a, b in path.spans() if n == 2 and b > a]
            one = [a for n, a, _ in path.spans() if n == 1]
            lines.append({
                "penalty": path.penalty,
                "two clusters": f"{joined[0][0]:.3g} to {joined[-1][1]:.3g}" if joined else "never",
                "one cluster from": f"{one[0]:.3g}" if one else "never",
                "best ARI": f"{np.nanmax(path.ari):.2f}",
            })  # fmt: skip
            numbers.append(
                pd.DataFrame({"penalty": path.penalty, "lam": path.grid, "clusters": path.n_clusters, "ari": path.ari})
            )
        shown = Shown({"where devices meet along lambda": pd.DataFrame(lines)})
        shown.numbers = {"paths.csv": pd.concat(numbers, ignore_index=True)}
        shown.draw = lambda: plot_figure1(paths)
        shown.notes = ["the paper reads off its figure: SCAD has the two groups from about 0.4 on, l1 one at 0.08"]
        return shown
