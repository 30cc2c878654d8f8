"""Pulling of replies, in threads: one that is stuck holds up neither the others nor deadlines.

Flower returns nothing of a pull before all is there that its nodes have begun to send. Where a node dies or is stopped
in mid-upload, or has a slow link, that takes minutes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from queue import SimpleQueue

from flwr.app import Message
from flwr.serverapp import Grid

PATIENCE_SECONDS = 1.0  # that one look at what has come may take
MAX_THREADS = 32  # for one look


class MessagePuller:
    """Pulls all messages at once, and each by itself (or few together) once a pull has been stuck."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._arrived: SimpleQueue[tuple[list[str], list[Message] | Exception]] = SimpleQueue()
        self._under_way: set[str] = set()  # messages whose pull has not come back
        self._one_by_one = False

    def pull(self, asked: Iterable[str]) -> list[Message]:
        """Return the replies to these messages that have come, and maybe to others that were asked for before."""
        new = [message for message in asked if message not in self._under_way]
        size = -(-len(new) // MAX_THREADS) if self._one_by_one else len(new)
        batches = [new[i : i + size] for i in range(0, len(new), max(size, 1))]
        self._under_way.update(new)
        threads = [threading.Thread(target=self._pull, args=(batch,), daemon=True) for batch in batches]
        for thread in threads:
            thread.start()
        end = time.monotonic() + PATIENCE_SECONDS
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._one_by_one |= any(thread.is_alive() for thread in threads)
        return self._taken()

    def _taken(self) -> list[Message]:
        replies: list[Message] = []
        while not self._arrived.empty():
            batch, got = self._arrived.get()
            self._under_way.difference_update(batch)  # Not before: what is pulled twice is an error for Flower.
            if isinstance(got, Exception):
                raise got
            replies += got
        return replies

    def _pull(self, batch: list[str]) -> None:
        try:
            self._arrived.put((batch, list(self._grid.pull_messages(batch))))
        except Exception as problem:  # For the thread that waits.
            self._arrived.put((batch, problem))
