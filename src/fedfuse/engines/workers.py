"""Worker processes: devices on several cores, one process and one thread each.

Any worker can do any device's order: all of them map the same rows, and what a device remembers (its own last model)
stays here and goes along with its orders. So orders go to any free worker, the longest first, and those of a worker
that died go to another. Randomness is keyed by device, hence neither the number of workers nor who does what changes a
bit.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from fedfuse.data.federation import Federation
from fedfuse.engines.base import Engine
from fedfuse.engines.in_process import InProcess, group_orders
from fedfuse.errors import FedfuseError
from fedfuse.models.model import Model
from fedfuse.protocol.privacy import Noise
from fedfuse.protocol.tasks import Order, Reply, Rescale
from fedfuse.utils.threads import keep_to, usable_cores
from fedfuse.utils.typing import Floats

log = logging.getLogger(__name__)

# Workers that may end over one order, or before they could begin.
MAX_DEATHS = 3
# Seconds that a process has between closing its pipe and its end.
EXIT_SECONDS = 5.0

_CONTEXT = get_context("spawn")
_MAIN = 'In a script, put the call under `if __name__ == "__main__":`; standard error has what the worker said'


def check_workers(workers: int | None) -> int:
    """Return the number of workers; None is one for each usable core."""
    if workers is None:
        return usable_cores()
    if not isinstance(workers, Integral) or workers < 1:
        raise FedfuseError(f"workers must be a whole number of at least 1, got {workers!r}")
    return int(workers)


# -- messages between this process and a worker


class Edition(NamedTuple):
    """The scale of all devices' columns, and how often it has changed."""

    number: int
    scale: Rescale | None


class Lot(NamedTuple):
    """Orders for one worker, with the columns that they see and their devices' own last models."""

    edition: Edition
    orders: list[Order]
    own: Floats


class Done(NamedTuple):
    """All orders of a lot are performed; without replies the first message of a worker that can take one."""

    replies: list[Reply]
    own: Floats  # the devices' new last models


class Failed(NamedTuple):
    """An order raised an error, and nothing of its lot counts; or the setup did."""

    error: str
    trace: str


