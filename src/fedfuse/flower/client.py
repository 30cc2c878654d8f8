"""The ClientApp: a device that carries out orders, as the in-process engine of a federation of one.

Flower starts a process for every message, so numba, pandas and torch are imported by the first order that needs them.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedfuse.data.federation import PARTS, Federation, default_features
from fedfuse.engines.in_process import InProcess
from fedfuse.errors import FedfuseError
from fedfuse.flower import messages
from fedfuse.flower.device_state import DeviceState, changes_state
from fedfuse.flower.messages import DeviceReply, Envelope
from fedfuse.flower.policy import OrderLog, Policy
from fedfuse.models.model import Model
from fedfuse.protocol.privacy import Noise
from fedfuse.protocol.sufficient_statistics import tells_rows
from fedfuse.protocol.tasks import Order, Rescale, SendSufficientStatistics
from fedfuse.utils.typing import Ints

Config: TypeAlias = Mapping[str, Any]
Load: TypeAlias = Callable[[str, Config], Any]  # (device, configuration) -> (X, y) or Federation
Build: TypeAlias = Callable[[], Any]  # () -> Model, torch module, name or None
Cached = TypeVar("Cached")
_STATE = "fedfuse"
ORDERS = "orders.jsonl"  # in a node's state directory: the orders it was given
MIN_PRIVATE_ROWS = 3  # of a part whose losses, gradients or moments leave a node; they would tell one row, or two
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
        try:
            facts = facts_of(_rows_of(context, load), node_key(context.node_config))
            facts |= {"policy": json.dumps(policy.shown())} if (policy := _policy(context)) else {}
        except FedfuseError as problem:  # The server names it, and goes on with the others.
            facts = {"problem": str(problem)}
        return messages.write_hello(message, {"device": _device_name(context), **facts})

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _carry_out(message, context, load, model)

    return app


# Processes of a simulation unpickle the app for every message, so that only the module can cache.
_rows: OrderedDict[Any, Federation] = OrderedDict()
_devices: OrderedDict[Any, Device] = OrderedDict()


def _carry_out(message: Message, context: Context, load: Load, build: Build | None) -> Message:
    envelope = messages.read_order(message)
    state, dtype = _current_state(envelope, context), envelope.setup["dtype"]
    rows = _rows_of(context, load)
    reason = messages.LOST if state is None else _refusal(envelope, context, rows)
    if state is None or reason:
        return messages.write_reply(message, envelope.order, DeviceReply(np.empty(0), refused=reason or ""), dtype)
    key = (context.run_id, context.node_id, envelope.order.device, str(envelope.setup))
    device = _cached(_devices, key, lambda: _build_device(rows, build, envelope))
    reply, state = device.answer(envelope, state)
    written = messages.write_reply(message, envelope.order, reply, dtype)
    _note(context, envelope.order, "answered", numbers=reply.values.size, noise=_multiplier(envelope))
    # Last: Flower keeps changes of the context even if the app fails after them.
    context.state[_STATE] = messages.write_arrays(state.arrays())
    context.state[f"{_STATE}.version"] = ConfigRecord({"version": reply.version})
    return written


def _policy(context: Context) -> Policy | None:
    """Return the policy that this node's own configuration names."""
    path = context.node_config.get("policy")
    return Policy.read(Path(str(path))) if path else None


def _refusal(envelope: Envelope, context: Context, rows: Federation) -> str | None:
    """Return why this node refuses an order, which is noted if its policy does; None if it does not."""
    if envelope.digest and envelope.digest != keyed_digest(rows, node_key(context.node_config)):
        return messages.CHANGED
    private = "partition-id" not in context.node_config
    if private and isinstance(envelope.order.task, SendSufficientStatistics) and tells_rows(rows):
        return "it does not sum up so few rows: their means and covariances would tell them"
    if (policy := _policy(context)) is None:
        return None
    name, n = _device_name(context), int(np.diff(rows.cuts[0])[0])
    try:
        answered = OrderLog(state_directory() / ORDERS).answered(name) if policy.counts else []
        reason = policy.refusal(envelope.order, n, _multiplier(envelope), answered)
    except FedfuseError as problem:  # What cannot be counted is not allowed.
        reason = str(problem)
    if reason:
        _note(context, envelope.order, "refused", reason=reason)
    return reason


