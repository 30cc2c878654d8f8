"""Pictures, by matplotlib (``pip install "fedfuse[report]"``).

Every function takes data and, if you have them, axes to draw on; it returns the axes. Colours are those of Okabe and
Ito and of viridis, which people with colour-blindness can tell apart, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedfuse.errors import FedfuseError
from fedfuse.report.palette import COLOURS
from fedfuse.results.result import Result
from fedfuse.results.snapshots import DistanceSnapshot
from fedfuse.utils.typing import Floats, Ints

if TYPE_CHECKING:
    from fedfuse.studies.comparison import Comparison
    from fedfuse.studies.solution_path import SolutionPath
    from fedfuse.studies.sweep import Sweep
    from fedfuse.studies.tune import Tuning

PICTURES = (".png", ".svg", ".pdf")
NAMES = {"l2": "squared l2", "l1": "l1", "scad": "SCAD", "smoothed-scad": "smoothed SCAD", "mcp": "MCP"}
PARAMETERS = 12  # of a model, the most that a path shows
LABELS = 12  # groups that have room for their numbers
GREY = "#777777"


def check_picture(path: str | PathLike[str]) -> None:
    """Say now, and not after hours of training, that a picture cannot be drawn."""
    if Path(path).suffix.lower() not in PICTURES:
        raise FedfuseError(f"a picture must end in {', '.join(PICTURES)}, got {path}")
    _pyplot()


def save_picture(axes: Any, path: str | PathLike[str]) -> None:
    """Write the figure of these axes to a file and close it; the same figure is the same file, whenever it is drawn."""
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
    ax = _one(ax)
    groups = path.truth if path.truth is not None else path.labels[-1]
    for j in _telling(path.estimates[0]):
        for group in np.unique(groups):
            lines = path.estimates[:, groups == group, j]
            ax.plot(path.grid, lines, color=COLOURS[group % len(COLOURS)], lw=0.9, alpha=0.7)
    few = [(n, a, b) for n, a, b in path.spans() if n <= 3 and b > a]
    ends = ", ".join(f"{n} from {a:.2g} on" for n, a, _ in few) if few else f"never fewer than {path.n_clusters.min()}"
    ax.set(xlabel="lambda", ylabel="estimates")
    ax.set_title(f"{NAMES.get(path.penalty, path.penalty)}\n", fontsize=11, fontweight="bold")
    ax.annotate(f"clusters: {ends}", (0.5, 1.02), xycoords="axes fraction", ha="center", va="bottom", fontsize=9)
    return _plain(ax)


def plot_figure1(paths: Sequence[SolutionPath] | None = None, axes: Any = None) -> Any:
    """Draw the paper's Figure 1: the toy example under squared l2, l1, SCAD and smoothed SCAD."""
    from fedfuse.studies.solution_path import figure_1

    paths = figure_1() if paths is None else paths
    if axes is None:
        _, axes = _pyplot().subplots(2, 2, figsize=(10, 7), layout="constrained")
    for path, ax in zip(paths, np.ravel(axes), strict=True):
        plot_path(path, ax)
        ax.set_ylabel("estimate of each device")
        for value in (-1, 1):
            ax.axhline(value, color="black", lw=0.8, ls=":", zorder=0)
    return axes


