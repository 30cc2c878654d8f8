"""Devices over threads: bins of devices with about the same work, and each thread takes the next when it is done."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from heapq import heapify, heapreplace
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from fedfuse.types import Floats, Ints

# Multiply-adds below which a second thread costs more than it saves.
SMALL = 1e7
# Bins for each thread: cores are never equally fast, and a thread that is done early takes from the other's.
BINS = 8


def bins(cost: Floats, n: int) -> list[Ints]:
    """Cut positions into at most ``n`` bins: the costliest first, each to the bin with the least work so far.

    >>> [b.tolist() for b in bins(np.array([1.0, 9.0, 2.0, 5.0]), 2)]
    [[1], [3, 2, 0]]
    """
    members: list[list[int]] = [[] for _ in range(max(1, min(n, cost.size)))]
    load = [(0.0, b) for b in range(len(members))]
    heapify(load)
    for job in np.argsort(-cost, kind="stable").tolist():
        work, b = load[0]
        members[b].append(job)
        heapreplace(load, (work + float(cost[job]), b))
    return [np.array(jobs, dtype=np.int64) for jobs in members]


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
    left = iter(bins(cost, BINS * threads))

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
