"""The ClientApp: a device that carries out orders.

Flower starts a process for every message, so numba, pandas and torch are imported by the first order that needs them.
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
from fedfuse.flower.device_state import DeviceState
from fedfuse.flower.messages import (
    DeviceReply,
    Envelope,
    read_arrays,
    read_order,
    write_arrays,
    write_hello,
    write_reply,
)
from fedfuse.models.model import Model
from fedfuse.protocol.privacy import Noise

Config: TypeAlias = Mapping[str, Any]
Load: TypeAlias = Callable[[str, Config], Any]  # (device, configuration) -> (X, y) or Federation
Build: TypeAlias = Callable[[], Any]  # () -> Model, torch module, name or None
Cached = TypeVar("Cached")
_STATE = "fedfuse"
_MAX_CACHED = 256  # devices per process of a simulation


def client_app(load: Load, model: Build | None = None) -> ClientApp:
    """Return the app of a device.

    Parameters
    ----------
    load
        Called with the device's name and its configuration (the node's overrides the run's); returns ``(X, y)``, or a
        `Federation` of this one device with its train, validation and test rows.
    model
        Called without arguments; returns a model, a torch module, a name or None. The server's app must build the same.
    """
    app = ClientApp()

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        facts = facts_of(_rows_of(context, load))
        return write_hello(message, {"device": device_name(context), "fedfuse": __version__, **facts})

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _carry_out(message, context, load, model)

    return app


# Processes of a simulation unpickle the app for every message, so that only the module can cache.
_rows: OrderedDict[Any, Federation] = OrderedDict()
_devices: OrderedDict[Any, Device] = OrderedDict()


def _carry_out(message: Message, context: Context, load: Load, build: Build | None) -> Message:
    envelope = read_order(message)
    state, dtype = _current_state(envelope, context), envelope.setup["dtype"]
    if state is None:
        return write_reply(message, envelope.order, DeviceReply(np.empty(0), lost=True), dtype)
    key = (context.run_id, context.node_id, envelope.order.device, str(envelope.setup))
    device = _cached(_devices, key, lambda: build_device(_rows_of(context, load), build, envelope))
    reply, state = device.answer(envelope, state)
    written = write_reply(message, envelope.order, reply, dtype)
    # Last: Flower keeps changes of the context even if the app fails after them.
    context.state[_STATE] = write_arrays(state.arrays())
    context.state[f"{_STATE}.version"] = ConfigRecord({"version": reply.version})
    return written


def _rows_of(context: Context, load: Load) -> Federation:
    return _cached(_rows, (context.run_id, context.node_id), lambda: load_rows(load, context))


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


def build_device(federation: Federation, build: Build | None, envelope: Envelope) -> Device:
    """Return the device that carries out orders on these rows."""
    setup = envelope.setup
    federation = with_classes(federation, setup.get("classes", []))
    noise = Noise(*setup["noise"]) if "noise" in setup else None
    model, number = fitting_model(federation, build), envelope.order.device
    return Device(federation, model, number, seed=setup["seed"], dtype=setup["dtype"], noise=noise)


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


def _current_state(envelope: Envelope, context: Context) -> DeviceState | None:
    """Return the state that an order is for: sent with it, or the device's own if that has the same version."""
    if envelope.state is not None:
        return envelope.state
    kept = context.state
    if _STATE not in kept or kept[f"{_STATE}.version"]["version"] != envelope.version:
        return None
    return DeviceState(**read_arrays(kept[_STATE]))


def _cached(store: OrderedDict[Any, Cached], key: Any, make: Callable[[], Cached]) -> Cached:
    """Return what is stored, or make it; the oldest is dropped from a full store."""
    if key not in store:
        store[key] = make()
        if len(store) > _MAX_CACHED:
            store.popitem(last=False)
    return store[key]
