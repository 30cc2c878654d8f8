"""Clocks. Other processes only ever make things slower, so the best of many is taken."""

from __future__ import annotations

import time
from collections.abc import Callable

TURN = 0.05


def once(run: Callable[[], object]) -> float:
    """Return how many seconds one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def race(*runs: Callable[[], object], seconds: float, burst: int = 3) -> list[float]:
    """Return the best time of each contestant.

    They take turns, so that a busy moment of the machine hits all alike. In its turn each runs ``burst`` times, so
    that it finds its own data in the caches, and for at least `TURN` seconds: the best of few short calls would
    owe more to luck than the best of as many long ones.
    """
    best = [once(run) for run in runs]  # also compiles
    spent = 0.0
    while spent < seconds * len(runs):
        for i, run in enumerate(runs):
            turn, calls = 0.0, 0
            while calls < burst or turn < min(TURN, seconds):
                took = once(run)
                best[i] = min(best[i], took)
                turn, calls = turn + took, calls + 1
            spent += turn
    return best