def _multiplier(envelope: Envelope) -> float:
    """Return the noise that an order asks for (0 for none)."""
    return float(envelope.setup["noise"][1]) if "noise" in envelope.setup else 0.0


def _note(context: Context, order: Order, event: str, **facts: Any) -> None:
    """Write what became of an order to the log of a node that has a policy."""
    if "policy" in context.node_config:
        facts |= {"device": _device_name(context), "task": type(order.task).__name__, "round": order.round}
        OrderLog(state_directory() / ORDERS).write(event, run=str(context.run_id), **facts)


def _rows_of(context: Context, load: Load) -> Federation:
    return _cached(_rows, (context.run_id, context.node_id), lambda: _load_rows(load, context))


def _device_name(context: Context) -> str:
    """Return which device a node is: ``device`` of its configuration, or the partition that a simulation gave it."""
    given = context.node_config.get("device", context.node_config.get("partition-id"))
    if given is None:
        raise FedfuseError("this node has no device name: start it with --node-config 'device=\"NAME\"'")
    return str(given)


def _load_rows(load: Load, context: Context) -> Federation:
    """Return the rows of the device that this node is."""
    name = _device_name(context)
    config: dict[str, Any] = {**context.run_config, **context.node_config}
    data = load(name, config)
    if not isinstance(data, Federation):
        data = Federation.from_arrays({name: data}, goal=config.get("goal") or None)
    if data.m != 1:
        raise FedfuseError(f"device {name!r}: load must return the rows of one device, got those of {data.m}")
    cuts = data.cuts if "partition-id" in config else private_cuts(data.cuts, name)
    return replace(data, names=(name,), cuts=cuts, truth=None, encoder=None)


def private_cuts(cuts: Ints, name: str) -> Ints:
    """Return cut points with no validation part of one or two rows: it takes training rows, or joins them."""
    start, validation, test, stop = map(int, cuts[0])
    if test - start < MIN_PRIVATE_ROWS:
        raise FedfuseError(f"device {name!r} has fewer than {MIN_PRIVATE_ROWS} training rows: sums would reveal them")
    if 0 < test - validation < MIN_PRIVATE_ROWS:
        validation = test - MIN_PRIVATE_ROWS if test - start >= 2 * MIN_PRIVATE_ROWS else test
    return np.array([[start, validation, test, stop]])


def _build_device(federation: Federation, build: Build | None, envelope: Envelope) -> Device:
    """Return the device that carries out orders on these rows."""
    setup = envelope.setup
    federation = with_classes(federation, setup.get("classes", []))
    noise = Noise(*setup["noise"]) if "noise" in setup else None
    model, number = build_model(federation, build), envelope.order.device
    return Device(federation, model, number, seed=setup["seed"], dtype=setup["dtype"], noise=noise)


def build_model(federation: Federation, build: Build | None) -> Model[Any]:
    """Return the model that both sides use, with the sizes of the federation."""
    from fedfuse.models import model_for

    given = build() if build else None
    if not isinstance(given, (Model, str, type(None))):  # a torch module
        from fedfuse.models.torch import TorchModel

        given = TorchModel(given, loss="mse" if federation.goal == "regression" else "cross_entropy")
    return model_for(federation, given)


def _current_state(envelope: Envelope, context: Context) -> DeviceState | None:
    """Return the state that an order is for: sent with it, or the device's own if that has the same version."""
    if envelope.state is not None:
        return envelope.state
    kept = context.state
    if _STATE not in kept or kept[f"{_STATE}.version"]["version"] != envelope.version:
        return None
    return DeviceState(**messages.read_arrays(kept[_STATE]))


def _cached(store: OrderedDict[Any, Cached], key: Any, make: Callable[[], Cached]) -> Cached:
    """Return what is stored, or make it; the oldest is dropped from a full store."""
    if key not in store:
        store[key] = make()
        if len(store) > _MAX_CACHED:
            store.popitem(last=False)
    return store[key]


