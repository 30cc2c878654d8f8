"""The page of a comparison: methods side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedfuse.report import explanations as words
from fedfuse.report.charts import Axis, Chart, Label, Layer, spread_out
from fedfuse.report.distance_frames import by_group
from fedfuse.report.palette import ON_LIGHT, tone
from fedfuse.report.settings_table import settings_of, versions
from fedfuse.results.formatting import counted
from fedfuse.results.result import Result
from fedfuse.studies.comparison import Comparison, cells, footnotes, headings
from fedfuse.utils.files import read_json
from fedfuse.utils.typing import Floats, Ints

POINTS = 400  # devices of a method that are drawn


def comparison_page(directory: Path) -> dict[str, Any]:
    """Return what the template of a comparison needs."""
    found = Comparison.load(directory)
    best = [str(method) for method in found.table.index[found.table["best"]]]
    first = next(iter(found.results))
    return {
        "title": f"{found.dataset}: {counted(len(found.methods), 'method')}",
        "overline": f"{found.dataset} · {counted(len(found.seeds), found.repeats)} · comparison",
        "headline": _headline(found, best),
        "supporting": [_sentence(note, found.methods) for note in footnotes(found)[1:]],
        "heads": headings(found),
        "body": list(zip(cells(found), found.table["best"].tolist(), _links(found, directory), strict=True)),
        "many": len(found.seeds) > 1,
        "repeats": f"{found.repeats}s",
        "spread": _spread(found),
        "cost": _cost(found),
        "barcodes": _barcodes(found),
        "curves": _curves(found),
        "silent": _silent(found),
        "settings": settings_of(directory / "runs" / f"{first[0]}-seed{first[1]}", found.results[first]),
        "settings_of": f"{first[0]}, seed {first[1]}",
        "versions": versions(_version(directory)),
        "data": {"names": [], "labels": [], "pairs": None, "path": None},
    }


def _version(directory: Path) -> str | None:
    table = directory / "table.json"
    found: str | None = read_json(table).get("version") if table.exists() else None
    return found


def _headline(found: Comparison, best: list[str]) -> str:
    if not best:
        return f"{counted(len(found.methods), 'method')} on {found.dataset}."
    value = words.score(float(found.table["test"][best[0]]), found.metric)
    what = "mean test accuracy" if found.metric == "accuracy" else "mean test RMSE"
    if len(found.contestants) == 1:
        return f"{best[0]} comes to a {what} of {value}."
    return f"{best[0]} is the best of {counted(len(found.contestants), 'method')}, with a {what} of {value}."


def _sentence(note: str, methods: Sequence[str]) -> str:
    """Write a footnote as a sentence; names of methods stay as they are.

    >>> _sentence("all others differ", ["cfl"]), _sentence("cfl: 1 of 2 runs failed", ["cfl"])
    ('All others differ.', 'cfl: 1 of 2 runs failed.')
    """
    named = note.startswith(tuple(f"{method}{sign}" for method in methods for sign in " :,"))
    return f"{note if named else note[0].upper() + note[1:]}."


def _links(found: Comparison, directory: Path) -> list[list[tuple[str, str]]]:
    """Return for every method the reports of its runs that are there, by seed."""
    links = []
    for method in found.methods:
        places = ((seed, f"runs/{method}-seed{seed}/report.html") for seed in found.seeds)
        links.append([(f"seed {seed}", place) for seed, place in places if (directory / place).exists()])
    return links


def _spread(found: Comparison) -> dict[str, Any]:
    """Return every device's score by method, as dots along a line with the middle half and the mean."""
    percent = found.metric == "accuracy"
    scores = found.scores.dropna(subset="test")
    axis = Axis.around(scores["test"], percent=percent, words=f"test {found.metric} of each device")
    rows = []
    for method in found.methods:
        points = scores.loc[scores["method"] == method, "test"].to_numpy()
        if not len(points):
            continue
        low, middle, high = np.percentile(points, [25, 50, 75])
        rng = np.random.default_rng(0)
        shown = (
            points if len(points) <= POINTS else np.sort(points)[np.linspace(0, len(points) - 1, POINTS).astype(int)]
        )
        heights = rng.uniform(150, 850, len(shown))
        dots = "".join(f"M{1000 * a:.1f} {h:.0f}h0" for a, h in zip(axis.share(shown), heights, strict=True))
        best = bool(found.table["best"][method])
        numbers = {"low": low, "high": high, "middle": middle, "mean": float(found.table["test"][method])}
        quartiles = {"lower quartile": low, "median": middle, "upper quartile": high}
        said = ", ".join(f"{name} {words.score(v, found.metric)}" for name, v in quartiles.items())
        places = {name: 100 * float(axis.share(value)) for name, value in numbers.items()}
        rows.append({"name": method, "dots": dots, "tone": "g1" if best else "g0", "words": said, **places})
    return {"rows": rows, "axis": axis}


