"""What a server can tell of rows from what devices send: rows of small parts are not among it."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")

import fedfuse as ff
from fedfuse.core.moments import unpack_moments
from fedfuse.flower import client_app
from fedfuse.flower import engine as engine_module
from fedfuse.flower import node_registry as nodes
from fedfuse.flower.messages import read_order
from fedfuse.flower.server import serve
from fedfuse.methods.registry import METHODS
from fedfuse.protocol.sufficient_statistics import parts, written
from fedfuse.protocol.tasks import Gradient, SendSufficientStatistics
from support.local_grid import LocalGrid


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDFUSE_STATE", str(tmp_path / "state"))
    for module in (nodes, engine_module):
        monkeypatch.setattr(module, "RESCAN_SECONDS", 0.0)


def reconstructed(mean, covariance, n):
    """The rows that a mean and a covariance of n rows tell: exact for one and two rows."""
    if n == 1:
        return mean[None]
    values, vectors = np.linalg.eigh(covariance)
    return mean + np.outer([1, -1], np.sqrt(max(values[-1], 0)) * vectors[:, -1])


def small_devices(rng, goal="regression"):
    """Eight devices of 8 to 12 rows: one or two of them are for validation."""
    w = rng.normal(size=3)
    Xs = [rng.normal(size=(8 + i % 5, 3)) for i in range(8)]
    rows = {f"d{i}": (X, X @ w + 0.1 * rng.normal(size=len(X))) for i, X in enumerate(Xs)}
    return rows if goal == "regression" else {name: (X, np.arange(len(X)) % 2) for name, (X, y) in rows.items()}


def transcript(rows, out, config):
    """All that the server has heard, as (device, task, values), and how many rows of each part devices have said."""
    grid = LocalGrid(client_app(lambda name, config: rows[name]), 0)
    for i, name in enumerate(rows):
        grid.add(1000 + i, {"device": name})
    heard, said = [], {}

    def listen(asked, answer):
        line = answer.content["config"]
        if "hello" in line:
            facts = json.loads(line["hello"])
            said[facts["device"]] = facts.get("rows")
        elif "arrays" in answer.content and "values" in answer.content["arrays"]:
            order = read_order(asked).order
            heard.append((order.device, order.task, answer.content["arrays"]["values"].numpy().astype(float)))
        return answer

    grid.forge = listen
    result = serve(grid, {"out": str(out), **config})
    return heard, said, result


def distance(rows, table):
    """How near any reconstructed row comes to any row."""
    return min(float(np.abs(table - row).max(axis=1).min()) for row in rows)


@pytest.mark.parametrize("n", [1, 2])
def test_means_and_covariances_of_one_or_two_rows_are_these_rows(n):
    table = np.random.default_rng(n).normal(size=(n, 4))
    sent = written([(np.random.default_rng(0).normal(size=(9, 4)), None), (table, None)])
    mean, covariance = (each[0] for each in unpack_moments(parts(sent[None])["validation"]))
    assert distance(reconstructed(mean, covariance, n), table) < 1e-6


CONFIGS = [
    {},
    {"set": "share=moments"},
    {"lam": "auto", "method": "fpfc"},
    {"lam": "3", "set": "solver=exact refit=yes"},
    *({"method": name, "num-server-rounds": 12} for name in METHODS if name != "oracle"),
]


@pytest.mark.parametrize("goal", ["regression", "classification"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: " ".join(map(str, config.values())) or "default")
def test_no_row_follows_from_what_small_devices_send(config, goal, tmp_path):
    rows = small_devices(np.random.default_rng(0), goal)
    heard, said, result = transcript(rows, tmp_path / "run", config)
    assert len(result.labels) == 8
    assert not any(isinstance(task, SendSufficientStatistics) for _, task, _ in heard)
    for train, validation, _ in said.values():
        assert validation == 0 or validation >= 3  # No loss, gradient or moment is of one row, or of two.
        assert train >= 3
    for device, name in enumerate(result.profile.names):
        X, _ = rows[name]
        sent = [values[i : i + 3] for k, _, values in heard if k == device for i in range(len(values) - 2)]
        assert distance(sent, X) > 1e-4  # No three numbers are a row's, in any answer.
    if goal == "classification":
        return
    # At different points, gradients of the squared loss tell the second moments, as means and covariances would.
    for device, name in enumerate(result.profile.names):
        X, y = rows[name]
        asked = [(t.at, v[:4]) for i, t, v in heard if i == device and isinstance(t, Gradient) and t.rows == "train"]
        if len(asked) < 5:
            continue
        points = np.column_stack([np.stack([at for at, _ in asked]), np.ones(len(asked))])
        second = np.linalg.lstsq(points, np.stack([g for _, g in asked]), rcond=None)[0].T / 2
        moments = np.vstack([second, np.append(second[:, -1], np.mean(np.square(y)))])
        mean, moments = -moments[-2, :3] / moments[-2, -2], moments[:3, :3]
        guess = reconstructed(mean, moments - np.outer(mean, mean), 2)
        assert distance(guess, X) > 0.01


def test_devices_with_rows_enough_may_send_moments(tmp_path):
    rng = np.random.default_rng(0)
    rows = {f"d{i}": (X := rng.normal(size=(80, 3)), X.sum(axis=1) + 0.1 * rng.normal(size=80)) for i in range(4)}
    heard, _, _ = transcript(rows, tmp_path / "moments", {"set": "share=moments"})
    assert any(isinstance(task, SendSufficientStatistics) for _, task, _ in heard)
    heard, _, _ = transcript(rows, tmp_path / "models", {})
    assert not any(isinstance(task, SendSufficientStatistics) for _, task, _ in heard)


def test_a_node_refuses_to_sum_up_few_rows(tmp_path):
    rows = small_devices(np.random.default_rng(0))
    grid = LocalGrid(client_app(lambda name, config: rows[name]), 0)
    grid.add(1000, {"device": "d0"})
    model = ff.LinearRegression().sized(3, 0)
    engine = ff.flower.FlowerEngine(grid, ["d0"], model, setup={"classes": []})
    engine.submit([ff.protocol.tasks.Order(0, 0, SendSufficientStatistics(4))])
    with pytest.raises(ff.errors.FedfuseError, match="it does not sum up so few rows"):
        engine.collect()


def test_a_device_of_two_rows_is_left_out(tmp_path):
    rows = small_devices(np.random.default_rng(0))
    rows["d3"] = (np.ones((2, 3)), np.array([1.0, 2.5]))
    _, _, result = transcript(rows, tmp_path / "run", {})
    assert "d3" in result.left_out
    assert len(result.labels) == 7