class Workers(Engine):
    """Devices whose orders are performed by processes beside this one.

    Processes start with the first orders and end with `close`, or with this process. In a script, the call that leads
    here belongs under ``if __name__ == "__main__":`` (each worker imports the script to find its classes).

    Parameters
    ----------
    federation, model, seed, dtype, noise
        As for `InProcess`; the model must be one that can be pickled.
    workers
        How many processes; one for each usable core by default.
    """

    def __init__(
        self,
        federation: Federation,
        model: Model[Any],
        *,
        workers: int | None = None,
        seed: int = 0,
        dtype: npt.DTypeLike = np.float32,
        noise: Noise | None = None,
    ) -> None:
        if os.name != "posix":
            raise FedfuseError("engine 'workers' needs Linux or macOS; use engine='inprocess'")
        self._size = min(check_workers(workers), federation.m)
        # truth and encoder are not for devices, and rows are shared: one copy for all workers, without a name
        self._rows = _CONTEXT.RawArray("b", max(federation.X.nbytes, 1))
        _mapped(self._rows, federation)[:] = federation.X
        devices = replace(federation, truth=None, encoder=None, X=federation.X[:0])
        self._setup = _pickled(devices, model, {"seed": seed, "dtype": dtype, "noise": noise})
        self._names = federation.names
        self._cost = federation.rows("all").counts
        self._own: Floats = np.zeros((federation.m, model.d), dtype)  # the devices' own last models
        self._edition = Edition(0, None)
        self._workers: list[_Worker] = []
        self._queue: list[_Job] = []
        self._asked: set[int] = set()  # devices with an order under way
        self._min_cost = 0.0  # of a lot
        self._replies: list[Reply] = []
        self._submissions = self._stillborn = 0
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """The process numbers of the workers that are there now."""
        return [w.process.pid for w in self._workers if w.process.pid is not None]

    def submit(self, orders: Sequence[Order]) -> None:
        """Send these orders, also while others are under way; a device has at most one at a time."""
        if self._closed:
            raise FedfuseError("this engine is closed")
        for order in orders:
            if order.device in self._asked:
                raise FedfuseError(f"{self._text(order)}: the device has an order under way already")
        self._submissions += 1
        self._min_cost = self._cost[[o.device for o in orders]].sum() / (8 * self._size)
        for alike in group_orders(orders):
            if isinstance(alike[0].task, Rescale):  # orders from now on see the new columns
                self._edition = Edition(self._edition.number + 1, alike[0].task)
                self._replies += [Reply(o.device, o.round, np.empty(0)) for o in alike]
                continue
            for order in alike:
                cost = int(self._cost[order.device])
                heappush(self._queue, _Job(self._submissions, -cost, order.device, order, self._edition))
            self._asked.update(o.device for o in alike)
        self._dispatch()

    @property
    def busy(self) -> frozenset[int]:
        return frozenset(self._asked)

    def pack(self) -> dict[str, npt.NDArray[Any]] | None:
        """Return nothing, if nothing is under way: what is must be asked for again."""
        return None if self._asked or self._replies else {}

    def collect(self, patience: float | None = None) -> list[Reply]:
        """Wait for at least one reply; an empty list says that nothing is under way, or that time is over."""
        end = None if patience is None else time.monotonic() + patience
        while self._asked and not self._replies:
            self._dispatch()
            left = None if end is None else max(0.0, end - time.monotonic())
            ready = wait([w.connection for w in self._workers], left)
            if not ready:
                break
            for worker in [w for w in self._workers if w.connection in ready]:
                self._receive(worker)
            self._dispatch()
        replies, self._replies = self._replies, []
        return replies

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        self._closed = True
        ending, self._workers, self._queue = self._workers, [], []
        self._asked.clear()
        for worker in ending:
            worker.process.kill()  # they hold nothing that could be lost
        for worker in ending:
            worker.end()

    def _dispatch(self) -> None:
        """Give waiting orders to free workers; start those that are missing."""
        while self._queue and len(self._workers) < self._size:
            self._workers.append(_started(self._rows))
        for worker in [w for w in self._workers if w.ready and not w.jobs]:
            if self._queue:
                worker.jobs = self._next_lot()
                orders = [job.order for job in worker.jobs]
                self._send(worker, Lot(worker.jobs[0].edition, orders, self._own[[o.device for o in orders]]))

    def _send(self, worker: _Worker, message: Any) -> None:
        try:
            worker.connection.send(message)
        except ConnectionError:
            self._replace(worker)

    def _next_lot(self) -> list[_Job]:
        """Take the next orders from the queue: a share of what waits, so that lots become smaller towards the end.

        They do not become very small: each costs a change of processes, twice.
        """
        room = max(sum(job.cost for job in self._queue) / (2 * self._size), self._min_cost)
        jobs = [heappop(self._queue)]
        while self._queue and jobs[0].goes_with(self._queue[0]):
            room -= jobs[-1].cost
            if room < self._queue[0].cost:
                break
            jobs.append(heappop(self._queue))
        return jobs

    def _receive(self, worker: _Worker) -> None:
        """Take a worker's message, or note that it has died."""
        try:
            message = worker.connection.recv()
        except (EOFError, ConnectionError):
            self._replace(worker)
            return
        match message:
            case Done(replies=replies, own=own):
                devices = [job.device for job in worker.jobs]
                self._own[devices] = own
                self._asked.difference_update(devices)
                self._replies += replies
                worker.ready, worker.jobs, self._stillborn = True, [], 0
            case Failed():
                self._fail(worker, message)
            case _:  # the process runs, and asks for its setup
                self._send(worker, self._setup)

    def _fail(self, worker: _Worker, failed: Failed) -> None:
        """Put the orders of a lot that failed back into the queue, one by one; raise the error of an order alone."""
        jobs, worker.jobs = worker.jobs, []
        if len(jobs) > 1:
            for job in jobs:
                job.alone = True
                heappush(self._queue, job)
            return
        log.error("in a worker process:\n%s", failed.trace.rstrip())
        if not jobs:
            raise FedfuseError(f"worker processes cannot use this model: {failed.error}")
        self._asked.discard(jobs[0].device)
        raise FedfuseError(f"{self._text(jobs[0].order)}: {failed.error}")

    def _replace(self, worker: _Worker) -> None:
        """Put the orders of a worker that died back into the queue, unless they are what kills."""
        self._workers.remove(worker)
        code = worker.end()
        if not worker.ready:
            self._stillborn += 1
            if self._stillborn == MAX_DEATHS:
                raise FedfuseError(f"worker processes end before they can begin: {_ending(code)}. {_MAIN}")
        if worker.jobs:
            log.warning("a worker ended: %s; its orders (%d) are done again", _ending(code), len(worker.jobs))
        for job in worker.jobs:
            job.deaths, job.alone = job.deaths + 1, True
            if job.deaths == MAX_DEATHS:
                self._asked.discard(job.device)
                which, last = self._text(job.order), _ending(code)
                raise FedfuseError(f"{which}: {MAX_DEATHS} workers ended over it, the last with {last}")
            heappush(self._queue, job)

    def _text(self, order: Order) -> str:
        return f"device {self._names[order.device]!r}, {type(order.task).__name__} of round {order.round}"


