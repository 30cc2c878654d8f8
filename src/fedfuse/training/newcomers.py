"""Newcomers: devices that come when a run is over get a model by the method's own rule, and nobody else is retrained.

A method's `admit` is a dialogue with one newcomer: it yields tasks and is given the replies. Here the tasks of all
newcomers go to an engine at the same time, and what is sent is counted. A look at a newcomer's model
(`protocol.tasks.PeekModel`) is no message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedfuse.data.federation import Federation
from fedfuse.engines import Engine, InProcess
from fedfuse.errors import FedfuseError
from fedfuse.grouping.admission import admit_by_losses
from fedfuse.grouping.lambda_path import LambdaPath
from fedfuse.methods.method import (
    AdmissionDialogue,
    AdmissionResult,
    AdmitsNewcomers,
    FederationInfo,
    Method,
    RunSummary,
)
from fedfuse.methods.registry import from_config
from fedfuse.protocol.ledger import CommunicationLedger
from fedfuse.protocol.reply_checks import fault
from fedfuse.protocol.tasks import Order, PeekModel, Task, for_device
from fedfuse.results.result import Result, mean_score
from fedfuse.training.loop import info_of
from fedfuse.training.newcomer_rows import aligned
from fedfuse.tuning.grid_search import GridSearch
from fedfuse.utils.files import read_json, write_json
from fedfuse.utils.typing import Floats, Ints

FILE = "newcomers.json"


@dataclass(frozen=True, repr=False)
class Newcomers:
    """What has become of devices that came late.

    Attributes
    ----------
    names
        Of the newcomers.
    models
        One each (newcomers x d).
    clusters
        The cluster of the run that each has come to; None for one that fits none, or where the method has none.
    confidence
        How sure that is (0 to 1), where the method can tell.
    scores
        Accuracy or RMSE of each on its test rows (nan without any).
    iterations
        Exchanges with each.
    cost_floats
        Floats sent in both directions.
    counts
        Rows of each.
    grouped
        Whether the run's method knows clusters at all.
    """

    names: tuple[str, ...]
    models: Floats
    clusters: tuple[int | None, ...]
    confidence: tuple[float | None, ...]
    scores: Floats
    iterations: tuple[int, ...]
    cost_floats: int
    counts: Ints
    grouped: bool
    run: Result = field(repr=False)

    def score(self) -> float:
        """Return the mean over newcomers of accuracy or RMSE on their test rows."""
        return mean_score(self.scores)

    def index(self, newcomer: str | int) -> int:
        """Return the position of a newcomer given by name or position."""
        if isinstance(newcomer, str):
            if newcomer not in self.names:
                raise FedfuseError(f"no newcomer is called {newcomer!r}; there are {', '.join(self.names[:6])}")
            return self.names.index(newcomer)
        if not 0 <= newcomer < len(self.names):
            raise FedfuseError(f"newcomer {newcomer} is outside 0 … {len(self.names) - 1}")
        return newcomer

    def outputs(self, newcomer: str | int, X: npt.ArrayLike) -> Floats:
        """Return values, or class probabilities (n x classes), for rows by a newcomer's model."""
        return self._joined.outputs(self.index(newcomer), X)

    def predict(self, newcomer: str | int, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the predicted classes or values for rows by a newcomer's model."""
        return self._joined.predict(self.index(newcomer), X)

    def predict_rows(self, devices: npt.NDArray[Any], X: Floats, rows: Ints) -> pd.DataFrame:
        """Return a prediction for each of these rows of a table, by the model of its newcomer."""
        predictions = np.empty(len(rows), dtype=object)
        clusters = [self.clusters[self.index(name)] for name in devices]
        for name in dict.fromkeys(devices):
            inside = devices == name
            predictions[inside] = self.predict(name, X[inside])
        columns = {"row": rows, "device": devices, "cluster": pd.array(clusters, dtype="Int64")}
        answer: pd.DataFrame = pd.DataFrame({**columns, "prediction": predictions})
        return answer

    def tell(self, newcomer: str | int = 0) -> str:
        """Say in one sentence what has become of a newcomer."""
        i = self.index(newcomer)
        sure = "" if self.confidence[i] is None else f", confidence {self.confidence[i]:.2f}"
        if self.clusters[i] is not None:
            return f"{self.names[i]}: joins cluster {self.clusters[i]}{sure}"
        if self.grouped:
            return f"{self.names[i]}: fits no cluster of this run, and keeps a model of its own"
        return f"{self.names[i]}: has a model ({self.run.method['method']} knows no clusters)"

    def table(self) -> pd.DataFrame:
        """Return one row per newcomer."""
        columns = {
            "newcomer": self.names,
            "cluster": pd.array(list(self.clusters), dtype="Int64"),
            "sure": np.array(self.confidence, dtype=np.float64),
            "rows": self.counts,
            "test": self.scores,
            "iterations": self.iterations,
        }
        answer: pd.DataFrame = pd.DataFrame(columns)
        return answer

    def summary(self) -> dict[str, Any]:
        """Return the admission as JSON-ready data."""
        return {
            "metric": self.run.profile.metric,
            "test": self.score(),
            "cost_floats": self.cost_floats,
            "newcomers": [
                {
                    "name": name,
                    "cluster": self.clusters[i],
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
        shown = [self.tell(i) for i in range(min(len(self.names), 10))]
        more = [f"… and {len(self.names) - 10} more"] if len(self.names) > 10 else []
        return "\n".join(
            [f"Newcomers({len(self.names)}, test {self.run.profile.metric} {self.score():.4f})", *shown, *more]
        )

    @cached_property
    def _joined(self) -> Result:
        """The run with the newcomers in the place of its devices: what predicts there predicts here."""
        profile = replace(self.run.profile, names=self.names, counts=self.counts, truth=None)
        labels = np.zeros(len(self.names), np.int64)
        return replace(self.run, profile=profile, models=self.models, labels=labels, attack=None)


def admit(result: Result, newcomers: Federation, engine: Engine | None = None) -> Newcomers:
    """Take in the devices of another federation, with the same columns, by the rule of the run's method."""
    model, newcomers = result.model, aligned(result, newcomers)
    method, dtype = _rule(result), result.models.dtype
    info = info_of(newcomers, model, result.seed, dtype)
    believed = np.setdiff1d(np.arange(len(result.labels)), result.suspects)
    if not believed.size:
        raise FedfuseError("every device of this run is suspected of lying: there is nobody to join")
    known = RunSummary(
        result.models[believed], result.labels[believed], result.profile.counts[believed], result.lam, result.kept
    )
    engine = engine or InProcess(newcomers, model, seed=result.seed, dtype=dtype)
    talks = [admission(method, known, info, i) for i in range(newcomers.m)]
    joined, iterations, ledger = _converse(talks, engine, model.d, dtype, result.seed)
    models = np.stack([j.model for j in joined])
    scores = model.metric(model.load(newcomers.rows("test"), dtype), np.arange(newcomers.m), models.astype(dtype))
    return Newcomers(
        names=newcomers.names,
        models=models,
        clusters=tuple(j.group for j in joined),
        confidence=tuple(j.confidence for j in joined),
        scores=scores,
        iterations=tuple(iterations),
        cost_floats=ledger.floats,
        counts=newcomers.rows("all").counts,
        grouped=method.finds_groups,
        run=result,
    )


def note(newcomers: Newcomers, directory: str | PathLike[str]) -> None:
    """Write newcomers into the directory of their run, beside those that came before; who comes again is replaced."""
    path = Path(directory) / FILE
    before = noted(directory)
    new = {row["name"]: row for row in newcomers.summary()["newcomers"]}
    rows = [row for row in before if row["name"] not in new]
    write_json(path, {"metric": newcomers.run.profile.metric, "newcomers": [*rows, *new.values()]})


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


def _rule(result: Result) -> Method[Any]:
    """Return the run's method, with what it has chosen for settings that were left open."""
    method = from_config(result.method)
    if isinstance(method, LambdaPath):
        method = method.at(result.lam or 0.0)
    elif isinstance(method, GridSearch):
        method = method.inner
    return replace(method, **result.chosen)


def admission(method: Method[Any], known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
    """Begin the dialogue with a newcomer: by its losses where groups were refitted, else by the method's own rule."""
    if getattr(method, "refit", False):
        return admit_by_losses(known, info, method.work, method.rows, device)
    if not isinstance(method, AdmitsNewcomers):
        raise FedfuseError(f"{method.name} has no way to take in newcomers")
    return method.admit(known, info, device)


def _converse(
    talks: Sequence[AdmissionDialogue], engine: Engine, d: int, dtype: Any, seed: int
) -> tuple[list[AdmissionResult], list[int], CommunicationLedger]:
    """Let every newcomer's conversation go on until it ends."""
    ledger, ends, turns = CommunicationLedger(), {}, [0] * len(talks)
    tasks: dict[int, Task] = {i: next(talk) for i, talk in enumerate(talks)}
    k = 0
    while tasks:
        asked = {i: Order(i, k, for_device(task, seed, k, i)) for i, task in tasks.items()}
        for order in asked.values():
            ledger.sent(order)
        looks = {i for i, task in tasks.items() if isinstance(task, PeekModel)}
        engine.submit(list(asked.values()))
        tasks, waiting = {}, dict(asked)
        while waiting and (arrived := engine.collect()):
            for reply in arrived:
                if reply.device not in looks:
                    ledger.received(reply)
                wrong = fault(reply, waiting, len(talks), d, dtype)
                if wrong:
                    raise FedfuseError(f"newcomer {reply.device} sent something that cannot be used: {wrong}")
                del waiting[reply.device]
                turns[reply.device] += 1
                try:
                    tasks[reply.device] = talks[reply.device].send(reply.values)
                except StopIteration as end:
                    ends[reply.device] = end.value
        if waiting:
            raise FedfuseError(f"newcomer {min(waiting)} did not answer")
        k += 1
    return [ends[i] for i in range(len(talks))], turns, ledger
