"""Policy of a node: what its owner allows a server to ask, in a TOML file that stays on the node.

``--node-config 'policy="/etc/fedfuse/north.toml"'`` names the file. Every order is checked against it on the node,
before rows are touched; a refused one is answered with the reason. The policy is shown to the server with the hello.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import tomli  # Flower brings it: Python 3.10 has no tomllib.

from fedfuse.errors import FedfuseError, guess
from fedfuse.protocol.privacy import Noise, spent
from fedfuse.protocol.tasks import Order, SendMoments, SendSufficientStatistics, Subspace, Task
from fedfuse.utils.audit_log import AuditLog
from fedfuse.utils.files import NUMBER, check_fields, read_json_lines

TASKS = tuple(kind.__name__ for kind in get_args(Task))
_SECOND_MOMENTS = (SendMoments, SendSufficientStatistics, Subspace)
_KINDS = {
    "tasks": list[str], "second_moments": bool, "min_rows": int, "max_epsilon": NUMBER, "delta": NUMBER,
    "max_rounds": int,
}  # fmt: skip


@dataclass(frozen=True)
class Policy:
    """Limits to what a node does for a server; in the file, words are joined by hyphens."""

    tasks: tuple[str, ...] | None = None  # that are allowed (`protocol.tasks`); None for all
    second_moments: bool = True  # whether means of squares and products of columns may be sent
    min_rows: int = 0  # training rows that a device must have to send anything
    # Noise that orders must ask for: all answers of this device, of all runs, stay within this budget.
    max_epsilon: float | None = None
    delta: float = 1e-5
    max_rounds: int | None = None  # orders that this device answers (a round has one or two), in all runs together

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Read a policy; one that cannot be understood allows nothing."""
        try:
            given = {key.replace("-", "_"): value for key, value in tomli.loads(path.read_text("utf-8")).items()}
        except (OSError, ValueError) as problem:
            raise FedfuseError(f"the policy {path} cannot be read: {problem}") from None
        for key in given.keys() - _KINDS.keys():
            words = f"{key!r}; {guess(key, _KINDS)}known: {', '.join(_KINDS)}"
            raise FedfuseError(f"the policy {path} has {words.replace('_', '-')}")
        check_fields(given, _KINDS, f"the policy {path}", whole=False)
        if wrong := [name for name in given.get("tasks", ()) if name not in TASKS]:
            raise FedfuseError(f"the policy {path} allows {wrong[0]!r}: tasks are {', '.join(TASKS)}")
        return cls(**{**given, "tasks": tuple(given["tasks"]) if "tasks" in given else None})

    @property
    def counts(self) -> bool:
        """Whether earlier answers matter."""
        return self.max_rounds is not None or self.max_epsilon is not None

    def shown(self) -> dict[str, Any]:
        """Return what the server is told: the limits that there are."""
        return {name: value for name, value in asdict(self).items() if value != getattr(Policy(), name)}

    def refusal(self, order: Order, rows: int, noise: float, answered: Sequence[float]) -> str | None:
        """Return why an order is refused by a device with so many rows; None if it is not.

        ``noise`` is the multiplier that the order asks for (0 for none), ``answered`` has those of all earlier answers.
        """
        name = type(order.task).__name__
        if self.tasks is not None and name not in self.tasks:
            return f"{name} is not among the tasks that it allows ({', '.join(self.tasks) or 'none'})"
        if not self.second_moments and isinstance(order.task, _SECOND_MOMENTS):
            return f"{name} asks for second moments of its columns"
        if rows < self.min_rows:
            return f"it has fewer than {self.min_rows} training rows"
        if self.max_rounds is not None and len(answered) >= self.max_rounds:
            return f"it has answered {len(answered)} times, and allows {self.max_rounds}"
        if self.max_epsilon is None:
            return None
        least, n = min([noise, *answered]), len(answered) + 1  # As if all answers had as little noise as any.
        epsilon = spent(Noise(1.0, least), self.delta, n) if least > 0 else float("inf")
        words = f"its answers would come to epsilon {epsilon:.3g} after {n}, and it allows {self.max_epsilon:g}"
        return words if epsilon > self.max_epsilon else None


class OrderLog(AuditLog):
    """A node's own log of orders, from which it knows how often a device has answered, and with how much noise."""

    def answered(self, device: str) -> list[float]:
        """Return the noise multiplier of every answer of a device, in all runs."""
        lines = read_json_lines(self.path) if self.path.exists() else []
        mine = [line for line in lines if (line.get("event"), line.get("device")) == ("answered", device)]
        return [float(line.get("noise") or 0) for line in mine]