@dataclass(order=True)
class _Job:
    """An order on its way; earlier submissions come first, and within one the longest."""

    submission: int
    minus_cost: int
    device: int
    order: Order = field(compare=False)
    edition: Edition = field(compare=False)
    deaths: int = field(default=0, compare=False)
    alone: bool = field(default=False, compare=False)  # its lot has failed, or its worker died: to see which it was

    @property
    def cost(self) -> int:
        return -self.minus_cost

    def goes_with(self, other: _Job) -> bool:
        """Whether both may be in one lot."""
        return self.edition is other.edition and not self.alone and not other.alone


@dataclass(eq=False)
class _Worker:
    """A process, the pipe to it, and its orders."""

    process: SpawnProcess
    connection: Connection
    ready: bool = False
    jobs: list[_Job] = field(default_factory=list)

    def end(self) -> int | None:
        """Wait for the end of the process and return its exit code."""
        self.connection.close()
        self.process.join(EXIT_SECONDS)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        code = self.process.exitcode
        self.process.close()
        return code


def _started(rows: Any) -> _Worker:
    here, there = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=main, args=(there, rows), name="fedfuse-worker", daemon=True)
    resource_tracker.ensure_running()  # starting it with the process would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # a worker ignores Ctrl-C from the first moment
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    there.close()  # so that the pipe ends when the worker does
    return _Worker(process, here)


def _mapped(rows: Any, federation: Federation) -> Floats:
    """Return shared memory as the rows of a federation."""
    shape = len(federation.y), federation.n_features
    return np.frombuffer(rows, federation.X.dtype, count=shape[0] * shape[1]).reshape(shape)


def _pickled(*setup: Any) -> bytes:
    try:
        return pickle.dumps(setup, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as problem:
        raise FedfuseError(
            f"worker processes need a model that can be pickled, and {problem}; define its classes and functions at "
            "the top of a module, or use engine='inprocess'"
        ) from None


def _ending(code: int | None) -> str:
    text = f"exit code {code}" if code is None or code >= 0 else f"exit code {code}, {signal.Signals(-code).name}"
    return f"{text} (short of memory?)" if code == -signal.SIGKILL else text


# -- inside a worker process


def main(connection: Connection, rows: Any) -> None:
    """Perform lots until the parent hangs up."""
    _prepare()
    with suppress(EOFError, ConnectionError):  # the parent has gone, or wants nothing more
        connection.send(None)
        setup: bytes = connection.recv()
        try:
            federation, model, options = pickle.loads(setup)
        except Exception as problem:  # a user's class may raise anything when it is imported here
            connection.send(_failed(problem))
            return
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)
        devices = _Devices(replace(federation, X=_mapped(rows, federation)), model, **options)
        connection.send(Done([], np.empty((0, model.d))))
        while True:
            connection.send(devices.perform(connection.recv()))


class _Devices(InProcess):
    """Devices that are told their own last models with each lot, so that a lot can be performed again."""

    _edition = 0

    def perform(self, lot: Lot) -> Done | Failed:
        """Perform a lot."""
        devices = [o.device for o in lot.orders]
        try:
            if lot.edition.number != self._edition:
                self._edition = lot.edition.number
                self._rescale(lot.edition.scale)
            self._own = np.zeros(self._own.shape, self._dtype)  # untouched rows take no room
            self._own[devices] = lot.own
            self._waiting, self._done = list(lot.orders), []
            return Done(self.collect(), self._own[devices])
        except Exception as problem:  # a user's model may raise anything
            return _failed(problem)


def _prepare() -> None:
    """One core's worth of threads, Ctrl-C ignored, and an end when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # for libraries that are still to come
    threadpool_limits(1)
    keep_to(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # in the middle of a computation: nothing waits for it


def _failed(problem: Exception) -> Failed:
    words = " ".join(str(problem).split())
    known = isinstance(problem, FedfuseError)
    return Failed(words if known else f"{type(problem).__name__}: {words}", traceback.format_exc())
