"""Choosing lambda by validation rows: the paper's *separate* and *warm-up* strategies (section 4.3 and 6.3).

`methods.tuned` is the rule; here is the way to it from Python, and what it has found. ``FPFC(lam="auto")`` needs no
grid and is cheaper than either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError
from fedfuse.methods import FPFC, from_config
from fedfuse.methods.base import Method
from fedfuse.methods.fpfc import PairwiseFusion
from fedfuse.methods.tuned import ONWARDS, Strategy, Tuned
from fedfuse.models import Model
from fedfuse.result import Result
from fedfuse.store import Store, read_json, write_json, written_whole
from fedfuse.tasks import Work
from fedfuse.training import Settings, fit

PAPER_GRIDS = {
    "synthetic": tuple(k / 2 for k in range(8)),  # 0, 0.5, … 3.5
    "housing-bodyfat": tuple(k / 2 for k in range(11)),  # 0, 0.5, … 5
}


@dataclass(frozen=True)
class Tuning:
    """What tuning has found.

    Attributes
    ----------
    strategy
        ``"warmup"`` or ``"separate"``.
    table
        One row per lambda tried: ``lam, rounds, seconds, cost_floats, validation, n_clusters, chosen``.
    lam
        The lambda chosen.
    result
        The outcome of training on with it. Its cost and time are those of tuning and training together.
    curve
        The validation metric round by round: ``round, lam, stage, validation, seconds, cost_floats``.
    """

    strategy: Strategy
    table: pd.DataFrame
    lam: float
    result: Result
    curve: pd.DataFrame

    @classmethod
    def of(cls, result: Result) -> Tuning:
        """Read the tuning out of the result of a run of `methods.tuned.Tuned`."""
        method = from_config(result.method)
        if not isinstance(method, Tuned) or result.lam is None:
            raise FedfuseError(f"this run did not tune lambda: its method is {result.method['method']}")
        history = result.history[result.history["watched"].notna() | result.history["groups"].notna()]
        columns = {"watched": "validation"}
        curve = history[["round", "lam", "stage", "watched", "seconds", "cost_floats"]].rename(columns=columns)
        table = _table(history, result.lam)
        return cls(method.strategy, table, result.lam, result, curve.reset_index(drop=True))

    @property
    def seconds(self) -> float:
        """Time of choosing lambda, without training on."""
        return float(self.table["seconds"].sum())

    def summary(self) -> dict[str, Any]:
        """Return the tuning in a few numbers: the result's summary, and what each lambda came to."""
        table = self.table.astype(object).where(self.table.notna(), None)
        tuning = {"strategy": self.strategy, "lambdas": table.to_dict("records")}
        return {**self.result.summary(), "method": self._inner.name, "tuning": tuning}

    @property
    def _inner(self) -> Method[Any]:
        method = from_config(self.result.method)
        return method.inner if isinstance(method, Tuned) else method

    def save(self, directory: str | PathLike[str]) -> None:
        """Write the result's files, ``tuning.csv`` (the table), ``curve.csv`` and ``tuning.json`` (the summary)."""
        path = Path(directory)
        self.result.save(path)
        for name, table in (("tuning.csv", self.table), ("curve.csv", self.curve)):
            with written_whole(path / name) as file:
                file.write(table.to_csv(index=False, lineterminator="\n").encode())
        write_json(path / "tuning.json", self.summary())

    @classmethod
    def load(cls, directory: str | PathLike[str]) -> Tuning:
        """Read a tuning from the directory of its run."""
        read_json(Path(directory) / "summary.json")
        return cls.of(Result.load(directory))

    def plot(self, axes: Any = None) -> Any:
        """Draw the validation metric by round and the time of each lambda; needs ``fedfuse[report]``."""
        from fedfuse.plots import plot_tuning

        return plot_tuning(self, axes)

    def __repr__(self) -> str:
        return f"Tuning({self.strategy}: lambda {self.lam:g} of {len(self.table)} tried, {self.result!r})"


