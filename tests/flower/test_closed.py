"""The federation of deploy/ on loopback: nodes with keys work through the gate, a stranger can run nothing.

The processes are started with the very command lines of the systemd units, in directories and on ports of the test.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")

from test_deployment import GROUPS, TASK

from fedfuse.flower.project_template import write_app
from support.flower_cluster import BIN, LINK, Cluster, free_ports, wait_for

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
DEVICES = 6
# What a stranger would have run on every node.
SPY = """
from pathlib import Path
Path({mark!r}).touch()
"""


def unit(name: str, places: dict[str, str]) -> list[str]:
    """The command line of a unit, with places of the test."""
    text = (DEPLOY / name).read_text().replace("\\\n", " ")
    line = re.search(r"^ExecStart=/usr/bin/env (.*)$", text, re.MULTILINE)[1]
    for here, there in places.items():
        line = line.replace(here, there)
    return shlex.split(line)


class Closed(Cluster):
    """A federation as deploy/ starts it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, DEVICES, tls=True)
        (self.gate,) = free_ports(1)
        self.state = folder / "state"
        self.state.mkdir()
        self.places = {
            "/etc/fedfuse": str(folder), "/var/lib/fedfuse": str(self.state), "/opt/fedfuse": str(DEPLOY),
            "--port 8000": f"--port {self.port}", "127.0.0.1:8000": f"127.0.0.1:{self.port}",
            "0.0.0.0:8443": f"127.0.0.1:{self.gate}", "link.example.org:8443": f"127.0.0.1:{self.gate}",
        }  # fmt: skip

    def certify(self) -> None:
        names = [str(k) for k in range(DEVICES)]
        words = [str(DEPLOY / "make-certificates.sh"), str(self.folder), "link.example.org", *names]
        subprocess.run(words, check=True)

    def start_link(self) -> None:
        self._start("link", *unit("fedfuse-superlink.service", self.places))
        wait_for(self._healthy, 300, "the SuperLink")
        program, *words = unit("fedfuse-gate.service", self.places)
        assert program == "python"
        self._start("gate", sys.executable, *words)
        wait_for(lambda: self.reach(self.gate, "/"), 200, "the gate")

    def start_device(self, k: int) -> None:
        """A node as its unit starts it, with a port of its own for what it runs."""
        words = unit("fedfuse-supernode@.service", {"%i": str(k), **self.places})
        self._start(f"node{k}", *words, "--port", str(self.ports[k]))

    def reach(self, port: int, path: str, method: str = "GET") -> int:
        """The status with which a stranger is answered, who has the address and the certificate."""
        trust = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", method=method, data=b"")
        try:
            with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as problem:
            return problem.code

    def stranger(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Flower's command line of somebody with the address of the gate and the certificate of the authority."""
        home = self.folder / "stranger"
        home.mkdir(exist_ok=True)
        text = (
            f'[superlink.{LINK}]\naddress = "127.0.0.1:{self.gate}"\nroot-certificates = "{self.folder / "ca.crt"}"\n'
        )
        (home / "config.toml").write_text(text)
        env = self.env | {"FLWR_HOME": str(home)}
        return subprocess.run(
            [str(BIN / "flwr"), *words], env=env, capture_output=True, text=True, check=False, timeout=120,
            cwd=self.folder,
        )  # fmt: skip


def told(out):
    """The events of a run's audit log."""
    log = out / "audit.jsonl"
    return [json.loads(line)["event"] for line in log.read_text().splitlines()] if log.exists() else []


def listeners(ports):
    """Addresses on which something listens on these ports."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found = [row[1].split(":") for row in rows if row[3] == "0A"]
    return {socket.inet_ntoa(bytes.fromhex(a)[::-1]) for a, port in found if int(port, 16) in ports}


def test_a_stranger_can_run_nothing_and_nodes_with_keys_can(tmp_path):
    if not all(shutil.which(program) for program in ("openssl", "ssh-keygen")):
        pytest.skip("needs openssl and ssh-keygen")
    app, spy, mark, out = tmp_path / "six", tmp_path / "spy", tmp_path / "mark", tmp_path / "run"
    for name in (app, spy):
        write_app(name)
        (name / name.name / "task.py").write_text(TASK)
    for file in ("client_app.py", "server_app.py"):
        path = spy / "spy" / file
        path.write_text(SPY.format(mark=str(mark)) + path.read_text())
    with Closed(tmp_path / "c") as cluster:
        for k in range(DEVICES):
            (cluster.folder / f"{k}.toml").write_text("min-rows = 5\n")
            cluster.flwr("supernode", "register", str(cluster.folder / f"{k}.pub"), LINK, "--name", str(k))
            cluster.start_device(k)
        wait_for(lambda: cluster.online() == DEVICES, 400, "six SuperNodes through the gate")
        assert listeners([cluster.port]) == {"127.0.0.1"}

        # Nothing but messages of nodes is known at the gate, and these need a key.
        for path in ("/", "/health", "/docs", "/openapi.json", "/v1/control/list-runs", "/v1/runtime/pull-task-input"):
            for method in ("GET", "POST"):
                assert cluster.reach(cluster.gate, path, method) == 404, path
        for path in (
            "/v1/fleet/../control/start-run",
            "/v1/fleet/%2e%2e/control/start-run",
            "/v1/fleet//x",
            "/v1/fleet/a?b",
        ):
            assert cluster.reach(cluster.gate, path, "POST") == 404, path
        assert cluster.reach(cluster.gate, "/v1/fleet/pull-messages", "POST") in (400, 401, 415, 422)
        for words in (("run", str(spy), LINK), ("supernode", "list", LINK), ("list", LINK)):
            assert cluster.stranger(*words).returncode != 0
        strange = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(cluster.folder / "strange")]
        subprocess.run(strange, check=True)
        (port,) = free_ports(1)
        node = unit("fedfuse-supernode@.service", {"%i": "strange", **cluster.places})
        cluster._start("strange", *node, "--port", str(port))
        process = cluster.processes["strange"]
        wait_for(lambda: process.poll() is not None, 200, "the end of a node with an unknown key")
        assert process.returncode != 0
        assert json.loads(cluster.flwr("list", LINK, "--format", "json"))["runs"] == []

        # Who has an account on the SuperLink's host starts a run, and the nodes do what they allow.
        config = f"lam='0.5' set='solver=exact refit=no tol=0' num-server-rounds=4 num-devices=6 out='{out}'"
        run = cluster.run(app, config)
        wait_for(lambda: "round" in told(out), 900, "the first round")
        for process in cluster.children("flwr-serverapp"):
            os.kill(process, signal.SIGTERM)
        wait_for(lambda: not cluster.children("flwr-serverapp"), 300, "the end of the server's app")
        assert told(out)[-1] == "stopped"
        assert not (out / "summary.json").exists()
        wait_for(lambda: cluster.status(run).startswith("finished"), 300, "the SuperLink to know of it")
        summary = cluster.finish(cluster.run(app, config), out, 600)
        assert summary["labels"] == GROUPS
        assert told(out).count("round") == 4  # Nothing was done twice, nothing left out.
        assert told(out)[-1] == "end"
        assert not mark.exists()
    assert os.listdir(cluster.state)  # noqa: PTH208
