"""Plots by matplotlib (``pip install "fedfuse[report]"``).

Every function takes data and, optionally, axes to draw on, and returns the axes. Groups are numbered by size, from 1,
and have the colours of the report (`fedfuse.report.palette`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from fedfuse.core.metrics import METRICS, metric_for
from fedfuse.errors import FedfuseError
from fedfuse.report.charts import Chart
from fedfuse.report.distance_charts import (
    MERGE_AXIS,
    average_linkage,
    by_group,
    merged_groups,
    numbers_by_size,
    plane,
    snapshot_of,
)
from fedfuse.report.explanations import group_name
from fedfuse.report.palette import COLOURS, GREY, colour
from fedfuse.report.run_page import cost_chart, device_chart, device_scores, training_charts
from fedfuse.results.result import Result
from fedfuse.results.snapshots import DistanceSnapshot
from fedfuse.utils.typing import Floats, Ints

if TYPE_CHECKING:
    from fedfuse.studies.comparison import Comparison
    from fedfuse.studies.solution_path import SolutionPath
    from fedfuse.studies.sweep import Sweep
    from fedfuse.studies.tune import Tuning

FORMATS = (".png", ".svg", ".pdf")
PENALTIES = {"l2": "squared l2", "l1": "l1", "scad": "SCAD", "smoothed-scad": "smoothed SCAD", "mcp": "MCP"}
MAX_PARAMETERS = 12
# Groups that have room for their numbers on an axis or in a legend, and leaves that have room for their names.
MAX_NAMED_GROUPS, MAX_NAMED_LEAVES = 12, 60
AXES = {"cost_floats": "numbers sent", "time": "simulated time (s)", "round": "round"}


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


def plot_path(path: SolutionPath, ax: Any = None) -> Any:
    """Draw every device's estimates against lambda, coloured by the true groups, or else by those found at the end.

    Of models with many parameters the twelve are shown that differ most between devices.
    """
    ax = _axes(ax)
    groups = path.truth if path.truth is not None else path.labels[-1]
    spread = np.std(path.estimates[0], axis=0)
    for j in np.sort(np.argsort(-spread, kind="stable")[:MAX_PARAMETERS]):
        for group in np.unique(groups):
            ax.plot(path.grid, path.estimates[:, groups == group, j], color=colour(group + 1), lw=0.9, alpha=0.7)
    few = [(n, a, b) for n, a, b in path.spans() if n <= 3 and b > a]
    ends = ", ".join(f"{n} from {a:.2g} on" for n, a, _ in few) if few else f"never fewer than {path.n_clusters.min()}"
    ax.set(xlabel="lambda", ylabel="estimates")
    ax.set_title(f"{PENALTIES.get(path.penalty, path.penalty)}\n", fontsize=11, fontweight="bold")
    ax.annotate(f"groups: {ends}", (0.5, 1.02), xycoords="axes fraction", ha="center", va="bottom", fontsize=9)
    return _plain(ax)


def plot_figure1(paths: Sequence[SolutionPath] | None = None, axes: Any = None) -> Any:
    """Draw the paper's Figure 1: the toy example under squared l2, l1, SCAD and smoothed SCAD."""
    from fedfuse.studies.solution_path import figure_1

    paths = figure_1() if paths is None else paths
    axes = _axes(axes, 2, 2, size=(10, 7))
    for path, ax in zip(paths, np.ravel(axes), strict=True):
        plot_path(path, ax).set_ylabel("estimate of each device")
        for value in (-1, 1):
            ax.axhline(value, color="black", lw=0.8, ls=":", zorder=0)
    return axes


