"""A Flower federation on loopback: one SuperLink and SuperNodes, real processes that end with the test."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
LINK = "here"
DEPLOY = Path(__file__).parents[2] / "deploy"
EVALUATION_ROUND = 30  # seconds between two looks at whether a run has failed


def free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def wait_for(what: Callable[[], Any], seconds: float, name: str) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if what():
                return
        except (OSError, ValueError, subprocess.SubprocessError):
            pass
        time.sleep(0.3)
    raise TimeoutError(f"{name} did not happen within {seconds} seconds")


class Cluster:
    """Starts and ends processes; ``tls`` for certificates and authentication, ``simulation`` for virtual nodes."""

    def __init__(self, folder: Path, nodes: int = 0, *, tls: bool = False, simulation: bool = False) -> None:
        self.folder, self.tls, self.simulation = folder, tls, simulation
        folder.mkdir(parents=True, exist_ok=True)
        self.home = folder / "home"
        self.home.mkdir()
        self.short = tempfile.mkdtemp(prefix="r")  # Ray's sockets must have short names
        self.env = os.environ | {
            "FLWR_HOME": str(self.home),
            "FEDFUSE_STATE": str(folder / "fedfuse-state"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": self.short,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        self.port, *self.ports = free_ports(1 + nodes)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        how = f'root-certificates = "{folder / "ca.crt"}"' if tls else "insecure = true"
        text = f'[superlink]\ndefault = "{LINK}"\n[superlink.{LINK}]\naddress = "127.0.0.1:{self.port}"\n{how}\n'
        (self.home / "config.toml").write_text(text)

    def __enter__(self) -> Cluster:
        try:
            if self.tls:
                self.certify()
            self.start_link()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *problem: object) -> None:
        for name in sorted(self.processes, reverse=True):  # nodes before the link
            self.stop(name)
        self._sweep()
        shutil.rmtree(self.short, ignore_errors=True)

    # -- processes

    def start_link(self) -> None:
        how = ["--insecure"]
        if self.tls:
            files = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.pem", "--ssl-keyfile": "server.key"}
            how = [word for option, file in files.items() for word in (option, str(self.folder / file))]
            how += ["--enable-supernode-auth", "--database", str(self.folder / "state.db")]
        how += ["--simulation"] if self.simulation else []
        self._start("link", "flower-superlink", *how, "--host", "127.0.0.1", "--port", str(self.port))
        wait_for(self._healthy, 300, "the SuperLink")

    def start_node(self, k: int, config: str, key: str | None = None, link: int | None = None) -> None:
        how = ["--root-certificates", str(self.folder / "ca.crt")] if self.tls else ["--insecure"]
        if self.tls:
            how += ["--auth-supernode-private-key", str(self.folder / (key or f"node{k}"))]
        place = ["--host", "127.0.0.1", "--port", str(self.ports[k])]
        there = ["--superlink", f"127.0.0.1:{link or self.port}"]
        words = [*how, *there, *place, "--node-config", config]
        self._start(f"node{k}", sys.executable, str(DEPLOY / "supernode.py"), *words)

    def signal_node(self, k: int, how: int) -> None:
        """Send a signal to a node and all that it has started, as where its whole machine fails."""
        os.killpg(self.processes[f"node{k}"].pid, how)
        if how == signal.SIGKILL:
            self.processes[f"node{k}"].wait()

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        process = self.processes.pop(name)
        process.send_signal(how)
        try:
            process.wait(15)  # a zombie counts as alive for its children
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)

    def _start(self, name: str, program: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / program), *words], stdout=log, stderr=log, env=self.env, start_new_session=True,
                cwd=self.folder,
            )  # fmt: skip

    def _sweep(self) -> None:
        """End what our processes have left behind: all that carries our own FLWR_HOME."""
        mark, end = f"FLWR_HOME={self.home}".encode(), time.monotonic() + 8
        while left := [pid for pid in _pids() if mark in _environment(pid)]:
            if time.monotonic() > end:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.2)

    def children(self, word: str) -> list[int]:
        """Processes of this federation with a word in their command line."""
        mark = f"FLWR_HOME={self.home}".encode()
        return [p for p in _pids() if mark in _environment(p) and word.encode() in _read(p, "cmdline")]

    def processor_seconds(self) -> float:
        """What our processes and those that they have started and waited for have used."""
        stats = [_read(pid, "stat").rpartition(b")")[2].split() for pid in self.children("")]
        return sum(sum(map(int, fields[11:15])) for fields in stats) / os.sysconf("SC_CLK_TCK")

    # -- the command line

    def flwr(self, *words: str, timeout: float = 90) -> str:
        done = subprocess.run(
            [str(BIN / "flwr"), *words], env=self.env, timeout=timeout, capture_output=True, text=True, check=False,
            cwd=self.folder,
        )  # fmt: skip
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stderr)
        return done.stdout

    def online(self) -> int:
        nodes = json.loads(self.flwr("supernode", "list", LINK, "--format", "json"))["nodes"]
        return sum(node["status"] == "online" for node in nodes)

    def run(self, app: Path, config: str = "", federation: str = "") -> str:
        words = ["--run-config", config] if config else []
        words += ["--federation-config", federation] if federation else []
        return str(json.loads(self.flwr("run", str(app), LINK, "--format", "json", *words))["run-id"])

    def status(self, run: str) -> str:
        return str(json.loads(self.flwr("list", LINK, "--run-id", run, "--format", "json"))["runs"][0]["status"])

    def finish(self, run: str, out: Path, seconds: float) -> dict[str, Any]:
        """Wait for the end of a run, which must be a good one; return its summary.

        The run's directory is watched: each call of Flower's command line takes seconds of the machine's time.
        """
        end, next_look = time.monotonic() + seconds, time.monotonic() + EVALUATION_ROUND
        while not (out / "summary.json").exists():
            now = time.monotonic()
            if now > end:
                raise TimeoutError(f"the run did not end within {seconds} seconds:\n{self.log()}")
            if now > next_look:
                next_look = now + EVALUATION_ROUND
                self._check_alive(run, out)
            time.sleep(0.3)
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
        return summary

    def _check_alive(self, run: str, out: Path) -> None:
        with suppress(subprocess.TimeoutExpired):  # a busy machine may have no time for it
            over = self.status(run).startswith("finished") and not (out / "summary.json").exists()
            assert not over, self.flwr("log", run, LINK, "--show") + self.log()

    def log(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-3000:]}" for log in logs)

    # -- certificates and keys

    def certify(self) -> None:
        """Make a certificate for the link, signed by an authority of our own."""
        at = self.folder
        (at / "ext.cnf").write_text(
            "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n"
        )
        for line in (
            "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout ca.key -out ca.crt -subj /CN=fedfuse-test"
            " -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign",
            "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost",
            "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext.cnf"
            " -out server.pem",
        ):
            subprocess.run(["openssl", *line.split()], cwd=at, check=True, capture_output=True)

    def key(self, name: str, *, device: str | None = None) -> None:
        """Make a node's key; with a device, register it under that name."""
        words = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(self.folder / name)]
        subprocess.run(words, check=True, capture_output=True)
        if device is not None:
            self.flwr("supernode", "register", str(self.folder / f"{name}.pub"), LINK, "--name", device)

    def _healthy(self) -> bool:
        import ssl

        trust = ssl.create_default_context(cafile=str(self.folder / "ca.crt")) if self.tls else None
        url = f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}/health"
        with urllib.request.urlopen(url, timeout=1, context=trust) as answer:
            return bool(answer.status == 200)


def _pids() -> list[int]:
    return [int(d.name) for d in Path("/proc").iterdir() if d.name.isdigit() and int(d.name) != os.getpid()]


def _environment(pid: int) -> list[bytes]:
    return _read(pid, "environ").split(b"\0")


def _read(pid: int, what: str) -> bytes:
    try:
        return (Path("/proc") / str(pid) / what).read_bytes()
    except OSError:
        return b""
