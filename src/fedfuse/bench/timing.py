"""Clocks. Other processes only ever make things slower, so the best of many is taken."""

from __future__ import annotations

import time
from collections.abc import Callable


def once(run: Callable[[], object]) -> float:
    """Return how many seconds one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def race(*runs: Callable[[], object], seconds: float, burst: int = 3) -> list[float]:
    """Return the best time of each contestant.

    They take turns, so that a busy moment of the machine hits all alike. In its turn each runs ``burst``
    times, so that it finds its own data in the caches.
    """
    best = [once(run) for run in runs]  # also compiles
    spent = 0.0
    while spent < seconds * len(runs):
        for i, run in enumerate(runs):
            for _ in range(burst):
                took = once(run)
                best[i] = min(best[i], took)
                spent += took
    return best
