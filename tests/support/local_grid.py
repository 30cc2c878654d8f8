"""A grid without Flower's engines: messages go to a ClientApp in this process, through Flower's own wire format."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity  # internal: Message() reads who it is from it

_runs = itertools.count(1)


class LocalGrid(Grid):
    """Nodes that come, go and lie as a test wishes.

    ``down`` are nodes that are not there, ``forge`` changes what a node answers, ``names`` are registered names.
    """

    def __init__(self, app: ClientApp, devices: int, config: dict[str, Any] | None = None) -> None:
        self.run_id = next(_runs)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run_id, 1, 1
        self.app, self.config = app, config or {}
        self.contexts: dict[int, Context] = {}
        self.down: set[int] = set()
        self.names: dict[int, str] = {}
        self.forge: Callable[[Message, Message], Message | None] = lambda asked, answer: answer
        self.order: Callable[[list[str]], list[str]] = lambda ids: ids
        self.sent: list[Message] = []
        self.answers: list[Message] = []
        self._box: dict[str, Message] = {}
        self._numbers = itertools.count(1)
        for i in range(devices):
            self.add(1000 + i, {"partition-id": i, "num-partitions": devices})

    def add(self, node: int, config: dict[str, Any]) -> None:
        """Let a node come."""
        state = RecordDict()
        self.contexts[node] = Context(self.run_id, node, config, state, self.config)

    def restart(self, node: int, new: int) -> None:
        """Let a node end and come back under another number, without its memory."""
        config = self.contexts.pop(node).node_config
        self.down.add(node)
        self.add(new, config)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return [node for node in self.contexts if node not in self.down]

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=n, name=self.names.get(n, "")) for n in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self._numbers)}"
            self._box[message.metadata.message_id] = message
            self.sent.append(message)
        return [m.metadata.message_id for m in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        answers = [self._answer(self._box.pop(i)) for i in self.order([i for i in message_ids if i in self._box])]
        return [answer for answer in answers if answer is not None]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        if node in self.down:
            return Message(Error(5, "node unavailable"), reply_to=message)
        try:
            answer = self.app(message=message, context=self.contexts[node])
        except Exception as problem:
            return Message(Error(2, repr(problem)), reply_to=message)
        self.answers.append(answer)
        return self.forge(message, answer)
