"""On a real SuperLink with real SuperNodes, on loopback: the same results, and what happens when processes are killed.

A message takes seconds in deployment, whatever its work: Flower starts a process for each.
"""

import json
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")

import fedfuse as ff
from fedfuse.flower.project_template import write_app
from fedfuse.results.result import Result
from fedfuse.results.run_directory import RunDirectory
from support.flower_cluster import Cluster, wait_for

pytestmark = pytest.mark.slow

TASK = """
import numpy as np


def federation():
    from fedfuse.data.federation import Federation

    rng = np.random.default_rng(5)
    slopes = [np.array([1.0, 2.0]), np.array([-2.0, 1.0])]
    Xs = rng.normal(size=(6, 50, 2))
    data = {str(i): (X, X @ slopes[i // 3] + 0.1 * rng.normal(size=50)) for i, X in enumerate(Xs)}
    return Federation.from_arrays(data, truth=[0, 0, 0, 1, 1, 1])


def load(device, config):
    return federation().only([int(device)])


def model():
    return None
"""
GROUPS = [0, 0, 0, 1, 1, 1]


@pytest.fixture
def app(tmp_path):
    write_app(tmp_path / "six")
    (tmp_path / "six" / "six" / "task.py").write_text(TASK)
    return tmp_path / "six"


@pytest.fixture
def federation():
    names = {}
    exec(TASK, names)
    return names["federation"]()


EXACT = ff.Work(solver="exact")
RUNS = {
    "fpfc": (ff.FPFC(lam=0.5, work=EXACT, refit=False), 4, "lam='0.5' set='solver=exact refit=no tol=0'"),
    "fedavg": (ff.FedAvg(work=EXACT), 2, "set='solver=exact tol=0'"),
    "ifca": (ff.IFCA(n_models=2, average="model", work=EXACT), 3, "set='solver=exact n_models=2 average=model tol=0'"),
}


def test_same_as_in_process(app, federation, tmp_path):
    with Cluster(tmp_path / "c", 6) as cluster:
        for k in range(6):
            cluster.start_node(k, f'device="{k}"')
        wait_for(lambda: cluster.online() == 6, 300, "six SuperNodes")
        for name, (method, rounds, words) in RUNS.items():
            out = tmp_path / name
            config = f"method='{name}' num-server-rounds={rounds} num-devices=6 out='{out}' {words}"
            cluster.finish(cluster.run(app, config), out, 600)
            there, here = Result.load(out), ff.fit(federation, method, rounds=rounds, tol=0)
            assert there.labels.tolist() == here.labels.tolist()
            assert np.abs(there.models - here.models).max() <= 1e-5
            assert there.score("test") == pytest.approx(here.score("test"), abs=1e-5)
        out = tmp_path / "async"
        words = "lam='0.5' set='solver=exact refit=no tol=0 mode=async'"
        cluster.finish(cluster.run(app, f"num-server-rounds=24 num-devices=6 out='{out}' {words}"), out, 600)
        assert Result.load(out).labels.tolist() == GROUPS


def round_of(out):
    """The round after which a run was last saved."""
    saved = RunDirectory(out).load_checkpoint() if (out / "checkpoint" / "latest.npz").exists() else None
    return saved[0]["k"] if saved else 0


def test_killed_and_continued_with_tls_and_keys(app, tmp_path):
    if not shutil.which("openssl") or not shutil.which("ssh-keygen"):
        pytest.skip("needs openssl and ssh-keygen")
    out = tmp_path / "run"
    config = f"lam='0.5' set='solver=exact refit=no tol=0 deadline=60' num-server-rounds=9 out='{out}'"
    config += " num-devices=6 identities='registered'"
    with Cluster(tmp_path / "c", 7, tls=True) as cluster:
        for k in range(6):
            cluster.key(f"node{k}", device=str(k))
            cluster.start_node(k, f'device="{k}"')
        cluster.key("node6")  # nobody has registered it
        cluster.start_node(6, 'device="0"')
        wait_for(lambda: cluster.online() == 6, 300, "six SuperNodes")
        assert cluster.processes.pop("node6").wait(60) != 0  # it gets nothing, and ends

        cluster.run(app, config)
        wait_for(lambda: round_of(out) >= 2, 300, "the second round")
        wait_for(lambda: cluster.children("flwr-clientapp"), 120, "work on a device")
        cluster.stop("node3", signal.SIGKILL)  # in mid-round
        killed = time.monotonic()
        done = round_of(out)
        wait_for(lambda: round_of(out) >= done + 1, 300, "a round without it")
        for server in cluster.children("flwr-serverapp"):
            subprocess.run(["kill", "-9", str(server)], check=False)
        before = round_of(out)
        assert not (out / "summary.json").exists()

        again = cluster.run(app, config)
        while time.monotonic() < killed + 62:  # until then Flower takes the old one for alive
            time.sleep(1)
        cluster.start_node(3, 'device="3"')
        summary = cluster.finish(again, out, 600)
    history = Result.load(out).history
    assert summary["labels"] == GROUPS
    assert history["round"].tolist() == list(range(9))
    assert history["replies"].iloc[:2].tolist() == [6, 6]
    assert (history["replies"] == 5).any()  # without the one that was killed
    assert history["replies"].iloc[-1] == 6  # with it again
    assert before >= done + 1
    assert json.loads((out / "summary.json").read_text())["orders"]["unanswered"] > 0


def test_a_superlink_that_restarts(app, tmp_path):
    """Nodes come back by themselves; the run is started again with the same directory, and goes on."""
    if not shutil.which("openssl") or not shutil.which("ssh-keygen"):
        pytest.skip("needs openssl and ssh-keygen")
    out = tmp_path / "run"
    config = f"lam='0.5' set='solver=exact refit=no tol=0 deadline=60' num-server-rounds=5 num-devices=6 out='{out}'"
    with Cluster(tmp_path / "c", 6, tls=True) as cluster:
        for k in range(6):
            cluster.key(f"node{k}", device=str(k))
            cluster.start_node(k, f'device="{k}"')
        wait_for(lambda: cluster.online() == 6, 300, "six SuperNodes")
        cluster.run(app, config)
        wait_for(lambda: round_of(out) >= 2, 300, "the second round")
        cluster.stop("link", signal.SIGKILL)
        for process in cluster.children("flwr-serverapp"):  # it had the link for a parent
            subprocess.run(["kill", "-9", str(process)], check=False)
        assert not (out / "summary.json").exists()
        cluster.start_link()
        wait_for(lambda: cluster.online() == 6, 300, "six SuperNodes again")
        summary = cluster.finish(cluster.run(app, config), out, 600)
    history = Result.load(out).history
    assert summary["labels"] == GROUPS
    assert history["round"].tolist() == list(range(5))
    assert history["replies"].iloc[-1] == 6
