"""Sentences, names and numbers on the outcome of a run that terminal and pages have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from fedfuse.core.metrics import METRICS
from fedfuse.grouping.lambda_path import FINAL_STAGE
from fedfuse.methods.registry import METHODS
from fedfuse.results.formatting import NOTHING, compact, counted, cut_short, data_size, exposed, score
from fedfuse.results.intervals import AVERAGE_INTERCEPT, feature_tests
from fedfuse.results.profile import Profile
from fedfuse.results.result import MIN_CONFIDENCE, Result, mean_score
from fedfuse.utils.typing import Floats, Ints

MINUS = "\N{MINUS SIGN}"
POOLED = "one model for all"
UNTESTED = "There are no test rows."
TESTS = "p: probability of such a large difference between two groups by chance (Holm-corrected)"
DETECTABLE = "detectable: the difference found with 80 % power"
ONE_GROUP = "one group is also one model for all: it stops early by validation rows, the other has a fixed ridge"
# What columns of scores are called, by the words of a verdict.
SHORT = {"groups": "together", "personal": "personal", "alone": "alone", "pooled": "one for all"}
# Mean scores that differ by less are called about equal: a share of the RMSE, or of all rows.
TIE_RATIO, TIE_ACCURACY = 0.01, 0.005

TITLES = {"fpfc": "FPFC", "fpfc-l1": "FPFC-l1", "fusion-tree": "fusion tree", "local": "LOCAL", "fedavg": "FedAvg"}
TITLES |= {"lg-fedavg": "LG-FedAvg", "per-fedavg": "Per-FedAvg", "ifca": "IFCA", "cfl": "CFL", "pacfl": "PACFL"}
TITLES |= {"fedasync": "FedAsync"}


@dataclass(frozen=True)
class Noun:
    """What the data calls a device: ``Noun("school", "schools")``."""

    one: str
    many: str

    def count(self, n: int) -> str:
        """Write how many there are.

        >>> Noun("city", "cities").count(1200)
        '1,200 cities'
        """
        return f"{n:,} {self.one if n == 1 else self.many}"

    def named(self, name: str) -> str:
        """Write a device's name, after the noun where it is a bare number.

        >>> Noun("school", "schools").named("17"), Noun("store", "stores").named("Main Street")
        ('school 17', 'Main Street')
        """
        return f"{self.one} {name}" if re.fullmatch(r"[\d.]+", name) else name


DEVICE = Noun("device", "devices")


def noun_of(profile: Profile) -> Noun:
    """Return what a table's device column is called, where that is a word; else "device"."""
    return DEVICE if profile.encoder is None else noun_from(profile.encoder.device)


def noun_from(column: str) -> Noun:
    """Return the noun in a column's name, or "device" where there is none.

    >>> [noun_from(c).many for c in ("School", "hospital_id", "sites", "City", "nr", "branch", "campus")]
    ['schools', 'hospitals', 'sites', 'cities', 'devices', 'branches', 'campuses']
    """
    word = re.sub(r"([a-z])([A-Z])", r"\1 \2", column).replace("_", " ").replace("-", " ").lower().strip()
    word = re.sub(r" (id|no|nr|num|number|code|name|key)$", "", word)
    if not re.fullmatch(r"[^\W\d]{3,}( [^\W\d]+){0,2}", word) or len(word) > 24:
        return DEVICE
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return Noun(re.sub("ies$", "y", word) if word.endswith("ies") else word[:-1], word)
    if re.search("[^aeiou]y$", word):
        return Noun(word, word[:-1] + "ies")
    return Noun(word, word + ("es" if word.endswith(("s", "x", "ch", "sh")) else "s"))


def title(method: str) -> str:
    """Return how a method is written."""
    return TITLES.get(method, method)


def metric_name(metric: str) -> str:
    """Return how a metric is written: accuracy, RMSE."""
    return METRICS[metric].label if metric in METRICS else metric


def in_percent(metric: str) -> bool:
    """Whether a metric is written in per cent."""
    return metric in METRICS and METRICS[metric].percent


