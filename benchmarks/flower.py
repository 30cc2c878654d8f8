"""What Flower costs per round: simulation and deployment against in process, and bytes on the wire.

What: FedAvg with one gradient step on devices with few rows, d = 610, so that nearly all time is transport. In process;
on Flower's simulation engine with 20 and 100 devices, against a round of Flower's own there: `send_and_receive` of a
vector of that size to an app that sends it back and does nothing else; with --deployment also on a real SuperLink with
4 SuperNodes on loopback, runs of both apps by turns. Bytes are those of the arrays and lines of JSON in all messages of
a run, against `cost_floats` x 4, without the envelopes of Flower and HTTP.
How long: not measured on idle cores; many minutes beside other jobs. Command:
    python benchmarks/flower.py [--rounds 20] [--deployment | --only]
Measured: docs/flower.md, "Transport cost".
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from datetime import datetime
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


NO_OP_SERVER = """
import json
import time
from datetime import datetime
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < NODES:
        time.sleep(0.2)
    ends = [time.time()]
    for _ in range(context.run_config["num-server-rounds"]):
        vector = ArrayRecord({"w": Array(np.zeros(4, np.float32))})
        asked = [Message(RecordDict({"arrays": vector}), node, "train") for node in grid.get_node_ids()]
        answers = list(grid.send_and_receive(asked))
        assert len(answers) == NODES and not any(answer.has_error() for answer in answers)
        ends.append(time.time())
    out = Path(context.run_config["out"])
    out.mkdir()
    (out / "times.json").write_text(json.dumps(ends))
    (out / "summary.json").write_text("{}")
"""
NO_OP_CLIENT = """
from flwr.app import Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    return Message(message.content, reply_to=message)
"""


def in_deployment(rounds: int, repeats: int) -> None:
    """Print rounds on a SuperLink with four SuperNodes: Flower's no-op app and ours by turns."""
    from fedfuse.flower.project_template import write_app
    from support.flower_cluster import Cluster, wait_for

    folder, nodes = Path(tempfile.mkdtemp(prefix="ffb-")), 4
    took: dict[str, list[float]] = {"noop": [], "ours": []}
    cpu: dict[str, list[float]] = {"noop": [], "ours": []}
    try:
        for name in took:
            write_app(folder / name)
        (folder / "noop/noop/server_app.py").write_text(NO_OP_SERVER.replace("NODES", str(nodes)))
        (folder / "noop/noop/client_app.py").write_text(NO_OP_CLIENT)
        with Cluster(folder / "c", nodes) as cluster:
            for k in range(nodes):
                cluster.start_node(k, f'device="{k}"')
            wait_for(lambda: cluster.online() == nodes, 300, "four SuperNodes")
            words = f"method='fedavg' set='steps=1 lr=0.1 tol=0' num-server-rounds={rounds} num-devices={nodes}"
            for turn in range(repeats):
                for name in took:
                    out, before = folder / f"{name}{turn}", cluster.processor_seconds()
                    cluster.finish(cluster.run(folder / name, f"{words} out='{out}'"), out, 1200)
                    cpu[name].append((cluster.processor_seconds() - before) / rounds)
                    took[name] += round_seconds(out)[1:]
                    print(f"{name}: {took[name][1 - rounds :]}, {cpu[name][-1]:.1f} s of processor time", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    theirs, ours = (float(np.median(took[name])) for name in took)
    print(
        f"\ndeployment, 4 SuperNodes: {ours:.1f} s per round, Flower's no-op {theirs:.1f} s, ratio {ours / theirs:.2f}"
    )
    theirs, ours = (float(np.median(cpu[name])) for name in cpu)
    print(f"processor time of a run, per round: {ours:.1f} s, no-op {theirs:.1f} s, ratio {ours / theirs:.2f}")


def round_seconds(out: Path) -> list[float]:
    """Return the seconds of each round of a run in deployment."""
    if (out / "times.json").exists():
        ends = json.loads((out / "times.json").read_text())
    else:
        log = map(json.loads, (out / "audit.jsonl").read_text().splitlines())
        ends = [datetime.fromisoformat(line["time"]).timestamp() for line in log if line["event"] in ("start", "round")]
    return [round(float(each), 1) for each in np.diff(ends)]


def on_one_machine(rounds: int) -> None:
    """Print rounds in process and simulated, and bytes."""
    print("| devices | in process | simulation | Flower's own no-op round | ratio |\n| --- | --- | --- | --- | --- |")
    for m in (20, 100):
        federation = devices(m)
        plain = in_process(federation, rounds)
        theirs, ours = no_op_round(m, rounds), on_simulation(federation, rounds)
        print(f"| {m} | {1e3 * plain:.1f} ms | {ours:.2f} s | {theirs:.2f} s | {ours / theirs:.2f} |", flush=True)
    share, rest = bytes_on_the_wire()
    print(f"\nbytes: cost_floats x 4 are {share:.2f} of all; {rest:.0f} bytes per message besides")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--deployment", action="store_true")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each app in deployment")
    parser.add_argument("--only", action="store_true", help="deployment alone")
    words = parser.parse_args()
    if not words.only:
        on_one_machine(words.rounds)
    if words.deployment or words.only:
        in_deployment(6, words.repeats)


if __name__ == "__main__":
    main()
