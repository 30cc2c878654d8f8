"""One bad node stops nobody: it is left out and named, may come back, and the others go on."""

import json
import threading
import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import fedfuse as ff
from fedfuse.data.federation import is_text, misfits
from fedfuse.errors import FedfuseError
from fedfuse.flower import FlowerEngine, client_app, message_puller
from fedfuse.flower import client as client_module
from fedfuse.flower import engine as engine_module
from fedfuse.flower import node_registry as nodes
from fedfuse.flower.client import build_model, facts_of, node_key
from fedfuse.flower.node_registry import NodeRegistry
from fedfuse.flower.server import gather, serve
from fedfuse.report.explanations import warnings
from fedfuse.results.result import Result
from support.liars import hello_with
from support.local_grid import LocalGrid
from support.planted import planted

CONFIG = {"lam": "0.5", "set": "solver=exact", "num-server-rounds": 8}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    for module in (nodes, engine_module):
        monkeypatch.setattr(module, "RESCAN_SECONDS", 0.0)


def app_of(federation):
    return client_app(lambda name, config: federation.only([int(name)]))


def three(**how):
    return planted(m=3, groups=1, **how)


# -- what a node says of itself

ABSURD = {
    "surrogate": {"device": "\ud800"},
    "long name": {"device": "x" * 900_000},
    "two lines": {"device": "a\nb"},
    "no name": {"device": None},
    "no digest": {"digest": None},
    "no rows": {"rows": [0, 0, 0]},
    "other columns": {"columns": 4},
    "other names of columns": {"features": ["a", "b", "c"]},
    "other goal": {"goal": "classification", "classes": [0, 1]},
    "missing fields": {"goal": None, "rows": None, "columns": None, "classes": None},
    "nested": {"shape": [[[[1]]]]},
    "surrogate in a column": {"features": ["a", "b", "\udfff"]},
    "a trillion rows": {"rows": [10**12, 1, 1]},
}


@pytest.mark.parametrize("what", ABSURD)
def test_a_node_that_says_absurd_things_is_left_out_and_named(what, tmp_path, caplog):
    federation = planted(m=4, groups=1)
    grid = LocalGrid(app_of(federation), 4)
    grid.forge = hello_with("1", **ABSURD[what])
    result = serve(grid, CONFIG | {"out": str(tmp_path / "run"), "num-devices": 4})
    assert result.profile.names == ("0", "2", "3")
    (who,) = result.left_out
    assert who == ("1" if "device" not in ABSURD[what] else "node 1001")
    saved = json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))
    assert saved["left_out"] == result.left_out
    assert f"{who} is left out" in caplog.text
    assert Result.load(tmp_path / "run").left_out == result.left_out


@pytest.mark.parametrize("classes", [["a", "b"], [f"made up {i}" for i in range(2000)], list(range(2000)), ["a", 1]])
def test_a_node_with_absurd_classes_does_not_enlarge_the_others_models(classes, tmp_path):
    federation = planted("classification", m=4, groups=1)
    grid = LocalGrid(app_of(federation), 4)
    grid.forge = hello_with("2", classes=classes)
    result = serve(grid, CONFIG | {"out": str(tmp_path / "run")})
    assert result.profile.names == ("0", "1", "3")
    assert result.profile.classes == (0, 1, 2)
    assert list(result.left_out) == ["2"]


def test_rows_that_cannot_be_loaded(tmp_path):
    federation = three()

    def load(name, config):
        if name == "1":
            return np.empty((0, 3)), np.empty(0)
        return federation.only([int(name)])

    result = serve(LocalGrid(client_app(load), 3), CONFIG | {"out": str(tmp_path / "run")})
    assert result.profile.names == ("0", "2")
    assert "device '1'" in result.left_out["1"]


