"""Real nodes that are killed, stopped, lie and have slow links; full disks, changed tables, a SuperLink that is lost.

Ten faults happen to one run on loopback (``-s`` prints the table of docs/flower.md): it ends with the right groups, and
its audit log tells the story.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from datetime import datetime

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")

from test_deployment import GROUPS

from fedfuse.flower.messages import CHANGED
from fedfuse.flower.node_registry import NEW
from fedfuse.flower.project_template import write_app
from fedfuse.results.result import Result
from support.flower_cluster import LINK, Cluster, wait_for
from support.slow_link import SlowLink

pytestmark = pytest.mark.slow

TASK = """
import numpy as np


def load(device, config):
    table = np.loadtxt(config["data"], delimiter=",")
    return table[:, :-1], table[:, -1]


def model():
    return None
"""
# One node records what it says of itself, another says the same bytes again.
CLIENT = """
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedfuse.flower import client_app
from faults.task import load, model

honest = client_app(load, model)


class Recorded(ClientApp):
    def __call__(self, message, context):
        file, hello = context.node_config.get("record", ""), message.metadata.message_type == "query.hello"
        if file and hello and Path(file).exists():
            said = ConfigRecord({"hello": Path(file).read_text()})
            return Message(RecordDict({"config": said}), reply_to=message)
        answer = honest(message, context)
        if file and hello:
            Path(file).write_text(answer.content["config"]["hello"])
        return answer


app = Recorded()
"""
NODE_STOP_SECONDS = 60


def write_table(path, group, columns=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, columns))
    y = X[:, :2] @ ([1.0, 2.0], [-2.0, 1.0])[group] + 0.1 * rng.normal(size=60)
    new = path.with_suffix(".new")
    np.savetxt(new, np.column_stack([X, y]), delimiter=",")
    new.replace(path)  # A node never reads half of it.


class Story:
    """A run's audit log, and what a test waits for in it."""

    def __init__(self, out):
        self.path = out / "audit.jsonl"

    def lines(self, event, **facts):
        text = self.path.read_text() if self.path.exists() else ""
        all_ = [json.loads(line) for line in text.splitlines()]
        return [line for line in all_ if line["event"] == event and facts.items() <= line.items()]

    def wait(self, event, seconds=900, more_than=0, **facts):
        wait_for(lambda: len(self.lines(event, **facts)) > more_than, seconds, f"{event} {facts}")
        return self.lines(event, **facts)[more_than]


@pytest.fixture
def keys():
    if not shutil.which("openssl") or not shutil.which("ssh-keygen"):
        pytest.skip("needs openssl and ssh-keygen")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of four megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a small file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=False)


def an_app(folder):
    write_app(folder)
    (folder / "faults" / "task.py").write_text(TASK)
    (folder / "faults" / "client_app.py").write_text(CLIENT)
    return folder


def test_deadlines_hold_with_a_node_killed_in_mid_upload_and_one_stopped(tmp_path, keys):
    """0.1.0 had a round of 200 s with a deadline of 60: a pull waited for what the dead node had begun to send."""
    app, out, deadline = an_app(tmp_path / "faults"), tmp_path / "run", 45
    story = Story(out)
    with Cluster(tmp_path / "c", 4, tls=True) as cluster:
        link = SlowLink(cluster.port, rate=8000.0)
        for k in range(4):
            write_table(tmp_path / f"{k}.csv", 0, columns=3000, seed=k)
            cluster.key(f"node{k}", device=str(k))
            cluster.start_node(k, f'device="{k}" data="{tmp_path / f"{k}.csv"}"', link=link.port if k == 3 else None)
        wait_for(lambda: cluster.online() == 4, 200, "four SuperNodes")
        words = f"method='fedavg' set='steps=1 lr=1e-4 tol=0 deadline={deadline}' num-server-rounds=4 num-devices=4"
        run = cluster.run(app, f"{words} out='{out}'")
        story.wait("asked", device="3", round=1)
        before = link.up
        wait_for(lambda: link.up > before + 10_000, 200, "an upload")  # Of 12 kB for the model, and some for requests.
        cluster.signal_node(3, signal.SIGKILL)
        cluster.signal_node(2, signal.SIGSTOP)
        cluster.finish(run, out, 600)
        cluster.signal_node(2, signal.SIGCONT)
        link.close()
    print_table(story)
    rounds = story.lines("round")
    assert [line["round"] for line in rounds] == [0, 1, 2, 3]
    assert rounds[0]["replies"] == 4
    assert rounds[-1]["replies"] == 2
    seconds = np.diff([r["seconds"] for r in rounds], prepend=0)
    assert seconds.max() < 1.5 * deadline
    assert {line["device"] for line in story.lines("unanswered")} == {"2", "3"}


