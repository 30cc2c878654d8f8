"""Calibration: how often a grouping that is called sure is right, and how often a right one is called sure.

What: random federations with known groups (`random_federations.CALIBRATION`: every second one linear regression, the
others classification; 6 to 120 devices with 20 to 200 rows, 2 to 12 columns, 1 to 6 groups of two devices or more,
coefficients that differ by 0.4 to 3 times what groups have in common, noise that differs between devices, classes that
are not balanced), each fitted once with the default method, without personal models (these do not change groups). A
grouping is right if its ARI is above 0.95, exact if it is 1, and sure if `Result.stability` is above 0.9. A device is
right if it is in the group that most members of its group come from; of these the federations count in which as many
groups were found as there are.
The goal is that at least 95 % of the sure groupings are right, and at least 80 % of the exact ones sure.
Constants of `grouping.selection` were chosen on seeds 1000 to 1199 and 3000 to 3299, and 2000 to 2599 of --hard; 5000
to 5199 are the table's.
Command: python benchmarks/calibration.py [--seeds 5000-5199] [--json FILE] [--jobs 2] [--plot docs/calibration.png]
Federations that are in FILE are not run again: delete it when the method has changed. --hard draws those of the table
of regrets, where coefficients may differ by 0.15 only, and groups may be single devices. How long: 1 minute.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from random_federations import CALIBRATION, REGRETS, draw

import fedfuse as ff

RIGHT_ARI, SURE = 0.95, 0.9
STABILITY_BINS = (0.0, 0.5, 0.8, 0.9, 0.99, 1.0)
CONFIDENCE_BINS = (0.0, 0.7, 0.9, 0.99, 0.999, 1.0)
MODELS = {"regression": "linear", "classification": "softmax"}
Row = dict[str, Any]


def measured(seed: int, hard: bool) -> Row:
    """Fit one federation."""
    federation, what = draw(seed, REGRETS if hard else CALIBRATION)
    result = ff.fit(federation, ff.FusionTree(personal=False), seed=seed, evaluate_every=10**6)
    labels, truth, right = result.labels, federation.truth, np.zeros(federation.m, bool)
    for c in range(result.n_clusters):
        right[labels == c] = truth[labels == c] == np.bincount(truth[labels == c]).argmax()
    return {
        "seed": seed, "what": what, "model": MODELS[federation.goal], "ari": result.ari, "groups": result.n_clusters,
        "true_groups": int(truth.max()) + 1, "stability": result.stability,
        "confidence": np.round(result.confidence, 6).tolist(), "right": right.tolist(),
    }  # fmt: skip


def measured_all(seeds: range, hard: bool, path: Path | None, jobs: int) -> list[Row]:
    """Fit all federations that are not in the file, and write them there as they come."""
    known: list[Row] = json.loads(path.read_text()) if path and path.exists() else []
    rows = {row["seed"]: row for row in known}
    left = [seed for seed in seeds if seed not in rows]
    with ProcessPoolExecutor(jobs) as pool:
        for row in pool.map(measured, left, [hard] * len(left)):
            rows[row["seed"]] = row
            if path:
                path.write_text(json.dumps(list(rows.values())))
    return [rows[seed] for seed in seeds]


def binned(said: np.ndarray, right: np.ndarray, edges: tuple[float, ...]) -> list[tuple[float, float, int]]:
    """Return what was said on average in every bin that has some, how much of it is right, and how many there are."""
    place = np.digitize(said, edges[1:-1], right=True)
    inside = [place == k for k in range(len(edges) - 1)]
    return [(float(said[i].mean()), float(right[i].mean()), int(i.sum())) for i in inside if i.any()]


def devices(rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Return the confidence in the devices' groups, and whether they are right."""
    rows = [row for row in rows if row["groups"] == row["true_groups"] > 1]
    return tuple(np.concatenate([row[name] for row in rows]) for name in ("confidence", "right"))


def table(rows: list[Row]) -> str:
    """Return the shares that matter, and the curves, in Markdown."""
    columns = (
        "model", "federations", "right", "exact", "sure", "sure that are right", "exact that are sure",
        "where groups are several",
    )  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    curves = ["| model | what | said / right (of so many) |", "| --- | --- | --- |"]
    for model in MODELS.values():
        mine = [row for row in rows if row["model"] == model]
        ari, stability = (np.array([row[name] for row in mine]) for name in ("ari", "stability"))
        right, sure, exact = ari > RIGHT_ARI, stability > SURE, ari == 1
        several = np.array([row["groups"] > 1 for row in mine])
        shares = [f"{100 * each.mean():.1f} %" for each in (right[sure], sure[exact], sure[exact & several])]
        lines.append(
            f"| {' | '.join([model, *map(str, (len(mine), right.sum(), exact.sum(), sure.sum())), *shares])} |"
        )
        curve = {"stability": binned(stability, right, STABILITY_BINS)}
        curve["confidence"] = binned(*devices(mine), CONFIDENCE_BINS)
        for what, points in curve.items():
            told = " · ".join(f"{said:.3f} / {share:.3f} ({n})" for said, share, n in points)
            curves.append(f"| {model} | {what} | {told} |")
    return "\n".join([*lines, "", *curves])


def plot(rows: list[Row], path: Path) -> None:
    """Draw both curves."""
    import matplotlib.pyplot as plt

    from fedfuse.report.palette import COLOURS

    figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", sharey=True)
    for colour, model in zip(COLOURS, MODELS.values(), strict=False):
        mine = [row for row in rows if row["model"] == model]
        ari, stability = (np.array([row[name] for row in mine]) for name in ("ari", "stability"))
        pairs = ((stability, ari > RIGHT_ARI, STABILITY_BINS), (*devices(mine), CONFIDENCE_BINS))
        for ax, (said, right, edges) in zip(axes, pairs, strict=True):
            points = np.array(binned(said, right, edges))
            error = np.sqrt(np.maximum(points[:, 1] * (1 - points[:, 1]), 0.25 / points[:, 2]) / points[:, 2])
            ax.errorbar(points[:, 0], points[:, 1], error, fmt="o-", color=colour, ms=4, lw=1.5, capsize=3, label=model)
    for ax, said, right in zip(axes, ("stability", "confidence"), ("groupings", "devices"), strict=True):
        ax.plot([0, 1], [0, 1], color="#888888", ls=":", lw=1)
        ax.set(xlabel=said, ylabel=f"share of {right} that are right", xlim=(-0.02, 1.02), ylim=(-0.02, 1.04))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run, print the table and draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="5000-5199", help="first to last")
    parser.add_argument("--hard", action="store_true", help="federations of the table of regrets")
    parser.add_argument("--json", type=Path, help="file with what has been run")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--plot", type=Path, help="picture of the curves")
    asked = parser.parse_args()
    first, last = (int(n) for n in asked.seeds.split("-"))
    rows = measured_all(range(first, last + 1), asked.hard, asked.json, asked.jobs)
    print(table(rows))
    if asked.plot:
        plot(rows, asked.plot)


if __name__ == "__main__":
    main()
