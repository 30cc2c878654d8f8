"""Fused groups represented once: what it saves, and how far it is from the exact run.

What: m devices in 4 groups with d parameters, 30 % active in a round, as in scale.py: exact local work on quadratic
losses, a warm start from the devices' own optima, smoothed SCAD. The same rounds with and without ``collapse``, side by
side; the error is the largest difference of a parameter, in units of the largest parameter. "near" has groups within
the penalty's reach, which then meet as groups.
Command: python benchmarks/collapse.py [--m 400] [--d 610] [--rounds 60] [--collapse 10]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from fedfuse.core.partitions import adjusted_rand
from fedfuse.core.penalties import SmoothedSCAD
from fedfuse.pairs.state import FusionState

GROUPS, LAM, NU = 4, 6.0, 0.2


def run(m: int, d: int, rounds: int, collapse: int, apart: float) -> None:
    """Run both, and print a line."""
    rng, truth = np.random.default_rng(0), np.arange(m) % GROUPS
    centres = rng.standard_normal((GROUPS, d)) * apart * LAM / np.sqrt(2 * d)
    optima = (centres[truth] + rng.standard_normal((m, d)) * 0.4 / np.sqrt(d)).astype(np.float32)
    states = [FusionState(optima, SmoothedSCAD(LAM), warm=True, collapse=every) for every in (None, collapse)]
    seconds, errors = np.zeros((rounds, 2)), []
    for k in range(rounds):
        active = np.sort(rng.choice(m, max(1, 3 * m // 10), replace=False))
        for way, state in enumerate(states):
            began = time.perf_counter()
            state.update(active, (optima[active] + state.anchors(active)) / 2)
            seconds[k, way] = time.perf_counter() - began
        errors.append(np.abs(states[0].omega - states[1].omega).max() / np.abs(optima).max())
    exact, other = states
    late = np.median(seconds[-rounds // 3 :], axis=0)
    print(
        f"groups {apart:g} lambda apart: ARI {adjusted_rand(truth, other.labels(NU)):.3f}, "
        f"labels {'equal' if (exact.labels(NU) == other.labels(NU)).all() else 'DIFFER'}; "
        f"{m} devices represented by {other.members.max() + 1}; "
        f"memory {other.nbytes / exact.nbytes:.3f}, step {late[1] / late[0]:.2f} of the exact; "
        f"error at most {max(errors):.1e}, at the end {errors[-1]:.1e}; slowest step {seconds[:, 1].max():.2f} s"
    )


def main() -> None:
    """Print a line for groups beyond the penalty's reach, and one for groups within it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("m", 400), ("d", 610), ("rounds", 60), ("collapse", 10)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked = parser.parse_args()
    for apart in (12.0, 3.0):
        run(asked.m, asked.d, asked.rounds, asked.collapse, apart)


if __name__ == "__main__":
    main()
