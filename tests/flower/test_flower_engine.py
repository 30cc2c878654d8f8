"""Every method on messages, in this process: the same bits as without them, whatever nodes do in between."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfuse as ff
from fedfuse.errors import FedfuseError
from fedfuse.flower import FlowerEngine, client_app
from fedfuse.flower import engine as engine_module
from fedfuse.flower import node_registry as nodes
from fedfuse.flower.client import build_model
from fedfuse.flower.node_registry import NodeRegistry
from fedfuse.methods.registry import METHODS
from fedfuse.protocol.tasks import Install, Order, PeekModel, Rescale, SendMoments, Train
from flower.test_messages import GARBAGE
from support.local_grid import LocalGrid
from support.planted import planted

EXACT = ff.Work(solver="exact")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    for module in (nodes, engine_module):
        monkeypatch.setattr(module, "RESCAN_SECONDS", 0.0)


def grid_of(federation, model=None):
    return LocalGrid(client_app(lambda name, config: federation.only([int(name)]), model), federation.m)


def fleet_on(grid, federation, model=None, **how):
    names = [str(i) for i in range(federation.m)]
    setup = {"classes": np.array(federation.classes).tolist()}
    return FlowerEngine(grid, names, build_model(federation, model), setup=setup, **how)


def fit_on(grid, federation, method, model=None, ttl=600.0, grace=15.0, **how):
    seed, dtype = how.get("seed", 0), how.get("dtype", "float32")
    engine = fleet_on(grid, federation, model, seed=seed, dtype=dtype, ttl=ttl, grace=grace)
    return ff.fit(federation, method, build_model(federation, model), engine=engine, **how)


def assert_same(a, b):
    assert a.labels.tolist() == b.labels.tolist()
    assert np.array_equal(a.models, b.models)
    assert a.cost_floats == b.cost_floats
    assert a.summary()["test"] == b.summary()["test"]


def of(name):
    lam = {"lam": 0.6} if name == "fpfc" else {}
    return METHODS[name](work=ff.Work(steps=3, lr=0.1, batch=10), **lam)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_the_same_to_the_bit(name):
    federation = planted("classification", m=6, n=30)
    how = {"rounds": 6, "seed": 3, "participation": 0.7, "evaluate_every": 3}
    there = fit_on(grid_of(federation), federation, of(name), **how)
    assert_same(ff.fit(federation, of(name), **how), there)
    assert there.trouble == {}


def test_rescaled_columns_and_found_lambda():
    federation = planted(m=6, n=40)
    assert_same(ff.fit(federation, rounds=30), fit_on(grid_of(federation), federation, None, rounds=30))


def test_network_of_the_user():
    import torch

    def model():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

    federation, method = planted("classification", m=4), of("fedavg")
    here = ff.fit(federation, method, build_model(federation, model), rounds=3)
    assert_same(here, fit_on(grid_of(federation, model), federation, method, model, rounds=3))


def test_asynchronous():
    federation, method = planted(m=6), ff.FPFC(lam=0.5, work=EXACT, refit=False)
    grid = grid_of(federation)
    grid.order = lambda ids: ids[:1]  # one reply at a time
    result = fit_on(grid, federation, method, mode="async", rounds=60)
    assert result.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert result.orders["used"] >= 60


# -- nodes that end and come back


def test_a_node_without_its_memory_gets_it_back():
    federation, method = planted(m=6), ff.FPFC(lam=0.5, work=ff.Work(steps=3, lr=0.05), refit=False)
    grid = grid_of(federation)
    said = []

    def forget(asked, answer):
        said.append(answer)
        if len(said) in (30, 40):  # between two of its orders
            grid.contexts[1002].state.clear()
        return answer

    grid.forge = forget
    there = fit_on(grid, federation, method, rounds=10)
    assert_same(ff.fit(federation, method, rounds=10), there)
    assert there.trouble == {"memory sent again": 2}


def test_a_node_that_comes_back_under_another_number():
    federation, method = planted(m=6), ff.FPFC(lam=0.5, work=ff.Work(steps=3, lr=0.05), refit=False)
    grid = grid_of(federation)

    def end(asked, answer):
        if len(grid.answers) == 33 and 1003 in grid.contexts:  # in mid-round: this answer is lost, too
            node = asked.metadata.dst_node_id
            grid.restart(node, 2000)
            return None
        return answer

    grid.forge = end
    there = fit_on(grid, federation, method, rounds=10)
    assert_same(ff.fit(federation, method, rounds=10), there)


def test_a_node_that_never_comes_back():
    federation, method = planted(m=6), ff.FPFC(lam=0.5, work=EXACT, refit=False)
    grid = grid_of(federation)

    def end(asked, answer):
        if len(grid.answers) > 20:
            grid.down.add(1005)
        return answer

    grid.forge = end
    result = fit_on(grid, federation, method, rounds=20, grace=0.01)
    assert result.labels[:5].tolist() == [0, 0, 0, 1, 1]
    assert result.trouble["device away"] > 0
    assert result.orders["unanswered"] == result.trouble["device away"]


def test_a_message_without_an_answer_is_given_up():
    federation = planted(m=3)
    grid = grid_of(federation)
    grid.forge = lambda asked, answer: None if asked.metadata.dst_node_id == 1001 and len(grid.sent) > 3 else answer
    result = fit_on(grid, federation, ff.FedAvg(work=EXACT), rounds=2, ttl=0.2)
    assert result.trouble["no answer in time"] == 2
    assert result.orders["unanswered"] == 2


# -- nodes that are not who they say


def impostor(grid):
    """Node 1001 says it is device 0."""

    def forge(asked, answer):
        hello = answer.content["config"].get("hello") if "config" in answer.content else None
        if hello and asked.metadata.dst_node_id == 1001:
            line = hello.replace('"device": "1"', '"device": "0"')
            return Message(RecordDict({"config": ConfigRecord({"hello": line})}), reply_to=asked)
        return answer

    grid.forge = forge


def test_a_registered_name_is_believed_and_nothing_else():
    grid = grid_of(planted(m=3))
    grid.names = {1000: "0", 1001: "1", 1002: "2"}
    impostor(grid)
    found = NodeRegistry(grid)
    found.look(now=True)
    found.look(now=True)
    assert found.node_of == {"0": 1000, "2": 1002}
    assert list(found.left_out) == ["1"]  # By the name that its key proves, not the one that it claims.
    assert found.trouble == {"refused nodes": 1}


def test_without_a_registered_name_nobody_takes_part_where_it_is_asked_for():
    grid = grid_of(planted(m=2))
    grid.names = {1000: "0"}
    found = NodeRegistry(grid, "registered")
    found.look(now=True)
    found.look(now=True)
    assert found.node_of == {"0": 1000}


def test_bad_settings():
    grid = grid_of(planted(m=2))
    with pytest.raises(FedfuseError, match="'declared' or 'registered', got 'any'"):
        NodeRegistry(grid, "any")
    with pytest.raises(FedfuseError, match="ttl must be a positive number of seconds, got 0"):
        fleet_on(grid, planted(m=2), ttl=0)


def test_one_order_at_a_time():
    federation = planted(m=2)
    engine = fleet_on(grid_of(federation), federation)
    order = Order(0, 0, Train(EXACT))
    engine.submit([order])
    with pytest.raises(FedfuseError, match="'0' already has a pending order"):
        engine.submit([order])
    assert engine.busy == {0}
    assert [reply.device for reply in engine.collect()] == [0]
    assert engine.collect() == []


def test_a_memory_is_brought_by_the_next_order():
    federation = planted(m=2)
    grid = grid_of(federation)
    engine = fleet_on(grid, federation)
    engine.submit([Order(0, -1, Install(np.arange(4.0)))])
    assert [reply.values.size for reply in engine.collect()] == [0]
    assert not any("order" in (m.content.get("config") or {}) for m in grid.sent)
    engine.submit([Order(0, 0, PeekModel())])
    assert engine.collect()[0].values.tolist() == [0, 1, 2, 3]


def test_a_memory_without_a_scale_undoes_the_last_one():
    federation = planted(m=2)
    grid = grid_of(federation)
    first, second = fleet_on(grid, federation), fleet_on(grid, federation)
    seen = []
    for engine, task in ((first, Install(np.zeros(4))), (first, Rescale(np.ones(4), np.full(4, 2.0))), (second, None)):
        engine.submit([Order(0, -1, task)] if task else [])
        engine.collect()
        engine.submit([Order(0, 0, SendMoments(4))])
        seen.append(engine.collect()[0].values)
    assert np.array_equal(seen[0], seen[2])
    assert not np.allclose(seen[0], seen[1])


# -- devices that send garbage


def forged(kind):
    def forge(asked, answer):
        if asked.metadata.dst_node_id == 1000 and "reply" in (answer.content.get("config") or {}):
            return kind(asked, answer)
        return answer

    return forge


def odd_numbers(values):
    def change(asked, answer):
        answer.content["arrays"] = ArrayRecord({"values": Array(np.asarray(values))})
        return answer

    return change


def from_table(kind):
    def change(asked, answer):
        given = GARBAGE[kind]
        content = RecordDict({"arrays": answer.content["arrays"], "config": answer.content["config"]})
        for name in ("arrays", "config"):
            if name in given:
                content[name] = given[name]
        if "line" in given:
            text = given["line"] if isinstance(given["line"], str) else '{"device": 77, "round": 0, "version": "x"}'
            content["config"] = ConfigRecord({"reply": text})
        return Message(content, reply_to=asked)

    return change


NUMBERS = {
    "nan": [np.nan] * 4,
    "infinite": [np.inf] * 4,
    "huge": [1e30] * 4,
    "too short": [1.0],
    "none": np.empty(0),
}
KINDS = {name: odd_numbers(v) for name, v in NUMBERS.items()} | {name: from_table(name) for name in GARBAGE}


@pytest.fixture(scope="module")
def without_first():
    """What comes out if device 0 never answers."""
    federation = planted(m=6)

    class Deaf(ff.engines.EngineWrapper):
        def collect(self, patience=None):
            return [r for r in self.inner.collect() if r.device != 0 or r.round < 0]

    from fedfuse.engines import InProcess

    model = build_model(federation, None)
    return ff.fit(federation, METHOD, engine=Deaf(InProcess(federation, model)), rounds=4, evaluate_every=100)


METHOD = ff.FPFC(lam=0.5, work=EXACT, refit=False)


@pytest.mark.parametrize("kind", KINDS)
def test_garbage_does_not_enter_the_state(kind, without_first):
    federation = planted(m=6)
    grid = grid_of(federation)
    grid.forge = forged(KINDS[kind])
    result = fit_on(grid, federation, METHOD, rounds=4, evaluate_every=100)
    assert np.array_equal(result.models, without_first.models)
    assert sum(result.refused.values()) == 4
    assert result.suspects.tolist() == [0]


@settings(max_examples=60)
@given(
    st.lists(
        st.sampled_from(sorted(KINDS))
        | st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=6).map(tuple)
        | st.binary(max_size=300),
        min_size=1,
        max_size=4,
    )
)
def test_any_mixture_of_garbage_leaves_the_server_alive(garbage):
    federation = planted(m=3)
    grid, turn = grid_of(federation), iter(range(1000))

    def forge(asked, answer):
        what = garbage[next(turn) % len(garbage)]
        if isinstance(what, str):
            return KINDS[what](asked, answer)
        if isinstance(what, bytes):
            array = Array("float32", (4,), "numpy.ndarray", what)
            return Message(
                RecordDict({"arrays": ArrayRecord({"values": array}), "config": answer.content["config"]}),
                reply_to=asked,
            )
        return odd_numbers(what)(asked, answer)

    grid.forge = forged(forge)
    result = fit_on(grid, federation, METHOD, rounds=3, evaluate_every=100)
    assert np.isfinite(result.models).all()
    assert result.orders["sent"] == result.orders["used"] + result.orders["refused"] + result.orders["unanswered"]


def test_an_app_that_always_fails_is_an_error_that_says_why():
    federation = planted(m=3)

    def broken():
        raise ValueError("no such model")

    with pytest.raises(FedfuseError, match=r"all devices fail; .*no such model"):
        fit_on(grid_of(federation, broken), federation, METHOD, rounds=3)


def test_bytes_are_those_of_the_floats_and_a_little_per_message():
    federation = planted("classification", m=4, p=150)  # 453 parameters
    grid = grid_of(federation)
    result = fit_on(grid, federation, ff.FPFC(lam=0.5, work=ff.Work(steps=1), refit=False), rounds=8, tol=0)
    messages = [*grid.sent, *grid.answers]
    total = sum(_bytes(message) for message in messages)
    assert total <= 1.1 * 4 * result.cost_floats + 500 * len(messages)
    assert total >= 4 * result.cost_floats


def _bytes(message):
    arrays, config = (message.content.get(name) or {} for name in ("arrays", "config"))
    return sum(len(array.data) for array in arrays.values()) + sum(len(str(line)) for line in config.values())