def gain(ours: float, theirs: float, metric: str) -> str:
    """Write how much larger a score is than another: in points where large is good, else relative to the other.

    >>> gain(0.917, 0.842, "accuracy"), gain(4.0, 5.0, "rmse"), gain(0.63, 0.3, "rmse"), gain(0.88, 0.8, "auc")
    ('+7.5 points', '−20 %', '+110 %', '+0.080')
    """
    relative = not METRICS[metric].greater_is_better
    if not np.isfinite([ours, theirs]).all() or (relative and not theirs):
        return NOTHING
    change = 100 * (ours / theirs - 1) if relative else ours - theirs
    text = f"{abs(change):.{0 if abs(change) >= 10 else 1}f} %" if relative else f"{abs(change):.3f}"
    text = f"{abs(100 * change):.1f} points" if in_percent(metric) else text
    return (MINUS if change < 0 else "+") + text


def finds_groups(result: Result) -> bool:
    """Whether the run's method looks for groups at all."""
    method = METHODS.get(result.method["method"])
    return method is None or method.finds_groups


def headline(result: Result) -> str:
    """Say what was found in one sentence."""
    m, n, apart, noun = len(result.labels), result.n_clusters, len(result.apart), noun_of(result.profile)
    devices = noun.count(m)
    if not finds_groups(result):
        return f"{title(result.method['method'])} trained {devices} without looking for groups."
    if not len(result.groups):
        return f"No groups were found: all {devices} gave implausible replies or never answered in time."
    if m == 1:
        return f"There is only one {noun.one}."
    own = {
        "personal": "a personal model, shrunk towards the others",
        "alone": "a separate model from its own rows",
    }
    if result.verdict in own and (n == 1 or result.uncertain):
        return f"Each of the {devices} has {own[result.verdict]}."
    if n == 1:
        return f"All {devices} form one group and share a model."
    if n == m:
        return f"No two of the {devices} share a model."
    if apart:
        rest = f"{apart:,} {'belongs' if apart == 1 else 'belong'} to none"
        return f"{noun.count(m - apart)} form {counted(len(result.groups), 'group')}; {rest}."
    if single := int((np.bincount(result.labels) == 1).sum()):
        return f"{devices} form {counted(n, 'group')}, {single:,} of them with a single {noun.one}."
    if result.verdict in own:
        return f"{devices} form {counted(n, 'group')}; each {noun.one} has {own[result.verdict]}."
    return f"{devices} form {counted(n, 'group')}, each with its own model."


def supporting(result: Result, baselines: Mapping[str, Floats]) -> list[str]:
    """Say which model predicts best, how sure the groups are, and what went wrong."""
    lines = [verdict(result, baselines)]
    if result.ari is not None and finds_groups(result):
        right = "" if result.ari == 1 else "not "
        lines.append(f"The groups are {right}exactly the true ones (adjusted Rand index {result.ari:.2f}).")
    if "gap" in result.kept:
        lines += gap_sentence(*result.kept["gap"].tolist())
    if result.certificate is not None:
        lines.append(result.certificate.sentence(result.lam))
    return lines + [f"{warning}." for warning in warnings(result)]


def gap_sentence(below: float, above: float) -> list[str]:
    """Say where the lengths of theta told groups apart; nothing if nu was given, or all are fused."""
    if not below < above < np.inf:
        return []
    within, between = f"at most {below:.2g} within groups", f"at least {above:.2g} between them"
    times = f", {above / below:.2g} times as much" if below else ""
    return [f"The groups are separated by a gap: ||theta|| is {within} and {between}{times}."]


def warnings(result: Result, names_width: int = 0) -> list[str]:
    """Say what a reader must know before using the groups, with names of devices where there is room for some."""

    def named(devices: Ints) -> str:
        names = device_names(result, devices)
        return f": {some_names(names, names_width)}" if names and names_width else ""

    found, noun = [], noun_of(result.profile)
    if result.uncertain:
        found.append(doubt(result) + named(result.unsure))
    seldom = np.flatnonzero([] if result.confidence is None else result.confidence == 0)
    if seldom.size:
        found.append(f"{noun.count(seldom.size)} answered too seldom to be sure of the group{named(seldom)}")
    if result.cut_short:
        found.append(f"{_capital(title(result.method['method']))} {cut_short(result.rounds)}: allow more (--rounds)")
    if result.suspects.size:
        told = exposed(result)
        found.append(suspicion(result) + named(result.suspects) + (f" ({told})" if told else ""))
    if result.unheard.size:
        found.append(silence(result) + named(result.unheard))
    if absent := [name for name in result.left_out if name not in result.profile.names]:
        names = f": {some_names(absent, names_width)}" if names_width else ""
        found.append(f"{len(absent)} left out before the first round{names}")
    if result.capped:
        who = np.array([result.index(name) for name in result.capped])
        found.append(f"{noun.count(who.size)} claimed an implausible number of rows{named(who)}")
    return found