def test_an_app_that_fails_at_hello(tmp_path):
    federation = three()

    def load(name, config):
        if name == "1":
            raise ZeroDivisionError("no such table")
        return federation.only([int(name)])

    result = serve(LocalGrid(client_app(load), 3), CONFIG | {"out": str(tmp_path / "run")})
    assert result.profile.names == ("0", "2")
    assert "no such table" in result.left_out["node 1001"]


def test_the_run_needs_a_minimum(tmp_path):
    grid = LocalGrid(app_of(three()), 3)
    grid.forge = hello_with("1", columns=7)
    with pytest.raises(
        FedfuseError, match=r"2 of at least 3 devices .* 1 is left out: it has columns 7, most others 3"
    ):
        serve(grid, CONFIG | {"out": str(tmp_path / "run"), "set": "solver=exact minimum=3"})


def test_a_node_may_come_back(monkeypatch):
    monkeypatch.setattr(nodes, "RETRY_SECONDS", 0.0)
    grid = LocalGrid(app_of(three()), 3)
    grid.forge = hello_with("1", rows=[0, 0, 0])
    registry = NodeRegistry(grid)
    registry.look(now=True)
    registry.look()
    assert list(registry.left_out) == ["1"]
    grid.forge = lambda asked, answer: answer
    assert gather(registry, 3, 5).names == ("0", "1", "2")
    assert registry.left_out == {}


def test_who_was_left_out_when_the_run_began_stays_named(monkeypatch):
    """0.1.0 knew nobody who was left out; later versions forgot it when the node said hello again."""
    monkeypatch.setattr(nodes, "RETRY_SECONDS", 0.0)
    grid = LocalGrid(app_of(three()), 3)
    grid.forge = hello_with("1", columns=7)
    registry = NodeRegistry(grid)
    assert gather(registry, 0, 5).names == ("0", "2")
    grid.add(1003, {"partition-id": 0, "device": "00"})
    for _ in range(3):
        registry.look(now=True)
    assert registry.left_out == {"1": "it has columns 7, most others 3", "00": nodes.NEW}
    assert set(registry.node_of) == {"0", "2"}


def test_a_node_that_is_left_out_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(nodes, "RETRY_SECONDS", 0.0)
    grid = LocalGrid(app_of(three()), 3)
    grid.forge = hello_with("1", columns=7)
    registry = NodeRegistry(grid)
    gather(registry, 0, 5)
    registry.look(now=True)  # It has been asked again.
    assert not registry.waiting


def test_what_most_say_holds():
    said = {"goal": "regression", "columns": 2, "classes": [], "rows": [6, 2, 2], "digest": "0"}
    others = {"c": said | {"columns": 3}, "d": said | {"rows": [10**12, 0, 0]}, "e": said | {"digest": chr(0xD800)}}
    assert misfits({"a": said, "b": said, **others}) == {
        "c": "it has columns 3, most others 2",
        "d": "it claims 1000000000000 rows, far more than is credible",
        "e": "it says impossible things of its rows (digest)",
    }


@pytest.mark.parametrize(("text", "good"), [("Zürich", True), (chr(0xD800), False), ("a" * 201, False), ("a\n", False)])
def test_names_that_can_be_shown(text, good):
    assert is_text(text) == good


# -- changed data


class KilledError(Exception):
    pass


class Kill(ff.Callback):
    def on_round(self, run, row):
        if row["round"] == 3:
            raise KilledError


def with_other_rows(federation, changed):
    """An app in which some devices have other rows than before."""
    other = planted(m=federation.m, groups=2, seed=9)
    return client_app(lambda name, config: (other if name in changed else federation).only([int(name)]))


