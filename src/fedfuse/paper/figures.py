"""Pictures of the paper's figures; colours and manners are those of `fedfuse.report.plots`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedfuse.paper.setup import AUTO, PAPER, PRINTED
from fedfuse.report.palette import COLOURS
from fedfuse.report.plots import _plain, _pyplot
from fedfuse.utils.typing import Floats, Ints

# nine methods and ours: colours twice, the second time dashed; ours thick
_STYLES: dict[str, dict[str, Any]] = {
    label: {"color": COLOURS[i % len(COLOURS)], "ls": "-" if i < len(COLOURS) else "--", "lw": 1.4}
    for i, label in enumerate(("fpfc", *(name for name in PAPER if name != "fpfc")))
}
_STYLES[AUTO] = {"color": "black", "ls": "-", "lw": 3.0}
_STYLES["pacfl"] |= {"color": "#888888"}
_STYLES["cfl"] |= {"color": "#8C510A"}  # ours is black
_KEYS = {"lam": "lambda", "xi": "xi", "epochs": "most local epochs"}


def _row(n: int, width: float = 4.2, height: float = 3.6, rows: int = 1) -> Any:
    plt = _pyplot()
    return plt.subplots(rows, n, figsize=(width * n, height * rows), layout="constrained", squeeze=False)[1]


def _legend(axes: Any) -> None:
    """Put one legend beside all panels."""
    figure = axes[0, 0].figure
    found: dict[str, Any] = {}
    for ax in axes.ravel():
        found |= {str(t): h for h, t in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(found.values(), found.keys(), loc="outside right center", frameon=False)


def attacks(table: pd.DataFrame, title: str) -> Any:
    """Draw the accuracy of honest devices against the share of liars, one panel per attack."""
    names = list(table["attack"].unique())
    axes = _row(len(names))
    for ax, attack in zip(axes[0], names, strict=True):
        for label, some in table[table["attack"] == attack].groupby("method", sort=False):
            ax.plot(
                some["liars"], 100 * some["test"], marker="o", ms=4, label=PRINTED[str(label)], **_STYLES[str(label)]
            )
        ax.set(title=attack, xlabel="share of liars", xticks=sorted(table["liars"].unique()), ylim=(0, 100))
        _plain(ax)
    axes[0, 0].set_ylabel("test accuracy of honest devices, %")
    axes[0, 0].figure.suptitle(title)
    _legend(axes)
    return axes


def sweep(table: pd.DataFrame, key: str) -> Any:
    """Draw the test score against a setting, one panel per data set."""
    names = list(table["data"].unique())
    axes = _row(len(names))
    for ax, data in zip(axes[0], names, strict=True):
        some = table[table["data"] == data]
        accuracy = some["metric"].iloc[0] == "accuracy"
        ax.plot(some[key], (100 if accuracy else 1) * some["test"], marker="o", color=COLOURS[0], lw=1.8)
        if some[key].min() > 0 and some[key].max() >= 100 * some[key].min():
            ax.set_xscale("log")
        ax.set(title=data, xlabel=_KEYS.get(key, key), ylabel="test accuracy, %" if accuracy else "test RMSE")
        _open_up(ax, 1.0 if accuracy else 0.02 * float(some["test"].mean()))
        _plain(ax)
    return axes


def _open_up(ax: Any, least: float) -> None:
    """Give the vertical axis at least this length: differences that mean nothing are not to look like cliffs."""
    low, high = ax.get_ylim()
    if high - low < least:
        middle = (low + high) / 2
        ax.set_ylim(middle - least / 2, middle + least / 2)
    ax.ticklabel_format(axis="y", useOffset=False)


def starts(table: pd.DataFrame) -> Any:
    """Draw accuracy and ARI over random initial values: a point each, and a box around the middle half."""
    names = list(table["data"].unique())
    axes = _row(len(names), rows=2, height=3.0)
    for column, data in enumerate(names):
        for ax, (what, words, scale) in zip(
            axes[:, column], (("test", "test accuracy, %", 100), ("ari", "ARI", 1)), strict=True
        ):
            methods = list(table["method"].unique())
            for place, label in enumerate(methods):
                points = scale * table[(table["data"] == data) & (table["method"] == label)][what].to_numpy(float)
                jitter = np.random.default_rng(place).uniform(-0.18, 0.18, len(points))
                ax.scatter(place + jitter, points, s=16, color=COLOURS[place], alpha=0.7, lw=0)
                ax.boxplot([points], positions=[place], widths=0.5, showfliers=False, medianprops={"color": "black"})
            ax.set_xticks(range(len(methods)), [PRINTED[m] for m in methods])
            ax.set(ylabel=words, title=data if what == "test" else "")
            _plain(ax)
    return axes


def curves(table: pd.DataFrame) -> Any:
    """Draw training loss, training and test accuracy by device-epochs, one row per data set."""
    names = list(table["data"].unique())
    panels = (("train_loss", "training loss", 1), ("train", "training accuracy, %", 100))
    axes = _row(3, rows=len(names), height=3.2)
    for row, data in zip(axes, names, strict=True):
        for ax, (what, words, scale) in zip(row, (*panels, ("test", "test accuracy, %", 100)), strict=True):
            for label, some in table[table["data"] == data].groupby("method", sort=False):
                ax.plot(some["device_epochs"], scale * some[what], label=PRINTED[str(label)], **_STYLES[str(label)])
            ax.set(xlabel="device-epochs", ylabel=words, title=data if what == "train" else "")
            _plain(ax)
    _legend(axes)
    return axes


def cost(table: pd.DataFrame) -> Any:
    """Draw what every method sends in all, as bars on a scale of powers of ten."""
    names = list(table["data"].unique())
    axes = _row(1, width=8.0, height=4.0)
    ax, labels = axes[0, 0], list(table["method"].unique())
    for place, data in enumerate(names):
        some = table[table["data"] == data].set_index("method")["cost"].reindex(labels)
        x = np.arange(len(labels)) + (place - (len(names) - 1) / 2) * 0.4
        bars = ax.bar(x, some, width=0.38, label=data, color=COLOURS[place])
        ax.bar_label(bars, [f"{v / 1e6:.1f}" for v in some], fontsize=7, padding=1)
    ax.set_xticks(range(len(labels)), [PRINTED[m] for m in labels], rotation=25, ha="right")
    ax.set(ylabel="floats sent in training (above: millions)")
    ax.set_yscale("symlog", linthresh=1e5)
    ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1.03), ncols=len(names))
    _plain(ax)
    return axes


def distances(gaps: Mapping[int, Floats]) -> Any:
    """Draw the distances between all pairs of devices' models, one panel per round."""
    axes = _row(len(gaps), width=3.6, height=3.4)
    most = max(float(gap.max()) for gap in gaps.values()) or 1.0
    for ax, (k, gap) in zip(axes[0], gaps.items(), strict=True):
        picture = ax.imshow(gap, cmap="viridis", vmin=0, vmax=most)
        ax.set(title=f"round {k}", xlabel="device")
    axes[0, 0].set_ylabel("device")
    axes[0, 0].figure.colorbar(picture, ax=list(axes[0]), label="distance between models", shrink=0.85)
    return axes


