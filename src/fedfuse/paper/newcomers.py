"""Table 3: a fifth of the devices joins when training is over, and every method has its own rule for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedfuse.paper.experiment import Experiment, Shown, both, printed
from fedfuse.paper.setup import AUTO, PAPER, PRINTED, PaperSetup
from fedfuse.paper.trial import Trial
from fedfuse.studies.comparison import NOTHING

METHODS = (*PAPER, AUTO)


def ranks(scores: pd.DataFrame) -> pd.Series[float]:
    """Return the mean over data sets (columns) of each method's rank, 1 for the best; equals share theirs.

    >>> ranks(pd.DataFrame({"a": [0.9, 0.8], "b": [0.5, 0.6]}, index=["x", "y"])).to_dict()
    {'x': 1.5, 'y': 1.5}
    """
    mean: pd.Series[float] = scores.rank(ascending=False).mean(axis=1)
    return mean


@dataclass(frozen=True)
class NewcomersTable(Experiment):
    """All methods on data sets from which a share of every group is kept out of training.

    Attributes
    ----------
    columns
        Data sets, by the letters with which their columns begin among the printed numbers.
    numbers
        The paper's, as CSV.
    share
        Of newcomers.
    """

    columns: tuple[tuple[str, str], ...]
    numbers: str
    share: float = 0.2

    @property
    def data(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    @property
    def printed(self) -> pd.DataFrame:
        return printed(self.numbers)

    def trials(self, setup: PaperSetup) -> list[Trial]:
        return [trial for name in self.datasets(setup) for trial in self._of(setup, name).values()]

    def _of(self, setup: PaperSetup, name: str) -> dict[tuple[str, int], Trial]:
        # one seed for networks: a run of one takes as long as all others together
        seeds = setup.seeds[:1] if setup.recipe(name).kind == "images" else setup.seeds
        return {
            (label, seed): setup.trial(name, label, *setup.entry(name, label), seed, newcomers=self.share)
            for label in METHODS
            for seed in seeds
        }

    def show(self, setup: PaperSetup) -> Shown:
        rows = [
            _row(label, name, trial)
            for name in self.datasets(setup)
            for (label, _), trial in self._of(setup, name).items()
        ]
        runs = pd.DataFrame(rows)
        means = runs.groupby(["method", "data"], sort=False)[["test", "sd", "right", "trained"]].mean().unstack("data")
        means = means.reindex(METHODS)
        ours, theirs = ranks(means["test"]), self.printed
        shown = Shown(numbers={"newcomers.csv": runs})
        lines = []
        for label in METHODS:
            line: dict[str, Any] = {"method": PRINTED[label]}
            paper = theirs.loc[PRINTED[label]] if PRINTED[label] in theirs.index else None
            for place, (name, prefix) in enumerate(self.columns):
                if not setup.here(name):
                    continue
                gap = " " * place  # headings must differ
                line[f"{setup.words(name)} %"] = both(100 * means["test", name][label], 100 * means["sd", name][label])
                line[f"printed{gap}"] = _printed(paper, prefix)
            lines.append({**line, "rank": f"{ours[label]:.2f}", "printed rank": _rank(paper)})
        shown.tables["test accuracy of newcomers, mean and standard deviation over them"] = pd.DataFrame(lines)
        shown.notes = self._notes(means, ours)
        return shown

    def _notes(self, means: pd.DataFrame, mine: pd.Series[float]) -> list[str]:
        first = [PRINTED[str(label)] for label in mine.index[mine == mine.min()]]
        behind = "" if PRINTED[AUTO] in first else f"; FPFC auto has {mine[AUTO]:.2f}"
        words = [f"first by average rank: {', '.join(first)} ({mine.min():.2f}){behind}"]
        for name in means["test"].columns:
            ahead = 100 * (means["test", name][AUTO] - means["test", name]["local"])
            right, trained = means["right", name][AUTO], means["trained", name][AUTO]
            share = f"{100 * right:.0f} % of its newcomers come to the cluster of their group"
            words.append(
                f"{name}: FPFC auto is {ahead:+.2f} points from LOCAL; {share}; devices in training have "
                f"{100 * trained:.2f}"
            )
        return words


def _printed(paper: pd.Series[float] | None, prefix: str) -> str:
    return NOTHING if paper is None else both(paper[f"{prefix}acc"], 100 * paper[f"{prefix}sd"])


def _rank(paper: pd.Series[float] | None) -> str:
    return NOTHING if paper is None else f"{paper['rank']:.2f}"


def _row(label: str, name: str, trial: Trial) -> dict[str, Any]:
    joined, result, federation = trial.joined(), trial.result(), trial.data()
    scores = np.array([n["test"] for n in joined["newcomers"]], dtype=float)
    groups = dict(zip(federation.names, federation.truth.tolist() if federation.truth is not None else [], strict=True))
    truth = np.array([groups[who] for who in result.profile.names])
    home = {g: int(np.bincount(result.labels[truth == g]).argmax()) for g in np.unique(truth)}
    right = [n["cluster"] == home.get(groups[n["name"]]) for n in joined["newcomers"]]
    return {
        "method": label,
        "data": name,
        "seed": trial.seed,
        "test": float(np.nanmean(scores)),
        "sd": float(np.nanstd(scores)),
        "right": float(np.mean(right)),
        "trained": result.score("test"),
        "exchanges": max(n["iterations"] for n in joined["newcomers"]),
    }
