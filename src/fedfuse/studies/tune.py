"""`tune`: choice of lambda on validation rows, by the paper's *separate* and *warm-up* strategies (sections 4.3, 6.3).

It is one run of a method that wraps another (`grouping.lambda_path`), saved and resumed as any run; here are the call
and the table of candidates. The fusion tree needs no grid and is cheaper than either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError
from fedfuse.grouping.lambda_path import FINAL_STAGE, N_LAMBDAS, LambdaPath, Strategy, path_rounds
from fedfuse.methods.method import Method
from fedfuse.methods.registry import from_config
from fedfuse.models import Model
from fedfuse.results.result import Result
from fedfuse.results.run_directory import RunDirectory
from fedfuse.training.fit import check_federation, fit, fitting_method, fitting_model
from fedfuse.training.presets import PAPER_WARMUP_GRIDS
from fedfuse.training.settings import Settings
from fedfuse.training.stages import REFIT_RATIO
from fedfuse.utils.files import write_csv, write_json


@dataclass(frozen=True)
class Tuning:
    """The outcome of tuning.

    Attributes
    ----------
    strategy, lam
        ``"warmup"`` or ``"separate"``, and the lambda that was chosen.
    table
        One row per candidate: ``lam, rounds, seconds, cost_floats, validation, n_clusters, chosen``.
    result
        The result of training with it. Its cost and time are those of tuning and training together.
    curve
        The validation metric, round by round: ``round, lam, stage, validation, seconds, cost_floats``.
    """

    strategy: Strategy
    table: pd.DataFrame
    lam: float
    result: Result
    curve: pd.DataFrame

    @classmethod
    def of(cls, result: Result) -> Tuning:
        """Read the tuning from the result of its run."""
        method, history = from_config(result.method), result.history
        strategy: Any = getattr(method, "strategy", getattr(method, "lam", None))
        if strategy not in get_args(Strategy) or result.lam is None:
            raise FedfuseError(f"this run did not tune a lambda: its method is {result.method['method']}")
        history = history[history["watched"].notna() | history["groups"].notna()]
        columns = ["round", "lam", "stage", "watched", "seconds", "cost_floats"]
        curve: pd.DataFrame = history[columns].rename(columns={"watched": "validation"}).reset_index(drop=True)
        return cls(strategy, _candidates(history, result.lam), float(result.lam), result, curve)

    @property
    def seconds(self) -> float:
        """Seconds spent on choosing, without the training that follows."""
        return float(self.table["seconds"].sum())

    def summary(self) -> dict[str, Any]:
        """Return the tuning in a few numbers: the result's summary, and the row of each candidate."""
        method = from_config(self.result.method)
        name = method.inner.name if isinstance(method, LambdaPath) else method.name
        table = self.table.astype(object).where(self.table.notna(), None)
        tuning = {"strategy": self.strategy, "lambdas": table.to_dict("records")}
        return {**self.result.summary(), "method": name, "tuning": tuning}

    def save(self, directory: str | PathLike[str]) -> None:
        """Write the result's files, ``tuning.csv`` (the table), ``curve.csv`` and ``tuning.json`` (the summary)."""
        path = Path(directory)
        self.result.save(path)
        write_csv(path / "tuning.csv", self.table)
        write_csv(path / "curve.csv", self.curve)
        write_json(path / "tuning.json", self.summary())

    @classmethod
    def load(cls, directory: str | PathLike[str]) -> Tuning:
        """Read a tuning from the directory of its run."""
        return cls.of(Result.load(directory))

    def __repr__(self) -> str:
        return f"Tuning({self.strategy}: lambda {self.lam:g} of {len(self.table)} tried, {self.result!r})"


def tune(
    federation: Federation,
    method: Method[Any] | str | None = None,
    strategy: Strategy = "warmup",
    grid: Sequence[float] | None = None,
    *,
    model: Model[Any] | str | None = None,
    rounds: int | None = None,
    cap: int | None = None,
    out: str | PathLike[str] | None = None,
    dataset: str = "arrays",
    **settings: Any,
) -> Tuning:
    """Choose lambda on validation rows, and train with it.

    Parameters
    ----------
    method
        `FPFC` or `FPFCL1` with everything but lambda; whether the groups are refitted at the end is its ``refit``.
        Other methods choose settings that are left open by themselves.
    strategy
        ``"warmup"`` (default): increasing lambdas, each from where the last one ended, until one ends worse
        than the one before it. ``"separate"``: every lambda from a fresh start until convergence.
    grid
        Increasing lambdas. Default: the paper's for its data sets, and else from the distances between the devices'
        own models.
    rounds
        The maximum of one training (500): of each lambda with ``separate``, of the way from the start to the final
        models with ``warmup``, but for the last ``cap`` of it.
    cap
        Maximum of rounds of one lambda with ``warmup``, default: a quarter of ``rounds``.
    federation, model, out, dataset, **settings
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
    (0.4, [0, 0, 0, 1, 1, 1])
    """
    check_federation(federation)
    if not (federation.rows("validation").counts > 0).any():
        raise FedfuseError("no device has validation rows, and settings are chosen by them; build with validation > 0")
    inner = fitting_method(method or "fpfc", fitting_model(federation, model))
    chosen = check_tuning(inner, strategy, grid, rounds=rounds, cap=cap, dataset=dataset)
    total = path_rounds(chosen.strategy, len(chosen.grid) or N_LAMBDAS + 1, chosen.limit, chosen.cap)
    if chosen.inner.refit:
        total = math.ceil(total / (1 - REFIT_RATIO)) + 1
    tuning = Tuning.of(fit(federation, chosen, model, rounds=total, out=out, dataset=dataset, **settings))
    if out is not None:
        tuning.save(out)
    return tuning


def check_tuning(
    method: Any,
    strategy: Any,
    grid: Sequence[float] | None,
    *,
    rounds: int | None = None,
    cap: int | None = None,
    dataset: str = "arrays",
) -> LambdaPath:
    """Return the method that tunes as `tune` is asked to; raise an error for what cannot be."""
    if grid is not None and not len(grid):
        raise FedfuseError("the grid of lambdas is empty")
    lambdas = PAPER_WARMUP_GRIDS.get(dataset.partition(":")[0], ()) if grid is None else tuple(grid)
    limit = Settings().rounds if rounds is None else rounds
    return LambdaPath(inner=method, strategy=strategy, grid=lambdas, limit=limit, cap=cap)


def is_tuning(directory: str | PathLike[str]) -> bool:
    """Whether the run in a directory is one of tuning."""
    method = RunDirectory(directory).config().get("method")
    return isinstance(method, dict) and method.get("method") == LambdaPath.name


def _candidates(history: pd.DataFrame, chosen: float) -> pd.DataFrame:
    """Return one row per lambda: the sums over the rounds of its trial."""
    trials, spent = history[history["stage"] != FINAL_STAGE], history[["seconds", "cost_floats"]].diff()
    spent = spent.fillna(history[["seconds", "cost_floats"]])
    groups = trials[["lam", "watched", "groups"]].join(spent).groupby("lam", sort=True)
    table: pd.DataFrame = groups.agg(
        rounds=("watched", "size"),
        seconds=("seconds", "sum"),
        cost_floats=("cost_floats", "sum"),
        validation=("watched", "last"),
        n_clusters=("groups", "last"),
    ).astype({"cost_floats": "int64", "n_clusters": "Int64"})
    whole: pd.DataFrame = table.assign(chosen=table.index == chosen).reset_index()
    return whole