def tsne(models: Mapping[int, Floats], truth: Ints) -> Any:
    """Draw a map of the devices' models (t-SNE), coloured by the true groups, one panel per round."""
    from sklearn.manifold import TSNE

    axes = _row(len(models), width=3.4, height=3.4)
    for ax, (k, w) in zip(axes[0], models.items(), strict=True):
        # equal models have no map of their own: a little noise gives them one place each
        shaken = w + 1e-6 * np.random.default_rng(0).normal(size=w.shape)
        near = min(20.0, (len(w) - 1) / 3)
        flat = TSNE(perplexity=near, init="pca", random_state=0).fit_transform(shaken)
        for group in np.unique(truth):
            some = flat[truth == group]
            ax.scatter(*some.T, s=18, color=COLOURS[group % len(COLOURS)], label=f"group {group}", lw=0)
        ax.set(title=f"round {k}", xticks=[], yticks=[])
    _legend(axes)
    return axes


def strategies(course: pd.DataFrame, table: pd.DataFrame) -> Any:
    """Draw the test score by round for each way to spend the same local steps, one panel per data set."""
    names = list(course["data"].unique())
    axes = _row(len(names))
    for ax, data in zip(axes[0], names, strict=True):
        accuracy = table.loc[table["data"] == data, "metric"].iloc[0] == "accuracy"
        lines = course[course["data"] == data].groupby("strategy", sort=False)
        for colour, (words, some) in zip(COLOURS, lines, strict=False):
            ax.plot(some["round"] + 1, (100 if accuracy else 1) * some["test"], color=colour, lw=1.8, label=words)
        ax.set(title=data, xlabel="round", ylabel="test accuracy, %" if accuracy else "test RMSE")
        ax.legend(frameon=False, loc="best")
        _plain(ax)
    return axes


