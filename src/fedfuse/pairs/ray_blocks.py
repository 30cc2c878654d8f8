"""Ray: blocks of coordinates of the pair state on the actors of a Ray cluster."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedfuse.errors import FedfuseError
from fedfuse.pairs.blocks import BlockExecutor, CoordinateBlock
from fedfuse.pairs.memory import Folder
from fedfuse.utils.typing import Floats

# Ray gives its helpers 15 seconds to come up, and fails on a busy machine where they take longer.
MAX_ATTEMPTS = 4
# Keeps Ray from reporting its usage and from filling the terminal where it starts here.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class RayBlocks(BlockExecutor):
    """Blocks on actors of a Ray cluster, one each: of the cluster that is found, else of a local one.

    By default there is one for every processor of the cluster. All its machines must have fedfuse installed.
    """

    def __init__(self, omega: Floats, blocks: int | None, memory: int | None, spill: Folder) -> None:
        self._ray = _connected()
        super().__init__(omega, blocks, memory, spill)

    def _default_blocks(self, d: int) -> int:
        return int(self._ray.cluster_resources().get("CPU", 1))

    def _start(self, blocks: list[tuple[Any, ...]]) -> None:
        kind = self._ray.remote(_Actor).options(scheduling_strategy="SPREAD")
        self._actors = [kind.remote() for _ in blocks]
        machines = self._get([actor.machine.remote() for actor in self._actors])
        sharers = Counter(machines)
        begun = zip(self._actors, blocks, machines, strict=True)
        self._get([actor.begin.remote(*block, sharers[machine]) for actor, block, machine in begun])

    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return self._get([actor.call.remote(name, *a) for actor, a in zip(self._actors, arguments, strict=True)])

    def _get(self, waiting: list[Any]) -> list[Any]:
        try:
            self._ray.wait(waiting, num_returns=len(waiting))  # so that all have ended when one has failed
            return list(self._ray.get(waiting))
        except self._ray.exceptions.RayActorError as problem:
            raise FedfuseError(f"an actor that holds a part of the pairs is gone: {problem}") from None
        except self._ray.exceptions.RayTaskError as problem:
            if isinstance(problem.cause, FedfuseError):
                raise problem.cause from None  # without the traceback of another process
            raise


class _Actor:
    """A block in a process of its own."""

    def machine(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def begin(self, *arguments: Any) -> None:
        self._block = CoordinateBlock(*arguments)

    def call(self, name: str, *arguments: Any) -> Any:
        return getattr(self._block, name)(*arguments)


def _connected() -> Any:
    """Return ray, connected to a cluster."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise FedfuseError("backend 'ray' needs Ray, which is not installed: pip install 'fedfuse[ray]'") from None
    if not ray.is_initialized():
        start(ray)
    return ray


def start(ray: Any, **options: Any) -> None:
    """Start Ray, or join the cluster that it finds."""
    for _ in range(MAX_ATTEMPTS):
        try:
            ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
            return
        except Exception as failed:  # noqa: PERF203 - Ray's error has no class of its own
            ray.shutdown()
            problem = failed
    raise FedfuseError(f"Ray does not start: {problem}")
