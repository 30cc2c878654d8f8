"""Local training of the paper's CNN: fedfuse against a plain PyTorch loop over the same batches, in one process.

    python benchmarks/cnn.py [devices] [rows per device] [repeats]
    python benchmarks/cnn.py round [epochs] [rows per device] [repeats]

The plain loop is what everybody writes: for each device a module, `torch.optim.SGD`, shuffled row numbers, batches of
100; no proximal term (fedfuse has one). It runs with torch's threads as they are, and with one. Rows are random: how
long a step takes does not depend on them.

``round`` is a whole round of the paper's setting, from orders to replies: 10 devices, 10 epochs of batches of 100, in
process and on two worker processes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from fedfuse.bench.cnn import Case, perform, seconds
from fedfuse.engines import InProcess, Workers
from fedfuse.utils.threads import allowed


def main(m: str = "8", n: str = "1000", repeats: str = "9") -> None:
    """Print the median ratios of times, each pair taken one right after the other."""
    case, cores = Case(int(m), int(n)), allowed()
    away = np.abs(case.fedfuse(rho=0.0) - case.plain()).max()
    print(f"{m} devices, {n} rows each, one epoch; without proximal term the weights differ by {away:.1e} at the most")
    for name, k in (("all cores", cores), ("one thread", 1)):
        pairs = np.array([(seconds(case.fedfuse, k), seconds(case.plain, k)) for _ in range(int(repeats))])
        own, plain = np.median(pairs, axis=0)
        ratio, best = np.median(pairs[:, 0] / pairs[:, 1]), pairs[:, 0].min() / pairs[:, 1].min()
        times = f"fedfuse {own:.3f} s  plain PyTorch {plain:.3f} s"
        print(f"{name:10s}  {times}  ratio {ratio:.2f} (of the best: {best:.2f})", flush=True)


def whole_round(epochs: str = "10", n: str = "3000", repeats: str = "3") -> None:
    """Print how much faster a round is than the plain loop, each set of times taken one right after the other."""
    case = Case(10, int(n))
    federation, orders = case.federation(), case.orders(int(epochs))
    inside = InProcess(federation, case.model)
    workers = Workers(federation, case.model, workers=2)
    for engine in (inside, workers):  # rows loaded, processes started
        perform(engine, case.orders(1))
    cores = allowed()
    runs: dict[str, tuple[Callable[[], object], int]] = {
        "plain loop": (lambda: case.plain(int(epochs)), cores),
        "plain loop, one thread": (lambda: case.plain(int(epochs)), 1),
        "in process": (lambda: perform(inside, orders), cores),
        "in process, one thread": (lambda: perform(inside, orders), 1),
        "two workers": (lambda: perform(workers, orders), cores),
    }
    times = np.array([[seconds(*run) for run in runs.values()] for _ in range(int(repeats))])
    workers.close()
    for k, name in enumerate(runs):
        speed = np.median(times[:, :2] / times[:, k, None], axis=0)
        print(f"{name:24s} {np.median(times[:, k]):7.2f} s  {speed[0]:5.2f} {speed[1]:5.2f} times the plain loops")


if __name__ == "__main__":
    whole_round(*sys.argv[2:]) if sys.argv[1:2] == ["round"] else main(*sys.argv[1:])
