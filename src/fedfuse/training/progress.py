"""Progress of a run in its directory, for `fedfuse watch` and `fedfuse report`.

``rounds.jsonl`` has the rows of the history so far, written a few times a second; distances of all pairs are in
`snapshots`. No run needs these files to be resumed.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fedfuse.results.run_directory import ROUNDS
from fedfuse.results.snapshots import DistanceSnapshot, SnapshotFile, due
from fedfuse.training.loop import Callback, Row, Run
from fedfuse.utils.files import append_text, atomic_write, read_json_lines, without_nan

if TYPE_CHECKING:
    from fedfuse.results.result import Result

WRITE_SECONDS = 0.2  # Between two writes: a round may take a thousandth of that.


class Recorder(Callback):
    """A callback that writes rows of the history and snapshots of all distances."""

    def __init__(self, directory: Path) -> None:
        self._path, self._album = directory / ROUNDS, SnapshotFile(directory)
        self._pages: list[DistanceSnapshot] = []
        self._waiting: list[Row] = []
        self._written = -float("inf")

    def on_start(self, run: Run) -> None:
        """Start again from the checkpoint."""
        with atomic_write(self._path) as file:
            file.write("".join(map(_line, run.history)).encode())
        self._pages = [page for page in self._album.load() if page.round <= run.k]
        self._look(run)

    def on_round(self, run: Run, row: Row) -> None:
        """Record a round."""
        self._look(run)
        self._waiting.append(row)
        if time.monotonic() - self._written > WRITE_SECONDS:
            self._flush()

    def on_end(self, run: Run, result: Result) -> None:
        """Add the distances at the end."""
        self._pages = [page for page in self._pages if page.round < run.k]
        self._pages.append(DistanceSnapshot.of(run.k, result.models[:, run.model.fused], result.labels))
        self._album.save(self._pages, compress=True)

    def _look(self, run: Run) -> None:
        new_stage = len(run.history) > 1 and run.history[-1].get("stage") != run.history[-2].get("stage")
        if due(run.k, self._pages[-1].round if self._pages else None, new_stage):
            now = run.rule.current(run.state)
            self._pages.append(DistanceSnapshot.of(run.k, now.models[:, run.model.fused], now.labels))
            self._album.save(self._pages)

    def _flush(self) -> None:
        append_text(self._path, "".join(map(_line, self._waiting)))
        self._waiting, self._written = [], time.monotonic()


def read_rounds(directory: Path) -> list[Row]:
    """Return the rows of an unfinished run, without a line that is being written."""
    return read_json_lines(directory / ROUNDS) if (directory / ROUNDS).exists() else []


def _line(row: Row) -> str:
    return json.dumps(without_nan(row)) + "\n"
