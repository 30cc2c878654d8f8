"""`compare`: methods x seeds, each an ordinary run; and going on with a comparison that was interrupted."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from numbers import Integral
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedfuse.data.catalog import absolute
from fedfuse.data.federation import Federation, Goal
from fedfuse.data.synthetic import FeatureDistribution
from fedfuse.errors import FedfuseError
from fedfuse.grouping.refit import Oracle
from fedfuse.models import Model, model_called
from fedfuse.results.result import Result
from fedfuse.results.run_directory import Store
from fedfuse.studies.comparison import Comparison
from fedfuse.studies.comparison_request import FILE, Entry, Methods, Request, entries_of, seeds_of
from fedfuse.studies.jobs import (
    Job,
    Watcher,
    alone_in,
    forget_data,
    loaded,
    loaded_or_error,
    run_here,
    run_in_workers,
)
from fedfuse.training.options import common_words
from fedfuse.utils.threads import usable_cores

log = logging.getLogger(__name__)

RUNS = "runs"


def compare(
    data: Federation | str,
    methods: Methods = "all",
    seeds: int | Iterable[int] = 3,
    *,
    model: Model[Any] | None = None,
    out: str | PathLike[str] | None = None,
    jobs: int | None = 1,
    rounds: int | None = None,
    words: Sequence[str] = (),
    features: FeatureDistribution = "uniform",
    device: str | None = None,
    target: str | None = None,
    goal: Goal | None = None,
    data_dir: str | PathLike[str] | None = None,
    test: float | None = None,
    validation: float | None = None,
    watcher: Watcher | None = None,
    name: str = "arrays",
    repeats: str = "seed",
    **settings: Any,
) -> Comparison:
    """Compare methods on the same data, by mean and spread over seeds.

    Parameters
    ----------
    data
        The name of a data set or a file, as on the command line: then a seed changes the data (how they are drawn, or
        split) and the algorithm. Or a federation: then all seeds have the same data, and the runs are in this process,
        as a federation cannot be built again in another.
    methods
        Names, or ``"all"`` (with the oracle where the true groups are known); methods; or both. A dictionary gives
        names to several variants of one method.
    seeds
        How many, from 0 on, or which.
    model
        As for `fit`.
    out
        A directory for the runs and the tables. Calling again with the same directory goes on where it was; more
        seeds and more methods may be asked for then. (Methods of your own cannot be found again by name: for them,
        leave it out.)
    jobs
        Runs at a time, each in a process of its own; None for as many as there are cores. With more than one, a
        script must call this below ``if __name__ == "__main__":``.
    rounds, **settings
        As for `fit`, for all methods. Without them, those of `training.presets.preset` for the data set.
    words
        ``key=value`` or ``method.key=value``, as of ``--set``, for methods given by name; they count more than the
        settings of all.
    features, device, target, goal, data_dir, test, validation
        As for `data.load`, where a name is given.
    watcher
        Sees how the runs get on.
    name, repeats
        What a federation is called in tables, and what the runs of a method differ by.

    Examples
    --------
    >>> import numpy as np, fedfuse as ff
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(6, 50, 2))
    >>> y = [x @ ([1, 2] if i < 3 else [-2, 1]) + 0.1 * rng.normal(size=50) for i, x in enumerate(X)]
    >>> fed = ff.Federation.from_arrays(list(zip(X, y)))
    >>> found = ff.compare(fed, {"alone": ff.FPFC(lam=0.0), "fused": ff.FPFC(lam=0.5)}, seeds=2, rounds=30)
    >>> found.table["n_clusters"].to_dict()
    {'alone': 6.0, 'fused': 2.0}
    """
    columns: dict[str, Any] = {"device": device, "target": target, "goal": goal, "data_dir": data_dir}
    columns |= {part: share for part, share in (("test", test), ("validation", validation)) if share is not None}
    _check(data, jobs, columns)
    known = data if isinstance(data, str) else "arrays"
    given = settings if rounds is None else {**settings, "rounds": rounds}
    entries, numbers = entries_of(methods, known, words, given), seeds_of(seeds)
    directory = None if out is None else Path(out)
    before = _request_in(directory)
    witness = before.witness if before else numbers[0]
    source = _source(data, features, columns) if isinstance(data, str) else None
    federation = data if isinstance(data, Federation) else loaded(source or {}, witness)
    if methods == "all" and federation.truth is None:
        entries = _without_oracle(entries)
    request = Request(
        dataset=data if isinstance(data, str) else name, source=source, witness=witness,
        fingerprint=federation.fingerprint,
        model=None if model is None else type(model).__name__, common=common_words(words) | given,
        entries=entries, seeds=numbers, repeats=repeats,
    )  # fmt: skip
    if before and directory:
        request = before.extended(request, directory)
    return _run(request, directory, model, jobs, None if source else federation, watcher or Watcher())


def resume_comparison(
    directory: str | PathLike[str], jobs: int | None = 1, watcher: Watcher | None = None
) -> Comparison:
    """Go on with the comparison in a directory, as `compare` does when it is called again."""
    path = Path(directory)
    request = Request.load(path)
    if request.source is None:
        raise FedfuseError(
            f"the comparison in {path} was started from Python on data without a name: go on with it there, by "
            "fedfuse.compare(federation, …, out=directory)"
        )
    if loaded(request.source, request.witness).fingerprint != request.fingerprint:
        raise FedfuseError(f"the comparison in {path} belongs to another federation: its data are not these")
    model = None if request.model is None else model_called(request.model)
    return _run(request, path, model, jobs, None, watcher or Watcher())


def is_comparison(directory: str | PathLike[str]) -> bool:
    """Whether a directory is that of a comparison."""
    return (Path(directory) / FILE).exists()


def _check(data: Any, jobs: Any, columns: dict[str, Any]) -> None:
    if not isinstance(data, (str, Federation)):
        raise FedfuseError(f"data must be a Federation or the name of a data set, got {type(data).__name__}")
    if jobs is not None and (not isinstance(jobs, Integral) or jobs < 1):
        raise FedfuseError(f"jobs must be a whole number of at least 1, got {jobs!r}")
    if isinstance(data, str):
        return
    if jobs not in (None, 1):
        raise FedfuseError("a federation from Python cannot be built again in other processes: leave out jobs")
    for word, value in columns.items():
        if value is not None:
            raise FedfuseError(f"{word}={value!r} is for data sets given by name")


def _source(name: str, features: str, columns: dict[str, Any]) -> dict[str, Any]:
    """Return what `data.load` needs besides the seed, so that it finds the data from anywhere."""
    place = columns["data_dir"]
    whole = {"data_dir": None if place is None else str(Path(place).absolute())}
    return {"dataset": absolute(name), "features": features, **columns, **whole}


def _request_in(directory: Path | None) -> Request | None:
    """Return the request of the comparison in a directory; refuse a directory that holds something else."""
    if directory is None:
        return None
    if is_comparison(directory):
        return Request.load(directory)
    Store(directory).check_free()
    return None


def _without_oracle(entries: dict[str, Entry]) -> dict[str, Entry]:
    rest = {label: entry for label, entry in entries.items() if not isinstance(entry.method, Oracle)}
    if len(rest) < len(entries):
        log.warning("the oracle is left out: the true groups of these data are not known")
    return rest


def _run(
    request: Request,
    directory: Path | None,
    model: Model[Any] | None,
    jobs: int | None,
    federation: Federation | None,
    watcher: Watcher,
) -> Comparison:
    """Load what is finished, run what is not, and write the tables."""
    if directory is not None:
        request.save(directory)
    with _room(directory, jobs if federation is None else 1) as (home, processes):
        if home is not None:
            (home / RUNS).mkdir(exist_ok=True)
        everything = [
            Job(label, seed, entry.method, entry.settings, request.dataset, request.source, model,
                None if home is None else home / RUNS / f"{label}-seed{seed}")
            for seed in request.seeds for label, entry in request.entries.items()
        ]  # fmt: skip
        finished = [job for job in everything if job.directory is not None and Store(job.directory).finished]
        outcomes = {(job.label, job.seed): loaded_or_error(job.directory) for job in finished if job.directory}
        rest = [job for job in everything if (job.label, job.seed) not in outcomes]
        try:
            found = _performed(rest, min(processes, len(rest)), federation, watcher)
        except BrokenProcessPool:
            how = "" if directory is None else f"; go on with: fedfuse resume {shlex.quote(str(directory))}"
            raise FedfuseError(f"a worker process was killed (is memory short?){how}") from None
        outcomes |= {(job.label, job.seed): outcome for job, outcome in zip(rest, found, strict=True)}
    try:
        comparison = Comparison.of(request, outcomes)
    except FedfuseError:
        _withdraw(directory)
        raise
    if directory is not None:
        comparison.save(directory)
    return comparison


def _withdraw(directory: Path | None) -> None:
    """Remove a comparison of which no run got under way: the corrected command may have its directory."""
    if directory is None or any((directory / RUNS).iterdir()):
        return
    (directory / RUNS).rmdir()
    (directory / FILE).unlink(missing_ok=True)
    if not any(directory.iterdir()):
        directory.rmdir()


def _performed(
    jobs: Sequence[Job], processes: int, federation: Federation | None, watcher: Watcher
) -> list[Result | str]:
    try:
        return run_in_workers(jobs, processes, watcher) if processes > 1 else run_here(jobs, federation, watcher)
    finally:
        watcher.close()
        forget_data()


@contextmanager
def _room(directory: Path | None, jobs: int | None) -> Iterator[tuple[Path | None, int]]:
    """Give the directory for the runs, which is one for the moment where none was asked for, and workers need one."""
    processes = usable_cores() if jobs is None else jobs
    if directory is not None:
        with alone_in(directory):
            yield directory, processes
    elif processes > 1:
        with TemporaryDirectory(prefix="fedfuse-") as moment:
            yield Path(moment), processes
    else:
        yield None, 1