def verdict(result: Result, baselines: Mapping[str, Floats]) -> str:
    """Say what predicts best, by rows left out in turn where these were compared, else by test rows."""
    if result.compared:
        return _decided(result)
    if not tested(result):
        return UNTESTED
    metric, noun, test = result.profile.metric, noun_of(result.profile), result.score("test")
    grouped = finds_groups(result) and 1 < result.n_clusters < len(result.labels)
    ours = "one model per group" if grouped else "the trained model"
    names = {"local": alone_name(noun), "pooled": POOLED}
    known = {name: baselines[key] for key, name in names.items() if key in baselines}
    scores = {name: mean_score(values[result.scored], metric) for name, values in known.items()}
    best = _best({ours: test, **scores}, metric)
    rivals = [name for name in best if name != ours]
    who = "" if len(result.scored) == len(result.labels) else f" over {whom(result)}"
    value = f"{'' if METRICS[metric].pooled else 'mean '}test {metric_name(metric)}{who}"
    if not scores or not best:
        return f"{_capital(ours)} has a {value} of {score(test, metric)}."
    if ours in best:
        how = f"about as well as {' and '.join(rivals)}" if rivals else "best"
        return f"{_capital(ours)} predicts {how}: {value} {score(test, metric)}, against {_listed(scores, metric)}."
    top, others = best[0], {name: v for name, v in {ours: test, **scores}.items() if name != best[0]}
    text = f"{_capital(top)} predicts better here than {ours}"
    return f"{text}: {value} {score(scores[top], metric)}, against {_listed(others, metric)}."


def _decided(result: Result) -> str:
    """Say what predicts best on rows that were left out in turn, and the test scores of all."""
    metric, noun, used = result.profile.metric, noun_of(result.profile), result.verdict or result.default_verdict
    names = kinds_of_models(noun)
    scores = {names[kind]: value for kind, value in result.comparison().items() if value is not None and kind != used}
    if result.n_clusters == 1:
        scores.pop(names["groups"], None)
    test = f"{'' if METRICS[metric].pooled else 'mean '}test {metric_name(metric)}"
    why = "is used, as nothing else predicts held-out rows significantly better"
    if used in ("personal", "alone"):
        why = "predicts held-out rows best and is used"
    best = f"{_capital(names[used])}{',' if used == 'personal' else ''} {why}"
    if not tested(result):
        return f"{best}. {UNTESTED}"
    return f"{best}: {test} {score(result.score('test'), metric)}, against {_listed(scores, metric)}."


def kinds_of_models(noun: Noun) -> dict[str, str]:
    """Return what the models that are compared are called, by the words of a verdict."""
    own = f"a personal model per {noun.one}, shrunk towards the others"
    return {"groups": "one model per group", "personal": own, "alone": alone_name(noun), "pooled": POOLED}