def plot_tuning(tuning: Tuning, axes: Any = None) -> Any:
    """Draw the validation metric by round, coloured by lambda, and beside it the time that each lambda took."""
    axes = _axes(axes, 1, 2, size=(11, 4), width_ratios=(3, 2))
    left, right = np.ravel(axes)
    table, curve, result = tuning.table, tuning.curve, tuning.result
    colours = _pyplot().get_cmap("viridis")(np.linspace(0, 0.92, len(table)))
    of = dict(zip(table["lam"], colours, strict=True))
    for _, piece in curve.groupby((curve["stage"] != curve["stage"].shift()).cumsum()):
        lam, onwards = piece["lam"].iloc[0], piece["stage"].iloc[0] == "training on"
        left.plot(piece["round"], piece["validation"], color=of[lam], lw=1.8, ls="--" if onwards else "-")
        # The label stands where the stage begins, above the curve.
        place = {"xycoords": ("data", "axes fraction"), "rotation": 60, "fontsize": 8}
        left.annotate(f"{lam:g}", (piece["round"].iloc[0], 1.01), **place)
    if tuning.strategy == "warmup":
        for name, style in (("trying a lambda", "-"), ("training on", "--")):
            left.plot([], [], color="grey", ls=style, label=name)
        left.legend(frameon=False, loc="best")
    left.set(xlabel="round", ylabel=f"validation {metric_for(result.profile.goal).name}")
    left.set_title(f"{tuning.strategy}: lambda {tuning.lam:g} chosen", pad=28)
    bars = right.bar([f"{lam:g}" for lam in table["lam"]], table["seconds"], color=colours)
    _outline(bars, table["chosen"])
    right.bar_label(bars, [f"{n}" for n in table["rounds"]], fontsize=8, padding=2)
    right.set(xlabel="lambda (chosen: outlined)", ylabel="seconds (above: rounds)")
    right.set_title(f"{tuning.seconds:.0f} s of tuning")
    _plain(left), _plain(right)
    return axes


def plot_search(tuning: Tuning, axes: Any = None) -> Any:
    """Draw the validation score of every candidate; the one chosen is outlined."""
    from fedfuse.studies.tune import in_words

    table = tuning.table
    axes = _axes(axes, size=(7, 1.2 + 0.25 * len(table)))
    names = [in_words(row) for row in table[list(tuning.settings)].to_dict("records")]
    _outline(axes.barh(np.arange(len(table)), table["validation"], tick_label=names, color="#4c72b0"), table["chosen"])
    axes.invert_yaxis()
    metric = metric_for(tuning.result.profile.goal).name
    axes.set(xlabel=f"validation {metric} (chosen: outlined)", title=f"{tuning.words} chosen")
    return _plain(axes)


def _outline(bars: Any, chosen: Any) -> None:
    for bar, marked in zip(bars, chosen, strict=True):
        if marked:
            bar.set(edgecolor="black", linewidth=2)


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
    _evaluated(result)
    if len(result.history) == 1:
        raise FedfuseError("a curve needs two rounds, and the run has one: use more rounds")
    found = [*training_charts(result.history, result.profile.metric), cost_chart(result.history)]
    charts = [chart for chart in found if chart]
    axes = _axes(axes, len(charts), 1, size=(7, 2.4 * len(charts)), sharex=True, squeeze=False)
    for chart, ax in zip(charts, np.ravel(axes), strict=True):
        plot_chart(chart, ax).label_outer()
    return axes


def plot_scores(
    results: Mapping[str, Result],
    ax: Any = None,
    *,
    against: Literal["cost_floats", "time", "round"] = "cost_floats",
    marks: bool = False,
) -> Any:
    """Draw the test metric of runs against numbers sent, the time on their (simulated) clocks, or rounds.

    With ``marks``, a dot says when each run first had the true groups, where they are known.
    """
    ax = _axes(ax)
    for number, (name, result) in enumerate(results.items(), 1):
        seen = _evaluated(result, name)
        ax.plot(seen[against], seen["test"], color=colour(number), lw=1.8, label=name)
        right = seen[seen["ari"].astype(float) >= 1.0]
        if marks and len(right):
            ax.plot(right[against].iloc[:1], right["test"].iloc[:1], "o", color=colour(number), ms=8)
    if marks:
        ax.plot([], [], "o", color="grey", ms=8, label="all groups right for the first time")
    metric = next(iter(results.values())).profile.metric
    ax.set(xlabel=AXES[against], ylabel=f"test {metric}", xscale="log" if against == "cost_floats" else "linear")
    ax.legend(frameon=False, loc="lower right" if METRICS[metric].greater_is_better else "upper right")
    return _plain(ax)


def _evaluated(result: Result, name: str = "the run") -> pd.DataFrame:
    """Return the rounds with a test score."""
    history = result.history
    seen: pd.DataFrame = history[history["test"].notna()] if "test" in history else history[:0]
    if not len(seen):
        advice = "use a smaller evaluate_every, or more rounds"
        raise FedfuseError(f"the history of {name} has no evaluated round: {advice}")
    return seen


