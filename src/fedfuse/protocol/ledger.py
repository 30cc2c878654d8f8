"""Communication cost: every float that is sent or received, and what became of every order."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedfuse.protocol.tasks import Order, Reply
from fedfuse.utils.audit_log import record

# Refusals for content that make a device a suspect.
MIN_SUSPECT_REFUSALS = 3
# Reasons for a refusal that concern the content; a late reply is not a lie.
CONTENT_REASONS = ("wrong length", "not numbers", "not finite", "too large", "far too long")


@dataclass
class CommunicationLedger:
    """The one place that counts communication: floats sent in either direction, orders, and what became of them.

    Every order is used, refused or unanswered; every reply is used or refused. Some replies answer no order that is
    still open (second answers, answers to old rounds): they are among the refused ones, and counted as ``uncalled``.
    """

    down: int = 0
    up: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # replies, by reason
    orders: int = 0
    replies: int = 0
    used: int = 0
    uncalled: int = 0
    unanswered: int = 0
    blamed: dict[str, int] = field(default_factory=dict)  # refusals for content by device; as text, for JSON

    def sent(self, order: Order) -> None:
        self.down += order.task.floats_down
        self.orders += 1

    def received(self, reply: Reply) -> None:
        self.up += reply.floats_up
        self.replies += 1

    def refuse(self, reason: str, device: int) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        record("refused", device=device, reason=reason)
        if reason in CONTENT_REASONS:
            self.blamed[str(device)] = self.blamed.get(str(device), 0) + 1

    def often_refused(self, m: int) -> list[int]:
        """Return whose answers were refused for what they say (not late ones) several times, and far more than most."""
        counts = np.array([self.blamed.get(str(i), 0) for i in range(m)])
        return [int(i) for i in np.flatnonzero((counts >= MIN_SUSPECT_REFUSALS) & (counts > 3 * np.median(counts)))]

    @property
    def outcome(self) -> dict[str, int]:
        """Return what became of the orders: ``sent = used + refused + unanswered``."""
        refused = sum(self.refused.values()) - self.uncalled
        return {
            "sent": self.orders, "used": self.used, "refused": refused, "unanswered": self.unanswered,
            "uncalled": self.uncalled,
        }  # fmt: skip

    @property
    def floats(self) -> int:
        return self.down + self.up
