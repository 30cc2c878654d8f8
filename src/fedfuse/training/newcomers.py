"""Newcomers: devices that join after a run get a model by the method's own rule; nobody else is retrained.

A method's `admit` is a dialogue with one newcomer: it yields tasks and is given the replies. Here the tasks of all
newcomers go to an engine at the same time, and what is sent is counted, besides peeks at a newcomer's model
(`protocol.tasks.PeekModel`). Rows of newcomers take the form of the run: its columns, its class numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedfuse.core.metrics import METRICS
from fedfuse.data import checks
from fedfuse.data.checks import natural_key
from fedfuse.data.federation import Federation, cut_points, shuffled_rows
from fedfuse.data.readers import read_table
from fedfuse.data.targets import target_array
from fedfuse.engines.base import Engine
from fedfuse.engines.in_process import InProcess
from fedfuse.errors import FedfuseError
from fedfuse.grouping.admission import admit_by_losses
from fedfuse.grouping.lambda_path import LambdaPath
from fedfuse.grouping.personal import personal_model
from fedfuse.methods.fpfc import BaseFPFC
from fedfuse.methods.method import FederationInfo, Method
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, AdmitsNewcomers, RunSummary
from fedfuse.methods.registry import from_config
from fedfuse.protocol.tasks import Order, PeekModel, Task, for_device
from fedfuse.results.result import Result, mean_score
from fedfuse.training.evaluation import Evaluator
from fedfuse.training.loop import info_of
from fedfuse.training.transport import Transport
from fedfuse.tuning.grid_search import GridSearch
from fedfuse.utils.files import read_json, write_json
from fedfuse.utils.typing import Floats, Ints

FILE = "newcomers.json"
DEFAULT_NAME = "newcomer"  # Of a newcomer that is given without a name.


@dataclass(frozen=True, repr=False)
class Newcomers:
    """The outcome of an admission."""

    names: tuple[str, ...]
    models: Floats  # newcomers x d
    clusters: tuple[int | None, ...]  # the group of the run that each joins; None for one that fits none
    confidence: tuple[float | None, ...]  # in that group (0 to 1), where the method can tell
    scores: Floats  # the run's metric of each on its test rows (nan without any)
    overall: float  # the same of all newcomers together
    iterations: tuple[int, ...]  # exchanges with each
    cost_floats: int  # sent in both directions
    counts: Ints  # rows of each
    grouped: bool  # whether the run's method finds groups at all
    run: Result = field(repr=False)

    def score(self) -> float:
        """Return the score of all newcomers together on their test rows."""
        return self.overall

    def index(self, newcomer: str | int) -> int:
        """Return the position of a newcomer given by name or position."""
        return checks.position_of(newcomer, {name: i for i, name in enumerate(self.names)}, "newcomer")

    def predict(self, newcomer: str | int, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the predicted classes or values for rows by a newcomer's model."""
        return self._joined.predict(self.index(newcomer), X)

    def predict_frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a prediction for every row of a table, as `Result.predict_frame` does, by the models of newcomers."""
        answer, group = self._joined.predict_frame(frame), dict(zip(self.names, self.clusters, strict=True))
        answer["cluster"] = pd.array([group.get(name) for name in answer["device"]], dtype="Int64")
        answer["group"] = answer["cluster"].map(self.run.cluster_numbers).astype("Int64")
        return answer

    def tell(self, newcomer: str | int = 0) -> str:
        """Return one sentence on a newcomer: its group, or that it has none."""
        i = self.index(newcomer)
        sure = "" if self.confidence[i] is None else f", confidence {self.confidence[i]:.2f}"
        if self.clusters[i] is not None:
            return f"{self.names[i]}: joins group {self.run.cluster_numbers[self.clusters[i]]}{sure}"
        if self.grouped:
            return f"{self.names[i]}: fits no group of this run, and keeps a model of its own"
        return f"{self.names[i]}: has a model ({self.run.method['method']} finds no groups)"

    def summary(self) -> dict[str, Any]:
        """Return the admission as JSON-ready data."""
        numbers = self.run.cluster_numbers
        return {
            "metric": self.run.profile.metric,
            "test": self.score(),
            "cost_floats": self.cost_floats,
            "newcomers": [
                {
                    "name": name,
                    "cluster": self.clusters[i],
                    "group": numbers.get(self.clusters[i]),
                    "fits": self.clusters[i] is not None if self.grouped else None,
                    "sure": self.confidence[i],
                    "rows": int(self.counts[i]),
                    "test": float(self.scores[i]),
                    "iterations": self.iterations[i],
                }
                for i, name in enumerate(self.names)
            ],
        }

    def __repr__(self) -> str:
        head = f"Newcomers({len(self.names)}, test {self.run.profile.metric} {self.score():.4f})"
        more = [f"… and {len(self.names) - 10} more"] if len(self.names) > 10 else []
        return "\n".join([head, *(self.tell(i) for i in range(len(self.names))[:10]), *more])

    @cached_property
    def _joined(self) -> Result:
        """The run with the newcomers in the place of its devices: what predicts there predicts here."""
        profile = replace(self.run.profile, names=self.names, counts=self.counts, truth=None)
        labels = np.zeros(len(self.names), np.int64)
        own: dict[str, Any] = {"models": self.models, "alternatives": {}, "compared": {}, "verdict": None}
        return replace(self.run, profile=profile, labels=labels, attack=None, **own)


def admit(result: Result, newcomers: Federation, engine: Engine | None = None) -> Newcomers:
    """Admit the devices of another federation, with the same columns, by the rule of the run's method."""
    model, newcomers = result.model, aligned(result, newcomers)
    method, dtype = _rule(result), result.models.dtype
    trained = newcomers.weighted(result.profile.class_weights)
    info = info_of(trained, model, result.seed, dtype)
    believed = np.setdiff1d(np.arange(len(result.labels)), result.suspects)
    if not believed.size:
        raise FedfuseError("all devices of this run are suspects: there is no group to join")
    known = _known(result, believed)
    transport = Transport(engine or InProcess(trained, model, seed=result.seed, dtype=dtype), info.m, info.d, dtype)
    iterations = np.zeros(info.m, np.int64)
    talks = [admission(method, known, info, i) for i in range(info.m)]
    joined = _converse(talks, transport, result.seed, iterations)
    if result.verdict in ("personal", "alone"):
        own = [personal_model(known, info, j, result.verdict) for j in joined]
        joined = _converse(own, transport, result.seed, iterations)
    models = np.stack([j.model for j in joined])
    metric = METRICS[result.profile.metric]
    scores = Evaluator(newcomers, model, dtype, metric).score("test", models.astype(dtype))
    return Newcomers(
        names=newcomers.names,
        models=models,
        clusters=tuple(j.group for j in joined),
        confidence=tuple(j.confidence for j in joined),
        scores=scores if scores.ndim == 1 else metric.by_device(scores),
        overall=mean_score(scores, metric.name),
        iterations=tuple(iterations.tolist()),
        cost_floats=transport.ledger.floats,
        counts=newcomers.rows("all").counts,
        grouped=method.finds_groups,
        run=result,
    )


