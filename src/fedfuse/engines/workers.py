"""Worker processes: devices on several cores, one process and one thread each.

Any worker can do any device's order: all of them map the same rows, and what a device remembers (its own last model)
stays here and goes along with its orders. So orders go to a pool of processes, the longest first, and those of a pool
that broke go to the next one. Randomness is keyed by device, hence neither the number of workers nor who does what
changes a bit.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from fedfuse.data.federation import Federation
from fedfuse.engines.base import Engine
from fedfuse.engines.in_process import InProcess, group_orders
from fedfuse.errors import FedfuseError
from fedfuse.models.model import Model
from fedfuse.protocol.tasks import Order, Reply, Rescale
from fedfuse.utils.threads import keep_to, usable_cores
from fedfuse.utils.typing import Floats

log = logging.getLogger(__name__)

# Times in a row that workers may end over an order, or before they could begin.
MAX_DEATHS = 3
# More balance the load better, but each costs a change of processes, twice.
LOTS_PER_WORKER = 8

_CONTEXT = get_context("spawn")
_MAIN = 'In a script, put the call under `if __name__ == "__main__":`; standard error has what the worker said'


def check_workers(workers: int | None) -> int:
    """Return the number of workers; None is one for each usable core."""
    if workers is None:
        return usable_cores()
    if not isinstance(workers, Integral) or workers < 1:
        raise FedfuseError(f"workers must be a whole number of at least 1, got {workers!r}")
    return int(workers)


class Lot(NamedTuple):
    """Orders for one worker, with their devices' own last models, and the scale of columns that they see."""

    orders: list[Order]
    own: Floats
    edition: int  # how often the scale has changed
    scale: Rescale | None

    def one_by_one(self) -> list[Lot]:
        """Return a lot for each order."""
        return [self._replace(orders=[o], own=self.own[i : i + 1]) for i, o in enumerate(self.orders)]


# The reply to each order of a lot, and the device's new last model.
Answers: TypeAlias = list[tuple[Reply, Floats]]


class Workers(Engine):
    """Devices whose orders are performed by processes beside this one, one for each usable core by default.

    Processes start with the first orders and end with `close`, or with this process. In a script, the call that leads
    here belongs under ``if __name__ == "__main__":`` (each worker imports the script to find its classes). The model
    must be one that can be pickled. Options are those of `InProcess`.
    """

    def __init__(
        self,
        federation: Federation,
        model: Model[Any],
        *,
        workers: int | None = None,
        dtype: npt.DTypeLike = np.float32,
        **options: Any,
    ) -> None:
        if os.name != "posix":
            raise FedfuseError("engine 'workers' needs Linux or macOS; use engine='inprocess'")
        self._size = min(check_workers(workers), federation.m)
        # truth and encoder are not for devices, and rows are shared: one copy for all workers, without a name
        self._rows = _CONTEXT.RawArray("b", max(federation.X.nbytes, 1))
        _mapped(self._rows, federation)[:] = federation.X
        devices = replace(federation, truth=None, encoder=None, X=federation.X[:0])
        self._setup = _pickled(devices, model, {"dtype": dtype, **options})
        self._names = federation.names
        self._cost = federation.rows("all").counts
        self._own: Floats = np.zeros((federation.m, model.d), dtype)  # the devices' own last models
        self._edition, self._scale = 0, None  # type: tuple[int, Rescale | None]
        self._pool: ProcessPoolExecutor | None = None
        self._lifeline: Connection | None = None  # workers end when it does
        self._waiting: deque[Lot] = deque()
        self._performed: dict[Future[Answers], Lot] = {}
        self._suspects = 0  # of those waiting, so many are done one by one: a worker has died over one of them
        self._breaks = 0  # of the pool, since the last answer
        self._asked: set[int] = set()  # devices with an order under way
        self._replies: list[Reply] = []
        self._closed = False

    def submit(self, orders: Sequence[Order]) -> None:
        """Send these orders, also while others are under way; a device has at most one at a time."""
        if self._closed:
            raise FedfuseError("this engine is closed")
        for order in orders:
            if order.device in self._asked:
                raise FedfuseError(f"{self._text(order)}: the device already has a pending order")
        for alike in group_orders(orders):
            if isinstance(alike[0].task, Rescale):  # orders from now on see the new columns
                self._edition, self._scale = self._edition + 1, alike[0].task
                self._replies += [Reply(o.device, o.round, np.empty(0)) for o in alike]
                continue
            for some in cut_into_lots(alike, self._cost, self._size):
                self._waiting.append(Lot(some, self._own[[o.device for o in some]], self._edition, self._scale))
            self._asked.update(o.device for o in alike)
        self._dispatch()

    @property
    def busy(self) -> frozenset[int]:
        return frozenset(self._asked)

    def pack(self) -> dict[str, npt.NDArray[Any]] | None:
        """Return nothing, if nothing is under way: what is must be asked for again."""
        return None if self._asked or self._replies else {}

    def collect(self, patience: float | None = None) -> list[Reply]:
        """Wait for at least one reply; an empty list means that nothing is under way, or that time is up."""
        end = None if patience is None else time.monotonic() + patience
        while self._asked and not self._replies:
            self._dispatch()
            done = wait(self._performed, None if end is None else max(0.0, end - time.monotonic()), FIRST_COMPLETED)[0]
            if not done:
                break
            if any(isinstance(future.exception(), BrokenProcessPool) for future in done):
                self._begin_again()
            else:
                for future in done:
                    self._take(self._performed.pop(future), future)
        replies, self._replies = self._replies, []
        return replies

    def close(self) -> None:
        """End all workers, whatever they are doing: they hold nothing that could be lost."""
        self._closed = True
        self._waiting.clear()
        self._performed.clear()
        self._asked.clear()
        self._end_pool()

    def _dispatch(self) -> None:
        """Give waiting orders to the pool; those that may kill, one after the other."""
        while self._waiting and not (self._suspects and self._performed):
            if self._pool is None:
                here, self._lifeline = _CONTEXT.Pipe(duplex=False)
                given = here, self._rows, self._setup
                self._pool = ProcessPoolExecutor(self._size, _CONTEXT, initializer=begin, initargs=given)
            lot = self._waiting.popleft()
            with _without_interrupts():  # processes start here, and ignore Ctrl-C from the first moment
                self._performed[self._pool.submit(perform, lot)] = lot

    def _take(self, lot: Lot, future: Future[Answers]) -> None:
        """Take the answers to a lot; where that failed, do its orders one by one, and raise the error of one alone."""
        problem = future.exception()
        if problem is not None and len(lot.orders) > 1:
            self._waiting.extend(lot.one_by_one())
            return
        self._asked.difference_update(o.device for o in lot.orders)
        self._suspects, self._breaks = max(0, self._suspects - 1), 0
        if problem is not None:
            log.error("in a worker process:", exc_info=problem)
            raise FedfuseError(f"{self._text(lot.orders[0])}: {problem}")
        for reply, own in future.result():
            self._own[reply.device] = own
            self._replies.append(reply)

    def _begin_again(self) -> None:
        """Do the orders of a pool that broke again, one by one; give one up over which workers end again and again."""
        lots = [one for lot in self._performed.values() for one in lot.one_by_one()]
        self._performed.clear()
        self._end_pool()
        self._breaks += 1
        log.warning("a worker died (out of memory?); its pending orders (%d) are repeated", len(lots))
        self._waiting.extendleft(reversed(lots))
        self._suspects = max(self._suspects, len(lots))
        if self._breaks == MAX_DEATHS:
            self._suspects, self._breaks = self._suspects - 1, 0
            order = self._waiting.popleft().orders[0]
            self._asked.discard(order.device)
            raise FedfuseError(f"{self._text(order)}: {MAX_DEATHS} workers died on it, or before they began. {_MAIN}")

    def _end_pool(self) -> None:
        if self._pool is not None and self._lifeline is not None:
            self._lifeline.close()
            self._pool.shutdown(cancel_futures=True)
        self._pool = self._lifeline = None

    def _text(self, order: Order) -> str:
        return f"device {self._names[order.device]!r}, {type(order.task).__name__} of round {order.round}"


