"""The runs of a comparison, one after the other here or many at a time in worker processes.

Each run is an ordinary run directory, so a comparison that was interrupted or killed goes on where it was. Workers
are spawned, not forked: compiled threads do not survive a fork. They do not hear Ctrl-C (their parent does, and asks
them to stop after the round at work) and end when their parent does, however it ends.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing import active_children, connection, get_context, parent_process
from pathlib import Path
from typing import Any

from fedfuse.data.catalog import load
from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError
from fedfuse.methods.method import Method
from fedfuse.models import Model
from fedfuse.results.result import Result
from fedfuse.results.run_directory import Store
from fedfuse.training.fit import fit, resume
from fedfuse.training.loop import Callback, Row, Run
from fedfuse.utils.threads import usable_cores

log = logging.getLogger(__name__)

WAITING, RUNNING, DONE, FAILED = range(4)
GLANCE = 0.1  # seconds between two looks at the workers
THREADS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


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
        """Begin the run, or go on with it where it was."""
        if self.directory is not None and Store(self.directory).started:
            return resume(self.directory, federation, callbacks)
        return fit(
            federation, self.method, self.model, seed=self.seed, out=self.directory, callbacks=callbacks,
            dataset=self.dataset, source=self.whole_source, **self.settings,
        )  # fmt: skip

    @property
    def whole_source(self) -> dict[str, Any] | None:
        return None if self.source is None else {**self.source, "seed": self.seed}

    def data(self, given: Federation | None) -> Federation:
        """Return the federation that was given, or else the one of the seed."""
        return given or loaded(self.source or {}, self.seed)


def loaded(source: dict[str, Any], seed: int) -> Federation:
    """Load the data of a seed, once for all methods: jobs come seed by seed."""
    return _loaded(json.dumps({**source, "seed": seed}))


@lru_cache(maxsize=1)
def _loaded(source: str) -> Federation:
    return load(**json.loads(source))


def forget_data() -> None:
    """Let go of the data that were loaded last."""
    _loaded.cache_clear()


# What `Board` knows of a job: state, rounds done and rounds at the most.
State = tuple[int, int, int]


class Board:
    """How far every job is: numbers that workers write and their parent reads.

    There is no lock, as a worker that is killed would never give it back.
    """

    def __init__(self, cells: Any) -> None:
        self.cells = cells  # whether to stop; then for every job its state, rounds done and rounds at the most

    @staticmethod
    def size(jobs: int) -> int:
        return 1 + 3 * jobs

    @property
    def stop(self) -> bool:
        return bool(self.cells[0])

    def ask_to_stop(self) -> None:
        self.cells[0] = 1

    def put(self, job: int, *numbers: int) -> None:
        """Write a job's state and, where they are given, its rounds done and rounds at the most."""
        for place, number in enumerate(numbers):
            self.cells[1 + 3 * job + place] = number

    def get(self, job: int) -> State:
        """Return a job's state, rounds done and rounds at the most (0 where the method decides itself)."""
        state, done, most = self.cells[1 + 3 * job : 4 + 3 * job]
        return state, done, most


class Watcher:
    """Sees how the jobs get on."""

    def begin(self, jobs: Sequence[Job]) -> None:
        """Before the first job."""

    def look(self, board: Board) -> None:
        """Now and then."""

    def stopping(self) -> None:
        """When jobs are asked to stop."""

    def close(self) -> None:
        """After the last job, or an error."""


class _Pulse(Callback):
    """Writes on the board how far a run is, and ends it where the board says so."""

    def __init__(self, board: Board, job: int, watcher: Watcher | None = None) -> None:
        self._board, self._job, self._watcher = board, job, watcher

    def on_start(self, run: Run) -> None:
        self._write(run)

    def on_round(self, run: Run, row: Row) -> None:
        self._write(run)

    def _write(self, run: Run) -> None:
        most = 0 if run.now.rounds else run.stage_start + run.settings.rounds
        self._board.put(self._job, RUNNING, run.k, most)
        if self._watcher:
            self._watcher.look(self._board)
        if self._board.stop:
            raise KeyboardInterrupt  # training saves a checkpoint then


@dataclass(frozen=True)
class JobReport:
    """What a worker says of a job: an error, and what was logged."""

    error: str | None
    notes: list[str] = field(default_factory=list)


