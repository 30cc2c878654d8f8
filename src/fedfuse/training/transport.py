"""Transport between server and engine: orders go out, replies come in and are checked, and all are counted.

An order is open until its reply has come or its round is over; then it is overdue. A reply to an open order is used if
it passes the gate (`protocol.reply_checks.fault`). A reply to an overdue order is late: it is refused, unless late
replies are wanted and it is the newest that its device was asked for. Any other reply is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedfuse.engines.base import Engine, clock, pack_replies, unpack_replies
from fedfuse.errors import FedfuseError
from fedfuse.protocol.ledger import CommunicationLedger
from fedfuse.protocol.reply_checks import fault
from fedfuse.protocol.tasks import EVALUATION_ROUND, Order, Reply, Task
from fedfuse.utils.typing import Floats, Ints

MAX_PEEKS = 2  # Times that a device is asked for its model where it does not answer.
MIN_HEARD_RATIO = 1 / 3  # Of the median of replies; with fewer, absence would look like difference.
CLOCK_TOLERANCE = 1e-9  # Relative rounding error of a sum of times.


@dataclass(frozen=True)
class PendingOrder:
    """An order, when it was sent, and how often the server had updated by then."""

    order: Order
    time: float
    updates: int


class ReceivedReply(NamedTuple):
    """A reply that may be used, the number of server updates since its order was sent, and what that was."""

    reply: Reply
    staleness: int
    task: Task


class Transport:
    """The orders of a run that are under way, and the engine that they go to."""

    def __init__(self, engine: Engine, m: int, d: int, dtype: npt.DTypeLike) -> None:
        self.engine, self.ledger = engine, CommunicationLedger()
        self.open: dict[int, PendingOrder] = {}
        self.updates = 0
        self._overdue: dict[tuple[int, int], PendingOrder] = {}  # By device and round.
        self._last = np.full(m, -1, np.int64)  # The round that each device was last asked in.
        self._asked, self._heard = np.zeros((2, m), np.int64)  # Orders for floats; replies with some that were used.
        self._arrived: deque[Reply] = deque()
        self._gate: dict[str, Any] = {"m": m, "d": d, "dtype": dtype}

    # -- out and in

    def send(self, orders: Sequence[Order]) -> None:
        """Send orders, and count them."""
        self._wait_for(o.device for o in orders)
        now = clock(self.engine)
        for order in orders:
            self.ledger.sent(order)
            self.open[order.device] = PendingOrder(order, now, self.updates)
            self._last[order.device] = order.round
            self._asked[order.device] += order.task.floats_up(self._gate["d"]) > 0
        self.engine.submit(orders)

    def gather(self, wanted: int, patience: float | None = None, *, late: bool = False) -> list[ReceivedReply]:
        """Wait for so many replies to open orders, or as many as come, and return all that may be used.

        Where no order is open, but devices are still at work on overdue ones, wait for one of these.
        """
        end = None if patience is None else clock(self.engine) + patience
        heard: list[ReceivedReply] = []
        alone, answers = not self.open, 0
        while answers < wanted and (self.open or (alone and self.engine.busy)):
            reply = self._next(end)
            if reply is None:
                break
            awaited = self._is_awaited(reply)
            good = self._judge(reply, late)
            heard += [good] if good else []
            answers += alone or (awaited and good is not None)
        return heard

    def exchange(self, orders: Sequence[Order]) -> list[Reply]:
        """Send orders, wait for all replies, and return the good ones by device."""
        if not orders:
            return []
        self.send(orders)
        heard = self.gather(len(orders))
        self.close()
        self.use(heard)
        return sorted((h.reply for h in heard), key=lambda reply: reply.device)

    def look(self, tasks: Sequence[Task], instead: Sequence[Floats] | None = None) -> list[Floats]:
        """Ask every device for what only an experiment may see; it is no message of the method, and not counted.

        ``instead`` has what to take for a device that does not answer; without it, that is an error.
        """
        seen: dict[int, Floats] = {}
        missing = dict(enumerate(tasks))
        for _ in range(MAX_PEEKS):
            seen |= self.seen(missing)
            missing = {i: task for i, task in enumerate(tasks) if i not in seen}
            if not missing:
                break
        if missing and instead is None:
            raise FedfuseError(f"device {min(missing)} does not send its model (no answer)")
        return [seen[i] if i in seen else instead[i] for i in range(len(tasks))]  # type: ignore[index]

    def seen(self, tasks: Mapping[int, Task]) -> dict[int, Floats]:
        """Peek once at some devices; return the answers that came."""
        if not tasks:
            return {}
        self._wait_for(tasks)
        self.engine.submit([Order(i, EVALUATION_ROUND, task) for i, task in tasks.items()])
        seen: dict[int, Floats] = {}
        while len(seen) < len(tasks) and (arrived := self.engine.collect()):
            looks = [reply for reply in arrived if reply.round == EVALUATION_ROUND and reply.device in tasks]
            seen |= {r.device: r.values for r in looks if r.values.dtype.kind in "fiu" and self._fits(r, tasks)}
            self._arrived.extend(reply for reply in arrived if reply.round != EVALUATION_ROUND)
        return seen

    def _fits(self, reply: Reply, tasks: Mapping[int, Task]) -> bool:
        expected = (tasks[reply.device].floats_up(self._gate["d"]),)
        return reply.values.shape == expected and bool(np.isfinite(reply.values).all())  # Training may have diverged.

    # -- what becomes of orders and replies

    def use(self, heard: Sequence[ReceivedReply]) -> None:
        """Count replies as used."""
        self.ledger.used += len(heard)
        np.add.at(self._heard, np.array([h.reply.device for h in heard if h.reply.floats_up], np.int64), 1)

    def drop(self, heard: Sequence[ReceivedReply], reason: str) -> None:
        """Count replies as refused."""
        for h in heard:
            self.ledger.refuse(reason, h.reply.device)

    def close(self) -> None:
        """End a round: open orders become overdue, and other replies that have come are judged."""
        self._expire(list(self.open.values()))
        while self._arrived:
            self._judge(self._arrived.popleft(), late=False)

    def give_up(self, deadline: float | None) -> None:
        """Give up the orders that are past their deadline; if there are none, all, as nobody answers any more."""
        now = clock(self.engine)
        sent = list(self.open.values())
        past = [s for s in sent if deadline is not None and now - s.time >= deadline - CLOCK_TOLERANCE * (1 + abs(now))]
        self._expire(past or sent)

    def left(self, deadline: float | None) -> float | None:
        """Return the seconds to the first deadline of an open order."""
        if deadline is None or not self.open:
            return deadline
        return max(0.0, min(s.time for s in self.open.values()) + deadline - clock(self.engine))

    def drain(self) -> None:
        """Wait until no device is at work any more; replies that come are too late."""
        self.close()
        while arrived := self.engine.collect():
            self._arrived.extend(arrived)
            self.close()

    @property
    def outcome(self) -> dict[str, int]:
        """Counts of orders so far; those still without an answer are among the unanswered."""
        counts = self.ledger.outcome
        counts["unanswered"] += len(self.open) + len(self._overdue)
        return counts

    @property
    def unheard(self) -> Ints:
        """The devices that were asked for something and never answered in time, well or badly."""
        blamed = np.array([int(i) for i in self.ledger.blamed], np.int64)
        return np.setdiff1d(np.flatnonzero((self._asked > 0) & (self._heard == 0)), blamed)

    @property
    def seldom_heard(self) -> Ints:
        """The devices that left orders unanswered, and answered far less often than most."""
        few = self._heard < MIN_HEARD_RATIO * np.median(self._heard)
        return np.flatnonzero(few & (self._heard > 0) & (self._heard < self._asked))

    @property
    def unsettled(self) -> bool:
        """Whether devices may have done work that the server has not used."""
        return bool(self.open or self._overdue or self.ledger.refused or self.ledger.unanswered)

    def _expire(self, sent: Sequence[PendingOrder]) -> None:
        for s in sent:
            del self.open[s.order.device]
            self._overdue[s.order.device, s.order.round] = s

    def _next(self, end: float | None) -> Reply | None:
        if not self._arrived:
            left = None if end is None else max(0.0, end - clock(self.engine))
            self._arrived.extend(self.engine.collect() if left is None else self.engine.collect(left))
        return self._arrived.popleft() if self._arrived else None

    def _is_awaited(self, reply: Reply) -> bool:
        sent = self.open.get(reply.device)
        return sent is not None and sent.order.round == reply.round

    def _judge(self, reply: Reply, late: bool) -> ReceivedReply | None:
        """Return the reply if it may be used; else count why not."""
        self.ledger.received(reply)
        awaited = self._is_awaited(reply)
        sent = self.open.pop(reply.device) if awaited else self._overdue.pop((reply.device, reply.round), None)
        self.ledger.uncalled += sent is None
        in_time = awaited or sent is None or (late and self._last[reply.device] == reply.round)
        wrong = fault(reply, sent.order if sent else None, **self._gate) if in_time else "late"
        if wrong or sent is None:
            self.ledger.refuse(wrong or "late", reply.device)
            return None
        return ReceivedReply(reply, self.updates - sent.updates, sent.order.task)

    def _wait_for(self, devices: Iterable[int]) -> None:
        """Let devices finish what they are at, where only one order at a time can be taken (not in virtual time)."""
        asked = set(devices)
        while self.engine.time is None and asked & self.engine.busy and (arrived := self.engine.collect()):
            self._arrived.extend(arrived)

    # -- for a checkpoint

    def pack(self) -> dict[str, npt.NDArray[Any]]:
        """Return what is under way as arrays."""
        rows = {
            "open": [(s.order.device, s.order.round, s.time, s.updates) for s in self.open.values()],
            "overdue": [(i, k, s.time, s.updates) for (i, k), s in self._overdue.items()],
        }
        tables = {name: np.array(table, np.float64).reshape(-1, 4) for name, table in rows.items()}
        seen = {"last": self._last, "asked": self._asked, "heard": self._heard}
        return {**tables, **seen, **pack_replies(list(self._arrived), "arrived")}

    def unpack(self, arrays: dict[str, npt.NDArray[Any]], tasks: Sequence[Task], *, kept: bool) -> None:
        """Take back what `pack` returned, with a task like its open order's for each device.

        If what was under way is not ``kept``, it will never come, and devices are asked again.
        """
        self._last = arrays["last"]
        self._asked, self._heard = (arrays[name].astype(np.int64) for name in ("asked", "heard"))
        self._overdue = _table(arrays["overdue"], tasks)
        under_way = _table(arrays["open"], tasks)
        if kept:
            self.open = {i: sent for (i, _), sent in under_way.items()}
            self._arrived = deque(unpack_replies(arrays, "arrived"))
        else:
            self.ledger.unanswered += len(under_way)


def _table(rows: npt.NDArray[Any], tasks: Sequence[Task]) -> dict[tuple[int, int], PendingOrder]:
    whole = ((int(i), int(k), float(then), int(updates)) for i, k, then, updates in rows)
    return {(i, k): PendingOrder(Order(i, k, tasks[i]), then, updates) for i, k, then, updates in whole}
