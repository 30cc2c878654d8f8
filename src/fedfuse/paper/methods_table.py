"""Tables of methods: test score, clusters, agreement with the truth and cost, means and spreads over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from fedfuse.methods import FPFC
from fedfuse.paper.experiment import Experiment, Shown, both, count, floats, printed
from fedfuse.paper.setup import AUTO, CLUSTERING, OURS, PAPER, PRINTED, PaperSetup
from fedfuse.paper.trial import Trial, training_cost
from fedfuse.studies.comparison import NOTHING

NUMBERS = ("test", "num", "ari", "cost", "cost_with_tuning", "rounds", "seconds")


@dataclass(frozen=True)
class Part:
    """One data set of a table, and by which letters its columns begin among the printed numbers."""

    data: str
    prefix: str = ""
    metric: str = "acc"


@dataclass(frozen=True)
class MethodsTable(Experiment):
    """All methods on some data sets.

    Attributes
    ----------
    parts
        The data sets.
    numbers
        The paper's, as CSV.
    lam
        For the paper's own loop, where it is not the one of Table 1.
    """

    parts: tuple[Part, ...]
    numbers: str
    lam: Mapping[str, float] = field(default_factory=dict)

    @property
    def data(self) -> tuple[str, ...]:
        return tuple(part.data for part in self.parts)

    @property
    def printed(self) -> pd.DataFrame:
        """The paper's numbers: scores in percent, their spread as a fraction."""
        return printed(self.numbers)

    def trials(self, setup: PaperSetup) -> list[Trial]:
        return [trial for name in self.datasets(setup) for trial in self._of(setup, name).values()]

    def _of(self, setup: PaperSetup, name: str) -> dict[tuple[str, int], Trial]:
        found = {}
        for label in (*PAPER, *OURS):
            method, settings = setup.entry(name, label)
            if label == "fpfc" and name in self.lam and isinstance(method, FPFC):
                method = replace(method, lam=self.lam[name])
            for seed in setup.seeds:
                found[label, seed] = setup.trial(name, label, method, settings, seed)
        return found

    def show(self, setup: PaperSetup) -> Shown:
        shown = Shown()
        for part in self.parts:
            if not setup.here(part.data):
                continue
            runs = pd.DataFrame([_row(label, t) for (label, _), t in self._of(setup, part.data).items()])
            table, theirs = _means(runs), _theirs(self.printed, part)
            data = setup.words(part.data)
            shown.tables[data] = _readable(table, theirs, part, many=len(setup.seeds) > 1)
            shown.numbers[f"{part.data.replace(':', '-')}.csv"] = table.join(theirs, how="left").reset_index()
            notes = verdict(table, theirs, part.metric, against=setup.size == "full")
            if setup.size == "full":
                notes += grouping(shown.tables[data])
            shown.notes += [f"{data}: {note}" for note in notes]
        return shown


def _row(label: str, trial: Trial) -> dict[str, Any]:
    result = trial.result()
    groups = label in CLUSTERING
    return {
        "method": label,
        "seed": trial.seed,
        "test": result.score("test"),
        "num": float(result.n_clusters) if groups else np.nan,
        "ari": np.nan if result.ari is None or not groups else result.ari,
        "cost": float(training_cost(result)),
        "cost_with_tuning": float(result.cost_floats),
        "rounds": float(result.rounds),
        "seconds": result.seconds,
    }


def _means(runs: pd.DataFrame) -> pd.DataFrame:
    """Return means and population standard deviations over seeds."""
    groups = runs.groupby("method", sort=False)[list(NUMBERS)]
    both_: pd.DataFrame = pd.concat([groups.mean(), groups.std(ddof=0).add_suffix("_sd")], axis=1)
    return both_


def _theirs(table: pd.DataFrame, part: Part) -> pd.DataFrame:
    """Return the printed numbers of a data set by our names; scores as fractions, and their spread as the paper's."""
    own = table[[name for name in table.columns if name.startswith(part.prefix)]]
    own = own.rename(columns=lambda name: name.removeprefix(part.prefix)).rename(
        columns={part.metric: "test", f"{part.metric}_sd": "test_sd"}
    )
    names = {theirs: ours for ours, theirs in PRINTED.items()}
    found: pd.DataFrame = own.rename(index=names).astype(float).copy()
    if part.metric == "acc":
        found["test"] /= 100
    found.columns = [f"printed_{name}" for name in found.columns]
    return found


