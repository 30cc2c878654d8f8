"""Flower starts a process for every message: a device's must not import what its order does not need."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")

HEAVY = ["torch", "numba", "pandas", "sklearn", "scipy", "matplotlib", "ray", "requests", "fedfuse.training.loop"]


def loaded_after(code):
    report = f"\nimport sys, json; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_device_app_imports_nothing_heavy():
    assert loaded_after("from fedfuse.flower import client_app; client_app(lambda name, config: None)") == []


def test_package_imports_nothing_heavy():
    assert loaded_after("import fedfuse") == []


ORDER = """
import sys; sys.path.insert(0, {tests!r})
import numpy as np
from fedfuse.flower import client_app
from fedfuse.flower.device_state import DeviceState
from fedfuse.flower.messages import Envelope, hello, write_order
from fedfuse.protocol.tasks import Order, SendMoments, Train
from fedfuse.protocol.local_work import Work
from support.local_grid import LocalGrid

SETUP = {{"seed": 0, "dtype": "float32", "classes": []}}
X = np.linspace(0, 1, 40).reshape(20, 2)
grid = LocalGrid(client_app(lambda name, config: (X, X[:, 0])), 1)
order = Envelope(Order(0, 0, {task}), "t.0", SETUP, DeviceState(np.zeros(3)))
for message in (hello(1000, 60.0), write_order(order, 1000, 60.0)):
    (number,) = grid.push_messages([message])
    (answer,) = grid.pull_messages([number])
    assert not answer.has_error(), answer.error
"""


@pytest.mark.parametrize("task", ["SendMoments(3)", "Train(Work())"])
def test_orders_import_what_they_compute_with(task, request):
    tests = str(request.path.parents[1])
    assert loaded_after(ORDER.format(tests=tests, task=task)) == []
