"""How far all runs are and how long is left, told from the work that is done."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from fedfuse.comparison.jobs import DONE, FAILED, RUNNING, Board, Job, Watcher
from fedfuse.paper.output import duration
from fedfuse.paper.setup import effort
from fedfuse.paper.trial import Trial

EVERY = 60.0  # seconds between two lines where there is no terminal to draw a bar on


class Remaining(Watcher):
    """A bar for all runs with the time that is left, and one for each that is at work.

    What is left is told by rough efforts (`setup.effort`), and how fast they go by those that are behind us.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress, self._all = self._bar_of(0.0)
        self._bars: dict[int, TaskID] = {}
        self._jobs: Sequence[Job] = ()
        self._efforts: list[float] = []
        self._began = self._told = 0.0
        self._hint = ""

    def begin(self, jobs: Sequence[Job]) -> None:
        self._jobs, self._bars = jobs, {}
        self._efforts = [max(effort(job), 0.1) if isinstance(job, Trial) else 1.0 for job in jobs]
        self._progress, self._all = self._bar_of(sum(self._efforts))
        self._began = self._told = time.monotonic()
        self._progress.start()

    def _bar_of(self, total: float) -> tuple[Progress, TaskID]:
        progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(), console=self._console, transient=True, disable=not self._console.is_terminal,
        )  # fmt: skip
        return progress, progress.add_task("runs", note="", total=total)

    def look(self, board: Board) -> None:
        states = [board.get(number) for number in range(len(self._jobs))]
        behind = 0.0
        for number, (state, done, most) in enumerate(states):
            if state == RUNNING:
                note = f"round {done} of {most}" if most else f"round {done}"
                self._progress.update(self._bar(number), completed=done, total=most or done + 1, note=note)
                behind += self._efforts[number] * (min(done / most, 1.0) if most else 0.3)
            elif number in self._bars:
                self._progress.remove_task(self._bars.pop(number))
            if state in (DONE, FAILED):
                behind += self._efforts[number]
        ended = sum(state in (DONE, FAILED) for state, _, _ in states)
        words = f"{ended} of {len(states)}{self._left(behind)} {self._hint}".rstrip()
        self._progress.update(self._all, completed=behind, note=words)
        if not self._console.is_terminal and time.monotonic() - self._told > EVERY:
            self._told = time.monotonic()
            self._console.print(f"runs: {words}", highlight=False, soft_wrap=True)

    def _left(self, behind: float) -> str:
        total, passed = sum(self._efforts), time.monotonic() - self._began
        if behind < 0.01 * total or passed < 5:
            return ""
        return f", about {duration(passed * (total - behind) / behind)} left"

    def stopping(self) -> None:
        self._hint = "stopping after this round (Ctrl-C again: at once)"
        self._progress.update(self._all, note=self._hint)

    def close(self) -> None:
        """Give the terminal back, also after an error."""
        self._progress.stop()

    def _bar(self, number: int) -> TaskID:
        if number not in self._bars:
            job = self._jobs[number]
            self._bars[number] = self._progress.add_task(f"{job.label}, seed {job.seed}", note="")
        return self._bars[number]
