"""`compare`: methods x seeds, each an ordinary run; and `resume_comparison` for one that was interrupted."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
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
from fedfuse.results.run_directory import RunDirectory
from fedfuse.studies.comparison import Comparison
from fedfuse.studies.comparison_request import FILE, RUNS, Methods, Request, entries_of, seeds_of
from fedfuse.studies.jobs import Job, Watcher, directory_lock, finished_run, load_seed, run_jobs
from fedfuse.training.options import common_words
from fedfuse.utils.threads import usable_cores

log = logging.getLogger(__name__)


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
        The name of a data set or a file, as on the command line: a seed then changes the data (how they are drawn, or
        split) and the algorithm. Or a federation: all seeds then share its data, and all runs are in this process.
    methods
        Names; methods; or ``"all"``: those of the paper's tables, the fusion tree, and the oracle where the true groups
        are known. A dictionary gives names to several variants of one method.
    seeds
        How many, from 0 on, or which.
    model
        As for `fit`.
    out
        A directory for the runs and the tables. Calling again with the same directory continues the comparison; seeds
        and methods may be added then. (Methods of your own cannot be loaded by name: leave it out for them.)
    jobs
        Runs at a time, each in its own process; None for one per core. With more than one, a script must call this
        below ``if __name__ == "__main__":``.
    rounds, **settings
        As for `fit`, for all methods. Without them, those of `training.presets.preset` for the data set.
    words
        ``key=value`` or ``method.key=value``, as of ``--set``, for methods given by name; they override the settings.
    features, device, target, goal, data_dir, test, validation
        As for `data.load`, where a name is given.
    watcher
        Sees the progress of the runs.
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
    source = _source(data, features, columns)
    if jobs is not None and (not isinstance(jobs, Integral) or jobs < 1):
        raise FedfuseError(f"jobs must be a whole number of at least 1, got {jobs!r}")
    if source is None and jobs not in (None, 1):
        raise FedfuseError("a federation from Python cannot be built again in other processes: leave out jobs")
    given = settings if rounds is None else {**settings, "rounds": rounds}
    entries = entries_of(methods, data if isinstance(data, str) else "arrays", words, given)
    numbers, directory = seeds_of(seeds), None if out is None else Path(out)
    before = None if directory is None else _request_in(directory)
    witness = before.witness if before else numbers[0]
    federation = data if isinstance(data, Federation) else load_seed(source or {}, witness)
    if methods == "all" and federation.truth is None:
        log.warning("the oracle is left out: the true groups of these data are not known")
        entries = {label: entry for label, entry in entries.items() if not isinstance(entry.method, Oracle)}
    request = Request(
        data if isinstance(data, str) else name, source, witness, federation.fingerprint,
        None if model is None else type(model).__name__, common_words(words) | given, entries, numbers, repeats,
    )  # fmt: skip
    if before and directory:
        request = before.extended(request, directory)
    return _run(request, directory, model, jobs, watcher, None if source else federation)


def resume_comparison(
    directory: str | PathLike[str], jobs: int | None = 1, watcher: Watcher | None = None
) -> Comparison:
    """Continue the comparison in a directory, as `compare` does when it is called again."""
    path = Path(directory)
    request = Request.load(path)
    if request.source is None:
        raise FedfuseError(
            f"the comparison in {path} was started from Python on data without a name: go on with it there, by "
            "fedfuse.compare(federation, …, out=directory)"
        )
    if load_seed(request.source, request.witness).fingerprint != request.fingerprint:
        raise FedfuseError(f"the comparison in {path} belongs to another federation: its data are not these")
    return _run(request, path, None if request.model is None else model_called(request.model), jobs, watcher)


def is_comparison(directory: str | PathLike[str]) -> bool:
    """Whether a directory is that of a comparison."""
    return (Path(directory) / FILE).exists()


def _source(data: Any, features: str, columns: dict[str, Any]) -> dict[str, Any] | None:
    """Return what `data.load` needs besides the seed, with absolute paths; None for a federation."""
    if isinstance(data, str):
        place = columns["data_dir"]
        data_dir = None if place is None else str(Path(place).absolute())
        return {"dataset": absolute(data), "features": features, **columns, "data_dir": data_dir}
    if not isinstance(data, Federation):
        raise FedfuseError(f"data must be a Federation or the name of a data set, got {type(data).__name__}")
    for word, value in columns.items():
        if value is not None:
            raise FedfuseError(f"{word}={value!r} is for data sets given by name")
    return None


def _request_in(directory: Path) -> Request | None:
    """Return the request of the comparison in a directory; refuse a directory that holds something else."""
    if is_comparison(directory):
        return Request.load(directory)
    RunDirectory(directory).check_free()
    return None


def _run(
    request: Request,
    directory: Path | None,
    model: Model[Any] | None,
    jobs: int | None,
    watcher: Watcher | None,
    federation: Federation | None = None,
) -> Comparison:
    """Load the runs that are finished, run the others, and write the tables."""
    processes = 1 if federation else jobs or usable_cores()
    with ExitStack() as stack:
        home, advice = directory, ""
        if directory is not None:
            request.save(directory)
            stack.enter_context(directory_lock(directory))
            advice = f"go on with: fedfuse resume {shlex.quote(str(directory))}"
        elif processes > 1:  # Workers hand over their results in directories.
            home = Path(stack.enter_context(TemporaryDirectory(prefix="fedfuse-")))
        if home is not None:
            (home / RUNS).mkdir(exist_ok=True)
        every = [_job(request, label, seed, model, home) for seed in request.seeds for label in request.methods]
        rest = [job for job in every if job.directory is None or not RunDirectory(job.directory).finished]
        found = run_jobs(rest, processes, watcher or Watcher(), federation, advice)
        outcomes = {(job.label, job.seed): outcome for job, outcome in zip(rest, found, strict=True)}
        for job in every:
            if job.directory is not None and (job.label, job.seed) not in outcomes:
                outcomes[job.label, job.seed] = finished_run(job.directory)
    try:
        comparison = Comparison.of(request, outcomes)
    except FedfuseError:
        _withdraw(directory)
        raise
    if directory is not None:
        comparison.save(directory)
    return comparison


def _job(request: Request, label: str, seed: int, model: Model[Any] | None, home: Path | None) -> Job:
    entry, place = request.methods[label], None if home is None else request.run_directory(home, (label, seed))
    return Job(label, seed, entry.method, entry.settings, request.dataset, request.source, model, place)


def _withdraw(directory: Path | None) -> None:
    """Remove a comparison without any started run, so that the corrected command can use its directory."""
    if directory is None or any((directory / RUNS).iterdir()):
        return
    (directory / RUNS).rmdir()
    (directory / FILE).unlink(missing_ok=True)
    if not any(directory.iterdir()):
        directory.rmdir()
