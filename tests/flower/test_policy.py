"""Policies of nodes, the audit log, metrics, and versions of the protocol, on a grid in this process."""

from __future__ import annotations

import errno
import json
import os
import urllib.error
import urllib.request

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")

from fedfuse.errors import FedfuseError
from fedfuse.flower import messages
from fedfuse.flower.client import client_app
from fedfuse.flower.policy import OrderLog, Policy
from fedfuse.flower.server import serve
from fedfuse.protocol.tasks import Order, Score, SendMoments, SendSufficientStatistics, Subspace
from fedfuse.training.loop import Callback
from support.flower_cluster import free_ports
from support.local_grid import LocalGrid

SLOPES = ([1.0, 2.0], [-2.0, 1.0])
SCORE = Order(0, 0, Score(np.zeros(3)))


def load(device, config):
    rng = np.random.default_rng(int(device))
    X = rng.normal(size=(60, 2))
    return X, X @ SLOPES[int(device) // 3] + 0.1 * rng.normal(size=60)


def grid_of(policies, tmp_path, monkeypatch):
    """Six nodes of real devices, with the policies of some."""
    monkeypatch.setenv("FEDFUSE_STATE", str(tmp_path / "state"))
    grid = LocalGrid(client_app(load), 0)
    for i in range(6):
        config = {"device": str(i)}
        if i in policies:
            (tmp_path / f"{i}.toml").write_text(policies[i])
            config["policy"] = str(tmp_path / f"{i}.toml")
        grid.add(1000 + i, config)
    return grid


CONFIG = {"lam": "0.5", "set": "solver=exact refit=no tol=0", "num-server-rounds": 4, "num-devices": 6}


def events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tasks = ['Trian']", "allows 'Trian': tasks are "),
        ("min-row = 3", "'min-row'; did you mean 'min-rows'"),
        ("min-rows = 'many'", "'min_rows' must be a whole number"),
        ("= 3", "cannot be read"),
    ],
)
def test_a_policy_that_cannot_be_understood_is_an_error(tmp_path, text, words):
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(FedfuseError, match=words):
        Policy.read(tmp_path / "p.toml")
    with pytest.raises(FedfuseError, match="cannot be read"):
        Policy.read(tmp_path / "missing.toml")


def test_limits_of_a_policy():
    def refusal(rows=50, noise=0.0, answered=(), order=SCORE, **limits):
        return Policy(**limits).refusal(order, rows, noise, answered)

    assert refusal() is None
    assert "Score is not among the tasks that it allows (Train)" in refusal(tasks=("Train",))
    assert refusal(tasks=("Score",)) is None
    assert refusal(min_rows=51) == "it has fewer than 51 training rows"
    assert refusal(second_moments=False) is None
    for task in (SendMoments(2), SendSufficientStatistics(2), Subspace(1, 2, 0)):
        assert "asks for second moments" in refusal(order=Order(0, 0, task), second_moments=False)
    assert refusal(answered=[0.0] * 3, max_rounds=3) == "it has answered 3 times, and allows 3"


def test_noise_is_counted_over_all_answers():
    """More answers, or one with little noise, spend more; without noise there is no bound."""
    pytest.importorskip("dp_accounting", reason="pip install 'fedfuse[privacy]'")
    policy = Policy(max_epsilon=8.0)
    assert policy.refusal(SCORE, 50, 2.0, []) is None
    assert "epsilon inf after 1, and it allows 8" in policy.refusal(SCORE, 50, 0.0, [])
    assert "it allows 8" in policy.refusal(SCORE, 50, 2.0, [2.0] * 100)
    assert "it allows 8" in policy.refusal(SCORE, 50, 2.0, [0.1])


