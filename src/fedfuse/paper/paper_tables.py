"""Tables of the paper: methods (1, E.1 to E.4), choices of lambda (2) and newcomers (3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, get_args

import numpy as np
import pandas as pd

from fedfuse import Result
from fedfuse.grouping.lambda_path import LambdaPath, Strategy
from fedfuse.paper import figures
from fedfuse.paper.experiment import Experiment, Findings, both, count, score_heading
from fedfuse.paper.setup import DEFAULT, PAPER, PRINTED, PaperSetup
from fedfuse.paper.trials import Trial
from fedfuse.report.explanations import tried_lambdas
from fedfuse.studies.comparison import NOTHING, floats, mean_and_sd

MEASURES = ("test", "num", "ari", "cost", "rounds", "seconds")
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
MIN_GAP = 0.005  # Smaller differences vanish when scores are rounded to two places.


class Variant(NamedTuple):
    """A method of the tables with other fields or rounds."""

    method: str
    fields: Mapping[str, Any] = MappingProxyType({})
    rounds: int | None = None


@dataclass(frozen=True, kw_only=True)
class MethodsTable(Experiment):
    """Methods and variants of them: means and population deviations over seeds, beside printed rows."""

    rows: Mapping[str, Mapping[str, Variant]]  # by data set and title
    lam: Mapping[str, float] = field(default_factory=dict)  # of the paper's loop, where it is not that of Table 1

    keys: ClassVar[tuple[str, ...]] = ("method", "seed")

    def runs(self, setup: PaperSetup, name: str) -> dict[tuple[str, int], Trial]:
        found, own = {}, {"lam": self.lam[name]} if name in self.lam else {}
        for title, (label, fields, rounds) in self.rows[name].items():
            method, settings = setup.entry(name, label, {**own, **fields} if label == "fpfc" else fields)
            settings |= {"rounds": rounds} if rounds and setup.size == "full" else {}
            for seed in setup.scale.seeds:
                found[title, seed] = setup.trial(name, title, method, settings, seed)
        return found

    def findings(self, setup: PaperSetup) -> Findings:
        found, choices = Findings(), _choices(self.results(setup))
        for _, runs in self.tables(setup)[0].groupby("data", sort=False):
            name, data, metric = runs[["name", "data", "metric"]].iloc[0]
            table, printed = mean_and_sd(runs, ["method"], MEASURES), self.printed_measures(name)
            theirs = printed.reindex([row.method for row in self.rows[name].values()]).set_axis(table.index)
            readable = _readable(table, theirs, metric, many=len(setup.scale.seeds) > 1)
            found.tables[data] = readable.join(choices.loc[name], on="method").replace({"method": PRINTED})
            found.numbers[f"{name.replace(':', '-')}.csv"] = table.join(theirs).reset_index()
            if DEFAULT in table.index:
                found.notes.append(f"{data}: {standing(table, theirs, metric)}")
        return found

    def finished_rows(self, setup: PaperSetup) -> dict[str, pd.DataFrame]:
        done = {}
        for name in self.datasets(setup):
            runs = self.runs(setup, name)
            titles = [t for t in self.rows[name] if all(run.done for (title, _), run in runs.items() if title == t)]
            done[name] = {title: self.rows[name][title] for title in titles}
        some = {name: rows for name, rows in done.items() if rows}
        return replace(self, data=tuple(some), rows=some).findings(setup).tables if some else {}

    def printed_measures(self, name: str) -> pd.DataFrame:
        """Return the printed numbers of a data set by our names: scores as fractions, their spread as printed."""
        own = self.printed(name).rename(index={theirs: ours for ours, theirs in PRINTED.items()}).astype(float)
        own = own.rename(columns={"acc": "test", "acc_sd": "test_sd", "rmse": "test", "rmse_sd": "test_sd"})
        if name != "housing-bodyfat":
            own["test"] /= 100
        found: pd.DataFrame = own.add_prefix("printed_")
        return found


def _choices(results: Iterable[tuple[str, Any, Trial, Result]]) -> pd.DataFrame:
    """Write, by data set and title, the lambdas of all seeds and between which lengths of theta their groups part."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for key, own in groupby(results, key=lambda row: (row[0], row[1][0])):
        runs = [result for *_, result in own]
        if any(run.lam is None for run in runs):
            found[key] = {"lambda": NOTHING, "gap in theta": NOTHING}
            continue
        below, above = np.array([run.kept.get("gap", (np.nan, np.nan)) for run in runs]).T
        gap = f"{below.max():.2g} to {above.min():.3g}" if below.max() < above.min() else "none in common"
        if (below == above).all():  # nu is given
            gap = f"nu {below[0]:g}"
        found[key] = {"lambda": ", ".join(dict.fromkeys(f"{run.lam:g}" for run in runs)), "gap in theta": gap}
    table: pd.DataFrame = pd.DataFrame(found).T
    return table


