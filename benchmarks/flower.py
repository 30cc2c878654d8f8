"""What Flower costs per round: simulation and deployment against in process, and bytes on the wire.

What: FedAvg with one gradient step on devices with few rows, d = 610, so that nearly all time is transport. In process;
on Flower's simulation engine with 20 and 100 devices, against a round of Flower's own there: `send_and_receive` of a
vector of that size to an app that sends it back and does nothing else; with --deployment on a real SuperLink with 4
SuperNodes on loopback. Bytes are those of the arrays and lines of JSON in all messages of a
run, against `cost_floats` x 4, without the envelopes of Flower and HTTP.
How long: not measured on idle cores; many minutes beside other jobs. Command:
    python benchmarks/flower.py [--rounds 20] [--deployment]
Measured: docs/flower.md, "What it costs".
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import fedfuse as ff
from fedfuse.data.federation import Federation
from fedfuse.flower import FlowerEngine, client_app
from fedfuse.flower.simulation import SimulationRuntime, start_simulation
from fedfuse.models import SoftmaxRegression

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
METHOD = ff.FedAvg(work=ff.Work(steps=1, lr=0.1))
CLASSES = list(range(10))


def devices(m: int) -> Federation:
    """Return devices with few rows and 610 parameters."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(20, 60)), rng.permutation(np.arange(20) % 10)) for _ in range(m)]
    return Federation.from_arrays(data, goal="classification")


def seconds_per_round(history: Any) -> float:
    """Return the median over all rounds but the first, which compiles and says hello."""
    return float(np.median(np.diff(history["seconds"])))


def in_process(federation: Federation, rounds: int) -> float:
    """Time a round without Flower."""
    return seconds_per_round(ff.fit(federation, METHOD, rounds=rounds, tol=0, evaluate_every=10**6).history)


def on_simulation(federation: Federation, rounds: int) -> float:
    """Time a round of ours on the simulation engine."""
    model = SoftmaxRegression().sized(60, 10)
    runtime = start_simulation(federation, model)
    try:
        names = [str(i) for i in range(federation.m)]
        engine = FlowerEngine(runtime.grid, names, model, setup={"classes": CLASSES})
        return seconds_per_round(
            ff.fit(federation, METHOD, rounds=rounds, tol=0, evaluate_every=10**6, engine=engine).history
        )
    finally:
        runtime.close()


def no_op_app(folder: str) -> Any:
    """Return an app that sends back what it gets."""
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        return Message(message.content, reply_to=message)

    return app


def no_op_round(m: int, rounds: int) -> float:
    """Time Flower's own round: everybody gets a vector and sends it back."""
    from flwr.app import Array, ArrayRecord, Message, RecordDict

    engine, took = SimulationRuntime(no_op_app, m), []
    try:
        while len(list(engine.grid.get_node_ids())) < m:  # nodes come one after the other
            time.sleep(0.1)
        for _ in range(rounds):
            begin = time.perf_counter()
            vector = ArrayRecord({"w": Array(np.zeros(610, np.float32))})
            asked = [Message(RecordDict({"arrays": vector}), node, "train") for node in engine.grid.get_node_ids()]
            answers = list(engine.grid.send_and_receive(asked))
            assert len(answers) == m
            assert not any(answer.has_error() for answer in answers)
            took.append(time.perf_counter() - begin)
        return float(np.median(took[1:]))
    finally:
        engine.close()


def bytes_on_the_wire() -> tuple[float, float]:
    """Return bytes of arrays per 4 cost_floats, and bytes besides per message, for FPFC on S1-like devices."""
    from support.local_grid import LocalGrid

    federation = devices(20)
    model = SoftmaxRegression().sized(60, 10)
    grid = LocalGrid(client_app(lambda name, config: federation.only([int(name)])), federation.m)
    engine = FlowerEngine(grid, [str(i) for i in range(20)], model, setup={"classes": CLASSES})
    method = ff.FPFC(lam=0.6, work=ff.Work(steps=1, lr=0.1))
    result = ff.fit(federation, method, rounds=20, tol=0, evaluate_every=10**6, engine=engine)
    messages = [*grid.sent, *grid.answers]
    total = sum(size(m) for m in messages)
    floats = 4 * result.cost_floats
    return floats / total, (total - floats) / len(messages)


def size(message: Any) -> int:
    """Return the bytes of all that a message carries."""
    arrays = message.content.get("arrays") or {}
    config = message.content.get("config") or {}
    return sum(len(a.data) for a in arrays.values()) + sum(len(str(value)) for value in config.values())


def in_deployment(rounds: int) -> float:
    """Time a round on a SuperLink with four SuperNodes."""
    from fedfuse.flower.project_template import write_app
    from fedfuse.results.result import Result
    from support.flower_cluster import Cluster, wait_for

    folder = Path(tempfile.mkdtemp(prefix="ffb-"))
    try:
        write_app(folder / "four")
        with Cluster(folder / "c", 4) as cluster:
            for k in range(4):
                cluster.start_node(k, f'device="{k}"')
            wait_for(lambda: cluster.online() == 4, 120, "four SuperNodes")
            words = f"method='fedavg' set='steps=1 lr=0.1 tol=0' num-server-rounds={rounds} num-devices=4"
            cluster.finish(cluster.run(folder / "four", f"{words} out='{folder / 'run'}'"), folder / "run", 600)
            return seconds_per_round(Result.load(folder / "run").history)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--deployment", action="store_true")
    words = parser.parse_args()
    print("| devices | in process | simulation | Flower's own no-op round | ratio |\n| --- | --- | --- | --- | --- |")
    for m in (20, 100):
        federation = devices(m)
        plain = in_process(federation, words.rounds)
        theirs, ours = no_op_round(m, words.rounds), on_simulation(federation, words.rounds)
        print(f"| {m} | {1e3 * plain:.1f} ms | {ours:.2f} s | {theirs:.2f} s | {ours / theirs:.2f} |", flush=True)
    share, rest = bytes_on_the_wire()
    print(f"\nbytes: cost_floats x 4 are {share:.2f} of all; {rest:.0f} bytes per message besides")
    if words.deployment:
        print(f"\ndeployment, 4 SuperNodes: {in_deployment(6):.1f} s per round")


if __name__ == "__main__":
    main()
