"""Devices over threads: bins of devices, and each thread takes the next when it is done."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from fedfuse.types import Floats, Ints

# Multiply-adds below which a second thread costs more than it saves.
SMALL = 1e7
# Of the work that is left, each bin has this share for every thread.
SHARE = 0.25


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
    """Call ``run(jobs)`` for bins of positions, in as many threads as `numba.set_num_threads` allows.

    ``run`` spends its time in compiled code that lets go of the interpreter. Threads live for one call: that
    costs a fifth of a millisecond and leaves nothing behind that would not survive a fork.
    """
    if cost.sum() <= SMALL:
        run(np.arange(cost.size))
        return
    import numba  # small work, and a process that has no more, is spared it

    threads = min(numba.get_num_threads(), cost.size)
    left = iter(bins(cost, threads))

    def work() -> None:
        for jobs in left:
            run(jobs)

    with ThreadPoolExecutor(max(1, threads - 1)) as pool:
        waiting = [pool.submit(work) for _ in range(threads - 1)]
        work()
    for done in waiting:
        done.result()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Let matrix products keep to one thread inside: several add up in another order, and the last bits change."""
    limit: AbstractContextManager[Any] = _libraries().limit(limits=1, user_api="blas")
    return limit


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all that is loaded: twenty milliseconds
