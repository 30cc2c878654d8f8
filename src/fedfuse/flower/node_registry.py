"""Which node is which device: nodes come and go and change their numbers, devices keep their names.

Every node is asked once who it is. Where SuperNodes are registered under names (``flwr supernode register --name``),
the name is the device, and proven by the node's key; a node that says otherwise is an impostor. Elsewhere a node is
believed: the newest that claims a device is that device, as one that was killed comes back under another number.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

from flwr.app import Message
from flwr.serverapp import Grid

from fedfuse.errors import FedfuseError
from fedfuse.flower.messages import UnreadableError, hello, read_hello

log = logging.getLogger(__name__)

Identities: TypeAlias = Literal["declared", "registered"]
RESCAN = 3.0  # seconds between two looks at who is there; 0 nodes cost nothing, but each look is a request


class NodeRegistry:
    """The nodes of a run, and the devices that they are.

    Parameters
    ----------
    grid
        Flower's, of the run.
    identities
        ``"declared"``: nodes without a registered name are believed. ``"registered"``: they get nothing.
    ttl
        Seconds that a node has to say who it is.
    """

    def __init__(self, grid: Grid, identities: Identities = "declared", ttl: float = 120.0) -> None:
        if identities not in get_args(Identities):
            raise FedfuseError(f"identities must be declared or registered, got {identities!r}")
        self.node_of: dict[str, int] = {}  # those that are there now
        self.facts: dict[str, dict[str, Any]] = {}  # what devices said of themselves
        self.left: dict[str, float] = {}  # when devices were last seen that are not there now
        self.trouble: Counter[str] = Counter()
        self.moved: Callable[[str], None] = lambda name: None  # called when a device has another node than before
        self._grid, self._identities, self._ttl = grid, identities, ttl
        self._asked: dict[str, int] = {}  # hellos under way: node by message
        self._name_of: dict[int, str | None] = {}  # None for nodes that are refused
        self._registered: dict[int, str] = {}
        self._last = -float("inf")

    def look(self, *, now: bool = False) -> None:
        """See who is there, ask newcomers who they are, and take in what they say; at most every few seconds."""
        self._hear()
        if not now and time.monotonic() - self._last < RESCAN:
            return
        self._last = time.monotonic()
        online = self._online()
        for name, node in list(self.node_of.items()):
            if node not in online:
                self.lose(name, node)
        for node in online:
            if (known := self._name_of.get(node)) is not None and known not in self.node_of:
                self._set(known, node)
        asked = set(self._asked.values())
        self._ask([node for node in online if node not in self._name_of and node not in asked])

    @property
    def waiting(self) -> bool:
        """Whether some that are there have not said yet who they are."""
        return bool(self._asked)

    def lose(self, name: str, node: int) -> None:
        """Note that a device's node does not answer any more."""
        if self.node_of.get(name) == node:
            del self.node_of[name]
            self.left[name] = time.monotonic()
            log.warning("device %r has gone (node %d)", name, node)

    def refuse(self, name: str, reason: str) -> None:
        """Let a device have nothing more, for what it has said."""
        log.warning("refused: %s", reason)
        self.trouble["refused nodes"] += 1
        self.facts.pop(name, None)
        node = self.node_of.pop(name, None)
        if node is not None:
            self._name_of[node] = None

    def _online(self) -> set[int]:
        get_nodes = getattr(self._grid, "get_nodes", None)
        if get_nodes is None:
            return set(self._grid.get_node_ids())
        nodes = list(get_nodes())
        self._registered = {n.node_id: n.name for n in nodes if n.name}
        return {n.node_id for n in nodes}

    def _ask(self, nodes: list[int]) -> None:
        if not nodes:
            return
        messages = [hello(node, self._ttl) for node in nodes]
        self._grid.push_messages(messages)  # a list: Flower goes through it twice
        for node, message in zip(nodes, messages, strict=True):
            if message.metadata.message_id:
                self._asked[message.metadata.message_id] = node

    def _hear(self) -> None:
        if not self._asked:
            return
        for answer in self._grid.pull_messages(list(self._asked)):
            node = self._asked.pop(answer.metadata.reply_to_message_id, None)
            if node is not None:
                self._meet(node, answer)

    def _meet(self, node: int, answer: Message) -> None:
        if answer.has_error():  # it is asked again at the next look, if it is still there
            self.trouble["no answer to hello"] += 1
            log.warning("node %d does not say who it is: %s", node, answer.error.reason)
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
            self._name_of[before] = None  # it may still count as online for a minute
            log.warning("device %r has come back as node %d", name, node)
        self.moved(name)
