"""Worker processes: the same bits as in process, whoever does what and whatever dies.

Starting a process takes more than a second, so tests that can share an engine do.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.engines import InProcess, Workers, workers
from fedfuse.engines.workers import cut_into_lots
from fedfuse.errors import FedfuseError
from fedfuse.models import default_model
from fedfuse.models.linear import LinearRegression
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import (
    EvaluateModels,
    FitLocally,
    Gradient,
    GradientCosine,
    Install,
    Losses,
    Order,
    Rescale,
    SendMoments,
    SendSufficientStatistics,
    Train,
)
from fedfuse.training.loop import Callback
from fedfuse.utils.files import without_nan
from support.planted import planted

GD, SGD, EXACT = Work(steps=3, lr=0.05), Work(steps=2, lr=0.05, batch=8), Work(solver="exact")
LONG = 150.0  # seconds: on a busy machine a process takes many to begin


def until(holds, what):
    """Wait for something that happens in another process."""
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def model_for(federation):
    return default_model(federation.goal).sized(federation.n_features, federation.n_classes)


def perform(engine, orders):
    engine.submit(orders)
    return dict(all_replies(engine))


def all_replies(engine):
    while arrived := engine.collect():
        yield from ((r.device, r.values) for r in arrived)


def workers_of_this_process():
    return [process.pid for process in multiprocessing.active_children()]


def check_same(found, expected):
    assert sorted(found) == sorted(expected)
    for device, values in expected.items():
        assert found[device].dtype == values.dtype
        np.testing.assert_array_equal(found[device], values)


# ------------------------------------------------------------------------------------ the same bits


def all_tasks(federation, dtype):
    """Rounds of everything that a device may be asked, its memory and rescaled columns included."""
    model, p = model_for(federation), federation.n_features
    V = np.random.default_rng(1).normal(size=(5, model.d)).astype(dtype)
    columns = p + (federation.goal == "regression")
    shift, scale = np.linspace(-1, 1, columns), np.linspace(0.5, 2, columns)
    learning = (Install(V[0]), Train(GD), Train(GD, anchor=V[1], rho=0.5, score="validation"), Train(SGD))
    asking = (
        EvaluateModels(V, own=True), Train(EXACT, rho=0.3), Train(SGD, start=V[2], rows="train/1"),
        FitLocally((0.1, 1.0)),
        Gradient(V[3], also=("validation", "train/2")), Losses(V), GradientCosine(V[0], V[1]), SendMoments(columns),
        *([SendSufficientStatistics(columns)] if federation.goal == "regression" else []),
    )  # fmt: skip
    yield from learning
    yield from asking
    yield Rescale(shift, scale)
    yield from (*learning[1:], *asking)
    yield Rescale(np.zeros(columns), np.ones(columns))
    yield from (Train(GD), EvaluateModels(V, own=True))


@pytest.mark.parametrize(("goal", "dtype"), [("regression", "float64"), ("classification", "float32")])
def test_every_task_gives_the_bits_of_one_process(goal, dtype):
    """Nor do they depend on the order in which devices are asked; and closing twice is closing."""
    federation = planted(goal, m=8)
    options = {"seed": 3, "dtype": dtype}
    one = InProcess(federation, model_for(federation), **options)
    many = Workers(federation, model_for(federation), workers=2, **options)
    for k, task in enumerate(all_tasks(federation, dtype)):
        orders = [Order(i, k, task) for i in range(federation.m)]
        shuffled = [orders[i] for i in np.random.default_rng(k).permutation(federation.m)]
        check_same(perform(many, shuffled), perform(one, orders))
    assert many.collect() == []
    pids = workers_of_this_process()
    assert len(pids) == 2
    many.close()
    many.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    with pytest.raises(FedfuseError, match="this engine is closed"):
        many.submit([])


@pytest.mark.parametrize(
    ("goal", "method", "settings"),
    [
        ("classification", ff.FusionTree(), {"workers": 3}),
        ("regression", ff.FPFC(lam=0.5, work=SGD), {"workers": 1, "dtype": "float64", "participation": 0.5}),
    ],
)
def test_a_run_is_the_same_on_any_number_of_workers(goal, method, settings):
    federation = planted(goal, m=9)
    number = settings.pop("workers")
    one = ff.fit(federation, method, rounds=12, **settings)
    many = ff.fit(federation, method, rounds=12, engine="workers", workers=number, **settings)
    np.testing.assert_array_equal(many.models, one.models)
    np.testing.assert_array_equal(many.labels, one.labels)
    same = [without_nan({**result.summary(), "seconds": 0}) for result in (many, one)]
    assert same[0] == same[1]


class StopAfter(Callback):
    def __init__(self, k):
        self.k = k

    def on_round(self, run, row):
        if row["round"] == self.k:
            raise KeyboardInterrupt


@pytest.mark.parametrize("engine", [None, "inprocess"])
def test_an_interrupted_run_goes_on_where_it_was_or_elsewhere(engine, tmp_path):
    federation = planted()
    method = ff.FPFC(lam=0.5, work=GD)
    options = {"rounds": 12, "tol": 0, "participation": 0.5}
    with pytest.raises(KeyboardInterrupt):
        ff.fit(
            federation, method, out=tmp_path / "run", engine="workers", workers=1, callbacks=[StopAfter(5)], **options
        )
    assert json.loads((tmp_path / "run/config.json").read_text())["engine"] == {"name": "workers", "workers": 1}
    engines = []

    class Look(Callback):
        def on_start(self, run):
            engines.append(type(run.engine))

    result = ff.resume(tmp_path / "run", federation, [Look()], engine=engine)
    assert engines == [InProcess if engine else Workers]
    np.testing.assert_array_equal(result.models, ff.fit(federation, method, **options).models)


def test_the_longest_orders_go_first_and_short_ones_together():
    cost = np.array([5, 90, 20, 40, 5, 60, 5, 300])
    orders = [Order(i, 0, Train(GD)) for i in range(8)]
    lots = [[o.device for o in lot] for lot in cut_into_lots(orders[:7], cost, 2)]
    assert lots == [[1], [5], [3], [2], [0], [4, 6]]
    assert [o.device for lot in cut_into_lots(orders, cost, 1) for o in lot] == [7, 1, 5, 3, 2, 0, 4, 6]


# ------------------------------------------------------------------------- real concurrency, and death


@dataclass(frozen=True)
class Puppet(LinearRegression):
    """Does on a device what a file in a folder says: ``hold-3`` waits while it is there, ``die-3``, ``raise-3``."""

    folder: Path = Path()

    def train(self, data, devices, *args):
        for i in devices:
            (self.folder / f"pid-{i}").write_text(f"{os.getpid()} ")
            until(lambda i=i: not (self.folder / f"hold-{i}").exists(), "a release")
            if (self.folder / f"die-{i}").exists():
                os.kill(os.getpid(), signal.SIGKILL)
            if (self.folder / f"raise-{i}").exists():
                raise ZeroDivisionError("nothing to divide by")
        return super().train(data, devices, *args)


class Stage:
    """An engine of puppets in two workers, and the same devices in this process."""

    def __init__(self, folder):
        self.folder = folder
        self.federation = planted(m=6)
        model = Puppet(folder=folder).sized(self.federation.n_features, 0)
        self.engine = Workers(self.federation, model, workers=2, dtype=np.float64)
        self.twin = InProcess(self.federation, model_for(self.federation), dtype=np.float64)
        self.k = 0

    def orders(self, *devices, work=GD):
        """From each device's own last model, so that one training too many or too few would show."""
        self.k += 1
        return [Order(i, self.k, Train(work)) for i in devices]

    def tell(self, what, device):
        (self.folder / f"{what}-{device}").touch()

    def forget(self, what, device):
        (self.folder / f"{what}-{device}").unlink()

    def at_work(self, device):
        """Wait for a worker to begin with a device; return its process number."""
        path = self.folder / f"pid-{device}"
        until(lambda: path.exists() and path.read_text().endswith(" "), f"device {device}")
        return int(path.read_text())


