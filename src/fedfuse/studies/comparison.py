"""The outcome of a comparison: a table with one row per method, paired tests against the best, and its text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd

from fedfuse._version import __version__
from fedfuse.core.metrics import METRICS
from fedfuse.core.standard_errors import holm
from fedfuse.errors import FedfuseError
from fedfuse.grouping.refit import Oracle
from fedfuse.results.formatting import compact, cut_short, data_size, decimals
from fedfuse.results.result import Result
from fedfuse.studies.jobs import finished_run
from fedfuse.utils.files import atomic_write, without_nan, write_csv, write_json
from fedfuse.utils.lazy import load
from fedfuse.utils.typing import Floats

if TYPE_CHECKING:
    from fedfuse.studies.compare import Request

Run: TypeAlias = tuple[str, int]  # method and seed
NUMBERS = ("test", "n_clusters", "ari", "cost_floats", "rounds", "seconds")
SIGNIFICANCE_LEVEL = 0.05
NOTHING = "—"
NOT_DIFFERENT = "≈"


@dataclass(frozen=True)
class Comparison:
    """Methods side by side.

    Attributes
    ----------
    grouping
        The methods that form groups; number of groups and ARI are not shown for the others.
    results, errors
        The result of every run that succeeded, and the message of every run that failed, by (method, seed).
    same_devices
        Whether the devices are the same for all seeds, as those of a table are; if not, a seed draws new ones.
    oracles
        The methods that are given the true groups: an upper bound, never marked as best.
    """

    dataset: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    grouping: frozenset[str]
    results: dict[Run, Result]
    errors: dict[Run, str]
    same_devices: bool
    oracles: frozenset[str] = frozenset()

    @classmethod
    def of(cls, request: Request, outcomes: Mapping[Run, Result | str]) -> Comparison:
        """Build a comparison from the results, or error messages, of its runs; raise an error if all have failed."""
        results = {run: found for run in request.runs if isinstance(found := outcomes[run], Result)}
        errors = {run: found for run in request.runs if isinstance(found := outcomes[run], str)}
        if not results:
            (label, seed), message = next(iter(errors.items()))
            raise FedfuseError(f"all {len(errors)} runs failed; {label}, seed {seed}: {message}")
        methods = {label: entry.method for label, entry in request.methods.items()}
        grouping = frozenset(label for label, method in methods.items() if method.finds_groups)
        oracles = frozenset(label for label, method in methods.items() if isinstance(method, Oracle))
        # A named data set is drawn or cut anew by each seed; of a table, only the split changes.
        same = request.source is None or request.source["device"] is not None
        return cls(request.dataset, tuple(methods), request.seeds, grouping, results, errors, same, oracles)

    @classmethod
    def load(cls, directory: str | PathLike[str]) -> Comparison:
        """Read a comparison from its directory, as far as it is finished."""
        request: Request = load("fedfuse.studies.compare:Request").load(Path(directory))
        return cls.of(request, {run: finished_run(request.run_directory(directory, run)) for run in request.runs})

    @property
    def contestants(self) -> tuple[str, ...]:
        """The methods that are not given the true groups; all of them, where there are no others."""
        return tuple(method for method in self.methods if method not in self.oracles) or self.methods

    @property
    def metric(self) -> str:
        """What all runs were scored by."""
        return next(iter(self.results.values())).profile.metric

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per run: its numbers, or its error."""
        rows = [
            {"method": method, "seed": seed, **self._numbers(method, seed), "error": self.errors.get((method, seed))}
            for method in self.methods
            for seed in self.seeds
        ]
        table: pd.DataFrame = pd.DataFrame(rows)
        return table

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Every device's test score: ``method, seed, device, test``."""
        parts = [
            pd.DataFrame({"method": method, "seed": seed, "device": r.profile.names, "test": r.scores["test"]})
            for (method, seed), r in self.results.items()
        ]
        scores: pd.DataFrame = pd.concat(parts, ignore_index=True)
        return scores

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per method: means and population standard deviations (``…_sd``) over seeds, and the comparison.

        ``runs`` is the number of seeds that succeeded. ``rounds`` counts those of a refit, too. ``best`` marks the
        best mean of methods that are not given the groups, ``p`` is the p-value of the paired test against it
        (Wilcoxon's signed ranks over ``pairs`` devices, two-sided), ``p_holm`` the same with Holm's correction for
        testing all other methods.
        """
        both, names = mean_and_sd(self.runs, ["method"], NUMBERS), [name for n in NUMBERS for name in (n, f"{n}_sd")]
        table: pd.DataFrame = both[names].reindex(self.methods).rename_axis("method")
        table.insert(0, "runs", [sum((m, s) in self.results for s in self.seeds) for m in self.methods])
        best = self._best(table)
        table["best"] = (table["test"] == table["test"].get(best, np.nan)) & table.index.isin(self.contestants)
        tests = {method: self._paired(method, best) for method in self.methods if best and method != best}
        table["pairs"] = pd.array([tests.get(m, (None, 0))[0] for m in self.methods], dtype="Int64")
        table["p"] = [tests.get(m, (0, np.nan))[1] for m in self.methods]
        table["p_holm"] = holm(table["p"].to_numpy())
        first = {label: text for (label, _), text in reversed(self.errors.items())}
        table["error"] = [first.get(method) for method in self.methods]
        return table

    def summary(self) -> dict[str, Any]:
        """Return all numbers as JSON-ready data: what ``table.json`` holds."""
        methods, runs = (t.astype(object).where(t.notna(), None) for t in (self.table.reset_index(), self.runs))
        summary = {
            "dataset": self.dataset,
            "metric": self.metric,
            "seeds": list(self.seeds),
            "methods": methods.to_dict("records"),
            "paired_test": {
                "test": "Wilcoxon signed-rank, two-sided, against the best mean",
                "correction": "Holm",
                "level": SIGNIFICANCE_LEVEL,
                "pairs": "devices, averaged over seeds" if self.same_devices else "devices of all seeds",
            },
            "runs": runs.to_dict("records"),
            "version": __version__,
        }
        return dict(without_nan(summary))

    def to_markdown(self) -> str:
        """Return the table in Markdown, with its footnotes."""
        heads, *rows = cells(self)
        for row, best in zip(rows, self.table["best"], strict=True):
            if best:
                row[:2] = [f"**{cell}**" for cell in row[:2]]
        rule = ["---", *["---:"] * (len(heads) - 1)]
        table = [f"| {' | '.join(row)} |" for row in (heads, rule, *rows)]
        return "\n".join([*table, "", *(f"{note}  " for note in footnotes(self))]).rstrip() + "\n"

    def save(self, directory: str | PathLike[str]) -> None:
        """Write ``table.csv``, ``table.json``, ``table.md`` and ``scores.csv``."""
        path = Path(directory)
        write_csv(path / "scores.csv", self.scores)
        write_csv(path / "table.csv", self.table, index=True)
        with atomic_write(path / "table.md") as file:
            file.write(self.to_markdown().encode())
        write_json(path / "table.json", self.summary())

    def __repr__(self) -> str:
        rows = cells(self)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)
        return "\n".join([*lines, *footnotes(self)])

    _repr_markdown_ = to_markdown

    def _numbers(self, method: str, seed: int) -> dict[str, float]:
        result = self.results.get((method, seed))
        if result is None:
            return dict.fromkeys(NUMBERS, np.nan)
        groups = method in self.grouping
        return {
            "test": result.score("test"),
            "n_clusters": float(result.n_clusters) if groups else np.nan,
            "ari": np.nan if result.ari is None or not groups else result.ari,
            "cost_floats": float(result.cost_floats),
            "rounds": float(result.rounds),
            "seconds": round(result.seconds, 3),
        }

    def _best(self, table: pd.DataFrame) -> str | None:
        """Return the method with the best mean, of those that succeeded most often: seeds are not equally hard."""
        table = table.loc[list(self.contestants)]
        fair = table["test"][table["runs"] == table["runs"].max()].dropna()
        if fair.empty:
            return None
        return str(fair.idxmax() if METRICS[self.metric].greater_is_better else fair.idxmin())

    def _paired(self, method: str, best: str | None) -> tuple[int, float]:
        """Return the number of pairs and the p-value of a method's device scores against the best one's."""
        scores = self.scores[self.scores["method"].isin([method, best])]
        pairs = scores.pivot_table(index=["seed", "device"], columns="method", values="test").dropna()
        if method not in pairs or best not in pairs:
            return 0, np.nan
        if self.same_devices:  # Scores of one device under two seeds are not independent.
            pairs = pairs.groupby("device").mean()
        differences = (pairs[method] - pairs[best]).to_numpy(dtype=np.float64)
        return len(differences), wilcoxon_p(differences)


def mean_and_sd(runs: pd.DataFrame, by: list[str], names: tuple[str, ...]) -> pd.DataFrame:
    """Return means and population standard deviations (``…_sd``) of these columns over the runs of each group."""
    groups = runs.groupby(by, sort=False)[list(names)]
    table: pd.DataFrame = pd.concat([groups.mean(), groups.std(ddof=0).add_suffix("_sd")], axis=1)
    return table


def wilcoxon_p(differences: Floats) -> float:
    """Return the two-sided p-value of Wilcoxon's signed ranks; 1 where nothing differs, nan without pairs.

    >>> wilcoxon_p(np.array([0.1, 0.2, 0.3, 0.4, 0.5])), wilcoxon_p(np.zeros(4))
    (0.0625, 1.0)
    """
    from scipy.stats import wilcoxon

    steps = np.round(differences, 12)  # Rounding errors are ties.
    if not steps.size:
        return float("nan")
    return float(wilcoxon(steps).pvalue) if steps.any() else 1.0


def _too_few_pairs(table: pd.DataFrame) -> bool:
    """Whether no method could differ significantly, even if every device preferred the best one."""
    tests = int(table["p"].count())
    # Holm's rule multiplies the smallest p-value by the number of tests.
    return tests > 0 and 2.0 ** (1 - int(table["pairs"].max())) * tests >= SIGNIFICANCE_LEVEL


def not_different(table: pd.DataFrame) -> pd.Series[bool]:
    """Return which methods do not differ significantly from the best: none where there are too few pairs to tell."""
    return table["p_holm"].ge(SIGNIFICANCE_LEVEL) & ~table["best"] & (not _too_few_pairs(table))


# -- the table as text: terminal, Markdown, report and `repr` show the same cells


def cells(found: Comparison) -> list[list[str]]:
    """Return headings and body of the table."""
    test = METRICS[found.metric].label + " %" * METRICS[found.metric].percent
    heads = ["method", test, "groups", "ARI", "numbers sent", "rounds", "seconds"]
    rows = zip(found.table.iterrows(), not_different(found.table), strict=True)
    table = [heads, *(_row(found, str(method), row, marked) for (method, row), marked in rows)]
    if found.table["ari"].notna().any():
        return table
    return [[*row[:3], *row[4:]] for row in table]  # The true groups are not known.


def _row(found: Comparison, method: str, row: pd.Series[float], marked: bool) -> list[str]:
    if not row["runs"]:
        return [method, "failed", *[NOTHING] * 5]
    many, groups_differ = len(found.seeds) > 1, bool(row["n_clusters_sd"])
    scale, places = (100.0, 2) if METRICS[found.metric].percent else (1.0, decimals(row["test"]))
    score = _spread(scale * row["test"], scale * row["test_sd"], places, many)
    return [
        method,
        f"{NOT_DIFFERENT} {score}" if marked else score,  # In front of it, so that the numbers are aligned.
        _spread(row["n_clusters"], row["n_clusters_sd"], 2 if groups_differ else 0, groups_differ),
        _spread(row["ari"], row["ari_sd"], 2, many),
        f"{compact(row['cost_floats'])} ({data_size(row['cost_floats'])})",
        f"{row['rounds']:,.0f}",
        f"{row['seconds']:,.1f}",
    ]


def footnotes(found: Comparison) -> list[str]:
    """Return what a reader must know: what the means are over, what the mark means, which runs failed."""
    n, seeds = len(found.seeds), f"seed {found.seeds[0]}"
    if n > 1:
        seeds = f"mean ± standard deviation over {n} seeds"
    notes = [f"{found.dataset}, {seeds}"]
    if found.table["p"].notna().any():
        notes.append(_verdict(found))
    if len(found.contestants) < len(found.methods):
        notes.append(f"{', '.join(sorted(found.oracles))}: given the true groups, as an upper bound")
    for method, row in found.table.iterrows():
        if short := [r.rounds for (name, _), r in found.results.items() if name == method and r.cut_short]:
            runs = "" if n == 1 else f", in {len(short)} of {n} runs"
            notes.append(f"{method} {cut_short(max(short))}{runs}: more rounds may improve its score")
        if row["runs"] < n:
            notes.append(f"{method}: {n - row['runs']} of {n} runs failed: {row['error']}")
    return notes


def _verdict(found: Comparison) -> str:
    """Say which methods differ from the best, and by which test."""
    table, scores = found.table, "device scores"
    if _too_few_pairs(table):
        return f"{int(table['pairs'].max())} devices are too few for a paired test of {len(table)} methods"
    if len(found.seeds) > 1:
        scores += f" {'averaged over' if found.same_devices else 'of all'} seeds"
    how = f"by Wilcoxon's signed-rank test on {scores} (two-sided, Holm-corrected, level {SIGNIFICANCE_LEVEL:g})"
    best = ", ".join(str(method) for method in table.index[table["best"]])
    if table["best"].all():
        return f"all have the same {scores} ({best})"
    if not not_different(table).any():
        return f"all others differ significantly from the best ({best}), {how}"
    return f"{NOT_DIFFERENT} not significantly different from the best ({best}), {how}"


def _spread(mean: float, sd: float, places: int, many: bool) -> str:
    """Write a mean, and where there are many runs their standard deviation.

    >>> _spread(11.0, 8.6409, 2, True), _spread(4.0, 0.0, 0, False), _spread(np.nan, np.nan, 2, True)
    ('11.00 ± 8.64', '4', '—')
    """
    if not np.isfinite(mean):
        return NOTHING
    return f"{mean:,.{places}f}" + (f" ± {sd:,.{places}f}" if many else "")


def floats(mean: float, sd: float | None = None) -> str:
    """Write a number of floats as the paper does.

    >>> floats(12120), floats(73261000.0), floats(1.8324e9, 2.7e5)
    ('12,120', '7.33e7', '1.83e9 ± 2.70e5')
    """
    if not np.isfinite(mean):
        return NOTHING
    numbers = [f"{x:,.0f}" if mean < 1e6 or not x else f"{x:.2e}" for x in ([mean] if sd is None else [mean, sd])]
    return re.sub(r"e\+0*", "e", " ± ".join(numbers))
