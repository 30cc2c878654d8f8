"""Devices in worker processes, one core each, on data in shared memory.

Any worker can do any device's order: rows are mapped by all of them, and what a device remembers (its own last model)
lies in shared memory too. So orders go to whoever is free, the longest first, and those of a worker that died go to
another. Randomness is keyed by device, hence neither the number of workers nor who does what changes a bit.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.data.federation import Federation, Part
from fedfuse.engines.base import Engine
from fedfuse.engines.in_process import _grouped, _rescaled
from fedfuse.engines.shared_memory import Parcel, SharedBlock, pack
from fedfuse.engines.worker_process import ROWS, SETUP, Done, Failed, Lot, Ready, Wanted, WorkerSetup, main
from fedfuse.errors import FedfuseError
from fedfuse.models.model import Model
from fedfuse.protocol.privacy import Noise
from fedfuse.protocol.tasks import Order, Reply, Rescale
from fedfuse.utils.threads import usable_cores

log = logging.getLogger(__name__)

DEATHS = 3  # so many workers may end over one order, or before they could begin
_PATIENCE = 5.0  # seconds that a process has between closing its pipe and its end


def check_workers(workers: int | None) -> int:
    """Return the number of workers that is asked for; None is one for each usable core."""
    if workers is None:
        return usable_cores()
    if not isinstance(workers, Integral) or workers < 1:
        raise FedfuseError(f"workers must be a whole number of at least 1, got {workers!r}")
    return int(workers)


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
        self._federation = replace(federation, truth=None, encoder=None)  # not for devices
        self._cost = federation.rows("all").counts
        self._edition = Edition(0, self._federation, model, np.dtype(dtype))
        self._setup = self._edition.setup(seed, noise)
        shape = (federation.m, 2, model.d)
        self._memory = SharedBlock(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        self._turns = np.zeros(federation.m, np.int64)  # which row of memory holds a device's own model
        self._crew: list[_Worker] = []
        self._queue: list[_Job] = []
        self._asked: set[int] = set()  # devices with an order under way
        self._least = 0.0  # cost of the smallest lot
        self._replies: list[Reply] = []
        self._submissions = self._stillborn = 0
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """The process numbers of the workers that are there now."""
        return [w.process.pid for w in self._crew if w.process.pid is not None]

    def submit(self, orders: Sequence[Order]) -> None:
        """Send these orders, also while others are under way; a device has at most one at a time."""
        self._check(orders)
        self._submissions += 1
        self._least = self._cost[[o.device for o in orders]].sum() / (8 * self._size)
        for alike in _grouped(orders):
            if isinstance(alike[0].task, Rescale):
                self._rescale(alike[0].task, alike)
            else:
                self._enqueue(alike)
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
            ready = wait([w.connection for w in self._crew], left)
            if not ready:
                break
            for worker in [w for w in self._crew if w.connection in ready]:
                self._hear(worker)
            self._dispatch()
        replies, self._replies = self._replies, []
        return replies

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        self._closed = True
        crew, self._crew, self._queue = self._crew, [], []
        self._asked.clear()
        for worker in crew:
            worker.process.kill()  # they hold nothing that could be lost
        for worker in crew:
            worker.end()

    def _check(self, orders: Sequence[Order]) -> None:
        if self._closed:
            raise FedfuseError("this engine is closed")
        asked = set(self._asked)
        for order in orders:
            if order.device in asked:
                raise FedfuseError(f"device {self._name(order)} has an order under way already")
            asked.add(order.device)

    def _enqueue(self, orders: list[Order]) -> None:
        for order in orders:
            cost = int(self._cost[order.device])
            heappush(self._queue, _Job(self._submissions, -cost, order.device, order, self._edition))
        self._asked.update(o.device for o in orders)

    def _rescale(self, task: Rescale, orders: list[Order]) -> None:
        """Change the columns of all devices, here and once; orders from now on see the new ones."""
        self._edition = self._edition.rescaled(self._federation, task)
        self._replies += [Reply(o.device, o.round, np.empty(0)) for o in orders]

    def _dispatch(self) -> None:
        """Give waiting orders to free workers; start those that are missing."""
        while self._queue and len(self._crew) < self._size:
            self._crew.append(_started())
        for worker in [w for w in self._crew if w.free]:
            if self._queue:
                self._assign(worker)

    def _assign(self, worker: _Worker) -> None:
        worker.jobs = self._next_lot()
        orders = [job.order for job in worker.jobs]
        turns = self._turns[[o.device for o in orders]]
        try:
            worker.connection.send(Lot(worker.jobs[0].edition.number, orders, turns))
        except ConnectionError:
            self._replace(worker)

    def _next_lot(self) -> list[_Job]:
        """Take the next orders from the queue: a share of what waits, so that lots become smaller towards the end.

        They do not become very small: each costs a change of processes, twice.
        """
        room = max(sum(job.cost for job in self._queue) / (2 * self._size), self._least)
        jobs = [heappop(self._queue)]
        while self._queue and jobs[0].goes_with(self._queue[0]):
            room -= jobs[-1].cost
            if room < self._queue[0].cost:
                break
            jobs.append(heappop(self._queue))
        return jobs

    def _hear(self, worker: _Worker) -> None:
        """Take in what a worker says, or that it has died."""
        try:
            message = worker.connection.recv()
            if isinstance(message, Wanted):
                self._serve(worker, message.what)
        except (EOFError, ConnectionError):
            self._replace(worker)
            return
        match message:
            case Ready():
                worker.ready, self._stillborn = True, 0
            case Done(replies=replies):
                self._finish(worker, replies)
            case Failed():
                self._fail(worker, message)

    def _serve(self, worker: _Worker, what: str) -> None:
        if what == SETUP:
            self._setup.send(worker.connection)
            self._memory.send(worker.connection)
        else:
            worker.jobs[0].edition.parcel(what).send(worker.connection)

    def _finish(self, worker: _Worker, replies: list[Reply]) -> None:
        devices = [job.order.device for job in worker.jobs]
        self._turns[devices] = 1 - self._turns[devices]  # from now on these have their new models
        self._asked.difference_update(devices)
        self._replies += replies
        worker.jobs = []

    def _fail(self, worker: _Worker, failed: Failed) -> None:
        log.error("in a worker process:\n%s", failed.trace.rstrip())
        if failed.device is None:
            raise FedfuseError(f"worker processes cannot use this model: {failed.error}")
        jobs, worker.jobs = worker.jobs, []
        for job in jobs:
            if job.order.device == failed.device:
                self._asked.discard(failed.device)
                order = job.order
            else:
                heappush(self._queue, job)
        raise FedfuseError(f"device {self._name(order)}, {_what(order)}: {failed.error}")

    def _replace(self, worker: _Worker) -> None:
        """Put the orders of a worker that died back into the queue, unless they are what kills."""
        self._crew.remove(worker)
        code = worker.end()
        if not worker.ready:
            self._stillborn += 1
            if self._stillborn == DEATHS:
                raise FedfuseError(f"worker processes end before they can begin: {_ending(code)}. {_MAIN}")
        if worker.jobs:
            log.warning("a worker ended: %s; its orders (%d) are done again", _ending(code), len(worker.jobs))
        for job in worker.jobs:
            job.deaths += 1
            if job.deaths == DEATHS:
                self._asked.discard(job.order.device)
                which = f"device {self._name(job.order)}, {_what(job.order)}"
                raise FedfuseError(f"{which}: {DEATHS} workers ended over it, the last with {_ending(code)}")
            heappush(self._queue, job)

    def _name(self, order: Order) -> str:
        return repr(self._federation.names[order.device])


class Edition:
    """The rows of all devices with their columns on one scale, in shared memory.

    Parts in the model's own form are made here when the first worker wants them, and mapped by all.
    """

    def __init__(self, number: int, federation: Federation, model: Model[Any], dtype: np.dtype[Any]) -> None:
        self.number = number
        self._rows = pack((federation.X, federation.y))
        X, y = self._rows.open()
        self._federation = replace(federation, X=X, y=y)
        self._model, self._dtype = model, dtype
        self._parts: dict[str, Parcel] = {}

    def setup(self, seed: int, noise: Noise | None = None) -> Parcel:
        """Return what a worker needs to begin."""
        return pack(WorkerSetup(self._federation, self._model, seed, self._dtype, noise), *self._rows.blocks)

    def parcel(self, what: Part | str) -> Parcel:
        """Return all rows, or one part in the model's own form."""
        if what == ROWS:
            return self._rows
        if what not in self._parts:
            data = self._model.load(self._federation.rows(what), self._dtype)  # type: ignore[arg-type]
            self._parts[what] = pack(data, *self._rows.blocks)
        return self._parts[what]

    def rescaled(self, federation: Federation, task: Rescale) -> Edition:
        """Return the next edition: the federation's rows, rescaled."""
        rows = _rescaled(federation.rows("all"), task.shift, task.scale)
        return Edition(self.number + 1, replace(federation, X=rows.X, y=rows.y), self._model, self._dtype)