def _readable(table: pd.DataFrame, theirs: pd.DataFrame, part: Part, *, many: bool) -> pd.DataFrame:
    scale = 100 if part.metric == "acc" else 1
    rows = []
    for name, ours in table.iterrows():
        label = str(name)
        paper = theirs.loc[label] if label in theirs.index else pd.Series(np.nan, theirs.columns)
        cost = paper.get("printed_cost", np.nan)
        row = {
            "method": PRINTED[label],
            "accuracy %" if scale == 100 else "RMSE": _spread(scale * ours["test"], scale * ours["test_sd"], many),
            "printed": _spread(scale * paper["printed_test"], scale * paper["printed_test_sd"], True),
            "clusters": count(ours["num"], ours["num_sd"] if many else None),
            "printed ": count(paper["printed_num"], paper["printed_num_sd"]),
            "ARI": _spread(ours["ari"], ours["ari_sd"], many),
            "printed  ": _spread(paper["printed_ari"], paper["printed_ari_sd"], True),
            "floats sent": floats(ours["cost"]),
        }
        if "printed_cost" in theirs:
            row["printed   "] = floats(cost)
        rows.append({**row, "rounds": f"{ours['rounds']:,.0f}", "seconds": f"{ours['seconds']:,.1f}"})
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame


GROUPING = "clusters or ARI differ from print: "


def grouping(table: pd.DataFrame) -> list[str]:
    """Say which methods of a readable table have other clusters than printed, or another ARI; nothing where none has.

    By what can be read, rounded as it is, so that it can be said of a page as well.
    """
    columns = [list(table[name]) for name in (*table.columns[:1], *table.columns[3:7])]
    some = []
    for method, num, num_printed, ari, ari_printed in zip(*columns, strict=True):
        if NOTHING not in (num, num_printed) and (_mean(num), _mean(ari)) != (_mean(num_printed), _mean(ari_printed)):
            clusters = f"{num.split(' ±')[0]} clusters, printed {num_printed.split(' ±')[0]}"
            some.append(f"{method} ({clusters}; ARI {_mean(ari):.2f}, printed {_mean(ari_printed):.2f})")
    return [GROUPING + ", ".join(some)] if some else []


def _mean(cell: str) -> float:
    """Read what stands before a spread."""
    return np.nan if cell == NOTHING else float(cell.split(" ±")[0].replace(",", ""))


def _spread(mean: float, sd: float, many: bool) -> str:
    return both(mean, sd if many else None) if np.isfinite(mean) else NOTHING


def verdict(table: pd.DataFrame, theirs: pd.DataFrame, metric: str, *, against: bool = True) -> list[str]:
    """Say how FPFC stands among the others, what it costs, and (``against``) who is better or worse than printed."""
    better = 1.0 if metric == "acc" else -1.0
    scale, unit = (100, "points") if metric == "acc" else (1, "RMSE")
    field_ = table.drop(index="oracle")["test"]
    best = str((better * field_).idxmax())
    gap = scale * better * (field_[best] - field_[AUTO])
    place = "the best of all that do not know the groups"
    if best != AUTO:
        far = f"{gap:.2f} {unit} behind" if gap >= 0.005 else "level with"
        place = f"{far} {PRINTED[best]}, the best of all that do not know the groups"
    ours = table.loc[AUTO]
    words = [f"FPFC auto: {both(scale * ours['test'])}, {place}; ARI {both(ours['ari'])}"]
    if "printed_cost" in theirs:
        share = ours["cost"] / theirs.loc["fpfc", "printed_cost"]
        words[0] += f"; {share:.2f} of the printed FPFC's floats"
    if not against:
        return words
    gaps = better * scale * (table["test"].reindex(theirs.index) - theirs["printed_test"])
    for label, which in (("better", 1), ("worse", -1)):
        some = [f"{PRINTED[str(k)]} ({abs(v):.2f})" for k, v in gaps.items() if which * v > 0.005]
        if some:
            words.append(f"{label} here than printed, in {unit}: {', '.join(some)}")
    return words
