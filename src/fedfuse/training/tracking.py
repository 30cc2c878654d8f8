"""Callbacks for experiment trackers: TensorBoard and MLflow (``pip install "fedfuse[tracking]"``).

>>> import fedfuse as ff
>>> from fedfuse.training.tracking import MLflow, TensorBoard
>>> res = ff.fit(fed, callbacks=[TensorBoard("logs/first"), MLflow("hospitals")])  # doctest: +SKIP
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfuse.errors import FedfuseError
from fedfuse.training.loop import Callback, Row, Run
from fedfuse.utils.files import read_json, write_json
from fedfuse.utils.lazy import load

if TYPE_CHECKING:
    from fedfuse.results.result import Result

NOT_TRACKED = {"round", "stage"}
OUTCOME = ("test", "validation", "n_clusters", "ari", "cost_floats", "rounds", "seconds", "lam", "stability")
BATCH_ROUNDS = 20  # Rounds between two messages to MLflow.
MAX_BATCH_METRICS = 1000  # MLflow takes no more at once.
MAX_PARAMETER_CHARACTERS = 500  # Every MLflow store takes so many.


class TensorBoard(Callback):
    """Write every number of the history as a scalar, and the outcome as text.

    Parameters
    ----------
    directory
        Where the event files go: what ``tensorboard --logdir`` is given, or a directory below it.
    """

    def __init__(self, directory: str | PathLike[str]) -> None:
        self._directory = str(directory)
        self._open = _needed("TensorBoard", "tensorboard.summary:Writer")
        self._writer: Any = None

    def on_start(self, run: Run) -> None:
        self._writer = self._open(self._directory)

    def on_round(self, run: Run, row: Row) -> None:
        for name, value in numbers(row):
            self._writer.add_scalar(_tag(name), value, row["round"] + 1)

    def on_end(self, run: Run, result: Result) -> None:
        for name, value in _outcome(result):
            self._writer.add_scalar(f"result/{name}", value, run.k)
        self._writer.flush()
        self._writer.close()


class MLflow(Callback):
    """Log a run: settings as parameters, every number of the history as a metric, the outcome and its labels.

    A run that is resumed from its directory goes on in the same MLflow run.

    Parameters
    ----------
    experiment
        Its name; it is created where there is none.
    tracking_uri
        Where the store is (default: what MLflow uses, ``$MLFLOW_TRACKING_URI``).
    name
        Of the MLflow run (default: data set and method).
    """

    FILE = "mlflow.json"

    def __init__(
        self, experiment: str = "fedfuse", *, tracking_uri: str | None = None, name: str | None = None
    ) -> None:
        self._client = _needed("MLflow", "mlflow:MlflowClient")(tracking_uri)
        self._experiment, self._name = experiment, name
        self.run_id = ""
        self._waiting: list[Any] = []

    def on_start(self, run: Run) -> None:
        self.run_id = self._earlier(run) or self._begun(run)

    def on_round(self, run: Run, row: Row) -> None:
        self._note(row, row["round"] + 1)
        if run.k % BATCH_ROUNDS == 0:
            self._send()

    def on_end(self, run: Run, result: Result) -> None:
        self._note({f"result_{name}": value for name, value in _outcome(result)}, run.k)
        self._send()
        self._client.log_dict(self.run_id, result.summary(), "summary.json")
        self._client.set_terminated(self.run_id)

    def _begun(self, run: Run) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
        name = self._name or f"{run.dataset} {run.method.name}"
        run_id: str = self._client.create_run(experiment, run_name=name).info.run_id
        for key, value in _parameters(run):
            self._client.log_param(run_id, key, value[:MAX_PARAMETER_CHARACTERS])
        if run.directory:
            write_json(run.directory.path / self.FILE, {"run_id": run_id})
        return run_id

    def _earlier(self, run: Run) -> str | None:
        """Return the MLflow run of a resumed run."""
        path = run.directory.path / self.FILE if run.directory and run.k else None
        return str(read_json(path)["run_id"]) if path and path.exists() else None

    def _note(self, row: Row, step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._waiting += [Metric(name, value, now, step) for name, value in numbers(row)]

    def _send(self) -> None:
        for start in range(0, len(self._waiting), MAX_BATCH_METRICS):
            self._client.log_batch(self.run_id, metrics=self._waiting[start : start + MAX_BATCH_METRICS])
        self._waiting = []


def numbers(row: Row) -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of a row.

    >>> list(numbers({"round": 3, "moved": 0.5, "test": float("nan"), "ari": None, "stage": "fit", "n_clusters": 4}))
    [('moved', 0.5), ('n_clusters', 4.0)]
    """
    for name, value in row.items():
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if number and name not in NOT_TRACKED and np.isfinite(value):
            yield name, float(value)


def _outcome(result: Result) -> Iterator[tuple[str, float]]:
    summary = result.summary()
    return numbers({name: summary[name] for name in OUTCOME})


def _parameters(run: Run) -> Iterator[tuple[str, str]]:
    """Yield data set, method and settings, with dots between the names of parts."""
    yield "dataset", run.dataset
    yield "devices", str(run.info.m)
    yield "model", str(run.model.to_config().get("name", type(run.model).__name__))
    for key, value in run.method.to_config().items():
        yield (key if key == "method" else f"method.{key}"), value if isinstance(value, str) else json.dumps(value)
    for key, value in vars(run.settings).items():
        if value is not None:
            yield key, str(value)


def _tag(name: str) -> str:
    """Group scalars as TensorBoard shows them.

    >>> _tag("test"), _tag("moved")
    ('score/test', 'training/moved')
    """
    part = "score" if name in ("test", "validation", "ari") else "training"
    return f"{part}/{name}"


def _needed(library: str, place: str) -> Any:
    try:
        return load(place)
    except ImportError:
        raise FedfuseError(f'this callback needs {library}: pip install "fedfuse[tracking]"') from None
