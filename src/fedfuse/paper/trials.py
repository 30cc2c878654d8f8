"""One run of an experiment: its data, the hash that it is stored under, and how it is run or resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedfuse import Callback, Federation, Result
from fedfuse.data.catalog import load
from fedfuse.data.images import image_federation, read_images
from fedfuse.data.synthetic import SCENARIOS
from fedfuse.results.run_directory import RunDirectory
from fedfuse.studies.jobs import Job
from fedfuse.training.loop import Row, Run
from fedfuse.utils.files import read_arrays, read_json, write_arrays, write_json
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Floats, Ints

NEWCOMERS_FILE = "newcomers.json"
TEST_IMAGE_RATIO = 0.4  # Test images per training image where only some are used: with few, scores say little.
IMAGE_DEVICES = 20
IMAGE_FILES = ("mnist", "fashion-mnist")  # Data sets of images that are read from files.
_NOT_HASHED = ("checkpoint_every",)  # Settings that a result does not depend on.
# Part of every hash: raised when a method or a data set changes so that finished runs no longer stand for it.
RUNS_VERSION = "0.1.0"


@dataclass(frozen=True)
class Data:
    """A data set of the paper or a part of it."""

    name: str  # as for `data.load`
    rows: int | None = None  # at most, for training on a device; validation and test have a quarter of that each
    images: int | None = None  # for training in all, dealt by the same rule as all of them

    @property
    def kind(self) -> str:
        """``"synthetic"``, ``"housing-bodyfat"`` or ``"images"``."""
        return "images" if self.name in (*IMAGE_FILES, "digits") else self.name.partition(":")[0]

    @property
    def words(self) -> str:
        """What the data are called in tables and pictures."""
        if self.images:
            return f"{self.name}, {self.images:,} images"
        return f"{self.name}, at most {self.rows} rows" if self.rows else self.name

    @property
    def size(self) -> tuple[int, int]:
        """About how many devices there are, and how many training rows each has."""
        if self.kind == "images":
            return IMAGE_DEVICES, 70 if self.name == "digits" else (self.images or 60_000) // IMAGE_DEVICES
        if self.kind == "housing-bodyfat":
            return 8, 80
        sizes = self.name.partition(":")[2]
        devices = SCENARIOS[sizes] if sizes in SCENARIOS else map(int, sizes.split(","))
        return sum(devices), min(1650, int(0.8 * (self.rows or 10**6)))

    @lru_cache(maxsize=2)  # noqa: B019
    def load(self, seed: int, data_dir: str | None = None) -> Federation:
        """Return the federation of a seed."""
        if self.images is not None and self.name in IMAGE_FILES:
            train, test = read_images(self.name, data_dir)
            n_test = min(int(TEST_IMAGE_RATIO * self.images), 10_000)
            some = train.at(np.arange(min(self.images, len(train.labels)))), test.at(np.arange(n_test))
            return image_federation(*some, seed=seed, devices=IMAGE_DEVICES, min_rows=5)
        whole = load(self.name, seed=seed, data_dir=data_dir)
        return whole if self.rows is None else fewer_rows(whole, self.rows)


def fewer_rows(federation: Federation, rows: int) -> Federation:
    """Return a federation whose devices have at most so many training rows, and a quarter of that for the rest each."""
    rest, kept, cuts, end = max(1, rows // 4), [], [], 0
    for bounds in federation.cuts:
        begin, most = bounds[:3], np.minimum(np.diff(bounds), (rows, rest, rest))
        kept += [np.arange(a, a + n) for a, n in zip(begin, most, strict=True)]
        cuts.append([end, *(end + np.cumsum(most))])
        end = cuts[-1][-1]
    some = np.concatenate(kept)
    return replace(federation, X=federation.X[some], y=federation.y[some], cuts=np.array(cuts, dtype=np.int64))


def draw_newcomers(truth: Ints, share: float, seed: int) -> Ints:
    """Return the devices that join after training: this share of every group, drawn by the seed."""
    rng, groups = generator(seed, "newcomers"), [np.flatnonzero(truth == g) for g in np.unique(truth)]
    return np.sort(np.concatenate([rng.choice(g, max(1, round(share * len(g))), replace=False) for g in groups]))


@dataclass(frozen=True)
class Trial(Job):
    """A run that is stored under the hash of its description, and found there again."""

    recipe: Data = field(default_factory=lambda: Data("synthetic:S1"))
    at: tuple[int, ...] = ()  # rounds after which the models are kept, too
    curve: bool = False  # whether training loss and training score are evaluated whenever the others are
    newcomers: float = 0.0  # share of every group that is not in training and joins afterwards
    data_seed: int | None = None  # draws the data, where that is not the seed of the run

    @cached_property
    def description(self) -> dict[str, Any]:
        """All that the result depends on, as JSON-ready data."""
        return {
            "version": RUNS_VERSION,
            "data": asdict(self.recipe),
            "seed": self.seed,
            "data_seed": self._data_seed,
            "method": self.method.to_config(),
            "settings": {name: value for name, value in self.settings.items() if name not in _NOT_HASHED},
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
        return self.directory or Path(self.key)

    @property
    def done(self) -> bool:
        """Whether everything is there."""
        return RunDirectory(self.place).finished and (not self.newcomers or (self.place / NEWCOMERS_FILE).exists())

    @property
    def _data_seed(self) -> int:
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def whole_source(self) -> None:
        """Do not record where the data are: only the same command resumes the run."""

    def data(self, given: Federation | None = None) -> Federation:
        """Return all devices, newcomers included."""
        return given or self.recipe.load(self._data_seed, (self.source or {}).get("data_dir"))

    def perform(self, federation: Federation, callbacks: Sequence[Callback] = ()) -> Result:
        """Begin the run, resume it, or read its result."""
        early, missing = self._devices(federation)
        # Callbacks that add to a round's row come before those that read it.
        own = [*([_TrainingScores(early)] if self.curve else []), *([_KeepModels(self.at, self.place)] * bool(self.at))]
        result = super().perform(early, [*own, *callbacks])
        if missing is not None and not (self.place / NEWCOMERS_FILE).exists():
            write_json(self.place / NEWCOMERS_FILE, result.admit(missing).summary())
        return result

    def _devices(self, federation: Federation) -> tuple[Federation, Federation | None]:
        if not self.newcomers:
            return federation, None
        missing = draw_newcomers(np.asarray(federation.truth), self.newcomers, self.seed)
        return federation.only(np.setdiff1d(np.arange(federation.m), missing)), federation.only(missing)

    def result(self) -> Result:
        """Read the result."""
        return Result.load(self.place)

    def joined(self) -> dict[str, Any]:
        """Read the admission of newcomers (`Newcomers.summary`)."""
        return dict(read_json(self.place / NEWCOMERS_FILE))

    def models_at(self, k: int) -> Floats:
        """Read the models after k rounds (m x d)."""
        return np.asarray(read_arrays(self.place / f"after-{k}.npz")["models"])


class _KeepModels(Callback):
    """Saves the models after some rounds."""

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


class _TrainingScores(Callback):
    """Adds training loss and training score to the rows of rounds that are evaluated."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._rows: Any = None

    def on_round(self, run: Run, row: Row) -> None:
        if "test" not in row:
            return
        if self._rows is None:
            self._rows = run.model.load(self._federation.rows("train"), np.dtype(run.settings.dtype))
        everyone = np.arange(self._federation.m)
        losses, scores = run.model.losses_and_metric(self._rows, everyone, run.in_use().models)
        row["train_loss"], row["train"] = float(np.mean(losses)), float(np.mean(scores))