@pytest.fixture(scope="module")
def puppets(tmp_path_factory):
    stage = Stage(tmp_path_factory.mktemp("puppets"))
    yield stage
    stage.engine.close()


@pytest.fixture
def stage(puppets):
    yield puppets
    for path in puppets.folder.iterdir():
        path.unlink()


def first_replies(engine):
    return {r.device: r.values for r in engine.collect()}


def test_replies_come_as_they_are_ready(stage):
    """While device 0 is at work, others are asked and answer; afterwards nothing is under way."""
    stage.tell("hold", 0)
    slow, quick, later = stage.orders(0), stage.orders(1), stage.orders(2)
    stage.engine.submit([*slow, *quick])
    check_same(first_replies(stage.engine), perform(stage.twin, quick))
    with pytest.raises(FedfuseError, match="device 'd0', Train of round 1: the device already has a pending order"):
        stage.engine.submit(slow)
    stage.engine.submit(later)
    check_same(first_replies(stage.engine), perform(stage.twin, later))
    stage.forget("hold", 0)
    check_same(first_replies(stage.engine), perform(stage.twin, slow))
    assert stage.engine.collect() == []


def test_the_orders_of_a_killed_worker_are_done_again(stage, caplog):
    """Killed in the middle of device 3's task, and for good measure between tasks."""
    stage.tell("hold", 3)
    orders = stage.orders(*range(6), work=SGD)

    def kill():
        os.kill(stage.at_work(3), signal.SIGKILL)
        stage.forget("hold", 3)

    killer = threading.Thread(target=kill)
    killer.start()
    replies = perform(stage.engine, orders)
    killer.join()
    check_same(replies, perform(stage.twin, orders))
    assert re.search(r"a worker died .*; its pending orders \(\d\) are repeated", caplog.text)
    for pid in workers_of_this_process():
        os.kill(pid, signal.SIGKILL)
    again = stage.orders(*range(6))
    check_same(perform(stage.engine, again), perform(stage.twin, again))


