"""The Flower engine: one message per order, with replies taken in the order of their arrival.

A device's state is kept by its node, and the server has a copy (`DeviceShadow`). A task that only changes the state
(`Install`, `Add`, `Rescale`) is not sent by itself but with the next order. The state is also sent to a device that has
lost it, and to one whose last reply was missing or malformed.
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
from fedfuse.flower.device_state import DeviceShadow
from fedfuse.flower.message_puller import MessagePuller
from fedfuse.flower.messages import CHANGED, LOST, Envelope, UnreadableError, error_of, read_reply, write_order
from fedfuse.flower.node_registry import RESCAN_SECONDS, NodeRegistry
from fedfuse.models.model import Model
from fedfuse.protocol.privacy import Noise
from fedfuse.protocol.tasks import Order, Reply
from fedfuse.utils.audit_log import record

log = logging.getLogger(__name__)

MAX_MESSAGES = 3  # for one order
# Polling takes time from everything else: pauses are this share of the time since the last order, within these bounds.
_POLL_RATIO = 0.2
_POLL_SECONDS = (0.01, 0.5)
_MAX_FAILURES = 20  # of devices before the first reply; then the app is at fault
_NODE_UNAVAILABLE = 5  # Flower's error code; others come from the app


@dataclass
class _Pending:
    """An order under way: the message that carries it, or none while its device is away."""

    order: Order
    since: float = field(default_factory=time.monotonic)
    message: str | None = None
    node: int = 0
    messages: int = 0


class FlowerEngine(Engine):
    """Devices on the nodes of a Flower run; ``names`` are those of the federation, in its order.

    Nodes declare which of them they are (`client_app`). ``setup`` is JSON-ready data that is sent with every order. A
    message expires after ``ttl`` seconds. Orders wait for a device that is away for ``grace`` seconds; after that they
    are given up at once, until it is back.
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
        token = secrets.token_hex(4)  # States of another run have other versions.
        self._shadows = [DeviceShadow(model, dtype, token) for _ in self._names]
        self._pending: dict[int, _Pending] = {}
        self._ready: list[Reply] = []
        self._trouble: Counter[str] = Counter()
        self._any_reply = False
        self._puller = MessagePuller(grid)

    @property
    def busy(self) -> frozenset[int]:
        return frozenset(self._pending)

    @property
    def trouble(self) -> dict[str, int]:
        """Counts of failures by kind."""
        return dict(self._trouble + self._nodes.trouble)

    def submit(self, orders: Sequence[Order]) -> None:
        """Send these orders, at most one per device; those that only change states wait for the next."""
        for order in orders:
            if order.device in self._pending:
                raise FedfuseError(f"device {self._names[order.device]!r} already has a pending order")
            if self._shadows[order.device].take(order.task):
                self._ready.append(Reply(order.device, order.round, np.empty(0)))
            else:
                self._pending[order.device] = _Pending(order)
        self._push()

    def collect(self, patience: float | None = None) -> list[Reply]:
        """Wait for at least one reply; an empty list means that no order is under way, or that time is over."""
        end = time.monotonic() + (np.inf if patience is None else patience)
        self._look()
        while self._pending and not self._ready and (left := end - time.monotonic()) > 0:
            waited = time.monotonic() - max(p.since for p in self._pending.values())
            time.sleep(min(float(np.clip(_POLL_RATIO * waited, *_POLL_SECONDS)), left))
            self._look()
        replies, self._ready = self._ready, []
        return replies

    def close(self) -> None:
        """Forget the orders under way; their messages expire."""
        self._pending.clear()

    # -- out

    def _look(self) -> None:
        """Take in replies and changes of nodes, send what can be sent, and give up what has waited too long."""
        self._pull()
        self._nodes.look()
        self._push()
        for job in list(self._pending.values()):
            if job.message is None and self._expired(job):
                self._give_up(job, "device away")
            elif time.monotonic() - job.since > self._ttl:  # Flower drops its reply, too.
                self._give_up(job, "no answer in time")

    def _expired(self, job: _Pending) -> bool:
        """Whether an order has waited long enough for its device; it waits on if all are away."""
        name, now = self._names[job.order.device], time.monotonic()
        away = now - self._nodes.left.get(name, job.since)
        others = self._nodes.node_of and not self._nodes.waiting  # An unidentified node may be this device.
        return bool(others) and away > self._grace and now - job.since > RESCAN_SECONDS

    def _push(self) -> None:
        sent: list[tuple[_Pending, Message]] = []
        for job in self._pending.values():
            node = self._nodes.node_of.get(self._names[job.order.device])
            if job.message is None and node is not None:
                job.node, job.messages = node, job.messages + 1
                sent.append((job, self._message(job)))
        if not sent:
            return
        self._grid.push_messages([message for _, message in sent])  # A list, as Flower iterates over it twice.
        for job, message in sent:
            order, job.message = job.order, message.metadata.message_id or None
            facts: dict[str, Any] = {"round": order.round, "task": type(order.task).__name__, "node": job.node}
            record("asked", device=self._names[order.device], numbers=order.task.floats_down, **facts)
            if job.message is None:  # Flower does not know the node.
                self._nodes.lose(self._names[job.order.device], job.node)

    def _message(self, job: _Pending) -> Message:
        shadow = self._shadows[job.order.device]
        if not shadow.in_sync and job.messages > 1:
            self._trouble["memory sent again" if shadow.whole else "memory lost"] += 1
        state = None if shadow.in_sync else shadow.state
        digest = self._nodes.digests.get(self._names[job.order.device], "")
        return write_order(Envelope(job.order, shadow.version, self._setup, state, digest), job.node, self._ttl)

    def _moved(self, name: str) -> None:
        """Send an order again if its device has moved to another node."""
        for job in list(self._pending.values()):
            if self._names[job.order.device] == name and job.message and self._nodes.node_of[name] != job.node:
                self._again(job)

    # -- in

    def _pull(self) -> None:
        by_message = {job.message: job for job in self._pending.values() if job.message is not None}
        for message in self._puller.pull(by_message):
            job = by_message.get(message.metadata.reply_to_message_id)
            if job is not None and job.message == message.metadata.reply_to_message_id:
                self._take_in(job, message)

    def _take_in(self, job: _Pending, message: Message) -> None:
        device, shadow = job.order.device, self._shadows[job.order.device]
        if message.has_error():
            self._failed(job, message)
            return
        try:
            reply = read_reply(message, job.order, self._model.d)
        except UnreadableError as problem:
            log.warning("device %r: its reply is refused: %s", self._names[device], problem)
            record("refused", device=self._names[device], round=job.order.round, reason=str(problem))
            self._trouble["unreadable"] += 1
            shadow.in_sync = False
            self._done(job, np.array(["unreadable"]))
            return
        if reply.refused:
            self._refused(job, reply.refused)
            return
        self._any_reply = True
        record("answered", device=self._names[device], round=job.order.round, numbers=reply.values.size)
        shadow.answered(job.order.task, reply.values, reply.version)
        self._done(job, reply.values)

    def _failed(self, job: _Pending, message: Message) -> None:
        name, reason = self._names[job.order.device], error_of(message)
        log.warning("device %r: Flower's error %d, %s", name, message.error.code, reason)
        self._shadows[job.order.device].in_sync = False
        if message.error.code == _NODE_UNAVAILABLE:
            self._nodes.lose(name, job.node)
            self._trouble["node gone"] += 1
            self._again(job)
            return
        self._give_up(job, "error on the device")
        self._check_any(name, reason)

    def _refused(self, job: _Pending, reason: str) -> None:
        """Send a lost state again; name a device with other rows, or whose policy forbids an order: later it may do."""
        name = self._names[job.order.device]
        if reason == LOST:
            self._again(job)
        elif reason == CHANGED:
            self._nodes.refuse(name, CHANGED)
            self._give_up(job, "other rows")
        else:
            self._nodes.left_out[name] = f"it refused an order: {reason}"
            self._give_up(job, "refused by the device")
            self._check_any(name, reason)

    def _check_any(self, name: str, reason: str) -> None:
        """Raise an error where orders have failed on all devices: the app is at fault, not a device."""
        failed = self._trouble["error on the device"] + self._trouble["refused by the device"]
        if not self._any_reply and failed >= min(len(self._names), _MAX_FAILURES):
            raise FedfuseError(f"all devices fail; device {name!r} says: {reason}")

    def _again(self, job: _Pending) -> None:
        """Send an order again, with the device's state, when its device is there."""
        job.message = None
        self._shadows[job.order.device].in_sync = False
        if job.messages >= MAX_MESSAGES:
            self._give_up(job, "no answer in time")

    def _give_up(self, job: _Pending, reason: str) -> None:
        name = self._names[job.order.device]
        why = self._nodes.left_out.get(name, reason)
        log.warning("device %r: %s (round %d)", name, why, job.order.round)
        record("unanswered", device=name, round=job.order.round, reason=why)
        self._trouble[reason] += 1
        self._shadows[job.order.device].in_sync = False
        del self._pending[job.order.device]

    def _done(self, job: _Pending, values: npt.NDArray[Any]) -> None:
        del self._pending[job.order.device]
        self._ready.append(Reply(job.order.device, job.order.round, values))
