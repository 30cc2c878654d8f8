"""How big an experiment is: the paper's size, one for an hour or two, or one for minutes.

An item says *what* is compared; here is *how much*: rounds, seeds, rows. Tests put a smaller `Scale` in the place of
``SCALES["quick"]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fedfuse.data.download import missing_files
from fedfuse.data.synthetic import SCENARIOS
from fedfuse.errors import FedfuseError
from fedfuse.grouping.lambda_path import LambdaPath
from fedfuse.methods import CFL, FPFC, FPFCL1, IFCA, PACFL
from fedfuse.methods.method import Method, Searchable
from fedfuse.paper.data import DEVICES, Data
from fedfuse.paper.trial import Trial
from fedfuse.protocol.local_work import Work, value
from fedfuse.training.options import build, parse_options
from fedfuse.training.presets import PAPER_LAMBDAS, Style
from fedfuse.tuning.grid_search import TRIAL_ROUNDS, GridSearch

Size: TypeAlias = Literal["full", "middle", "quick"]
AUTO = "fpfc auto"
# the paper's rows in its order; then ours, and what could be had by knowing the groups
PAPER = ("local", "fedavg", "lg-fedavg", "per-fedavg", "ifca", "cfl", "pacfl", "fpfc-l1", "fpfc")
OURS = (AUTO, "oracle")
CLUSTERING = frozenset({"ifca", "cfl", "pacfl", "fpfc-l1", "fpfc", *OURS})
PRINTED = {
    "local": "LOCAL", "fedavg": "FedAvg", "lg-fedavg": "LG", "per-fedavg": "Per-FedAvg", "ifca": "IFCA", "cfl": "CFL",
    "pacfl": "PACFL", "fpfc-l1": "FPFC-l1", "fpfc": "FPFC", AUTO: "FPFC auto", "oracle": "oracle",
}  # fmt: skip
# what the authors have published for images; on the other data both are chosen on validation rows
IMAGE_SETTINGS: dict[str, dict[str, Any]] = {"cfl": {"eps1": 0.05, "eps2": 0.1}, "pacfl": {"threshold": 2.0}}
NEVER = 10**6


@dataclass(frozen=True)
class Scale:
    """How much of everything.

    Attributes
    ----------
    style
        Presets of `options`: ``"paper"`` as the paper's tables were made, ``"usual"`` what needs fewer rounds.
    seeds
        Of the tables; figures have the first one.
    rows, images
        Less data: see `Data`.
    rounds
        By kind of data, in place of the preset's.
    figure_rounds
        Of the runs behind figures with many curves.
    trial
        Rounds for each candidate where settings are chosen.
    starts
        Random initial values.
    shares
        Of liars.
    few
        Whether attacks on images have only some of the methods, and sweeps only some of the values.
    short
        Runs with a length of their own (strategies, asynchrony) have their quick one, times this.
    """

    style: Style = "paper"
    seeds: tuple[int, ...] = (0, 1, 2)
    rows: int | None = None
    images: int | None = None
    rounds: Mapping[str, int] = field(default_factory=dict)
    figure_rounds: Mapping[str, int] = field(default_factory=dict)
    trial: int = 50
    starts: int = 50
    shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8)
    few: bool = False
    short: float | None = None


# a run on images in "usual" style has 800 device-epochs: 40 rounds of 10 devices and 2 epochs
SCALES: dict[Size, Scale] = {
    "full": Scale(figure_rounds={"synthetic": 2000, "housing-bodyfat": 200, "images": 40}),
    "middle": Scale(
        style="usual", seeds=(0,), rounds={"synthetic": 400}, starts=20, shares=(0.4, 0.8), few=True,
        figure_rounds={"synthetic": 400, "housing-bodyfat": 200, "images": 40},
    ),
    "quick": Scale(
        style="usual", seeds=(0,), rows=400, images=4000, rounds={"synthetic": 100, "images": 24}, trial=30, starts=10,
        figure_rounds={"synthetic": 60, "housing-bodyfat": 100, "images": 24}, shares=(0.4, 0.8), few=True,
        short=1.0,
    ),
}  # fmt: skip
WORDS: dict[Size, str] = {"full": "", "middle": " --middle", "quick": " --quick"}


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

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of tables."""
        return self.scale.seeds

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

    def entry(self, name: str, label: str, *, figure: bool = False) -> tuple[Method[Any], dict[str, Any]]:
        """Return a method of the tables on a data set, and the settings of its runs.

        ``figure`` is for runs of which there are many: on images they are short at all sizes.
        """
        data = self.recipe(name)
        style: Style = "usual" if label in OURS or (figure and data.kind == "images") else self.scale.style
        method, settings = build(data.name, "fpfc" if label == AUTO else label, parse_options([f"preset={style}"]))
        method = self._settled(method, data, label)
        rounds = (self.scale.figure_rounds if figure else self.scale.rounds).get(data.kind)
        if rounds is not None and label not in OURS:
            settings["rounds"] = max(1, rounds * settings["rounds"] // _usual_rounds(data, label, style))
        if rounds is not None and label == AUTO and data.kind == "images":
            settings["rounds"] = rounds
        if label not in OURS:
            settings["tol"] = 0.0
        return method, {**settings, "evaluate_every": NEVER, "checkpoint_every": max(25, settings["rounds"] // 40)}

    def _settled(self, method: Method[Any], data: Data, label: str) -> Method[Any]:
        """Return the method as the paper has it, whatever the style of the rest."""
        if isinstance(method, (FPFC, FPFCL1)) and label != AUTO:
            known = PAPER_LAMBDAS.get(("mnist" if data.kind == "images" else data.kind, label), method.lam)
            return replace(method, lam=known, refit=False, nu=0.1)
        if data.kind == "images" and label in IMAGE_SETTINGS:
            return replace(method, **IMAGE_SETTINGS[label])
        if isinstance(method, (CFL, PACFL)) and self.scale.trial != GridSearch.trial:
            return GridSearch(inner=method, trial=self.scale.trial)
        return method

    def trial(
        self,
        name: str,
        label: str,
        method: Method[Any],
        settings: Mapping[str, Any],
        seed: int = 0,
        **extra: Any,
    ) -> Trial:
        """Return the run of a method, to be found under its hash."""
        data = self.recipe(name)
        blank = Trial(
            label=f"{PRINTED.get(label, label)} on {data.name}", seed=seed, method=method, settings=dict(settings),
            dataset=data.words, source={"data_dir": self.data_dir}, recipe=data, **extra,
        )  # fmt: skip
        return replace(blank, directory=self.home / blank.key)


def _usual_rounds(data: Data, label: str, style: Style) -> int:
    """Return the rounds of most methods where this one has those of its preset: the ratio between them is kept.

    LOCAL has as many rounds as the others where it is about tables: it would look worse than it is in short runs.
    """
    own = build(data.name, label, parse_options([f"preset={style}"]))[1]["rounds"]
    if label == "local" and data.kind != "images":
        return int(own)
    return int(build(data.name, "fedavg", parse_options([f"preset={style}"]))[1]["rounds"])


# -- how long it may take: rough seconds of one core, for lists and for how long is left

_PER_ROUND = 0.004
_PER_ROW = {"synthetic": 8e-8, "housing-bodyfat": 1e-7, "images": 5e-5}  # of a gradient step, or of one pass
_ROWS = {"synthetic": 1650, "housing-bodyfat": 80, "images": 3000}
_CANDIDATES = 15


def effort(trial: Trial) -> float:
    """Return about how many seconds of one core a run takes."""
    data, method, settings = trial.recipe, trial.method, trial.settings
    kind, m = data.kind, _devices(data)
    rows = _ROWS[kind]
    if data.rows:
        rows = min(rows, int(0.8 * data.rows))
    if kind == "images":
        rows = 70 if data.name == "digits" else (data.images or 60_000) // m
    inner = getattr(method, "inner", method)
    if getattr(inner, "lam", None) == "auto" and kind != "images" and getattr(inner, "refit", False):
        return 1.5 + 0.003 * rows
    active = m if inner.name == "local" else max(1, int(_share(settings.get("participation", 1.0)) * m))
    if settings.get("mode") == "async":
        active = 1
    rounds = settings.get("rounds", 60)
    if isinstance(method, LambdaPath):
        rounds = method.limit * (len(method.grid) if method.strategy == "separate" else 1)
    elif isinstance(method, GridSearch) or (isinstance(method, Searchable) and method.has_open_settings):
        said = method.trial if isinstance(method, GridSearch) else None
        rounds += _CANDIDATES * (said or min(TRIAL_ROUNDS, rounds))
    per_device = _passes(inner.work, rows) if getattr(inner, "average", "model") != "gradient" else 1.0
    if isinstance(inner, IFCA) and inner.n_models != "auto":
        per_device += 0.5 * inner.n_models  # to choose among them; half a gradient each
    if settings.get("budget"):
        rounds, per_device = 1, settings["budget"] * (inner.work.batch or rows) / rows
    return float(rounds * (_PER_ROUND + active * per_device * rows * _PER_ROW[kind]))


def _devices(data: Data) -> int:
    if data.kind == "synthetic":
        sizes = data.name.partition(":")[2]
        return sum(SCENARIOS[sizes] if sizes in SCENARIOS else map(int, sizes.split(",")))
    return DEVICES if data.kind == "images" else 8


def _passes(work: Work, rows: int) -> float:
    steps = value(work.steps, 100)
    return steps * (work.batch or rows) / rows if work.unit == "batches" else steps


def _share(participation: Any) -> float:
    return participation if isinstance(participation, (int, float)) else 0.3


def check_size(quick: bool, middle: bool) -> Size:
    """Return the size that is asked for."""
    if quick and middle:
        raise FedfuseError("--quick and --middle are two sizes: give one of them")
    return "quick" if quick else "middle" if middle else "full"
