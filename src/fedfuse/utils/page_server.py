"""A small web server for pages that a function makes: the live page of a run, metrics, a health check.

It listens on the loopback address unless told otherwise, and there it refuses requests with another host name, so that
no page from elsewhere can read it (DNS rebinding). Scripts run if the page came with them, and no others.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedfuse.errors import FedfuseError

LOOPBACK = "127.0.0.1"
REQUEST_SECONDS = 30.0  # that a client has to send its request
HTML, PLAIN = "text/html; charset=utf-8", "text/plain; version=0.0.4; charset=utf-8"
_POLICY = (
    "default-src 'none'; script-src {}; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


class PageServer(ThreadingHTTPServer):
    """A server of pages, each made when it is asked for.

    ``page`` is called with a path without its first slash; it returns HTML or another text, or None for a path that is
    unknown. Port 0 is a free one. ``token`` is the first part of every address: others who may connect do not know it.
    """

    daemon_threads = True
    request_queue_size = 512  # connections that wait to be accepted

    def __init__(self, page: Callable[[str], str | None], port: int = 0, host: str = LOOPBACK, token: str = "") -> None:
        self.page, self.prefix = page, f"/{token}/" if token else "/"
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else problem
            words = f"cannot serve on port {port} of {host}: {why}"
            raise FedfuseError(f"{words}; choose another, or 0 for a free one") from None
        names = {host, "localhost"} if host == LOOPBACK else set()
        self.hosts = {f"{name}:{self.server_port}" for name in names}  # empty: any

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}{self.prefix}"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        """Answer with a page."""
        if self.server.hosts and self.headers.get("Host") not in self.server.hosts:
            self.send_error(403)
            return
        path, prefix = self.path.partition("?")[0], self.server.prefix
        if not hmac.compare_digest(path[: len(prefix)].encode(), prefix.encode()):
            self.send_error(404)
            return
        try:
            page = self.server.page(path[len(prefix) :])
        except (FedfuseError, OSError) as problem:  # a file that is just being replaced: the page asks again
            self.send_error(503, explain=str(problem))
            return
        if page is None:
            self.send_error(404)
            return
        body, html = page.encode(errors="replace"), page.startswith("<!doctype html>")
        scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL) if html else []
        hashes = [f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts]
        policy = _POLICY.format(" ".join(hashes) or "'none'")
        own = {"Content-Type": HTML if html else PLAIN, "Content-Length": len(body), "Content-Security-Policy": policy}
        self.send_response(200)
        for name, value in {**own, **_HEADERS}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests to the terminal."""
