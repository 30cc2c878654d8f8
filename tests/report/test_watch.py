"""A run that goes on, seen from outside: in a terminal, in a pipe, in a browser."""

import base64
import hashlib
import io
import json
import re
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

import fedfuse as ff
from fedfuse.errors import FedfuseError
from fedfuse.report.watch import LiveServer, Progress, live_page, picture, read_progress, watch
from fedfuse.results.run_directory import ROUNDS
from fedfuse.utils.page_server import LOOPBACK
from support.planted import planted


class Stop(ff.Callback):
    def __init__(self, after):
        self.after = after

    def on_round(self, run, row):
        if run.k == self.after:
            raise KeyboardInterrupt


def unfinished(place, after=8, **settings):
    with pytest.raises(KeyboardInterrupt):
        ff.fit(
            planted(), ff.FPFC(lam=0.4, refit=False), rounds=30, tol=0, out=place, dataset="<b>d</b>",
            callbacks=[Stop(after)], evaluate_every=2, checkpoint_every=1, **settings,
        )  # fmt: skip


def finished(place):
    return ff.fit(planted(), ff.FPFC(lam=0.4, refit=False), rounds=12, out=place, evaluate_every=2)


@pytest.fixture
def all_rounds(monkeypatch):
    """Write every round down at once."""
    monkeypatch.setattr("fedfuse.training.progress.WRITE_SECONDS", -1.0)


def shown(looks, width=100):
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    console.print(picture(looks))
    return console.file.getvalue()


def test_a_run_that_goes_on(tmp_path, all_rounds):
    unfinished(tmp_path / "run")
    look = Progress.of(tmp_path / "run")
    assert look.state == "running"
    rows = [json.loads(line) for line in (tmp_path / "run" / ROUNDS).read_text().splitlines()]
    assert 7 <= len(rows) <= 8
    assert look.facts["round"] == f"{len(rows)} of at most 30"
    text = shown([look])
    assert "<b>d</b> · FPFC, running" in text
    assert "of at most 30" in text


def test_a_finished_run_says_what_it_came_to(tmp_path):
    result = finished(tmp_path / "run")
    look = Progress.of(tmp_path / "run")
    assert look.state == "finished"
    assert look.facts["groups"] == str(result.n_clusters)
    assert f"{result.cost_floats:,}" in look.line()


def test_watching_ends_with_the_run(tmp_path, all_rounds):
    """While it is watched the run is gone on with: the lines tell the rounds, the last one the end."""
    unfinished(tmp_path / "run")
    federation, pauses = planted(), []

    def pause(seconds):
        pauses.append(seconds)
        ff.resume(tmp_path / "run", federation)

    console = Console(file=io.StringIO(), width=200)
    watch(tmp_path / "run", console, 0.5, pause)
    lines = console.file.getvalue().splitlines()
    assert pauses == [0.5]
    assert "running" in lines[0]
    assert "finished" in lines[-1]
    assert "round 30" in lines[-1]


def test_watching_in_a_terminal(tmp_path):
    finished(tmp_path / "run")
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    watch(tmp_path / "run", console)
    assert "finished" in console.file.getvalue()


def test_a_comparison_is_watched_run_by_run(tmp_path):
    ff.compare(planted(), {"a": ff.Local(), "b": ff.FedAvg()}, seeds=1, rounds=4, jobs=1, out=tmp_path / "c")
    looks = read_progress(tmp_path / "c")
    assert [(look.name, look.state) for look in looks] == [("a-seed0", "finished"), ("b-seed0", "finished")]
    (tmp_path / "c" / "runs" / "b-seed0").rename(tmp_path / "elsewhere")
    looks = read_progress(tmp_path / "c")
    assert [look.state for look in looks] == ["finished", "waiting"]
    assert "b-seed0, waiting" in shown(looks)
    assert looks[1].line() == "waiting"


def test_a_long_silence_is_told():
    look = Progress("r", "running", {"round": "1"}, silent=100.0)
    assert "nothing was written for 100 s" in shown([look])
    assert "nothing" not in shown([Progress("r", "running", look.facts, silent=5.0)])


def test_no_run_is_refused(refused, here):
    assert "holds no run" in refused("watch", "nothing")
    assert "holds no run" in refused("watch", "nothing", "--web")


def test_the_command_line(fedfuse, here):
    finished("run")
    status, out, _ = fedfuse("watch", "run")
    assert status == 0
    assert "finished" in out


@pytest.fixture
def served():
    servers = []

    def serve(directory):
        server = LiveServer(Path(directory))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        servers.append((server, thread))
        return server

    yield serve
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def get(server, path="", host=None):
    request = urllib.request.Request(server.url + path, headers={"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read().decode()


def test_only_this_computer_is_answered_and_one_address_is_known(tmp_path, served):
    unfinished(tmp_path / "run")
    server = served(tmp_path / "run")
    assert server.server_address[0] == LOOPBACK == "127.0.0.1"
    page = get(server)
    assert "&lt;b&gt;d&lt;/b&gt; · FPFC is running" in page
    assert "<b>d" not in page
    for path in ("config.json", "../config.json", "%2e%2e/config.json", "report.html"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(server, path)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        get(server, host="evil.example")
    for guess in ("", "x/", server.prefix[1:-2]):
        with (
            pytest.raises(urllib.error.HTTPError, match="404"),
            urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/{guess}", timeout=60),
        ):
            pass


def test_two_hundred_requests_at_once(tmp_path, served):
    """All are answered, none by a connection that the system refuses for want of room."""
    unfinished(tmp_path / "run")
    server, begin = served(tmp_path / "run"), threading.Barrier(200)

    def ask(_):
        begin.wait(60)
        return "is running" in get(server)

    with ThreadPoolExecutor(200) as pool:
        start = time.monotonic()
        assert list(pool.map(ask, range(200))) == [True] * 200
    assert time.monotonic() - start < 30


def test_headers_allow_the_scripts_of_the_page_and_no_others(tmp_path, served):
    unfinished(tmp_path / "run")
    server = served(tmp_path / "run")
    with urllib.request.urlopen(server.url, timeout=60) as reply:
        headers, page = reply.headers, reply.read().decode()
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Type"].startswith("text/html")
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"].split() == [f"'sha256-{each}'" for each in hashes]
    assert len(scripts) == 3


def test_the_live_page_has_curves_and_ends_as_the_report(tmp_path, served, all_rounds):
    unfinished(tmp_path / "run")
    page = live_page(tmp_path / "run")
    for name in ("test score", "number of groups", "numbers sent so far"):
        assert f"{name}</span>" in page
    finished(tmp_path / "other")
    assert "6 devices form 2 groups" in get(served(tmp_path / "other"))


def test_a_port_that_is_taken_is_told(tmp_path, served):
    finished(tmp_path / "run")
    port = served(tmp_path / "run").server_port
    with pytest.raises(FedfuseError, match="free one"):
        LiveServer(tmp_path / "run", port)
