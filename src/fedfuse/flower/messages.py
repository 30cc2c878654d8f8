"""Orders and replies as Flower messages: numbers as arrays, everything else as one line of JSON, nothing pickled.

A message has the records ``arrays`` and ``config``; the line of JSON is the entry ``order``, ``reply`` or ``hello`` of
``config``. Numbers travel in the precision of the run, except for short replies that decisions depend on
(`STATISTICS`). Messages of devices are untrusted: every length, type and shape is checked before it is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from io import BytesIO
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedfuse._version import __version__
from fedfuse.errors import FedfuseError
from fedfuse.flower.device_state import DeviceState
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import STATISTICS, Order, Rescale, Task

HELLO = f"{MessageType.QUERY}.hello"
PROTOCOL = 2  # Version of orders, replies and hellos; 1 is that of fedfuse 0.1.0.
MAX_REASON_CHARACTERS = 300
LOST, CHANGED = "its memory is lost", "it has other rows now than when the run began"
HELLO_FIELDS = ("device", "goal", "columns", "features", "shape", "classes", "rows", "weights", "digest")
MAX_JSON_CHARACTERS = 1_000_000
_TASKS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Task)}
_NUMPY_FORMAT = "numpy.ndarray"  # Flower's name for arrays in NumPy's format
_MAX_OVERHEAD_BYTES = 4224  # of an array: magic number and header


class UnreadableError(FedfuseError):
    """A malformed message; the text says what is wrong with it."""


@dataclass(frozen=True)
class Envelope:
    """An order with all that its device needs to carry it out."""

    order: Order
    version: str  # of the device's state that the order is for
    setup: Mapping[str, Any]  # the same for all devices in all rounds: seed, precision, classes
    state: DeviceState | None = None  # where the server is not sure that the device has it
    digest: str = ""  # of the rows that the device had when the run began, where it has said so


@dataclass(frozen=True)
class DeviceReply:
    """A device's reply: values, or why there are none: `LOST` (its state must be sent), `CHANGED` or its policy."""

    values: npt.NDArray[Any]
    version: str = ""
    refused: str = ""


# -- server to device


def write_order(envelope: Envelope, node: int, ttl: float) -> Message:
    """Return the message that carries an order to a node."""
    order, dtype = envelope.order, np.dtype(envelope.setup["dtype"])
    line, arrays = _split(order.task, dtype)
    line |= {"device": order.device, "round": order.round, "version": envelope.version, **envelope.setup}
    line |= {"digest": envelope.digest, "protocol": PROTOCOL, "fedfuse": __version__}
    if envelope.state is not None:
        kept = envelope.state.arrays()
        zeros = kept["own"].size - np.trim_zeros(kept["own"], "f").size  # An initial model of zeros is not sent.
        arrays |= {f"memory.{name}": array for name, array in kept.items()}
        arrays["memory.own"] = kept["own"][zeros:].astype(dtype)
        line["zeros"] = zeros
    content = RecordDict({"arrays": write_arrays(arrays), "config": ConfigRecord({"order": json.dumps(line)})})
    return Message(content, node, MessageType.TRAIN, group_id=str(order.round), ttl=ttl)


def read_order(message: Message) -> Envelope:
    """Return the order that a message carries."""
    line = check_protocol(_line(message, "order"), "the server")
    arrays = read_arrays(message.content["arrays"])
    state = None
    if "zeros" in line:
        own = arrays["memory.own"]
        own = np.concatenate([np.zeros(line["zeros"], own.dtype), own])
        state = DeviceState(own, arrays.get("memory.shift"), arrays.get("memory.scale"))
    order = Order(line["device"], line["round"], _join(line, arrays))
    apart = ("device", "round", "version", "zeros", "task", "digest", "protocol", "fedfuse")
    setup = {key: value for key, value in line.items() if key not in apart}
    return Envelope(order, line["version"], setup, state, line.get("digest", ""))