def test_an_order_that_kills_is_given_up_and_named(stage):
    stage.tell("die", 2)
    deadly, others = stage.orders(2), stage.orders(0, 1, 3)
    stage.engine.submit([*deadly, *others])
    replies = {}
    words = r"device 'd2', Train of round \d+: 3 workers died on it"
    with pytest.raises(FedfuseError, match=words):
        replies.update(all_replies(stage.engine))
    replies.update(all_replies(stage.engine))
    check_same(replies, perform(stage.twin, others))
    stage.forget("die", 2)
    again = stage.orders(*range(6))
    check_same(perform(stage.engine, again), perform(stage.twin, again))


def test_an_error_names_the_device_and_logs_where_it_was(stage, caplog):
    stage.tell("raise", 4)
    bad, others = stage.orders(4), stage.orders(0, 1, 2, 3, 5)
    stage.engine.submit([*bad, *others])
    replies = {}
    with pytest.raises(FedfuseError, match=r"device 'd4', Train of round \d+: ZeroDivisionError: nothing to divide by"):
        replies.update(all_replies(stage.engine))
    assert re.search(r"Traceback(.|\n)*in train\n", caplog.text)
    replies.update(all_replies(stage.engine))
    check_same(replies, perform(stage.twin, others))


def test_workers_that_cannot_begin_are_not_started_for_ever(monkeypatch):
    monkeypatch.setattr(workers, "begin", os._exit)  # ends at once: a pipe is no exit code
    federation = planted()
    engine = Workers(federation, model_for(federation), workers=1)
    engine.submit([Order(0, 0, Train(GD))])
    with pytest.raises(FedfuseError, match=r"3 workers died on it, or before they began\. In a script.*__main__"):
        engine.collect()
    engine.close()


class HasLambda(LinearRegression):
    def __getstate__(self):
        return {"f": lambda: None}


def test_bad_choices_are_refused_before_anything_starts():
    federation = planted()
    with pytest.raises(FedfuseError, match="need a model that can be pickled"):
        Workers(federation, HasLambda(n_features=federation.n_features))
    for number in (0, 1.5, True - 1):
        with pytest.raises(FedfuseError, match="workers must be a whole number of at least 1"):
            Workers(federation, model_for(federation), workers=number)


# ------------------------------------------------------------------------------ what is left behind

RUN = [
    "run", "synthetic:S4", "--lam", "0.6", "--rounds", "1000000", "--engine", "workers", "--no-baselines",
    "--set", "workers=2", "--set", "tol=0", "--set", "checkpoint_every=1",
]  # fmt: skip


@pytest.fixture
def running(tmp_path):
    """A run of the command line that would never end, in a process group of its own."""
    words = [sys.executable, "-m", "fedfuse", *RUN, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        until((tmp_path / "run/checkpoint/latest.npz").exists, "the first round")
        yield process
    finally:
        if group_lives(process):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def group_lives(process):
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def shared_memory(process):
    """Return the names in /dev/shm that processes of a group have mapped and that exist."""
    members = [int(p.name) for p in Path("/proc").glob("[0-9]*") if in_group(int(p.name), process.pid)]
    assert len(members) >= 3
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in members]
    return {name for text in maps for name in re.findall(r"/dev/shm/\S+", text) if Path(name).exists()}


def in_group(pid, group):
    with suppress(ProcessLookupError, PermissionError):
        return os.getpgid(pid) == group
    return False


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")
@pytest.mark.parametrize("end", ["Ctrl-C", "kill -9"])
def test_nothing_is_left_behind(running, end, tmp_path):
    """No process and no memory, whether the terminal interrupts all processes or the parent alone is killed."""
    names = shared_memory(running)
    if end == "Ctrl-C":
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(LONG) == 130
        said = running.stderr.read().strip().splitlines()[-1]
        assert said == f"fedfuse: interrupted; continue with: fedfuse resume {tmp_path / 'run'}"
    else:
        os.kill(running.pid, signal.SIGKILL)
        running.wait(LONG)
    until(lambda: not group_lives(running), "the end of all processes")
    assert not [name for name in names if Path(name).exists()]
