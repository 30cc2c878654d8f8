"""What a device keeps from one order to the next, and the server's copy of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.models.model import Model
from fedfuse.protocol.reply_checks import largest_value
from fedfuse.protocol.tasks import Add, Install, Rescale, Task, Train, TrainPair, part_of
from fedfuse.utils.typing import Floats


@dataclass(frozen=True)
class DeviceState:
    """What a device keeps from one order to the next: its own model, and the scale of its columns."""

    own: Floats
    shift: Floats | None = None
    scale: Floats | None = None

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state as arrays under names."""
        return {name: array for name, array in vars(self).items() if array is not None}


class DeviceShadow:
    """The server's copy of one device's state, from which a device that has lost it is restored.

    ``version`` counts changes. Where a device does not send its whole model (`Train` that sends a part or nothing), the
    rest is what the server knew last, and ``whole`` is False: a device that loses its state restarts from there.
    """

    def __init__(self, model: Model[Any], dtype: npt.DTypeLike, token: str) -> None:
        self._model, self._dtype, self._token = model, np.dtype(dtype), token
        self._changes = 0
        self.state = DeviceState(np.zeros(model.d, dtype))
        self.whole = True
        self.in_sync = False  # whether the device is known to have this version

    @property
    def version(self) -> str:
        """The version that a device must have to carry out an order without being sent its state."""
        return f"{self._token}.{self._changes}"

    def take(self, task: Task) -> bool:
        """Apply a task that only changes the state; return False if the device itself is needed for it."""
        match task:
            case Install(model=model):
                self._set(np.asarray(model, self._dtype), whole=True)
            case Add(update=update) if self.whole:
                self._set(self.state.own + np.asarray(update, self._dtype), whole=True)
            case Rescale(shift=shift, scale=scale):
                self.state = replace(self.state, shift=shift, scale=scale)
                self._set(self.state.own, whole=self.whole)
            case _:
                return False
        return True

    def answered(self, task: Task, values: npt.NDArray[Any], version: str) -> None:
        """Record what the device has after its reply to a task."""
        if isinstance(task, Train) and task.send != "update":
            self._trained(task, values)
        elif isinstance(task, TrainPair) and task.second is None:  # the personal model is never sent
            self.whole = False
        if changes_state(task):
            self._changes += 1
        self.in_sync = version == self.version

    def _trained(self, task: Train, values: npt.NDArray[Any]) -> None:
        d = self._model.d
        part = part_of(task.into, d, self._model.fused) if task.send == "part" else slice(0, d)
        size = part.stop - part.start
        if task.send in ("model", "part") and values.size >= size:
            new = values[:size]
            # A device keeps its old model where training has diverged.
            if np.abs(new).max(initial=0) <= largest_value(d, self._dtype):
                own = self.state.own.copy()
                own[part] = new
                self.state = replace(self.state, own=own)
        self.whole = task.send == "model" or (task.send == "part" and size == d)

    def _set(self, own: Floats, *, whole: bool) -> None:
        self.state, self.whole, self.in_sync = replace(self.state, own=own), whole, False
        self._changes += 1


def changes_state(task: Task) -> bool:
    """Whether a device's state is another after this task."""
    if isinstance(task, TrainPair):
        return task.second is None
    return isinstance(task, Add) or (isinstance(task, Train) and task.send != "update")
