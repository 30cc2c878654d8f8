"""Downloads against servers on this machine: good ones, and all the ways to be bad."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from fedfuse.cli import app
from fedfuse.data import available, download
from fedfuse.data.download import CHECKSUMS, MIRRORS, fetch, files_of
from fedfuse.errors import FedfuseError

CONTENT = bytes(range(256)) * 2000
HALF = len(CONTENT) // 2


class Mirror:
    """A server on a free port: what it sends, how it behaves, and what it was asked for."""

    def __init__(self, how="good", content=CONTENT):
        self.how, self.content, self.asked = how, content, []
        self.release = threading.Event()
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                mirror.asked.append(self.path)
                getattr(mirror, mirror.how)(self)

            def log_message(self, *words):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/data/"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()

    def _begin(self, request):
        request.send_response(200)
        request.send_header("Content-Length", str(len(self.content)))
        request.end_headers()

    def good(self, request):
        self._begin(request)
        request.wfile.write(self.content)

    def unsized(self, request):
        """Without a length, broken off: only the checksum can tell."""
        request.send_response(200)
        request.send_header("Connection", "close")
        request.end_headers()
        request.wfile.write(self.content[:HALF])
        request.close_connection = True

    def absent(self, request):
        request.send_error(404)

    def half(self, request):
        self._begin(request)
        request.wfile.write(self.content[:HALF])
        request.close_connection = True

    def hangs(self, request):
        """Some bytes, and then nothing."""
        self._begin(request)
        request.wfile.write(self.content[:1000])
        request.wfile.flush()
        self.release.wait(20)

    def mute(self, request):
        self.release.wait(20)


@pytest.fixture
def mirrors():
    """Start servers; stop them after the test."""
    started = []

    def start(*hows):
        new = [how if isinstance(how, Mirror) else Mirror(how) for how in hows]
        started.extend(new)
        return new

    yield start
    for mirror in started:
        mirror.close()


@pytest.fixture
def registry(monkeypatch):
    """MNIST as one file with the content above."""
    monkeypatch.setattr(download, "CHECKSUMS", {"mnist/pixels.gz": [hashlib.sha256(CONTENT).hexdigest()]})
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.4)
    return monkeypatch


def get(registry, directory, servers, **options):
    registry.setitem(MIRRORS, "mnist", tuple(m.url for m in servers))
    return fetch("mnist", directory, **options)


def whole(directory):
    """The file is there as it should be, and nothing else is."""
    return [p.name for p in (directory / "mnist").iterdir()] == ["pixels.gz"] and (
        directory / "mnist/pixels.gz"
    ).read_bytes() == CONTENT


def test_a_file_comes_whole(tmp_path, registry, mirrors):
    seen = []
    servers = mirrors("good")
    done = get(registry, tmp_path, servers, progress=lambda *step: seen.append(step))
    assert (done.directory, done.new, done.present) == (tmp_path, ("mnist/pixels.gz",), ())
    assert whole(tmp_path)
    assert servers[0].asked == ["/data/pixels.gz"]
    assert seen[-1] == ("pixels.gz", len(CONTENT), len(CONTENT))
    assert [n for _, n, _ in seen] == sorted(n for _, n, _ in seen)


@pytest.mark.parametrize("bad", ["absent", "half", "hangs", "mute", "unsized", "corrupt"])
def test_the_next_mirror_is_tried(tmp_path, registry, mirrors, bad):
    servers = mirrors(Mirror(content=b"x" + CONTENT[1:]) if bad == "corrupt" else bad, "good")
    get(registry, tmp_path, servers)
    assert whole(tmp_path)
    assert [len(server.asked) for server in servers] == [1, 1]


def test_when_all_mirrors_fail_one_error_says_why_each_did(tmp_path, registry, mirrors):
    servers = mirrors("absent", Mirror(content=b"other"), "mute", "half")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        urls = [closed, *(m.url for m in servers)]
        registry.setitem(MIRRORS, "mnist", tuple(urls))
        with pytest.raises(FedfuseError) as caught:
            fetch("mnist", tmp_path)
    words = str(caught.value)
    assert words.startswith("no mirror sent mnist/pixels.gz: ")
    places = [words.index(f"{url}: ") for url in urls]
    reasons = ["Connection refused", "404 ", "sent other bytes than expected", "timed out", "IncompleteRead"]
    for reason, here, there in zip(reasons, places, [*places[1:], len(words)], strict=True):
        assert reason in words[here:there]
    assert "\n" not in words
    assert not list((tmp_path / "mnist").iterdir())


def test_files_already_there_are_used_as_they_are(tmp_path, registry):
    (tmp_path / "mnist").mkdir()
    path = tmp_path / "mnist/pixels.gz"
    path.write_bytes(CONTENT)
    done = get(registry, tmp_path, [])
    assert (done.new, done.present) == ((), ("mnist/pixels.gz",))
    path.write_bytes(b"packed otherwise")
    download.CHECKSUMS["mnist/pixels.gz"].append(hashlib.sha256(b"packed otherwise").hexdigest())
    assert get(registry, tmp_path, []).present == ("mnist/pixels.gz",)


def test_a_wrong_file_already_there_is_named_and_left_alone(tmp_path, registry, mirrors):
    (tmp_path / "mnist").mkdir()
    path = tmp_path / "mnist/pixels.gz"
    path.write_bytes(b"mine")
    servers = mirrors("good")
    with pytest.raises(FedfuseError, match=r"pixels\.gz' exists, but it is not the file of mnist.*sha256 is .*move"):
        get(registry, tmp_path, servers)
    assert path.read_bytes() == b"mine"
    assert not servers[0].asked


def test_an_interruption_leaves_nothing(tmp_path, registry, mirrors):
    def stop(file, done, total):
        if done >= HALF:
            raise KeyboardInterrupt

    servers = mirrors("good")
    with pytest.raises(KeyboardInterrupt):
        get(registry, tmp_path, servers, progress=stop)
    assert not list((tmp_path / "mnist").iterdir())
    get(registry, tmp_path, servers)
    assert whole(tmp_path)


def test_data_without_a_mirror_are_put_there_by_hand(tmp_path):
    with pytest.raises(FedfuseError, match=r"housing-bodyfat cannot be downloaded.*put .*housing\.csv' and .*by hand"):
        fetch("housing-bodyfat", tmp_path)


def test_a_table_of_ones_own_is_named_too(tmp_path):
    (tmp_path / "tabular").mkdir()
    (tmp_path / "tabular/housing.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FedfuseError, match=r"housing\.csv' exists, but .*see that its columns are right"):
        fetch("housing-bodyfat", tmp_path)


@pytest.mark.parametrize("name", ["digits", "synthetic:S1"])
def test_data_without_files_need_nothing(tmp_path, name):
    assert fetch(name, tmp_path).new == ()


def test_an_unknown_name(tmp_path):
    with pytest.raises(FedfuseError, match="no data set is called 'mnits'; did you mean 'mnist'"):
        fetch("mnits", tmp_path)


def test_every_file_of_every_source_is_known_by_a_checksum():
    assert set(CHECKSUMS) == {file for source in available() for file in source.files}
    for name in ("mnist", "fashion-mnist"):
        kinds = [file.partition("-idx")[0] for file in files_of(name)]
        assert kinds == [f"{name}/{kind}" for kind in ("train-images", "train-labels", "t10k-images", "t10k-labels")]
        assert len(MIRRORS[name]) >= 2
    assert all(len(h) == 64 for sums in CHECKSUMS.values() for h in sums)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "housing-bodyfat"])
def test_the_files_at_hand_are_right(name):
    if not {s.name: s.present for s in available()}[name]:
        pytest.skip(f"needs the files of {name} below FEDFUSE_DATA")
    assert fetch(name, os.environ.get("FEDFUSE_DATA")).new == ()


def test_the_command_line(tmp_path, registry, mirrors):
    (server,) = mirrors("good")
    registry.setitem(MIRRORS, "mnist", (server.url,))
    runner = CliRunner()
    words = f"1 files fetched, 0 already there, in {tmp_path}"
    first = runner.invoke(app, ["data", "fetch", "mnist:rotated", "--data-dir", str(tmp_path)])
    assert words in first.stdout
    assert whole(tmp_path)
    again = runner.invoke(app, ["data", "fetch", "mnist", "--data-dir", str(tmp_path)])
    assert "0 files fetched, 1 already there" in again.stdout
    assert "needs no files" in runner.invoke(app, ["data", "fetch", "digits"]).stdout
    listed = runner.invoke(app, ["data", "list", "--data-dir", str(tmp_path)]).stdout
    assert "fashion-mnist:rotated" in listed
