"""The virtual clock: replies come in the order of their times, whatever is computed when."""

from __future__ import annotations

import numpy as np
import pytest

from fedfuse.engines import Faults, InProcess, Latency
from fedfuse.engines.latency import Distribution
from fedfuse.models import default_model
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import EVALUATION_ROUND, Install, Order, PeekModel, Train
from support.planted import planted

GD = Train(Work(steps=2, lr=0.1))


def new_fleet(m=5, **laws):
    federation = planted(m=m)
    model = default_model(federation.goal).sized(federation.n_features, federation.n_classes)
    return Latency(InProcess(federation, model, dtype="float64"), **laws)


def everything(engine):
    """All that still comes, with the time of each."""
    found = []
    while arrived := engine.collect():
        found += [(engine.time, r.device, r.round) for r in arrived]
    return found


def test_replies_come_by_their_times_single_reply_rule():
    engine, law = new_fleet(delay="uniform(0,20)", compute=3), Distribution.of("uniform(0,20)")
    engine.submit([Order(i, 7, GD) for i in range(5)])
    assert engine.busy == frozenset(range(5))
    expected = sorted((3 + law.draw(0, "delay", 7, i), i, 7) for i in range(5))
    found = everything(engine)
    assert [f[1:] for f in found] == [e[1:] for e in expected]
    np.testing.assert_allclose([f[0] for f in found], [e[0] for e in expected], rtol=1e-14)
    assert not engine.busy


def test_a_round_takes_as_long_as_its_slowest_device():
    engine, law, total = new_fleet(delay="exponential(5)"), Distribution.of("exponential(5)"), 0.0
    for k in range(4):
        engine.submit([Order(i, k, GD) for i in (0, 2, 4)])
        everything(engine)
        total += max(law.draw(0, "delay", k, i) for i in (0, 2, 4))
        assert engine.time == pytest.approx(total, rel=1e-14)


def test_whoever_is_asked_first_comes_first_when_times_are_equal():
    engine = new_fleet(compute=1)
    engine.submit([Order(i, 0, GD) for i in (3, 1, 4)])
    assert [device for _, device, _ in everything(engine)] == [3, 1, 4]


def test_orders_may_be_added_while_others_are_under_way():
    engine = new_fleet(m=2, delay="per_node(uniform(0,20))")
    slow, fast = sorted(range(2), key=lambda i: -Distribution.of("per_node(uniform(0,20))").draw(0, "delay", 0, i))
    engine.submit([Order(slow, 0, GD), Order(fast, 0, GD)])
    times = []
    for k in range(1, 4):
        (reply,) = engine.collect()
        times.append(engine.time)
        if reply.device == slow:
            break
        engine.submit([Order(fast, k, GD)])
    assert times == sorted(times)
    assert times[0] == pytest.approx(Distribution.of("per_node(uniform(0,20))").draw(0, "delay", 0, fast))


def test_patience_moves_the_clock_and_no_further():
    engine = new_fleet(delay="uniform(10,20)")
    engine.submit([Order(0, 0, GD)])
    assert engine.collect(4.0) == []
    assert engine.time == 4.0
    assert engine.busy == {0}
    (reply,) = engine.collect(100.0)
    assert 10 <= engine.time <= 20
    assert reply.device == 0
    before = engine.time
    assert engine.collect(5.0) == []  # nobody is at work, but a server would wait
    assert engine.time == before + 5


def test_what_belongs_to_no_round_takes_no_time():
    """Also while devices are at work; a look shows them as they are in the end."""
    engine = new_fleet(delay=10)
    start = np.ones(4)
    engine.submit([Order(i, -1, Install(start)) for i in range(5)])
    assert [t for t, *_ in everything(engine)] == [0.0] * 5
    engine.submit([Order(i, 0, GD) for i in range(5)])
    engine.submit([Order(i, EVALUATION_ROUND, PeekModel()) for i in range(5)])
    looks = [engine.collect()[0] for _ in range(5)]
    assert {r.round for r in looks} == {EVALUATION_ROUND}
    assert engine.time == 0.0
    assert len(everything(engine)) == 5
    assert engine.time == 10.0


@pytest.mark.parametrize("trouble", [{}, {"late": 0.5, "twice": 0.3, "lost": 0.2}])
def test_what_is_under_way_survives_a_checkpoint(trouble):
    """The clock, the queue and the replies: to the bit, and whatever the engine did since."""
    one, two = (Faults(new_fleet(m=8, delay="uniform(0,20)"), **trouble) for _ in range(2))
    one.submit([Order(i, 0, GD) for i in range(8)])
    for _ in range(3):
        one.collect()
    one.submit([Order(i, 3, GD) for i in range(8) if i not in one.busy])
    arrays = {name: array.copy() for name, array in one.pack().items()}
    assert all(array.dtype.kind in "fiu" for array in arrays.values())
    two.unpack(arrays)
    assert one.time == two.time
    assert one.busy == two.busy
    while arrived := one.collect():
        again = two.collect()
        assert [(r.device, r.round) for r in arrived] == [(r.device, r.round) for r in again]
        assert one.time == two.time
        for a, b in zip(arrived, again, strict=True):
            np.testing.assert_array_equal(a.values, b.values)
    assert two.collect() == []
