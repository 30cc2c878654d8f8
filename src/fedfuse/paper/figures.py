"""Plots of the paper's figures, in the colours and style of `fedfuse.report.plots`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedfuse import Result
from fedfuse.core.metrics import metric_for
from fedfuse.grouping.lambda_path import FINAL_STAGE, Strategy
from fedfuse.paper.setup import DEFAULT, PAPER, PRINTED
from fedfuse.paper.solution_path import SolutionPath
from fedfuse.report.explanations import tried_lambdas
from fedfuse.report.palette import COLOURS
from fedfuse.report.plots import _plain, _pyplot, plot_distances
from fedfuse.results.snapshots import DistanceSnapshot
from fedfuse.utils.typing import Floats, Ints

# Nine methods and ours: colours twice, the second time dashed; ours is thick and black.
_STYLES: dict[str, dict[str, Any]] = {
    label: {"color": COLOURS[i % len(COLOURS)], "ls": "-" if i < len(COLOURS) else "--", "lw": 1.4}
    for i, label in enumerate(("fpfc", *(name for name in PAPER if name != "fpfc")))
}
_STYLES[DEFAULT] = {"color": "black", "ls": "-", "lw": 3.0}
_STYLES["pacfl"] |= {"color": "#888888"}
_STYLES["cfl"] |= {"color": "#8C510A"}
_PENALTIES = {"l2": "squared l2", "l1": "l1", "scad": "SCAD", "smoothed-scad": "smoothed SCAD"}
_KEYS = {"lam": "lambda", "xi": "xi", "epochs": "most local epochs"}


def _grid(columns: int, rows: int = 1, width: float = 4.2, height: float = 3.6) -> Any:
    size = (width * columns, height * rows)
    return _pyplot().subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)[1]


def _panels(axes: Any, table: pd.DataFrame, by: str = "data") -> Iterator[tuple[Any, str, pd.DataFrame]]:
    """Yield a panel, its title and its rows for every value of a column; panels are styled afterwards."""
    for ax, (title, some) in zip(axes, table.groupby(by, sort=False), strict=True):
        yield ax, str(title), some
        _plain(ax)


def _legend(axes: Any) -> Any:
    """Put one legend beside all panels."""
    found: dict[str, Any] = {}
    for ax in axes.ravel():
        found |= {str(t): h for h, t in zip(*ax.get_legend_handles_labels(), strict=True)}
    axes[0, 0].figure.legend(found.values(), found.keys(), loc="outside right center", frameon=False)
    return axes


def _score(some: pd.DataFrame) -> tuple[int, str]:
    """Return the scale of test scores on an axis, and its label."""
    return (100, "test accuracy, %") if some["metric"].iloc[0] == "accuracy" else (1, "test RMSE")


def attacks(table: pd.DataFrame, title: str) -> Any:
    """Draw the accuracy of honest devices against the share of liars, one panel per attack."""
    axes = _grid(table["attack"].nunique())
    for ax, attack, lines in _panels(axes[0], table, "attack"):
        for label, some in lines.groupby("method", sort=False):
            style = {"marker": "o", "ms": 4, "label": PRINTED[str(label)], **_STYLES[str(label)]}
            ax.plot(some["liars"], 100 * some["test"], **style)
        ax.set(title=attack, xlabel="share of liars", xticks=sorted(table["liars"].unique()), ylim=(0, 100))
    axes[0, 0].set_ylabel("test accuracy of honest devices, %")
    axes[0, 0].figure.suptitle(title)
    return _legend(axes)


def sweep(table: pd.DataFrame, key: str) -> Any:
    """Draw the test score against a setting, one panel per data set."""
    axes = _grid(table["data"].nunique())
    for ax, data, some in _panels(axes[0], table):
        scale, words = _score(some)
        ax.plot(some[key], scale * some["test"], marker="o", color=COLOURS[0], lw=1.8)
        if some[key].min() > 0 and some[key].max() >= 100 * some[key].min():
            ax.set_xscale("log")
        ax.set(title=data, xlabel=_KEYS.get(key, key), ylabel=words)
        _open_up(ax, 1.0 if scale == 100 else 0.02 * float(some["test"].mean()))
    return axes


def _open_up(ax: Any, least: float) -> None:
    """Give the vertical axis at least this length, so that differences that mean nothing do not look like cliffs."""
    low, high = ax.get_ylim()
    if high - low < least:
        middle = (low + high) / 2
        ax.set_ylim(middle - least / 2, middle + least / 2)
    ax.ticklabel_format(axis="y", useOffset=False)


def starts(table: pd.DataFrame) -> Any:
    """Draw accuracy and ARI over random initial values: a point each, and a box around the middle half."""
    axes, methods = _grid(table["data"].nunique(), rows=2, height=3.0), list(table["method"].unique())
    for row, (what, words, scale) in zip(axes, (("test", "test accuracy, %", 100), ("ari", "ARI", 1)), strict=True):
        for ax, data, some in _panels(row, table):
            for place, label in enumerate(methods):
                points = scale * some.loc[some["method"] == label, what].to_numpy(float)
                beside = place + np.random.default_rng(place).uniform(-0.18, 0.18, len(points))
                ax.scatter(beside, points, s=14, color=COLOURS[place], alpha=0.6, lw=0)
                ax.boxplot([points], positions=[place], widths=0.5, showfliers=False, medianprops={"color": "black"})
            ax.set_xticks(range(len(methods)), [PRINTED[label] for label in methods])
            ax.set(ylabel=words, title=data if what == "test" else "")
    return axes


def curves(table: pd.DataFrame) -> Any:
    """Draw training loss, training and test accuracy by device-epochs, one row per data set."""
    columns = {"train_loss": ("training loss", 1), "train": ("training accuracy, %", 100)}
    columns |= {"test": ("test accuracy, %", 100)}
    axes = _grid(3, rows=table["data"].nunique(), height=3.2)
    for (what, (words, scale)), column in zip(columns.items(), axes.T, strict=True):
        for ax, data, lines in _panels(column, table):
            for label, some in lines.groupby("method", sort=False):
                ax.plot(some["device_epochs"], scale * some[what], label=PRINTED[str(label)], **_STYLES[str(label)])
            ax.set(xlabel="device-epochs", ylabel=words, title=data if what == "train" else "")
    return _legend(axes)


def cost(table: pd.DataFrame) -> Any:
    """Draw the floats that every method sends in all, as bars on a logarithmic axis."""
    axes, names, labels = _grid(1, width=8.0, height=4.0), list(table["data"].unique()), list(table["method"].unique())
    ax = axes[0, 0]
    for place, data in enumerate(names):
        some = table[table["data"] == data].set_index("method")["cost"].reindex(labels)
        x = np.arange(len(labels)) + (place - (len(names) - 1) / 2) * 0.4
        bars = ax.bar(x, some, width=0.38, label=data, color=COLOURS[place])
        ax.bar_label(bars, [f"{v / 1e6:.1f}" for v in some], fontsize=7, padding=1)
    ax.set_xticks(range(len(labels)), [PRINTED[label] for label in labels], rotation=25, ha="right")
    ax.set(ylabel="floats sent in training (above: millions)")
    ax.set_yscale("symlog", linthresh=1e5)
    ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1.03), ncols=len(names))
    _plain(ax)
    return axes


def snapshots(seen: Sequence[DistanceSnapshot], models: Mapping[int, Floats], truth: Ints) -> Any:
    """Draw distances between all pairs of models on one scale, and below a t-SNE of them, a column per round."""
    from sklearn.manifold import TSNE

    axes, largest = _grid(len(seen), rows=2, width=3.6), max(snapshot.largest for snapshot in seen)
    for above, below, snapshot, w in zip(*axes, seen, models.values(), strict=True):
        plot_distances(snapshot, ax=above).images[0].set_clim(0, largest)
        # Noise separates equal models, which t-SNE cannot place.
        shaken = w + 1e-6 * np.random.default_rng(0).normal(size=w.shape)
        near = min(20.0, (len(w) - 1) / 3)
        flat = TSNE(perplexity=near, init="pca", random_state=0).fit_transform(shaken)
        below.scatter(*flat.T, s=18, c=[COLOURS[group % len(COLOURS)] for group in truth], lw=0)
        below.set(title="t-SNE, coloured by true group", xticks=[], yticks=[])
    return axes


def score_lines(course: pd.DataFrame, x: str, by: str, xlabel: str) -> Any:
    """Draw the test score against a column: one panel per data set, one line per value of ``by``."""
    axes = _grid(course["data"].nunique())
    for ax, data, lines in _panels(axes[0], course):
        scale, words = _score(lines)
        for colour, (label, some) in zip(COLOURS, lines.groupby(by, sort=False), strict=False):
            ax.plot(some[x], scale * some["test"], color=colour, lw=1.8, label=label)
        ax.set(title=data, xlabel=xlabel, ylabel=words)
        ax.legend(frameon=False, loc="best")
    return axes


def tuning(tunings: Mapping[str, Mapping[Strategy, Result]]) -> Any:
    """Draw a row per data set: validation by round and seconds per lambda, by warm-up and by separate tuning."""
    axes = _grid(4, rows=len(tunings), height=4.0)
    for row, (data, found) in zip(axes, tunings.items(), strict=True):
        for place, (way, result) in enumerate(found.items()):
            _tuning(way, result, row[2 * place], row[2 * place + 1])
        row[0].set_title(f"{data}\n{row[0].get_title()}", pad=28)
    return axes


def _tuning(way: Strategy, result: Result, left: Any, right: Any) -> None:
    """Draw the validation metric by round, coloured by lambda, and beside it the time that each lambda took."""
    table, history = tried_lambdas(result), result.history
    assert table is not None
    curve = history[history["watched"].notna() | history["groups"].notna()]
    colours = _pyplot().get_cmap("viridis")(np.linspace(0, 0.92, len(table)))
    of = dict(zip(table["lam"], colours, strict=True))
    for _, piece in curve.groupby((curve["stage"] != curve["stage"].shift()).cumsum()):
        lam, onwards = piece["lam"].iloc[0], piece["stage"].iloc[0] == FINAL_STAGE
        left.plot(piece["round"], piece["watched"], color=of[lam], lw=1.8, ls="--" if onwards else "-")
        # The label stands where the stage begins, above the curve.
        place = {"xycoords": ("data", "axes fraction"), "rotation": 60, "fontsize": 8}
        left.annotate(f"{lam:g}", (piece["round"].iloc[0], 1.01), **place)
    if way == "warmup":
        for name, style in (("trying a lambda", "-"), ("training on", "--")):
            left.plot([], [], color="grey", ls=style, label=name)
        left.legend(frameon=False, loc="best")
    left.set(xlabel="round", ylabel=f"validation {metric_for(result.profile.goal).name}")
    left.set_title(f"{way}: lambda {result.lam:g} chosen", pad=28)
    bars = right.bar([f"{lam:g}" for lam in table["lam"]], table["seconds"], color=colours)
    for bar, chosen in zip(bars, table["chosen"], strict=True):
        if chosen:
            bar.set(edgecolor="black", linewidth=2)
    right.bar_label(bars, [f"{n}" for n in table["rounds"]], fontsize=8, padding=2)
    right.set(xlabel="lambda (chosen: outlined)", ylabel="seconds (above: rounds)")
    right.set_title(f"{table['seconds'].sum():.0f} s of tuning")
    _plain(left), _plain(right)


def paths(found: Sequence[SolutionPath]) -> Any:
    """Draw every device's estimate against lambda under each penalty, coloured by the true groups."""
    axes = _grid(2, rows=2, width=5.0, height=3.5)
    for path, ax in zip(found, axes.ravel(), strict=True):
        groups = path.labels[-1] if path.truth is None else path.truth
        for group in np.unique(groups):
            ax.plot(path.grid, path.estimates[:, groups == group, 0], color=COLOURS[group], lw=0.9, alpha=0.7)
        few = [(n, a, b) for n, a, b in path.spans() if n <= 3 and b > a]
        ends = ", ".join(f"{n} from {a:.2g} on" for n, a, _ in few) or f"never fewer than {path.n_clusters.min()}"
        ax.set(xlabel="lambda", ylabel="estimate of each device")
        ax.set_title(f"{_PENALTIES[path.penalty]}\n", fontsize=11, fontweight="bold")
        ax.annotate(f"groups: {ends}", (0.5, 1.02), xycoords="axes fraction", ha="center", va="bottom", fontsize=9)
        for value in (-1, 1):
            _plain(ax).axhline(value, color="black", lw=0.8, ls=":", zorder=0)
    return axes