def cut_into_lots(orders: Sequence[Order], cost: npt.NDArray[Any], workers: int) -> list[list[Order]]:
    """Cut orders into lots of about the same cost, the longest first: several for each worker, so that none waits."""
    costs = cost[[o.device for o in orders]]
    ranked = np.argsort(-costs, kind="stable")
    behind = np.cumsum(costs[ranked]) - costs[ranked]
    bounds = np.flatnonzero(np.diff(behind * LOTS_PER_WORKER * workers // max(costs.sum(), 1))) + 1
    return [[orders[i] for i in lot] for lot in np.split(ranked, bounds)]


@contextmanager
def _without_interrupts() -> Iterator[None]:
    resource_tracker.ensure_running()  # starting it with a process would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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


# -- inside a worker process


class _Devices(InProcess):
    """Devices that are told their own last models with each lot, so that a lot can be performed again."""

    _edition = 0

    def perform(self, lot: Lot) -> Answers:
        """Perform a lot."""
        devices = [o.device for o in lot.orders]
        if lot.edition != self._edition:
            self._edition = lot.edition
            self._rescale(lot.scale)
        self._own = np.zeros(self._own.shape, self._dtype)  # untouched rows take no room
        self._own[devices] = lot.own
        self._waiting, self._done = list(lot.orders), []
        replies = {reply.device: reply for reply in self.collect()}
        return [(replies[i], self._own[i]) for i in devices]


_devices: _Devices


def begin(lifeline: Connection, rows: Any, setup: bytes) -> None:
    """Prepare a worker: one core's worth of threads, Ctrl-C ignored, and an end when the engine or its process ends."""
    global _devices
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # for libraries that are still to come
    threadpool_limits(1)
    keep_to(1)
    federation, model, options = pickle.loads(setup)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    _devices = _Devices(replace(federation, X=_mapped(rows, federation)), model, **options)


def _end_with(lifeline: Connection) -> None:
    lifeline.poll(None)  # nothing is ever sent: it closes
    os._exit(1)  # in the middle of a computation: nothing waits for it


def perform(lot: Lot) -> Answers:
    """Perform a lot in a worker."""
    try:
        return _devices.perform(lot)
    except FedfuseError:
        raise
    except Exception as problem:  # a user's model may raise anything, even what cannot be sent
        raise FedfuseError(f"{type(problem).__name__}: {' '.join(str(problem).split())}") from problem
