"""Runs that are not done yet, many at a time; those that are done are found by their hash.

Each run is an ordinary run directory, so that a killed one resumes from its last checkpoint. Some runs depend on what
others came to (settings that were chosen): experiments are asked again until they want nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedfuse import IFCA, FusionTree
from fedfuse.grouping.lambda_path import LambdaPath
from fedfuse.paper.experiment import Item
from fedfuse.paper.setup import PaperSetup
from fedfuse.paper.trials import Trial
from fedfuse.protocol.local_work import value
from fedfuse.studies.jobs import Watcher, run_jobs
from fedfuse.utils.files import directory_lock
from fedfuse.utils.threads import usable_cores

SECONDS_PER_ROUND = 0.004
SECONDS_PER_ROW = {"synthetic": 8e-8, "housing-bodyfat": 1e-7, "images": 5e-5}  # Of a gradient step, or of one pass.


def cache(out: Path) -> Path:
    """Return where the runs of all items are kept."""
    return out / "cache"


def wanted(items: Sequence[Item], setup: PaperSetup) -> list[Trial]:
    """Return the runs of these items that are known so far, each once."""
    trials = (trial for item in items for trial in item.experiment.trials(setup))
    return list({trial.key: trial for trial in trials}.values())


def missing(items: Sequence[Item], setup: PaperSetup) -> list[Trial]:
    """Return the runs that are not done, the longest first, so that no core is idle for long at the end."""
    rest = [trial for trial in wanted(items, setup) if not trial.done]
    return sorted(rest, key=lambda trial: (-effort(trial), trial.recipe.name, trial.seed))


def complete(item: Item, setup: PaperSetup) -> bool:
    """Whether all runs of an item are done."""
    return item.possible(setup) and not missing([item], setup)


def run(items: Sequence[Item], setup: PaperSetup, watcher: Watcher, jobs: int | None = None) -> dict[str, str]:
    """Run what is missing; return the messages of runs that failed, by key."""
    setup.home.mkdir(parents=True, exist_ok=True)
    failed: dict[str, str] = {}
    processes, advice = jobs or usable_cores(), "the same command goes on where it was"
    with directory_lock(setup.home):
        while rest := [trial for trial in missing(items, setup) if trial.key not in failed]:
            for trial, outcome in zip(rest, run_jobs(rest, processes, watcher, advice=advice), strict=True):
                if isinstance(outcome, str) or not trial.done:
                    problem = outcome if isinstance(outcome, str) else "its files are gone"
                    failed[trial.key] = f"{trial.label}, seed {trial.seed}: {problem}"
    return failed


def effort(trial: Trial) -> float:
    """Return about how many seconds of one core a run takes."""
    data, settings, whole = trial.recipe, trial.settings, trial.method
    method: Any = getattr(whole, "inner", whole)
    (m, rows), rounds = data.size, settings["rounds"]
    if isinstance(method, FusionTree) and data.kind != "images":
        return 1.5 + 0.003 * rows
    if isinstance(whole, LambdaPath):
        rounds = whole.limit * (len(whole.grid) if whole.strategy == "separate" else 1)
    active = m if method.name == "local" else max(1, int(settings.get("participation", 1.0) * m))
    if settings.get("mode") == "async":
        active = 1
    passes = value(method.work.steps, rounds // 2)
    if method.work.unit == "batches":
        passes *= (method.work.batch or rows) / rows
    if getattr(method, "average", "model") == "gradient":
        passes = 1.0
    if isinstance(method, IFCA) and method.n_models != "auto":
        passes += 0.5 * method.n_models  # To choose among the models takes half a gradient each.
    return float(rounds * (SECONDS_PER_ROUND + active * passes * rows * SECONDS_PER_ROW[data.kind]))
