"""Devices on Flower's simulation engine, started and ended by this process: the engine ``flower``.

The rows go to the simulation's processes through a private folder of plain files; what a module of the user's is, only
pickle can say, as for `engines.Workers`.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.data.federation import Federation
from fedfuse.engines.base import Engine
from fedfuse.errors import FedfuseError
from fedfuse.models.model import Model
from fedfuse.protocol.privacy import Noise
from fedfuse.protocol.tasks import Order, Reply
from fedfuse.utils.files import read_arrays, write_arrays

log = logging.getLogger(__name__)
START = 120.0  # seconds that the engine has to come up
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def check_installed() -> None:
    """Raise an error that says what to install, unless Flower and its simulation engine are there."""
    for name in ("flwr", "ray"):
        if importlib.util.find_spec(name) is None:
            raise FedfuseError(f"engine 'flower' needs {name}, which is not installed: pip install 'fedfuse[flower]'")


class Simulation(Engine):
    """Devices on virtual nodes of Flower's simulation engine, in processes of this machine.

    The engine comes up with the first orders (ten seconds or so) and ends with `close`.

    Parameters
    ----------
    federation, model, seed, dtype, noise
        As for `InProcess`.
    """

    def __init__(
        self,
        federation: Federation,
        model: Model[Any],
        *,
        seed: int = 0,
        dtype: npt.DTypeLike = np.float32,
        noise: Noise | None = None,
    ) -> None:
        check_installed()
        self._federation = replace(federation, truth=None, encoder=None)
        self._model, self._seed, self._dtype, self._noise = model, seed, np.dtype(dtype), noise
        self._flower: Engine | None = None
        self._engine: SimulationProcess | None = None

    def submit(self, orders: Sequence[Order]) -> None:
        self._running().submit(orders)

    def collect(self, patience: float | None = None) -> list[Reply]:
        return [] if self._flower is None else self._flower.collect(patience)

    @property
    def busy(self) -> frozenset[int]:
        return frozenset() if self._flower is None else self._flower.busy

    @property
    def trouble(self) -> dict[str, int]:
        return {} if self._flower is None else self._flower.trouble

    def close(self) -> None:
        """End the engine and remove the folder."""
        if self._engine is not None:
            self._engine.close()
        self._flower = self._engine = None

    def _running(self) -> Engine:
        if self._flower is None:
            from fedfuse.flower.engine import FlowerEngine

            self._engine = engine_of(self._federation, self._model)
            classes = np.array(self._federation.classes).tolist()
            # names are places here: what a simulation calls its nodes
            names = [str(i) for i in range(self._federation.m)]
            how: dict[str, Any] = {"seed": self._seed, "dtype": self._dtype, "noise": self._noise}
            self._flower = FlowerEngine(self._engine.grid, names, self._model, setup={"classes": classes}, **how)
        return self._flower


class SimulationProcess:
    """Flower's simulation, in a thread beside this one: its ServerApp hands over the grid and waits for the end.

    Parameters
    ----------
    device
        Makes the ClientApp, from the engine's folder.
    m
        How many nodes there are.
    fill
        Puts into the folder what devices read there.

    Raises
    ------
    FedfuseError
        If another one runs in this process: it has all cores, and this one would wait for them for ever.
    """

    _only = threading.Lock()

    def __init__(self, device: Callable[[str], Any], m: int, fill: Callable[[Path], None] | None = None) -> None:
        if not SimulationProcess._only.acquire(blocking=False):
            raise FedfuseError("another simulation of Flower's runs in this process: close it first")
        os.environ.update({key: os.environ.get(key, value) for key, value in _QUIET.items()})
        self._open = True
        self._folder = Path(tempfile.mkdtemp(prefix="ff-"))  # short: Ray's sockets are below it
        self._over = threading.Event()
        self._grids: Queue[Any] = Queue()
        self._thread = threading.Thread(target=self._run, args=(device, m), name="flower", daemon=True)
        try:
            if fill is not None:
                fill(self._folder)
            self._thread.start()
            self.grid = self._handed_over()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the simulation and remove its folder."""
        if not self._open:
            return
        self._open = False
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(START)
        shutil.rmtree(self._folder, ignore_errors=True)
        SimulationProcess._only.release()

    def _run(self, device: Callable[[str], Any], m: int) -> None:
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation

        app = ServerApp()

        @app.main()
        def main(grid: Any, context: Any) -> None:
            self._grids.put(grid)
            self._over.wait()

        folder = str(self._folder)
        resources: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0.0}
        quiet: dict[str, Any] = {
            "logging_level": "error",
            "log_to_driver": False,
            "include_dashboard": False,
            "_temp_dir": folder,
        }
        logging.getLogger("flwr").setLevel(logging.ERROR)
        backend = {"client_resources": resources, "init_args": quiet}
        try:
            run_simulation(app, device(folder), m, backend_config=backend)
        except BaseException as problem:
            self._grids.put(problem)
            log.debug("the simulation has ended", exc_info=True)

    def _handed_over(self) -> Any:
        try:
            grid = self._grids.get(timeout=START)
        except Empty:
            raise FedfuseError(f"Flower's simulation engine did not come up within {START:g} seconds") from None
        if isinstance(grid, BaseException):
            raise FedfuseError(f"Flower's simulation engine cannot start: {grid}") from None
        return grid


def engine_of(federation: Federation, model: Model[Any]) -> SimulationProcess:
    """Return an engine whose nodes are the devices of a federation."""

    def device(folder: str) -> Any:
        from fedfuse.flower.client import client_app

        return client_app(partial(_device, folder), partial(_model, folder))

    return SimulationProcess(device, federation.m, lambda folder: _write(folder, federation, model))


# -- what the simulation's processes read


def _write(folder: Path, federation: Federation, model: Model[Any]) -> None:
    write_arrays(folder / "rows.npz", {"X": federation.X, "y": federation.y, "cuts": federation.cuts})
    about = {
        "goal": federation.goal,
        "classes": np.array(federation.classes).tolist(),
        "shape": None if federation.shape is None else list(federation.shape),
    }
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")
    (folder / "model").write_bytes(pickle.dumps(model))


def _device(folder: str, name: str, config: Any) -> Federation:
    return _federation(folder).only([int(name)])


def _model(folder: str) -> Model[Any]:
    model: Model[Any] = pickle.loads((Path(folder) / "model").read_bytes())
    return model


@lru_cache(maxsize=1)
def _federation(folder: str) -> Federation:
    rows = read_arrays(Path(folder) / "rows.npz")
    about = json.loads((Path(folder) / "about.json").read_text(encoding="utf-8"))
    names = tuple(str(i) for i in range(len(rows["cuts"])))
    shape = None if about["shape"] is None else tuple(about["shape"])
    return Federation(names, rows["X"], rows["y"], rows["cuts"], about["goal"], tuple(about["classes"]), shape=shape)
