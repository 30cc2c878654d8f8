"""Make the pictures of the README and the docs: ``python docs/make_figures.py [another directory]``.

``idea.svg`` is the README's; those of the docs site go to ``figures/``, with an example of a report.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from scipy.cluster.hierarchy import dendrogram, linkage

import fedfuse as ff
from fedfuse.paper import figures
from fedfuse.paper.solution_path import figure_1
from fedfuse.report import plots, write_report
from fedfuse.report.palette import COLOURS
from fedfuse.results.snapshots import SnapshotFile
from fedfuse.training.evaluation import Baselines, local_models


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
    _save(figure, directory / "idea.svg")


def penalties(directory: Path) -> None:
    """Draw penalties against the distance of a pair."""
    figure, ax = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
    distance = np.linspace(0, 6, 300)
    kinds = (("l1", ff.L1(1.0)), ("SCAD", ff.SCAD(1.0)), ("MCP", ff.MCP(1.0, a=3.7)))
    for colour, (name, penalty) in zip(COLOURS, kinds, strict=False):
        ax.plot(distance, penalty.value(distance), color=colour, lw=2, label=name)
    ax.axvline(3.7, color="#888888", ls=":", lw=1)
    ax.annotate("a · lambda", (3.7, 0.2), xytext=(4, 0), textcoords="offset points", color="#555555")
    ax.set(xlabel="distance of two devices", ylabel="penalty (lambda = 1)", ylim=(0, 4))
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    _save(figure, directory / "penalties.svg")


def paths(directory: Path) -> None:
    """Draw the paper's Figure 1."""
    axes = figures.paths(figure_1(points=31))
    _save(axes[0, 0].figure, directory / "paths.svg")


def pairs(directory: Path) -> None:
    """Draw how groups form under FPFC and the dendrogram of the fusion tree, and write an example of a report."""
    federation = _visits()
    method = ff.FPFC(lam=0.9, work=ff.Work(steps=3, lr=0.05))
    with TemporaryDirectory() as place:
        run = Path(place) / "run"
        ff.fit(federation, method, rounds=400, out=run, dataset="example", evaluate_every=5)
        snapshots = SnapshotFile(run).load()
        ff.fit(federation, out=Path(place) / "tree", dataset="Thirty clinics", evaluate_every=2)
        page = write_report(Path(place) / "tree", federation=federation)
        (directory / "report.html").write_bytes(page.read_bytes())
    shown = [min(snapshots, key=lambda snapshot, k=k: abs(snapshot.round - k)) for k in (1, 6, 26, 400)]
    figure, axes = plt.subplots(1, 4, figsize=(12, 2.9), layout="constrained")
    for snapshot, ax in zip(shown, axes, strict=True):
        plots.plot_distances(snapshot, federation.truth, ax)
    _save(figure, directory / "pairs.svg")
    figure, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
    alone = Baselines.of(federation, ff.fit(federation).model).alone
    dendrogram(linkage(alone.pairs, "average"), ax=ax, orientation="right", labels=federation.names)
    ax.set_xlabel("distance at which groups merge")
    _save(figure, directory / "tree.svg")


def _visits() -> ff.Federation:
    """Make thirty clinics in three groups, with three features each."""
    rng = np.random.default_rng(3)
    truth = np.repeat([0, 1, 2], [13, 10, 7])
    slopes = np.array([[2.0, 0.5, 0.0], [-1.5, 1.0, 0.5], [0.5, -2.0, 1.0]])
    data = {}
    for i, group in enumerate(truth):
        X = rng.normal(size=(int(rng.integers(40, 120)), 3))
        data[f"clinic {i + 1}"] = (X, X @ slopes[group] + 1.2 * rng.normal(size=len(X)))
    return ff.Federation.from_arrays(data, truth=truth)


def _save(figure: Any, path: Path) -> None:
    plt.rcParams["svg.hashsalt"] = "fedfuse"  # the same picture is the same file
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    (place / "figures").mkdir(parents=True, exist_ok=True)
    idea(place)
    for make in (penalties, paths, pairs):
        make(place / "figures")
