"""From the words of a command to data, a method and its settings, and a directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedfuse.cli.notices import notes
from fedfuse.errors import FedfuseError
from fedfuse.results.run_directory import Store

if TYPE_CHECKING:
    from fedfuse.data.federation import Federation


def method_and_settings(
    dataset: str,
    method: str,
    lam: float | Literal["auto"] | None,
    pairs: list[str],
    rounds: int | None,
    seed: int,
    engine: str = "inprocess",
    model: str | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Return the method, and what else `fit` is told by the options; all of it looked at."""
    from fedfuse.engines import EngineSpec
    from fedfuse.models import is_network
    from fedfuse.training.conditions import check_mode
    from fedfuse.training.options import build, parse_options
    from fedfuse.training.settings import Settings

    options = parse_options(pairs)
    refuse_rounds_twice(rounds, pairs)
    chosen, settings = build(dataset, method, options, lam, network=model is not None and is_network(model))
    settings["seed"] = seed
    if rounds is not None:
        settings["rounds"] = rounds
    check_mode(chosen, Settings(**settings).mode)
    EngineSpec(engine, **options.engine)
    return chosen, {**settings, "engine": engine, **options.engine}


def refuse_rounds_twice(rounds: int | None, pairs: list[str]) -> None:
    """Refuse --rounds beside --set rounds; fedavg.rounds=5 for one of many methods may stand beside it."""
    from fedfuse.training.options import common_words

    if rounds is not None and "rounds" in common_words(pairs):
        raise FedfuseError(f"--set rounds is one limit too many: --rounds {rounds} is given; leave one of them out")


def source_of(
    dataset: str,
    features: str,
    device: str | None,
    target: str | None,
    task: str | None,
    seed: int,
    data_dir: Path | None,
) -> dict[str, Any]:
    """Return what `data.catalog.load` needs to find the data, now and when a run is resumed."""
    from fedfuse.data.catalog import absolute

    return {
        "dataset": absolute(dataset), "features": features, "device": device, "target": target, "goal": goal_of(task),
        "seed": seed, "data_dir": str(data_dir.absolute()) if data_dir else None,
    }  # fmt: skip


def goal_of(task: str | None) -> str | None:
    if task not in (None, "classification", "regression"):
        raise FedfuseError(f"--task must be classification or regression, got {task!r}")
    return task


def load_from(source: dict[str, Any]) -> Federation:
    from fedfuse.data.catalog import load

    federation = load(**source)
    notes.show()
    return federation


def free_directory(out: Path | None, dataset: str, method: str, seed: int) -> Path:
    directory = out or next_directory(dataset, f"{method}-seed{seed}")
    Store(directory).check_free()
    return directory


def next_directory(dataset: str, what: str) -> Path:
    """Return the first free directory below runs/ for this data set."""
    stem = f"{Path(dataset).stem if Path(dataset).suffix else dataset.replace(':', '-')}-{what}"
    number = 1
    while (path := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return path
