"""Metrics in Prometheus' text format and a health check, on the loopback address unless told otherwise.

``metrics = "9464"`` in a run's configuration serves ``/metrics`` and ``/healthz`` on that port of 127.0.0.1;
``metrics = "0.0.0.0:9464"`` on all addresses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fedfuse.errors import FedfuseError
from fedfuse.flower.node_registry import NodeRegistry
from fedfuse.training.loop import Callback, Row, Run
from fedfuse.utils.page_server import LOOPBACK, PageServer

MAX_SILENT_DEADLINES = 3.0  # after which a run without a new round is not healthy


class Monitor(Callback):
    """What a run looks like from outside."""

    def __init__(self, nodes: NodeRegistry) -> None:
        self._nodes, self._text = nodes, ""
        self._since, self._patience = time.monotonic(), float("inf")

    def on_start(self, run: Run) -> None:
        """Take the numbers of a run that begins or is resumed."""
        self._patience = MAX_SILENT_DEADLINES * (run.settings.deadline or float("inf"))
        self.on_round(run, {})

    def on_round(self, run: Run, row: Row) -> None:
        """Take the numbers of a round."""
        devices = {"known": run.info.m, "online": len(self._nodes.node_of), "left out": len(self._nodes.left_out)}
        sent = {"to devices": run.ledger.down, "from devices": run.ledger.up}
        samples = [
            exposition("rounds_total", "Rounds done.", {"": run.k}),
            exposition("devices", "Devices by state.", devices, "state"),
            exposition("numbers_total", "Numbers sent, by direction.", sent, "direction"),
            exposition("orders_total", "What became of orders.", run.transport.outcome, "outcome"),
            exposition("refused_total", "Replies that were refused.", run.ledger.refused, "reason"),
            exposition("trouble_total", "What went wrong on the way.", run.all_trouble(), "kind"),
        ]
        self._text, self._since = "".join(samples), time.monotonic()

    def page(self, path: str) -> str | None:
        """Return the page of a path."""
        if path == "healthz":
            silent = time.monotonic() - self._since
            if not self._nodes.node_of or silent > self._patience:
                raise FedfuseError(f"{len(self._nodes.node_of)} devices online, {silent:.0f} seconds without a round")
            return "ok\n"
        return self._text if path == "metrics" else None

    @contextmanager
    def serving(self, address: str) -> Iterator[None]:
        """Serve the pages at ``[host:]port`` meanwhile; nowhere for an empty text."""
        if not address:
            yield
            return
        host, _, port = address.rpartition(":")
        if not port.isdigit():
            raise FedfuseError(f"metrics must be a port or host:port, got {address!r}")
        with PageServer(self.page, int(port), host or LOOPBACK) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield
            finally:
                server.shutdown()


def exposition(name: str, what: str, values: dict[str, int], label: str = "") -> str:
    """Return a metric in Prometheus' text format.

    >>> print(exposition("devices", "Devices by state.", {"online": 3}, "state"), end="")
    # HELP fedfuse_devices Devices by state.
    # TYPE fedfuse_devices gauge
    fedfuse_devices{state="online"} 3
    """
    head = f"# HELP fedfuse_{name} {what}\n# TYPE fedfuse_{name} {'counter' if name.endswith('_total') else 'gauge'}\n"
    escaped = {key.replace("\\", r"\\").replace('"', r"\""): value for key, value in values.items()}
    labels = {f'{{{label}="{key}"}}' if label else "": value for key, value in escaped.items()}
    return head + "".join(f"fedfuse_{name}{key} {value}\n" for key, value in labels.items())
