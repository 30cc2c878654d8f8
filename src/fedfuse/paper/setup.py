"""Sizes of experiments: the paper's (full), an hour or two (middle), or minutes (quick).

An item says *what* is compared; a `Scale` says *how much*: rounds, seeds, rows. Tests replace ``SCALES["quick"]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from fedfuse import FPFC, FPFCL1
from fedfuse.data.download import missing_files
from fedfuse.methods.method import Method
from fedfuse.methods.parameters import Searchable
from fedfuse.paper.trials import Data, Trial
from fedfuse.training.options import Options, build
from fedfuse.training.presets import PAPER_LAMBDAS, Style
from fedfuse.tuning.grid_search import GridSearch

Size: TypeAlias = Literal["full", "middle", "quick"]
DEFAULT = "fusion-tree"
# Methods in the order of the paper's rows; then ours, and the oracle, which knows the groups.
PAPER = ("local", "fedavg", "lg-fedavg", "per-fedavg", "ifca", "cfl", "pacfl", "fpfc-l1", "fpfc")
OURS = (DEFAULT, "oracle")
PRINTED = {
    "local": "LOCAL", "fedavg": "FedAvg", "lg-fedavg": "LG", "per-fedavg": "Per-FedAvg", "ifca": "IFCA", "cfl": "CFL",
    "pacfl": "PACFL", "fpfc-l1": "FPFC-l1", "fpfc": "FPFC", DEFAULT: "fusion-tree", "oracle": "oracle",
}  # fmt: skip
# Settings that the authors published for images; on other data they are chosen on validation rows.
IMAGE_SETTINGS: dict[str, dict[str, Any]] = {"cfl": {"eps1": 0.05, "eps2": 0.1}, "pacfl": {"threshold": 2.0}}
NEVER_EVALUATE = 10**6
MAX_CANDIDATES = 15  # Of a grid search: CFL has 15, PACFL up to 13.
ATTACK_SETTINGS = ("attack", "liars", "scope")


@dataclass(frozen=True)
class Scale:
    """How much of everything an experiment has."""

    style: Style = "paper"  # of presets: "paper" as its tables were made, "usual" with fewer rounds
    seeds: tuple[int, ...] = (0, 1, 2)  # of tables; figures have the first
    rows: int | None = None  # of a device, at most: see `Data`
    images: int | None = None  # for training, in all: see `Data`
    rounds: Mapping[str, int] = field(default_factory=dict)  # by kind of data, in place of the preset's
    figure_rounds: Mapping[str, int] = field(default_factory=dict)  # of runs behind figures with many curves
    trial: int = 50  # rounds per candidate where settings are chosen
    starts: int = 50  # random initial values
    shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8)  # of liars
    few: bool = False  # whether attacks on images have only some methods, and sweeps only some values
    length: float = 1.0  # of runs with a length of their own: the share of it


# A run on images in "usual" style has 800 device-epochs: 40 rounds of 10 devices and 2 epochs.
SCALES: dict[Size, Scale] = {
    "full": Scale(figure_rounds={"synthetic": 2000, "housing-bodyfat": 200, "images": 40}),
    "middle": Scale(
        style="usual", seeds=(0,), rounds={"synthetic": 400}, starts=20, shares=(0.4, 0.8), few=True,
        figure_rounds={"synthetic": 400, "housing-bodyfat": 200, "images": 40},
    ),
    "quick": Scale(
        style="usual", seeds=(0,), rows=400, images=4000, rounds={"synthetic": 100, "images": 24}, trial=30, starts=10,
        figure_rounds={"synthetic": 60, "housing-bodyfat": 100, "images": 24}, shares=(0.4, 0.8), few=True,
        length=0.2,
    ),
}  # fmt: skip
SIZE_OPTIONS: dict[Size, str] = {"full": "", "middle": " --middle", "quick": " --quick"}


@dataclass(frozen=True)
class PaperSetup:
    """Where and how big: makes the trials that experiments ask for."""

    size: Size
    home: Path
    data_dir: str | None = None

    @property
    def scale(self) -> Scale:
        """How much of everything."""
        return SCALES[self.size]

    def recipe(self, name: str) -> Data:
        """Return the data that stand for a data set of the paper at this size."""
        if missing_files(name, self.data_dir) and self.substitutes(name):
            return Data("digits")
        kind = Data(name).kind
        if kind == "images":
            return Data(name, images=self.scale.images)
        return Data(name, rows=self.scale.rows) if kind == "synthetic" else Data(name)

    def words(self, name: str) -> str:
        """Return what the data are called in tables and pictures."""
        data = self.recipe(name)
        return f"{data.words} for {name}" if data.name == "digits" != name else data.words

    def substitutes(self, name: str) -> bool:
        """Whether the digits may stand for these images where their files are not here: for a first look only."""
        return self.size == "quick" and Data(name).kind == "images"

    def here(self, name: str) -> bool:
        """Whether the data are here, or others that may stand for them."""
        return not missing_files(name, self.data_dir) or self.substitutes(name)

    def check_data(self, names: tuple[str, ...]) -> list[str]:
        """Return what must be said of missing files; an error where nothing may stand for them."""
        words = []
        for name in names:
            lacking = missing_files(name, self.data_dir)
            if lacking and self.substitutes(name):
                words.append(f"the files of {name} are not here: scikit-learn's digits (8 x 8) stand for it")
            elif lacking and self.size == "quick":
                words.append(f"the files of {name} are not here ({lacking[0]}, …): it is left out")
            elif lacking:
                self.recipe(name).load(0, self.data_dir)  # says what to do
        return words

    def entry(
        self, name: str, label: str, given: Mapping[str, Any] = MappingProxyType({}), *, figure: bool = False
    ) -> tuple[Method[Any], dict[str, Any]]:
        """Return a method of the tables on a data set, with these fields of its own, and the settings of its runs.

        ``figure`` is for runs of which there are many: on images they are short at all sizes.
        """
        data = self.recipe(name)
        ours = label in OURS or given.get("lam") == "auto"
        style: Style = "usual" if ours or (figure and data.kind == "images") else self.scale.style
        method, settings = build(data.name, label, Options(method=dict(given), preset={"preset": style}))
        method = self._settled(method, data, label, given)
        rounds = (self.scale.figure_rounds if figure else self.scale.rounds).get(data.kind)
        if rounds is not None and not ours:
            settings["rounds"] = max(1, rounds * settings["rounds"] // _usual_rounds(data, label, style))
        if rounds is not None and label == DEFAULT and data.kind == "images":
            settings["rounds"] = rounds
        if not ours:
            settings["tol"] = 0.0
        often = {"evaluate_every": NEVER_EVALUATE, "checkpoint_every": max(25, settings["rounds"] // 40)}
        return method, settings | often

    def _settled(self, method: Method[Any], data: Data, label: str, given: Mapping[str, Any]) -> Method[Any]:
        """Return the method as the paper has it, whatever the style of the rest."""
        if isinstance(method, (FPFC, FPFCL1)):
            known = PAPER_LAMBDAS.get(("mnist" if data.kind == "images" else data.kind, label), method.lam)
            return replace(method, **({"lam": known, "refit": False, "nu": 0.1} | dict(given)))
        if data.kind == "images" and label in IMAGE_SETTINGS:
            return replace(method, **IMAGE_SETTINGS[label])
        return method

    def trial(
        self, name: str, label: str, method: Method[Any], settings: Mapping[str, Any], seed: int = 0, **extra: Any
    ) -> Trial:
        """Return the run of a method, or, as long as that is not done, the run that chooses its open settings."""
        data = self.recipe(name)
        trial = Trial(
            label=f"{PRINTED.get(label, label)} on {data.name}", seed=seed, method=method, settings=dict(settings),
            dataset=data.words, source={"data_dir": self.data_dir}, recipe=data, **extra,
        )  # fmt: skip
        if isinstance(method, Searchable) and method.has_open_settings:
            search = self._search(trial)
            if not search.done:
                return search
            trial = replace(trial, method=replace(method, **search.result().chosen))
        return replace(trial, directory=self.home / trial.key)

    def _search(self, trial: Trial) -> Trial:
        """Return the run that chooses a trial's open settings, without an attack."""
        rounds = self.scale.trial
        settings = {key: setting for key, setting in trial.settings.items() if key not in ATTACK_SETTINGS}
        settings |= {"rounds": MAX_CANDIDATES * (rounds + 1) + 1, "checkpoint_every": rounds}
        settings |= {"evaluate_every": NEVER_EVALUATE}
        method = GridSearch(inner=trial.method, trial=rounds)
        search = replace(trial, method=method, settings=settings, at=(), curve=False)
        return replace(search, directory=self.home / search.key)


def _usual_rounds(data: Data, label: str, style: Style) -> int:
    """Return the rounds of most methods where this one has those of its preset: the ratio between them is kept."""
    # In short runs on tables LOCAL has as many rounds as the others: it would look worse than it is.
    usual = "local" if label == "local" and data.kind != "images" else "fedavg"
    return int(build(data.name, usual, Options(preset={"preset": style}))[1]["rounds"])
