"""docs/flower-tutorial.md, followed word for word in an empty folder."""

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")
pytest.importorskip("torch", reason="pip install 'fedfuse[torch]'")

from support.flower_cluster import BIN, free_ports

TUTORIAL = Path(__file__).parents[2] / "docs" / "flower-tutorial.md"
BLOCK = re.compile(r"^```(sh|python)(?: title=\"(\S*)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = 500


def script(text, port, node_port):
    """The tutorial as one shell script: its files are written where they stand, its ports are free ones."""
    parts = ["set -eu"]
    for kind, name, body in BLOCK.findall(text):
        if kind == "sh":
            parts.append(body)
        else:
            parts.append(f"cat > {name} <<'END-OF-FILE'\n{body}END-OF-FILE")
    whole = "\n".join(parts)
    assert whole.count("PORT=8000 NODE_PORT=9100") == 1
    return whole.replace("PORT=8000 NODE_PORT=9100", f"PORT={port} NODE_PORT={node_port}")


def neighbours(n):
    """So many free ports in a row."""
    for _ in range(50):
        (first,) = free_ports(1)
        if all(_is_free(first + k) for k in range(n)):
            return first
    raise OSError("no free ports in a row")


def _is_free(port):
    import socket

    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.slow
def test_word_for_word(tmp_path):
    text = TUTORIAL.read_text()
    code = script(text, neighbours(1), neighbours(4))
    env = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(
        ["bash", "-c", code], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    logs = "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in tmp_path.glob("*.log"))
    promised = [line.strip() for line in text.splitlines() if line.startswith(("    {", "    test RMSE"))]
    assert len(promised) == 2
    assert out.splitlines()[-2:] == promised, out + err + logs
