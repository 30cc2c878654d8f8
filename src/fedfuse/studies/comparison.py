"""What a comparison has found: one row per method, and whether its distance to the best means anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from fedfuse._version import __version__
from fedfuse.errors import FedfuseError
from fedfuse.grouping.refit import Oracle
from fedfuse.results.result import Result
from fedfuse.results.run_directory import Store
from fedfuse.studies.comparison_request import Request
from fedfuse.studies.comparison_tables import footnotes, markdown, plain_text
from fedfuse.studies.significance import ALPHA, holm, wilcoxon_p
from fedfuse.utils.files import atomic_write, without_nan, write_json
from fedfuse.utils.lazy import load

Run: TypeAlias = tuple[str, int]  # method and seed
NUMBERS = ("test", "n_clusters", "ari", "cost_floats", "rounds", "seconds")


@dataclass(frozen=True)
class Comparison:
    """Methods side by side.

    Attributes
    ----------
    dataset, methods, seeds
        What was compared.
    clustering
        The methods that form groups; of the others, number of groups and ARI would say nothing.
    results
        The result of every run that succeeded, by (method, seed).
    errors
        The message of every run that failed, by (method, seed).
    same_devices
        Whether the devices are the same for all seeds, as those of a table are; if not, a seed draws new ones.
    told
        The methods that are told the true groups: they show what can be had, and are not the best of anything.
    repeats
        What the runs of a method differ by: their seed, or their random start.
    """

    dataset: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    clustering: frozenset[str]
    results: dict[Run, Result]
    errors: dict[Run, str]
    same_devices: bool
    told: frozenset[str] = frozenset()
    repeats: str = "seed"

    @classmethod
    def of(cls, request: Request, outcomes: Mapping[Run, Result | str]) -> Comparison:
        """Build a comparison of what the runs came to; an error if all have failed."""
        runs = [(label, seed) for label in request.entries for seed in request.seeds]
        results = {run: found for run in runs if isinstance(found := outcomes[run], Result)}
        errors = {run: found for run in runs if isinstance(found := outcomes[run], str)}
        if not results:
            raise FedfuseError(f"all {len(runs)} runs failed; {runs[0][0]}, seed {runs[0][1]}: {errors[runs[0]]}")
        # not its truth: a method may have a parameter of the same name
        clustering = {
            label for label, e in request.entries.items() if getattr(type(e.method), "clusters", True) is not False
        }
        # a data set with a name is drawn or cut anew by each seed; of a table, only the split changes
        same = request.source is None or request.source["device"] is not None
        methods = tuple(request.entries)
        told = frozenset(label for label, e in request.entries.items() if isinstance(e.method, Oracle))
        plain = (request.dataset, methods, request.seeds, frozenset(clustering), results, errors, same, told)
        return cls(*plain, repeats=request.repeats)

    @classmethod
    def load(cls, directory: str | PathLike[str]) -> Comparison:
        """Read a comparison from its directory, as far as it is finished."""
        path = Path(directory)
        request = Request.load(path)
        outcomes: dict[Run, Result | str] = {}
        for label in request.entries:
            for seed in request.seeds:
                place = path / "runs" / f"{label}-seed{seed}"
                outcomes[label, seed] = Result.load(place) if Store(place).finished else "not finished"
        return cls.of(request, outcomes)

    @property
    def contestants(self) -> tuple[str, ...]:
        """The methods that are not told the true groups; all of them, where there are no others."""
        return tuple(method for method in self.methods if method not in self.told) or self.methods

    @property
    def metric(self) -> str:
        """``"accuracy"`` or ``"rmse"``."""
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
        best mean of methods that are not told the groups, ``p`` is the p-value of the paired test against it
        (Wilcoxon's signed ranks over ``pairs`` devices, two-sided), ``p_holm`` the same with Holm's correction for
        testing all other methods.
        """
        groups = self.runs.groupby("method", sort=False)[list(NUMBERS)]
        means, spreads = groups.mean(), groups.std(ddof=0).add_suffix("_sd")
        both = pd.concat([means, spreads], axis=1)[[name for n in NUMBERS for name in (n, f"{n}_sd")]]
        table: pd.DataFrame = both.reindex(self.methods).rename_axis("method")
        table.insert(0, "runs", [sum((m, s) in self.results for s in self.seeds) for m in self.methods])
        best = self._best(table)
        table["best"] = (table["test"] == table["test"].get(best, np.nan)) & table.index.isin(self.contestants)
        tests = {method: self._paired(method, best) for method in self.methods if best and method != best}
        table["pairs"] = pd.array([tests.get(m, (None, 0))[0] for m in self.methods], dtype="Int64")
        table["p"] = [tests.get(m, (0, np.nan))[1] for m in self.methods]
        table["p_holm"] = holm(table["p"].to_numpy())
        table["error"] = [self._first_error(method) for method in self.methods]
        return table

    def summary(self) -> dict[str, Any]:
        """Return all numbers as JSON-ready data: what ``table.json`` holds."""
        table = self.table.astype(object).where(self.table.notna(), None)
        runs = self.runs.astype(object).where(self.runs.notna(), None)
        summary = {
            "dataset": self.dataset,
            "metric": self.metric,
            "seeds": list(self.seeds),
            "methods": table.reset_index().to_dict("records"),
            "paired_test": {
                "test": "Wilcoxon signed-rank, two-sided, against the best mean",
                "correction": "Holm",
                "level": ALPHA,
                "pairs": "devices, averaged over seeds" if self.same_devices else "devices of all seeds",
            },
            "runs": runs.to_dict("records"),
            "version": __version__,
        }
        return dict(without_nan(summary))

    def to_markdown(self) -> str:
        """Return the table in Markdown, with its footnotes."""
        return "\n".join([markdown(self), "", *(f"{note}  " for note in footnotes(self))]).rstrip() + "\n"

    def save(self, directory: str | PathLike[str]) -> None:
        """Write ``table.csv``, ``table.json``, ``table.md`` and ``scores.csv``."""
        path = Path(directory)
        texts = {
            "scores.csv": self.scores.to_csv(index=False, lineterminator="\n"),
            "table.csv": self.table.to_csv(lineterminator="\n"),
            "table.md": self.to_markdown(),
        }
        for name, text in texts.items():
            with atomic_write(path / name) as file:
                file.write(text.encode())
        write_json(path / "table.json", self.summary())

    def plot(self, ax: Any = None) -> Any:
        """Draw every device's test score by method; needs ``fedfuse[report]``."""
        return load("fedfuse.report.plots:plot_comparison")(self, ax)

    def __repr__(self) -> str:
        return "\n".join([plain_text(self), *footnotes(self)])

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def _numbers(self, method: str, seed: int) -> dict[str, float]:
        result = self.results.get((method, seed))
        if result is None:
            return dict.fromkeys(NUMBERS, np.nan)
        groups = method in self.clustering
        return {
            "test": result.score("test"),
            "n_clusters": float(result.n_clusters) if groups else np.nan,
            "ari": np.nan if result.ari is None or not groups else result.ari,
            "cost_floats": float(result.cost_floats),
            "rounds": float(result.rounds + result.refit_rounds),
            "seconds": round(result.seconds, 3),
        }

    def _best(self, table: pd.DataFrame) -> str | None:
        """Return the method with the best mean, of those that succeeded most often: seeds are not equally hard."""
        table = table.loc[list(self.contestants)]
        fair = table["test"][table["runs"] == table["runs"].max()].dropna()
        if fair.empty:
            return None
        return str(fair.idxmax() if self.metric == "accuracy" else fair.idxmin())

    def _paired(self, method: str, best: str | None) -> tuple[int, float]:
        """Return the number of pairs and the p-value of a method's device scores against the best one's."""
        scores = self.scores[self.scores["method"].isin([method, best])]
        pairs = scores.pivot_table(index=["seed", "device"], columns="method", values="test").dropna()
        if method not in pairs or best not in pairs:
            return 0, np.nan
        if self.same_devices:  # a device that comes again with another seed is not another witness
            pairs = pairs.groupby("device").mean()
        differences = (pairs[method] - pairs[best]).to_numpy(dtype=np.float64)
        return len(differences), wilcoxon_p(differences)

    def _first_error(self, method: str) -> str | None:
        return next((text for (label, _), text in self.errors.items() if label == method), None)
