"""How far all runs are and how long is left, told from the work that is done."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console

from fedfuse.paper.output import duration
from fedfuse.paper.setup import effort
from fedfuse.paper.trial import Trial
from fedfuse.report.terminal import ComparisonBars
from fedfuse.studies.jobs import DONE, FAILED, RUNNING, Job, JobState

EVERY = 60.0  # seconds between two lines where there is no terminal to draw a bar on


class Remaining(ComparisonBars):
    """The bars of a comparison, with the time that is left.

    That is told by rough efforts (`setup.effort`), and how fast they go by those that are behind us.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._console = console
        self._efforts: list[float] = []
        self._began = self._said = 0.0

    def begin(self, jobs: Sequence[Job]) -> None:
        self._efforts = [max(effort(job), 0.1) if isinstance(job, Trial) else 1.0 for job in jobs]
        self._began = self._said = time.monotonic()
        super().begin(jobs)

    def _work(self) -> float:
        return sum(self._efforts)

    def _told(self, states: Sequence[JobState]) -> tuple[float, str]:
        behind = sum(work * _done(state) for work, state in zip(self._efforts, states, strict=True))
        ended = sum(state in (DONE, FAILED) for state, _, _ in states)
        words = f"{ended} of {len(states)}{self._left(behind)}"
        if not self._console.is_terminal and time.monotonic() - self._said > EVERY:
            self._said = time.monotonic()
            self._console.print(f"runs: {words} {self._hint}".rstrip(), highlight=False, soft_wrap=True)
        return behind, words

    def _left(self, behind: float) -> str:
        total, passed = self._work(), time.monotonic() - self._began
        if behind < 0.01 * total or passed < 5:
            return ""
        return f", about {duration(passed * (total - behind) / behind)} left"


def _done(state: JobState) -> float:
    """Return the share of a run that is behind us; where the method itself says when it is done, that is a guess."""
    what, done, most = state
    if what == RUNNING:
        return min(done / most, 1.0) if most else 0.3
    return float(what in (DONE, FAILED))
