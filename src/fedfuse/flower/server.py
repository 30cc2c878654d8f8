"""The ServerApp of a fedfuse federation: any method, on whatever devices say hello.

A run is a directory. Started again on the same directory, the app goes on where the last one ended.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedfuse.data.federation import Federation, RemoteFederation, check_facts
from fedfuse.errors import FedfuseError
from fedfuse.flower.client import Build, fitting_model
from fedfuse.flower.device import plain_labels
from fedfuse.flower.engine import FlowerEngine
from fedfuse.flower.node_registry import NodeRegistry
from fedfuse.results.result import Result
from fedfuse.results.run_directory import Store
from fedfuse.training.fit import fit, resume
from fedfuse.training.loop import Callback, Run
from fedfuse.training.settings import Settings
from fedfuse.utils.files import read_json, write_json

log = logging.getLogger(__name__)
DEVICES = "devices.json"  # in a run's directory: what the devices said of themselves
REUNION = 20.0  # seconds that a run which goes on waits for devices that it knows
_LOOK = 0.2  # seconds between two looks at who has come


def server_app(model: Build | None = None, callbacks: tuple[Callback, ...] = ()) -> ServerApp:
    """Return the app of the server; the run's configuration says the rest.

    Parameters
    ----------
    model
        Called without arguments; returns a model, a torch module, a name or None, the same as for `client_app`.
    callbacks
        Hooks into the run.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _speak_through_flower()
        serve(grid, context.run_config, model, callbacks)

    return app


def serve(
    grid: Grid, config: Mapping[str, Any], model: Build | None = None, callbacks: tuple[Callback, ...] = ()
) -> Result:
    """Wait for devices, train, and write what was found."""
    chosen, settings = method_and_settings(config)
    nodes = NodeRegistry(grid, str(config.get("identities", "declared")))  # type: ignore[arg-type]
    out = Path(str(config.get("out") or f"runs/flower-{time.strftime('%Y%m%d-%H%M%S')}"))
    store = Store(out)
    if store.started:
        federation = gather_again(nodes, out)
    else:
        federation = gather(nodes, int(config.get("num-devices", 0)), float(config.get("wait", 600)))
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / DEVICES, nodes.facts)
    fitting = fitting_model(federation, model)
    setup = {"classes": plain_labels(federation.classes)}
    conditions = Settings(**settings)
    engine = FlowerEngine(
        grid, federation.names, fitting, seed=conditions.seed, dtype=conditions.dtype, noise=conditions.noise(),
        setup=setup, nodes=nodes, ttl=float(config.get("ttl", 600)), grace=float(config.get("grace", 15)),
    )  # fmt: skip
    hooks = (*callbacks, ReportCallback())
    if store.started:
        log.info("going on with the run in %s", out)
        result = resume(out, federation, hooks, fitting, engine=engine)
    else:
        result = fit(federation, chosen, fitting, out=out, engine=engine, callbacks=hooks, dataset="flower", **settings)
    log.info("%s; all of it is in %s", result, out.absolute())
    return result


def method_and_settings(config: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the method, and what else `fit` is told by a run's configuration."""
    from fedfuse.methods.registry import default_name
    from fedfuse.training.options import build, parse_options

    lam = str(config.get("lam", ""))
    words = [*shlex.split(str(config.get("set", ""))), *([f"lam={lam}"] if lam else [])]
    defaults = {"checkpoint_every": 1, "evaluate_every": 10**6, "deadline": 120.0, "minimum": 1}
    name = str(config.get("method", "")) or default_name(lam or None)
    options = parse_options(words, name)
    if options.settings.get("mode") == "async":
        del defaults["minimum"]  # it is for rounds of several devices
    rounds = int(config.get("num-server-rounds", 0))
    chosen, settings = build("flower", name, options, defaults)
    settings["seed"] = int(config.get("seed", 0))
    if rounds:
        settings["rounds"] = rounds
    return chosen, settings


def gather(nodes: NodeRegistry, wanted: int, wait: float) -> Federation:
    """Wait until so many devices have said hello (0: all that are online now), and return what they are."""
    end = time.monotonic() + wait
    log.info("waiting for devices")
    nodes.look(now=True)
    while (left := end - time.monotonic()) > 0:
        enough = len(nodes.facts) >= wanted if wanted else nodes.facts and not nodes.waiting
        if enough:
            break
        time.sleep(min(_LOOK, left))
        nodes.look()
    for name in list(nodes.facts):
        _refuse_if_impossible(nodes, name)
    good = nodes.facts
    if not good or len(good) < wanted:
        what = f"{len(good)} of {wanted or 'at least 1'} devices said hello within {wait:g} seconds"
        raise FedfuseError(f"{what}: {', '.join(sorted(good)) or 'nobody'}; start the others, or lower num-devices")
    return RemoteFederation.from_facts(good)


def _refuse_if_impossible(nodes: NodeRegistry, name: str) -> None:
    try:
        check_facts(name, nodes.facts[name])
    except FedfuseError as problem:
        nodes.refuse(name, str(problem))


def gather_again(nodes: NodeRegistry, out: Path) -> Federation:
    """Return the federation of a run that goes on: of the same devices, also if some are not there now."""
    known: dict[str, Any] = read_json(out / DEVICES)
    end = time.monotonic() + REUNION
    nodes.look(now=True)
    while len(nodes.node_of.keys() & known.keys()) < len(known) and time.monotonic() < end:
        time.sleep(_LOOK)
        nodes.look()
    for name, facts in nodes.facts.items():
        if name in known and facts["digest"] != known[name]["digest"]:
            raise FedfuseError(f"the run in {out} belongs to another federation: device {name!r} has other rows now")
    missing = sorted(known.keys() - nodes.node_of.keys())
    if missing:
        log.warning("going on without %s for now", ", ".join(missing))
    return RemoteFederation.from_facts(known)


class ReportCallback(Callback):
    """One line in Flower's log for every round."""

    def on_round(self, run: Run, row: dict[str, Any]) -> None:
        words = f"round {row['round'] + 1}: {row['replies']} of {row['active']} answered"
        log.info("%s, %s floats so far, %.1f s", words, f"{row['cost_floats']:,}", row["seconds"])


def _speak_through_flower() -> None:
    """Let what fedfuse logs appear in Flower's log (``flwr log``, ``--stream``)."""
    ours, theirs = logging.getLogger("fedfuse"), logging.getLogger("flwr")
    ours.setLevel(logging.INFO)
    ours.propagate = False
    for handler in theirs.handlers:
        if handler not in ours.handlers:
            ours.addHandler(handler)