def _readable(table: pd.DataFrame, theirs: pd.DataFrame, metric: str, *, many: bool) -> pd.DataFrame:
    heading, scale = score_heading(metric)
    table, rows = table.join(theirs), []
    if not many:
        table[["test_sd", "num_sd", "ari_sd"]] = np.nan
    for label, row in table.iterrows():
        cells = {
            "method": label,
            heading: both(scale * row["test"], scale * row["test_sd"]),
            "printed": both(scale * row["printed_test"], scale * row["printed_test_sd"]),
            "clusters": count(row["num"], row["num_sd"] if many else None),
            "printed ": count(row["printed_num"], row["printed_num_sd"]),
            "ARI": both(row["ari"], row["ari_sd"]),
            "printed  ": both(row["printed_ari"], row["printed_ari_sd"]),
            "floats sent": floats(row["cost"]),
            **({"printed   ": floats(row["printed_cost"])} if "printed_cost" in theirs else {}),
        }
        rows.append({**cells, "rounds": f"{row['rounds']:,.0f}", "seconds": f"{row['seconds']:,.1f}"})
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame


def standing(table: pd.DataFrame, theirs: pd.DataFrame, metric: str) -> str:
    """Say how the fusion tree stands among the others, and what it costs."""
    (scale, better, unit) = (100, 1.0, "points") if metric == "accuracy" else (1, -1.0, "RMSE")
    scores, ours = table.drop(index="oracle", errors="ignore")["test"], table.loc[DEFAULT]
    best = str((better * scores).idxmax())
    place = "the best of all that do not know the groups"
    if best != DEFAULT:
        gap = scale * better * (scores[best] - scores[DEFAULT])
        behind = f"{gap:.2f} {unit} behind" if gap >= MIN_GAP else "level with"
        place = f"{behind} {PRINTED.get(best, best)}, {place}"
    words = f"{PRINTED[DEFAULT]}: {both(scale * ours['test'])}, {place}; ARI {both(ours['ari'])}"
    if "printed_cost" in theirs:
        words += f"; {ours['cost'] / theirs.loc['fpfc', 'printed_cost']:.2f} of the printed FPFC's floats"
    return words


@dataclass(frozen=True, kw_only=True)
class TuningTable(Experiment):
    """Warm-up against separate tuning: lambda chosen and time taken, as a table or as a figure."""

    grids: Mapping[str, tuple[float, ...]]  # lambdas by data set; a quick look has every other one

    def runs(self, setup: PaperSetup, name: str) -> dict[Strategy, Trial]:
        inner, settings = setup.entry(name, "fpfc", {"lam": 0.0, "nu": None}, figure=True)
        grid, found, limit = self.grids[name][:: 2 if setup.scale.few else 1], {}, settings["rounds"]
        settings |= {"rounds": limit * (len(grid) + 1)}  # The strategy itself ends the run.
        for way in STRATEGIES:
            path = LambdaPath(inner=inner, strategy=way, grid=grid, limit=limit)  # type: ignore[arg-type]
            found[way] = setup.trial(name, f"FPFC ({way})", path, settings)
        return found

    def findings(self, setup: PaperSetup) -> Findings:
        tunings: dict[str, dict[Strategy, Result]] = {name: {} for name in self.datasets(setup)}
        for name, way, _, result in self.results(setup):
            tunings[name][way] = result
        printed = self.printed().set_index("data", append=True)
        lines = []
        for name, found in tunings.items():
            for way, result in found.items():
                paper, tried = printed.loc[way, name], tried_lambdas(result)
                assert tried is not None
                lines.append({
                    "data": setup.words(name), "strategy": way, "lambda": f"{result.lam:g}",
                    "printed": f"{paper['lambda']:g}", "seconds": f"{tried['seconds'].sum():,.1f}",
                    "printed ": f"{paper['time']:g} {paper['unit']}",
                    "rounds": f"{int(tried['rounds'].sum()):,}",
                    "validation": f"{result.score('validation'):.4f}",
                })  # fmt: skip
        table, title = pd.DataFrame(lines), "lambda chosen and time until it was"
        shown = {setup.words(name): found for name, found in tunings.items()}
        return Findings({title: table}, {"tuning.csv": table}, lambda: figures.tuning(shown))