@pytest.mark.parametrize("late", [False, True])
def test_a_changed_device_is_left_out_of_a_run_that_is_resumed(late, tmp_path, monkeypatch):
    federation = planted(m=6)
    out = CONFIG | {"out": str(tmp_path / "run")}
    with pytest.raises(KilledError):
        serve(LocalGrid(app_of(federation), 6), out, callbacks=(Kill(),))
    grid = LocalGrid(with_other_rows(federation, {"2"}), 6)
    monkeypatch.setattr("fedfuse.flower.server.RESUME_WAIT_SECONDS", 0.2)
    if late:  # It does not answer the first hello in time.
        held = []

        def hold(asked, answer):
            if asked.metadata.dst_node_id == 1002 and not held:
                held.append(answer)
                grid._box[asked.metadata.message_id] = asked
                return None
            return answer

        grid.forge = hold
    result = serve(grid, out | {"grace": 0.1})
    assert result.left_out == {"2": nodes.CHANGED}
    others = [0, 1, 3, 4, 5]
    assert result.labels[others].tolist() == [0, 0, 1, 1, 1]
    assert np.isnan(result.scores["test"][2])


@pytest.mark.parametrize("what", ["no digest", "surrogate", "missing fields"])
def test_a_run_is_resumed_without_a_node_that_says_absurd_things(what, tmp_path, monkeypatch):
    federation, out = planted(m=4, groups=1), CONFIG | {"out": str(tmp_path / "run")}
    with pytest.raises(KilledError):
        serve(LocalGrid(app_of(federation), 4), out, callbacks=(Kill(),))
    monkeypatch.setattr("fedfuse.flower.server.RESUME_WAIT_SECONDS", 0.2)
    grid = LocalGrid(app_of(federation), 4)
    grid.forge = hello_with("1", **ABSURD[what])
    result = serve(grid, out | {"grace": 0.1})
    assert list(result.left_out) == ["1" if what != "surrogate" else "node 1001"]
    assert np.isfinite(result.score("test"))


def test_a_run_is_resumed_where_a_stranger_speaks_before_its_devices(tmp_path, monkeypatch):
    """Nodes may need longer than the server waits for them; who is left out meanwhile says nothing of them."""
    federation, out = planted(m=4, groups=1), CONFIG | {"out": str(tmp_path / "run")}
    with pytest.raises(KilledError):
        serve(LocalGrid(app_of(federation), 4), out, callbacks=(Kill(),))
    monkeypatch.setattr("fedfuse.flower.server.RESUME_WAIT_SECONDS", 0.2)
    app = client_app(lambda name, config: federation.only([int(name) % 4]))
    grid, began = LocalGrid(app, 4), time.monotonic()
    grid.add(1004, {"partition-id": 0, "device": "9"})

    def forge(asked, answer):
        if asked.metadata.dst_node_id != 1004 and time.monotonic() < began + 0.5:
            grid._box[asked.metadata.message_id] = asked
            return None
        return answer

    grid.forge = forge
    result = serve(grid, out)
    assert result.left_out == {"9": nodes.NEW}
    assert np.isfinite(result.score("test"))


def test_a_changed_device_that_comes_back_as_it_was_takes_part_again(tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "RETRY_SECONDS", 0.0)
    federation, registry = planted(m=3), None
    grid = LocalGrid(app_of(federation), 3)
    registry = NodeRegistry(grid)
    gather(registry, 3, 5)
    grid.app = with_other_rows(federation, {"1"})
    client_module._rows.clear()
    grid.restart(1001, 2001)
    for _ in range(3):
        registry.look(now=True)
    assert registry.left_out == {"1": nodes.CHANGED}
    grid.app = app_of(federation)
    client_module._rows.clear()
    for _ in range(3):
        registry.look(now=True)
    assert registry.left_out == {}
    assert registry.node_of["1"] == 2001


def test_rows_that_change_between_two_orders_are_not_mixed_in(tmp_path):
    federation = planted(m=6)
    grid = LocalGrid(app_of(federation), 6)

    class Change(ff.Callback):
        def on_round(self, run, row):
            if row["round"] == 3:
                grid.app = with_other_rows(federation, {"2"})
                client_module._rows.clear()  # Flower starts a process for every message.

    result = serve(grid, CONFIG | {"out": str(tmp_path / "run"), "grace": 0.1}, callbacks=(Change(),))
    assert result.left_out == {"2": nodes.CHANGED}
    assert result.trouble["other rows"] == 1


