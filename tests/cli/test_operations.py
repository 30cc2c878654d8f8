"""Runs as a service has them: told to stop, interrupted twice, started twice, and on a full disk."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedfuse.utils.files import directory_lock, read_arrays

COMMAND = [sys.executable, "-m", "fedfuse"]
LONG = ["run", "stay.csv", "--device", "site", "--target", "stay", "--lam", "0.3", "--set", "tol=0", "--json"]


def started(*words, out="cut", rounds=2000):
    """A run in a session of its own, under way."""
    running = subprocess.Popen(
        [*COMMAND, *LONG, "--rounds", str(rounds), *words, "--out", out], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while not Path(out, "checkpoint/latest.npz").exists() and running.poll() is None:
        time.sleep(0.01)
    return running


def test_sigterm_ends_the_round_saves_and_exits_with_success(fedfuse, tables):
    running = started("--set", "checkpoint_every=7", rounds=600)
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=150)
    assert (running.returncode, out) == (0, "")
    assert err == "fedfuse: interrupted; continue with: fedfuse resume cut\n"
    meta = json.loads(read_arrays(Path("cut/checkpoint/latest.npz"))["meta"].tobytes())
    assert len(meta["history"]) == meta["k"] > 0
    resumed, whole = fedfuse("resume", "cut", "--json"), fedfuse(*LONG, "--rounds", "600", "--out", "whole")
    assert resumed[0] == whole[0] == 0
    for name in ("models.npz", "labels.csv"):
        assert Path("cut", name).read_bytes() == Path("whole", name).read_bytes()


def test_sigterm_stops_a_comparison(tables):
    words = ["compare", "stay.csv", "--device", "site", "--target", "stay", "--methods", "fedavg,ifca", "--jobs", "2"]
    running = subprocess.Popen(
        [*COMMAND, *words, "--rounds", "100000", "--set", "tol=0", "--out", "study"], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while not list(Path("study").glob("runs/*/checkpoint/latest.npz")) and running.poll() is None:
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=150)
    assert running.returncode == 0
    assert err.splitlines()[-1] == "fedfuse: interrupted; continue with: fedfuse resume study"


@pytest.mark.parametrize("pause", [0.0, 0.01, 0.05, 0.2])
def test_ctrl_c_twice_ends_without_a_traceback(tables, pause):
    running = started()
    for _ in range(3):
        try:
            os.killpg(running.pid, signal.SIGINT)
        except ProcessLookupError:
            break
        time.sleep(pause)
    _, err = running.communicate(timeout=150)
    assert running.returncode in (130, -signal.SIGINT)  # The latter while the interpreter ends.
    assert "Traceback" not in err
    assert err.startswith("fedfuse: interrupted")


def test_a_directory_is_resumed_once_at_a_time(fedfuse, tables):
    pytest.importorskip("fcntl")
    running = started()
    for words in (("resume", "cut"), ("resume", "cut", "--json")):
        status, out, err = fedfuse(*words)
        assert (status, out) == (2, "")
        assert err == "fedfuse: another process is using cut: wait until it ends, or stop it\n"
    running.kill()
    running.communicate()
    with directory_lock(Path("cut")):  # The system has released it.
        pass


def full(handle):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_line(fedfuse, tables, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    words = [*LONG, "--rounds", "5", "--out", "full"]
    assert fedfuse(*words) == (2, "", "fedfuse: cannot write to full/config.json: No space left on device\n")
    assert not Path("full").exists() or not list(Path("full").iterdir())


def test_a_disk_that_is_full_later_keeps_the_last_checkpoint(fedfuse, tables, monkeypatch):
    sync, calls = os.fsync, []

    def full_after_a_while(handle):
        calls.append(handle)
        (full if len(calls) > 30 else sync)(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_after_a_while)
        status, out, err = fedfuse(*LONG, "--rounds", "60", "--set", "checkpoint_every=1", "--out", "cut")
    assert (status, out) == (2, "")
    assert err.startswith("fedfuse: cannot write to cut/")
    assert err.endswith(": No space left on device\n")
    assert len(err.splitlines()) == 1
    assert fedfuse("resume", "cut", "--json")[0] == 0