def plot_sweep(sweep: Sweep, axes: Any = None) -> Any:
    """Draw test score and, where the true groups are known, ARI: against the values, or over random starts."""
    known = sweep.table["ari"].notna().any()
    panels = [("test", f"test {sweep.comparison.metric}"), *([("ari", "ARI")] if known else [])]
    axes = _axes(axes, 1, len(panels), size=(5.2 * len(panels), 4), squeeze=False)
    for ax, (name, label) in zip(np.ravel(axes), panels, strict=True):
        draw = _draw_starts if sweep.over.starts is not None else _draw_values
        draw(sweep, name, ax)
        _plain(ax).set_ylabel(label)
    np.ravel(axes)[0].figure.suptitle(f"{sweep.dataset}: {sweep.over.key}", fontsize=11)
    return axes


def _draw_values(sweep: Sweep, name: str, ax: Any) -> None:
    """Draw mean and spread over seeds against the values of a setting, to scale where these are numbers."""
    numbers = sweep.numbers
    places = np.array(numbers) if numbers else np.arange(len(sweep.over.values))
    for number, method in enumerate(sweep.methods, 1):
        rows = sweep.summary[sweep.summary["method"] == method]
        mean, spread = rows[name].to_numpy(float), rows[f"{name}_sd"].to_numpy(float)
        ax.errorbar(places, mean, spread, color=colour(number), marker="o", lw=1.6, capsize=3, label=method)
    if numbers and min(numbers) > 0 and max(numbers) >= 100 * min(numbers):
        ax.set_xscale("log")
    elif not numbers:
        ax.set_xticks(places, sweep.over.values)
    ax.set_xlabel(sweep.over.key)
    if len(sweep.methods) > 1:
        ax.legend(frameon=False)


def _draw_starts(sweep: Sweep, name: str, ax: Any) -> None:
    """Draw one point per random start, and a box around the middle half."""
    for place, method in enumerate(sweep.methods):
        points = sweep.table.loc[sweep.table["method"] == method, name].dropna().to_numpy(float)
        box_of_points(ax, place, points, colour(place + 1))
    ax.set_xticks(range(len(sweep.methods)), sweep.methods)
    ax.set_xlabel(f"{sweep.over.starts} random starts")


def box_of_points(ax: Any, place: float, points: Floats, shade: str) -> None:
    """Draw points beside each other at a place of the horizontal axis, and a box around their middle half."""
    jitter = np.random.default_rng(int(place)).uniform(-0.18, 0.18, len(points))
    ax.scatter(place + jitter, points, s=14, color=shade, alpha=0.6, lw=0)
    ax.boxplot([points], positions=[place], widths=0.5, showfliers=False, medianprops={"color": "black"})


def plot_comparison(comparison: Comparison, ax: Any = None) -> Any:
    """Draw every device's test score by method: a box over the points, the mean as a diamond, the best in colour."""
    table, scores = comparison.table, comparison.scores.dropna(subset="test")
    shown = [method for method in comparison.methods if (scores["method"] == method).any()]
    ax = _axes(ax, size=(8, 1.2 + 0.55 * len(shown)))
    metric = METRICS[comparison.metric]
    percent = 100 if metric.percent else 1
    values = [percent * scores.loc[scores["method"] == method, "test"].to_numpy() for method in shown]
    means, best = (table.loc[shown, name].to_numpy() for name in ("test", "best"))
    for place, points in enumerate(values):
        jitter = np.random.default_rng(place).uniform(-0.22, 0.22, len(points))
        ax.scatter(points, place + jitter, s=9, color=COLOURS[int(best[place])], alpha=0.35, lw=0, zorder=1)
        ax.plot(percent * means[place], place, "D", color=COLOURS[int(best[place])], mec="white", ms=7, zorder=4)
    lines = {part: {"color": "black", "lw": 1.2} for part in ("boxprops", "medianprops", "whiskerprops", "capprops")}
    ax.boxplot(values, positions=range(len(shown)), orientation="horizontal", widths=0.5, showfliers=False, **lines)
    ax.set_yticks(range(len(shown)), shown)
    ax.invert_yaxis()
    unit = f"test {metric.label} of each device{', %' * metric.percent}"
    unit += "" if metric.greater_is_better else " (less is better)"
    n = len(comparison.seeds)
    ax.set(xlabel=unit, title=f"{comparison.dataset}, {n} seed{'s' if n > 1 else ''}")
    return _plain(ax)