def test_guessed_rows_cannot_be_confirmed(tmp_path, monkeypatch):
    federation = planted(m=2).only([0])
    monkeypatch.setenv("FEDFUSE_STATE", str(tmp_path / "a"))
    here = facts_of(federation, node_key({}))["digest"]
    assert facts_of(federation, node_key({}))["digest"] == here
    assert (tmp_path / "a" / "digest.key").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("FEDFUSE_STATE", str(tmp_path / "b"))
    assert facts_of(federation, node_key({}))["digest"] != here  # Who guesses the rows lacks the key.
    assert here != federation.fingerprint
    monkeypatch.setenv("FEDFUSE_STATE", "/dev/null/x")
    with pytest.raises(FedfuseError, match="set FEDFUSE_STATE to a directory of its own"):
        node_key({})


# -- whatever is sent


def fuzzed(rng):
    """A reply of random records, from empty ones to some that are nearly right."""

    def word():
        return rng.choice(["", "x", "\ud800", "{}", "[]", "null", "1e999", '{"device":' * 50, "9" * 5000])

    def line():
        keys = ["device", "round", "version", "refused", "rows", "x"]
        values = [0, 1, -1, 10**30, None, True, "0", "\ud800", [], {}, 1.5, float("inf"), "a.1"]
        return json.dumps({k: values[rng.integers(len(values))] for k in keys if rng.random() < 0.7})

    def array():
        numbers = [0.0, 1.0, np.nan, np.inf, 1e38, -1e300]
        kinds = ["float32", "float64", "int8", "U3", "complex64", "bool", ">f4"]
        shape = [(), (4,), (5,), (0,), (2, 2), (1000,)][rng.integers(6)]
        with np.errstate(all="ignore"):
            values = np.array(rng.choice(numbers, size=shape)).astype(kinds[rng.integers(7)])
        data = Array(values)
        if rng.random() < 0.3:
            raw = bytearray(data.data)
            for _ in range(int(rng.integers(1, 9))):
                raw[rng.integers(len(raw))] = rng.integers(256)
            data.data = bytes(raw[: rng.integers(len(raw) + 1)])
        return data

    content = {}
    if rng.random() < 0.9:
        content["config"] = ConfigRecord({rng.choice(["reply", "hello"]): line() if rng.random() < 0.8 else word()})
    if rng.random() < 0.9:
        content["arrays"] = ArrayRecord({rng.choice(["values", "x"]): array() for _ in range(rng.integers(3))})
    return RecordDict(content)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_thousands_of_fuzzed_replies_neither_crash_nor_hang(seed):
    rng = np.random.default_rng(seed)
    federation = planted(m=8, groups=1)
    grid, said = LocalGrid(app_of(federation), 8), [0]

    def forge(asked, answer):
        if asked.metadata.dst_node_id < 1004 or "reply" not in answer.content["config"]:
            return answer
        said[0] += 1
        return Message(fuzzed(rng), reply_to=asked)

    grid.forge = forge
    names = [str(i) for i in range(8)]
    methods = (ff.FPFC(lam=0.5, work=ff.Work(solver="exact")), ff.FusionTree())
    before = largest_memory()
    while said[0] < 2500:
        for method in methods:
            engine = FlowerEngine(grid, names, build_model(federation, None), setup={"classes": []}, grace=0.1)
            result = ff.fit(federation, method, engine=engine, rounds=40, share="models", tol=0)
            assert np.isfinite(result.models).all()
            assert np.isfinite(result.score("test"))
    assert largest_memory() - before < 1e9


def largest_memory():
    """The bytes that this process has had at once."""
    return 1024 * pytest.importorskip("resource").getrusage(0).ru_maxrss


