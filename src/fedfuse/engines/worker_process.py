"""What runs inside a worker process: devices as in process, with data and memory that the parent shares."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from fedfuse.data.federation import Federation, Part, Rows
from fedfuse.engines.in_process import InProcess
from fedfuse.engines.shared_memory import receive_block, receive_parcel
from fedfuse.errors import FedfuseError
from fedfuse.models.model import Model
from fedfuse.protocol.privacy import Noise
from fedfuse.protocol.tasks import Order, Reply
from fedfuse.utils.threads import keep_to
from fedfuse.utils.typing import Ints

log = logging.getLogger(__name__)

# What a worker may want besides the parts of the data: all it needs to begin, and the rows of another edition.
SETUP, ROWS = "setup", "rows"


class WorkerSetup(NamedTuple):
    """Who the devices are; their memory follows as a block."""

    federation: Federation
    model: Model[Any]
    seed: int
    dtype: np.dtype[Any]
    noise: Noise | None = None


@dataclass(frozen=True)
class Lot:
    """Orders for one worker; ``turns`` says which of its two rows of memory each device is to read (see `Devices`)."""

    edition: int
    orders: list[Order]
    turns: Ints


@dataclass(frozen=True)
class Wanted:
    """Send me this, to go on with."""

    what: str


@dataclass(frozen=True)
class Ready:
    """I can take a lot."""


@dataclass(frozen=True)
class Done:
    """All orders of a lot are performed, and what the devices remember is written."""

    replies: list[Reply]


@dataclass(frozen=True)
class Failed:
    """An order raised an error; nothing of its lot counts."""

    device: int | None
    error: str
    trace: str


def main(connection: Connection) -> None:
    """Perform lots until the parent hangs up."""
    _prepare()
    with suppress(EOFError, ConnectionError):  # the parent has gone, or wants nothing more
        devices = _devices(connection)
        while devices is not None:
            lot: Lot = connection.recv()
            connection.send(devices.perform(lot))


def _devices(connection: Connection) -> Devices | None:
    connection.send(Wanted(SETUP))
    try:
        setup: WorkerSetup = receive_parcel(connection)
    except Exception as problem:  # whatever a user's class does when it is imported here
        connection.send(Failed(None, _one_line(problem), traceback.format_exc()))
        return None
    _one_torch_thread()
    shape = (setup.federation.m, 2, setup.model.d)
    size = int(np.prod(shape)) * setup.dtype.itemsize
    memory = np.ndarray(shape, setup.dtype, receive_block(connection, size))
    connection.send(Ready())
    return Devices(setup, memory, connection)


class Devices(InProcess):
    """Devices whose data and memory lie with the parent.

    Every device has two rows of memory. One holds its own last model, as far as the parent knows; the other takes the
    next one, and counts only when the parent has heard that the lot is done. So a lot can be performed again.
    """

    def __init__(self, setup: WorkerSetup, memory: npt.NDArray[Any], connection: Connection) -> None:
        super().__init__(setup.federation, setup.model, seed=setup.seed, dtype=setup.dtype, noise=setup.noise)
        self._memory = memory
        self._connection = connection
        self._edition = 0

    def perform(self, lot: Lot) -> Done | Failed:
        """Perform a lot; after an error one order at a time, to see whose it is."""
        self._turn_to(lot.edition)
        try:
            return Done(self._performed(lot.orders, lot.turns))
        except Exception:
            log.debug("a lot of %d orders failed; now one by one", len(lot.orders), exc_info=True)
        done: list[Reply] = []
        try:
            for order, turn in zip(lot.orders, lot.turns, strict=True):
                done += self._performed([order], np.array([turn]))
        except Exception as problem:
            return Failed(lot.orders[len(done)].device, _one_line(problem), traceback.format_exc())
        return Done(done)

    def load(self, part: Part) -> Any:
        """Map one part of the data in the model's own form, which the parent has made."""
        if part not in self._loaded:
            self._loaded[part] = self._ask_for(part)
        return self._loaded[part]

    def _performed(self, orders: Sequence[Order], turns: Ints) -> list[Reply]:
        devices = np.array([o.device for o in orders], dtype=np.int64)
        self._own = np.zeros(self._own.shape, self._dtype)  # untouched rows take no room
        self._own[devices] = self._memory[devices, turns]
        self._waiting = list(orders)
        replies = self.collect()
        self._memory[devices, 1 - turns] = self._own[devices]
        return replies

    def _turn_to(self, edition: int) -> None:
        """Use the rows as the parent has rescaled them."""
        if edition != self._edition:
            self._scaled, self._loaded = None, {}  # let go of the old ones first
            X, y = self._ask_for(ROWS)
            everything = self._federation.rows("all")
            self._scaled = Rows(X, y, everything.start, everything.stop)
            self._edition = edition

    def _ask_for(self, what: str) -> Any:
        try:
            self._connection.send(Wanted(what))
            return receive_parcel(self._connection)
        except (EOFError, ConnectionError):
            raise SystemExit from None  # the parent has gone: not an error of the order


def _prepare() -> None:
    """One core's worth of threads, no ear for Ctrl-C, and an end when the parent ends."""
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
        os._exit(1)  # in the middle of whatever is computed: nobody waits for it


def _one_torch_thread() -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _one_line(problem: Exception) -> str:
    words = " ".join(str(problem).split())
    return words if isinstance(problem, FedfuseError) else f"{type(problem).__name__}: {words}"