def _known(result: Result, devices: Ints | slice = slice(None)) -> RunSummary:
    """Return what the server still knows of some devices of a run."""
    rows = result.profile.counts[devices]
    return RunSummary(result.models[devices], result.labels[devices], rows, result.lam, result.kept)


def note(newcomers: Newcomers, directory: str | PathLike[str]) -> None:
    """Add newcomers to the file in their run's directory; one of the same name is replaced."""
    rows = {row["name"]: row for row in [*noted(directory), *newcomers.summary()["newcomers"]]}
    write_json(Path(directory) / FILE, {"metric": newcomers.run.profile.metric, "newcomers": [*rows.values()]})


def noted(directory: str | PathLike[str]) -> list[dict[str, Any]]:
    """Return the newcomers that were written into a run's directory."""
    path = Path(directory) / FILE
    if not path.exists():
        return []
    try:
        rows: list[dict[str, Any]] = read_json(path)["newcomers"]
    except (KeyError, TypeError):
        raise FedfuseError(f"{path} holds no newcomers of fedfuse: remove it") from None
    return rows


def admit_small(result: Result, source: Mapping[str, Any] | None, directory: str | PathLike[str]) -> Newcomers | None:
    """Admit the devices of a run's own table that had fewer than ``min_rows`` rows, and note them in its directory."""
    if not source or "min_rows" not in source or noted(directory):
        return None
    arrived = from_table(result, read_table(source["dataset"]), seed=result.seed).federation
    if arrived is None:
        return None
    joined = admit(result, arrived)
    note(joined, directory)
    return joined


