"""The page of one run: everything that it shows, taken from the files of its directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedfuse.report import explanations as words
from fedfuse.report.charts import Axis, Chart, compact
from fedfuse.report.distance_frames import PairFrame, most_apart
from fedfuse.report.fusion_chart import LEAVES, FusionPath
from fedfuse.report.palette import tone
from fedfuse.report.settings_table import settings_of, versions
from fedfuse.report.terminal import STAGES
from fedfuse.results.formatting import counted, exposed, refusals, silence
from fedfuse.results.result import Result, mean_score
from fedfuse.results.snapshots import DistanceSnapshot, SnapshotFile
from fedfuse.training.baselines import Baselines
from fedfuse.training.newcomers import noted
from fedfuse.utils.files import read_json
from fedfuse.utils.typing import Floats, Ints

CARDS = 24  # groups with a card of their own
CHIPS = 40  # members that a card shows at once
FEATURES, COLUMNS = 12, 6  # of the table that tells groups apart
NAMED = 8  # groups that a key names
# in files, on the page, in words
STICKS = (("local", "alone", words.ALONE), ("pooled", "one for all", words.POOLED))
NONE = "between"  # the colour of devices in no group
TONES = {"local": "alone", "pooled": "pooled"}


def run_page(directory: Path, note: str = "") -> dict[str, Any]:
    """Return what the template of a run needs; ``note`` says why there are no yardsticks, where there are none."""
    result = Result.load(directory)
    sticks = Baselines.load(directory)
    scores = sticks.scores if sticks else {}
    frames = SnapshotFile(directory).load() or [_as_found(result)]
    pairs = PairFrame.of(frames, result.labels)
    path = FusionPath.of(sticks.alone if sticks else most_apart(frames), result.labels, result.method.get("a"))
    return {
        "title": f"{result.dataset}: {words.title(result.method['method'])}",
        "overline": f"{result.dataset} · {words.title(result.method['method'])} · seed {result.seed}",
        "headline": words.headline(result),
        "supporting": words.supporting(result, scores),
        "tiles": words.tiles(result),
        "grouped": words.finds_groups(result),
        "metric": result.profile.metric,
        "strip": _strip(result),
        "cards": _cards(result, scores),
        "table": _group_table(result, scores),
        "everyone": "all devices" if result.attack is None else "honest devices",
        "missing": note,
        "devices": device_chart(result, scores),
        "rows": _device_rows(result, scores),
        "pairs": pairs,
        "path": path,
        "leaves": _leaves(path, result) if path else [],
        "path_of": "models fitted by every device alone" if sticks else "models before they met",
        "contrasts": _contrasts(result),
        "tuning": _tuning(directory, result.profile.metric),
        **_curves(result),
        "orders": _orders(result),
        "sent": _sent(result),
        "trouble": _trouble(result),
        "newcomers": noted(directory),
        "settings": settings_of(directory, result),
        "versions": versions(read_json(directory / "summary.json").get("version")),
        "data": _data(result, pairs, path, scores),
    }


def _as_found(result: Result) -> DistanceSnapshot:
    fused = result.models[:, result.model.fused] if result.model.d == result.models.shape[1] else result.models
    return DistanceSnapshot.of(result.rounds, fused, result.labels)


def _data(result: Result, pairs: PairFrame, path: FusionPath | None, scores: Mapping[str, Floats]) -> dict[str, Any]:
    """Return what the page's script reads."""
    return {
        "names": list(result.profile.names),
        "labels": result.labels.tolist(),
        "pairs": {**pairs.payload(result.apart), "stages": _stages_at(result, [f.round for f in pairs.frames])},
        "path": None
        if path is None
        else {
            "heights": [float(f"{h:.4g}") for h in path.heights],
            "high": path.x.high,
            "a": path.a,
        },
    }


def _stages_at(result: Result, rounds: list[int]) -> list[str]:
    """Return what the method was at after each of these rounds, in words."""
    stages = result.history.get("stage")
    last = len(result.history)
    named = []
    for k in rounds:
        if k == 0 or k >= last:
            named.append("the start" if k == 0 and last else "the end")
            continue
        stage = None if stages is None else stages.iloc[k - 1]
        named.append(STAGES.get(stage, stage) if isinstance(stage, str) else "")
    return named


