"""One of eight devices lies: what the others lose, and who is named.

What: eight devices in one group or two, linear and softmax regression, in process and on Flower's engine (its messages
and the node registry, without its network). Device 0 multiplies its summaries, gradients or moments by 1,000, claims
10^12 rows (on Flower), sends a false score, has coefficients that are off by three standard errors, or has these and
overstates its rows two-fold, five-fold or up to about 20 times the median (on Flower). A row is the worst of four
federations: the error on test rows (RMSE, or mean log-loss) of the seven honest devices over theirs in a run without
the liar, how often the liar is named, and how many others are. ``--honest 200`` fits random federations without a liar
(those of `regrets.py`), and counts the devices that are named.
Command: python benchmarks/liars.py [--seeds 2] | --honest 200 [--jobs 2]
How long: a few minutes on idle cores, each. Measured: docs/features.md.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from random_federations import draw

import fedfuse as ff
from fedfuse.engines.base import EngineWrapper
from fedfuse.flower import client_app, node_registry
from fedfuse.flower import engine as flower_engine
from fedfuse.flower.server import serve
from fedfuse.results.result import Result

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.liars import false_score, hello_with, reply_with, times
from support.local_grid import LocalGrid
from support.planted import planted

HONEST = np.arange(1, 8)
Change = Callable[[Any, Any], Any]
METHODS = {
    "fusion-tree": {"set": "share=models"},
    "fusion-tree, moments": {"set": "share=moments"},
    "fpfc, refit": {"lam": "3.0", "set": "solver=exact refit=yes"},
}
SCORE = "score of 1e30"
LIES: dict[str, Change] = {"summary x 1,000": times(1000.0), SCORE: false_score(1e30)}
ROWS = {"10^12 rows": [10**12, 10**12, 10]}
DRIFTS = {
    "drift": None,
    "drift, 80 rows": [80, 20, 20],
    "drift, 200 rows": [200, 50, 50],
    "drift, 1,000 rows": [1000, 100, 100],
}
DRIFT_STANDARD_ERRORS = 3.0


class Liar(EngineWrapper):
    """Device 0 changes what it sends."""

    def __init__(self, inner: Any, change: Change) -> None:
        super().__init__(inner)
        self._change = change
        self._tasks: dict[int, Any] = {}

    def submit(self, orders: Any) -> None:
        self._tasks |= {order.device: order.task for order in orders}
        self.inner.submit(orders)

    def collect(self, patience: float | None = None) -> Any:
        return [
            replace(r, values=np.asarray(self._change(self._tasks[0], r.values), r.values.dtype)) if not r.device else r
            for r in self.inner.collect(patience)
        ]


def in_process(federation: ff.Federation, config: dict[str, str], change: Change | None) -> Result:
    """Fit in this process."""
    from fedfuse.flower.server import method_and_settings
    from fedfuse.models import model_for

    method, settings = method_and_settings(config)
    engine = ff.engines.InProcess(federation, model_for(federation, None), dtype=settings.get("dtype", "float32"))
    del settings["deadline"]
    return ff.fit(federation, method, engine=Liar(engine, change) if change else engine, **settings)


def on_flower(federation: ff.Federation, config: dict[str, str], forge: Any) -> Result:
    """Fit by Flower's engine."""
    grid = LocalGrid(client_app(lambda name, _: federation.only([int(name)])), federation.m)
    if forge is not None:
        grid.forge = forge
    with tempfile.TemporaryDirectory() as folder:
        return serve(grid, {**config, "out": f"{folder}/run"})


def drifting(federation: ff.Federation, noise: float) -> ff.Federation:
    """Move the targets of device 0 as if each of its coefficients were off by three standard errors."""
    own = slice(federation.cuts[0, 0], federation.cuts[0, 3])
    n = int(federation.rows("train+validation").counts[0])
    y = federation.y.copy()
    if federation.goal == "regression":
        y[own] += DRIFT_STANDARD_ERRORS * noise / np.sqrt(n) * (federation.X[own].sum(axis=1) + 1)
    else:  # A share of its labels is another class, which moves coefficients by about as much.
        rng, rows = np.random.default_rng(0), np.arange(own.start, own.stop)
        other = rows[rng.random(rows.size) < DRIFT_STANDARD_ERRORS / np.sqrt(n) / 2]
        y[other] = (y[other] + 1) % federation.n_classes
    return replace(federation, y=y)