def plot_tuning(tuning: Tuning, axes: Any = None) -> Any:
    """Draw the validation metric by round, coloured by lambda, and beside it the time that each lambda took."""
    if axes is None:
        layout: dict[str, Any] = {"layout": "constrained", "width_ratios": (3, 2)}
        _, axes = _pyplot().subplots(1, 2, figsize=(11, 4), **layout)
    left, right = np.ravel(axes)
    table, curve, result = tuning.table, tuning.curve, tuning.result
    colours = _pyplot().get_cmap("viridis")(np.linspace(0, 0.92, len(table)))
    of = dict(zip(table["lam"], colours, strict=True))
    stages = (curve["stage"] != curve["stage"].shift()).cumsum()
    for _, piece in curve.groupby(stages):
        lam, onwards = piece["lam"].iloc[0], piece["stage"].iloc[0] == "training on"
        left.plot(piece["round"], piece["validation"], color=of[lam], lw=1.8, ls="--" if onwards else "-")
        # the label stands where the stage begins, out of the way of the curve
        place = {"xycoords": ("data", "axes fraction"), "rotation": 60, "fontsize": 8}
        left.annotate(f"{lam:g}", (piece["round"].iloc[0], 1.01), **place)
    if tuning.strategy == "warmup":
        for words, style in (("trying a lambda", "-"), ("training on", "--")):
            left.plot([], [], color="grey", ls=style, label=words)
        left.legend(frameon=False, loc="best")
    left.set(xlabel="round", ylabel=f"validation {result.profile.metric}")
    left.set_title(f"{tuning.strategy}: lambda {tuning.lam:g} chosen", pad=28)
    bars = right.bar([f"{lam:g}" for lam in table["lam"]], table["seconds"], color=colours)
    for bar, row in zip(bars, table.itertuples(), strict=True):
        if row.chosen:
            bar.set(edgecolor="black", linewidth=2)
    right.bar_label(bars, [f"{n}" for n in table["rounds"]], fontsize=8, padding=2)
    right.set(
        xlabel="lambda (chosen: outlined)", ylabel="seconds (above: rounds)", title=f"{tuning.seconds:.0f} s of tuning"
    )
    _plain(left), _plain(right)
    return axes


def plot_search(tuning: Tuning, axes: Any = None) -> Any:
    """Draw what every candidate came to on validation rows; the one chosen is outlined."""
    from fedfuse.studies.tune import in_words

    table = tuning.table
    if axes is None:
        _, axes = _pyplot().subplots(figsize=(7, 1.2 + 0.25 * len(table)), layout="constrained")
    names = [in_words(row) for row in table[list(tuning.settings)].to_dict("records")]
    bars = axes.barh(np.arange(len(table)), table["validation"], tick_label=names, color="#4c72b0")
    for bar, chosen in zip(bars, table["chosen"], strict=True):
        if chosen:
            bar.set(edgecolor="black", linewidth=2)
    axes.invert_yaxis()
    axes.set(xlabel=f"validation {tuning.result.profile.metric} (chosen: outlined)", title=f"{tuning.words} chosen")
    _plain(axes)
    return axes


def plot_history(result: Result, ax: Any = None) -> Any:
    """Draw validation and test metric and the number of clusters by round."""
    ax = _one(ax)
    seen = result.history
    if "n_clusters" not in seen or not seen["n_clusters"].notna().any():
        raise FedfuseError("the history has no evaluated round: use a smaller evaluate_every, or more rounds")
    seen = seen[seen["n_clusters"].notna()]
    for colour, part in zip(COLOURS, ("validation", "test"), strict=False):
        if seen[part].notna().any():
            ax.plot(seen["round"], seen[part], color=colour, lw=1.8, label=f"{part} {result.profile.metric}")
    other = ax.twinx()
    other.step(seen["round"], seen["n_clusters"], color=COLOURS[6], lw=1, ls=":", where="post", label="clusters")
    other.set_ylim(bottom=0)
    other.set_ylabel("clusters")
    ax.set(xlabel="round", ylabel=result.profile.metric, title=f"{result.dataset}, {result.method['method']}")
    lines = [*ax.get_lines(), *other.get_lines()]
    ax.legend(lines, [line.get_label() for line in lines], frameon=False, loc="center right")
    ax.grid(alpha=0.25)
    ax.spines[["top"]].set_visible(False)
    return ax


