"""SuperNode that exits when its connection is lost for good, so that systemd restarts it (docs/flower.md).

    python supernode.py --superlink link.example.org:8443 …

Takes the options of `flower-supernode`. When a TLS handshake is cut, for example by a network failure, that program
gives up its connection for good but does not exit: its other threads keep the process alive.
"""

from __future__ import annotations

import os
import sys
import traceback

from flwr.supernode.cli import flower_supernode


def main() -> None:
    """Run Flower's program, which exits by itself where it ends on purpose."""
    try:
        flower_supernode()
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
