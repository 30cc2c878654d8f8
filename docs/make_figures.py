"""Make the pictures of the README and the docs: ``python docs/make_figures.py [another directory]``."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import fedfuse as ff
from fedfuse.colours import COLOURS
from fedfuse.yardsticks import local_models


def idea(directory: Path) -> None:
    """Draw what fedfuse does: devices alone, and the groups it finds, for a regression with two coefficients."""
    rng = np.random.default_rng(5)
    true = np.array([[2.0, 1.0], [-1.5, 2.2], [0.2, -1.8]])
    truth = np.repeat([0, 1, 2], [9, 8, 7])
    data = []
    for group in truth:
        X = rng.normal(size=(int(rng.integers(18, 60)), 2))
        data.append((X, X @ true[group] + 2.0 * rng.normal(size=len(X))))
    federation = ff.Federation.from_arrays(data, truth=truth)
    result = ff.fit(federation)
    alone = local_models(federation, result.model)

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.7), sharex=True, sharey=True, layout="constrained")
    left.scatter(alone[:, 0], alone[:, 1], s=36, c="#555555")
    left.set_title("24 devices, each with a noisy model of its own")
    for c in range(result.n_clusters):
        inside = result.labels == c
        centre = result.models[inside][0]
        colour = COLOURS[c % len(COLOURS)]
        for point in alone[inside]:
            right.plot([point[0], centre[0]], [point[1], centre[1]], color=colour, lw=0.8, alpha=0.6)
        right.scatter(alone[inside, 0], alone[inside, 1], s=18, color=colour, alpha=0.6)
        right.scatter(*centre[:2], s=150, color=colour, edgecolor="white", zorder=3)
    right.scatter(true[:, 0], true[:, 1], marker="+", s=120, c="black", zorder=4, label="truth")
    right.legend(frameon=False, loc="lower left")
    right.set_title(f"fedfuse: {result.n_clusters} groups, one model each")
    for axes in (left, right):
        axes.set_xlabel("first coefficient")
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("second coefficient")
    plt.rcParams["svg.hashsalt"] = "fedfuse"  # the same picture is the same file
    figure.savefig(directory / "idea.svg", metadata={"Date": None})


if __name__ == "__main__":
    idea(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
