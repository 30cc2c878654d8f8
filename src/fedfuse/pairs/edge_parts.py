"""Parts of the edges of a neighbour graph: one in this process, or some on the actors of a Ray cluster.

A part has the edges whose lower ends are in a range of devices, and the models of all devices at their ends: those of
the range, and a halo of their neighbours. The server sends it the models that have moved. It answers with sums: squared
residuals, and what its edges add to the anchors of devices.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedfuse.core.penalties import Pieces
from fedfuse.errors import FedfuseError
from fedfuse.pairs.layout import row_squares
from fedfuse.pairs.neighbour_graph import Edges
from fedfuse.utils.jit import Kernels
from fedfuse.utils.threads import spread
from fedfuse.utils.typing import Floats, Ints

# Edges or devices of one job of a thread.
JOB_SIZE = 1 << 14
# Work for each number of an edge, in the units of `spread`: memory is slower than arithmetic.
WORK_PER_NUMBER = 4.0
# Ray gives its helpers 15 seconds to come up, and fails on a busy machine where they take longer.
MAX_RAY_ATTEMPTS = 4
# Keeps Ray from reporting its usage and from filling the terminal where it starts here.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

_kernels = Kernels("fedfuse.pairs.edge_kernels")


class EdgePart:
    """Vectors and numbers of some edges; devices are known by their places among those at the edges' ends."""

    def __init__(self) -> None:
        none = np.empty(0, np.int64)
        self.edges = Edges(none, none)
        self.s: Floats = np.empty(0)
        self.delta: Floats = np.empty((0, 0))

    def set_edges(self, edges: Edges, devices: Ints, omega: Floats, scale: float = 1.0) -> None:
        """Take these edges; old ones keep their state, the others start at ``scale`` times omega_i - omega_j."""
        _, new, old = np.intersect1d(_codes(edges), _codes(self.edges), assume_unique=True, return_indices=True)
        s, delta = self.s[old], self.delta[old]
        self.edges, self.omega = edges, np.require(omega, requirements="W")
        self._ends = tuple(np.searchsorted(devices, ends).astype(np.int32) for ends in edges)
        self.s, self.delta = np.ones(edges.lo.size, omega.dtype), omega[self._ends[0]] - omega[self._ends[1]]
        self.built: Floats = np.sqrt(row_squares(self.delta))
        self.delta *= scale
        if new.size:
            self.s[new], self.delta[new] = s, delta
        # Edges to higher devices follow each other, those to lower ones are listed.
        lower, higher = (np.append(0, np.cumsum(np.bincount(ends, minlength=len(omega)))) for ends in self._ends)
        self._forward, self._back = lower, (higher, np.argsort(self._ends[1], kind="stable").astype(np.int32))

    def set_state(self, s: Floats, delta: Floats, built: Floats) -> None:
        """Set the numbers and vectors of all edges."""
        self.s, self.delta, self.built = s.copy(), delta.copy(), built.copy()

    def state(self) -> tuple[Floats, Floats, Floats]:
        """Return what `set_state` takes."""
        return self.s, self.delta, self.built

    def move(self, places: Ints, rows: Floats) -> None:
        """Take devices' new models."""
        self.omega[places] = rows

    def stretched(self, ratio: float, least: float) -> int:
        """Return how many edges are longer than ``ratio`` times their first length, and than ``least``."""
        counts = np.zeros(len(self._job_bounds) - 1, np.int64)
        self._over_edges(_kernels.count_stretched, self.built, ratio, least, self._job_bounds, counts)
        return int(counts.sum())

    def update(self, places: Ints, pieces: Pieces) -> Floats:
        """Update the edges of devices that have moved; return squared primal and dual residuals, and how many edges."""
        moved = np.zeros(len(self.omega), np.bool_)
        moved[places] = True
        pieces = Pieces(*map(np.array, pieces))  # what comes from other processes cannot be written to
        squares = np.zeros((len(self._job_bounds) - 1, 3))
        self._over_edges(_kernels.update_edges, moved, pieces, self._job_bounds, squares)
        return np.asarray(squares.sum(axis=0))

    @property
    def _job_bounds(self) -> Ints:
        return np.append(np.arange(0, self.s.size, JOB_SIZE), self.s.size)

    def _over_edges(self, kernel: Any, *given: Any) -> None:
        """Call a kernel for the jobs that all edges are cut into."""
        edges = (*self._ends, self.delta, self.s)
        work = WORK_PER_NUMBER * self.omega.shape[1] * np.diff(self._job_bounds).astype(np.float64)
        spread(lambda jobs: kernel(edges, self.omega, *given, jobs), work)

    def pulls(self, places: Ints, shares: Floats) -> Floats:
        """Return what these edges add to the anchors of devices, times each device's share."""
        places, shares = np.array(places), np.array(shares)
        out = np.empty((places.size, self.omega.shape[1]), self.omega.dtype)
        bounds = np.append(np.arange(0, places.size, JOB_SIZE), places.size)
        edges = (*self._ends, self.delta, self.s)

        def run(jobs: Ints) -> None:
            _kernels.pulls(edges, self.omega, self._forward, self._back, (places, shares), bounds, out, jobs)

        spread(run, WORK_PER_NUMBER * 2 * self.delta.size / max(len(self.omega), 1) * np.diff(bounds))
        return out

    def lengths(self) -> Floats:
        """Return ||theta|| of every edge."""
        return np.asarray(self.s * np.sqrt(row_squares(self.delta)))

    def nbytes(self) -> int:
        """Return the bytes of these edges."""
        indices: Any = (*self.edges, *self._ends, *self._back, self._forward)
        return int(self.delta.nbytes + self.s.nbytes + sum(each.nbytes for each in indices))


