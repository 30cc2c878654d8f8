"""How much a setting matters: the same runs for each of its values, or from many random starts.

A sweep is a comparison (`studies.compare`) of one method with itself, and so is resumed, extended and done in
parallel as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError, guess
from fedfuse.methods.method import Method
from fedfuse.studies.compare import compare
from fedfuse.studies.comparison import Comparison
from fedfuse.studies.jobs import loaded
from fedfuse.training.options import Options, build, keys, options_by_method
from fedfuse.utils.files import atomic_write
from fedfuse.utils.lazy import load

START = "start"
DATA_OPTIONS = ("features", "device", "target", "goal", "data_dir", "test", "validation")  # of `compare`
_PENALTY = ("xi", "nu", "rho", "a", START)  # of no use to a method that finds the groups without lambda and refits them


@dataclass(frozen=True)
class Over:
    """A setting and the values that it takes, as text; or ``start`` and how many random ones."""

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
        values = tuple(_split(rest))
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
        """How many random starts, where it is these that are swept over."""
        return int(self.values[0]) if self.key == START else None


@dataclass(frozen=True)
class Sweep:
    """What came of it: `table` has one row per run, `comparison` all the rest."""

    dataset: str
    over: Over
    methods: tuple[str, ...]
    comparison: Comparison

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per run: ``method, value, seed`` and its numbers; for random starts, seed is the number of one."""
        texts = [START] if self.over.starts is not None else self.over.values
        meant = {_label(name, self.over, text): (name, text) for name in self.methods for text in texts}
        table: pd.DataFrame = self.comparison.runs.copy()
        pairs = [meant[label] for label in table["method"]]
        table["method"] = [name for name, _ in pairs]
        table.insert(1, "value", [text for _, text in pairs])
        return table

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Means and population standard deviations over seeds, or over random starts."""
        names = ["test", "n_clusters", "ari", "cost_floats"]
        groups = self.table.groupby(["method", "value"], sort=False)[names]
        summary: pd.DataFrame = pd.concat([groups.mean(), groups.std(ddof=0).add_suffix("_sd")], axis=1).reset_index()
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
        with atomic_write(Path(directory) / "sweep.csv") as file:
            file.write(self.table.to_csv(index=False, lineterminator="\n").encode())

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
        ``"lam=0.1,0.2,0.4"``: a setting of the method or of its work, with its values. ``"start=50"``: so many starts
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
    if what.starts is not None and isinstance(data, str):  # one data set, whatever the start
        data, options, jobs = _first_data(data, seeds, options), _others(options), 1
    runs: Any = what.starts if what.starts is not None else seeds
    if what.starts is not None:
        options |= {"name": dataset, "repeats": "random start"}
    found = Sweep(dataset, what, tuple(names), compare(data, variants, runs, out=out, jobs=jobs, **options, **settings))
    if out is not None:
        found.save(out)
    return found


def _variants(
    over: Over, names: Sequence[str], dataset: str, words: Sequence[str]
) -> tuple[dict[str, Method[Any]], dict[str, Any]]:
    """Return the methods with each value, by the names of their runs, and the settings that all have."""
    variants: dict[str, Method[Any]] = {}
    texts = ["normal"] if over.starts is not None else over.values
    settings: dict[str, Any] = {}
    for name in names:
        for text in texts:
            options: Options = options_by_method([*words, f"{name}.{over.key}={text}"], names)[name]
            label = _label(name, over, text)
            variants[label], own = build(dataset, name, options)
            if settings and own != settings:
                raise FedfuseError(f"{names[0]} and {name} differ in settings other than {over.key}: sweep them alone")
            settings = own
            _check_of_use(over.key, variants[label])
    return variants, settings


def _label(name: str, over: Over, text: str) -> str:
    """Return the name of a variant's runs, which is that of directories too."""
    return name if over.starts is not None else f"{name}-{over.key}={re.sub(r'[^A-Za-z0-9.+-]+', '_', text)}"


def _check_of_use(key: str, method: Method[Any]) -> None:
    if key in _PENALTY and getattr(method, "lam", None) == "auto" and getattr(method, "refit", False):
        raise FedfuseError(f"{key} does not matter with lam=auto and a refit: add --set lam=0.6 --set refit=no")


def _first_data(dataset: str, seeds: Any, options: dict[str, Any]) -> Federation:
    columns = {key: options.get(key) for key in ("device", "target", "goal", "data_dir")}
    columns |= {part: options[part] for part in ("test", "validation") if part in options}
    seed = 0 if isinstance(seeds, (int, np.integer)) else min(seeds)
    return loaded({"dataset": dataset, "features": options.get("features", "uniform"), **columns}, int(seed))


def _others(options: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if k not in DATA_OPTIONS}


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets: schedules have some of their own.

    >>> _split("10, uneven(10),decay(0.1,0.9,5)")
    ['10', 'uneven(10)', 'decay(0.1,0.9,5)']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
