"""One run of an experiment: what it is, by which hash it is known, and how it is performed or gone on with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedfuse._version import __version__
from fedfuse.data.federation import Federation
from fedfuse.paper.data import Data, late
from fedfuse.results.result import Result
from fedfuse.results.run_directory import Store
from fedfuse.studies.jobs import Job
from fedfuse.training.loop import Callback, Row, Run
from fedfuse.tuning.grid_search import JUDGING, TRYING
from fedfuse.utils.files import read_arrays, read_json, without_nan, write_arrays, write_json
from fedfuse.utils.typing import Floats

NEWCOMERS = "newcomers.json"
_NO_MATTER = ("checkpoint_every",)  # settings that a result does not depend on


@dataclass(frozen=True)
class Trial(Job):
    """A run that is kept under the hash of its description, and found there again.

    Attributes
    ----------
    recipe
        The data; ``source`` has the directory of their files, which is no part of the description.
    at
        The models after so many rounds are kept, too.
    curve
        Whether training loss and training score are looked at whenever the others are.
    newcomers
        This share of every group is not in training and joins afterwards.
    data_seed
        Draws the data, where that is not the seed of the run.
    """

    recipe: Data = field(default_factory=lambda: Data("synthetic:S1"))
    at: tuple[int, ...] = ()
    curve: bool = False
    newcomers: float = 0.0
    data_seed: int | None = None

    @cached_property
    def description(self) -> dict[str, Any]:
        """All that the result depends on, as JSON-ready data."""
        return {
            "version": __version__,
            "data": asdict(self.recipe),
            "seed": self.seed,
            "data_seed": self._data_seed,
            "method": self.method.to_config(),
            "settings": {name: value for name, value in self.settings.items() if name not in _NO_MATTER},
            "model": None if self.model is None else self.model.to_config(),
            "at": self.at,
            "curve": self.curve,
            "newcomers": self.newcomers,
        }

    @cached_property
    def key(self) -> str:
        """The hash of the description: a changed setting is another run, and leaves all others as they are."""
        text = json.dumps(self.description, sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()

    @property
    def place(self) -> Path:
        """The directory of the run."""
        if self.directory is None:
            raise AssertionError("a trial has a directory")
        return self.directory

    @property
    def done(self) -> bool:
        """Whether everything is there."""
        return Store(self.place).finished and (not self.newcomers or (self.place / NEWCOMERS).exists())

    @property
    def _data_seed(self) -> int:
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def whole_source(self) -> None:
        """Say nothing of where the data are: the run is gone on with by the same command only."""

    def data(self, given: Federation | None = None) -> Federation:
        """Return all devices, newcomers included."""
        return given or self.recipe.load(self._data_seed, (self.source or {}).get("data_dir"))

    def perform(self, federation: Federation, callbacks: Sequence[Callback] = ()) -> Result:
        """Begin, go on, or read what is there."""
        early, missing = self._devices(federation)
        # those that add to a round's row come before those that look at it
        own = [*([_Training(early)] if self.curve else []), *([_Keep(self.at, self.place)] if self.at else [])]
        result = super().perform(early, [*own, *callbacks])
        if missing is not None and not (self.place / NEWCOMERS).exists():
            write_json(self.place / NEWCOMERS, without_nan(result.admit(missing).summary()))
        return result

    def _devices(self, federation: Federation) -> tuple[Federation, Federation | None]:
        if not self.newcomers:
            return federation, None
        if federation.truth is None:
            raise AssertionError("the paper's groups are known")
        missing = late(federation.truth, self.newcomers, self.seed)
        return federation.only(np.setdiff1d(np.arange(federation.m), missing)), federation.only(missing)

    # -- what came of it

    def result(self) -> Result:
        """Read the result."""
        return Result.load(self.place)

    def joined(self) -> dict[str, Any]:
        """Read what has become of newcomers (`Newcomers.summary`)."""
        return dict(read_json(self.place / NEWCOMERS))

    def models_at(self, k: int) -> Floats:
        """Read the models after k rounds (m x d)."""
        return np.asarray(read_arrays(self.place / f"after-{k}.npz")["models"])


class _Keep(Callback):
    """Keeps the models after some rounds."""

    def __init__(self, rounds: Iterable[int], directory: Path) -> None:
        self._rounds, self._directory = set(rounds), directory

    def on_start(self, run: Run) -> None:
        if run.k == 0:
            self._keep(run)

    def on_round(self, run: Run, row: Row) -> None:
        self._keep(run)

    def _keep(self, run: Run) -> None:
        if run.k in self._rounds:
            models = np.asarray(run.rule.current(run.state).models)
            write_arrays(self._directory / f"after-{run.k}.npz", {"models": models})


class _Training(Callback):
    """Adds training loss and training score to the rows of rounds that are evaluated."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._rows: Any = None

    def on_round(self, run: Run, row: Row) -> None:
        if "test" not in row:
            return
        if self._rows is None:
            self._rows = run.model.load(self._federation.rows("train"), np.dtype(run.settings.dtype))
        models = run.in_use().models
        everyone = np.arange(self._federation.m)
        losses, scores = run.model.losses_and_metric(self._rows, everyone, models)
        row["train_loss"], row["train"] = float(np.mean(losses)), float(np.mean(scores))


def training_cost(result: Result) -> int:
    """Return the floats sent in training itself, without those of trying settings before: what the paper counts."""
    history = result.history
    if "stage" not in history:
        return result.cost_floats
    trying = history.loc[history["stage"].isin([TRYING, JUDGING]), "cost_floats"]
    return result.cost_floats - int(trying.max()) if len(trying) else result.cost_floats


def evaluated(result: Result) -> pd.DataFrame:
    """Return the rows of the history in which test rows were looked at."""
    history = result.history
    seen: pd.DataFrame = history[history["test"].notna()] if "test" in history else history.iloc[:0]
    return seen
