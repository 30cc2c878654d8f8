"""Long vectors: the server's step with a million parameters, in one process and on two Ray actors.

What: m devices in 4 groups with d parameters, 30 % active in a round. A device's own optimum is its group's plus
noise; its local work is exact: it goes to the mean of its optimum and its anchor (a quadratic loss, rho = 1). FPFC
starts warm from the optima. Each way runs in a process of its own, with the same rounds: "plain" cuts a round by
partners of devices, "threads" cuts the state by coordinates, "ray" gives every block of coordinates to an actor. Peaks
of memory are those of whole processes, optima and Python included; what is shared with Ray's object store is counted
in every process that has touched it.
Command: python benchmarks/large_d.py [ways …] [--m 100] [--d 1000000] [--rounds 6] [--blocks 2]
Takes about three minutes at the default size on 2 busy cores, and 14 GB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

WAYS = ("plain", "threads", "ray")
GROUPS, LAM, NU = 4, 6.0, 0.2  # a quarter of all devices pulls with a quarter of lambda, so noise must be below that
SLICE = 1 << 16


def peak() -> int:
    """Return the most bytes that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if sys.platform == "linux" else 1)


def measured(way: str, m: int, d: int, rounds: int, blocks: int, out: Path) -> dict[str, Any]:
    """Fuse m devices; write their anchors down, and return what it took."""
    from fedfuse.core.partitions import adjusted_rand
    from fedfuse.core.penalties import SmoothedSCAD
    from fedfuse.pairs.state import FusionState

    rng, truth = np.random.default_rng(0), np.arange(m) % GROUPS
    centres = rng.standard_normal((GROUPS, d), np.float32) * np.float32(12 * LAM / np.sqrt(d))
    optima = rng.standard_normal((m, d), np.float32)
    optima *= np.float32(0.4 / np.sqrt(d))
    for i, g in enumerate(truth):
        optima[i] += centres[g]
    where = {} if way == "plain" else {"backend": way} | ({"blocks": blocks} if way == "ray" else {})
    state, seconds = FusionState(optima, SmoothedSCAD(LAM), warm=True, **where), []
    for _ in range(rounds):
        active = np.sort(rng.choice(m, max(1, 3 * m // 10), replace=False))
        began = time.perf_counter()
        omegas = state.anchors(active)
        took = time.perf_counter() - began
        omegas += optima[active]
        omegas /= 2
        began = time.perf_counter()
        state.update(active, omegas)
        seconds.append(took + time.perf_counter() - began)
    labels = state.labels(NU)
    np.save(out, state.anchors(np.arange(m)))
    actors = actor_peaks(state) if way == "ray" else []
    return {
        "way": way, "ari": adjusted_rand(truth, labels), "labels": labels.tolist(), "seconds": seconds,
        "pair_bytes": state.nbytes, "dense_bytes": m * (m - 1) // 2 * d * 4, "near": int(state.near.size),
        "peak_bytes": peak(), "actor_peak_bytes": actors,
    }  # fmt: skip


def actor_peaks(state: Any) -> list[int]:
    import ray

    return list(ray.get([actor.__ray_call__.remote(lambda _: peak()) for actor in state._crew._actors]))


def in_own_process(way: str, asked: argparse.Namespace, out: Path) -> dict[str, Any]:
    sizes = [f"--{name}={getattr(asked, name)}" for name in ("m", "d", "rounds", "blocks")]
    words = [sys.executable, __file__, way, *sizes, "--out", str(out)]
    return dict(json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout))


def difference(one: Path, other: Path) -> float:
    """Return the largest difference of two files of anchors, relative to the largest number in the first."""
    a, b = (np.load(path, mmap_mode="r") for path in (one, other))
    columns = [slice(first, first + SLICE) for first in range(0, a.shape[1], SLICE)]
    return float(max(np.abs(a[:, c] - b[:, c]).max() for c in columns) / max(np.abs(a[:, c]).max() for c in columns))


def line(row: dict[str, Any]) -> str:
    first, *others = row["seconds"]
    memory = f"pairs {row['pair_bytes'] / 1e9:.2f} GB of {row['dense_bytes'] / 1e9:.1f}"
    memory += f", peak {row['peak_bytes'] / 1e9:.2f} GB"
    if row["actor_peak_bytes"]:
        memory += " and actors " + ", ".join(f"{size / 1e9:.2f} GB" for size in row["actor_peak_bytes"])
    steps = f"first step {first:.2f} s, then {np.median(others or [first]):.2f} s"
    return f"{row['way']:8} ARI {row['ari']:.3f}  {steps}  {memory}"


def main() -> None:
    """Print a line for each way, and how far its anchors are from those of the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", default=WAYS)
    for name, usual in (("m", 100), ("d", 1_000_000), ("rounds", 6), ("blocks", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.out:
        print(json.dumps(measured(asked.ways[0], asked.m, asked.d, asked.rounds, asked.blocks, asked.out)))
        return
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{way}.npy" for way in asked.ways]
        rows: list[dict[str, Any]] = []
        for way, file in zip(asked.ways, files, strict=True):
            rows.append(in_own_process(way, asked, file))
            print(line(rows[-1]), flush=True)
            if rows[1:]:
                same = "the same labels" if rows[-1]["labels"] == rows[0]["labels"] else "OTHER LABELS"
                print(f"{'':8} anchors differ from {rows[0]['way']} by {difference(files[0], file):.1e}, {same}")


if __name__ == "__main__":
    main()
