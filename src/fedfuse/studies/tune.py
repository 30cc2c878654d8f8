"""`tune`: choice of settings on validation rows.

Lambda is chosen by the paper's *separate* and *warm-up* strategies (sections 4.3 and 6.3), settings of other methods by
a trial of each candidate. Both are one run of a method that wraps another (`grouping.lambda_path`,
`tuning.grid_search`), saved and resumed as any run; here are the call and the table of candidates.
The fusion tree needs no grid and is cheaper than either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import pandas as pd

from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError
from fedfuse.grouping.lambda_path import FINAL_STAGE, N_LAMBDAS, LambdaPath, Strategy, path_rounds
from fedfuse.methods.method import Method
from fedfuse.methods.parameters import Searchable
from fedfuse.methods.registry import from_config
from fedfuse.models import Model
from fedfuse.results.result import Result
from fedfuse.results.run_directory import RunDirectory
from fedfuse.training.fit import check_federation, fit, fitting_method, fitting_model
from fedfuse.training.presets import PAPER_WARMUP_GRIDS
from fedfuse.training.settings import Settings
from fedfuse.training.stages import REFIT_RATIO
from fedfuse.tuning.grid_search import JUDGING, TRYING, GridSearch
from fedfuse.utils.files import write_csv, write_json

Grid: TypeAlias = Sequence[float] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Tuning:
    """The outcome of tuning.

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
        The result of training with them. Its cost and time are those of tuning and training together.
    curve
        The validation metric, round by round: ``round``, the settings, ``stage, validation, seconds, cost_floats``.
    """

    strategy: Strategy | Literal["search"]
    table: pd.DataFrame
    settings: dict[str, Any]
    result: Result
    curve: pd.DataFrame

    @classmethod
    def of(cls, result: Result) -> Tuning:
        """Read the tuning from the result of its run."""
        method, history = from_config(result.method), result.history
        path: Any = getattr(method, "strategy", getattr(method, "lam", None))
        strategy: Strategy | Literal["search"]
        if isinstance(method, (GridSearch, Searchable)):
            strategy, settings, by = "search", result.chosen, "candidate"
            history = trials = history[history["stage"].isin([TRYING, JUDGING])]
        elif path in get_args(Strategy) and result.lam is not None:
            strategy, settings, by = path, {"lam": result.lam}, "lam"
            history = history[history["watched"].notna() | history["groups"].notna()]
            trials = history[history["stage"] != FINAL_STAGE]
        else:
            raise FedfuseError(f"this run did not tune anything: its method is {result.method['method']}")
        columns = ["round", *settings, "stage", "watched", "seconds", "cost_floats"]
        curve: pd.DataFrame = history[columns].rename(columns={"watched": "validation"}).reset_index(drop=True)
        return cls(strategy, _candidates(history, trials, by, settings), settings, result, curve)

    @property
    def lam(self) -> float:
        """The lambda chosen."""
        if "lam" not in self.settings:
            raise FedfuseError(f"no lambda was tuned, but {', '.join(self.settings)}")
        return float(self.settings["lam"])

    @property
    def seconds(self) -> float:
        """Seconds spent on choosing, without the training that follows."""
        return float(self.table["seconds"].sum())

    def summary(self) -> dict[str, Any]:
        """Return the tuning in a few numbers: the result's summary, and the row of each candidate."""
        method = from_config(self.result.method)
        name = method.inner.name if isinstance(method, (LambdaPath, GridSearch)) else method.name
        table = self.table.astype(object).where(self.table.notna(), None)
        rows = "candidates" if self.strategy == "search" else "lambdas"
        tuning = {"strategy": self.strategy, rows: table.to_dict("records")}
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

    @property
    def words(self) -> str:
        """The settings chosen, as text."""
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
    """Choose lambda, or the open settings of another method, on validation rows, and train with them.

    Parameters
    ----------
    federation
        The devices and their rows; all need validation rows.
    method
        `FPFC` or `FPFCL1` with everything but lambda; whether the groups are refitted at the end is its ``refit``.
        Or `CFL`, `PACFL`, `IFCA`: each of their candidates is tried from a fresh start.
    strategy
        For lambda. ``"warmup"`` (default): increasing lambdas, each from where the last one ended, until one ends worse
        than the one before it. ``"separate"``: every lambda from a fresh start until convergence.
    grid
        Increasing lambdas. Default: the paper's for its data sets, and else from the distances between the devices'
        own models. For other methods settings by name, ``[{"eps1": 0.1, "eps2": 0.2}, …]``; default: the method's own.
    rounds
        For lambda, the maximum of one training (500): of each lambda with ``separate``, of the way from the start to
        the final models with ``warmup``, but for the last ``cap`` of it. For other methods, of the whole run.
    cap
        Maximum of rounds of one lambda with ``warmup``, default: a quarter of ``rounds``; of each candidate of other
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
    (0.4, [0, 0, 0, 1, 1, 1])
    """
    check_federation(federation)
    if not (federation.rows("validation").counts > 0).any():
        raise FedfuseError("no device has validation rows, and settings are chosen by them; build with validation > 0")
    inner = fitting_method(method or "fpfc", fitting_model(federation, model))
    chosen = check_tuning(inner, strategy, grid, rounds=rounds, cap=cap, dataset=dataset)
    total = _total_rounds(chosen) if isinstance(chosen, LambdaPath) else rounds
    tuning = Tuning.of(fit(federation, chosen, model, rounds=total, out=out, dataset=dataset, **settings))
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
    """Return the method that tunes as `tune` is asked to; raise an error for what cannot be."""
    given: Any = None if grid is None else tuple(grid)
    if isinstance(method, Searchable):
        if strategy is not None:
            words = f"strategies are for lambda; {method.name} tries each candidate"
            raise FedfuseError(f"{words}, got strategy {strategy!r}")
        if given is not None and not (given and all(isinstance(c, Mapping) for c in given)):
            raise FedfuseError(f"a grid for {method.name} is a list of settings by name, got {list(given)}")
        return GridSearch(inner=method, trial=cap, grid=given or ())
    if given == ():
        raise FedfuseError("the grid of lambdas is empty")
    lambdas = PAPER_WARMUP_GRIDS.get(dataset.partition(":")[0], ()) if given is None else given
    limit = Settings().rounds if rounds is None else rounds
    return LambdaPath(inner=method, strategy=strategy or "warmup", grid=lambdas, limit=limit, cap=cap)  # type: ignore[arg-type]