def plot_times(results: Mapping[str, Result], ax: Any = None, *, marks: bool = True) -> Any:
    """Draw the test metric of runs against the time on their clocks (virtual seconds, where they have one).

    With ``marks``, a dot says when each run first had the true groups, where they are known.
    """
    ax = _one(ax)
    for colour, (name, result) in zip(COLOURS, results.items(), strict=False):
        seen = result.history
        if "test" not in seen:
            raise FedfuseError(f"the history of {name} has no evaluated round: use a smaller evaluate_every")
        seen = seen[seen["test"].notna()]
        ax.plot(seen["time"], seen["test"], color=colour, lw=1.8, label=name)
        right = seen[seen["ari"].astype(float) >= 1.0]
        if marks and len(right):
            ax.plot(right["time"].iloc[:1], right["test"].iloc[:1], "o", color=colour, ms=8)
    if marks:
        ax.plot([], [], "o", color="grey", ms=8, label="all groups right for the first time")
    metric = next(iter(results.values())).profile.metric
    ax.set(xlabel="simulated time (s)", ylabel=f"test {metric}")
    ax.legend(frameon=False, loc="lower right" if metric == "accuracy" else "upper right")
    return _plain(ax)


def plot_sweep(sweep: Sweep, axes: Any = None) -> Any:
    """Draw test score and, where the true groups are known, ARI: against the values, or over random starts."""
    known = sweep.table["ari"].notna().any()
    panels = [("test", f"test {sweep.comparison.metric}"), *([("ari", "ARI")] if known else [])]
    if axes is None:
        size = {"figsize": (5.2 * len(panels), 4), "layout": "constrained", "squeeze": False}
        _, axes = _pyplot().subplots(1, len(panels), **size)
    for ax, (name, words) in zip(np.ravel(axes), panels, strict=True):
        draw = _draw_starts if sweep.over.starts is not None else _draw_values
        draw(sweep, name, ax)
        ax.set_ylabel(words)
        _plain(ax)
    np.ravel(axes)[0].figure.suptitle(f"{sweep.dataset}: {sweep.over.key}", fontsize=11)
    return axes


def _draw_values(sweep: Sweep, name: str, ax: Any) -> None:
    """Draw mean and spread over seeds against the values of a setting, on a line of numbers where they are some."""
    numbers = sweep.numbers
    places = np.array(numbers) if numbers else np.arange(len(sweep.over.values))
    for colour, method in zip(COLOURS, sweep.methods, strict=False):
        rows = sweep.summary[sweep.summary["method"] == method]
        mean, spread = rows[name].to_numpy(float), rows[f"{name}_sd"].to_numpy(float)
        ax.errorbar(places, mean, spread, color=colour, marker="o", lw=1.6, capsize=3, label=method)
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
        jitter = np.random.default_rng(place).uniform(-0.18, 0.18, len(points))
        ax.scatter(place + jitter, points, s=14, color=COLOURS[place % len(COLOURS)], alpha=0.6, lw=0)
        ax.boxplot([points], positions=[place], widths=0.5, showfliers=False, medianprops={"color": "black"})
    ax.set_xticks(range(len(sweep.methods)), sweep.methods)
    ax.set_xlabel(f"{sweep.over.starts} random starts")


def plot_comparison(comparison: Comparison, ax: Any = None) -> Any:
    """Draw every device's test score by method: a box over the points, the mean as a diamond, the best in colour."""
    table, scores = comparison.table, comparison.scores.dropna(subset="test")
    shown = [method for method in comparison.methods if (scores["method"] == method).any()]
    if ax is None:
        _, ax = _pyplot().subplots(figsize=(8, 1.2 + 0.55 * len(shown)), layout="constrained")
    percent = 100 if comparison.metric == "accuracy" else 1
    values = [percent * scores.loc[scores["method"] == method, "test"].to_numpy() for method in shown]
    means, best = (table.loc[shown, name].to_numpy() for name in ("test", "best"))
    for place, points in enumerate(values):
        colour = COLOURS[1] if best[place] else COLOURS[0]
        jitter = np.random.default_rng(place).uniform(-0.22, 0.22, len(points))
        ax.scatter(points, place + jitter, s=9, color=colour, alpha=0.35, lw=0, zorder=1)
        ax.plot(percent * means[place], place, "D", color=colour, mec="white", ms=7, zorder=4)
    lines = {part: {"color": "black", "lw": 1.2} for part in ("boxprops", "medianprops", "whiskerprops", "capprops")}
    ax.boxplot(values, positions=range(len(shown)), orientation="horizontal", widths=0.5, showfliers=False, **lines)
    ax.set_yticks(range(len(shown)), shown)
    ax.invert_yaxis()
    unit = "test accuracy of each device, %" if percent == 100 else "test RMSE of each device (less is better)"
    n = len(comparison.seeds)
    ax.set(xlabel=unit, title=f"{comparison.dataset}, {n} seed{'s' if n > 1 else ''}")
    return _plain(ax)


