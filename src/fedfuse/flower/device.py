"""One device on its node: what it does is what every engine's devices do, with its own rows and memory alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.data.federation import Federation, default_features
from fedfuse.engines.in_process import InProcess
from fedfuse.errors import FedfuseError
from fedfuse.flower.messages import Answer, DeviceMemory, Letter
from fedfuse.models.model import Model
from fedfuse.protocol.privacy import Noise
from fedfuse.protocol.tasks import Add, Order, Rescale, Train


class Device(InProcess):
    """A federation of one, which draws as the device that it is in the whole federation."""

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
        self._memory = DeviceMemory(self._own[0])

    def answer(self, letter: Letter, memory: DeviceMemory) -> tuple[Answer, DeviceMemory]:
        """Carry out an order with this memory; return the answer, and what is to be remembered."""
        self._recall(memory)
        self.submit([replace(letter.order, device=0)])
        (reply,) = self.collect()
        task, version = letter.order.task, letter.version
        if isinstance(task, Add) or (isinstance(task, Train) and task.send != "update"):
            version = next_version(version)
        self._memory = replace(memory, own=self._own[0].copy())
        return Answer(np.asarray(reply.values), version), self._memory

    def _recall(self, memory: DeviceMemory) -> None:
        if memory.own.shape != self._own[0].shape:
            words = f"the server's model has {memory.own.size} parameters, this device's {self._own[0].size}"
            raise FedfuseError(f"{words}: both sides must build the same")
        self._own[0] = memory.own
        if _same(memory, self._memory):
            return
        self._scaled, self._loaded = None, {}
        if memory.scale is not None and memory.shift is not None:
            self._perform([Order(0, -1, Rescale(memory.shift, memory.scale))])

    def _noise_source(self, order: Order) -> np.random.Generator:
        return np.random.default_rng()  # from the machine's own entropy: nobody else may know the noise

    def _generators(self, orders: list[Order]) -> list[np.random.Generator]:
        return super()._generators([replace(order, device=self._number) for order in orders])


def next_version(version: str) -> str:
    """Return the version of a memory that has changed once more.

    >>> next_version("ab12.3")
    'ab12.4'
    """
    token, _, changes = version.rpartition(".")
    return f"{token}.{int(changes) + 1}"


def facts_of(federation: Federation) -> dict[str, Any]:
    """Return what the server must know of a device's rows (a federation of one), and no more than that."""
    counts = np.diff(federation.cuts[0]).tolist()
    named = federation.features and federation.features != default_features(federation.n_features)
    return {
        "goal": federation.goal,
        "columns": federation.n_features,
        "features": list(federation.features) if named else None,
        "shape": None if federation.shape is None else list(federation.shape),
        "classes": plain_labels(federation.classes),
        "rows": counts,
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


def _same(a: DeviceMemory, b: DeviceMemory) -> bool:
    """Whether both memories have the columns on the same scale."""
    pairs = ((a.shift, b.shift), (a.scale, b.scale))
    return all(x is y if x is None or y is None else np.array_equal(x, y) for x, y in pairs)