def tune(
    federation: Federation,
    method: PairwiseFusion | None = None,
    strategy: Strategy = "warmup",
    grid: Sequence[float] | None = None,
    *,
    model: Model[Any] | None = None,
    rounds: int | None = None,
    cap: int | None = None,
    out: str | PathLike[str] | None = None,
    dataset: str = "arrays",
    **settings: Any,
) -> Tuning:
    """Choose lambda from a grid by the validation rows, and train on with it.

    Parameters
    ----------
    federation
        The devices and their rows; all need validation rows.
    method
        `FPFC` or `FPFCL1` with everything but lambda; whether the groups are refitted at the end is its ``refit``.
    strategy
        ``"warmup"``: increasing lambdas, each from where the last one ended, until one ends worse than the one
        before it. ``"separate"``: every lambda from a fresh start until nothing moves any more.
    grid
        Increasing lambdas. Default: the paper's for its data sets, and else from the distances between the devices'
        own models.
    rounds
        Rounds of one training at the most (500): of each lambda with ``separate``, of the way from the start to the
        final models with ``warmup``, but for the last ``cap`` of it.
    cap
        Rounds of one lambda at the most with ``warmup``; default: a quarter of ``rounds``.
    model, out, dataset, **settings
        As for `fit`.

    Examples
    --------
    >>> import numpy as np, fedfuse as ff
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(6, 50, 2))
    >>> y = [x @ ([1, 2] if i < 3 else [-2, 1]) + 0.1 * rng.normal(size=50) for i, x in enumerate(X)]
    >>> fed = ff.Federation.from_arrays(list(zip(X, y)))
    >>> found = ff.tune(fed, grid=[0, 0.2, 0.4, 4, 8], rounds=100)
    >>> found.lam, found.result.labels.tolist()
    (0.2, [0, 0, 0, 1, 1, 1])
    """
    if not (federation.rows("validation").counts > 0).any():
        raise FedfuseError("no device has validation rows, and lambda is chosen by them; build with validation > 0")
    inner = method or FPFC(work=Work(solver="exact"))
    chosen = check_tuning(inner, strategy, grid, rounds=rounds, cap=cap, dataset=dataset)
    tuning = Tuning.of(fit(federation, chosen, model, out=out, dataset=dataset, **settings))
    if out is not None:
        tuning.save(out)
    return tuning


def check_tuning(
    method: Method[Any],
    strategy: Any,
    grid: Sequence[float] | None,
    *,
    rounds: int | None = None,
    cap: int | None = None,
    dataset: str = "arrays",
) -> Tuned:
    """Return the method that tunes as `tune` is asked to, or say what is wrong with that."""
    lambdas = paper_grid(dataset) if grid is None else tuple(grid)
    if grid is not None and not lambdas:
        raise FedfuseError("the grid of lambdas is empty")
    limit = Settings().rounds if rounds is None else rounds
    return Tuned(inner=method, strategy=strategy, grid=lambdas, limit=limit, cap=cap)  # type: ignore[arg-type]


def is_tuning(directory: str | PathLike[str]) -> bool:
    """Whether the run in a directory is one of tuning."""
    config = Store(directory).config()
    method = config.get("method")
    return isinstance(method, dict) and method.get("method") == Tuned.name


def paper_grid(dataset: str) -> tuple[float, ...]:
    """Return the paper's lambdas for a data set, or none for others.

    >>> paper_grid("synthetic:S3")[:3], paper_grid("visits.csv")
    ((0.0, 0.5, 1.0), ())
    """
    return PAPER_GRIDS.get(dataset.partition(":")[0], ())


def _table(history: pd.DataFrame, chosen: float) -> pd.DataFrame:
    """Return one row per lambda: what the rows of its rounds came to."""
    spent = history[["seconds", "cost_floats"]].diff().fillna(history[["seconds", "cost_floats"]])
    trying = history["stage"] != ONWARDS
    rows = history[["lam", "watched", "groups"]].join(spent)[trying].groupby("lam", sort=True)
    table: pd.DataFrame = rows.agg(
        rounds=("watched", "size"),
        seconds=("seconds", "sum"),
        cost_floats=("cost_floats", "sum"),
        validation=("watched", "last"),
        n_clusters=("groups", "last"),
    ).reset_index()
    table["chosen"] = table["lam"] == chosen
    table["cost_floats"] = table["cost_floats"].astype("int64")
    table["n_clusters"] = table["n_clusters"].astype("Int64")
    return table