def _strip(result: Result) -> list[dict[str, Any]]:
    """Return the groups as pieces of one bar, the largest first; devices of none are the last piece."""
    sizes = np.bincount(result.labels)
    pieces = [{"name": f"group {c}", "tone": tone(int(c)), "size": int(sizes[c])} for c in result.groups]
    none = [{"name": "no group", "tone": NONE, "size": len(result.apart)}] if result.apart.size else []
    return pieces + none


def _members(result: Result, c: int) -> Ints:
    return np.flatnonzero(result.labels == c)


def _means(result: Result, scores: Mapping[str, Floats], inside: Ints) -> list[dict[str, Any]]:
    """Return the mean scores of some devices: with the group's model, alone, and with one model for all."""
    metric = result.profile.metric
    ours = mean_score(result.scores["test"][inside])
    rows: list[dict[str, Any]] = [{"name": "together", "value": ours}]
    for key, name, _ in STICKS:
        if key in scores:
            rows.append({"name": name, "tone": TONES[key], "value": mean_score(scores[key][inside])})
    most = (
        1.0
        if metric == "accuracy"
        else max(
            (float(np.nanmax(s)) for s in (result.scores["test"], *scores.values()) if np.isfinite(s).any()),
            default=1.0,
        )
    )
    for row in rows:
        row["text"] = words.score(row["value"], metric)
        row["share"] = 100 * float(np.clip(row["value"] / (most or 1.0), 0, 1)) if np.isfinite(row["value"]) else 0.0
    return rows


def _cards(result: Result, scores: Mapping[str, Floats]) -> dict[str, Any]:
    """Return a card for each of the larger groups, how many devices are in the others, and who is in none."""
    sizes, order = np.bincount(result.labels), result.groups
    unsure, suspects = set(result.unsure.tolist()), set(result.suspects.tolist())
    cards = []
    for c in order[:CARDS].tolist():
        inside = _members(result, c)
        members = [
            {"name": result.profile.names[i], "unsure": i in unsure, "suspect": i in suspects} for i in inside.tolist()
        ]
        rows = int(result.profile.counts[inside].sum())
        cards.append(
            {
                "number": c,
                "tone": tone(c),
                "size": counted(len(inside), "device"),
                "rows": counted(rows, "row"),
                "scores": _means(result, scores, inside),
                "members": members[:CHIPS],
                "more": members[CHIPS:],
            }
        )
    rest = order[CARDS:]
    apart = [
        {"name": result.profile.names[i], "suspect": i in suspects, "unsure": False} for i in result.apart.tolist()
    ]
    return {"shown": cards, "others": len(rest), "devices": int(sizes[rest].sum()), "apart": apart}


def _group_table(result: Result, scores: Mapping[str, Floats]) -> list[dict[str, Any]]:
    """Return one row of scores per group, and one of all devices."""
    metric, rows = result.profile.metric, []
    parts: list[tuple[int | None, Ints]] = [(int(c), _members(result, int(c))) for c in result.groups[:CARDS]]
    for c, inside in [*parts, (None, result.honest)]:
        ours = mean_score(result.scores["test"][inside])
        others = {n: mean_score(scores[key][inside]) for key, n, _ in STICKS if key in scores}
        rows.append(
            {
                "number": c,
                "tone": "" if c is None else tone(c),
                "size": f"{len(inside):,}",
                "test": words.score(ours, metric),
                "others": [(words.score(v, metric), words.gain(ours, v, metric)) for v in others.values()],
            }
        )
    return rows


def _order(result: Result) -> Ints:
    """Return devices group by group, the largest first, those of none last, and from the worst score to the best."""
    sizes = np.bincount(result.labels)
    none = np.isin(np.arange(len(result.labels)), result.apart)
    return np.lexsort((np.nan_to_num(result.scores["test"]), result.labels, -sizes[result.labels], none))


