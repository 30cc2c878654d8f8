"""Plots by matplotlib (``pip install "fedfuse[report]"``).

Every function takes data and, optionally, axes to draw on, and returns the axes. Groups are numbered by size, from 1,
and have the colours of the report (`fedfuse.report.palette`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from fedfuse.errors import FedfuseError
from fedfuse.report.charts import Chart
from fedfuse.report.distance_charts import average_linkage, by_group, numbers_by_size
from fedfuse.report.palette import COLOURS, GREY
from fedfuse.report.run_page import cost_chart, device_chart, device_scores, to_the_end, training_charts
from fedfuse.results.result import Result
from fedfuse.results.snapshots import DistanceSnapshot
from fedfuse.utils.typing import Floats, Ints

FORMATS = (".png", ".svg", ".pdf")
MAX_NAMED_GROUPS = 12  # That have room for their numbers on an axis.


def check_picture(path: str | PathLike[str]) -> None:
    """Refuse a picture that cannot be drawn, before hours of training."""
    if Path(path).suffix.lower() not in FORMATS:
        raise FedfuseError(f"a picture must end in {', '.join(FORMATS)}, got {path}")
    _pyplot()


def save_picture(axes: Any, path: str | PathLike[str]) -> None:
    """Write the figure of these axes to a file and close it; equal figures give equal files."""
    check_picture(path)
    figure = np.ravel(axes)[0].figure
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    dated = {".svg": "Date", ".pdf": "CreationDate"}.get(Path(path).suffix.lower())
    with _pyplot().rc_context({"svg.hashsalt": "fedfuse"}):
        figure.savefig(path, dpi=150, bbox_inches="tight", metadata={dated: None} if dated else None)
    _pyplot().close(figure)


def plot_chart(chart: Chart, ax: Any = None) -> Any:
    """Draw a chart of the report."""
    ax = _axes(ax)
    for layer in chart.layers:
        named = re.fullmatch(r"g(\d+)", layer.tone)  # All other tones are shades of grey.
        style: dict[str, Any] = {"color": COLOURS[int(named[1])] if named else GREY, "label": layer.name or None}
        if layer.kind == "dots":
            marker = "x" if layer.tone == "pooled" else "o"
            ax.scatter(layer.x, layer.y, s=16 if named else 10, marker=marker, lw=0.8, **style)
        elif layer.low is not None:
            ax.vlines(layer.x, layer.low, layer.y, lw=0.6, **style)
        else:
            ax.plot(layer.x, layer.y, lw=1.8, drawstyle="steps-post" if layer.kind == "step" else None, **style)
    for side, axis in (("x", chart.x), ("y", chart.y)):
        ax.set(**{f"{side}label": axis.words, f"{side}scale": "log" if axis.log else "linear"})
        ax.set(**{f"{side}lim": (axis.low, axis.high)})
        if axis.whole:
            ax.locator_params(side, integer=True)
    ax.legend(frameon=False, fontsize=8, loc="best")
    return _plain(ax)


def plot_history(result: Result, axes: Any = None) -> Any:
    """Draw the report's charts of training, one below the other: scores, groups, models' moves, and numbers sent."""
    found = [*training_charts(to_the_end(result), result.profile.metric), cost_chart(result.history)]
    charts = [chart for chart in found if chart]
    if not charts:
        raise FedfuseError("a curve needs at least two rounds, but the run has one: use more rounds")
    axes = _axes(axes, len(charts), 1, size=(7, 2.4 * len(charts)), sharex=True, squeeze=False)
    for chart, ax in zip(charts, np.ravel(axes), strict=True):
        plot_chart(chart, ax).label_outer()
    return axes


def plot_distances(snapshot: DistanceSnapshot, labels: Ints | None = None, ax: Any = None) -> Any:
    """Draw the distances between the models of all pairs of devices after a round, ordered by group.

    ``snapshot`` is one of `fedfuse.results.snapshots.SnapshotFile`; ``labels`` are the groups that order it, by default
    its own.
    """
    groups = numbers_by_size(snapshot.labels if labels is None else np.asarray(labels)[snapshot.devices])
    order = by_group(groups, average_linkage(snapshot))
    ax = _axes(ax)
    image = ax.imshow(snapshot.matrix[np.ix_(order, order)], cmap="cividis_r", vmin=0, interpolation="nearest")
    numbers, sizes = np.unique(groups, return_counts=True)
    edges = np.cumsum(sizes) - 0.5
    ticks = (edges - sizes / 2, numbers) if len(numbers) <= MAX_NAMED_GROUPS else ([], [])
    for side, line in (("x", ax.axvline), ("y", ax.axhline)):
        for edge in edges[:-1]:
            line(edge, color="white", lw=0.8)
        ax.set(**{f"{side}ticks": ticks[0], f"{side}ticklabels": ticks[1], f"{side}label": "group"})
    ax.set_title(f"after round {snapshot.round}")
    ax.figure.colorbar(image, ax=ax, label="distance between models", shrink=0.85)
    return ax


def plot_devices(result: Result, baselines: Mapping[str, Floats] | None = None, ax: Any = None) -> Any:
    """Draw every device's test score by group, and with local and pooled models where their scores are given.

    ``baselines`` are the scores of `fedfuse.training.evaluation.Baselines`.
    """
    ax = plot_chart(device_chart(result, device_scores(result, baselines or {})), ax)
    ax.set_xticks([])
    return ax


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise FedfuseError('pictures need matplotlib: pip install "fedfuse[report]"') from None
    return plt


def _axes(given: Any, *grid: int, size: tuple[float, float] = (7, 4.5), **layout: Any) -> Any:
    """Return the axes that were given, or a grid of new ones."""
    if given is not None:
        return given
    return _pyplot().subplots(*grid, figsize=size, layout="constrained", **layout)[1]


def _plain(ax: Any) -> Any:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    return ax