def error_of(result: Result, federation: ff.Federation, names: list[str]) -> float:
    """Return the mean error of devices on their own test rows."""
    errors = []
    for i, name in zip(HONEST, names, strict=True):
        X, y = federation.rows("test").of(i)
        if federation.goal == "regression":
            errors.append(float(np.sqrt(np.mean(np.square(result.predict(name, X) - y)))))
        else:
            probabilities = result.outputs(name, X)
            errors.append(float(-np.log(np.maximum(probabilities[np.arange(y.size), y], 1e-12)).mean()))
    return float(np.mean(errors))


def runs(federation: ff.Federation, noise: float, config: dict[str, str]) -> Iterator[tuple[str, str, Any]]:
    """Yield engine, lie and result; a lie of nothing is the run without device 0."""
    others, drifted = federation.only(HONEST), drifting(federation, noise)
    yield "in process", "", in_process(others, config, None)
    yield "Flower", "", on_flower(others, config, None)
    for lie, change in LIES.items():
        if lie != SCORE:  # In process nobody is asked for a score.
            yield "in process", lie, in_process(federation, config, change)
        yield "Flower", lie, on_flower(federation, config, reply_with(0, change))
    for lie, rows in ROWS.items():
        yield "Flower", lie, on_flower(federation, config, hello_with("0", rows=rows))
    yield "in process", "drift", in_process(drifted, config, None)
    for lie, rows in DRIFTS.items():
        yield "Flower", lie, on_flower(drifted, config, rows and hello_with("0", rows=rows))


def table(seeds: int) -> None:
    """Print what liars do."""
    print("| model | method | engine | lie | others' error, worst | named | honest devices named |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for goal, noise in (("regression", 0.3), ("classification", 1.0)):
        for method, config in METHODS.items():
            if goal == "classification" and "moments" in method:
                continue  # Of linear regression alone.
            found: dict[tuple[str, str], list[tuple[float, bool, int]]] = {}
            for seed in range(seeds):
                for groups in (1, 2):
                    federation = planted(goal, m=8, groups=groups, noise=noise, seed=seed, n=60)
                    without: dict[str, float] = {}
                    for engine, lie, result in runs(federation, noise, config):
                        names = list(result.profile.names)
                        if not lie:
                            without[engine] = error_of(result, federation, names)
                            continue
                        first = names[0] if len(names) == 8 else "0"
                        ratio = error_of(result, federation, names[-7:]) / without[engine]
                        honest = sum(name != first for name in result.left_out)
                        found.setdefault((engine, lie), []).append((ratio, first in result.left_out, honest))
            for (engine, lie), seen in sorted(found.items()):
                ratios, named, others = zip(*seen, strict=True)
                words = f"{max(ratios):.3f} | {sum(named)} of {len(named)} | {sum(others)}"
                print(f"| {goal} | {method} | {engine} | {lie} | {words} |", flush=True)


def named(seed: int) -> tuple[int, int, str]:
    """Return of an honest federation how many devices there are, who is named and why."""
    federation, what = draw(seed)
    result = ff.fit(federation, seed=seed, evaluate_every=10**6)
    return federation.m, len(result.left_out), f"seed {seed} ({what}): {result.left_out}"


def main() -> None:
    """Print a table, or count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--honest", type=int, default=0, help="honest random federations")
    parser.add_argument("--jobs", type=int, default=2)
    words = parser.parse_args()
    logging.disable(logging.WARNING)
    node_registry.RESCAN_SECONDS = flower_engine.RESCAN_SECONDS = 0.0
    if not words.honest:
        table(words.seeds)
        return
    with ProcessPoolExecutor(words.jobs) as pool:
        rows = list(pool.map(named, range(words.honest)))
    for _, count, what in rows:
        if count:
            print(what)
    print(f"{sum(r[1] for r in rows)} of {sum(r[0] for r in rows)} honest devices are named")


if __name__ == "__main__":
    main()
