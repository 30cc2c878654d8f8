"""Engines by name: the words of ``--engine`` and ``fit(engine=…)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedfuse.data.federation import Federation
from fedfuse.engines.base import Engine
from fedfuse.engines.in_process import InProcess
from fedfuse.engines.workers import Workers, check_workers
from fedfuse.errors import FedfuseError
from fedfuse.models.model import Model
from fedfuse.protocol.privacy import Noise
from fedfuse.utils.lazy import load

ENGINES = ("inprocess", "workers", "flower")


@dataclass(frozen=True)
class EngineSpec:
    """A way to build an engine.

    Parameters
    ----------
    name
        ``"inprocess"``: many devices in one compiled call, over the threads of this process. ``"workers"``: in
        processes with one thread each, on shared rows, for models that are not compiled. ``"flower"``: on Flower's
        simulation engine.
    workers
        How many processes; one for each usable core by default.
    """

    name: str = "inprocess"
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise FedfuseError(f"unknown engine {self.name!r}; known: {', '.join(ENGINES)}")
        if self.workers is not None and self.name != "workers":
            raise FedfuseError(f"engine {self.name!r} has no workers; workers={self.workers} is for engine 'workers'")
        check_workers(self.workers)
        if self.name == "flower":
            load("fedfuse.flower.simulation:check_installed")()

    def build(
        self, federation: Federation, model: Model[Any], seed: int, dtype: str, noise: Noise | None = None
    ) -> Engine:
        """Return the engine for these devices."""
        options: dict[str, Any] = {"seed": seed, "dtype": dtype, "noise": noise}
        if self.name == "workers":
            return Workers(federation, model, workers=self.workers, **options)
        kind = load("fedfuse.flower.simulation:Simulation") if self.name == "flower" else InProcess
        engine: Engine = kind(federation, model, **options)
        return engine