def plot_distances(seen: Result | DistanceSnapshot, labels: Ints | None = None, ax: Any = None) -> Any:
    """Draw the distances between the models of all pairs of devices, ordered by group.

    ``seen`` is a result, or a snapshot of a round (`fedfuse.results.snapshots.SnapshotFile`); ``labels`` are the
    groups that order it, by default its own.
    """
    snapshot, groups = _snapshot(seen, labels)
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
    ax.set_title(_moment(seen))
    ax.figure.colorbar(image, ax=ax, label="distance between models", shrink=0.85)
    return ax


def plot_map(
    seen: Result | DistanceSnapshot,
    labels: Ints | None = None,
    ax: Any = None,
    *,
    method: Literal["pca", "tsne"] = "pca",
) -> Any:
    """Draw the devices in two dimensions, near each other where their models are alike, coloured by group.

    ``"pca"`` keeps most of the distances (principal coordinates); ``"tsne"`` keeps neighbours together.
    """
    snapshot, groups = _snapshot(seen, labels)
    places = _places(snapshot.matrix, method)
    ax = _axes(ax)
    for group in np.unique(groups):
        inside = groups == group
        ax.scatter(*places[inside].T, s=28, color=colour(group), edgecolor="white", lw=0.5, label=group_name(group))
    if groups.max() <= MAX_NAMED_GROUPS:
        ax.legend(frameon=False, fontsize=8, loc="best")
    ax.set(xticks=[], yticks=[], title=_moment(seen))
    ax.set_aspect("equal", adjustable="datalim")
    return ax


def plot_devices(result: Result, baselines: Mapping[str, Floats] | None = None, ax: Any = None) -> Any:
    """Draw every device's test score by group, and with local and pooled models where their scores are given.

    ``baselines`` are the scores of `fedfuse.training.evaluation.Baselines`.
    """
    ax = plot_chart(device_chart(result, device_scores(result, baselines or {})), ax)
    ax.set_xticks([])
    return ax


def plot_dendrogram(alone: DistanceSnapshot, labels: Ints, ax: Any = None) -> Any:
    """Draw the dendrogram of the devices' own models (average linkage).

    ``alone`` is a snapshot of these models, such as ``fedfuse.training.evaluation.Baselines.of(...).alone``; ``labels``
    are the groups that colour it.
    """
    from scipy.cluster.hierarchy import dendrogram

    ax = _axes(ax)
    merges, (_, groups) = average_linkage(alone), _snapshot(alone, labels)
    if not len(merges):
        raise FedfuseError("a dendrogram needs at least two devices")
    colours = [colour(max(group, 0)) for group in merged_groups(merges, groups).tolist()]
    style: dict[str, Any] = {"orientation": "right", "leaf_font_size": 7, "above_threshold_color": GREY}
    dendrogram(merges, ax=ax, no_labels=len(groups) > MAX_NAMED_LEAVES, link_color_func=colours.__getitem__, **style)
    ax.set(xlabel=MERGE_AXIS, ylabel="devices")
    return _plain(ax)


def _snapshot(seen: Result | DistanceSnapshot, labels: Ints | None) -> tuple[DistanceSnapshot, Ints]:
    """Return the distances of all pairs, and the groups of the devices there, numbered by size."""
    snapshot = snapshot_of(seen) if isinstance(seen, Result) else seen
    return snapshot, numbers_by_size(snapshot.labels if labels is None else np.asarray(labels)[snapshot.devices])


def _moment(seen: Result | DistanceSnapshot) -> str:
    return seen.dataset if isinstance(seen, Result) else f"after round {seen.round}"


def _places(matrix: Floats, method: str) -> Floats:
    if method not in ("pca", "tsne"):
        raise FedfuseError(f"a map is made by 'pca' or 'tsne', got {method!r}")
    if method == "pca" or len(matrix) < 5:
        return plane(matrix)
    from sklearn.manifold import TSNE

    near = min(30.0, (len(matrix) - 1) / 3)
    tsne = TSNE(metric="precomputed", init="random", perplexity=near, random_state=0)
    return np.asarray(tsne.fit_transform(matrix))


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