def test_fuzzed_hellos_neither_crash_nor_hang(monkeypatch):
    monkeypatch.setattr("fedfuse.flower.server._POLL_SECONDS", 0.005)
    rng = np.random.default_rng(0)
    for _ in range(80):
        grid = LocalGrid(app_of(three()), 3)
        grid.forge = lambda asked, answer: (
            Message(fuzzed(rng), reply_to=asked) if asked.metadata.dst_node_id == 1001 else answer
        )
        assert gather(NodeRegistry(grid), 3, 5).names == ("0", "2")


# -- absence


def test_a_device_that_is_seldom_heard_is_unsure(tmp_path):
    federation = planted(m=6)
    grid = LocalGrid(app_of(federation), 6)
    rounds = []

    class Stop(ff.Callback):
        def on_round(self, run, row):
            rounds.append(row["round"])

    grid.forge = lambda asked, answer: None if asked.metadata.dst_node_id == 1002 and rounds else answer
    config = CONFIG | {"out": str(tmp_path / "run"), "set": "solver=exact deadline=0.3"}
    result = serve(grid, config, callbacks=(Stop(),))
    assert result.unsure.tolist() == [2]
    assert result.summary()["unsure"] == ["2"]
    assert Result.load(tmp_path / "run").unsure.tolist() == [2]
    assert any("answered too seldom" in line for line in warnings(result))


def test_deadlines_hold_while_a_pull_is_stuck(tmp_path, monkeypatch):
    monkeypatch.setattr(message_puller, "PATIENCE_SECONDS", 0.2)
    federation = planted(m=4, groups=1)
    grid = LocalGrid(app_of(federation), 4)
    pull, stuck = grid.pull_messages, threading.Event()

    def blocking(ids):
        ids = list(ids)
        if any(grid._box[i].metadata.dst_node_id == 1001 for i in ids if i in grid._box) and rounds:
            stuck.wait(60)  # A node that died in mid-upload: Flower waits for its objects.
        return pull(ids)

    rounds, times = [], []

    class Watch(ff.Callback):
        def on_round(self, run, row):
            rounds.append(row["replies"])
            times.append(time.monotonic())

    monkeypatch.setattr(grid, "pull_messages", blocking)
    config = CONFIG | {"out": str(tmp_path / "run"), "set": "solver=exact deadline=1"}
    serve(grid, config, callbacks=(Watch(),))
    stuck.set()
    assert max(np.diff(times)) < 4
    assert rounds[0] == 4
    assert rounds[-1] == 3


def test_a_hello_that_is_stuck_holds_up_nobody(tmp_path, monkeypatch):
    """A node that was stopped in mid-upload of its hello: of the others, only those of the same look wait for it."""
    monkeypatch.setattr(message_puller, "PATIENCE_SECONDS", 0.2)
    grid = LocalGrid(app_of(three()), 3)
    pull, stuck = grid.pull_messages, threading.Event()

    def blocking(ids):
        ids = list(ids)
        if any(grid._box[i].metadata.dst_node_id == 1001 for i in ids if i in grid._box):
            stuck.wait(60)
        return pull(ids)

    monkeypatch.setattr(grid, "pull_messages", blocking)
    registry = NodeRegistry(grid)
    registry.look(now=True)
    registry.look(now=True)  # All are asked with one pull, which is stuck.
    assert registry.node_of == {}
    grid.add(1003, {"partition-id": 3, "num-partitions": 4})
    monkeypatch.setattr(grid, "app", app_of(planted(m=4, groups=1)))
    for _ in range(2):
        registry.look(now=True)
    assert registry.node_of == {"3": 1003}
    stuck.set()
    end = time.monotonic() + 30
    while len(registry.node_of) < 4 and time.monotonic() < end:
        registry.look(now=True)
    assert set(registry.node_of) == {"0", "1", "2", "3"}
