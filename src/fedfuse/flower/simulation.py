"""The engine ``flower``: devices on Flower's Simulation Runtime, started and ended by this process.

Rows and model reach the processes of the simulation pickled, through a private folder: the model may be a class of the
user's.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import pickle
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from fedfuse.data.federation import Federation
from fedfuse.engines.base import EngineWrapper
from fedfuse.engines.in_process import InProcess
from fedfuse.errors import FedfuseError
from fedfuse.models.model import Model
from fedfuse.protocol.tasks import Order

log = logging.getLogger(__name__)
_DEVICES = "devices.pickle"
START_SECONDS = 120.0  # that the runtime may take to start
_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def check_installed() -> None:
    """Raise an error that says what to install, unless Flower and Ray are installed."""
    if sys.version_info < (3, 11):
        raise FedfuseError("engine 'flower' needs Python 3.11 or newer, as Flower does")
    for name in ("flwr", "ray"):
        if importlib.util.find_spec(name) is None:
            raise FedfuseError(f"engine 'flower' needs {name}, which is not installed: pip install 'fedfuse[flower]'")


class Simulation(EngineWrapper):
    """Devices on virtual nodes of Flower's Simulation Runtime, from the first orders until `close`."""

    def __init__(self, federation: Federation, model: Model[Any], **options: Any) -> None:
        check_installed()
        super().__init__(InProcess(federation, model, **options))  # It stands in until there are orders.
        self._federation, self._model = replace(federation, truth=None, encoder=None), model
        self._options = options
        self._runtime: SimulationRuntime | None = None

    def submit(self, orders: Sequence[Order]) -> None:
        if self._runtime is None:
            from fedfuse.flower.client import plain_labels
            from fedfuse.flower.engine import FlowerEngine

            self._runtime = start_simulation(self._federation, self._model)
            setup = {"classes": plain_labels(self._federation.classes)}
            names = [str(i) for i in range(self._federation.m)]  # The partition ids of virtual nodes.
            self.inner = FlowerEngine(self._runtime.grid, names, self._model, setup=setup, **self._options)
        self.inner.submit(orders)

    def close(self) -> None:
        """End the runtime and remove its folder."""
        if self._runtime is not None:
            self._runtime.close()
        self._runtime = None


class SimulationRuntime:
    """Flower's Simulation Runtime in a thread; its ServerApp hands over the grid and waits for `close`.

    ``app`` makes the ClientApp of the m nodes, from the path of the file that ``devices`` is pickled to. A process can
    have one: it occupies all cores, and a second would never start.
    """

    _only = threading.Lock()

    def __init__(self, app: Callable[[Path], Any], m: int, devices: Any = None) -> None:
        if not SimulationRuntime._only.acquire(blocking=False):
            raise FedfuseError("another Flower simulation is running in this process: close it first")
        os.environ.update({key: os.environ.get(key, value) for key, value in _ENVIRONMENT.items()})
        self._open = True
        self._folder = Path(tempfile.mkdtemp(prefix="ff-"))  # Short, as the paths of Ray's sockets are below it.
        self._over = threading.Event()
        self._grids: Queue[Any] = Queue()
        self._thread = threading.Thread(target=self._run, args=(app, m), name="flower", daemon=True)
        try:
            (self._folder / _DEVICES).write_bytes(pickle.dumps(devices))
            self._thread.start()
            self.grid = self._wait_for_grid()
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
            self._thread.join(START_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)
        SimulationRuntime._only.release()

    def _run(self, app: Callable[[Path], Any], m: int) -> None:
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation

        server = ServerApp()

        @server.main()
        def main(grid: Any, context: Any) -> None:
            self._grids.put(grid)
            self._over.wait()

        ray: dict[str, Any] = {"logging_level": "error", "log_to_driver": False, "include_dashboard": False}
        resources: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0.0}
        backend = {"client_resources": resources, "init_args": {**ray, "_temp_dir": str(self._folder)}}
        logging.getLogger("flwr").setLevel(logging.ERROR)
        try:
            run_simulation(server, app(self._folder / _DEVICES), m, backend_config=backend)
        except BaseException as problem:
            self._grids.put(problem)
            log.debug("the simulation has ended", exc_info=True)

    def _wait_for_grid(self) -> Any:
        try:
            grid = self._grids.get(timeout=START_SECONDS)
        except Empty:
            words = f"Flower's simulation engine did not come up within {START_SECONDS:g} seconds"
            raise FedfuseError(words) from None
        if isinstance(grid, BaseException):
            raise FedfuseError(f"Flower's simulation engine cannot start: {grid}") from None
        return grid


def start_simulation(federation: Federation, model: Model[Any]) -> SimulationRuntime:
    """Return a runtime whose nodes are the devices of a federation."""
    from fedfuse.flower.client import client_app

    def app(file: Path) -> Any:
        return client_app(partial(_rows_in, file), partial(_model_in, file))

    return SimulationRuntime(app, federation.m, (federation, model))


# -- in a process of the simulation


def _rows_in(file: Path, name: str, config: Any) -> Federation:
    return _devices_in(file)[0].only([int(name)])


def _model_in(file: Path) -> Model[Any]:
    return _devices_in(file)[1]


@lru_cache(maxsize=1)
def _devices_in(file: Path) -> tuple[Federation, Model[Any]]:
    devices: tuple[Federation, Model[Any]] = pickle.loads(file.read_bytes())
    return devices
