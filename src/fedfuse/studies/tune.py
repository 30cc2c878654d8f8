"""Choosing settings by validation rows.

Lambda is chosen by the paper's *separate* and *warm-up* strategies (section 4.3 and 6.3), settings of other methods by
a trial of each candidate. `grouping.lambda_path` and `tuning.grid_search` are the rules; here is the way to them from Python, and
what they have found. ``FPFC(lam="auto")`` needs no grid and is cheaper than either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pandas as pd

from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError
from fedfuse.grouping.lambda_path import ONWARDS, LambdaPath, Strategy
from fedfuse.methods.method import Method
from fedfuse.methods.registry import from_config
from fedfuse.models import Model
from fedfuse.results.result import Result
from fedfuse.results.run_directory import Store
from fedfuse.training.fit import check_federation, fit, fitting_method, fitting_model
from fedfuse.training.settings import Settings
from fedfuse.tuning.grid_search import JUDGING, TRYING, GridSearch
from fedfuse.utils.files import atomic_write, read_json, write_json
from fedfuse.utils.lazy import load

Grid: TypeAlias = Sequence[float] | Sequence[Mapping[str, Any]]
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
        ``"warmup"`` or ``"separate"`` for lambda, ``"search"`` for the settings of other methods.
    table
        One row per candidate: ``lam`` or the other settings, ``rounds, seconds, cost_floats, validation, n_clusters,
        chosen``.
    settings
        Those chosen, by name.
    result
        The outcome of training on with them. Its cost and time are those of tuning and training together.
    curve
        The validation metric as it came in: ``round``, the settings, ``stage, validation, seconds, cost_floats``.
    """

    strategy: Strategy | Literal["search"]
    table: pd.DataFrame
    settings: dict[str, Any]
    result: Result
    curve: pd.DataFrame

    @classmethod
    def of(cls, result: Result) -> Tuning:
        """Read the tuning out of the result of a run in which something was tuned."""
        first = from_config(result.method).plan[0]
        if isinstance(first, GridSearch):
            history = result.history[result.history["stage"].isin([TRYING, JUDGING])]
            return cls(
                "search", _candidates(history, result.chosen), result.chosen, result, _curve(history, result.chosen)
            )
        if not isinstance(first, LambdaPath) or result.lam is None:
            raise FedfuseError(f"this run did not tune anything: its method is {result.method['method']}")
        history = result.history[result.history["watched"].notna() | result.history["groups"].notna()]
        settings = {"lam": result.lam}
        return cls(first.strategy, _table(history, result.lam), settings, result, _curve(history, settings))

    @property
    def lam(self) -> float:
        """The lambda chosen."""
        if "lam" not in self.settings:
            raise FedfuseError(f"no lambda was tuned, but {', '.join(self.settings)}")
        return float(self.settings["lam"])

    @property
    def seconds(self) -> float:
        """Time of choosing, without training on."""
        return float(self.table["seconds"].sum())

    def summary(self) -> dict[str, Any]:
        """Return the tuning in a few numbers: the result's summary, and what each candidate came to."""
        table = self.table.astype(object).where(self.table.notna(), None)
        rows = "candidates" if self.strategy == "search" else "lambdas"
        tuning = {"strategy": self.strategy, rows: table.to_dict("records")}
        return {**self.result.summary(), "method": self._inner.name, "tuning": tuning}

    @property
    def _inner(self) -> Method[Any]:
        method = from_config(self.result.method)
        return method.inner if isinstance(method, (LambdaPath, GridSearch)) else method

    def save(self, directory: str | PathLike[str]) -> None:
        """Write the result's files, ``tuning.csv`` (the table), ``curve.csv`` and ``tuning.json`` (the summary)."""
        path = Path(directory)
        self.result.save(path)
        for name, table in (("tuning.csv", self.table), ("curve.csv", self.curve)):
            with atomic_write(path / name) as file:
                file.write(table.to_csv(index=False, lineterminator="\n").encode())
        write_json(path / "tuning.json", self.summary())

    @classmethod
    def load(cls, directory: str | PathLike[str]) -> Tuning:
        """Read a tuning from the directory of its run."""
        read_json(Path(directory) / "summary.json")
        return cls.of(Result.load(directory))

    def plot(self, axes: Any = None) -> Any:
        """Draw the validation metric and the time of each candidate; needs ``fedfuse[report]``."""
        what = "plot_search" if self.strategy == "search" else "plot_tuning"
        return load(f"fedfuse.report.plots:{what}")(self, axes)

    @property
    def words(self) -> str:
        """What was chosen, in words."""
        return in_words(self.settings)

    def __repr__(self) -> str:
        return f"Tuning({self.strategy}: {self.words} of {len(self.table)} tried, {self.result!r})"