def device_chart(result: Result, scores: Mapping[str, Floats]) -> Chart:
    """Return the chart of every device's score, with its group's model, alone, and with one model for all."""
    metric, order = result.profile.metric, _order(result)
    ours = result.scores["test"][order]
    others = {n: (w, scores[key][order]) for key, n, w in STICKS if key in scores}
    x, m = np.arange(len(order)), len(order)
    shown = np.concatenate([ours, *(v for _, v in others.values())])
    y = Axis.around(shown, percent=metric == "accuracy", words=f"test {metric}")
    group = "its group's model" if words.finds_groups(result) else "its model"
    text = f"Test {metric} of every device with {group}" + "".join(f", with {w}" for w, _ in others.values())
    chart = Chart(text + ". The table of devices has the numbers.", Axis(-0.7, m - 0.3, words="devices by group"), y)
    chart.height = 340
    if "one for all" in others:
        chart.dots(x, others["one for all"][1], "pooled", words.POOLED)
    if "alone" in others:
        chart.bars(x, others["alone"][1], ours, "link")
        chart.dots(x, others["alone"][1], "alone", words.ALONE)
    labels = result.labels[order]
    shown_as, none = result.groups, np.isin(order, result.apart)
    for c in np.sort(shown_as):
        chart.dots(x[labels == c], ours[labels == c], tone(int(c)), f"group {c}" if len(shown_as) <= NAMED else "")
    if none.any():
        chart.dots(x[none], ours[none], NONE, "in no group")
    series = [{"name": group, "y": _short(ours)}, *({"name": w, "y": _short(v)} for w, v in others.values())]
    chart.readout = {
        "x": x.tolist(),
        "low": chart.x.low,
        "high": chart.x.high,
        "devices": order.tolist(),
        "series": series,
        "percent": metric == "accuracy",
    }
    return chart


def _device_rows(result: Result, scores: Mapping[str, Floats]) -> dict[str, Any]:
    """Return the table of all devices."""
    metric, apart = result.profile.metric, set(result.apart.tolist())
    table = result.devices()
    heads = ["device", "group", "rows", "test"]
    columns: list[tuple[list[str], list[float]]] = [
        (_texts(table["test"], metric), table["test"].tolist()),
    ]
    for key, name, _ in STICKS:
        if key in scores:
            heads.append(name)
            columns.append((_texts(scores[key], metric), scores[key].tolist()))
    for name, head in (("confidence", "confidence"), ("truth", "true group")):
        if name in table:
            heads.append(head)
            shown = [f"{v:.2f}" if name == "confidence" and np.isfinite(v) else f"{v:.0f}" for v in table[name]]
            columns.append((shown, table[name].astype(float).tolist()))
    rows = [
        {
            "name": result.profile.names[i],
            "group": int(result.labels[i]),
            "tone": NONE if i in apart else tone(int(result.labels[i])),
            "rows": int(result.profile.counts[i]),
            "cells": [(text[i], _sortable(numbers[i])) for text, numbers in columns],
        }
        for i in _order(result).tolist()
    ]
    return {"heads": heads, "rows": rows}


def _texts(values: Any, metric: str) -> list[str]:
    return [words.score(float(v), metric) for v in values]


def _sortable(value: float) -> str:
    return f"{value:.6g}" if np.isfinite(value) else ""


def _short(values: Any) -> list[float | None]:
    return [float(f"{v:.5g}") if np.isfinite(v) else None for v in np.asarray(values, float)]


def _leaves(path: FusionPath, result: Result) -> list[tuple[float, str]]:
    if len(path.leaves) > LEAVES:
        return []
    n = len(path.leaves)
    return [(100 * (k + 0.5) / n, result.profile.names[i]) for k, i in enumerate(path.leaves.tolist())]


def _contrasts(result: Result) -> dict[str, Any] | None:
    """Return what tells the groups of a table apart, in its own units."""
    encoder = result.profile.encoder
    if len(result.groups) < 2 or encoder is None or not result.model.convex:
        return None
    contrast = result.contrasts()[:FEATURES]
    classes = [str(c) for c in result.profile.classes]
    if len(classes) > 2:
        most = float(contrast.max()) or 1.0
        rows = [(str(n), [{"text": f"{v:.3g}", "share": 100 * v / most, "tone": "g0"}]) for n, v in contrast.items()]
        what = "root mean square difference of coefficients between groups, per standard deviation of the feature"
        return {"what": what, "heads": ["difference"], "rows": rows, "signed": False}
    what = f"log-odds of {classes[1]} against {classes[0]}" if classes else encoder.target
    return {
        **_effects(result, contrast),
        "what": f"change of {what} per unit of the feature (bars: per standard deviation)",
    }


