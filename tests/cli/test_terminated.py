"""SIGTERM before a run has begun."""

from __future__ import annotations

import os
import signal

import pytest

from fedfuse import cli


def test_sigterm_ends_with_one_line(monkeypatch, capsys):
    monkeypatch.setattr(cli, "app", lambda **given: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "fedfuse: terminated\n"
