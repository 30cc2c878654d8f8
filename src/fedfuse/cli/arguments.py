"""Arguments and options that several commands share, and what they stand for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from fedfuse.errors import FedfuseError

if TYPE_CHECKING:
    from fedfuse.methods.method import Method

Arg, Opt = typer.Argument, typer.Option


class Command(TyperCommand):
    """A command that keeps the help of its arguments, which some versions of typer lose with newer clicks."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        given = get_type_hints(self.callback, include_extras=True) if self.callback else {}
        for parameter in self.params:
            known = (getattr(note, "help", None) for note in getattr(given.get(parameter.name), "__metadata__", ()))
            if not getattr(parameter, "help", None):
                parameter.help = next(filter(None, known), None)


def place(text: str) -> Path:
    """Read a directory to write to; an empty text is an error, though Python takes it for the current directory."""
    if not text:
        raise typer.BadParameter("'' is not a directory; give a name, or . for the current one")
    return Path(text)


_DATASET = "A name from 'fedfuse data list', synthetic:5,5,5,5 for group sizes, or a .csv, .xlsx or .parquet file."
Dataset = Annotated[str, Arg(help=_DATASET)]
Json = Annotated[bool, Opt("--json", help="Print the summary as one JSON object, and nothing else.")]
DataDir = Annotated[Path | None, Opt(help="Directory of the data files (default: $FEDFUSE_DATA).")]
Seed = Annotated[int, Opt(help="Seed of every random draw.")]
Features = Annotated[str, Opt(help="Synthetic data: uniform or normal.")]
Engine = Annotated[str, Opt(help="Where devices compute: inprocess, workers (processes) or flower.")]
_PLACE: dict[str, Any] = {"parser": place, "metavar": "PATH"}
Out = Annotated[Path | None, Opt(**_PLACE, help="A new directory for the run (default: under runs/).")]
StudyOut = Annotated[Path | None, Opt(**_PLACE, help="A directory; an existing comparison in it is continued.")]
Set = Annotated[list[str], Opt("--set", help="key=value, e.g. steps=grow(20), mode=async, delay=uniform(0,20).")]
Jobs = Annotated[int | None, Opt(min=1, help="Runs at a time (default: one per core).")]
_ROUNDS = "Maximum number of rounds of a run (default: by data set and method, 500 for a table)."
Rounds = Annotated[int | None, Opt(help=_ROUNDS)]
_METRIC = "Metric to report: accuracy, balanced-accuracy, log-loss, auc, f1; rmse, mae, r2 (default: accuracy, rmse)."
Metric = Annotated[str | None, Opt(help=_METRIC)]
ClassWeight = Annotated[str | None, Opt(help="Weights of classes in training: balanced, or by class, e.g. a=1,b=5.")]


_TEST = "Share of each device's rows held out for the test; 0 for none (default: 0.2)."
_VALIDATION = "Share of the remaining rows for validation; 0 for none (default: 0.2)."
_IF_GIVEN = ("test", "validation", "split_by", "min_rows", "weight")
_WEIGHT = "Table: the column with the weight of each row (default: all equal)."
_SPLIT_BY = "Table: test on the last period of this column, or on the rows where it says test."
_MIN_ROWS = "Table: devices with fewer rows are left out of the search for groups and join afterwards as newcomers."


@dataclass(frozen=True)
class DataOptions:
    """Options that say which data are meant, besides their name."""

    features: Features = "uniform"
    device: Annotated[str | None, Opt(help="Table: the column that names the device of a row.")] = None
    target: Annotated[str | None, Opt(help="Table: the column to predict.")] = None
    task: Annotated[str | None, Opt(help="Table: classification or regression (default: chosen by the target).")] = None
    test: Annotated[float | None, Opt(metavar="SHARE", help=_TEST)] = None
    validation: Annotated[float | None, Opt(metavar="SHARE", help=_VALIDATION)] = None
    split_by: Annotated[str | None, Opt(metavar="COLUMN", help=_SPLIT_BY)] = None
    min_rows: Annotated[int | None, Opt(metavar="N", help=_MIN_ROWS)] = None
    weight: Annotated[str | None, Opt(metavar="COLUMN", help=_WEIGHT)] = None
    data_dir: DataDir = None

    def source(self) -> dict[str, Any]:
        """Return what `data.catalog.load` takes besides name and seed."""
        if self.task not in (None, "classification", "regression"):
            raise FedfuseError(f"--task must be classification or regression, got {self.task!r}")
        given = {name: getattr(self, name) for name in _IF_GIVEN if getattr(self, name) is not None}
        place = str(self.data_dir.absolute()) if self.data_dir else None
        columns = {"device": self.device, "target": self.target, "goal": self.task}
        return {"features": self.features, **columns, "data_dir": place, **given}


def with_data_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter ``data`` by one option for each field of `DataOptions`."""
    shared, parameters = get_type_hints(DataOptions, include_extras=True), []
    # get_type_hints of Python 3.10 hides what is annotated where the default is None; a signature does not.
    for own in inspect.signature(command, eval_str=True).parameters.values():
        known = [(f.name, f.default) for f in fields(DataOptions)] if own.name == "data" else [(own.name, own.default)]
        for name, default in known:
            hint = shared.get(name, own.annotation)
            parameters.append(inspect.Parameter(name, own.KEYWORD_ONLY, default=default, annotation=hint))

    def called(**given: Any) -> None:
        data = DataOptions(**{name: given.pop(name) for name in shared})
        command(data=data, **given)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def method_and_settings(
    dataset: str, method: str, words: list[str], seed: int, engine: str, model: str | None = None
) -> tuple[Method[Any], dict[str, Any]]:
    """Return the method, and what else the options tell `fit`; all of it checked."""
    from fedfuse.engines.factory import EngineSpec
    from fedfuse.models import is_network
    from fedfuse.training.options import build, parse_options
    from fedfuse.training.settings import Settings, check_mode

    options = parse_options(words, method)
    chosen, settings = build(dataset, method, options, network=model is not None and is_network(model))
    settings["seed"] = seed
    check_mode(chosen, Settings(**settings).mode)
    EngineSpec(engine, **options.engine)
    return chosen, {**settings, "engine": engine, **options.engine}


def words_of(pairs: list[str], **given: object) -> list[str]:
    """Return the words of ``--set`` and of options that stand for a key of their own."""
    return [*pairs, *(f"{key}={value}" for key, value in given.items() if value is not None)]


def refuse_key(key: str, pairs: list[str], reason: str) -> None:
    """Refuse a key of ``--set``; a word for one of several methods, as fedavg.rounds=5, is allowed."""
    if key in (pair.partition("=")[0].strip() for pair in pairs):
        raise FedfuseError(f"--set {key}: {reason}")


def read_seeds(text: str) -> list[int]:
    """Read ``--seeds``: how many, counted from 0, or which, separated by commas.

    >>> read_seeds("3"), read_seeds("0,5,7"), read_seeds("5,")
    ([0, 1, 2], [0, 5, 7], [5])
    """
    try:
        numbers = [int(word) for word in text.removesuffix(",").split(",")]
    except ValueError:
        numbers = []
    if not numbers or ("," not in text and numbers[0] < 1):
        raise FedfuseError(f"--seeds takes how many (at least 1) or which (0,5,7; a single one: 5,), got {text!r}")
    return numbers if "," in text else list(range(numbers[0]))


def next_directory(dataset: str, what: str) -> Path:
    """Return the first free directory below runs/ for this data set."""
    stem = f"{Path(dataset).stem if Path(dataset).suffix else dataset.replace(':', '-')}-{what}"
    number = 1
    while (path := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return path