def tune(
    federation: Federation,
    method: Method[Any] | str | None = None,
    strategy: Strategy | None = None,
    grid: Grid | None = None,
    *,
    model: Model[Any] | str | None = None,
    rounds: int | None = None,
    cap: int | None = None,
    out: str | PathLike[str] | None = None,
    dataset: str = "arrays",
    **settings: Any,
) -> Tuning:
    """Choose lambda, or the settings that another method leaves open, by the validation rows, and train on with them.

    Parameters
    ----------
    federation
        The devices and their rows; all need validation rows.
    method
        `FPFC` or `FPFCL1` with everything but lambda; whether the groups are refitted at the end is its ``refit``.
        Or `CFL`, `PACFL`, `IFCA`: each of their candidates is tried from a fresh start.
    strategy
        For lambda. ``"warmup"`` (default): increasing lambdas, each from where the last one ended, until one ends worse
        than the one before it. ``"separate"``: every lambda from a fresh start until nothing moves any more.
    grid
        Increasing lambdas. Default: the paper's for its data sets, and else from the distances between the devices'
        own models. For other methods settings by name, ``[{"eps1": 0.1, "eps2": 0.2}, …]``; default: the method's own.
    rounds
        Rounds of one training at the most (500): of each lambda with ``separate``, of the way from the start to the
        final models with ``warmup``, but for the last ``cap`` of it, and of training with the settings chosen.
    cap
        Rounds of one lambda at the most with ``warmup``, default: a quarter of ``rounds``; of each candidate of other
        methods, default: 50.
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
    check_federation(federation)
    if not (federation.rows("validation").counts > 0).any():
        raise FedfuseError("no device has validation rows, and settings are chosen by them; build with validation > 0")
    inner = fitting_method(method, fitting_model(federation, model))
    chosen = check_tuning(inner, strategy, grid, rounds=rounds, cap=cap, dataset=dataset)
    tuning = Tuning.of(fit(federation, chosen, model, rounds=rounds, out=out, dataset=dataset, **settings))
    if out is not None:
        tuning.save(out)
    return tuning


def check_tuning(
    method: Method[Any],
    strategy: Any,
    grid: Grid | None,
    *,
    rounds: int | None = None,
    cap: int | None = None,
    dataset: str = "arrays",
) -> Method[Any]:
    """Return the method that tunes as `tune` is asked to, or say what is wrong with that."""
    if is_searched(method):
        return _searched(method, strategy, grid, cap)
    lambdas: Any = paper_grid(dataset) if grid is None else tuple(grid)
    if grid is not None and not lambdas:
        raise FedfuseError("the grid of lambdas is empty")
    limit = Settings().rounds if rounds is None else rounds
    way = "warmup" if strategy is None else strategy
    return LambdaPath(inner=method, strategy=way, grid=lambdas, limit=limit, cap=cap)  # type: ignore[arg-type]


def is_searched(method: Method[Any] | type[Method[Any]]) -> bool:
    """Whether a method's settings are chosen among candidates."""
    kind = method if isinstance(method, type) else type(method)
    return kind.candidates is not Method.candidates


def _searched(method: Method[Any], strategy: Any, grid: Grid | None, cap: int | None) -> GridSearch:
    if strategy is not None:
        raise FedfuseError(f"strategies are for lambda; {method.name} tries each candidate, got strategy {strategy!r}")
    candidates = tuple(grid or ())
    if grid is not None and not (candidates and all(isinstance(c, Mapping) for c in candidates)):
        raise FedfuseError(f"a grid for {method.name} is a list of settings by name, got {list(grid)}")
    return GridSearch(inner=method, trial=cap, grid=candidates)  # type: ignore[arg-type]


def is_tuning(directory: str | PathLike[str]) -> bool:
    """Whether the run in a directory is one of tuning."""
    config = Store(directory).config()
    method = config.get("method")
    return isinstance(method, dict) and method.get("method") in (LambdaPath.name, GridSearch.name)


def paper_grid(dataset: str) -> tuple[float, ...]:
    """Return the paper's lambdas for a data set, or none for others.

    >>> paper_grid("synthetic:S3")[:3], paper_grid("visits.csv")
    ((0.0, 0.5, 1.0), ())
    """
    return PAPER_GRIDS.get(dataset.partition(":")[0], ())


def in_words(settings: Mapping[str, Any]) -> str:
    """Write settings as they are typed.

    >>> in_words({"lam": 0.5}), in_words({"eps1": 0.1, "eps2": 0.2})
    ('lambda 0.5', 'eps1 0.1, eps2 0.2')
    """
    names = {name: "lambda" if name == "lam" else name for name in settings}
    return ", ".join(f"{names[name]} {value:g}" for name, value in settings.items())


def _curve(history: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
    columns = ["round", *settings, "stage", "watched", "seconds", "cost_floats"]
    curve: pd.DataFrame = history[columns].rename(columns={"watched": "validation"}).reset_index(drop=True)
    return curve


def _candidates(history: pd.DataFrame, chosen: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row per candidate."""
    sums = _summed(history, "candidate", history["stage"].notna()).drop(columns="candidate")
    settings: pd.DataFrame = history.groupby("candidate")[list(chosen)].first().reset_index(drop=True)
    table: pd.DataFrame = pd.concat([settings, sums], axis=1)
    best = (settings == pd.Series(dict(chosen))).all(axis=1)
    table["chosen"] = best & ~best.duplicated()
    return table


def _table(history: pd.DataFrame, chosen: float) -> pd.DataFrame:
    """Return one row per lambda."""
    table = _summed(history, "lam", history["stage"] != ONWARDS)
    table["chosen"] = table["lam"] == chosen
    return table


def _summed(history: pd.DataFrame, by: str, trying: pd.Series[bool]) -> pd.DataFrame:
    """Return what the rows of each candidate's rounds came to."""
    spent = history[["seconds", "cost_floats"]].diff().fillna(history[["seconds", "cost_floats"]])
    rows = history[[by, "watched", "groups"]].join(spent)[trying].groupby(by, sort=True)
    table: pd.DataFrame = rows.agg(
        rounds=("watched", "size"),
        seconds=("seconds", "sum"),
        cost_floats=("cost_floats", "sum"),
        validation=("watched", "last"),
        n_clusters=("groups", "last"),
    ).reset_index()
    table["cost_floats"] = table["cost_floats"].astype("int64")
    table["n_clusters"] = table["n_clusters"].astype("Int64")
    return table
