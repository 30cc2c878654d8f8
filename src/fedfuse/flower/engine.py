"""Devices on Flower: orders go out as messages, one for each device, and replies come back as they come.

What a device remembers lies in its node's state, and the server has a copy (`Shadow`). A task that only changes the
memory (`Install`, `Add`, `Rescale`) is no message of its own: the next order brings it along. An order also brings the
memory to a device that says it has lost it, and to one whose last answer was not what it should be.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Message
from flwr.serverapp import Grid

from fedfuse.engines.base import Engine
from fedfuse.errors import FedfuseError
from fedfuse.flower.device_state import Shadow
from fedfuse.flower.messages import Letter, UnreadableError, read_answer, write_letter
from fedfuse.flower.node_registry import RESCAN, NodeRegistry
from fedfuse.models.model import Model
from fedfuse.protocol.privacy import Noise
from fedfuse.protocol.tasks import Order, Reply

log = logging.getLogger(__name__)

TRIES = 3  # letters for one order
_NAPS = (0.01, 0.5)  # seconds between two looks for replies, at least and at most,
_PATIENCE = 0.2  # and of the time that has passed since the last orders, this share: a look takes time from all others
_ALL_FAIL = 20  # devices that fail before anybody has answered: then all do
_GONE = 5  # Flower's number for a node that is not there; others are an app's


@dataclass
class _Job:
    """An order under way: the message that carries it, or none while its device is not there."""

    order: Order
    since: float = field(default_factory=time.monotonic)
    message: str | None = None
    node: int = 0
    letters: int = 0


class FlowerEngine(Engine):
    """Devices on the nodes of a Flower run.

    Parameters
    ----------
    grid
        Flower's: what a ServerApp's main function is given.
    names
        The devices, in the order of the federation; nodes say which of them they are (`client_app`).
    model, seed, dtype, noise
        As for `InProcess`.
    setup
        What devices should be told besides, with every order; must be JSON-ready.
    nodes
        The nodes, if somebody has looked for them already.
    ttl
        Seconds after which a message is given up, answered or not.
    grace
        Seconds that orders wait for a device that has gone. From then on they are unanswered at once, until it is back.
    """

    def __init__(
        self,
        grid: Grid,
        names: Sequence[str],
        model: Model[Any],
        *,
        seed: int = 0,
        dtype: npt.DTypeLike = np.float32,
        noise: Noise | None = None,
        setup: Mapping[str, Any] | None = None,
        nodes: NodeRegistry | None = None,
        ttl: float = 600.0,
        grace: float = 15.0,
    ) -> None:
        for word, seconds in (("ttl", ttl), ("grace", grace)):
            if not 0 < seconds < np.inf:
                raise FedfuseError(f"{word} must be a positive number of seconds, got {seconds!r}")
        self._grid, self._names, self._model = grid, tuple(names), model
        self._setup = {"seed": seed, "dtype": np.dtype(dtype).name, **(setup or {})}
        self._setup |= {"noise": [noise.clip, noise.multiplier]} if noise else {}
        self._nodes = nodes or NodeRegistry(grid)
        self._nodes.moved = self._moved
        self._ttl, self._grace = ttl, grace
        token = secrets.token_hex(4)  # memories of another run are not of this one
        self._shadows = [Shadow(model, dtype, token) for _ in self._names]
        self._jobs: dict[int, _Job] = {}
        self._ready: list[Reply] = []
        self._trouble: Counter[str] = Counter()
        self._heard = False  # whether any order has ever been answered

    @property
    def busy(self) -> frozenset[int]:
        return frozenset(self._jobs)

    @property
    def trouble(self) -> dict[str, int]:
        """How often what went wrong."""
        return dict(self._trouble + self._nodes.trouble)

    def submit(self, orders: Sequence[Order]) -> None:
        """Send these orders, at most one per device; what only changes memories waits for the next."""
        for order in orders:
            if order.device in self._jobs:
                raise FedfuseError(f"device {self._names[order.device]!r} has an order under way already")
            if self._shadows[order.device].take(order.task):
                self._ready.append(Reply(order.device, order.round, np.empty(0)))
            else:
                self._jobs[order.device] = _Job(order)
        self._push()

    def collect(self, patience: float | None = None) -> list[Reply]:
        """Wait for at least one reply; an empty list says that nothing is under way, or that time is over."""
        end = None if patience is None else time.monotonic() + patience
        self._look()
        while self._jobs and not self._ready:
            left = np.inf if end is None else end - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(self._nap(), left))
            self._look()
        replies, self._ready = self._ready, []
        return replies

    def _nap(self) -> float:
        """Return how long to wait before the next look."""
        waited = time.monotonic() - max(job.since for job in self._jobs.values())
        return float(np.clip(_PATIENCE * waited, *_NAPS))

    def close(self) -> None:
        """Forget what is under way: messages end by themselves."""
        self._jobs.clear()

    # -- out

    def _look(self) -> None:
        """See what has come, who is there, and what can be sent now."""
        self._pull()
        self._nodes.look()
        self._push()
        for job in list(self._jobs.values()):
            if job.message is None and self._hopeless(job):
                self._give_up(job, "device away")
            elif time.monotonic() - job.since > self._ttl + RESCAN:
                self._give_up(job, "no answer in time")

    def _hopeless(self, job: _Job) -> bool:
        """Whether a waiting order has waited enough: nobody waits for one who has gone, unless all have."""
        name, now = self._names[job.order.device], time.monotonic()
        gone = now - self._nodes.left.get(name, job.since)
        some = self._nodes.node_of and not self._nodes.waiting  # who has not said hello yet may be this one
        return bool(some) and gone > self._grace and now - job.since > RESCAN

    def _push(self) -> None:
        letters: list[tuple[_Job, Message]] = []
        for job in self._jobs.values():
            node = self._nodes.node_of.get(self._names[job.order.device])
            if job.message is None and node is not None:
                job.node, job.letters = node, job.letters + 1
                letters.append((job, self._letter(job)))
        if not letters:
            return
        self._grid.push_messages([message for _, message in letters])  # a list: Flower goes through it twice
        for job, message in letters:
            job.message = message.metadata.message_id or None
            if job.message is None:  # Flower knows no such node
                self._nodes.lose(self._names[job.order.device], job.node)

    def _letter(self, job: _Job) -> Message:
        shadow = self._shadows[job.order.device]
        if not shadow.fresh and job.letters > 1:
            self._trouble["memory sent again" if shadow.whole else "memory lost"] += 1
        memory = None if shadow.fresh else shadow.memory
        return write_letter(Letter(job.order, shadow.version, self._setup, memory), job.node, self._ttl)

    def _moved(self, name: str) -> None:
        """Send an order again whose device has another node than it was sent to."""
        for job in list(self._jobs.values()):
            if self._names[job.order.device] == name and job.message and self._nodes.node_of[name] != job.node:
                self._again(job)

    # -- in

    def _pull(self) -> None:
        by_message = {job.message: job for job in self._jobs.values() if job.message is not None}
        if not by_message:
            return
        for message in self._grid.pull_messages(list(by_message)):
            job = by_message.get(message.metadata.reply_to_message_id)
            if job is not None and job.message == message.metadata.reply_to_message_id:
                self._hear(job, message)

    def _hear(self, job: _Job, message: Message) -> None:
        device, shadow = job.order.device, self._shadows[job.order.device]
        if message.has_error():
            self._failed(job, message)
            return
        try:
            answer = read_answer(message, job.order, self._model.d)
        except UnreadableError as problem:
            log.warning("device %r: what it sent is refused: %s", self._names[device], problem)
            self._trouble["unreadable"] += 1
            shadow.fresh = False
            self._done(job, np.array(["unreadable"]))
            return
        if answer.lost:
            shadow.fresh = False
            self._again(job)
            return
        self._heard = True
        shadow.answered(job.order.task, answer.values, answer.version)
        self._done(job, answer.values)

    def _failed(self, job: _Job, message: Message) -> None:
        name, error = self._names[job.order.device], message.error
        reason = " ".join((error.reason or "no reason given").split())
        log.warning("device %r: Flower's error %d, %s", name, error.code, reason[-300:])
        self._shadows[job.order.device].fresh = False  # whatever it has done, it is not what we know
        if error.code == _GONE:
            self._nodes.lose(name, job.node)
            self._trouble["node gone"] += 1
            self._again(job)
        else:
            self._give_up(job, "error on the device")
            self._check_any_works(name, reason)

    def _check_any_works(self, name: str, reason: str) -> None:
        """Raise an error if orders fail everywhere and always: it is the app that is wrong, not a device."""
        if not self._heard and self._trouble["error on the device"] >= min(len(self._names), _ALL_FAIL):
            raise FedfuseError(f"no device can carry out an order; device {name!r} says: {reason[-300:]}")

    def _again(self, job: _Job) -> None:
        """Let an order wait for its device, with the memory that the server has of it."""
        job.message = None
        self._shadows[job.order.device].fresh = False
        if job.letters >= TRIES:
            self._give_up(job, "no answer in time")

    def _give_up(self, job: _Job, reason: str) -> None:
        log.warning("device %r: %s (round %d)", self._names[job.order.device], reason, job.order.round)
        self._trouble[reason] += 1
        self._shadows[job.order.device].fresh = False
        del self._jobs[job.order.device]

    def _done(self, job: _Job, values: npt.NDArray[Any]) -> None:
        del self._jobs[job.order.device]
        self._ready.append(Reply(job.order.device, job.order.round, values))