@dataclass(frozen=True, kw_only=True)
class NewcomersTable(Experiment):
    """Newcomers under all methods: a share of every group joins after training, by the rule of each method."""

    share: float = 0.2

    def runs(self, setup: PaperSetup, name: str) -> dict[tuple[str, int], Trial]:
        # Networks have one seed: a run of one takes as long as all others together.
        seeds = setup.scale.seeds[:1] if setup.recipe(name).kind == "images" else setup.scale.seeds
        return {
            (label, seed): setup.trial(name, label, *setup.entry(name, label), seed, newcomers=self.share)
            for label in (*PAPER, DEFAULT)
            for seed in seeds
        }

    def findings(self, setup: PaperSetup) -> Findings:
        runs = pd.DataFrame([
            {"method": label, "data": name, "seed": seed, **_admission(trial, result)}
            for name, (label, seed), trial, result in self.results(setup)
        ])  # fmt: skip
        means = runs.groupby(["method", "data"], sort=False)[["test", "sd", "right", "trained"]].mean().unstack("data")
        means = means.reindex((*PAPER, DEFAULT))
        ours, lines = ranks(means["test"]), []
        for label in means.index:
            line = {"method": PRINTED[label]}
            for place, name in enumerate(self.datasets(setup)):
                paper = self.printed(name).reindex([PRINTED[label]]).iloc[0]
                line[f"{setup.words(name)} %"] = both(100 * means["test", name][label], 100 * means["sd", name][label])
                line["printed" + " " * place] = both(paper["acc"], 100 * paper["sd"])  # headings must differ
            theirs = self.printed()["rank"].get(PRINTED[label], np.nan)
            lines.append({**line, "rank": f"{ours[label]:.2f}", "printed rank": both(theirs)})
        title = "test accuracy of newcomers, mean and standard deviation over them"
        return Findings({title: pd.DataFrame(lines)}, {"newcomers.csv": runs}, notes=list(_newcomer_notes(means)))


def ranks(scores: pd.DataFrame) -> pd.Series[float]:
    """Return the mean over data sets (columns) of each method's rank, 1 for the best; equals share theirs.

    >>> ranks(pd.DataFrame({"a": [0.9, 0.8], "b": [0.5, 0.6]}, index=["x", "y"])).to_dict()
    {'x': 1.5, 'y': 1.5}
    """
    mean: pd.Series[float] = scores.rank(ascending=False).mean(axis=1)
    return mean


def _admission(trial: Trial, result: Result) -> dict[str, Any]:
    """Return scores of newcomers, and how many of them came to the cluster that most of their group are in."""
    newcomers, federation = trial.joined()["newcomers"], trial.data()
    scores = np.array([each["test"] for each in newcomers], dtype=float)
    groups = dict(zip(federation.names, np.asarray(federation.truth).tolist(), strict=True))
    truth = np.array([groups[device] for device in result.profile.names])
    home = {g: int(np.bincount(result.labels[truth == g]).argmax()) for g in np.unique(truth)}
    return {
        "test": float(np.nanmean(scores)),
        "sd": float(np.nanstd(scores)),
        "right": float(np.mean([each["cluster"] == home.get(groups[each["name"]]) for each in newcomers])),
        "trained": result.score("test"),
        "exchanges": max(each["iterations"] for each in newcomers),
    }


def _newcomer_notes(means: pd.DataFrame) -> Iterator[str]:
    for name in means["test"].columns:
        test, right, trained = (100 * means[column, name] for column in ("test", "right", "trained"))
        ahead = f"{PRINTED[DEFAULT]} is {test[DEFAULT] - test['local']:+.2f} points from LOCAL"
        share = f"{right[DEFAULT]:.0f} % of its newcomers join their own group"
        yield f"{name}: {ahead}; {share}; devices in training have {trained[DEFAULT]:.2f}"
