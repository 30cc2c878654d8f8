"""One device on its node: the in-process engine of a federation of one, with its own rows and state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.data.federation import Federation, default_features
from fedfuse.engines.in_process import InProcess
from fedfuse.errors import FedfuseError
from fedfuse.flower.device_state import DeviceState, changes_state
from fedfuse.flower.messages import DeviceReply, Envelope
from fedfuse.models.model import Model
from fedfuse.protocol.privacy import Noise
from fedfuse.protocol.tasks import Order, Rescale


class Device(InProcess):
    """A federation of one device, with the random numbers of its place in the whole federation."""

    def __init__(
        self,
        federation: Federation,
        model: Model[Any],
        number: int,
        *,
        seed: int = 0,
        dtype: npt.DTypeLike = "float32",
        noise: Noise | None = None,
    ) -> None:
        super().__init__(federation, model, seed=seed, dtype=dtype, noise=noise)
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
        if state.same_scale(self._state):
            return
        self._scaled, self._loaded = None, {}
        if state.scale is not None and state.shift is not None:
            self._perform([Order(0, -1, Rescale(state.shift, state.scale))])

    def _noise_source(self, order: Order) -> np.random.Generator:
        return np.random.default_rng()  # From the machine's entropy: nobody else may be able to compute the noise.

    def _generators(self, orders: list[Order]) -> list[np.random.Generator]:
        return super()._generators([replace(order, device=self._number) for order in orders])


def next_version(version: str) -> str:
    """Return the version of a state after one more change.

    >>> next_version("ab12.3")
    'ab12.4'
    """
    token, _, changes = version.rpartition(".")
    return f"{token}.{int(changes) + 1}"


def facts_of(federation: Federation) -> dict[str, Any]:
    """Return what the server must know of a device's rows (a federation of one), and nothing else."""
    named = federation.features and federation.features != default_features(federation.n_features)
    return {
        "goal": federation.goal,
        "columns": federation.n_features,
        "features": list(federation.features) if named else None,
        "shape": None if federation.shape is None else list(federation.shape),
        "classes": plain_labels(federation.classes),
        "rows": np.diff(federation.cuts[0]).tolist(),
        "digest": federation.fingerprint,
    }


def plain_labels(classes: Sequence[Any]) -> list[Any]:
    """Return labels as JSON has them.

    >>> plain_labels((np.int64(1), np.str_("b")))
    [1, 'b']
    """
    return [label.item() if isinstance(label, np.generic) else label for label in classes]


def with_classes(federation: Federation, classes: Sequence[Any]) -> Federation:
    """Return a device's rows with their classes numbered as the whole federation numbers them."""
    if federation.goal == "regression" or plain_labels(federation.classes) == list(classes):
        return federation
    places = {label: i for i, label in enumerate(classes)}
    number = np.array([places[label] for label in plain_labels(federation.classes)])
    return replace(federation, y=number[federation.y], classes=tuple(classes))
