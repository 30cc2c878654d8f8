"""Content of the page of one run, taken from the files of its directory."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedfuse._version import __version__
from fedfuse.core.metrics import METRICS, metric_for
from fedfuse.report import explanations as words
from fedfuse.report.charts import Axis, Chart
from fedfuse.report.distance_charts import DendrogramChart, PairFrame, most_apart, snapshot_of
from fedfuse.report.palette import tone
from fedfuse.results.formatting import NOTHING, exposed, refusals, score
from fedfuse.results.result import Result, mean_score
from fedfuse.results.run_directory import RunDirectory
from fedfuse.results.snapshots import SnapshotFile, thinned
from fedfuse.training.evaluation import Baselines
from fedfuse.training.newcomers import noted
from fedfuse.utils.files import read_json
from fedfuse.utils.typing import Floats, Ints

MAX_CARDS, MAX_FEATURES, MAX_COLUMNS = 24, 12, 6
# Names that have room beside the leaves of a dendrogram, and groups that have room in the key of a chart.
MAX_LEAVES, MAX_KEYS = 40, 12
MAX_POINTS = 600
# Entries of a run's configuration that are no settings, and those that say nothing where nobody is made to lie.
HIDDEN_SETTINGS, ATTACK_SETTINGS = {"version", "fingerprint", "tensors"}, {"attack", "liars", "lies", "scope"}


def run_page(directory: Path, baselines: Baselines | None = None, note: str = "") -> dict[str, Any]:
    """Return what the template of a run needs; ``note`` says why there are no baselines, where there are none."""
    result = Result.load(directory)
    known = baselines.scores if baselines else {}
    noun, scores = words.noun_of(result.profile), device_scores(result, known)
    compared = words.compared_scores(result, known)
    frames = SnapshotFile(directory).load() or [snapshot_of(result)]
    pairs = PairFrame.of(frames, result.labels)
    tree = DendrogramChart.of(baselines.alone if baselines else most_apart(frames), result.group_numbers)
    dataset, title = Path(result.dataset).name, words.title(result.method["method"])
    return {
        "title": f"{dataset}: {title}",
        "overline": f"{dataset} · {title} · seed {result.seed}",
        "supporting": words.supporting(result, known),
        "noun": noun,
        "grouped": words.finds_groups(result),
        "metric": result.profile.metric,
        **_groups(result, compared),
        "used": words.used(result, compared),
        "missing": note,
        "devices": device_chart(result, scores) if scores else None,
        "order": device_order(result).tolist(),
        "columns": _device_columns(result, scores),
        "pairs": pairs,
        "tree": tree,
        "leaves": words.device_names(result, tree.leaves) if tree and len(tree.leaves) <= MAX_LEAVES else [],
        "tree_of": f"the separate models per {noun.one}" if baselines else "models before they were merged",
        "contrasts": words.ContrastTable.of(result, MAX_FEATURES, MAX_COLUMNS),
        "intervals": None if result.intervals is None else _intervals(result.intervals),
        "tuning": _tuning(result),
        "curves": training_charts(to_the_end(result), result.profile.metric),
        "communication": cost_chart(result.history),
        "refusals": refusals(result),
        "doubts": _doubts(result),
        "result": result,
        "exposed": exposed(result),
        "newcomers": [{**new, "group": result.cluster_numbers.get(new["cluster"], 0)} for new in noted(directory)],
        "settings": settings_of(directory, result),
        "versions": versions(read_json(directory / "summary.json").get("version")),
        "data": {  # What the page's script reads.
            "names": [noun.named(name) for name in result.profile.names],
            "groups": result.group_numbers.tolist(),
            "pairs": {**pairs.payload(result.apart), "stages": _stages_at(result, [f.round for f in pairs.frames])},
        },
    }


def device_scores(result: Result, known: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the test scores of all devices, by kind of model."""
    metric, scores = METRICS[result.profile.metric], words.compared_scores(result, known)
    return {kind: s if s.ndim == 1 else metric.by_device(s) for kind, s in scores.items()}


def _stages_at(result: Result, rounds: Sequence[int]) -> list[str]:
    """Return what the method did in each of these rounds, in words."""
    last = len(result.history)
    stages = result.history.get("stage", pd.Series([""] * last)).fillna("").tolist()
    names = [*(["the start"] if last else []), *stages[: last - 1], "the end"]
    return [names[min(k, last)] for k in rounds]


