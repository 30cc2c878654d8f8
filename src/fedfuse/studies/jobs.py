"""Execution of many runs: one after another in this process, or in parallel in worker processes.

Every run has an ordinary run directory, so that interrupted work continues from its checkpoints. Workers are spawned,
not forked: compiled threads do not survive a fork. They ignore Ctrl-C (their parent asks them to stop after the current
round) and exit when their parent does.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from logging.handlers import BufferingHandler
from multiprocessing import active_children, connection, get_context, parent_process
from pathlib import Path
from typing import Any, TypeAlias

from fedfuse.data.catalog import load
from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError
from fedfuse.methods.method import Method
from fedfuse.models import Model
from fedfuse.results.result import Result
from fedfuse.results.run_directory import RunDirectory
from fedfuse.training.fit import fit, resume
from fedfuse.training.loop import Callback, Row, Run
from fedfuse.utils.threads import usable_cores

log = logging.getLogger(__name__)

DONE, FAILED = 1.0, -1.0  # In the place of the share of a job's rounds that is done.
POLL_SECONDS = 0.1
THREAD_VARIABLES = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
JobOutcome: TypeAlias = Result | str  # a result or an error message
JobReport: TypeAlias = tuple[str | None, list[str]]  # an error and warnings; a worker leaves the result in a directory


@dataclass(frozen=True)
class Job:
    """One run: a method on the data of a seed."""

    label: str
    seed: int
    method: Method[Any]
    settings: dict[str, Any]
    dataset: str
    source: dict[str, Any] | None
    model: Model[Any] | None = None
    directory: Path | None = None

    def perform(self, federation: Federation, callbacks: Sequence[Callback] = ()) -> Result:
        """Start the run, or resume it from its directory."""
        if self.directory is not None and RunDirectory(self.directory).started:
            return resume(self.directory, federation, callbacks)
        return fit(
            federation, self.method, self.model, seed=self.seed, out=self.directory, callbacks=callbacks,
            dataset=self.dataset, source=self.whole_source, **self.settings,
        )  # fmt: skip

    @property
    def whole_source(self) -> dict[str, Any] | None:
        """Everything that `data.load` needs to find the data."""
        return None if self.source is None else {**self.source, "seed": self.seed}

    def data(self, given: Federation | None) -> Federation:
        """Return the federation that was given, or else the one of the seed."""
        return given or load_seed(self.source or {}, self.seed)


def load_seed(source: dict[str, Any], seed: int) -> Federation:
    """Load the data of a seed; the last are kept, as jobs come seed by seed."""
    return _load_source(json.dumps({**source, "seed": seed}))


@lru_cache(maxsize=1)
def _load_source(source: str) -> Federation:
    return load(**json.loads(source))


def finished_run(directory: Path) -> JobOutcome:
    """Read the result of a run, or say why there is none."""
    if not RunDirectory(directory).finished:
        return "not finished"
    try:
        return Result.load(directory)
    except FedfuseError as problem:
        return str(problem)


class Watcher:
    """Observer of many jobs, such as a progress bar."""

    def begin(self, jobs: Sequence[Job]) -> None:
        """Before the first job."""

    def look(self, shares: Sequence[float]) -> None:
        """Now and then, with the share of each job that is done, or `FAILED`."""

    def stopping(self) -> None:
        """When jobs are asked to stop."""

    def close(self) -> None:
        """After the last job, or an error."""


class _Progress(Callback):
    """Writes the share of a run that is done to the board, and ends the run where the board says so.

    The board is an array that workers write and their parent reads: whether to stop, then the share of each job. There
    is no lock: a worker that is killed would never release it.
    """

    def __init__(self, board: Any, job: int, watcher: Watcher) -> None:
        self._board, self._job, self._watcher = board, job, watcher

    def put(self, share: float) -> None:
        self._board[1 + self._job] = share
        self._watcher.look(self._board[1:])

    def on_round(self, run: Run, row: Row) -> None:
        self.put(0.99 * run.k / run.settings.rounds)
        if self._board[0]:
            raise KeyboardInterrupt  # Training saves a checkpoint then.


def run_jobs(
    jobs: Sequence[Job], processes: int, watcher: Watcher, federation: Federation | None = None, advice: str = ""
) -> list[JobOutcome]:
    """Run jobs, so many processes at a time; return a result or an error message for each.

    With more than one process, each job must have a directory: results are read from there. ``federation`` is for jobs
    that cannot load their data. ``advice`` ends the error that is raised if a worker is killed.
    """
    processes = min(processes, len(jobs))
    try:
        if processes > 1:
            return _run_in_workers(jobs, processes, watcher)
        board = [0.0] * (1 + len(jobs))
        watcher.begin(jobs)
        return [_run(job, number, board, watcher, federation) for number, job in enumerate(jobs)]
    except BrokenProcessPool:
        problem = "a worker process was killed (is memory short?)"
        raise FedfuseError(f"{problem}; {advice}" if advice else problem) from None
    finally:
        watcher.close()
        _load_source.cache_clear()


def _run(job: Job, number: int, board: Any, watcher: Watcher, federation: Federation | None = None) -> JobOutcome:
    outcome: JobOutcome
    progress = _Progress(board, number, watcher)
    try:
        outcome = job.perform(job.data(federation), [progress])
    except Exception as problem:
        outcome = " ".join(str(problem).split())
        if not isinstance(problem, FedfuseError):
            outcome = f"{type(problem).__name__}: {outcome}"
    progress.put(FAILED if isinstance(outcome, str) else DONE)
    return outcome


def _run_in_workers(jobs: Sequence[Job], processes: int, watcher: Watcher) -> list[JobOutcome]:
    context = get_context("spawn")
    board = context.RawArray("d", 1 + len(jobs))
    others = set(active_children())
    pool = ProcessPoolExecutor(processes, context, _become_worker, (board,))
    try:
        with _worker_environment(max(1, usable_cores() // processes)):
            futures = [pool.submit(_work, number, job) for number, job in enumerate(jobs)]
        watcher.begin(jobs)
        _wait(futures, board, watcher)
        reports = [future.result() for future in futures]
    except BaseException:
        board[0] = 1
        watcher.stopping()
        try:
            pool.shutdown(cancel_futures=True)
        except KeyboardInterrupt:  # Ctrl-C again, while workers finish their rounds.
            for process in set(active_children()) - others:
                process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    for warning in dict.fromkeys(warning for _, warnings in reports for warning in warnings):
        log.warning("%s", warning)
    return [error or finished_run(job.directory or Path()) for job, (error, _) in zip(jobs, reports, strict=True)]


def _wait(futures: list[Future[JobReport]], board: Any, watcher: Watcher) -> None:
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, timeout=POLL_SECONDS)
        watcher.look(board[1:])
        for future in done:
            future.result()  # Raises at once if the pool is broken.


_board: Any  # The board of this worker.
_logged = BufferingHandler(1_000_000)  # What the library logs: only the parent may write to the terminal.


def _become_worker(board: Any) -> None:
    global _board
    _board = board
    _logged.setLevel(logging.WARNING)
    logger = logging.getLogger("fedfuse")
    logger.addHandler(_logged)
    logger.propagate = False
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit at once when the parent is gone, so that a repeated command finds no other process in its directory."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _work(number: int, job: Job) -> JobReport:
    if _board[0]:
        return "stopped", []
    try:
        outcome: JobOutcome = _run(job, number, _board, Watcher())
    except KeyboardInterrupt:
        outcome = "stopped"
    warnings = [record.getMessage() for record in _logged.buffer]
    _logged.flush()
    return outcome if isinstance(outcome, str) else None, warnings


@contextmanager
def _worker_environment(threads: int) -> Iterator[None]:
    """Start processes with this many threads each, and with Ctrl-C blocked from the first moment."""
    missing = {name: str(threads) for name in THREAD_VARIABLES if name not in os.environ}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
