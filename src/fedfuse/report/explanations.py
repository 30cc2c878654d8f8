"""What was found, in words and numbers that a person reads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedfuse.methods.registry import METHODS
from fedfuse.report.charts import compact
from fedfuse.results.formatting import counted, cut_short, exposed, silence
from fedfuse.results.result import Result, mean_score
from fedfuse.utils.typing import Floats

MINUS, NOTHING = "\N{MINUS SIGN}", "\N{EN DASH}"
ALONE, POOLED = "every device alone", "one model for all"
TITLES = {"fpfc": "FPFC", "fpfc-l1": "FPFC-l1", "local": "LOCAL", "fedavg": "FedAvg", "lg-fedavg": "LG-FedAvg"}
TITLES |= {"per-fedavg": "Per-FedAvg", "ifca": "IFCA", "cfl": "CFL", "pacfl": "PACFL", "fedasync": "FedAsync"}


def title(method: str) -> str:
    """Return how a method is written."""
    return TITLES.get(method, method)


def score(value: float | None, metric: str) -> str:
    """Write an accuracy in per cent, an RMSE with four digits.

    >>> score(0.9166, "accuracy"), score(4.0891, "rmse"), score(float("nan"), "rmse")
    ('91.7 %', '4.089', '–')
    """
    if value is None or not np.isfinite(value):
        return NOTHING
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.4g}"


def gain(ours: float, theirs: float, metric: str) -> str:
    """Write how much better a score is than another.

    >>> gain(0.917, 0.842, "accuracy"), gain(4.0, 5.0, "rmse"), gain(0.5, 0.6, "accuracy")
    ('+7.5 points', '−20 %', '−10.0 points')
    """
    if not np.isfinite([ours, theirs]).all() or (metric != "accuracy" and not theirs):
        return NOTHING
    change = 100 * (ours - theirs) if metric == "accuracy" else 100 * (ours / theirs - 1)
    text = f"{abs(change):.1f} points" if metric == "accuracy" else f"{abs(change):.2g} %"
    return (MINUS if change < 0 else "+") + text


def finds_groups(result: Result) -> bool:
    """Whether the run's method looks for groups at all."""
    method = METHODS.get(result.method["method"])
    return method is None or method.finds_groups


def headline(result: Result) -> str:
    """Say what was found in one sentence."""
    m, n, apart = len(result.profile.names), result.n_clusters, len(result.apart)
    devices = counted(m, "device")
    if not finds_groups(result):
        return f"{title(result.method['method'])} trained {devices} without looking for groups."
    if not len(result.groups):
        return f"Nothing can be said of {devices}: each seems to lie or never answered in time."
    if n == 1:
        return f"All {devices} belong together and share one model." if m > 1 else "There is but one device."
    if n == m:
        return f"No two of {devices} share a model: each has its own."
    if apart:
        others = f"{counted(apart, 'device')} {'is' if apart == 1 else 'are'} in none"
        return f"{counted(m - apart, 'device')} form {counted(len(result.groups), 'group')}, and {others}."
    single = int((np.bincount(result.labels) == 1).sum())
    if single and n - single:
        return f"{devices} form {counted(n - single, 'group')}, and {counted(single, 'device')} " + (
            "stands alone." if single == 1 else "stand alone."
        )
    return f"{devices} form {counted(n, 'group')}, with one model each."


def supporting(result: Result, sticks: Mapping[str, Floats]) -> list[str]:
    """Say how good that is, and how sure."""
    metric, test = result.profile.metric, result.score("test")
    what = "is right on {} of a device's test rows" if metric == "accuracy" else "has a test RMSE of {}"
    model = (
        "One model per group" if finds_groups(result) and 1 < result.n_clusters < len(result.labels) else "The model"
    )
    who = "" if result.attack is None else f" over the {counted(len(result.honest), 'honest device')}"
    words = f"{model} {what.format(score(test, metric))} on average{who}"
    against = [
        f"{score(mean_score(sticks[name][result.honest]), metric)} with {text}"
        for name, text in (("local", ALONE), ("pooled", POOLED))
        if name in sticks
    ]
    lines = [words + (f", against {' and '.join(against)}." if against else ".")]
    if result.ari is not None and finds_groups(result):
        right = "The groups are exactly the true ones" if result.ari == 1 else "The true groups are known"
        lines.append(f"{right} (adjusted Rand index {result.ari:.2f}).")
    if result.uncertain:
        lines.append(f"The grouping is uncertain: stability is {result.stability:.2f} (1 is sure).")
    if result.suspects.size:
        lie = f"{counted(result.suspects.size, 'device')} {'seems' if result.suspects.size == 1 else 'seem'} to lie"
        told = exposed(result)
        lines.append(f"{lie} ({told})." if told else f"{lie}.")
    if result.cut_short:
        lines.append(f"{title(result.method['method'])} {cut_short(result.rounds)}.")
    if result.unheard.size:
        lines.append(f"{silence(result)}.")
    return lines


def tiles(result: Result) -> list[tuple[str, str, str]]:
    """Return the run in a few numbers: name, number, and what it means."""
    metric = "test accuracy" if result.profile.metric == "accuracy" else "test RMSE"
    rounds = f"{result.rounds:,}"
    found = [
        ("groups", f"{len(result.groups):,}", _among(result)),
        (metric, score(result.score("test"), result.profile.metric), "mean over " + _whom(result)),
    ]
    if result.ari is not None:
        found.append(("ARI", f"{result.ari:.3f}", "agreement with the truth, 1 is perfect"))
    if result.stability is not None:
        found.append(("stability", f"{result.stability:.2f}", "how sure the grouping is (0 to 1)"))
    if result.lam is not None:
        found.append(("lambda", f"{result.lam:.3g}", "strength of the penalty"))
    how = "converged" if result.converged else "limit reached, not converged"
    found.append(("rounds", rounds, how))
    sent = f"{_bytes(4 * result.cost_floats)} in single precision"
    found.append(("floats sent", compact(result.cost_floats), sent))
    found.append(("time", f"{result.seconds:,.1f} s", "of training"))
    return found


def _among(result: Result) -> str:
    whole = counted(len(result.labels) - len(result.apart), "device")
    return f"among {whole}" + (f"; {len(result.apart):,} in none" if result.apart.size else "")


def _whom(result: Result) -> str:
    return "devices" if result.attack is None else "honest devices"


def _bytes(n: int) -> str:
    """Write a number of bytes.

    >>> _bytes(812), _bytes(42_836), _bytes(47_019_340), _bytes(1_669_000_000)
    ('812 B', '42.8 kB', '47 MB', '1.67 GB')
    """
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n} B"