def plot_distances(seen: Result | DistanceSnapshot, labels: Ints | None = None, ax: Any = None) -> Any:
    """Draw the distances between the models of all pairs of devices, ordered by group.

    ``seen`` is a result, or a picture of a round (`fedfuse.results.snapshots.SnapshotFile`); ``labels`` are the groups that order it,
    by default its own.
    """
    from fedfuse.report.distance_frames import by_group, tree_of

    snapshot, groups = _pairs(seen, labels)
    order = by_group(groups, tree_of(snapshot))
    ax = _one(ax)
    image = ax.imshow(snapshot.matrix[np.ix_(order, order)], cmap="cividis_r", vmin=0, interpolation="nearest")
    edges = np.flatnonzero(np.diff(groups[order])) + 0.5
    for edge in edges:
        ax.axhline(edge, color="white", lw=0.8)
        ax.axvline(edge, color="white", lw=0.8)
    middles = (np.concatenate([[-0.5], edges]) + np.concatenate([edges, [len(order) - 0.5]])) / 2
    numbers = [str(groups[order][round(place)]) for place in middles]
    if len(numbers) <= LABELS:
        ax.set_xticks(middles, numbers)
        ax.set_yticks(middles, numbers)
    else:
        ax.set(xticks=[], yticks=[])
    ax.set(xlabel="group", ylabel="group", title=_moment(seen))
    ax.figure.colorbar(image, ax=ax, label="distance of models", shrink=0.85)
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
    snapshot, groups = _pairs(seen, labels)
    places = _places(snapshot.matrix, method)
    ax = _one(ax)
    for c in np.unique(groups):
        inside = groups == c
        ax.scatter(*places[inside].T, s=28, color=_colour(int(c)), edgecolor="white", lw=0.5, label=f"group {c}")
    if groups.max() < LABELS:
        ax.legend(frameon=False, fontsize=8, loc="best")
    ax.set(xticks=[], yticks=[], title=_moment(seen))
    ax.set_aspect("equal", adjustable="datalim")
    return ax


def plot_devices(result: Result, baselines: Mapping[str, Floats] | None = None, ax: Any = None) -> Any:
    """Draw every device's test score by group, against its local and the pooled model where these are given.

    ``yardsticks`` are the scores of `training.loop.baselines.yardsticks`.
    """
    ax = _one(ax)
    scores, sticks = result.scores["test"], baselines or {}
    sizes = np.bincount(result.labels)
    order = np.lexsort((np.nan_to_num(scores), result.labels, -sizes[result.labels]))
    x = np.arange(len(order))
    if "local" in sticks:
        ax.vlines(x, sticks["local"][order], scores[order], color="#888888", lw=0.6, zorder=1)
    for name, words, marker in (("pooled", "one model for all", "x"), ("local", "every device alone", "o")):
        if name in sticks:
            ax.scatter(x, sticks[name][order], s=10, marker=marker, color="#888888", lw=0.8, label=words, zorder=2)
    labels = result.labels[order]
    for c in np.unique(labels):
        own = f"group {c}" if labels.max() < LABELS else None
        ax.scatter(x[labels == c], scores[order][labels == c], s=16, color=_colour(int(c)), label=own, zorder=3)
    ax.set(xlabel="devices by group", ylabel=f"test {result.profile.metric}", xticks=[])
    ax.legend(frameon=False, fontsize=8, loc="best")
    return _plain(ax)


