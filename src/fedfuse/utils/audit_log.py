"""Audit log: who was asked for what, how much was sent, and what was refused and why, one JSON object on each line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fedfuse.utils.files import append_text, without_nan

_open: list[AuditLog] = []


def record(event: str, **facts: Any) -> None:
    """Write an event to the logs that are open; without one, nothing happens."""
    for log in _open:
        log.write(event, **facts)


class AuditLog:
    """A file that events are added to, while it is open as a context; a line that cannot be written is an error."""

    def __init__(self, path: Path, names: Sequence[str] = ()) -> None:
        self.path, self.names = path, names  # Names of devices, for events that know their numbers.

    def __enter__(self) -> AuditLog:
        _open.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, *where: object) -> None:
        _open.remove(self)
        if kind is not None:
            self.write("stopped", reason=str(problem) or kind.__name__)

    def write(self, event: str, **facts: Any) -> None:
        """Add an event."""
        device = facts.get("device")
        if isinstance(device, int) and device < len(self.names):
            facts["device"] = self.names[device]
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        append_text(self.path, json.dumps(without_nan({"time": now, "event": event, **facts})) + "\n")
