"""``fedfuse watch --web``: a page of a run that goes on, for a browser on this computer.

The server hears on the loopback address alone, knows three addresses, and answers only who calls it by its own name:
a page from elsewhere cannot ask it, whatever that page calls itself.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from fedfuse.errors import FedfuseError
from fedfuse.report import page_of, render
from fedfuse.report.distance_frames import PairFrame
from fedfuse.report.watch import Glance, facts, glances
from fedfuse.results.snapshots import SnapshotFile
from fedfuse.studies.compare import is_comparison

HOST = "127.0.0.1"
POINTS = 400  # of a curve


class Server(ThreadingHTTPServer):
    """A web server for one directory."""

    daemon_threads = True

    def __init__(self, directory: Path, port: int = 0) -> None:
        glances(directory)  # a directory that holds no run is refused before anything is served
        self.directory = directory
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as problem:
            raise FedfuseError(
                f"cannot serve on port {port}: {problem.strerror}; leave out --port for a free one"
            ) from None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        """Answer with the page, its numbers, or the report of a finished run."""
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}:
            self.send_error(403)
            return
        path = self.path.partition("?")[0]
        try:
            if path == "/":
                self._answer("text/html; charset=utf-8", live_page(self.server.directory))
            elif path == "/state.json":
                self._answer("application/json", json.dumps(state(self.server.directory)))
            elif path == "/report.html" and _finished(glances(self.server.directory)):
                self._answer("text/html; charset=utf-8", render(self.server.directory, baselines=False))
            else:
                self.send_error(404)
        except (FedfuseError, OSError) as problem:  # a file that is just being replaced: the page asks again
            self.send_error(503, explain=str(problem))

    def _answer(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: the terminal is for people."""


def live_page(directory: Path) -> str:
    """Return the page, without numbers: it asks for them."""
    data: dict[str, Any] = {"names": [], "labels": [], "pairs": None, "path": None}
    return page_of("live.html.j2", {"title": directory.name, "overline": str(directory), "data": data})


def state(directory: Path) -> dict[str, Any]:
    """Return what the page shows now, as JSON-ready data."""
    looks = glances(directory)
    return {
        "finished": _finished(looks),
        "runs": [_run(look) for look in looks],
        "heat": None if is_comparison(directory) else _heat(directory),
    }


def _finished(looks: list[Glance]) -> bool:
    return all(look.state == "finished" for look in looks)


def _run(look: Glance) -> dict[str, Any]:
    curves = {name: _thinned(*look.curve(name)) for name in ("validation", "test", "n_clusters", "cost_floats")}
    return {
        "name": look.name,
        "state": look.state,
        "facts": facts(look) if look.state != "waiting" else [],
        "curves": {name: curve for name, curve in curves.items() if len(curve["x"]) > 1},
        "silent": round(look.silent),
    }


def _thinned(x: list[int], y: list[float]) -> dict[str, Any]:
    keep = np.unique(np.linspace(0, max(len(x) - 1, 0), min(len(x), POINTS)).round().astype(int)).tolist()
    return {"x": [x[i] for i in keep], "y": [float(f"{y[i]:.5g}") for i in keep]}


def _heat(directory: Path) -> dict[str, Any] | None:
    """Return the last picture of all pairs, ordered by the groups of that moment."""
    pages = SnapshotFile(directory).load()
    if not pages:
        return None
    labels = np.zeros(int(pages[-1].devices.max()) + 1, np.int64)
    labels[pages[-1].devices] = pages[-1].labels
    pairs = PairFrame.of(pages[-1:], labels)
    payload = pairs.payload()
    return {"round": pages[-1].round, "n": len(pairs.cells), "heat": payload["heat"], "top": payload["tops"][0]}