def _effects(result: Result, contrast: pd.Series[float]) -> dict[str, Any]:
    """Return one bar for each feature and group, to the left or right of zero.

    Numbers are in the units of the table. Bars are per standard deviation of the feature, so that they can be compared.
    """
    p = len(result.profile.features)
    shown = result.groups[:COLUMNS].tolist()
    plain = _slopes(result.coefficients().to_numpy()[:, :-1].reshape(result.n_clusters, -1, p))
    scaled = _slopes(np.stack([result.model.coefficients(w.astype(float))[:, :-1] for w in result.cluster_models]))
    columns = [list(result.profile.features).index(name) for name in contrast.index]
    most = float(np.abs(scaled[np.ix_(shown, columns)]).max()) or 1.0
    rows = []
    for name, j in zip(contrast.index, columns, strict=True):
        cells = [
            {
                "text": f"{plain[c, j]:+.3g}".replace("-", words.MINUS),
                "share": 50 * abs(scaled[c, j]) / most,
                "left": scaled[c, j] < 0,
                "tone": tone(c),
            }
            for c in shown
        ]
        rows.append((str(name), cells))
    return {"heads": [f"group {c}" for c in shown], "rows": rows, "signed": True}


def _slopes(table: Floats) -> Floats:
    """Return groups x features: slopes, or for two classes those of the log-odds of the second."""
    return np.asarray(table[:, 0] if table.shape[1] == 1 else table[:, 1] - table[:, 0])


def _tuning(directory: Path, metric: str) -> dict[str, Any] | None:
    """Return what every candidate of a tuning came to."""
    if not (directory / "tuning.csv").exists():
        return None
    table = pd.read_csv(directory / "tuning.csv")
    known = {"rounds", "seconds", "cost_floats", "n_clusters", "validation", "chosen"}
    settings = [name for name in table.columns if name not in known]
    heads = ["lambda" if name == "lam" else name for name in settings]
    heads += ["rounds", "floats sent", "groups", f"validation {metric}"]
    rows = []
    for row in table.to_dict("records"):
        groups = row.get("n_clusters", np.nan)
        cells = [f"{row[name]:g}" for name in settings] + [f"{row['rounds']:,}", compact(row["cost_floats"])]
        cells += [words.NOTHING if pd.isna(groups) else f"{groups:.0f}", words.score(row["validation"], metric)]
        rows.append({"cells": cells, "chosen": bool(row["chosen"])})
    return {"heads": heads, "rows": rows}


def _curves(result: Result) -> dict[str, Any]:
    """Return the charts of training: scores, groups, what still moves, and what was sent."""
    history = result.history
    return {
        "curves": [chart for chart in (_score_curve(result), _group_curve(history), _moving_curve(history)) if chart],
        "stages": _stage_ribbon(history),
        "communication": _cost_curve(history),
    }


def _evaluated(history: pd.DataFrame) -> pd.DataFrame:
    known = history["n_clusters"].notna() if "n_clusters" in history else pd.Series(False, index=history.index)
    seen: pd.DataFrame = history[known]
    return seen


def _rounds_axis(history: pd.DataFrame) -> Axis:
    return Axis(0, max(float(history["round"].max()) + 1, 1.0), words="round")


def _score_curve(result: Result) -> Chart | None:
    seen, metric = _evaluated(result.history), result.profile.metric
    parts = [part for part in ("validation", "test") if part in seen and seen[part].notna().any()]
    if len(seen) < 2 or not parts:
        return None
    y = Axis.around(seen[parts].to_numpy(float), percent=metric == "accuracy", words=metric)
    last = ", ".join(f"{part} {words.score(seen[part].dropna().iloc[-1], metric)}" for part in parts)
    chart = Chart(f"{metric} by round, at the end: {last}".capitalize(), _rounds_axis(result.history), y)
    for part, colour in zip(parts, ("g0", "g1"), strict=False):
        chart.line(seen["round"] + 1, seen[part], colour, f"{part} {metric}")
    return _read_by_round(chart, seen, {f"{part} {metric}": part for part in parts}, metric == "accuracy")


def _group_curve(history: pd.DataFrame) -> Chart | None:
    seen = _evaluated(history)
    if len(seen) < 2:
        return None
    y = Axis.around([0, *seen["n_clusters"]], whole=True, words="groups")
    last = f"{seen['n_clusters'].iloc[-1]:.0f}"
    chart = Chart(f"Number of groups by round, at the end {last}", _rounds_axis(history), y, height=150)
    chart.step(seen["round"] + 1, seen["n_clusters"], "g2", "groups")
    return _read_by_round(chart, seen, {"groups": "n_clusters"})


