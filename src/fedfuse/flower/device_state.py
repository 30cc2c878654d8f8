"""What the server knows of the devices' memory, so that it can give it back to a device that has lost it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.flower.messages import DeviceMemory
from fedfuse.models.model import Model
from fedfuse.protocol.reply_checks import largest_value
from fedfuse.protocol.tasks import Add, Install, Rescale, Task, Train
from fedfuse.utils.typing import Floats


class Shadow:
    """One device's memory, as the server knows it.

    ``version`` counts its changes. Where a device keeps a part of its model to itself (`Train` that sends a part or
    nothing), the rest is what the server knew last, and ``whole`` is False: a device that loses it begins anew there.
    """

    def __init__(self, model: Model[Any], dtype: npt.DTypeLike, token: str) -> None:
        self._model, self._dtype, self._token = model, np.dtype(dtype), token
        self._changes = 0
        self.memory = DeviceMemory(np.zeros(model.d, dtype))
        self.whole = True
        self.fresh = False  # whether the device is known to have this version

    @property
    def version(self) -> str:
        """What the device must have to go on without help."""
        return f"{self._token}.{self._changes}"

    def take(self, task: Task) -> bool:
        """Note a task that only changes the memory; False if the device itself is needed for it."""
        match task:
            case Install(model=model):
                self._set(np.asarray(model, self._dtype), whole=True)
            case Add(update=update) if self.whole:
                self._set(self.memory.own + np.asarray(update, self._dtype), whole=True)
            case Rescale(shift=shift, scale=scale):
                self.memory = replace(self.memory, shift=shift, scale=scale)
                self._set(self.memory.own, whole=self.whole)
            case _:
                return False
        return True

    def answered(self, task: Task, values: npt.NDArray[Any], version: str) -> None:
        """Note what a device remembers now that it has answered."""
        if isinstance(task, Train) and task.send != "update":
            self._trained(task, values)
            self._changes += 1
        elif isinstance(task, Add):
            self._changes += 1
        self.fresh = version == self.version

    def _trained(self, task: Train, values: npt.NDArray[Any]) -> None:
        part = self._part(task)
        if task.send in ("model", "part") and values.size >= part.stop - part.start:
            new = values[: part.stop - part.start]
            if np.abs(new).max(initial=0) <= largest_value(self._model.d, self._dtype):  # else it kept the old one
                own = self.memory.own.copy()
                own[part] = new
                self.memory = replace(self.memory, own=own)
        self.whole = task.send == "model" or (task.send == "part" and part == slice(0, self._model.d))

    def _part(self, task: Train) -> slice:
        d, fused = self._model.d, self._model.fused
        if task.send != "part":
            return slice(0, d)
        return {"all": slice(0, d), "shared": slice(0, fused.start), "fused": slice(fused.start, d)}[task.into]

    def _set(self, own: Floats, *, whole: bool) -> None:
        self.memory, self.whole, self.fresh = replace(self.memory, own=own), whole, False
        self._changes += 1
