"""What bounds the server's step: the memory's bandwidth, passes over the same rows, and the step itself.

1,000 devices with 610 parameters, all pairs near, 300 active: 255,000 rows of 2.4 kB are read and written. All take
turns in one process, and the best of many counts, in processor time (of all threads, by their number), so that other
processes do less harm. GB/s count what must be moved: a row once in and once out, of the triad its three arrays, as
STREAM does. The processor also reads what the triad is about to overwrite, a third more; in
place it need not.
Command: python benchmarks/bandwidth.py [--seconds 2] [--into docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numba
import numpy as np
from scale import write_section

from fedfuse import FusionState
from fedfuse.bench.measurement import FULL, Triad, race
from fedfuse.bench.server_step import PENALTY, TOGETHER, grouped, some_rounds
from fedfuse.pairs.layout import RUN_PARTNERS, TILE_DEVICES, Round
from fedfuse.pairs.pair_kernels import FASTMATH, _list_near
from fedfuse.pairs.state import _cut
from fedfuse.utils.jit import COMMON
from fedfuse.utils.simd import load, splat, store, total, width
from fedfuse.utils.threads import allowed, keep_to, spread
from fedfuse.utils.typing import Floats, Ints

CHUNKS = 8
HEAD = """## What bounds the server's step

`python benchmarks/bandwidth.py` measures GB/s and, in brackets, the share of the triad, with m = {m:,}, d = {d},
{k} active and all pairs near. The passes go over the rows of the same pairs. Times are processor time, at a load of
{load:.0f} on {cores} cores.

| | {threads} |
| --- | {lines} |
"""


@numba.njit(**COMMON, fastmath=FASTMATH)
def in_place(rows: Any, order: Any, factor: Any, norms: bool) -> None:
    """Multiply rows in place; with ``norms``, by something that needs the row's norm first."""
    for t in order:
        row, e = rows[t], 0
        w, squares = width(row), splat(row.dtype.type(0))
        if norms:
            while e + w <= row.size:
                squares, e = squares + load(row, e) * load(row, e), e + w
        k, e = splat(row.dtype.type(factor if total(squares) >= 0 else 0)), 0
        while e + w <= row.size:
            store(row, e, k * load(row, e))
            e += w


def visits(state: FusionState, active: Ints) -> Iterator[Ints]:
    """The rows that a step visits, in its order, for each chunk."""
    rank, bounds = _cut(state.m, active, CHUNKS)
    turn = Round(rank, bounds, active, *[np.empty(0)] * 4)
    todo = np.empty((3, TILE_DEVICES * RUN_PARTNERS + 1), np.int64)
    for begin, end in pairwise(bounds):
        pairs = []
        for first in range(0, active.size, TILE_DEVICES):
            for start in range(begin, end, RUN_PARTNERS):
                tile, run = (first, min(first + TILE_DEVICES, active.size)), (start, min(start + RUN_PARTNERS, end))
                pairs.append(todo[2, : _list_near(state._adjacent, turn, tile, run, todo)].copy())
        yield state._where[np.concatenate(pairs)].astype(np.int64)


def measured(threads: int, seconds: float) -> dict[str, float]:
    """Return GB/s of all contestants on so many threads."""
    keep_to(threads)
    state, rounds = near_state(FULL.large)
    small, few = near_state(FULL.m)
    parts = list(visits(state, rounds[0][0]))
    one_order = np.array_split(np.sort(np.concatenate(parts)), CHUNKS)

    def over(orders: list[Ints], norms: bool) -> Callable[[], None]:
        def run(jobs: Ints) -> None:
            for c in jobs:
                in_place(state._pool.rows, orders[c], np.float32(1), norms)

        return lambda: spread(run, np.full(CHUNKS, 1e9))

    triad, large_turns, small_turns = Triad(FULL.triad), cycle(rounds), cycle(few)
    row = 2 * state.d * state.omega.itemsize
    touched, touched_few = (row * pairs(each) for each in (state, small))
    contestants: dict[str, tuple[float, Callable[[], object]]] = {
        "triad": (triad.bytes, triad.run),
        "rows in place, in the order of memory": (touched, over(one_order, norms=False)),
        "norm, then in place, in the order of memory": (touched, over(one_order, norms=True)),
        "norm, then in place, in the step's order": (touched, over(parts, norms=True)),
        "the step": (touched, lambda: state.update(*next(large_turns))),
        f"the step with m = {small.m}, whose rows stay in the cache": (
            touched_few, lambda: small.update(*next(small_turns)),
        ),
    }  # fmt: skip
    runs = (run for _, run in contestants.values())
    took = [t / threads for t in race(*runs, seconds=seconds, burst=8, clock=time.process_time)]
    return {name: size / t / 1e9 for (name, (size, _)), t in zip(contestants.items(), took, strict=True)}


def near_state(m: int) -> tuple[FusionState, list[tuple[Ints, Floats]]]:
    """Return a state in which all pairs have rows after some rounds, and these rounds."""
    start = grouped(m, FULL.d, TOGETHER)
    state, rounds = FusionState(start, PENALTY, warm=True), some_rounds(start, FULL.share)
    for each in rounds:
        state.update(*each)
    return state, rounds


def pairs(state: FusionState) -> float:
    k = int(FULL.share * state.m)
    return float(k * (state.m - k) + k * (k - 1) // 2)


def main() -> None:
    """Print the table, and write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="about how long each contestant runs")
    parser.add_argument("--into", type=Path, help="a page whose section is written anew")
    asked = parser.parse_args()
    threads = sorted({1, allowed()})
    load = os.getloadavg()[0]
    columns = [measured(n, asked.seconds) for n in threads]
    heads = " | ".join("one thread" if n == 1 else f"{n} threads" for n in threads)
    text = HEAD.format(
        m=FULL.large,
        d=FULL.d,
        k=int(FULL.share * FULL.large),
        load=load,
        cores=os.cpu_count(),
        threads=heads,
        lines=" | ".join("---" for _ in threads),
    )
    for name in columns[0]:
        cells = (f"{column[name]:.1f} ({column[name] / column['triad']:.2f})" for column in columns)
        text += f"| {name} | {' | '.join(cells)} |\n"
    print(text)
    if asked.into:
        write_section(asked.into, text)


if __name__ == "__main__":
    main()
