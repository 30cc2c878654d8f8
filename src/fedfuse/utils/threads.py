"""Threads: work in bins, each taken by the next thread that is free; one thread for BLAS."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from fedfuse.utils.typing import Floats, Ints

# Multiply-adds up to which a second thread costs more than it saves.
MIN_PARALLEL_WORK = 1e7
# A bin has this share of the work that is left, divided by the number of threads.
BIN_RATIO = 0.25
Made = TypeVar("Made")
_mine = threading.local()
_limit: int | None = None  # threads, set by `keep_to`


def allowed() -> int:
    """Return how many threads computations may take: `keep_to`, NUMBA_NUM_THREADS, or one for every core."""
    return _limit or int(os.environ.get("NUMBA_NUM_THREADS") or usable_cores())


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_to(threads: int | None) -> None:
    """Take at most so many threads from now on in this process; None undoes that."""
    global _limit
    _limit = threads


def own(make: Callable[..., Made], *sizes: Any) -> Made:
    """Return ``make(*sizes)``, kept for this thread until it asks for other sizes."""
    last: tuple[Any, Made] | None = vars(_mine).get(make.__qualname__)
    if last is None or last[0] != sizes:
        last = vars(_mine)[make.__qualname__] = sizes, make(*sizes)
    return last[1]


def bins(cost: Floats, threads: int) -> list[Ints]:
    """Cut positions, the costliest first, into bins that get smaller (guided self-scheduling).

    Cores are never equally fast: a free thread takes the next bin, and the last ones are so small that none waits long.

    >>> [b.tolist() for b in bins(np.array([1.0, 9.0, 2.0, 5.0, 1.0]), 1)]
    [[1], [3], [2], [0], [4]]
    """
    order = np.argsort(-cost, kind="stable").astype(np.int64)
    behind = [0.0, *cost[order].cumsum().tolist()]  # before each
    found, first = [], 0
    while first < order.size:
        most = behind[first] + BIN_RATIO / threads * (behind[-1] - behind[first])
        stop = max(bisect_right(behind, most) - 1, first + 1)
        found.append(order[first:stop])
        first = stop
    return found


def spread(run: Callable[[Ints], object], cost: Floats) -> None:
    """Call ``run(jobs)`` for bins of positions, in as many threads as are `allowed`.

    ``run`` spends its time in compiled code that lets go of the interpreter, and may call `spread` itself.
    """
    if cost.sum() <= MIN_PARALLEL_WORK:
        run(np.arange(cost.size))
        return
    threads = min(allowed(), cost.size)
    left, errors = iter(bins(cost, threads)), np.geterr()

    def work() -> None:
        with np.errstate(**errors):  # a setting of each thread, inherited from the caller
            for jobs in left:
                run(jobs)

    waiting = [_helpers().submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        # a helper that has not begun has nothing left to do; to wait for its turn could take forever
        begun = [helper for helper in waiting if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()


@cache
def _helpers() -> ThreadPoolExecutor:
    """Threads that stay: to start one takes several times as long as to wake it."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="fedfuse")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helpers.cache_clear)  # threads do not survive a fork


def one_blas_thread() -> AbstractContextManager[Any]:
    """Let matrix products keep to one thread inside: several add up in another order, and the last bits change."""
    limit: AbstractContextManager[Any] = _libraries().limit(limits=1, user_api="blas")
    return limit


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all that is loaded: twenty milliseconds