def _groups(result: Result, scores: Mapping[str, Floats]) -> dict[str, Any]:
    """Return the larger groups, all (honest) devices together, and the devices in no group."""
    numbers, sizes = result.group_numbers, np.bincount(result.group_numbers, minlength=1).tolist()
    shown = [_group(result, scores, g, np.flatnonzero(numbers == g)) for g in range(1, len(sizes))]
    largest = max((s for group in shown for s in group["means"].values() if np.isfinite(s)), default=1.0)
    return {
        "groups": shown[:MAX_CARDS],
        # The pieces of one bar, the largest first; devices in no group are the last piece.
        "strip": [*enumerate(sizes[1:], 1), *([(0, sizes[0])] if sizes[0] else [])],
        "full_bar": 1.0 if METRICS[result.profile.metric].greater_is_better else largest or 1.0,
        "total": _group(result, scores, 0, result.scored),
        "others": len(shown[MAX_CARDS:]),
        "others_size": sum(sizes[MAX_CARDS + 1 :]),
        "apart": _members(result, result.apart),
    }


def _group(result: Result, scores: Mapping[str, Floats], number: int, inside: Ints) -> dict[str, Any]:
    """Return a group with its members and mean scores: with its model, alone, and with one model for all."""
    return {
        "number": number,
        "size": len(inside),
        "rows": int(result.profile.counts[inside].sum()),
        "members": _members(result, inside),
        "means": {name: mean_score(values[inside], result.profile.metric) for name, values in scores.items()},
    }


def _members(result: Result, inside: Ints) -> list[dict[str, str]]:
    notes = dict.fromkeys(result.suspects.tolist(), "implausible")
    if 2 * len(result.unsure) < len(result.labels):  # Else the mark would tell no device from the others.
        notes = dict.fromkeys(result.unsure.tolist(), "unsure") | notes
    return [{"name": result.profile.names[i], "note": notes.get(i, "")} for i in inside.tolist()]


def device_order(result: Result) -> Ints:
    """Return devices group by group, the largest first, those of none last, and from the lowest score to the best."""
    numbers = result.group_numbers
    return np.lexsort((np.nan_to_num(result.scores["test"]), numbers, numbers == 0))


def device_chart(result: Result, scores: Mapping[str, Floats]) -> Chart:
    """Return the chart of every device's score, with its group's model, alone, and with one model for all."""
    noun, metric, order = words.noun_of(result.profile), words.metric_name(result.profile.metric), device_order(result)
    group = "its group's model" if words.finds_groups(result) else "its model"
    names = {**words.kinds_of_models(noun), "groups": group}
    shown = {names[key]: values[order] for key, values in scores.items()}
    x, numbers, ours = np.arange(len(order)), result.group_numbers[order], result.scores["test"][order]
    y = Axis.around(
        np.concatenate([[], *shown.values()]), percent=words.in_percent(result.profile.metric), words=f"test {metric}"
    )
    text = f"Test {metric} of every {noun.one}: {', '.join(shown)}. The table has the figures."
    chart = Chart(text, Axis(-0.7, len(x) - 0.3, words=f"{noun.many} by group"), y, height=340)
    if words.POOLED in shown:
        chart.add("dots", x, shown[words.POOLED], "pooled", words.POOLED)
    if names["alone"] in shown:
        chart.add("bars", x, ours, "link", low=shown[names["alone"]])
        chart.add("dots", x, shown[names["alone"]], "alone", names["alone"])
    for g in [*range(1, len(result.groups) + 1), *([0] if result.apart.size else [])]:
        name = "" if len(result.groups) > MAX_KEYS else f"group {g}" if g else "in no group"
        chart.add("dots", x[numbers == g], ours[numbers == g], tone(g), name)
    chart.read_off(x, shown, devices=order.tolist())
    return chart


def _device_columns(result: Result, scores: Mapping[str, Floats]) -> dict[str, list[tuple[str, str]]]:
    """Return columns of the table of all devices: for each device what is written, and what it is sorted by."""
    table, metric = result.devices(), result.profile.metric
    values = {"test" if kind == "groups" else words.SHORT[kind]: known for kind, known in scores.items()}
    written = {name: [score(v, metric) for v in known] for name, known in values.items()}
    for name, head, form in (("confidence", "confidence", ".2f"), ("truth", "true group", ".0f")):
        if name in table:
            values[head] = table[name].to_numpy(float)
            written[head] = [f"{v:{form}}" if np.isfinite(v) else NOTHING for v in values[head]]
    sortable = {name: [f"{v:.6g}" if np.isfinite(v) else "" for v in known] for name, known in values.items()}
    return {name: list(zip(cells, sortable[name], strict=True)) for name, cells in written.items()}


def _tuning(result: Result) -> dict[str, Any] | None:
    """Return the lambdas that were tried with their scores."""
    table = words.tried_lambdas(result)
    if table is None:
        return None
    heads, rows = words.lambda_table(table, metric_for(result.profile.goal).name)
    return {"heads": heads, "rows": zip(rows, table["chosen"], strict=True)}


