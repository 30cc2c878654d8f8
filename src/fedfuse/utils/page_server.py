"""A small web server for pages of plain text that a function makes: metrics, a health check.

It listens on the loopback address unless told otherwise, and there it refuses requests with another host name, so that
no page from elsewhere can read it (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedfuse.errors import FedfuseError

LOOPBACK = "127.0.0.1"
REQUEST_SECONDS = 30.0  # that a client has to send its request
_HEADERS = {
    "Content-Type": "text/plain; version=0.0.4; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


class PageServer(ThreadingHTTPServer):
    """A server of pages, each made when it is asked for.

    Parameters
    ----------
    page
        Called with a path without its first slash; returns a text, or None for a path that is unknown.
    port, host
        Where to listen; 0 for a free port.
    """

    daemon_threads = True
    request_queue_size = 512  # connections that wait to be accepted

    def __init__(self, page: Callable[[str], str | None], port: int = 0, host: str = LOOPBACK) -> None:
        self.page = page
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else problem
            words = f"cannot serve on port {port} of {host}: {why}"
            raise FedfuseError(f"{words}; choose another, or 0 for a free one") from None
        names = {host, "localhost"} if host == LOOPBACK else set()
        self.hosts = {f"{name}:{self.server_port}" for name in names}  # empty: any


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        """Answer with a page."""
        if self.server.hosts and self.headers.get("Host") not in self.server.hosts:
            self.send_error(403)
            return
        try:
            page = self.server.page(self.path.partition("?")[0].removeprefix("/"))
        except FedfuseError as problem:
            self.send_error(503, explain=str(problem))
            return
        if page is None:
            self.send_error(404)
            return
        body = page.encode(errors="replace")
        self.send_response(200)
        for name, value in {**_HEADERS, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests to the terminal."""