def test_a_refused_order_is_named_and_the_others_go_on(tmp_path, monkeypatch):
    """Device 5 answers twice in all its life, device 4 has too few rows for its own taste."""
    grid = grid_of({5: "max-rounds = 2", 4: "min-rows = 1000", 0: "second-moments = false"}, tmp_path, monkeypatch)
    result = serve(grid, {**CONFIG, "out": str(tmp_path / "run")})
    assert result.left_out["4"] == "it refused an order: it has fewer than 1000 training rows"
    assert result.left_out["5"] == "it refused an order: it has answered 2 times, and allows 2"
    assert result.labels[:3].tolist() == [0, 0, 0]
    assert result.trouble["refused by the device"] >= 4

    told = events(tmp_path / "run" / "audit.jsonl")
    hello = {line["device"]: line["policy"] for line in told if line["event"] == "hello"}
    assert hello["5"] == '{"max_rounds": 2}'
    assert hello["1"] == ""
    assert {"start", "round", "end", "asked", "answered", "unanswered"} <= {line["event"] for line in told}
    asked = [line for line in told if line["event"] == "asked" and line["device"] == "1"]
    assert {line["task"] for line in asked} >= {"Train"}
    assert all(line["numbers"] >= 0 and line["time"].endswith("+00:00") for line in asked)
    reasons = {line["reason"] for line in told if line["event"] == "unanswered" and line["device"] == "4"}
    assert reasons == {result.left_out["4"]}
    assert json.loads((tmp_path / "run" / "devices.json").read_text())["4"]["policy"] == '{"min_rows": 1000}'

    own = OrderLog(tmp_path / "state" / "orders.jsonl")
    assert len(own.answered("5")) == 2
    assert len(own.answered("4")) == 0
    assert {line["event"] for line in events(own.path) if line["device"] == "4"} == {"refused"}
    again = serve(grid_of({5: "max-rounds = 2"}, tmp_path, monkeypatch), {**CONFIG, "out": str(tmp_path / "again")})
    assert "allows 2" in again.left_out["5"]  # a new run does not start a new count


def test_a_damaged_policy_allows_nothing(tmp_path, monkeypatch):
    grid = grid_of({2: "min-rows = "}, tmp_path, monkeypatch)
    result = serve(grid, {**CONFIG, "out": str(tmp_path / "run")})
    assert "cannot be read" in result.left_out["2"]
    assert len(result.profile.names) == 5


def test_metrics_and_health(tmp_path, monkeypatch):
    (port,) = free_ports(1)
    seen = []

    class Ask(Callback):
        def on_round(self, run, row):
            for path in ("metrics", "healthz"):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as reply:
                    seen.append(reply.read().decode())

    config = {**CONFIG, "out": str(tmp_path / "run"), "metrics": str(port)}
    serve(grid_of({}, tmp_path, monkeypatch), config, callbacks=(Ask(),))
    metrics, health = seen[-2:]
    assert health == "ok\n"
    assert 'fedfuse_devices{state="online"} 6\n' in metrics
    assert "# TYPE fedfuse_rounds_total counter\nfedfuse_rounds_total 3\n" in metrics
    with pytest.raises(urllib.error.URLError):  # with the run it ends
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2)
    with pytest.raises(FedfuseError, match="metrics must be a port or host:port, got 'x'"):
        serve(grid_of({}, tmp_path, monkeypatch), {**config, "metrics": "x", "out": str(tmp_path / "no")})


def test_versions_are_compared_on_both_sides(tmp_path, monkeypatch):
    """One clear sentence with both versions, and the others go on."""
    grid = grid_of({}, tmp_path, monkeypatch)
    write = messages.write_hello

    def old(asked, answer):
        if asked.metadata.message_type == messages.HELLO and asked.metadata.dst_node_id == 1003:
            said = json.loads(answer.content["config"]["hello"])
            return write(asked, {**said, "protocol": 1, "fedfuse": "0.1.0"})
        return answer

    grid.forge = old
    result = serve(grid, {**CONFIG, "out": str(tmp_path / "run")})
    (reason,) = (why for why in result.left_out.values() if "protocol" in why)
    assert "it speaks protocol 1 (fedfuse 0.1.0), this side 2 (fedfuse " in reason
    assert reason.endswith("install the same version of fedfuse on both")
    with pytest.raises(messages.UnreadableError, match=r"the server speaks protocol 1 \(fedfuse unknown\)"):
        messages.check_protocol({}, "the server")


def test_a_full_disk_ends_a_run_on_flower_with_one_line(tmp_path, monkeypatch):
    grid = grid_of({}, tmp_path, monkeypatch)
    sync, calls = os.fsync, []

    def full_after_a_while(handle):
        calls.append(handle)
        if len(calls) > 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_after_a_while)
        with pytest.raises(FedfuseError, match=r"cannot write to .*: No space left on device$"):
            serve(grid, {**CONFIG, "out": str(tmp_path / "run")})
    assert events(tmp_path / "run" / "audit.jsonl")[-1]["reason"].endswith("No space left on device")
    result = serve(grid_of({}, tmp_path, monkeypatch), {**CONFIG, "out": str(tmp_path / "run")})
    assert result.rounds == 4
    assert len(result.history) == 4
