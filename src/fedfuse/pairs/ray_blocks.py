"""Who looks after the blocks of a `pairs.blocks.BlockedState`: threads of this process, or actors of a Ray cluster."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from fedfuse.errors import FedfuseError
from fedfuse.utils.threads import spread
from fedfuse.utils.typing import Floats, Ints

Backend = Literal["threads", "ray"]

# Where nobody says how many blocks: the columns that are worth a block of a process, and the most that it has. By d
# alone, so that the number of processors does not change results.
WORTH, MOST = 1 << 14, 8
# Ray gives its helpers 15 seconds to come up, and fails on a busy machine where they take longer.
ATTEMPTS = 4
# What Ray is not to do where it starts here: to tell others, and to fill the terminal.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def check_backend(backend: str | None, blocks: int | None) -> None:
    """Raise an error that says what is wrong with these settings, if anything is."""
    if backend is not None and backend not in get_args(Backend):
        raise FedfuseError(f"backend must be 'threads' or 'ray', got {backend!r}")
    if blocks is not None and backend is None:
        raise FedfuseError("blocks need a backend: 'threads' or 'ray'")
    if blocks is not None and blocks < 1:
        raise FedfuseError(f"blocks must be at least 1, got {blocks}")


def crew_for(backend: str, omega: Floats, blocks: int | None, memory: int | None, spill: Path | None) -> BlockExecutor:
    """Cut parameters into blocks, and give them to those who look after them."""
    check_backend(backend, blocks)
    return (OnRay if backend == "ray" else InThreads)(omega, blocks, memory, spill)


class BlockExecutor(ABC):
    """Blocks of coordinates; block b has the columns ``cuts[b]`` … ``cuts[b + 1]`` - 1.

    Parameters
    ----------
    omega
        Parameters, one row per device.
    blocks
        How many blocks, at most.
    memory, spill
        Bytes for the vectors of all pairs together, and a directory for what is more.
    """

    def __init__(self, omega: Floats, blocks: int, memory: int | None, spill: Path | None) -> None:
        d = omega.shape[1]
        n = max(1, min(blocks, d))
        self.cuts: Ints = np.arange(n + 1) * d // n
        shares = [None if memory is None else memory * int(w) // max(d, 1) for w in np.diff(self.cuts)]
        self._start([(part, share, spill) for part, share in zip(self.cut(omega), shares, strict=True)])

    def __len__(self) -> int:
        return self.cuts.size - 1

    @abstractmethod
    def _start(self, blocks: list[tuple[Any, ...]]) -> None:
        """Make blocks with these arguments."""

    @abstractmethod
    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call this method of every block, with its own arguments; return the results in order."""

    def every(self, name: str, *arguments: Any) -> list[Any]:
        """Call this method of every block with the same arguments."""
        return self.each(name, [arguments] * len(self))

    def cut(self, array: Floats) -> list[Floats]:
        """Return the columns of every block."""
        return [np.ascontiguousarray(array[:, self.columns(b)]) for b in range(len(self))]

    def columns(self, b: int) -> slice:
        """Return the columns of block b."""
        return slice(int(self.cuts[b]), int(self.cuts[b + 1]))

    def joined(self, parts: list[Floats], out: Floats) -> Floats:
        """Put the columns of all blocks side by side."""
        for b, part in enumerate(parts):
            out[:, self.columns(b)] = part
        return out


class InThreads(BlockExecutor):
    """Blocks in this process, in as many threads as are allowed."""

    def __init__(self, omega: Floats, blocks: int | None, memory: int | None, spill: Path | None) -> None:
        super().__init__(omega, blocks or min(MOST, -(-omega.shape[1] // WORTH)), memory, spill)

    def _start(self, blocks: list[tuple[Any, ...]]) -> None:
        from fedfuse.pairs.coordinate_block import CoordinateBlock  # compiled: only for who has blocks

        self._blocks = [CoordinateBlock(omega, limit, spill, len(blocks)) for omega, limit, spill in blocks]

    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        found: list[Any] = [None] * len(self)

        def run(jobs: Ints) -> None:
            for b in jobs:
                found[b] = getattr(self._blocks[b], name)(*arguments[b])

        # about as many numbers as there may be in all pairs; most calls go through those
        spread(run, np.array([len(block.omega) * block.omega.size for block in self._blocks], np.float64))
        return found


class OnRay(BlockExecutor):
    """Blocks on actors of a Ray cluster, one each: the one that this process is in or that it finds, else a local one.

    There is one for every processor of the cluster where nobody says. All its machines must have fedfuse installed.
    """

    def __init__(self, omega: Floats, blocks: int | None, memory: int | None, spill: Path | None) -> None:
        self._ray = _connected()
        super().__init__(omega, blocks or int(self._ray.cluster_resources().get("CPU", 1)), memory, spill)

    def _start(self, blocks: list[tuple[Any, ...]]) -> None:
        kind = self._ray.remote(_Actor).options(scheduling_strategy="SPREAD")
        self._actors = [kind.remote() for _ in blocks]
        machines = self._get([actor.machine.remote() for actor in self._actors])
        sharers = Counter(machines)
        self._get(
            [
                actor.begin.remote(*block, sharers[machine])
                for actor, block, machine in zip(self._actors, blocks, machines, strict=True)
            ]
        )

    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return self._get([actor.call.remote(name, *a) for actor, a in zip(self._actors, arguments, strict=True)])

    def _get(self, waiting: list[Any]) -> list[Any]:
        try:
            self._ray.wait(waiting, num_returns=len(waiting))  # so that none is still at it when another has failed
            return list(self._ray.get(waiting))
        except self._ray.exceptions.RayActorError as problem:
            raise FedfuseError(f"an actor that holds a part of the pairs is gone: {problem}") from None
        except self._ray.exceptions.RayTaskError as problem:
            if isinstance(problem.cause, FedfuseError):
                raise problem.cause from None  # not the traceback of another process
            raise


class _Actor:
    """A block in a process of its own."""

    def machine(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def begin(self, *arguments: Any) -> None:
        from fedfuse.pairs.coordinate_block import CoordinateBlock

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
    for _ in range(ATTEMPTS):
        problem = _attempt(ray, options)
        if problem is None:
            return
    raise FedfuseError(f"Ray does not start: {problem}")


def _attempt(ray: Any, options: dict[str, Any]) -> Exception | None:
    try:
        ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
    except Exception as problem:  # of no class of its own
        ray.shutdown()
        return problem
    return None