def _moving_curve(history: pd.DataFrame) -> Chart | None:
    moved = history["moved"].astype(float)
    seen = history[moved.gt(0)]
    if len(seen) < 2:
        return None
    y = Axis.around(seen["moved"], log=True, words="change")
    text = "How far models moved in a round, relative to their length, on a logarithmic scale"
    chart = Chart(text, _rounds_axis(history), y, height=150)
    seen = _thinned(seen)
    chart.line(seen["round"] + 1, seen["moved"], "g3", "change of models in a round")
    return _read_by_round(chart, seen, {"change of models": "moved"})


def _cost_curve(history: pd.DataFrame) -> Chart | None:
    if len(history) < 2:
        return None
    y = Axis(0, 1.05 * float(history["cost_floats"].iloc[-1]) or 1.0, words="floats sent")
    text = f"Floats sent so far by round, at the end {history['cost_floats'].iloc[-1]:,.0f}"
    chart = Chart(text, _rounds_axis(history), y, height=200)
    seen = _thinned(history)
    chart.area(seen["round"] + 1, seen["cost_floats"], "g0", "floats sent so far")
    return _read_by_round(chart, seen, {"floats sent so far": "cost_floats"})


def _thinned(table: pd.DataFrame, most: int = 600) -> pd.DataFrame:
    """Return rows that a screen can show."""
    if len(table) <= most:
        return table
    shown: pd.DataFrame = table.iloc[np.unique(np.linspace(0, len(table) - 1, most).round().astype(int))]
    return shown


def _read_by_round(chart: Chart, seen: pd.DataFrame, columns: dict[str, str], percent: bool = False) -> Chart:
    chart.readout = {
        "x": (seen["round"] + 1).astype(int).tolist(),
        "low": chart.x.low,
        "high": chart.x.high,
        "series": [{"name": name, "y": _short(seen[column])} for name, column in columns.items()],
        "percent": percent,
    }
    return chart


def _stage_ribbon(history: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the stages of a method that has some, with their share of the rounds."""
    if "stage" not in history or len(history) < 2:
        return []
    names = history["stage"].map(lambda s: STAGES.get(s, s) if isinstance(s, str) else "training")
    runs = (names != names.shift()).cumsum()
    pieces = [(str(part.iloc[0]), len(part)) for _, part in names.groupby(runs)]
    return [{"words": words, "share": 100 * n / len(names), "rounds": n} for words, n in pieces if words != "done"]


def _orders(result: Result) -> list[dict[str, Any]]:
    """Return what became of the orders, as pieces of a bar."""
    sent = result.orders.get("sent", 0)
    kinds = (("used", "g2"), ("refused", "g1"), ("unanswered", "g4"))
    pieces = [(name, result.orders.get(name, 0), colour) for name, colour in kinds]
    return [{"name": n, "count": k, "share": 100 * k / sent, "tone": c} for n, k, c in pieces if k and sent]


def _sent(result: Result) -> list[tuple[str, str]]:
    m, total = len(result.labels), result.cost_floats
    rows = [("floats in both directions", f"{total:,}"), ("per device", compact(total / m))]
    rows.append(("size of one model", counted(result.models.shape[1], "float")))
    rows.append(("as models per device", f"{total / m / max(result.models.shape[1], 1):,.1f}"))
    rows += [(f"refused: {reason}", f"{n:,}") for reason, n in refusals(result)]
    return rows


def _trouble(result: Result) -> dict[str, Any]:
    """Return who seems to lie, who was never heard, and whose place is uncertain."""
    names = result.profile.names
    unsure = [
        (names[i], int(result.labels[i]), f"{result.confidence[i]:.2f}")  # type: ignore[index]
        for i in sorted(result.unsure.tolist(), key=lambda i: result.confidence[i])  # type: ignore[index]
    ]
    attack = None
    if result.attack is not None:
        parts = [f"{len(result.attack['who'])} devices were made to lie ({result.attack['attack']})"]
        attack = "; ".join([*parts, *([told] if (told := exposed(result)) else [])]) + "."
    unheard = [names[i] for i in result.unheard]
    return {
        "suspects": [names[i] for i in result.suspects],
        "unsure": unsure,
        "attack": attack,
        "unheard": unheard,
        "silence": silence(result) if unheard else "",
    }
