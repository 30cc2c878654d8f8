"""Registry of nodes: which node is which device. Node ids change with restarts, device names do not.

Every node is asked once which device it is. Where SuperNodes are registered under names (``flwr supernode register
--name``), the name is the device, authenticated by the node's key, and a node that declares another is refused.
Otherwise a node is trusted: the newest that declares a device is that device, as a restarted node has a new id.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from flwr.app import Message
from flwr.serverapp import Grid

from fedfuse.errors import check_choice
from fedfuse.flower.messages import UnreadableError, hello, read_hello

log = logging.getLogger(__name__)

Identities: TypeAlias = Literal["declared", "registered"]
RESCAN_SECONDS = 3.0  # between two requests for the list of nodes
HELLO_SECONDS = 120.0  # that a node has to identify itself


class NodeRegistry:
    """The nodes of a run, by device.

    Parameters
    ----------
    grid
        Flower's, of the run.
    identities
        ``"declared"``: nodes without a registered name are trusted. ``"registered"``: they are refused.
    """

    def __init__(self, grid: Grid, identities: Identities = "declared") -> None:
        check_choice("identities", identities, Identities)
        self.node_of: dict[str, int] = {}  # of devices that are online
        self.facts: dict[str, dict[str, Any]] = {}  # what devices declare about themselves
        self.left: dict[str, float] = {}  # when a device that is away was lost
        self.trouble: Counter[str] = Counter()
        self.moved: Callable[[str], None] = lambda name: None  # called when a device has a node
        self._grid, self._identities = grid, identities
        self._asked: dict[str, int] = {}  # pending hello messages and their nodes
        self._name_of: dict[int, str | None] = {}  # None: refused
        self._registered: dict[int, str] = {}
        self._last = -float("inf")

    def look(self, *, now: bool = False) -> None:
        """Update the registry: take in replies, and every few seconds (or ``now``) look for new and lost nodes."""
        if self._asked:
            self._hear()
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
        asked = set(self._asked.values())
        if new := [node for node in online if node not in self._name_of and node not in asked]:
            self._ask(new)

    @property
    def waiting(self) -> bool:
        """Whether some nodes have not identified themselves yet."""
        return bool(self._asked)

    def lose(self, name: str, node: int) -> None:
        """Record that a device's node is gone."""
        if self.node_of.get(name) == node:
            del self.node_of[name]
            self.left[name] = time.monotonic()
            log.warning("device %r has gone (node %d)", name, node)

    def refuse(self, name: str, reason: str) -> None:
        """Exclude a device for what it declares."""
        log.warning("refused: %s", reason)
        self.trouble["refused nodes"] += 1
        self.facts.pop(name, None)
        node = self.node_of.pop(name, None)
        if node is not None:
            self._name_of[node] = None

    def _ask(self, nodes: list[int]) -> None:
        messages = {node: hello(node, HELLO_SECONDS) for node in nodes}
        self._grid.push_messages(list(messages.values()))  # A list, as Flower iterates over it twice.
        self._asked |= {m.metadata.message_id: node for node, m in messages.items() if m.metadata.message_id}

    def _hear(self) -> None:
        for answer in self._grid.pull_messages(list(self._asked)):
            node = self._asked.pop(answer.metadata.reply_to_message_id, None)
            if node is not None:
                self._identify(node, answer)

    def _identify(self, node: int, answer: Message) -> None:
        if answer.has_error():  # It is asked again at the next scan.
            self.trouble["no answer to hello"] += 1
            log.warning("node %d did not identify itself: %s", node, answer.error.reason)
            return
        try:
            facts = read_hello(answer)
            self._name_of[node] = name = self._identity(node, facts)
        except UnreadableError as problem:
            self.trouble["refused nodes"] += 1
            self._name_of[node] = None
            log.warning("node %d is refused: %s", node, problem)
            return
        self.facts[name] = facts
        self._set(name, node)

    def _identity(self, node: int, facts: dict[str, Any]) -> str:
        declared, registered = facts.get("device"), self._registered.get(node)
        if not isinstance(declared, str) or not declared:
            raise UnreadableError("it has no device name")
        if registered is None:
            if self._identities == "registered":
                raise UnreadableError(f"it claims to be device {declared!r}, but its key is registered under no name")
            return declared
        if declared != registered:
            raise UnreadableError(f"it claims to be device {declared!r}, but its key is registered as {registered!r}")
        return registered

    def _set(self, name: str, node: int) -> None:
        before = self.node_of.get(name)
        self.node_of[name] = node
        self.left.pop(name, None)
        if before is not None and before != node:
            self._name_of[before] = None  # Flower may list it as online for another minute.
            log.warning("device %r has come back as node %d", name, node)
        self.moved(name)