class Device(InProcess):
    """A federation of one device, with the random numbers of its place in the whole federation."""

    def __init__(self, federation: Federation, model: Model[Any], number: int, **options: Any) -> None:
        super().__init__(federation, model, **options)
        self._number = number
        self._state = DeviceState(self._own[0])

    def answer(self, envelope: Envelope, state: DeviceState) -> tuple[DeviceReply, DeviceState]:
        """Carry out an order from this state; return the reply, and the state to keep."""
        self._restore(state)
        self.submit([replace(envelope.order, device=0)])
        (reply,) = self.collect()
        changed = changes_state(envelope.order.task)
        version = next_version(envelope.version) if changed else envelope.version
        self._state = replace(state, own=self._own[0].copy())
        return DeviceReply(np.asarray(reply.values), version), self._state

    def _restore(self, state: DeviceState) -> None:
        if state.own.shape != self._own[0].shape:
            words = f"the server's model has {state.own.size} parameters, this device's {self._own[0].size}"
            raise FedfuseError(f"{words}: both sides must build the same")
        self._own[0] = state.own
        scales = ((state.shift, self._state.shift), (state.scale, self._state.scale))
        if not all(a is b if a is None or b is None else np.array_equal(a, b) for a, b in scales):
            self._rescale(None if state.shift is None or state.scale is None else Rescale(state.shift, state.scale))

    def _noise_source(self, order: Order) -> np.random.Generator:
        return np.random.default_rng()  # From the machine's entropy: nobody else may be able to compute the noise.

    def _generators(self, orders: list[Order]) -> list[np.random.Generator]:
        return super()._generators([replace(order, device=self._number) for order in orders])


def next_version(version: str) -> str:
    """Return the version of a state after one more change."""
    token, _, changes = version.rpartition(".")
    return f"{token}.{int(changes) + 1}"


def state_directory() -> Path:
    """Return where this node keeps what must outlive its processes."""
    given = os.environ.get("FEDFUSE_STATE") or os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(given or Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "fedfuse")


def node_key(config: Mapping[str, Any]) -> bytes:
    """Return this node's secret key, made on first use; nodes of a simulation have none."""
    if "partition-id" in config:
        return b""
    folder = state_directory()
    path = folder / "digest.key"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as new:  # Its owner's alone, and never half-written.
            new.write(secrets.token_bytes(32))
            with contextlib.suppress(FileExistsError):
                os.link(new.name, path)
        return path.read_bytes()
    except OSError as problem:
        raise FedfuseError(
            f"this node cannot keep a key in {folder} ({problem.strerror}): set FEDFUSE_STATE to a directory of its own"
        ) from None


def keyed_digest(federation: Federation, key: bytes) -> str:
    """Return a hash by which this node's rows are known again; without its key nobody can confirm guessed rows."""
    return hmac.new(key, federation.fingerprint.encode(), "sha256").hexdigest()[:32]


def facts_of(federation: Federation, key: bytes = b"") -> dict[str, Any]:
    """Return what the server must know of a device's rows (a federation of one), and nothing else."""
    named = federation.features and federation.features != default_features(federation.n_features)
    return {
        "goal": federation.goal,
        "columns": federation.n_features,
        "features": list(federation.features) if named else None,
        "shape": None if federation.shape is None else list(federation.shape),
        "classes": plain_labels(federation.classes),
        "rows": np.diff(federation.cuts[0]).tolist(),
        "weights": None if federation.weights is None else [float(federation.totals(part)[0]) for part in PARTS],
        "digest": keyed_digest(federation, key),
    }


def plain_labels(classes: Sequence[Any]) -> list[Any]:
    """Return labels as JSON has them."""
    return [label.item() if isinstance(label, np.generic) else label for label in classes]


def with_classes(federation: Federation, classes: Sequence[Any]) -> Federation:
    """Return a device's rows with their classes numbered as the whole federation numbers them."""
    if federation.goal == "regression" or plain_labels(federation.classes) == list(classes):
        return federation
    places = {label: i for i, label in enumerate(classes)}
    number = np.array([places[label] for label in plain_labels(federation.classes)])
    return replace(federation, y=number[federation.y], classes=tuple(classes))
