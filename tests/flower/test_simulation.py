"""On Flower's simulation engine: the same labels and models as in process."""

import json
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")
pytest.importorskip("ray", reason="pip install 'fedfuse[flower]'")

import fedfuse as ff
from fedfuse.errors import FedfuseError
from fedfuse.flower import FlowerEngine
from fedfuse.flower.simulation import start_simulation
from fedfuse.methods.registry import METHODS
from fedfuse.models import SoftmaxRegression
from support.planted import planted


@pytest.fixture(scope="module")
def federation():
    return planted("classification", m=4)


@pytest.fixture(scope="module")
def engine(federation):
    engine = start_simulation(federation, SoftmaxRegression().sized(federation.n_features, federation.n_classes))
    yield engine
    engine.close()


def on(engine, federation):
    model = SoftmaxRegression().sized(federation.n_features, federation.n_classes)
    names, setup = [str(i) for i in range(federation.m)], {"classes": np.array(federation.classes).tolist()}
    return FlowerEngine(engine.grid, names, model, setup=setup)


# one method every time; that all of them are the same to the bit is tested without the engine
@pytest.mark.parametrize("name", [n if n == "fedavg" else pytest.param(n, marks=pytest.mark.slow) for n in METHODS])
def test_same_labels_and_models(name, engine, federation):
    """With settings that are left open found on the way."""
    rounds = 3 if name == "fedavg" else 8  # The others search: every message costs a tenth of a second and more.
    options = {"rounds": rounds, "participation": 0.5, "tol": 0}
    here, there = (ff.fit(federation, name, **options, **how) for how in ({}, {"engine": on(engine, federation)}))
    assert there.labels.tolist() == here.labels.tolist()
    assert np.abs(there.models - here.models).max() <= 1e-5
    assert there.cost_floats == here.cost_floats
    assert there.chosen == here.chosen
    assert there.trouble == {}


@pytest.mark.slow
def test_asynchronous_has_the_same_labels(engine, federation):
    method = ff.FPFC(lam=0.6, work=ff.Work(steps=10, lr=0.1), refit=False)
    here = ff.fit(federation, method, rounds=40, tol=0)
    there = ff.fit(federation, method, rounds=40 * 4, tol=0, mode="async", engine=on(engine, federation))
    assert there.labels.tolist() == here.labels.tolist()


@pytest.mark.slow
def test_command_line(tmp_path):
    """In processes of their own: there is one simulation in each."""
    words = ["run", "synthetic:S3", "--method", "fedavg", "--rounds", "2", "--json"]

    def test_score(*more):
        command = [sys.executable, "-m", "fedfuse", *words, *more]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["test"]

    here = test_score("--out", str(tmp_path / "here"))
    assert test_score("--engine", "flower", "--out", str(tmp_path / "there")) == here


def test_one_at_a_time(engine, federation):
    with pytest.raises(FedfuseError, match="close it first"):
        start_simulation(federation, SoftmaxRegression().sized(federation.n_features, federation.n_classes))