def with_noted(result: Result, directory: str | PathLike[str]) -> Result:
    """Return the run with the newcomers of its directory that joined a group among its devices, for predictions."""
    rows = [r for r in noted(directory) if r["cluster"] in result.labels and r["name"] not in result.profile.names]
    if not rows:
        return result
    profile, labels = result.profile, np.array([r["cluster"] for r in rows])
    known = _known(result)
    models = known.group_models[np.searchsorted(known.groups, labels)].astype(result.models.dtype)
    names, counts = (*profile.names, *(r["name"] for r in rows)), [*profile.counts, *(r["rows"] for r in rows)]
    return replace(
        result,
        profile=replace(profile, names=names, counts=np.array(counts), truth=None),
        models=np.concatenate([result.models, models]),
        alternatives={name: np.concatenate([own, models]) for name, own in result.alternatives.items()},
        labels=np.append(result.labels, labels),
    )


def _rule(result: Result) -> Method[Any]:
    """Return the run's method, with what it has chosen for settings that were left open."""
    method = from_config(result.method)
    if isinstance(method, LambdaPath):
        method = method.at(result.lam or 0.0)
    elif isinstance(method, GridSearch):
        method = method.inner
    elif isinstance(method, BaseFPFC) and not method.refits:
        method = replace(method, lam=result.lam or 0.0)
    return replace(method, **result.chosen)


