"""Where devices compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from fedfuse.tasks import Order, Reply


class Fleet(ABC):
    """Takes orders to devices and brings back their replies; knows nothing of methods.

    A device keeps its own last model between orders: `Train` without a start goes on from there.
    """

    @abstractmethod
    def submit(self, orders: Sequence[Order]) -> None:
        """Send these orders, at most one per device."""

    @abstractmethod
    def collect(self) -> list[Reply]:
        """Wait for replies and return those that have come; an empty list says that no more will come."""

    def close(self) -> None:  # noqa: B027 - most fleets have nothing to end
        """End whatever the fleet has started."""