@dataclass(order=True)
class _Job:
    """An order on its way; who was asked first comes first, and of those asked together the longest."""

    submission: int
    minus_cost: int
    device: int
    order: Order = field(compare=False)
    edition: Edition = field(compare=False)
    deaths: int = field(default=0, compare=False)

    @property
    def cost(self) -> int:
        return -self.minus_cost

    def goes_with(self, other: _Job) -> bool:
        """Whether both may be in one lot; orders that were in one when a worker died go alone, to see which it was."""
        return self.edition is other.edition and not self.deaths and not other.deaths


@dataclass(eq=False)
class _Worker:
    """A process, the pipe to it, and what it is doing."""

    process: SpawnProcess
    connection: Connection
    ready: bool = False
    jobs: list[_Job] = field(default_factory=list)

    @property
    def free(self) -> bool:
        return self.ready and not self.jobs

    def end(self) -> int | None:
        """Wait for the end of the process and return its exit code."""
        self.connection.close()
        self.process.join(_PATIENCE)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        code = self.process.exitcode
        self.process.close()
        return code


def _started() -> _Worker:
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=main, args=(there,), name="fedfuse-worker", daemon=True)
    try:
        with _interrupts_held_back():
            process.start()
    except KeyboardInterrupt:
        process.kill()
        raise
    there.close()  # so that the pipe ends when the worker does
    return _Worker(process, here)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hold back Ctrl-C: a process that starts here is deaf to it from its first moment on; here it comes later."""
    resource_tracker.ensure_running()  # starting it inside would let them through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_MAIN = 'In a script, put the call under `if __name__ == "__main__":`; standard error has what the worker said'


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = " (short of memory?)" if name == "SIGKILL" else ""
        return f"exit code {code}, {name}{hint}"
    return f"exit code {code}"


def _what(order: Order) -> str:
    return f"{type(order.task).__name__} of round {order.round}"
