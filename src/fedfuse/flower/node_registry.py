"""Registry of nodes: which node is which device. Node ids change with restarts, device names do not.

Every node is asked once which device it is. Where SuperNodes are registered under names (``flwr supernode register
--name``), the name is the device, authenticated by the node's key, and a node that declares another is refused.
Otherwise a node is trusted: the newest that declares a device is that device, as a restarted node has a new id.

A node that says what cannot be used, or has other rows than when the run began, is left out: the others go on. It is
asked again every minute, and takes part when what it says is right.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from flwr.app import Message
from flwr.serverapp import Grid

from fedfuse.data.federation import MAX_REMOTE_TEXT, impossible, is_text
from fedfuse.errors import check_choice
from fedfuse.flower.message_puller import MessagePuller
from fedfuse.flower.messages import CHANGED, UnreadableError, error_of, hello, printable, read_hello
from fedfuse.utils.audit_log import record

log = logging.getLogger(__name__)

Identities: TypeAlias = Literal["auto", "declared", "registered"]
RESCAN_SECONDS = 3.0  # between two requests for the list of nodes
HELLO_SECONDS = 120.0  # that a node has to identify itself
RETRY_SECONDS = 60.0  # after which a node that was left out is asked again
NEW = "it was not among the devices when the run began"
_APP_ERROR = 2  # Flower's error code for an app that raised


class NodeRegistry:
    """The nodes of a run, by device.

    With identities ``"declared"`` nodes without a registered name are trusted, with ``"registered"`` they are refused,
    with ``"auto"`` where other nodes have registered names.
    """

    def __init__(self, grid: Grid, identities: Identities = "auto") -> None:
        check_choice("identities", identities, Identities)
        self.node_of: dict[str, int] = {}  # of devices that are online
        self.facts: dict[str, dict[str, Any]] = {}  # what devices declare about themselves
        self.left: dict[str, float] = {}  # when a device that is away was lost
        self.left_out: dict[str, str] = {}  # devices that may not take part now, and why
        self.digests: dict[str, str] = {}  # of the devices of a run that has begun: others' rows are not mixed in
        self.trouble: Counter[str] = Counter()
        self.moved: Callable[[str], None] = lambda name: None  # called when a device has a node
        self._grid, self._identities = grid, identities
        self._puller = MessagePuller(grid)
        self._asked: dict[str, int] = {}  # pending hello messages and their nodes
        self._name_of: dict[int, str | None] = {}  # None: replaced by another node
        self._refused: dict[int, float] = {}  # nodes that were left out, and when
        self._registered: dict[int, str] = {}
        self._last = -float("inf")

    def look(self, *, now: bool = False) -> None:
        """Update the registry: take in replies, and every few seconds (or ``now``) look for new and lost nodes."""
        for answer in self._puller.pull(self._asked):
            node = self._asked.pop(answer.metadata.reply_to_message_id, None)
            if node is not None:
                self._identify(node, answer)
        if not now and time.monotonic() - self._last < RESCAN_SECONDS:
            return
        self._last = time.monotonic()
        nodes = list(self._grid.get_nodes())
        online, self._registered = {n.node_id for n in nodes}, {n.node_id: n.name for n in nodes if n.name}
        for name, node in list(self.node_of.items()):
            if node not in online:
                self.lose(name, node)
        for node in online:
            if (known := self._name_of.get(node)) is not None and known not in self.node_of:
                self._set(known, node)
        not_now = {node for node, since in self._refused.items() if self._last - since < RETRY_SECONDS}
        not_now |= set(self._asked.values())
        new = [node for node in online if node not in self._name_of and node not in not_now]
        messages = {node: hello(node, HELLO_SECONDS) for node in new}
        if messages:
            self._grid.push_messages(list(messages.values()))  # A list, as Flower iterates over it twice.
        self._asked |= {m.metadata.message_id: node for node, m in messages.items() if m.metadata.message_id}

    @property
    def waiting(self) -> bool:
        """Whether some nodes have not identified themselves yet."""
        return any(node not in self._refused for node in self._asked.values())

    def lose(self, name: str, node: int) -> None:
        """Record that a device's node is gone."""
        if self.node_of.get(name) == node:
            del self.node_of[name]
            self.left[name] = time.monotonic()
            log.warning("device %r has gone (node %d)", name, node)
            record("gone", device=name, node=node)

    def refuse(self, name: str, reason: str) -> None:
        """Leave out a device for what it says; its node is asked again after a while."""
        self.facts.pop(name, None)
        self._leave_out(self.node_of.pop(name, None), name, reason)

    def _leave_out(self, node: int | None, who: str, reason: str) -> None:
        reason = printable(reason)
        if self.left_out.get(who) != reason:
            self.left_out[who] = reason
            self.trouble["refused nodes"] += 1
            log.warning("%s is left out: %s", who, reason)
            record("left out", device=who, reason=reason)
        if node is not None:
            self._name_of.pop(node, None)
            self._refused[node] = time.monotonic()

    def _identify(self, node: int, answer: Message) -> None:
        who = self._registered.get(node, f"node {node}")
        if answer.has_error():
            if answer.error.code == _APP_ERROR:
                self._leave_out(node, who, f"it cannot say who it is: {error_of(answer)}")
                return
            self.trouble["no answer to hello"] += 1  # It is asked again at the next scan.
            log.warning("node %d did not identify itself: %s", node, error_of(answer))
            return
        try:
            facts = read_hello(answer)
            name = self._identity(node, facts)
            who = who if self.node_of.get(name, node) != node else name  # Another node may be that device.
            if reason := facts["problem"] or impossible(facts) or self._misplaced(name, facts):
                raise UnreadableError(reason)
        except UnreadableError as unusable:
            self._leave_out(node, who, str(unusable))
            return
        self._name_of[node], self.facts[name] = name, facts
        record("hello", device=name, node=node, fedfuse=facts["fedfuse"], policy=facts["policy"])
        self._refused.pop(node, None)
        for known in (f"node {node}", name):
            self.left_out.pop(known, None)
        self._set(name, node)

    def _misplaced(self, name: str, facts: dict[str, Any]) -> str:
        """Say why a device has no place in a run that has begun; empty if it has, or no run has begun."""
        if self.digests and name not in self.digests:
            return self.left_out.get(name, NEW)
        return "" if self.digests.get(name, facts["digest"]) == facts["digest"] else CHANGED

    def _identity(self, node: int, facts: dict[str, Any]) -> str:
        declared, registered = facts.get("device"), self._registered.get(node)
        if not isinstance(declared, str) or not is_text(declared):
            raise UnreadableError(f"its device name must have 1 to {MAX_REMOTE_TEXT} printable characters")
        if registered is None:
            if self._identities == "registered" or (self._identities == "auto" and self._registered):
                raise UnreadableError(f"it claims to be device {declared!r}, but its key is not registered")
            return declared
        if declared != registered:
            raise UnreadableError(f"it claims to be device {declared!r}, but its key is registered as {registered!r}")
        return registered

    def _set(self, name: str, node: int) -> None:
        before = self.node_of.get(name)
        self.node_of[name] = node
        if self.left.pop(name, None) is not None:
            record("back", device=name, node=node)
        if before is not None and before != node:
            self._name_of[before] = None  # Flower may list it as online for another minute.
            log.warning("device %r has come back as node %d", name, node)
        self.moved(name)
