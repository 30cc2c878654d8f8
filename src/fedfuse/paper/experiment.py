"""What every experiment of the paper has: runs that it needs, and what they come to as tables, a picture and words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import numpy as np
import pandas as pd

from fedfuse.paper.setup import PaperSetup
from fedfuse.paper.trial import Trial
from fedfuse.studies.comparison import NOTHING


@dataclass
class Shown:
    """What came of an experiment.

    Attributes
    ----------
    tables
        Ready to be read, by title; ``—`` where there is nothing.
    numbers
        The same and more as numbers, by file name.
    draw
        Draws the picture and returns its axes.
    notes
        What is to be said of it: how ours compare with the printed ones.
    """

    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    numbers: dict[str, pd.DataFrame] = field(default_factory=dict)
    draw: Callable[[], Any] | None = None
    notes: list[str] = field(default_factory=list)


class Experiment(ABC):
    """A kind of experiment; its fields are what a table or figure declares."""

    @property
    @abstractmethod
    def data(self) -> tuple[str, ...]:
        """The data sets, by name."""

    @abstractmethod
    def trials(self, setup: PaperSetup) -> list[Trial]:
        """Return the runs that are needed, as far as that is known: some depend on what others came to."""

    @abstractmethod
    def show(self, setup: PaperSetup) -> Shown:
        """Return what the runs came to; all of them are done."""

    def datasets(self, setup: PaperSetup) -> list[str]:
        """Return the data sets that are here."""
        return [name for name in self.data if setup.here(name)]


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper.

    Attributes
    ----------
    name, title
        What to call it on the command line, and what it is.
    where
        Its place in the paper.
    experiment
        What is run.
    why
        Why our numbers may differ from the printed ones.
    """

    name: str
    title: str
    where: str
    experiment: Experiment
    why: tuple[str, ...] = ()


def printed(text: str, index: str = "method") -> pd.DataFrame:
    """Read numbers of the paper, ``x`` where it has none."""
    table: pd.DataFrame = pd.read_csv(StringIO(text.strip()), na_values="x", skipinitialspace=True).set_index(index)
    return table


def both(mean: float, sd: float | None = None, places: int = 2) -> str:
    """Write a mean and its spread.

    >>> both(93.037, 2.584), both(float("nan")), both(4.0, 0.0, 1)
    ('93.04 ± 2.58', '—', '4.0 ± 0.0')
    """
    if not np.isfinite(mean):
        return NOTHING
    return f"{mean:.{places}f}" + (f" ± {sd:.{places}f}" if sd is not None and np.isfinite(sd) else "")


def count(mean: float, sd: float | None = None) -> str:
    """Write a number of clusters: whole where all seeds agree.

    >>> count(4.0, 0.0), count(11.67, 8.81), count(3.0)
    ('4', '11.67 ± 8.81', '3')
    """
    if sd or not np.isfinite(mean):
        return both(mean, sd)
    return both(mean, places=0 if mean == round(mean) else 2)


def floats(number: float) -> str:
    """Write a number of floats as the paper does.

    >>> floats(12120), floats(73261000), floats(float("nan"))
    ('12,120', '7.33e7', '—')
    """
    if not np.isfinite(number):
        return NOTHING
    if number < 1e6:
        return f"{number:,.0f}"
    digits, _, power = f"{number:.2e}".partition("e")
    return f"{digits}e{int(power)}"
