"""Devices over threads: bins of devices, and each thread takes the next when it is done."""

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

# Multiply-adds below which a second thread costs more than it saves.
SMALL = 1e7
# Of the work that is left, each bin has this share for every thread.
SHARE = 0.25


Made = TypeVar("Made")
_mine = threading.local()
_most: int | None = None  # threads, where somebody has said so


def allowed() -> int:
    """Return how many threads computations may take: `keep_to`, NUMBA_NUM_THREADS, or one for every core."""
    return _most or int(os.environ.get("NUMBA_NUM_THREADS") or usable_cores())


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_to(threads: int | None) -> None:
    """Take at most so many threads from now on in this process; None undoes that."""
    global _most
    _most = threads


def own(make: Callable[..., Made], *sizes: Any) -> Made:
    """Return what this thread works in: ``make(*sizes)``, or what that was the last time, if sizes are the same."""
    last: tuple[Any, Made] | None = vars(_mine).get(make.__qualname__)
    if last is None or last[0] != sizes:
        last = vars(_mine)[make.__qualname__] = sizes, make(*sizes)
    return last[1]


def bins(cost: Floats, threads: int) -> list[Ints]:
    """Cut positions, the costliest first, into bins that get smaller (guided self-scheduling).

    Cores are never equally fast: whoever is done takes the next, and the last ones are so small that nobody waits long.

    >>> [b.tolist() for b in bins(np.array([1.0, 9.0, 2.0, 5.0, 1.0]), 1)]
    [[1], [3], [2], [0], [4]]
    """
    order = np.argsort(-cost, kind="stable").astype(np.int64)
    behind = [0.0, *cost[order].cumsum().tolist()]  # before each
    found, first = [], 0
    while first < order.size:
        most = behind[first] + SHARE / threads * (behind[-1] - behind[first])
        stop = max(bisect_right(behind, most) - 1, first + 1)
        found.append(order[first:stop])
        first = stop
    return found


def spread(run: Callable[[Ints], object], cost: Floats) -> None:
    """Call ``run(jobs)`` for bins of positions, in as many threads as are `allowed`.

    ``run`` spends its time in compiled code that lets go of the interpreter, and may call `spread` itself.
    """
    if cost.sum() <= SMALL:
        run(np.arange(cost.size))
        return
    threads = min(allowed(), cost.size)
    left = iter(bins(cost, threads))

    wishes = np.geterr()

    def work() -> None:
        with np.errstate(**wishes):  # what NumPy warns of is a matter of each thread, and the caller's to say
            for jobs in left:
                run(jobs)

    waiting = [_helpers().submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        # who has not begun has nothing to do any more; to wait for its turn could take for ever
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
