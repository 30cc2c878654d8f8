"""Gate of a federation: forwards requests of SuperNodes to the SuperLink, and nothing else (docs/flower.md).

    python gate.py --listen 0.0.0.0:8443 --certificate server.pem --key server.key --ca ca.crt

Flower's SuperLink has all its interfaces on one port. Requests of nodes (/v1/fleet/) are signed with their keys, but
requests that start runs (/v1/control/), and so execute code on every node, need no credential. So the SuperLink listens
on the loopback address, where accounts on its host may start runs, and the network can reach only this gate.
It needs only packages that Flower installs.
"""

from __future__ import annotations

import argparse
import re
import ssl

import httpx
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

PASSED = re.compile(rb"/v1/fleet/[a-z-]+")
# Headers between two hosts, which are not passed on (RFC 9110, 7.6.1).
HOP_BY_HOP = {
    "connection",
    "host",
    "keep-alive",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
TIMEOUT_SECONDS = 600.0  # for a large model over a slow line
MAX_CONNECTIONS = 1024


class Gate:
    """An ASGI application that forwards one kind of request."""

    def __init__(self, superlink: str, ca: str | None) -> None:
        trust = ssl.create_default_context(cafile=ca) if ca else False
        scheme = "https" if ca else "http"
        self.client = httpx.AsyncClient(base_url=f"{scheme}://{superlink}", verify=trust, timeout=TIMEOUT_SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; everything but Flower's messages of nodes is not found here."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        known = scope["method"] == "POST" and PASSED.fullmatch(scope["raw_path"]) and not scope["query_string"]
        response = await self.forward(request) if known else PlainTextResponse("not found\n", 404)
        await response(scope, receive, send)

    async def forward(self, request: Request) -> Response:
        """Ask the SuperLink, and return what it says."""
        headers = [(name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP]
        try:
            sent = self.client.build_request("POST", request.url.path, headers=headers, content=request.stream())
            answer = await self.client.send(sent)
        except (httpx.HTTPError, ClientDisconnect):
            return PlainTextResponse("the SuperLink does not answer\n", 502)
        kept = {name: value for name, value in answer.headers.items() if name not in HOP_BY_HOP | {"content-encoding"}}
        return Response(answer.content, answer.status_code, {**kept, "content-length": str(len(answer.content))})


def main() -> None:
    """Serve until the process is ended."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--listen", default="127.0.0.1:8443", help="host:port for nodes (default: %(default)s)")
    words.add_argument("--superlink", default="127.0.0.1:8000", help="host:port of the SuperLink")
    words.add_argument("--certificate", required=True, help="certificate that nodes see")
    words.add_argument("--key", required=True, help="its private key")
    words.add_argument(
        "--ca", help="authority of the SuperLink's certificate (without: no TLS between gate and SuperLink)"
    )
    given = words.parse_args()
    host, _, port = given.listen.rpartition(":")
    uvicorn.run(
        Gate(given.superlink, given.ca), host=host, port=int(port), ssl_certfile=given.certificate,
        ssl_keyfile=given.key, limit_concurrency=MAX_CONNECTIONS, log_level="warning", server_header=False,
    )  # fmt: skip


if __name__ == "__main__":
    main()