def _cost(found: Comparison) -> dict[str, Any] | None:
    """Return score against floats sent, one dot for each method."""
    table = found.table[found.table["cost_floats"].gt(0) & found.table["test"].notna()]
    if len(table) < 2:
        return None
    x = Axis.around(table["cost_floats"], log=True, words="floats sent (log scale)")
    x = Axis(x.low / 1.6, x.high * 1.6, log=True, words=x.words)
    y = Axis.around(table["test"], margin=0.12, percent=found.metric == "accuracy", words=f"test {found.metric}")
    chart = Chart(
        "Mean test score of each method against floats sent; the table above has the numbers.", x, y, height=320
    )
    spots = [
        Label(100 * float(x.share(row["cost_floats"])), 100 * (1 - float(y.share(row["test"]))), str(method))
        for method, row in table.iterrows()
    ]
    labels = spread_out(spots)
    for spot, label in zip(spots, labels, strict=True):
        if label.y != spot.y:  # from a dot to its name, where that is not beside it
            beside = 10 * label.x + (-12 if label.left else 12)
            d = f"M{10 * spot.x:.1f} {10 * spot.y:.1f}L{beside:.1f} {10 * label.y:.1f}"
            chart.layers.append(Layer("thin", "link", d))
    for _, row in table.iterrows():
        chart.dots([row["cost_floats"]], [row["test"]], "g1" if row["best"] else "g0")
    return {"chart": chart, "labels": labels}


def _silent(found: Comparison) -> list[str]:
    """Return the methods that send nothing: on a logarithmic scale there is no place for them."""
    return [str(method) for method in found.table.index[found.table["cost_floats"].eq(0)]]


def _barcodes(found: Comparison) -> dict[str, Any] | None:
    """Return who is with whom by method, for the first seed that all have: a stripe for each device."""
    grouped = [method for method in found.methods if method in found.grouping]
    seeds = [s for s in found.seeds if all((method, s) in found.results for method in grouped)]
    if not grouped or not seeds:
        return None
    results = {method: found.results[method, seeds[0]] for method in grouped}
    sample = next(iter(results.values()))
    order = _by_truth(sample)
    rows = []
    if sample.profile.truth is not None:
        rows.append(
            {"name": "truth", "stripes": list(_stripes(sample.profile.truth[order])), "words": "the true groups"}
        )
    for method, result in results.items():
        labels = result.labels if sample.profile.truth is None else _matched(result.labels, sample.profile.truth)
        said = counted(result.n_clusters, "group") + ("" if result.ari is None else f", ARI {result.ari:.2f}")
        rows.append({"name": method, "stripes": list(_stripes(labels[order])), "words": said})
    return {"rows": rows, "seed": seeds[0]}


def _by_truth(result: Result) -> Ints:
    labels = result.labels if result.profile.truth is None else result.profile.truth
    return np.argsort(labels, kind="stable") if len(labels) > 1 else by_group(labels, np.empty((0, 4)))


def _matched(labels: Ints, truth: Ints) -> Ints:
    """Number groups as the true group that most of their devices are of, so that colours mean the same."""
    table: Floats = np.zeros((labels.max() + 1, truth.max() + 1))
    np.add.at(table, (labels, truth), 1)
    taken: set[int] = set()
    new = np.zeros(len(table), np.int64)
    spare = truth.max() + 1
    for c in np.argsort(-table.max(axis=1), kind="stable"):
        best = int(table[c].argmax())
        if best in taken:
            best, spare = spare, spare + 1
        taken.add(best)
        new[c] = best
    return new[labels]


def _stripes(labels: Ints) -> Iterator[tuple[float, float, str]]:
    """Yield (start, width, colour) of neighbours with one label, in per cent."""
    edges = [0, *(np.flatnonzero(np.diff(labels)) + 1).tolist(), len(labels)]
    for a, b in pairwise(edges):
        yield round(100 * a / len(labels), 3), round(100 * (b - a) / len(labels), 3), tone(int(labels[a]))


def _curves(found: Comparison) -> Chart | None:
    """Return test score by what was sent so far, one line for each method's first seed."""
    lines = {}
    for (method, _), result in found.results.items():
        history = result.history
        seen = history[history["test"].notna() & history["cost_floats"].gt(0)] if "test" in history else history[:0]
        if method not in lines and len(seen) > 1:
            lines[method] = seen
    if not lines:
        return None
    tests = np.concatenate([h["test"].to_numpy(float) for h in lines.values()])
    costs = np.concatenate([h["cost_floats"].to_numpy(float) for h in lines.values()])
    y = Axis.around(tests, percent=found.metric == "accuracy", words=f"test {found.metric}")
    x = Axis.around(costs, log=True, words="floats sent so far (log scale)")
    chart = Chart("Test score as more is sent, one line for each method", x, y, height=320)
    for place, (method, history) in enumerate(lines.items()):
        again = " second" if place >= len(ON_LIGHT) else ""  # the colours come again: dashed
        chart.line(history["cost_floats"], history["test"], tone(place) + again, method)
    return chart
