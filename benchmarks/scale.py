"""How the server's step grows with the number of devices: time and memory, from local models to the right groups.

What: m devices in 10 groups with d = 610 parameters, 30 % active in a round. A device's own optimum is its group's
plus noise; its local work is exact: it goes to the mean of its optimum and its anchor (a quadratic loss, rho = 1).
FPFC starts warm from the optima and goes on for at least 12 rounds, and until its groups are the true ones. A step is
everything between replies and the next anchors: all steps count, also those in which pairs come within reach. Only the
start is apart: it measures all distances and provides the memory of the pairs within reach. Each size runs in a process
of its own, so that the peak of memory is its own; that includes everything, Python and the devices' optima too.
Command: python benchmarks/scale.py [sizes …] [--d 610] [--groups 10] [--graph knn:10]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

SIZES = (100, 300, 1000, 3000, 10_000)
ROUNDS = 12
LAM, NU = 6.0, 0.2  # a tenth of all devices pulls with a tenth of lambda, so noise must be below that


def measured(m: int, d: int, groups: int, graph: str | None, most: int = 60) -> dict[str, Any]:
    """Fuse m devices; return what it took."""
    from fedfuse.core.partitions import adjusted_rand
    from fedfuse.core.penalties import SmoothedSCAD
    from fedfuse.pairs.state import FusionState

    _compile(d)
    rng, truth = np.random.default_rng(0), np.arange(m) % groups
    centres = rng.standard_normal((groups, d), np.float32) * np.float32(12 * LAM / np.sqrt(d))
    optima = centres[truth] + rng.standard_normal((m, d), np.float32) * np.float32(0.4 / np.sqrt(d))
    began = time.perf_counter()
    state = FusionState(optima, SmoothedSCAD(LAM), warm=True, graph=graph)
    start, seconds, right = time.perf_counter() - began, list[float](), 0
    while len(seconds) < (ROUNDS if right else most):
        active = np.sort(rng.choice(m, max(1, 3 * m // 10), replace=False))
        began = time.perf_counter()
        zeta = state.anchors(active)
        took = time.perf_counter() - began
        omegas = (optima[active] + zeta) / 2
        began = time.perf_counter()
        state.update(active, omegas)
        seconds.append(took + time.perf_counter() - began)
        if not right and adjusted_rand(truth, state.labels(NU)) == 1.0:
            right = len(seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if sys.platform == "linux" else 1)
    return {
        "m": m, "d": d, "ari": adjusted_rand(truth, state.labels(NU)), "right_after": right, "rounds": len(seconds),
        "start": start, "steps": seconds, "median_step": float(np.median(seconds)), "slowest_step": max(seconds),
        "pair_bytes": state.nbytes, "peak_bytes": peak,
    }  # fmt: skip


def _compile(d: int) -> None:
    """Load the compiled code, that of large rounds too."""
    from fedfuse.core.penalties import SmoothedSCAD
    from fedfuse.pairs import state

    large, state.MIN_THREADED_NUMBERS = state.MIN_THREADED_NUMBERS, 0
    omega = np.random.default_rng(0).standard_normal((100, d), np.float32) / np.float32(np.sqrt(d))
    small = state.FusionState(omega, SmoothedSCAD(0.4), warm=True)
    for scale in (0.5, 3.0, 0.5):
        small.anchors(range(50))
        small.update(range(50), omega[:50] * scale)
    state.MIN_THREADED_NUMBERS = large


def in_own_process(m: int, asked: argparse.Namespace) -> dict[str, Any]:
    words = [sys.executable, __file__, "--one", str(m), "--d", str(asked.d), "--groups", str(asked.groups)]
    words += ["--graph", asked.graph] if asked.graph else []
    return dict(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--d", type=int, default=610)
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--graph")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(asked.one, asked.d, asked.groups, asked.graph)))
        return
    for m in asked.sizes:
        row = in_own_process(m, asked)
        step = f"step {row['median_step']:.3g} s (slowest of {row['rounds']}: {row['slowest_step']:.3g} s)"
        memory = f"pairs {row['pair_bytes'] / 1e9:.3g} GB, peak {row['peak_bytes'] / 1e9:.3g} GB"
        start = f"start {row['start']:.3g} s"
        print(f"m = {m:6,}  ARI {row['ari']:.3f}, 1 after {row['right_after']}  {start}  {step}  {memory}", flush=True)


if __name__ == "__main__":
    main()
