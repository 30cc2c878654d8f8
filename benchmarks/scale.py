"""How the server's step grows with the number of devices: time and memory, from local models to the right groups.

What: m devices in 10 groups with d = 610 parameters, 30 % active in a round. A device's own optimum is its group's
plus noise; its local work is exact: it goes to the mean of its optimum and its anchor (a quadratic loss, rho = 1).
FPFC starts warm from the optima and goes on for at least 12 rounds, and until its groups are the true ones. A step is
everything between replies and the next anchors: all steps count, also those in which pairs come within reach. Only the
start is apart: it measures all distances and provides the memory of the pairs within reach. Each size runs in a process
of its own, so that the peak of memory is its own; that includes everything, Python and the devices' optima too.
Command: python benchmarks/scale.py [sizes …] [--d 610] [--groups 10] [--plot scale.png] [--json scale.json]
         [--page docs/benchmarks.md]; the page gets a section, and shows the picture that lies beside it
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (100, 300, 1000, 3000, 10_000)
ROUNDS = 12
SECTION = """
Devices in 10 groups, 30 % active, from local models to the groups and on, by `python benchmarks/scale.py`: exact local
work, so that nearly all is the server's. A step is all that happens between replies and the next anchors, and all steps
count. The start is apart: it bounds all distances and provides memory for the pairs within reach.

| devices | parameters | ARI | right after | start | median step | slowest step | pairs | peak of the process |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
LAM, NU = 6.0, 0.2  # a tenth of all devices pulls with a tenth of lambda, so noise must be below that


def measured(m: int, d: int, groups: int, most: int = 60) -> dict[str, Any]:
    """Fuse m devices; return what it took."""
    from fedfuse.core.partitions import adjusted_rand
    from fedfuse.core.penalties import SmoothedSCAD
    from fedfuse.pairs.state import FusionState

    _compile(d)
    rng, truth = np.random.default_rng(0), np.arange(m) % groups
    centres = rng.standard_normal((groups, d), np.float32) * np.float32(12 * LAM / np.sqrt(d))
    optima = centres[truth] + rng.standard_normal((m, d), np.float32) * np.float32(0.4 / np.sqrt(d))
    began = time.perf_counter()
    state = FusionState(optima, SmoothedSCAD(LAM), warm=True)
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
    near, pairs = state.near.size, m * (m - 1) // 2
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if sys.platform == "linux" else 1)
    return {
        "m": m, "d": d, "ari": adjusted_rand(truth, state.labels(NU)), "right_after": right, "rounds": len(seconds),
        "start": start, "steps": seconds, "median_step": float(np.median(seconds)), "slowest_step": max(seconds),
        "near": near / pairs, "pair_bytes": state.nbytes, "dense_bytes": pairs * d * 4, "peak_bytes": peak,
    }  # fmt: skip


def _compile(d: int) -> None:
    """Load the compiled code, that of large rounds too."""
    from fedfuse.core.penalties import SmoothedSCAD
    from fedfuse.pairs import state

    large, state.MIN_THREADED_NUMBERS = state.MIN_THREADED_NUMBERS, 0
    omega = np.random.default_rng(0).standard_normal((100, d), np.float32) / np.float32(np.sqrt(d))
    state = state.FusionState(omega, SmoothedSCAD(0.4), warm=True)
    for scale in (0.5, 3.0, 0.5):
        state.anchors(range(50))
        state.update(range(50), omega[:50] * scale)
    state.MIN_THREADED_NUMBERS = large


def in_own_process(m: int, d: int, groups: int) -> dict[str, Any]:
    words = [sys.executable, __file__, "--one", str(m), "--d", str(d), "--groups", str(groups)]
    return dict(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw time and memory over m on logarithmic axes, with their exponents."""
    from matplotlib import pyplot as plt

    from fedfuse.bench.measurement import exponent

    m = np.array([row["m"] for row in rows])
    _, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    for ax, keys, unit in ((left, ["median_step", "slowest_step"], 1), (right, ["pair_bytes", "peak_bytes"], 1e9)):
        for key in keys:
            values = np.array([row[key] for row in rows]) / unit
            slope = f": grows like m^{exponent(m, values):.2f}" if len(m) > 2 else ""
            ax.loglog(m, values, marker="o", label=key.replace("_", " ") + slope)
        ax.set(xlabel="devices")
        ax.grid(alpha=0.3)
    right.loglog(m, [row["dense_bytes"] / 1e9 for row in rows], ls=":", color="grey", label="a vector for every pair")
    left.set(ylabel="seconds", title="server step")
    right.set(ylabel="GB", title="memory")
    left.legend()
    right.legend()
    plt.savefig(path, dpi=130)


def write_section(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the table of all sizes as the last section of the page about speed."""
    from fedfuse.bench.benchmarks_page import SCALE_HEADING

    text = path.read_text(encoding="utf-8").partition(SCALE_HEADING)[0] if path.exists() else ""
    text += SCALE_HEADING + SECTION + "".join(map(_row, rows)) + _growth(rows)
    picture = path.with_name(f"{path.stem}-scale.png")
    text += f"\n![Time and memory over devices]({picture.name})\n" if picture.is_file() else ""
    path.write_text(text, encoding="utf-8")


def _row(row: dict[str, Any]) -> str:
    from fedfuse.bench.measurement import readable

    times = " | ".join(readable(row[name], "s") for name in ("start", "median_step", "slowest_step"))
    memory = " | ".join(readable(row[name], "bytes") for name in ("pair_bytes", "peak_bytes"))
    return f"| {row['m']:,} | {row['d']} | {row['ari']:.3f} | {row['right_after']} | {times} | {memory} |\n"


def _growth(rows: list[dict[str, Any]]) -> str:
    """Say how time and memory of the last three sizes grow."""
    from fedfuse.bench.measurement import exponent

    if len(rows) < 3:
        return ""
    m = [row["m"] for row in rows]
    names = {"median_step": "a step", "slowest_step": "the slowest", "pair_bytes": "pairs", "peak_bytes": "the peak"}
    parts = [f"{text} with exponent {exponent(m, [row[name] for row in rows]):.2f}" for name, text in names.items()]
    return f"\nFrom {m[-3]:,} to {m[-1]:,} devices, they grow like this: {', '.join(parts)}.\n"


def main() -> None:
    """Print a table; draw it and write it down where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--d", type=int, default=610)
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(asked.one, asked.d, asked.groups)))
        return
    rows = []
    for m in asked.sizes:
        rows.append(row := in_own_process(m, asked.d, asked.groups))
        step = f"step {row['median_step']:.3g} s (slowest of {row['rounds']}: {row['slowest_step']:.3g} s)"
        memory = f"pairs {row['pair_bytes'] / 1e9:.3g} GB, peak {row['peak_bytes'] / 1e9:.3g} GB"
        start = f"start {row['start']:.3g} s"
        print(f"m = {m:6,}  ARI {row['ari']:.3f}, 1 after {row['right_after']}  {start}  {step}  {memory}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))
    if asked.plot:
        draw(rows, asked.plot)
    if asked.page:
        write_section(rows, asked.page)


if __name__ == "__main__":
    main()
