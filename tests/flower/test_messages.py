"""Every task and every answer survives its way; what no device of ours would send is refused."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfuse.flower.device_state import DeviceState
from fedfuse.flower.messages import (
    LOST,
    DeviceReply,
    Envelope,
    UnreadableError,
    read_order,
    read_reply,
    write_order,
    write_reply,
)
from fedfuse.protocol import tasks
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import Order, Train

SETUP = {"seed": 3, "dtype": "float32", "classes": ["a", "b"]}
W = np.linspace(-1, 1, 4, dtype=np.float32)
WORK = Work(steps=3, lr=0.25, batch=7, momentum=0.5)
ALL = [
    tasks.Install(W, known=2),
    tasks.Add(W),
    tasks.PeekModel(),
    Train(WORK, W, W[:2], 0.5, "train+validation", "validation", "fused", "part"),
    Train(Work(solver="exact")),
    Train(WORK, W, rho=0.5, near=True, share=0.25, slope=-W, rest_steps=3, neighbours=np.stack([W, W])),
    tasks.MetaTrain(WORK, W, 0.1, True),
    tasks.TrainPair(WORK, W, 0.5, -W),
    tasks.EnvelopeTrain(WORK, W, 0.5, 0.1, 3),
    tasks.MixtureTrain(WORK, np.stack([W, -W]), W[:2]),
    tasks.Choose(W[:2], np.stack([W, W]), WORK, 0.5),
    tasks.Choose(W[:0], np.stack([W, W])),
    tasks.Subspace(2, 3, 4),
    tasks.Score(W, "test", raw=True),
    tasks.FitLocally((0.0, 0.1)),
    tasks.Gradient(W, "train/1", ("validation", "train/2")),
    tasks.Losses(np.stack([W, -W])),
    tasks.EvaluateModels(np.stack([W, -W]), own=True, balanced=True),
    tasks.GradientCosine(W, -W),
    tasks.JudgePersonalModels(
        np.stack([W, -W]), W, W[:2], W[:1], W[1:2], (1.0, 0.1), (3.0,), (0.5,), np.eye(3, dtype=np.float32)
    ),
    tasks.SendPosterior(W, W[:2], W[:1]),
    tasks.PeekPersonalModels(np.stack([W, -W]), W[:2], W[:1], W[:3], W[1:4]),
    tasks.JudgeDrawnModels(W, W[:1], (1.0, 0.1)),
    tasks.PeekDrawnModels(W, 0.1),
    tasks.SendMoments(3),
    tasks.SendSufficientStatistics(3),
    tasks.Rescale(np.array([1 / 3, 0.0]), np.array([2.0, 1e-9])),
]


@pytest.fixture(autouse=True)
def identity():
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def same(a, b):
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    return a == b and type(a) is type(b)


@pytest.mark.parametrize("task", ALL, ids=lambda t: type(t).__name__)
def test_tasks_survive(task):
    order = Order(5, 17, task)
    read = read_order(write_order(Envelope(order, "ab.2", SETUP), 1, 60.0))
    assert (read.order.device, read.order.round, read.version, read.state) == (5, 17, "ab.2", None)
    assert read.setup == SETUP
    assert type(read.order.task) is type(task)
    assert all(same(value, getattr(read.order.task, name)) for name, value in vars(task).items())


def test_all_tasks_are_tried():
    assert {type(task) for task in ALL} == set(tasks.Task.__args__)


@given(zeros=st.integers(0, 6), rest=st.lists(st.floats(-10, 10, width=32), max_size=5), scaled=st.booleans())
def test_memory_survives(zeros, rest, scaled):
    own = np.concatenate([np.zeros(zeros, np.float32), np.array(rest, np.float32)])
    more = (np.array([0.1]), np.array([3.0])) if scaled else (None, None)
    letter = Envelope(Order(0, 0, tasks.PeekModel()), "a.0", SETUP, DeviceState(own, *more))
    read = read_order(write_order(letter, 1, 60.0)).state
    assert same(read.own, own)
    assert all(same(a, b) for a, b in zip((read.shift, read.scale), more, strict=True))


def test_a_model_that_is_zero_does_not_travel():
    message = write_order(
        Envelope(Order(0, 0, tasks.PeekModel()), "a.0", SETUP, DeviceState(np.zeros(10_000))), 1, 60.0
    )
    assert sum(len(array.data) for array in message.content["arrays"].values()) < 200


def asked(task=None):
    order = Order(2, 9, task or Train(Work()))
    return order, write_order(Envelope(order, "a.0", SETUP), 1, 60.0)


def test_answers_survive():
    order, message = asked()
    answer = read_reply(write_reply(message, order, DeviceReply(W, "a.1"), "float32"), order, d=4)
    assert same(answer.values, W)
    assert answer.version == "a.1"
    assert not answer.refused


def test_judgements_travel_exactly():
    order, message = asked(tasks.Losses(np.stack([W, W])))
    values = np.array([1 / 3, 2 / 3])
    assert same(
        read_reply(write_reply(message, order, DeviceReply(values, "a.0"), "float32"), order, d=4).values, values
    )


def test_lost_memory():
    order, message = asked()
    written = write_reply(message, order, DeviceReply(np.empty(0), refused=LOST), "float32")
    assert read_reply(written, order, d=4).refused == LOST


def reply(message, arrays=None, line=None, **records):
    """An answer as it should be, except for what is given."""
    good = {"device": 2, "round": 9, "version": "a.1", "refused": ""}
    text = json.dumps(good) if line is None else line if isinstance(line, str) else json.dumps(good | line)
    content = {
        "arrays": arrays if arrays is not None else ArrayRecord({"values": Array(W)}),
        "config": ConfigRecord({"reply": text}),
    }
    return Message(RecordDict({k: v for k, v in (content | records).items() if v is not None}), reply_to=message)


def values(array):
    return {"arrays": ArrayRecord({"values": array})}


def raw(data, stype="numpy.ndarray", shape=(4,), dtype="float32"):
    return values(Array(dtype, shape, stype, data))


NPY = Array(W).data
GARBAGE = {
    "no arrays": {"arrays": ArrayRecord()},
    "another name": {"arrays": ArrayRecord({"omega": Array(W)})},
    "more arrays": {"arrays": ArrayRecord({"values": Array(W), "more": Array(W)})},
    "metrics for arrays": {"arrays": MetricRecord({"values": 1.0})},
    "no line": {"config": ConfigRecord()},
    "arrays for a line": {"config": ArrayRecord({"reply": Array(W)})},
    "not JSON": {"line": "{"},
    "nested without end": {"line": "[" * 100_000},
    "a list": {"line": "[1]"},
    "a number for a line": {"config": ConfigRecord({"reply": 3})},
    "very long line": {"line": json.dumps({"x": "y" * 1_100_000})},
    "another device": {"line": {"device": 1}},
    "no device": {"line": {"device": None}},
    "another round": {"line": {"round": 8}},
    "version is a list": {"line": {"version": [1]}},
    "text": values(Array(np.array(["a", "b"]))),
    "complex": values(Array(W.astype(complex))),
    "booleans": values(Array(W > 0)),
    "a matrix": values(Array(W.reshape(2, 2))),
    "a single number": values(Array(np.array(3.0))),
    "far too many": values(Array(np.zeros(5000))),
    "cut short": raw(NPY[:-3]),
    "half a header": raw(NPY[:40]),
    "nothing": raw(b""),
    "a pickle": raw(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n."),
    "claims a billion numbers": raw(NPY.replace(b"(4,), }" + b" " * 9, b"(9999999999,), }", 1)),
    "another kind": raw(NPY, stype="torch.tensor"),
    "an unknown version": raw(NPY[:6] + b"\x09\x09" + NPY[8:]),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_refused(kind):
    order, message = asked()
    with pytest.raises(UnreadableError):
        read_reply(reply(message, **GARBAGE[kind]), order, d=4)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=400), place=st.integers(0, len(NPY)), line=st.text(max_size=60) | st.none())
def test_bytes_are_read_or_refused(data, place, line):
    order, message = asked()
    try:
        answer = read_reply(reply(message, line=line, **raw(NPY[:place] + data + NPY[place + len(data) :])), order, d=4)
    except UnreadableError:
        return
    assert answer.values.ndim == 1
    assert answer.values.dtype.kind in "fiu"
    assert answer.values.size <= 8 * (len(NPY) + len(data))