def test_ten_faults_in_one_run(tmp_path, keys, small_disk):
    app, out = an_app(tmp_path / "faults"), small_disk / "run"
    story, table = Story(out), tmp_path / "{}.csv"
    config = f"lam='0.5' set='solver=exact refit=no tol=0 deadline=60' num-server-rounds=24 out='{out}' num-devices=7"

    def start(cluster, k):
        record = f' record="{tmp_path / "hello"}"' if k in (0, 7) else ""
        device = 0 if k == 7 else k  # What it says is not even read: it says again what 0 has said.
        words = f'device="{device}" data="{str(table).format(device)}"{record}'
        cluster.start_node(k, words, link=link.port if k == 5 else None)

    def restart_ended(cluster):
        """Start nodes again, as systemd would: Flower ends those of dead twins, and where a TLS handshake is cut."""
        for k in range(6):
            if cluster.processes[f"node{k}"].poll() is not None:
                start(cluster, k)

    def wait_restarting(cluster, event, seconds=900, **facts):
        """Wait for a new event, while nodes that have ended are started again."""

        def happened():
            restart_ended(cluster)
            return len(story.lines(event, **facts)) > before

        before = len(story.lines(event, **facts))
        wait_for(happened, seconds, f"{event} {facts}")

    def end_of(cluster, run):
        wait_for(lambda: cluster.status(run).startswith("finished"), 200, "the SuperLink to know of it")

    with Cluster(tmp_path / "c", 8, tls=True) as cluster:
        link = SlowLink(cluster.port, rate=20_000.0)
        for k in range(7):
            write_table(tmp_path / f"{k}.csv", int(k >= 3), columns=3 if k == 6 else 2, seed=k)
            cluster.key(f"node{k}", device=str(k))
            start(cluster, k)
        wait_for(lambda: cluster.online() == 7, 300, "seven SuperNodes")
        run = cluster.run(app, config)
        story.wait("round")

        # Who has other columns was left out before; who says again what another has said is now.
        cluster.key("node7", device="7")
        start(cluster, 7)
        claim = "it claims to be device '0', but its key is registered as '7'"
        assert story.wait("left out", reason=claim)["device"] == "7"

        # One is killed, one stopped for a minute, and one has another table.
        cluster.signal_node(1, signal.SIGKILL)
        cluster.signal_node(2, signal.SIGSTOP)
        stopped = time.monotonic()
        write_table(tmp_path / "3.csv", 0, seed=33)
        story.wait("left out", device="3", reason=CHANGED)
        write_table(tmp_path / "3.csv", 1, seed=3)
        wait_for(lambda: time.monotonic() > stopped + NODE_STOP_SECONDS, 2 * NODE_STOP_SECONDS, "a minute")
        cluster.signal_node(2, signal.SIGCONT)
        wait_restarting(cluster, "answered", device="1")
        wait_restarting(cluster, "round", replies=6)

        # The server's disk is full: one line, and the same run again when there is room.
        filler = small_disk / "filler"
        with filler.open("wb") as file:
            while (free := shutil.disk_usage(small_disk).free) > 16_384:
                file.write(b"x" * (free - 16_384))
                file.flush()
        end_of(cluster, run)
        said = cluster.flwr("log", run, LINK, "--show")
        filler.unlink()
        run = cluster.run(app, config)
        wait_restarting(cluster, "round", replies=6)

        # The server's app is told to stop, and another node is killed.
        cluster.signal_node(4, signal.SIGKILL)
        ended = len(story.lines("stopped"))
        for process in cluster.children("flwr-serverapp"):
            os.kill(process, signal.SIGTERM)
        wait_for(lambda: len(story.lines("stopped")) > ended, 200, "the end of the server's app")
        end_of(cluster, run)
        run = cluster.run(app, config)
        wait_restarting(cluster, "answered", device="4")
        wait_restarting(cluster, "round", replies=6)

        # The SuperLink is lost, and comes back.
        cluster.stop("link", signal.SIGKILL)
        for process in cluster.children("flwr-serverapp"):
            os.kill(process, signal.SIGKILL)
        cluster.start_link()
        wait_for(lambda: cluster.online() >= 6, 300, "six SuperNodes again")
        run = cluster.run(app, config)
        wait_restarting(cluster, "round", replies=6)
        summary = cluster.finish(run, out, 600)
        link.close()
    print_table(story)
    assert summary["labels"] == GROUPS
    assert "No space left on device" in said
    rounds = story.lines("round")
    assert sorted({line["round"] for line in rounds}) == list(range(24))
    assert rounds[-1]["replies"] == 6
    assert len(story.lines("start")) == 4
    assert len(story.lines("end")) == 1
    assert story.lines("left out", device="6")[0]["reason"] == "it has columns 3, most others 2"
    assert len(story.lines("hello", device="3")) > len(story.lines("hello", device="0"))
    for device in ("1", "2", "4"):
        assert story.lines("unanswered", device=device)
    assert len(story.lines("stopped", reason="told to stop")) == 1
    assert summary["left_out"] == {"6": NEW, "7": claim}
    assert Result.load(out).score("test") < 0.15


def print_table(story):
    """What happened, by the audit log."""
    for line in map(json.loads, story.path.read_text().splitlines()):
        if line["event"] not in ("asked", "answered"):
            words = {key: value for key, value in line.items() if key not in ("time", "event", "policy", "fedfuse")}
            print(line["time"][11:19], line["event"], words)
    for device in "012345":
        asked = {line["round"]: datetime.fromisoformat(line["time"]) for line in story.lines("asked", device=device)}
        heard = {line["round"]: datetime.fromisoformat(line["time"]) for line in story.lines("answered", device=device)}
        seconds = [(heard[k] - asked[k]).total_seconds() for k in heard]
        print(f"device {device} answers after {np.median(seconds):.0f} s")