def _total_rounds(path: LambdaPath) -> int:
    """Return how many rounds the run of a lambda path can take, with those of a refit."""
    rounds = path_rounds(path.strategy, len(path.grid) or N_LAMBDAS + 1, path.limit, path.cap)
    return rounds if not path.inner.refit else math.ceil(rounds / (1 - REFIT_RATIO)) + 1


def is_tuning(directory: str | PathLike[str]) -> bool:
    """Whether the run in a directory is one of tuning."""
    method = RunDirectory(directory).config().get("method")
    return isinstance(method, dict) and method.get("method") in (LambdaPath.name, GridSearch.name)


def in_words(settings: Mapping[str, Any]) -> str:
    """Write settings as text.

    >>> in_words({"lam": 0.5}), in_words({"eps1": 0.1, "eps2": 0.2})
    ('lambda 0.5', 'eps1 0.1, eps2 0.2')
    """
    return ", ".join(f"{'lambda' if name == 'lam' else name} {value:g}" for name, value in settings.items())


def _candidates(history: pd.DataFrame, trials: pd.DataFrame, by: str, chosen: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row per candidate: its settings, and the sums over the rounds of its trial."""
    spent = history[["seconds", "cost_floats"]].diff().fillna(history[["seconds", "cost_floats"]])
    groups = trials[[by, "watched", "groups"]].join(spent).groupby(by, sort=True)
    sums = groups.agg(
        rounds=("watched", "size"),
        seconds=("seconds", "sum"),
        cost_floats=("cost_floats", "sum"),
        validation=("watched", "last"),
        n_clusters=("groups", "last"),
    ).astype({"cost_floats": "int64", "n_clusters": "Int64"})
    settings: pd.DataFrame = trials.groupby(by, sort=True)[list(chosen)].first()
    best = (settings == pd.Series(dict(chosen))).all(axis=1)
    table: pd.DataFrame = pd.concat([settings, sums], axis=1).reset_index(drop=True)
    table["chosen"] = (best & ~best.duplicated()).to_numpy()
    return table
