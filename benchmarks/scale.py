"""How cost grows with the number of devices or points: the server's steps, and whole runs; time and memory.

Steps: m devices in 10 groups with d = 610 parameters, 30 % active in a round. A device's own optimum is its group's
plus noise; its local work is exact: it goes to the mean of its optimum and its anchor (a quadratic loss, rho = 1).
FPFC starts warm from the optima and goes on for at least 12 rounds, and until its groups are the true ones. A step is
everything between replies and the next anchors: all steps count, also those in which pairs come within reach. Only the
start is apart: it measures all distances and provides the memory of the pairs within reach.

Runs: the default and FPFC on a graph with softmax devices (33 parameters, 40 rows, 10 groups), and clustering of points
(d = 7, 20 groups), from data to result.

Each size runs in a process of its own, so that the peak of memory is its own, Python and data included.
Command: python benchmarks/scale.py steps|runs [sizes …] [--d 610] [--groups 10] [--graph knn:10] [--into PAGE]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (100, 300, 1000, 3000, 10_000)
ROUNDS = 12
LAM, NU = 6.0, 0.2  # a tenth of all devices pulls with a tenth of lambda, so noise must be below that
# Whole runs: what, how many devices or points.
RUNS = (("fusion-tree", 1000), ("fusion-tree", 10_000), ("fusion-tree", 30_000), ("fpfc", 100_000),
        ("clustering", 10_000), ("clustering", 100_000), ("clustering", 1_000_000))  # fmt: skip
FEATURES, CLASSES, ROWS, GROUPS, FPFC_LAM, FPFC_ROUNDS = 10, 3, 40, 10, 0.8, 60
HEADS = {
    "steps": "| devices | parameters | ARI | right after | start | median step | slowest step | pairs | peak |\n",
    "runs": "| what | devices or points | ARI | groups | wall | processor | peak | numbers sent per device |\n",
}
TEXTS = {
    "steps": """## Many devices

`{command}` runs devices in 10 groups, with 30 % active, from local models until the groups have
formed and beyond. Local work is exact, so nearly all the time is the server's. A step is everything between the replies
and the next anchors; all steps count.

""",
    "runs": """## Whole runs

From data to result, by `{command}`: softmax devices (33 parameters, 40 rows each, 10 groups) by the default and by
`FPFC(lam=0.8, graph="knn:10")` for 60 rounds, and `FusionClustering()` of points (d = 7, 20 groups). Numbers sent are
in models of 33 parameters. Load {load:.0f} on {cores} cores at the start.

