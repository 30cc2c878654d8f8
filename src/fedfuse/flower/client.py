"""The ClientApp of a fedfuse federation: a device that carries out orders.

Flower starts a process for every message, so nothing is imported here that an order may not need: numba, pandas and
torch come with the first order that computes with them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedfuse._version import __version__
from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError
from fedfuse.flower.device import Device, facts_of, with_classes
from fedfuse.flower.messages import (
    Answer,
    DeviceMemory,
    Letter,
    read_arrays,
    read_letter,
    write_answer,
    write_arrays,
    write_hello,
)
from fedfuse.models.model import Model
from fedfuse.protocol.privacy import Noise

Config: TypeAlias = Mapping[str, Any]
Load: TypeAlias = Callable[[str, Config], Any]  # (device, configuration) -> (X, y) or Federation
Build: TypeAlias = Callable[[], Any]  # () -> Model, torch module, name or None
Kept = TypeVar("Kept")
_STATE = "fedfuse"
_MOST = 256  # devices that a process of a simulation keeps at hand


def client_app(load: Load, model: Build | None = None) -> ClientApp:
    """Return the app of a device.

    Parameters
    ----------
    load
        Called with the device's name and its configuration (the run's, then the node's, which counts more); returns
        ``(X, y)``, or a `Federation` of this one device whose parts are cut already.
    model
        Called without arguments; returns a model, a torch module, a name or None, as `fit` takes them. The server's app
        must build the same.
    """
    app = ClientApp()

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        return _introduce(message, context, load)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _obey(message, context, load, model)

    return app


# A simulation's processes get the functions above anew with every message; what they keep must be the module's.
_rows: OrderedDict[Any, Federation] = OrderedDict()
_devices: OrderedDict[Any, Device] = OrderedDict()


def _introduce(message: Message, context: Context, load: Load) -> Message:
    facts = facts_of(_rows_of(context, load))
    return write_hello(message, {"device": device_name(context), "fedfuse": __version__, **facts})


def _obey(message: Message, context: Context, load: Load, build: Build | None) -> Message:
    letter = read_letter(message)
    memory, dtype = _memory(letter, context), letter.setup["dtype"]
    if memory is None:
        return write_answer(message, letter.order, Answer(np.empty(0), lost=True), dtype)
    key = (context.run_id, context.node_id, letter.order.device, str(letter.setup))
    device = _kept(_devices, key, lambda: build_device(_rows_of(context, load), build, letter))
    answer, memory = device.answer(letter, memory)
    reply = write_answer(message, letter.order, answer, dtype)
    _remember(context, answer.version, memory)  # last: Flower keeps it even if something fails after it
    return reply


def _rows_of(context: Context, load: Load) -> Federation:
    return _kept(_rows, (context.run_id, context.node_id), lambda: load_rows(load, context))


def device_name(context: Context) -> str:
    """Return which device a node is: ``device`` of its configuration, or the partition that a simulation gave it."""
    given = context.node_config.get("device", context.node_config.get("partition-id"))
    if given is None:
        raise FedfuseError("this node does not say which device it is: start it with --node-config 'device=\"NAME\"'")
    return str(given)


def load_rows(load: Load, context: Context) -> Federation:
    """Return the rows of the device that this node is."""
    name = device_name(context)
    config = {**context.run_config, **context.node_config}
    data = load(name, config)
    if not isinstance(data, Federation):
        goal: Any = config.get("goal") or None
        data = Federation.from_arrays({name: data}, goal=goal)
    if data.m != 1:
        raise FedfuseError(f"device {name!r}: load must return the rows of one device, got those of {data.m}")
    return replace(data, names=(name,), truth=None, encoder=None)


def build_device(federation: Federation, build: Build | None, letter: Letter) -> Device:
    """Return the device that carries out orders on these rows."""
    federation = with_classes(federation, letter.setup.get("classes", []))
    model = fitting_model(federation, build)
    noise = Noise(*letter.setup["noise"]) if "noise" in letter.setup else None
    how: dict[str, Any] = {"seed": letter.setup["seed"], "dtype": letter.setup["dtype"], "noise": noise}
    return Device(federation, model, letter.order.device, **how)


def fitting_model(federation: Federation, build: Build | None) -> Model[Any]:
    """Return the model that both sides use, with the sizes of the federation."""
    from fedfuse.models import default_model, model_called

    given = build() if build else None
    if isinstance(given, str):
        given = model_called(given)
    if given is None:
        given = default_model(federation.goal, federation.shape)
    if not isinstance(given, Model):  # a torch module
        from fedfuse.models.torch import TorchModel

        given = TorchModel(given, loss="mse" if federation.goal == "regression" else "cross_entropy")
    given.check(federation.goal)
    return given.sized(federation.n_features, federation.n_classes, federation.shape)


def _memory(letter: Letter, context: Context) -> DeviceMemory | None:
    """Return what the device remembers: what the server says, or what it has itself if that is up to date."""
    if letter.memory is not None:
        return letter.memory
    state = context.state
    if _STATE not in state or state[f"{_STATE}.version"]["version"] != letter.version:
        return None
    return DeviceMemory(**read_arrays(state[_STATE]))


def _remember(context: Context, version: str, memory: DeviceMemory) -> None:
    context.state[_STATE] = write_arrays(memory.arrays())
    context.state[f"{_STATE}.version"] = ConfigRecord({"version": version})


def _kept(store: OrderedDict[Any, Kept], key: Any, make: Callable[[], Kept]) -> Kept:
    """Return what is stored, or make it; of the oldest, some are forgotten."""
    if key not in store:
        store[key] = make()
        if len(store) > _MOST:
            store.popitem(last=False)
    return store[key]