def _codes(edges: Edges) -> Ints:
    return (edges.lo << 32) + edges.hi


class LocalParts:
    """Parts in this process."""

    def __init__(self, n: int) -> None:
        self._parts = [EdgePart() for _ in range(n)]

    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call this method of every part, with its own arguments; return the results in order."""
        return [getattr(part, name)(*given) for part, given in zip(self._parts, arguments, strict=True)]


class RayParts(LocalParts):
    """Parts on actors of the Ray cluster that is found (with fedfuse on all machines), else of a local one."""

    def __init__(self, n: int) -> None:
        self._ray = _connected()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        kind = self._ray.remote(EdgePart)
        nodes = [node["NodeID"] for node in self._ray.nodes() if node["Alive"]]
        places = [NodeAffinitySchedulingStrategy(nodes[p % len(nodes)], soft=True) for p in range(n)]
        self._parts = [kind.options(scheduling_strategy=place).remote() for place in places]

    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        calls = zip(self._parts, arguments, strict=True)
        waiting = [getattr(actor, name).remote(*given) for actor, given in calls]
        try:
            self._ray.wait(waiting, num_returns=len(waiting))  # so that all have ended when one has failed
            return list(self._ray.get(waiting))
        except self._ray.exceptions.RayActorError as problem:
            reason = str(problem).partition("\n")[0]
            raise FedfuseError(
                f"an actor with a part of the edges has died ({reason}): resume continues from the last checkpoint"
            ) from None


def _connected() -> Any:
    """Return ray, connected to a cluster."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise FedfuseError("actors need Ray, which is not installed: pip install 'fedfuse[ray]'") from None
    if not ray.is_initialized():
        start(ray)
    return ray


def start(ray: Any, **options: Any) -> None:
    """Start Ray, or join the cluster that it finds."""
    for _ in range(MAX_RAY_ATTEMPTS):
        try:
            ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
            return
        except Exception as failed:  # noqa: PERF203 - Ray's error has no class of its own
            ray.shutdown()
            problem = failed
    raise FedfuseError(f"Ray does not start: {problem} (`ray stop` removes the remains of a killed cluster)")
