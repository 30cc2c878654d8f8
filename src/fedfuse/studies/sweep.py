"""`sweep`: the same runs for each value of a setting, or from many random starts.

A sweep is a comparison (`studies.compare`) of variants of a method, and so is resumed, extended and run in parallel as
one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from fedfuse.data.catalog import load as load_data
from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError, guess
from fedfuse.methods.method import Method
from fedfuse.studies.compare import compare, seeds_of
from fedfuse.studies.comparison import Comparison, mean_and_sd
from fedfuse.training.options import build, keys, options_by_method
from fedfuse.utils.files import write_csv
from fedfuse.utils.lazy import load

START = "start"
SUMMARISED = ("test", "n_clusters", "ari", "cost_floats")
DATA_OPTIONS = ("features", "device", "target", "goal", "data_dir", "test", "validation")
# These have no effect where groups are found without a given lambda.
PENALTY_SETTINGS = ("xi", "nu", "rho", "a", START)


@dataclass(frozen=True)
class Over:
    """A setting and its values, as text; or ``start`` and the number of random starts."""

    key: str
    values: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> Over:
        """Read what ``--over`` takes.

        >>> Over.read("lam=0.1, 0.2,0.4")
        Over(key='lam', values=('0.1', '0.2', '0.4'))
        >>> Over.read("start=50").starts
        50
        """
        key, sign, rest = (part.strip() for part in text.partition("="))
        # Schedules, such as decay(0.1,0.9,5), have commas of their own.
        values = tuple(part.strip() for part in re.split(r",(?![^(]*\))", rest))
        if not sign or not all(values):
            raise FedfuseError(f"--over takes key=value,value,… or start=N, got {text!r}")
        known = [name for name, kind in keys().items() if kind.part in ("method", "work")]
        if key not in known:
            words = f"a setting of the method or of its work ({', '.join(known)})"
            raise FedfuseError(f"--over takes {words}, got {key!r}; {guess(key, known)}".rstrip("; "))
        if len(set(values)) < len(values):
            raise FedfuseError(f"every value may be named once, got {text!r}")
        if key == START and not (len(values) == 1 and values[0].isdigit() and int(values[0]) > 1):
            raise FedfuseError(f"--over start takes the number of random starts, at least 2, got {rest!r}")
        return cls(key, values)

    @property
    def starts(self) -> int | None:
        """The number of random starts; None in a sweep over the values of a setting."""
        return int(self.values[0]) if self.key == START else None

    def label(self, method: str, value: str) -> str:
        """Return the name of a variant's runs, which their directories have too."""
        return method if self.key == START else f"{method}-{self.key}={re.sub(r'[^A-Za-z0-9.+-]+', '_', value)}"


@dataclass(frozen=True)
class Sweep:
    """The outcome of a sweep: `table` has one row per run, `comparison` everything else."""

    dataset: str
    over: Over
    methods: tuple[str, ...]
    comparison: Comparison

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per run: ``method, value, seed`` and its numbers; for random starts, seed numbers them."""
        values = [START] if self.over.starts is not None else self.over.values
        variants = {self.over.label(name, value): (name, value) for name in self.methods for value in values}
        table: pd.DataFrame = self.comparison.runs.copy()
        labels = table["method"].map(variants)
        table["method"] = labels.str[0]
        table.insert(1, "value", labels.str[1])
        return table

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Means and population standard deviations over seeds, or over random starts."""
        summary: pd.DataFrame = mean_and_sd(self.table, ["method", "value"], SUMMARISED).reset_index()
        return summary

    @property
    def numbers(self) -> list[float] | None:
        """The values as numbers, where all are."""
        try:
            return [float(value) for value in self.over.values]
        except ValueError:
            return None

    def save(self, directory: str | PathLike[str]) -> None:
        """Write ``sweep.csv``."""
        write_csv(Path(directory) / "sweep.csv", self.table)

    def plot(self, axes: Any = None) -> Any:
        """Draw test score and agreement with the truth (`report.plots.plot_sweep`)."""
        return load("fedfuse.report.plots:plot_sweep")(self, axes)


def sweep(
    data: Federation | str,
    over: str,
    methods: str = "fpfc",
    seeds: int | Iterable[int] = 1,
    *,
    words: Sequence[str] = (),
    rounds: int | None = None,
    out: str | PathLike[str] | None = None,
    jobs: int | None = 1,
    **options: Any,
) -> Sweep:
    """Run methods with each value of a setting.

    Parameters
    ----------
    data
        As for `compare`.
    over
        ``"lam=0.1,0.2,0.4"``: a setting of the method or of its work, with its values. ``"start=50"``: this many starts
        drawn from N(0, 1), on the data of the first seed.
    methods
        Names with commas between them.
    seeds, rounds, words, out, jobs, **options
        As for `compare`.
    """
    what, names = Over.read(over), [name.strip() for name in methods.split(",")]
    dataset = data if isinstance(data, str) else "arrays"
    variants, settings = _variants(what, names, dataset, words)
    if rounds is not None:
        settings["rounds"] = rounds
    if what.starts is not None:
        options |= {"name": dataset, "repeats": "random start"}
        if isinstance(data, str):  # All starts share the data of one seed.
            source = {key: options.pop(key) for key in DATA_OPTIONS if key in options}
            data, jobs = load_data(data, seed=seeds_of(seeds)[0], **source), 1
        seeds = what.starts
    comparison = compare(data, variants, seeds, out=out, jobs=jobs, **options, **settings)
    found = Sweep(dataset, what, tuple(names), comparison)
    if out is not None:
        found.save(out)
    return found


def _variants(
    over: Over, names: Sequence[str], dataset: str, words: Sequence[str]
) -> tuple[dict[str, Method[Any]], dict[str, Any]]:
    """Return the methods with each value, by the names of their runs, and the settings that all have."""
    variants: dict[str, Method[Any]] = {}
    settings: dict[str, Any] = {}
    for name in names:
        for value in ["normal"] if over.starts is not None else over.values:
            options = options_by_method([*words, f"{name}.{over.key}={value}"], names)[name]
            method, own = build(dataset, name, options)
            if settings and own != settings:
                raise FedfuseError(f"{names[0]} and {name} differ in settings other than {over.key}: sweep them alone")
            if over.key in PENALTY_SETTINGS and getattr(method, "lam", None) == "auto":
                raise FedfuseError(f"{over.key} does not matter with lam=auto: add --set lam=0.6")
            variants[over.label(name, value)], settings = method, own
    return variants, settings
