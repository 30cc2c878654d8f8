"""Runs that are not done yet, many at a time; those that are done are found by their hash and left alone.

Each run is an ordinary run directory, so whatever is killed, and however, goes on from its last checkpoint. Some runs
depend on what others came to (settings that were chosen): experiments are asked again until they want nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedfuse.paper.experiment import Item
from fedfuse.paper.setup import PaperSetup, effort
from fedfuse.paper.trial import Trial
from fedfuse.studies.jobs import Watcher, directory_lock, run_jobs
from fedfuse.utils.threads import usable_cores


def wanted(items: Sequence[Item], setup: PaperSetup) -> list[Trial]:
    """Return the runs of these items that are known so far, each once."""
    trials = (trial for item in items for trial in item.experiment.trials(setup))
    return list({trial.key: trial for trial in trials}.values())


def missing(items: Sequence[Item], setup: PaperSetup) -> list[Trial]:
    """Return the runs that are not done, the longest first, so that no core is idle for long at the end."""
    rest = [trial for trial in wanted(items, setup) if not trial.done]
    return sorted(rest, key=lambda trial: (-effort(trial), trial.recipe.name, trial.seed))


def run(items: Sequence[Item], setup: PaperSetup, watcher: Watcher, jobs: int | None = None) -> dict[str, str]:
    """Run what is missing; return the messages of runs that failed, by key."""
    setup.home.mkdir(parents=True, exist_ok=True)
    failed: dict[str, str] = {}
    processes, advice = jobs or usable_cores(), "the same command goes on where it was"
    with directory_lock(setup.home):
        while rest := [trial for trial in missing(items, setup) if trial.key not in failed]:
            for trial, outcome in zip(rest, run_jobs(rest, processes, watcher, advice=advice), strict=True):
                if isinstance(outcome, str):
                    failed[trial.key] = f"{trial.label}, seed {trial.seed}: {outcome}"
                elif not trial.done:
                    failed[trial.key] = f"{trial.label}, seed {trial.seed}: its files are gone"
    return failed


def seconds(item: Item, setup: PaperSetup) -> float:
    """Return the time that an item's runs took, on one core each."""
    return sum(float(trial.result().seconds) for trial in wanted([item], setup) if trial.done)


def complete(item: Item, setup: PaperSetup) -> bool:
    """Whether all runs of an item are done."""
    here = item.experiment.datasets(setup) or not item.experiment.data
    return bool(here) and not missing([item], setup)


def cache(out: Path) -> Path:
    """Return where the runs of all items are kept."""
    return out / "cache"