""",
}


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if sys.platform == "linux" else 1)


def step_row(m: int, d: int, groups: int, graph: str | None, most: int = 60) -> dict[str, Any]:
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
    return {
        "m": m, "d": d, "ari": adjusted_rand(truth, state.labels(NU)), "right_after": right, "rounds": len(seconds),
        "start": start, "median_step": float(np.median(seconds)), "slowest_step": max(seconds),
        "pair_bytes": state.nbytes, "peak_bytes": peak_bytes(),
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


def run_row(what: str, m: int) -> dict[str, Any]:
    """Return what a whole run took."""
    from fedfuse.core.partitions import adjusted_rand

    if what == "clustering":
        from fedfuse.bench.neighbours import blobs
        from fedfuse.clustering import FusionClustering

        FusionClustering().fit(blobs(300)[0])  # compiles
        points, truth = blobs(m)
        began = time.perf_counter(), time.process_time()
        labels, sent = FusionClustering().fit_predict(points), None
    else:
        import fedfuse as ff

        federation = softmax_federation(m)
        method = ff.FPFC(lam=FPFC_LAM, graph="knn:10") if what == "fpfc" else what
        began = time.perf_counter(), time.process_time()
        result = ff.fit(federation, method, rounds=FPFC_ROUNDS if what == "fpfc" else None, seed=0)
        labels, truth = result.labels, federation.truth
        sent = result.cost_floats / m / ((FEATURES + 1) * CLASSES)
    wall, processor = time.perf_counter() - began[0], time.process_time() - began[1]
    return {
        "what": what, "m": m, "ari": adjusted_rand(truth, labels), "groups": int(labels.max()) + 1, "wall": wall,
        "processor": processor, "peak_bytes": peak_bytes(), "sent": sent,
    }  # fmt: skip


def softmax_federation(m: int, seed: int = 0) -> Any:
    """Return softmax devices in groups of random models."""
    import fedfuse as ff

    rng = np.random.default_rng(seed)
    W, truth = 2 * rng.normal(size=(GROUPS, CLASSES, FEATURES + 1)), rng.integers(0, GROUPS, m)
    X = rng.normal(size=(m, ROWS, FEATURES))
    logits = np.einsum("mrp,mcp->mrc", X, W[truth][:, :, :-1]) + W[truth][:, None, :, -1]
    y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=-1)
    return ff.Federation.from_arrays(list(zip(X, y, strict=True)), truth=truth)


def in_own_process(*words: object) -> dict[str, Any]:
    line = [sys.executable, __file__, *map(str, words)]
    return dict(json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout))


def cells(row: dict[str, Any]) -> str:
    """Return a row of a table."""
    from fedfuse.bench.measurement import readable

    def words(name: str, unit: str) -> str:
        return readable(row[name], unit)

    if "what" in row:
        sent = "" if row["sent"] is None else f"{row['sent']:.0f}"
        end = f"{words('wall', 's')} | {words('processor', 's')} | {words('peak_bytes', 'bytes')} | {sent}"
        return f"| {row['what']} | {row['m']:,} | {row['ari']:.4f} | {row['groups']} | {end} |\n"
    times = " | ".join(words(name, "s") for name in ("start", "median_step", "slowest_step"))
    memory = f"{words('pair_bytes', 'bytes')} | {words('peak_bytes', 'bytes')}"
    return f"| {row['m']:,} | {row['d']:,} | {row['ari']:.3f} | {row['right_after']} | {times} | {memory} |\n"


def write_section(path: Path, text: str) -> None:
    """Put a section into a page, in place of the one with its heading."""
    heading, page = text.partition("\n")[0], path.read_text(encoding="utf-8")
    before, _, after = page.partition(heading + "\n")
    rest = after.find("\n## ")
    path.write_text(before.rstrip("\n") + "\n\n" + text + (after[rest:] if rest >= 0 else ""), encoding="utf-8")


def main() -> None:
    """Print a row for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("steps", "runs"))
    parser.add_argument("sizes", nargs="*", type=int)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--d", type=int, default=610)
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--graph")
    parser.add_argument("--into", type=Path, help="a page whose section is written anew")
    asked = parser.parse_args()
    if asked.one:
        m = asked.sizes[0]
        row = step_row(m, asked.d, asked.groups, asked.graph) if asked.kind == "steps" else run_row(asked.one, m)
        print(json.dumps(row))
        return
    if asked.kind == "steps":
        more = ["--d", asked.d, "--groups", asked.groups, *(["--graph", asked.graph] if asked.graph else [])]
        todo = [("steps", m, "--one", "steps", *more) for m in asked.sizes or SIZES]
    else:
        todo = [("runs", m, "--one", what) for what, m in RUNS if not asked.sizes or m in asked.sizes]
    load, rows = os.getloadavg()[0], ""
    for words in todo:
        rows += (row := cells(in_own_process(*words)))
        print(row, end="", flush=True)
    if asked.into:
        command = " ".join(
            ["python benchmarks/scale.py", asked.kind, *(["--graph", asked.graph] if asked.graph else [])]
        )
        head = HEADS[asked.kind]
        text = TEXTS[asked.kind].format(command=command, load=load, cores=os.cpu_count())
        write_section(asked.into, text + head + "| --- " * (head.count("|") - 1) + "|\n" + rows)


if __name__ == "__main__":
    main()
