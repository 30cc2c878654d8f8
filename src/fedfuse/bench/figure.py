"""One measured figure, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """Something measured, what it is measured against, and their ratio.

    Parameters
    ----------
    name
        A few words for the table.
    what, against
        What was measured, with its sizes, and what it is compared with.
    value, reference, unit
        Both numbers, and what they count.
    ratio
        Their quotient, turned so that the goal makes sense: how many times as fast, which share of a limit.
    goal
        What the ratio should at least (or, with ``sense="at most"``, at most) be; None for information only.
    """

    name: str
    what: str
    against: str
    value: float
    reference: float
    unit: str
    ratio: float
    goal: float | None = None
    sense: Literal["at least", "at most"] = "at least"

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        if self.goal is None:
            return None
        return bool(self.ratio >= self.goal if self.sense == "at least" else self.ratio <= self.goal)

    def to_dict(self, *, judged: bool) -> dict[str, Any]:
        """Return the figure for a JSON file."""
        numbers = {name: float(getattr(self, name)) for name in ("value", "reference", "ratio")}
        return {**asdict(self), **numbers, "met": self.met if judged else None}


def table(figures: Iterable[Figure], *, judged: bool) -> Table:
    """Show figures; goals are judged for full sizes only."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0))
    for heading in ("figure", "measured", "against", "ratio", "goal"):
        shown.add_column(heading, justify="right" if heading == "ratio" else "left")
    for f in figures:
        colour = {True: "green", False: "red", None: "default"}[f.met if judged else None]
        shown.add_row(
            f"{f.name}\n[dim]{f.what}[/dim]",
            readable(f.value, f.unit),
            f"{readable(f.reference, f.unit)}\n[dim]{f.against}[/dim]",
            f"[{colour}]{f.ratio:.3g}[/{colour}]",
            f"{f.sense} {f.goal:g}" if judged and f.goal is not None else "",
        )
    return shown


def readable(value: float, unit: str) -> str:
    """Write a number with its unit.

    >>> readable(0.00042, "s"), readable(1234567.0, "bytes"), readable(31.25, "GB/s")
    ('420 us', '1.23 MB', '31.2 GB/s')
    """
    if unit == "s":
        power, name = next(p for p in ((1e-6, "us"), (1e-3, "ms"), (1.0, "s")) if value < 1e3 * p[0] or p[0] == 1)
        return f"{value / power:.3g} {name}"
    if unit == "bytes":
        return f"{value / 1e9:.3g} GB" if value >= 1e9 else f"{value / 1e6:.3g} MB"
    return f"{value:.3g} {unit}".rstrip()
