"""Devices over threads: one bin of devices per thread, about the same work in each."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np

from fedfuse.types import Floats, Ints

# Multiply-adds below which a second thread costs more than it saves.
SMALL = 1e6


def bins(cost: Floats, n: int) -> list[Ints]:
    """Cut positions into at most ``n`` bins: the costliest first, each to the bin with the least work so far.

    >>> [b.tolist() for b in bins(np.array([1.0, 9.0, 2.0, 5.0]), 2)]
    [[1], [3, 2, 0]]
    """
    members: list[list[int]] = [[] for _ in range(max(1, min(n, cost.size)))]
    load = np.zeros(len(members))
    for job in np.argsort(-cost, kind="stable"):
        b = int(load.argmin())
        members[b].append(int(job))
        load[b] += cost[job]
    return [np.array(jobs, dtype=np.int64) for jobs in members]


def spread(run: Callable[[Ints], object], cost: Floats) -> None:
    """Call ``run(jobs)`` for bins of positions, in as many threads as `numba.set_num_threads` allows.

    ``run`` is compiled code that lets go of the interpreter. Threads are started for each call: they then
    survive nothing, in particular no fork, and a call takes milliseconds.
    """
    own, *others = bins(cost, numba.get_num_threads() if cost.sum() > SMALL else 1)
    if not others:
        run(own)
        return
    with ThreadPoolExecutor(len(others)) as pool:
        waiting = [pool.submit(run, jobs) for jobs in others]
        run(own)
    for done in waiting:
        done.result()
