"""Callbacks for trackers, against the real libraries: what is in their stores is the history."""

import sys

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.training.tracking import MLflow, TensorBoard
from support.planted import planted

METHOD = ff.FPFC(lam=0.4, refit=False)
COMMON = {"rounds": 12, "tol": 0, "evaluate_every": 3, "checkpoint_every": 1}


class Stop(ff.Callback):
    def on_round(self, run, row):
        if run.k == 7:
            raise KeyboardInterrupt


def known(history, column):
    seen = history.dropna(subset=column)
    return (seen["round"] + 1).tolist(), seen[column].to_numpy(float)


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory):
    """A store of MLflow in a file; to make its tables takes most of the time of these tests."""
    for library in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(library)
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(uri)
    for name in ("hospitals", "fedfuse"):
        client.create_experiment(name, artifact_location=(folder / name).as_uri())
    return uri, client


def scalars(directory):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(directory), size_guidance={"tensors": 0})
    found.Reload()
    from tensorboard.util import tensor_util

    return {
        tag: [(event.step, float(tensor_util.make_ndarray(event.tensor_proto))) for event in found.Tensors(tag)]
        for tag in found.Tags()["tensors"]
    }


def test_tensorboard_has_the_history(tmp_path):
    pytest.importorskip("tensorboard")
    result = ff.fit(planted(), METHOD, callbacks=[TensorBoard(tmp_path / "logs")], **COMMON)
    found = scalars(tmp_path / "logs")
    for column, tag in (("test", "score/test"), ("moved", "training/moved"), ("n_clusters", "training/n_clusters")):
        steps, values = known(result.history, column)
        assert [step for step, _ in found[tag]] == steps
        np.testing.assert_allclose([value for _, value in found[tag]], values, rtol=1e-6)
    assert found["result/test"] == [(12, pytest.approx(result.score("test"), rel=1e-6))]
    assert not any("stage" in tag for tag in found)


def test_mlflow_has_the_history_the_settings_and_the_outcome(tmp_path, mlflow):
    uri, client = mlflow
    tracker = MLflow("hospitals", tracking_uri=uri)
    result = ff.fit(planted(), METHOD, callbacks=[tracker], dataset="planted", **COMMON)
    run = client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert client.get_experiment(run.info.experiment_id).name == "hospitals"
    assert run.data.params["method"] == "fpfc"
    assert run.data.params["method.lam"] == "0.4"
    assert run.data.params["seed"] == "0"
    assert run.data.metrics["result_test"] == pytest.approx(result.score("test"))
    for column in ("test", "moved", "cost_floats"):
        steps, values = known(result.history, column)
        logged = sorted(client.get_metric_history(tracker.run_id, column), key=lambda m: m.step)
        assert [m.step for m in logged] == steps
        np.testing.assert_allclose([m.value for m in logged], values)
    assert [a.path for a in client.list_artifacts(tracker.run_id)] == ["summary.json"]


def test_a_resumed_run_goes_on_in_its_mlflow_run(tmp_path, mlflow):
    uri, client = mlflow
    first, second = MLflow(tracking_uri=uri), MLflow(tracking_uri=uri)
    with pytest.raises(KeyboardInterrupt):
        ff.fit(planted(), METHOD, callbacks=[first, Stop()], out=tmp_path / "run", **COMMON)
    assert client.get_run(first.run_id).info.status == "RUNNING"
    ff.resume(tmp_path / "run", planted(), [second])
    assert second.run_id == first.run_id
    assert client.get_run(first.run_id).info.status == "FINISHED"
    steps = {m.step for m in client.get_metric_history(first.run_id, "moved")}
    assert set(range(8, 13)) <= steps


@pytest.mark.parametrize(
    ("module", "make"), [("tensorboard.summary", lambda: TensorBoard("logs")), ("mlflow", lambda: MLflow("hospitals"))]
)
def test_without_the_library_the_extra_is_named(module, make, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ff.FedfuseError, match=r"fedfuse\[tracking\]"):
        make()