def asynchronous(course: pd.DataFrame, table: pd.DataFrame) -> Any:
    """Draw the test score against simulated time, with and without waiting, one panel per data set."""
    names = list(course["data"].unique())
    axes = _row(len(names))
    for ax, data in zip(axes[0], names, strict=True):
        accuracy = table.loc[table["data"] == data, "metric"].iloc[0] == "accuracy"
        lines = course[course["data"] == data].groupby("mode", sort=False)
        for colour, (words, some) in zip(COLOURS, lines, strict=False):
            ax.plot(some["time"], (100 if accuracy else 1) * some["test"], color=colour, lw=1.8, label=words)
        ax.set(title=data, xlabel="simulated seconds", ylabel="test accuracy, %" if accuracy else "test RMSE")
        ax.legend(frameon=False, loc="best")
        _plain(ax)
    return axes


def tuning(tunings: Mapping[str, Mapping[Any, Any]]) -> Any:
    """Draw how warm-up goes through its lambdas, and below the seconds of both strategies for each lambda."""
    axes = _row(len(tunings), rows=2, height=3.2)
    for column, (data, found) in enumerate(tunings.items()):
        top, below = axes[:, column]
        _warmup(top, found["warmup"], data)
        _bars(below, {way: found[way].table for way in found})
    return axes


def _warmup(ax: Any, tuning: Any, title: str) -> None:
    curve, lambdas = tuning.curve, list(tuning.table["lam"])
    colours = dict(zip(lambdas, _pyplot().get_cmap("viridis")(np.linspace(0, 0.92, len(lambdas))), strict=True))
    stages = (curve["stage"] != curve["stage"].shift()).cumsum()
    for _, piece in curve.groupby(stages):
        lam = piece["lam"].iloc[0]
        onwards = piece["stage"].iloc[0] == "training on"
        ax.plot(
            piece["round"], piece["validation"], color=colours.get(lam, "black"), lw=1.6, ls="--" if onwards else "-"
        )
    ax.set(title=f"{title}: lambda {tuning.lam:g}", xlabel="round", ylabel=f"validation {tuning.result.profile.metric}")
    for lam in lambdas:
        ax.plot([], [], color=colours[lam], label=f"{lam:g}")
    ax.legend(frameon=False, fontsize=7, ncols=2, title="lambda", title_fontsize=7)
    _plain(ax)


def _bars(ax: Any, tables: Mapping[str, pd.DataFrame]) -> None:
    lambdas = sorted({float(lam) for table in tables.values() for lam in table["lam"]})
    for place, (way, table) in enumerate(tables.items()):
        heights = table.set_index("lam")["seconds"].reindex(lambdas)
        x = np.arange(len(lambdas)) + (place - 0.5) * 0.4
        ax.bar(x, heights, width=0.38, color=COLOURS[place], label=way)
    ax.set_xticks(range(len(lambdas)), [f"{lam:g}" for lam in lambdas])
    ax.set(xlabel="lambda", ylabel="seconds")
    ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(tables), fontsize=8)
    _plain(ax)