def compared_scores(result: Result, baselines: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return devices' test scores, or sums, with each kind of model: those that the run compared, or baselines."""
    if not tested(result):
        return {}
    if result.compared:
        order = ("groups", "personal", "alone", *(["pooled"] if result.n_clusters > 1 else []))
        return {kind: result.compared[kind] for kind in order if kind in result.compared}
    ours = {"groups": result.sums.get("test", result.scores["test"])}
    return ours | {kind: baselines[key] for key, kind in (("local", "alone"), ("pooled", "pooled")) if key in baselines}


def tested(result: Result) -> bool:
    """Whether there were test rows."""
    return bool(np.isfinite(result.score("test")))


def whom(result: Result) -> str:
    """Return the devices that mean scores are over, in words."""
    noun, n = noun_of(result.profile), len(result.scored)
    if n == len(result.labels):
        return noun.many
    return f"the {n:,} {f'{noun.many} with plausible replies' if result.attack is None else 'honest devices'}"


def used(result: Result, scores: Mapping[str, Floats]) -> str:
    """Return the kind of model that predicts, among those with scores."""
    return result.verdict if result.verdict and result.verdict in scores else "groups"


def alone_name(noun: Noun) -> str:
    """Return what the baseline of local models is called: "a separate model per school"."""
    return f"a separate model per {noun.one}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _best(scores: Mapping[str, float], metric: str) -> list[str]:
    """Return the best of some mean scores, and those about as good."""
    known = {name: value for name, value in scores.items() if np.isfinite(value)}
    if not known:
        return []
    large = METRICS[metric].greater_is_better
    sign, best = (-1, max(known.values())) if large else (1, min(known.values()))
    tie = TIE_ACCURACY if large else TIE_RATIO * best
    return sorted((name for name in known if sign * (known[name] - best) <= tie), key=lambda name: sign * known[name])


def _listed(scores: Mapping[str, float], metric: str) -> str:
    told = [f"{score(value, metric)} with {name}" for name, value in scores.items()]
    return " and ".join([", ".join(told[:-1]), told[-1]] if len(told) > 1 else told)


def doubt(result: Result) -> str:
    """Say why the grouping is uncertain: devices between two groups, or a low probability that it is right."""
    m, noun, reasons = len(result.labels), noun_of(result.profile), []
    if unsure := len(result.unsure):
        fit = f"{'fits' if unsure == 1 else 'fit'} two groups about equally well"
        how = fit if result.n_clusters > 1 else "may differ from the others"
        reasons.append(f"{unsure:,} of {noun.count(m)} {how}")
    if not unsure or (result.stability or 0.0) < MIN_CONFIDENCE:
        reasons.append(f"other groupings are plausible too (stability {result.stability:.2f} of 1)")
    return f"The grouping is uncertain: {', and '.join(reasons)}"


def suspicion(result: Result) -> str:
    """Say how many devices gave implausible replies, and whether they are in a group."""
    n, alone = result.suspects.size, np.isin(result.suspects, result.apart).all()
    stand = (" and stands alone" if n == 1 else " and stand alone") if alone else ""
    return f"{noun_of(result.profile).count(n)} gave implausible replies{stand}"


def silence(result: Result) -> str:
    """Say how many devices never answered in time, and what model they have."""
    who, one = noun_of(result.profile).count(len(result.unheard)), len(result.unheard) == 1
    others = np.setdiff1d(np.arange(len(result.labels)), result.unheard)
    if np.isin(result.labels[result.unheard], result.labels[others]).any():
        return f"{who} never answered in time and {'is' if one else 'are'} still in the initial group"
    return f"{who} never answered in time and {'has no model of its own' if one else 'have no models of their own'}"


def progress(row: Mapping[str, Any], metric: str) -> dict[str, str]:
    """Return what is known of a run that goes on; ``metric`` is "score" where it is not known yet."""
    known = {key: v for key, v in row.items() if isinstance(v, str) or (v is not None and np.isfinite(v))}
    part = "validation" if "validation" in known else "test"
    facts: dict[str, tuple[str, Callable[[Any], str]]] = {
        "stage": ("stage", str),
        "n_clusters": ("groups", "{:.0f}".format),
        part: (f"{part} {metric_name(metric)}", partial(score, metric=metric)),
        "cost_floats": ("numbers sent", lambda n: f"{n:,.0f} ({data_size(n)})"),
        "moved": ("models moved by", lambda share: f"{100 * share:.2g} %"),
        "seconds": ("time", "{:.1f} s".format),
    }
    return {name: write(known[key]) for key, (name, write) in facts.items() if key in known}


def tried_lambdas(result: Result) -> pd.DataFrame | None:
    """Return one row per lambda that was tried on validation rows: sums over its rounds; None where none was."""
    history = result.history
    if result.lam is None or "watched" not in history:
        return None
    seen = history["watched"].notna() | history["groups"].notna()
    spent = history[["seconds", "cost_floats"]].diff().fillna(history[["seconds", "cost_floats"]])
    trials = history[["lam", "watched", "groups"]].join(spent)[seen & (history["stage"] != FINAL_STAGE)]
    table: pd.DataFrame = (
        trials.groupby("lam", sort=True)
        .agg(
            rounds=("watched", "size"),
            seconds=("seconds", "sum"),
            cost_floats=("cost_floats", "sum"),
            validation=("watched", "last"),
            n_clusters=("groups", "last"),
        )
        .astype({"cost_floats": "int64", "n_clusters": "Int64"})
        .reset_index()
    )
    table["chosen"] = table["lam"] == result.lam
    return table


def lambda_table(table: pd.DataFrame, metric: str) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells of the lambdas that were tried."""
    heads = ["lambda", "rounds", "seconds", "numbers sent", "groups", f"validation {metric_name(metric)}"]
    rows = []
    for row in table.to_dict("records"):
        spent = [f"{row['lam']:g}", f"{row['rounds']:,}", f"{row['seconds']:.1f}", compact(row["cost_floats"])]
        groups = NOTHING if pd.isna(row["n_clusters"]) else f"{row['n_clusters']:.0f}"
        rows.append([*spent, groups, score(row["validation"], metric)])
    return heads, rows


@dataclass(frozen=True)
class ContrastTable:
    """What tells the groups apart: a row for each feature, the largest difference first."""

    what: str  # What the numbers are.
    groups: list[int]  # The numbers of the groups in the columns; empty where one number is for all groups.
    names: list[str]  # Features, and the intercept.
    values: Floats  # In the units of the table.
    scaled: Floats  # Per standard deviation of the feature, so that rows can be compared; the intercept less its mean.
    tests: list[tuple[str, ...]]  # Where there are intervals: p-value and, but for many classes, what could be seen.

    @classmethod
    def of(cls, result: Result, max_rows: int, max_groups: int) -> ContrastTable | None:
        """Build the table of a run on a table; None where there are no groups or coefficients to compare."""
        encoder = result.profile.encoder
        if len(result.groups) < 2 or encoder is None or not result.model.convex:
            return None
        contrast = result.contrasts()[:max_rows]
        names = [AVERAGE_INTERCEPT if name == "intercept" else str(name) for name in contrast.index]
        tests: list[tuple[str, ...]] = []
        if result.intervals is not None:
            found = feature_tests(result.intervals).reindex(contrast.index)[["p_holm", "detectable"]]
            tests = [(p_value(p), f"{size:.2g}" if np.isfinite(size) else NOTHING) for p, size in found.to_numpy()]
        if all(p == NOTHING for p, _ in tests):
            tests = []
        classes = [str(c) for c in result.profile.classes]
        if len(classes) > 2:
            what = "root mean square difference between groups, per standard deviation of the feature"
            values = contrast.to_numpy()[:, None]
            return cls(what, [], names, values, values, [each[:1] for each in tests])
        what = f"log-odds of {classes[1]} against {classes[0]}" if classes else encoder.target
        shown = result.groups[:max_groups]
        rows = [[*result.profile.features, "intercept"].index(name) for name in contrast.index]
        scaled = _effects(np.stack([result.model.coefficients(w.astype(float)) for w in result.cluster_models]))
        values = _effects(result.coefficients().to_numpy().reshape(result.n_clusters, -1, scaled.shape[1]))
        # An intercept where all features are 0 says little: it is shown at their averages, its bar from the mean.
        values[:, -1] = scaled[:, -1]
        scaled[:, -1] -= np.average(scaled[:, -1], weights=np.bincount(result.labels))
        cut = np.ix_(shown, np.array(rows))
        numbers = list(range(1, len(shown) + 1))
        return cls(f"{what} per unit of the feature", numbers, names, values[cut].T, scaled[cut].T, tests)


def _effects(coefficients: Floats) -> Floats:
    """Return groups x coefficients: of the value, or for two classes of the log-odds of the second."""
    first, last = coefficients[:, 0], coefficients[:, -1]
    return np.array(first if coefficients.shape[1] == 1 else last - first, dtype=float)


def p_value(p: float) -> str:
    """Write a p-value.

    >>> p_value(0.0421), p_value(1e-9), p_value(float("nan"))
    ('0.042', '< 0.001', '–')
    """
    if np.isnan(p):
        return NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


def some_names(names: Sequence[str], room: int) -> str:
    """Write as many names as there is room for, and how many more there are.

    >>> some_names(["north", "south", "east"], 30), some_names(["north", "south", "east"], 17)
    ('north, south, east', 'north, … (2 more)')
    """
    whole = ", ".join(names)
    for shown in range(len(names), 0, -1):
        rest = f", … ({len(names) - shown} more)" if shown < len(names) else ""
        if len(text := ", ".join(names[:shown]) + rest) <= room:
            return text
    return whole[: room - 1] + "…" if names else ""


def device_names(result: Result, devices: Ints) -> list[str]:
    """Return the names of some devices."""
    return [result.profile.names[i] for i in devices.tolist()]
