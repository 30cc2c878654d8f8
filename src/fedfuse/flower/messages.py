"""Orders and replies as Flower messages: numbers as arrays, everything else as one line of JSON, nothing pickled.

A message has the record ``arrays`` and the record ``config``, whose ``order`` (or ``reply``, or ``hello``) is the line.
Numbers travel in the precision of the run, except for short answers that something is decided by (`_EXACT`).
What comes from a device is read with suspicion: no length, type or shape is believed before it is checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from io import BytesIO
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedfuse.errors import FedfuseError
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import (
    EvaluateModels,
    GradientCosine,
    Losses,
    Order,
    Rescale,
    Score,
    SendMoments,
    SendSufficientStatistics,
    Task,
)
from fedfuse.utils.typing import Floats

HELLO = f"{MessageType.QUERY}.hello"
LONGEST_LINE = 1_000_000  # characters of JSON that a device may send
_TASKS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Task)}
_EXACT = (Score, Losses, EvaluateModels, GradientCosine, SendMoments, SendSufficientStatistics)
_HEADER = 128  # bytes before the numbers of an array in NumPy's format; longer ones are not of this world
_SLACK = 4096
_NUMPY = "numpy.ndarray"  # how Flower calls arrays in NumPy's format
_BEFORE = 10  # bytes before the header of an array: magic, version, length


class UnreadableError(FedfuseError):
    """A message that does not say what it should; the sentence says what is wrong with it."""


@dataclass(frozen=True)
class DeviceMemory:
    """What a device remembers from one order to the next: its own model, and the scale of its columns."""

    own: Floats
    shift: Floats | None = None
    scale: Floats | None = None

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return it as arrays under names."""
        named = {"own": self.own, "shift": self.shift, "scale": self.scale}
        return {name: array for name, array in named.items() if array is not None}


@dataclass(frozen=True)
class Letter:
    """An order on its way to a device, with all that the device needs to carry it out.

    Attributes
    ----------
    version
        How often the device's memory has changed, as far as the server knows.
    memory
        What it should remember, where the server cannot be sure that it does.
    setup
        What is the same for all devices in all rounds: seed, precision, classes.
    """

    order: Order
    version: str
    setup: Mapping[str, Any]
    memory: DeviceMemory | None = None


@dataclass(frozen=True)
class Answer:
    """What a device says to a letter: values, or that it has lost its memory and needs it again."""

    values: npt.NDArray[Any]
    version: str = ""
    lost: bool = False


# -- server to device


def write_letter(letter: Letter, node: int, ttl: float) -> Message:
    """Return the message that carries an order to a node."""
    order, dtype = letter.order, np.dtype(letter.setup["dtype"])
    line, arrays = _take_apart(order.task, dtype)
    line |= {"device": order.device, "round": order.round, "version": letter.version, **letter.setup}
    if letter.memory is not None:
        kept = letter.memory.arrays()
        zeros = _leading_zeros(kept["own"])  # a first model that is zero need not travel
        arrays |= {f"memory.{name}": array for name, array in kept.items()}
        arrays["memory.own"] = kept["own"][zeros:].astype(dtype)
        line["zeros"] = zeros
    content = RecordDict({"arrays": write_arrays(arrays), "config": ConfigRecord({"order": json.dumps(line)})})
    return Message(content, node, MessageType.TRAIN, group_id=str(order.round), ttl=ttl)


def read_letter(message: Message) -> Letter:
    """Return the order that a message carries."""
    line = _line(message, "order")
    arrays = read_arrays(message.content["arrays"])
    memory = None
    if "zeros" in line:
        own = arrays["memory.own"]
        own = np.concatenate([np.zeros(line["zeros"], own.dtype), own])
        memory = DeviceMemory(own, arrays.get("memory.shift"), arrays.get("memory.scale"))
    order = Order(line["device"], line["round"], _put_together(line, arrays))
    setup = {key: value for key, value in line.items() if key not in ("device", "round", "version", "zeros", "task")}
    return Letter(order, line["version"], setup, memory)


