"""A slow link: a TCP proxy on loopback that lets so many bytes through in a second."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

CHUNK = 1024


class SlowLink:
    """Listens on ``port`` and passes on to another port; ``up`` counts the bytes that were sent there."""

    def __init__(self, to: int, rate: float) -> None:
        self.to, self.rate, self.up = to, rate, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.to))
                except OSError:
                    near.close()
                    continue
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(source, sink, sink is far), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, upwards: bool) -> None:
        with suppress(OSError), source, sink:
            try:
                while data := source.recv(CHUNK):
                    time.sleep(len(data) / self.rate)
                    sink.sendall(data)
                    self.up += len(data) * upwards
            finally:
                for end in (sink, source):  # The other thread waits for one of them, and would keep it open.
                    end.shutdown(socket.SHUT_RDWR)
