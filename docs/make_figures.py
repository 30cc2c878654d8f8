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
from scipy.cluster.hierarchy import dendrogram, fcluster, linkage, set_link_color_palette

import fedfuse as ff
from fedfuse.core.dendrogram import WORSE_ZSCORE
from fedfuse.core.partitions import linkage_heights
from fedfuse.paper import figures
from fedfuse.paper.solution_path import figure_1
from fedfuse.report import plots, write_report
from fedfuse.report.palette import COLOURS, GREY
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
    set_link_color_palette(list(COLOURS))
    heights = linkage(alone.pairs, "average")
    dendrogram(heights, ax=ax, orientation="right", labels=federation.names, above_threshold_color=GREY)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.set_xlabel("distance at which groups merge")
    _save(figure, directory / "tree.svg")


class PathLinks(ff.Callback):
    """Keeps lambda, the links of ||theta|| and the gap after each pass of a fusion path."""

    def __init__(self) -> None:
        self.passes: list[tuple[float, np.ndarray, np.ndarray, int]] = []

    def on_round(self, run: Any, row: Any) -> None:
        path = getattr(run.state, "path", None)
        if path is not None and np.isfinite(path.gaps[-1]).all() and len(path.lambdas) > len(self.passes) + 1:
            lam, labels = path.lambdas[-1], path.readings[-1]
            self.passes.append((lam, linkage_heights(path.fusion.pairs.norms()), path.gaps[-1], labels.max() + 1))


def fusion_path(directory: Path) -> None:
    """Draw the links of theta pass by pass, the penalty's reach, and the gap that groups are read off."""
    links, method = PathLinks(), ff.FPFC()
    ff.fit(_visits(), method, callbacks=[links])
    figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
    for k, (_, heights, gap, groups) in enumerate(links.passes, 1):
        ax.scatter(
            np.full(len(heights), k), np.maximum(heights, 5e-3), s=12, color=COLOURS[0], alpha=0.6, lw=0, zorder=3
        )
        ax.fill_between([k - 0.35, k + 0.35], *np.maximum(gap, 5e-3), color=COLOURS[1], alpha=0.35, lw=0)
        ax.annotate(str(groups), (k, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=9)
    reach = [method.reach * lam for lam, *_ in links.passes]
    ax.step(range(1, len(reach) + 1), reach, where="mid", color="#333333", lw=1.5, label="reach, a · lambda")
    ax.fill_between([], [], color=COLOURS[1], alpha=0.35, label="widest gap")
    ax.scatter([], [], s=12, color=COLOURS[0], label="a link: distance at which devices join")
    ax.set(yscale="log", xlabel="pass", ylabel="length of theta", xticks=range(1, len(reach) + 1))
    ax.set_title("groups read off the gap, pass by pass:", loc="left", fontsize=9, pad=16)
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    _save(figure, directory / "fusion-path.svg")


def selector(directory: Path) -> None:
    """Draw the loss on validation rows by the number of groups, and which grouping is taken."""
    federation = _visits()
    own = local_models(federation, ff.fit(federation).model)
    parts = {name: [federation.rows(name).of(i) for i in range(federation.m)] for name in ("train", "validation")}
    tree, losses = linkage(own, "average"), []
    for k in range(1, 13):
        labels = fcluster(tree, k, "maxclust")
        fitted = {g: _pooled([parts["train"][i] for i in np.flatnonzero(labels == g)]) for g in set(labels)}
        pairs = zip(labels, parts["validation"], strict=True)
        losses.append([np.mean((X @ fitted[g][:-1] + fitted[g][-1] - y) ** 2) for g, (X, y) in pairs])
    table = np.array(losses)
    best = int(table.mean(axis=1).argmin())
    worse = table - table[best]
    error = WORSE_ZSCORE * worse.std(axis=1, ddof=1) / np.sqrt(federation.m)
    taken = int(np.flatnonzero(worse.mean(axis=1) <= error)[0])
    figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
    ax.errorbar(range(1, 13), worse.mean(axis=1), error, fmt="o-", color=COLOURS[0], capsize=3, lw=1.5)
    ax.axhline(0, color="#888888", lw=1, ls=":")
    for place, words, colour in (
        (best, "best", "#888888"),
        (taken, "taken: the coarsest that is not worse", COLOURS[1]),
    ):
        ax.scatter(
            place + 1, worse[place].mean(), s=140, facecolors="none", edgecolors=colour, lw=2, zorder=4, label=words
        )
    ax.set(xlabel="groups (cuts of the tree)", ylabel="validation loss beside the best", xticks=range(1, 13))
    ax.set_yscale("symlog", linthresh=0.3)
    ax.set_ylim(bottom=-0.12)
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    _save(figure, directory / "selector.svg")


def _pooled(parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    X, y = (np.concatenate(some) for some in zip(*parts, strict=True))
    return np.linalg.lstsq(np.column_stack([X, np.ones(len(X))]), y, rcond=None)[0]


def certificate(directory: Path) -> None:
    """Draw how well FPFC finds the groups with each lambda, and the lambdas that the certificate has."""
    rng, truth = np.random.default_rng(0), np.repeat([0, 1], 8)
    X = rng.normal(size=(16, 200, 3))
    slopes = np.array([[2.0, 0.5, 0.0], [-1.5, 1.0, 0.5]])[truth]
    data = [(x, x @ w + 0.2 * rng.normal(size=200)) for x, w in zip(X, slopes, strict=True)]
    federation = ff.Federation.from_arrays(data, truth=truth)
    found = ff.fit(federation).certify(federation)
    lams = np.geomspace(found.low / 30, 8 * found.high, 15)
    scores = [ff.fit(federation, ff.FPFC(lam=lam, work=ff.Work(solver="exact")), rounds=300).ari for lam in lams]
    figure, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
    ax.axvspan(found.low, found.high, color=COLOURS[1], alpha=0.25, lw=0, label="certificate")
    ax.plot(lams, scores, "o-", color=COLOURS[0], lw=1.8, label="FPFC from one start")
    ax.set(xscale="log", xlabel="lambda", ylabel="agreement with the groups (ARI)", ylim=(-0.05, 1.05))
    ax.legend(frameon=False, loc="lower center")
    ax.spines[["top", "right"]].set_visible(False)
    _save(figure, directory / "certificate.svg")


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
    for make in (penalties, paths, pairs, fusion_path, selector, certificate):
        make(place / "figures")