def _take_apart(task: Task, dtype: np.dtype[Any]) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return what JSON can say of a task, and its arrays."""
    words: dict[str, Any] = {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for f in fields(task):
        value = getattr(task, f.name)
        if isinstance(value, np.ndarray):
            arrays[f.name] = value if isinstance(task, Rescale) else value.astype(dtype)
        elif isinstance(value, Work):
            words[f.name] = {w.name: getattr(value, w.name) for w in fields(value)}
        elif value is not None:
            words[f.name] = value
    return {"task": [type(task).__name__, words]}, arrays


def _put_together(line: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Task:
    name, words = line["task"]
    kind = _TASKS[name]
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in words.items()}
    if "work" in given:
        given["work"] = Work(**words["work"])
    own = {f.name for f in fields(kind)}
    task: Task = kind(**given, **{name: array for name, array in arrays.items() if name in own})
    return task


def _leading_zeros(vector: Floats) -> int:
    others = np.flatnonzero(vector)
    return int(others[0]) if others.size else int(vector.size)


# -- device to server


def write_answer(message: Message, order: Order, answer: Answer, dtype: npt.DTypeLike) -> Message:
    """Return the message that answers another one."""
    line = {"device": order.device, "round": order.round, "version": answer.version, "lost": answer.lost}
    exact = isinstance(order.task, _EXACT)
    values = answer.values if exact else answer.values.astype(dtype)
    arrays = {} if answer.lost else {"values": values}
    content = RecordDict({"arrays": write_arrays(arrays), "config": ConfigRecord({"reply": json.dumps(line)})})
    return Message(content, reply_to=message)


def read_answer(message: Message, order: Order, d: int) -> Answer:
    """Return what a device answered; raise `UnreadableError` for anything that no device of ours would send."""
    line = _line(message, "reply")
    if line.get("device") != order.device or line.get("round") != order.round:
        asked = f"device {order.device}, round {order.round}"
        raise UnreadableError(
            f"it is for device {line.get('device')!r}, round {line.get('round')!r}; asked was {asked}"
        )
    if line.get("lost") is True:
        return Answer(np.empty(0), lost=True)
    version = line.get("version")
    if not isinstance(version, str):
        raise UnreadableError("it has no version")
    arrays = message.content.get("arrays")
    if not isinstance(arrays, ArrayRecord) or list(arrays) != ["values"]:
        raise UnreadableError("it has no values, or more than values")
    return Answer(_numbers(arrays["values"], order.task.floats_up(d)), version)


def _numbers(array: Array, most: int) -> npt.NDArray[Any]:
    """Read an array without believing its header; nothing is allotted for numbers that have not come."""
    if array.stype != _NUMPY:
        raise UnreadableError(f"its values are of the kind {array.stype!r}, not NumPy's")
    if len(array.data) > 8 * most + _HEADER + _SLACK:
        raise UnreadableError(f"its values take {len(array.data)} bytes, expected were {most} numbers")
    try:
        shape, dtype, first = _layout(array.data)
    except UnreadableError:
        raise
    except Exception as problem:  # there is no end to what damaged bytes raise
        raise UnreadableError(f"its values cannot be read ({type(problem).__name__})") from None
    rest = array.data[first:]
    if dtype.kind not in "fiu" or dtype.itemsize > 8:
        raise UnreadableError(f"its values have the type {dtype}")
    if len(shape) != 1 or len(rest) != math.prod(shape) * dtype.itemsize:
        raise UnreadableError(f"its values have the shape {shape} and {len(rest)} bytes")
    return np.frombuffer(rest, dtype).astype(dtype.newbyteorder("="))


# -- who a node is


def write_hello(message: Message, facts: Mapping[str, Any]) -> Message:
    """Return a device's answer to a hello: who it is, and what the server must know of its rows."""
    return Message(RecordDict({"config": ConfigRecord({"hello": json.dumps(facts)})}), reply_to=message)


def read_hello(message: Message) -> dict[str, Any]:
    """Return what a device says of itself, not yet checked."""
    return _line(message, "hello")


def hello(node: int, ttl: float) -> Message:
    """Return the question who a node is."""
    return Message(RecordDict(), node, HELLO, ttl=ttl)


def _line(message: Message, name: str) -> dict[str, Any]:
    config = message.content.get("config")
    text = config.get(name) if isinstance(config, ConfigRecord) else None
    if not isinstance(text, str) or len(text) > LONGEST_LINE:
        raise UnreadableError(f"it has no {name}, or one without end")
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableError(f"its {name} is not JSON") from None
    if not isinstance(line, dict):
        raise UnreadableError(f"its {name} is not what it should be")
    return line


# -- arrays, in NumPy's own format, as Flower has them. Headers of a run are all alike, and take longer than the numbers


def write_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> ArrayRecord:
    """Return arrays as a record."""
    return ArrayRecord({name: _written(np.ascontiguousarray(array)) for name, array in arrays.items()})


def read_arrays(record: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a record that is one's own, or the server's."""
    return {name: _read(array.data) for name, array in record.items()}


def _written(array: npt.NDArray[Any]) -> Array:
    return Array(str(array.dtype), array.shape, _NUMPY, _head(array.dtype, array.shape) + array.tobytes())


def _read(data: bytes) -> npt.NDArray[Any]:
    shape, dtype, first = _layout(data)
    # a copy may be written to
    numbers: npt.NDArray[Any] = np.frombuffer(data, dtype, offset=first).reshape(shape).copy()
    return numbers


@lru_cache(maxsize=256)
def _head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    buffer = BytesIO()
    np.lib.format.write_array(buffer, np.empty(shape, dtype), (1, 0), allow_pickle=False)
    size = math.prod(shape) * dtype.itemsize
    return buffer.getvalue()[: len(buffer.getvalue()) - size]


def _layout(data: bytes) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return shape, type and first byte of the numbers of an array in NumPy's format."""
    first = _BEFORE + int.from_bytes(data[_BEFORE - 2 : _BEFORE], "little")
    return (*_parsed(data[:first]), first)


@lru_cache(maxsize=256)
def _parsed(head: bytes) -> tuple[tuple[int, ...], np.dtype[Any]]:
    buffer = BytesIO(head)
    if np.lib.format.read_magic(buffer) != (1, 0):
        raise UnreadableError("its values are in an unknown version of NumPy's format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(buffer)
    return shape, dtype