def admission(method: Method[Any], known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
    """Begin the dialogue with a newcomer: by its losses where groups were refitted, else by the method's own rule."""
    if isinstance(method, BaseFPFC) and method.refits:
        return admit_by_losses(known, info, method.work, method.rows, device)
    if not isinstance(method, AdmitsNewcomers):
        raise FedfuseError(f"{method.name} cannot admit newcomers")
    return method.admit(known, info, device)


def _converse(
    talks: Sequence[AdmissionDialogue], transport: Transport, seed: int, iterations: Ints
) -> list[AdmissionResult]:
    """Let every newcomer's dialogue go on until it ends; add its exchanges to ``iterations``."""
    ends: dict[int, AdmissionResult] = {}
    tasks: dict[int, Task] = {i: next(talk) for i, talk in enumerate(talks)}
    k = int(iterations.max(initial=0))
    while tasks:
        looks = {i: task for i, task in tasks.items() if isinstance(task, PeekModel)}
        asked = [Order(i, k, for_device(task, seed, k, i)) for i, task in tasks.items() if i not in looks]
        answers = {reply.device: reply.values for reply in transport.exchange(asked)} | transport.seen(looks)
        if silent := sorted(tasks.keys() - answers):
            why = ", ".join(transport.ledger.refused) or "no answer"
            raise FedfuseError(f"newcomer {silent[0]} sent nothing usable: {why}")
        tasks, k = {}, k + 1
        for i, values in answers.items():
            iterations[i] += 1
            try:
                tasks[i] = talks[i].send(values)
            except StopIteration as end:
                ends[i] = end.value
    return [ends[i] for i in range(len(talks))]


def gathered(
    result: Result, data: Any, y: Any = None, *, test: float = 0.2, validation: float = 0.2, seed: int = 0
) -> Federation:
    """Return newcomers as a federation with the classes and columns of the run.

    ``data`` and ``y`` are the rows of one newcomer; or ``data`` alone is ``{name: (X, y)}`` or a list of (X, y). Parts
    are drawn by key as in every federation; a newcomer with few rows has fewer parts, but always rows to train on.
    """
    checks.check_splits(test, validation, seed)
    pairs = checks.named_pairs(data if y is None else {DEFAULT_NAME: (data, y)})
    profile, devices = result.profile, {}
    for name, (X, target) in pairs.items():
        array = checks.as_numpy(X, "X", name)
        if profile.shape is not None and array.shape[1:] == profile.shape:
            array = array.reshape(len(array), -1)
        rows = checks.feature_array(array, name)
        if rows.shape[1] != len(profile.features):
            raise FedfuseError(f"device {name!r} has {rows.shape[1]} features, the run has {len(profile.features)}")
        checks.check_finite(rows, name, profile.features)
        devices[name] = rows, _numbers(target_array(target, name, len(rows)), profile.classes, name)
    return _cut(result, devices, test, validation, seed)


def aligned(result: Result, newcomers: Federation) -> Federation:
    """Return the newcomers with the class numbers of the run; raise where they do not fit it."""
    model, classes = result.model, result.profile.classes
    if newcomers.n_features != model.n_features or newcomers.goal != model.goal:
        raise FedfuseError(
            f"newcomers need {model.n_features} features for {model.goal}, "
            f"got {newcomers.n_features} for {newcomers.goal}"
        )
    if newcomers.classes == classes:
        return newcomers
    known = _numbers(np.array(newcomers.classes), classes, "newcomers")
    return replace(newcomers, y=known[newcomers.y.astype(np.int64)], classes=classes)


@dataclass(frozen=True)
class Arrivals:
    """What a table says of newcomers."""

    federation: Federation | None  # newcomers with at least one row whose target is known; None if there is none
    waiting: pd.DataFrame  # their rows without a target
    strangers: tuple[str, ...]  # newcomers without a single target: nothing can be told of them
    familiar: int  # rows of devices that the run knows already; they are left alone


def from_table(
    result: Result, frame: pd.DataFrame, *, test: float = 0.2, validation: float = 0.2, seed: int = 0
) -> Arrivals:
    """Read a table with the columns of the run's own: every device that is not of the run is a newcomer."""
    encoder = result.profile.encoder
    if encoder is None:
        raise FedfuseError("this run was not trained on a table: its newcomers come from a data set, or from Python")
    devices, X, y, known = encoder.devices(frame), encoder.transform(frame), np.empty(0), np.zeros(len(frame), np.bool_)
    if encoder.target in frame.columns:
        y = encoder.targets(frame)
        known = np.asarray(np.isfinite(y) if encoder.goal == "regression" else y >= 0)  # Not of unknown classes.
    familiar = np.isin(devices, result.profile.names)
    names = sorted(set(devices[~familiar]) - {""}, key=natural_key)
    rows = {name: np.flatnonzero(known & (devices == name)) for name in names}
    able = {name: own for name, own in rows.items() if own.size}
    federation = None
    if able:
        federation = _cut(result, {name: (X[r], y[r]) for name, r in able.items()}, test, validation, seed)
    waiting = frame[np.isin(devices, list(able)) & ~known]
    return Arrivals(federation, waiting, tuple(name for name in names if name not in able), int(familiar.sum()))


def _numbers(y: npt.NDArray[Any], classes: tuple[Any, ...], name: str) -> npt.NDArray[Any]:
    """Return values as they are, and classes as the run numbers them."""
    if not classes:
        return y.astype(np.float64)
    place: Mapping[Any, int] = {c: k for k, c in enumerate(classes)}
    found = np.array([place.get(v, -1) for v in y.tolist()], dtype=np.int64)
    if (found < 0).any():
        strange, known = y[found < 0][0], ", ".join(map(str, classes[:6])) + (", …" if len(classes) > 6 else "")
        raise FedfuseError(f"device {name!r}: the class {strange!s} is not one of the run's ({known})")
    return found


def _cut(
    result: Result, devices: Mapping[str, tuple[Floats, npt.NDArray[Any]]], test: float, validation: float, seed: int
) -> Federation:
    """Return a federation of rows in the form of the run."""
    profile = result.profile
    counts: Ints = np.array([len(X) for X, _ in devices.values()], dtype=np.int64)
    rows = shuffled_rows(counts, seed)
    return Federation(
        names=tuple(devices),
        X=np.concatenate([X for X, _ in devices.values()])[rows],
        y=np.concatenate([y for _, y in devices.values()])[rows],
        cuts=cut_points(counts, test, validation),
        goal=profile.goal,
        classes=profile.classes,
        features=profile.features,
        encoder=profile.encoder,
        shape=profile.shape,
    )