def _intervals(table: pd.DataFrame) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the coefficients of the larger groups by output and feature."""
    shown = table.query("against == 0 and group <= @MAX_COLUMNS").groupby(["output", "feature"], sort=False)
    return {names: rows.to_dict("records") for names, rows in shown}


def to_the_end(result: Result) -> pd.DataFrame:
    """Return the history with what the run ended with in its last row: rounds are not all evaluated."""
    history: pd.DataFrame = result.history.copy()
    ends = {**{part: result.score(part) for part in result.scores}, "n_clusters": result.n_clusters}
    ends = {name: value for name, value in ends.items() if name in history}
    history.loc[history.index[-1:], list(ends)] = list(ends.values())
    return history


def training_charts(history: pd.DataFrame, metric: str) -> list[Chart]:
    """Return the charts of training: scores, groups, and how far models still move."""
    percent, metric = words.in_percent(metric), words.metric_name(metric)
    seen = history[history["n_clusters"].notna()] if "n_clusters" in history else history[:0]
    parts = [part for part in ("validation", "test") if part in seen and seen[part].notna().any()]
    moving = history[history["moved"].astype(float).gt(0)]
    scores = Axis.around(seen[parts].to_numpy(float), percent=percent, words=metric)
    groups = Axis.around([0, *(seen["n_clusters"] if len(seen) else ())], whole=True, words="groups")
    change = "how far models moved in a round, relative to their length (log scale)"
    charts = [
        _round_chart(history, seen, {f"{part} {metric}": part for part in parts}, scores, height=240),
        _round_chart(history, seen, {"number of groups": "n_clusters"}, groups, "step", 2),
        _round_chart(history, moving, {change: "moved"}, Axis.around(moving["moved"], log=True), tone=3),
    ]
    return [chart for chart in charts if chart]


def cost_chart(history: pd.DataFrame) -> Chart | None:
    """Return the chart of the numbers sent so far."""
    y = Axis(0, 1.05 * float(history["cost_floats"].iloc[-1]) or 1.0)
    return _round_chart(history, history, {"numbers sent so far": "cost_floats"}, y, height=200)


def _round_chart(
    history: pd.DataFrame,
    seen: pd.DataFrame,
    columns: Mapping[str, str],
    y: Axis,
    kind: str = "line",
    tone: int = 0,
    height: int = 150,
) -> Chart | None:
    """Return a chart of some columns by round; None where there are too few rounds to draw."""
    if len(seen) < 2 or not columns:
        return None
    seen = seen.iloc[thinned(len(seen), MAX_POINTS)]
    rounds = (seen["round"] + 1).astype(int)
    last = ", ".join(f"{name} {y.say(seen[column].dropna().iloc[-1])}" for name, column in columns.items())
    x = Axis(0, float(history["round"].max()) + 1, whole=True, words="round")
    chart = Chart(f"By round; at the end: {last}.", x, y, height=height)
    for place, (name, column) in enumerate(columns.items(), tone):
        chart.add(kind, rounds, seen[column], f"g{place}", name)
    chart.read_off(rounds, {name: seen[column] for name, column in columns.items()})
    return chart


def _doubts(result: Result) -> list[dict[str, Any]]:
    """Return the devices that fit two groups about equally well, the least sure first."""
    sure = np.ones(len(result.labels)) if result.confidence is None else result.confidence
    doubtful = sorted(result.unsure.tolist(), key=lambda i: sure[i])
    numbers, names = result.group_numbers, result.profile.names
    return [{"name": names[i], "note": f"group {numbers[i]}, {sure[i]:.2f}"} for i in doubtful]


def settings_of(directory: Path, result: Result) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the settings of a run in groups of (name, value)."""
    config = RunDirectory(directory).config() if (directory / "config.json").exists() else {}
    run = dict(config.get("settings") or {"seed": result.seed})
    if run.get("attack") is None:
        run = {key: value for key, value in run.items() if key not in ATTACK_SETTINGS}
    model = config.get("model") or result.model.to_config()
    parts = {
        "method": config.get("method") or result.method,
        "run": run,
        "model": {"name": model} if isinstance(model, str) else model,
        "data": {"dataset": result.dataset, **(config.get("source") or {})},
        "chosen on validation rows": result.chosen,
        "engine": config.get("engine"),
    }
    return [(name, list(_flat(values))) for name, values in parts.items() if values]


def versions(of_run: str | None) -> list[tuple[str, str]]:
    """Return the versions of fedfuse when the run was made, and of what makes this page."""
    found = [("fedfuse, of the run", of_run or "unknown"), ("fedfuse, of this page", __version__)]
    return [*found, ("Python", platform.python_version()), ("NumPy", np.__version__)]


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield what was set, with dots between the names of nested parts."""
    for key, value in values.items():
        if key in HIDDEN_SETTINGS or value is None:
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else _plain(value)
            yield prefix + str(key), text if len(text) <= 200 else text[:199] + "…"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