def run_here(jobs: Sequence[Job], given: Federation | None, watcher: Watcher) -> list[Result | str]:
    """Perform jobs in this process; return a result or an error message for each."""
    board = Board([0] * Board.size(len(jobs)))
    outcomes: list[Result | str] = []
    watcher.begin(jobs)
    for number, job in enumerate(jobs):
        board.put(number, RUNNING)
        watcher.look(board)
        try:
            outcomes.append(job.perform(job.data(given), [_Pulse(board, number, watcher)]))
        except Exception as problem:
            outcomes.append(_message(problem))
        board.put(number, FAILED if isinstance(outcomes[-1], str) else DONE)
        watcher.look(board)
    return outcomes


def run_in_workers(jobs: Sequence[Job], processes: int, watcher: Watcher) -> list[Result | str]:
    """Perform jobs in worker processes; return a result or an error message for each.

    Results come by way of the run directories, which all jobs must have. A worker that is killed breaks the pool, and
    that is raised; what was done is kept in the directories.
    """
    context = get_context("spawn")
    board = Board(context.RawArray("q", Board.size(len(jobs))))
    others = set(active_children())
    pool = ProcessPoolExecutor(processes, context, _become_worker, (board.cells,))
    try:
        with _as_workers_should_be(max(1, usable_cores() // processes)):
            futures = [pool.submit(_work, number, job) for number, job in enumerate(jobs)]
        watcher.begin(jobs)
        _watch(futures, board, watcher)
        reports = [future.result() for future in futures]
    except BaseException:
        board.ask_to_stop()
        watcher.stopping()
        with _second_interrupt_ends(others):
            pool.shutdown(cancel_futures=True)
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    for note in dict.fromkeys(note for report in reports for note in report.notes):
        log.warning("%s", note)
    return [_collected(job, report) for job, report in zip(jobs, reports, strict=True)]


def _watch(futures: list[Future[JobReport]], board: Board, watcher: Watcher) -> None:
    waiting: set[Future[JobReport]] = set(futures)
    while waiting:
        done, waiting = wait(waiting, timeout=GLANCE)
        watcher.look(board)
        for future in done:
            future.result()  # a broken pool is to be heard of at once


def _collected(job: Job, report: JobReport) -> Result | str:
    if report.error is not None or job.directory is None:
        return report.error or ""
    return loaded_or_error(job.directory)


def loaded_or_error(directory: Path) -> Result | str:
    """Return the result of a finished run, or what is wrong with it."""
    try:
        return Result.load(directory)
    except FedfuseError as problem:
        return str(problem)


def _message(problem: Exception) -> str:
    """Say in one line what went wrong; what nobody has foreseen goes with the name of its kind."""
    text = " ".join(str(problem).split())
    return text if isinstance(problem, FedfuseError) else f"{type(problem).__name__}: {text}"


# -- in a worker

_board: Board  # of this worker


def _become_worker(cells: Any) -> None:
    global _board
    _board = Board(cells)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Leave at once when the parent is gone: whoever begins the comparison again must find nobody at work."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _work(number: int, job: Job) -> JobReport:
    if _board.stop:
        return JobReport("stopped")
    _board.put(number, RUNNING)
    error = None
    with _collected_notes() as notes:
        try:
            job.perform(job.data(None), [_Pulse(_board, number)])
        except KeyboardInterrupt:
            error = "stopped"
        except Exception as problem:
            error = _message(problem)
    _board.put(number, FAILED if error else DONE)
    return JobReport(error, notes)


@contextmanager
def _collected_notes() -> Iterator[list[str]]:
    """Collect what the library logs: only the parent may write to the terminal."""
    notes: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("fedfuse")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield notes
    finally:
        logger.removeHandler(handler)


# -- around workers


@contextmanager
def _as_workers_should_be(threads: int) -> Iterator[None]:
    """Let processes started here inherit a number of threads each, and be deaf to Ctrl-C from their first moment."""
    missing = {name: str(threads) for name in THREADS if name not in os.environ}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _second_interrupt_ends(others: set[Any]) -> Iterator[None]:
    """End the workers at once if the person at the keyboard does not want to wait for their rounds."""
    try:
        yield
    except KeyboardInterrupt:
        for process in set(active_children()) - others:
            process.terminate()


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Keep other comparisons out of a directory; the system lets go of it even when this process is killed."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FedfuseError(f"another process is at work on the comparison in {directory}") from None
        except OSError:  # some file systems have no locks
            log.debug("no lock on %s", directory)
        yield
    finally:
        os.close(handle)
