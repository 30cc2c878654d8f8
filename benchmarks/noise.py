"""What noise on uploads costs: accuracy and ARI of FPFC and FedAvg on S1 against epsilon, and a picture.

What: S1 (100 devices in 4 groups), FPFC with lambda 0.6, FedAvg beside it, all devices in each of 10
rounds of 30 gradient steps. Every device clips its change to the norm 1 and adds Gaussian noise, so that its ten
uploads together are (epsilon, 1e-5) differentially private (local: the server is not trusted). Local models need no
uploads and no noise: what stays below them is of no use.
FedAvg's one model does badly on four groups, with noise and without: its accuracy tells little about noise.
How long: 2 minutes for two seeds. Command:
    python benchmarks/noise.py [--seeds 2] [--plot docs/noise.png]
Measured: docs/flower.md, "Noise and accuracy".
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import fedfuse as ff
from fedfuse.data import load

EPSILONS = (30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 1e5, 1e6)
ROUNDS, CLIP, DELTA = 10, 1.0, 1e-5
WORK = ff.Work(steps=30, lr=0.1)
METHODS: dict[str, Any] = {"fpfc": ff.FPFC(lam=0.6, work=WORK), "fedavg": ff.FedAvg(work=WORK)}


def run(method: Any, seed: int, epsilon: float) -> ff.Result:
    """Train with noise, or without for an infinite epsilon."""
    noise = {"clip": CLIP, "epsilon": epsilon, "delta": DELTA} if np.isfinite(epsilon) else {}
    federation = load("synthetic:S1", seed=seed)
    return ff.fit(federation, method, rounds=ROUNDS, seed=seed, tol=0.0, evaluate_every=10**6, **noise)


def table(seeds: int) -> list[dict[str, float]]:
    """Return one row per epsilon, and print it."""
    alone = np.mean([run(ff.Local(work=WORK), seed, np.inf).score("test") for seed in range(seeds)])
    print(f"local models, without noise: accuracy {alone:.3f}\n")
    print("| epsilon | noise per number | " + " | ".join(f"{n} accuracy | {n} ARI" for n in METHODS) + " |")
    print("| --- " * (2 + 2 * len(METHODS)) + "|")
    rows = []
    for epsilon in (*EPSILONS, np.inf):
        row = {"epsilon": epsilon, "local": float(alone)}
        for name, method in METHODS.items():
            found = [run(method, seed, epsilon) for seed in range(seeds)]
            row[f"{name} accuracy"] = float(np.mean([r.score("test") for r in found]))
            row[f"{name} ARI"] = float(np.mean([r.ari or 0.0 for r in found]))
            row["noise"] = found[0].privacy["noise"] if found[0].privacy else 0.0
        values = [row[f"{name} {what}"] for name in METHODS for what in ("accuracy", "ARI")]
        print(f"| {epsilon:g} | {row['noise']:.3f} | " + " | ".join(f"{v:.3f}" for v in values) + " |", flush=True)
        rows.append(row)
    return rows


def draw(rows: list[dict[str, float]], path: str) -> None:
    """Draw accuracy and ARI against epsilon; what would be at infinity is a dotted line."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    *noisy, clean = rows
    for axis, what in zip(axes, ("accuracy", "ARI"), strict=True):
        for name in METHODS:
            line = axis.semilogx([r["epsilon"] for r in noisy], [r[f"{name} {what}"] for r in noisy], "o-", label=name)
            axis.axhline(clean[f"{name} {what}"], ls=":", color=line[0].get_color())
        axis.set(xlabel="epsilon of a device, whole run", ylabel=f"test {what}" if what == "accuracy" else what)
    axes[0].axhline(clean["local"], color="grey", lw=1, label="local models")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Print the table, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--plot")
    words = parser.parse_args()
    rows = table(words.seeds)
    if words.plot:
        draw(rows, words.plot)


if __name__ == "__main__":
    main()