def _split(task: Task, dtype: np.dtype[Any]) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return a task as JSON-ready data, and its arrays."""
    words: dict[str, Any] = {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, value in vars(task).items():
        if isinstance(value, np.ndarray):
            arrays[name] = value if isinstance(task, Rescale) else value.astype(dtype)
        elif value is not None:
            words[name] = vars(value) if isinstance(value, Work) else value
    return {"task": [type(task).__name__, words]}, arrays


def _join(line: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Task:
    name, words = line["task"]
    kind = _TASKS[name]
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in words.items()}
    if "work" in given:
        given["work"] = Work(**words["work"])
    own = {f.name for f in fields(kind)}
    task: Task = kind(**given, **{name: array for name, array in arrays.items() if name in own})
    return task


# -- device to server


def write_reply(message: Message, order: Order, reply: DeviceReply, dtype: npt.DTypeLike) -> Message:
    """Return the message that replies to another one."""
    line = {"device": order.device, "round": order.round, "version": reply.version, "refused": reply.refused}
    values = reply.values if isinstance(order.task, STATISTICS) else reply.values.astype(dtype)
    arrays = {} if reply.refused else {"values": values}
    content = RecordDict({"arrays": write_arrays(arrays), "config": ConfigRecord({"reply": json.dumps(line)})})
    return Message(content, reply_to=message)


def read_reply(message: Message, order: Order, d: int) -> DeviceReply:
    """Return a device's reply to an order; raise `UnreadableError` for what does not match it."""
    line = _line(message, "reply")
    if line.get("device") != order.device or line.get("round") != order.round:
        given = f"device {line.get('device')!r}, round {line.get('round')!r}"
        raise UnreadableError(f"it is for {given}; expected was device {order.device}, round {order.round}")
    if isinstance(reason := line.get("refused"), str) and reason:
        return DeviceReply(np.empty(0), refused=printable(reason))
    version = line.get("version")
    if not isinstance(version, str):
        raise UnreadableError("it has no version")
    arrays = message.content.get("arrays")
    if not isinstance(arrays, ArrayRecord) or list(arrays) != ["values"]:
        raise UnreadableError("it has no values, or more than values")
    return DeviceReply(_numbers(arrays["values"], order.task.floats_up(d)), version)


def _numbers(array: Array, most: int) -> npt.NDArray[Any]:
    """Read an untrusted array; no memory is allocated on the word of its header."""
    if array.stype != _NUMPY_FORMAT:
        raise UnreadableError(f"its values are of the kind {array.stype!r}, not NumPy's")
    if len(array.data) > 8 * most + _MAX_OVERHEAD_BYTES:
        raise UnreadableError(f"its values take {len(array.data)} bytes, expected were {most} numbers")
    file = BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except Exception as problem:  # Damaged bytes raise many kinds.
        raise UnreadableError(f"its values cannot be read ({type(problem).__name__})") from None
    rest = file.read()
    if version != (1, 0):
        raise UnreadableError("its values are in an unknown version of NumPy's format")
    if dtype.kind not in "fiu" or dtype.itemsize > 8:
        raise UnreadableError(f"its values have the type {dtype}")
    if len(shape) != 1 or len(rest) != math.prod(shape) * dtype.itemsize:
        raise UnreadableError(f"its values have the shape {shape} and {len(rest)} bytes")
    return np.frombuffer(rest, dtype).astype(dtype.newbyteorder("="))


# -- identity


def write_hello(message: Message, facts: Mapping[str, Any]) -> Message:
    """Return a device's reply to `hello`: its name, and what the server must know of its rows."""
    line = {"protocol": PROTOCOL, "fedfuse": __version__, **facts}
    return Message(RecordDict({"config": ConfigRecord({"hello": json.dumps(line)})}), reply_to=message)


def read_hello(message: Message) -> dict[str, Any]:
    """Return what a device says of itself, unchecked but for its protocol; what nobody asks for is dropped."""
    line = check_protocol(_line(message, "hello"), "it")
    texts = {key: printable(str(line.get(key, ""))) for key in ("problem", "fedfuse", "policy")}
    return {key: line[key] for key in HELLO_FIELDS if key in line} | texts


def check_protocol(line: dict[str, Any], who: str) -> dict[str, Any]:
    """Return a line of a side that speaks this version of the protocol; raise an error that names both versions."""
    theirs, version = line.get("protocol", 1), line.get("fedfuse", "unknown")
    if theirs != PROTOCOL:
        words = f"{who} speaks protocol {theirs} (fedfuse {version}), this side {PROTOCOL} (fedfuse {__version__})"
        raise UnreadableError(f"{printable(words)}: install the same version of fedfuse on both")
    return line


def error_of(message: Message) -> str:
    """Return the end of what Flower says of an error."""
    return printable((message.error.reason or "no reason given")[-MAX_REASON_CHARACTERS:])


def printable(text: str) -> str:
    """Return text of the other side as it may be logged: short, on one line."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())[:MAX_REASON_CHARACTERS]


def hello(node: int, ttl: float) -> Message:
    """Return the message that asks a node which device it is."""
    return Message(RecordDict(), node, HELLO, ttl=ttl)


def _line(message: Message, name: str) -> dict[str, Any]:
    config = message.content.get("config")
    text = config.get(name) if isinstance(config, ConfigRecord) else None
    if not isinstance(text, str) or len(text) > MAX_JSON_CHARACTERS:
        raise UnreadableError(f"it has no {name}, or one that is too long")
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableError(f"its {name} is not JSON") from None
    if not isinstance(line, dict):
        raise UnreadableError(f"its {name} is not a JSON object")
    return line


# -- arrays


def write_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> ArrayRecord:
    """Return arrays as a record."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def read_arrays(record: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a record from a trusted side: this one, or the server."""
    return {name: array.numpy() for name, array in record.items()}