def plot_fusion(alone: DistanceSnapshot, labels: Ints, ax: Any = None, *, a: float | None = None) -> Any:
    """Draw which devices meet as lambda grows, as a tree of their own models (average linkage).

    ``alone`` is a picture of the devices' own models, such as ``yardsticks.measured(...).alone``; ``labels`` are the
    groups that colour it. With ``a`` the axis is lambda, which reaches pairs ``a * lambda`` apart, else distance.
    """
    from scipy.cluster.hierarchy import dendrogram

    from fedfuse.report.distance_frames import tree_of

    ax = _one(ax)
    merges, groups = tree_of(alone), labels[alone.devices]
    if not len(merges):
        raise FedfuseError("a tree needs at least two devices")
    n, owner = len(groups), {i: int(g) for i, g in enumerate(groups)}
    for k, (left, right) in enumerate(merges[:, :2].astype(int)):
        owner[n + k] = owner[left] if owner[left] == owner[right] else -1
    merges[:, 2] /= a or 1.0
    named: dict[str, Any] = {
        "no_labels": n > 60,
        "leaf_font_size": 7,
        "above_threshold_color": GREY,
        "orientation": "right",
    }
    dendrogram(merges, ax=ax, link_color_func=lambda node: GREY if owner[node] < 0 else _colour(owner[node]), **named)
    ax.set(xlabel="lambda" if a else "distance", ylabel="devices")
    return _plain(ax)


def plot_communication(results: Mapping[str, Result], ax: Any = None) -> Any:
    """Draw the test metric of runs against floats sent so far."""
    ax = _one(ax)
    for place, (name, result) in enumerate(results.items()):
        seen = result.history
        if "test" not in seen:
            raise FedfuseError(f"the history of {name} has no evaluated round: use a smaller evaluate_every")
        seen = seen[seen["test"].notna()]
        ax.plot(seen["cost_floats"], seen["test"], color=_colour(place), lw=1.8, label=name)
    metric = next(iter(results.values())).profile.metric
    ax.set(xlabel="floats sent", ylabel=f"test {metric}", xscale="log")
    ax.legend(frameon=False)
    return _plain(ax)


def _pairs(seen: Result | DistanceSnapshot, labels: Ints | None) -> tuple[DistanceSnapshot, Ints]:
    """Return a picture of all pairs, and the groups of the devices on it."""
    if isinstance(seen, Result):
        # a module of one's own is not there after loading, and with it not the knowledge of what is fused
        fused = seen.models[:, seen.model.fused] if seen.model.d == seen.models.shape[1] else seen.models
        seen = DistanceSnapshot.of(seen.rounds, fused, seen.labels)
    return seen, seen.labels if labels is None else np.asarray(labels)[seen.devices]


def _moment(seen: Result | DistanceSnapshot) -> str:
    return seen.dataset if isinstance(seen, Result) else f"after round {seen.round}"


def _places(matrix: Floats, method: str) -> Floats:
    from fedfuse.report.distance_frames import plane

    if method not in ("pca", "tsne"):
        raise FedfuseError(f"a map is made by 'pca' or 'tsne', got {method!r}")
    if method == "pca" or len(matrix) < 5:
        return plane(matrix)
    from sklearn.manifold import TSNE

    near = min(30.0, (len(matrix) - 1) / 3)
    tsne = TSNE(metric="precomputed", init="random", perplexity=near, random_state=0)
    return np.asarray(tsne.fit_transform(matrix))


def _colour(group: int) -> str:
    return COLOURS[group % len(COLOURS)]


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise FedfuseError('pictures need matplotlib: pip install "fedfuse[report]"') from None
    return plt


def _one(ax: Any) -> Any:
    return _pyplot().subplots(figsize=(7, 4.5), layout="constrained")[1] if ax is None else ax


def _plain(ax: Any) -> Any:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    return ax


def _telling(estimates: Any) -> Any:
    """Return the parameters in which devices differ most."""
    spread = np.std(estimates, axis=0)
    return np.sort(np.argsort(-spread, kind="stable")[:PARAMETERS])
