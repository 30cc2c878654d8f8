"""Fixtures for tests of the command line; makes `textbook` and `planted` importable from every folder of tests."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import fedfuse as ff
from fedfuse import cli
from support.planted import visits

# how long an example takes says more about the machine than about the code
settings.register_profile("fedfuse", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fedfuse")

# a shell's background job ignores Ctrl-C, and so would all that the tests start and interrupt
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in; processes started there run the same fedfuse."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(ff.__file__).parents[1]))
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


@pytest.fixture
def fedfuse(here, monkeypatch, capsys):
    """Call the command line in this process; returns (status, standard output, standard error)."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedfuse", *map(str, words)])
        try:
            cli.main()
            status = 0
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def refused(fedfuse, here):
    """Call with bad input: status 2, one line, no traceback, nothing written; returns the line."""

    def call(*words):
        before = {p: p.stat().st_mtime_ns for p in here.rglob("*")}
        status, out, err = fedfuse(*words)
        assert status == 2, err
        assert out == ""
        assert err.startswith("fedfuse: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        assert before == {p: p.stat().st_mtime_ns for p in here.rglob("*")}
        return err

    return call


@pytest.fixture
def tables(here):
    frame = visits()
    frame.drop(columns="stay").to_csv("outcome.csv", index=False)
    frame.drop(columns="outcome").to_csv("stay.csv", index=False)
    return frame
