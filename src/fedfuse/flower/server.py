"""The ServerApp: any method, on the devices that identify themselves.

A run is a directory. Started again on the same directory, the app resumes the run.
"""

from __future__ import annotations

import logging
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedfuse.data.federation import Federation, RemoteFederation, misfits
from fedfuse.errors import FedfuseError, Terminated
from fedfuse.flower.client import Build, build_model, plain_labels
from fedfuse.flower.engine import FlowerEngine
from fedfuse.flower.monitoring import Monitor
from fedfuse.flower.node_registry import NodeRegistry
from fedfuse.results.result import Result
from fedfuse.results.run_directory import RunDirectory
from fedfuse.training.fit import fit, resume
from fedfuse.training.loop import Callback, Run
from fedfuse.training.settings import Settings
from fedfuse.utils.audit_log import AuditLog, record
from fedfuse.utils.files import read_json, write_json

log = logging.getLogger(__name__)
DEVICES = "devices.json"  # in a run's directory: what the devices declare about themselves
AUDIT = "audit.jsonl"  # there, too: who was asked what, and what became of it
RESUME_WAIT_SECONDS = 20.0  # for the known devices of a run that is resumed
MAX_NAMED = 5  # devices that are left out, in an error
_POLL_SECONDS = 0.2


def server_app(model: Build | None = None, callbacks: tuple[Callback, ...] = ()) -> ServerApp:
    """Return the app of the server; the run's configuration has the settings.

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
        _log_through_flower()
        try:
            serve(grid, context.run_config, model, callbacks)
        except FedfuseError as problem:
            log.error("the run ends: %s", problem)  # Flower adds where, in many lines.
            raise
        except Terminated:
            log.warning("the run was stopped and saved; the same flwr run continues it")
            signal.raise_signal(signal.SIGTERM)  # Flower's own handler is back, and tells the SuperLink.

    return app


def serve(
    grid: Grid, config: Mapping[str, Any], model: Build | None = None, callbacks: tuple[Callback, ...] = ()
) -> Result:
    """Wait for devices, train, and write the result."""
    chosen, given = method_and_settings(config)
    settings = Settings(**given)
    # A message that outlives its round keeps its device from the next one, unless late replies are used.
    longest = settings.deadline if settings.deadline is not None and settings.late == "refuse" else np.inf
    nodes = NodeRegistry(grid, str(config.get("identities", "auto")))  # type: ignore[arg-type]
    out = Path(str(config.get("out") or f"runs/flower-{time.strftime('%Y%m%d-%H%M%S')}"))
    monitor, directory, address = Monitor(nodes), RunDirectory(out), str(config.get("metrics", ""))
    with directory.lock(), AuditLog(out / AUDIT) as audit, monitor.serving(address):
        resumed = directory.started
        if resumed:
            federation = gather_again(nodes, out)
        else:
            wanted, wait = int(config.get("num-devices", 0)), float(config.get("wait", 600))
            federation = gather(nodes, wanted, wait, settings.minimum)
            write_json(out / DEVICES, nodes.facts)
        audit.names, fitting = federation.names, build_model(federation, model)
        engine = FlowerEngine(
            grid, federation.names, fitting, seed=settings.seed, dtype=settings.dtype, noise=settings.noise(),
            setup={"classes": plain_labels(federation.classes)}, nodes=nodes,
            ttl=min(float(config.get("ttl", 600)), longest), grace=float(config.get("grace", 15)),
        )  # fmt: skip
        hooks = (*callbacks, ReportCallback(nodes), monitor)
        if resumed:
            log.info("resuming the run in %s", out)
            result = resume(out, federation, hooks, fitting, engine=engine)
        else:
            new: dict[str, Any] = {"out": out, "dataset": "flower", **given}
            result = fit(federation, chosen, fitting, engine=engine, callbacks=hooks, **new)
    log.info("%s; the run directory is %s", result, out.absolute())
    return result


def method_and_settings(config: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the method and the settings of `fit` that a run's configuration asks for."""
    from fedfuse.methods.registry import default_name
    from fedfuse.training.options import build, parse_options

    lam = str(config.get("lam", ""))
    words = [*shlex.split(str(config.get("set", ""))), *([f"lam={lam}"] if lam else [])]
    defaults: dict[str, Any] = {"checkpoint_every": 1, "evaluate_every": 10**6, "deadline": 120.0, "minimum": 1}
    defaults |= {"share": "models"}  # Rows are elsewhere.
    name = str(config.get("method", "")) or default_name(lam or None)
    options = parse_options(words, name)
    if options.settings.get("mode") == "async":
        del defaults["minimum"]  # Asynchronous rounds have one device.
    rounds = int(config.get("num-server-rounds", 0))
    chosen, settings = build("flower", name, options, defaults)
    settings["seed"] = int(config.get("seed", 0))
    return chosen, settings | ({"rounds": rounds} if rounds else {})


def gather(nodes: NodeRegistry, wanted: int, seconds: float, minimum: int = 1) -> Federation:
    """Wait for so many devices (0: all online), leave out who does not fit, return the others' federation."""
    log.info("waiting for devices")

    def heard() -> int:
        return len(nodes.facts.keys() | nodes.left_out.keys())

    _wait(nodes, seconds, lambda: heard() >= wanted if wanted else bool(nodes.facts) and not nodes.waiting)
    for name, reason in misfits(dict(sorted(nodes.facts.items()))).items():
        nodes.refuse(name, reason)
    good, least = nodes.facts, max(minimum, 1)
    if len(good) < least or heard() < wanted:
        what = f"{len(good)} of {wanted or f'at least {least}'} devices said hello within {seconds:g} seconds"
        out = "".join(f"; {name} is left out: {why}" for name, why in [*nodes.left_out.items()][:MAX_NAMED])
        raise FedfuseError(f"{what}: {', '.join(good) or 'nobody'}; start the others, or lower num-devices{out}")
    nodes.digests = {name: facts["digest"] for name, facts in good.items()}
    return RemoteFederation.from_facts(good)


def gather_again(nodes: NodeRegistry, out: Path) -> Federation:
    """Return the federation of a run that is resumed: the same devices, even if some are away or changed."""
    known: dict[str, Any] = read_json(out / DEVICES)
    nodes.digests = {name: str(facts.get("digest")) for name, facts in known.items()}
    _wait(nodes, RESUME_WAIT_SECONDS, lambda: known.keys() <= nodes.node_of.keys() | nodes.left_out.keys())
    missing = sorted(known.keys() - nodes.node_of.keys())
    if known.keys() <= nodes.left_out.keys():
        who = missing[0]
        why = nodes.left_out[who]
        raise FedfuseError(f"the run in {out} belongs to another federation, with no device in common ({who}: {why})")
    if missing:
        log.warning("continuing without %s for now", ", ".join(missing))
    return RemoteFederation.from_facts(known)


def _wait(nodes: NodeRegistry, seconds: float, complete: Callable[[], bool]) -> None:
    """Look for nodes until they are complete, or time is over."""
    end = time.monotonic() + seconds
    nodes.look(now=True)
    while not complete() and (left := end - time.monotonic()) > 0:
        time.sleep(min(_POLL_SECONDS, left))
        nodes.look()


class ReportCallback(Callback):
    """One line in Flower's log for every round; and in the result who was left out."""

    def __init__(self, nodes: NodeRegistry) -> None:
        self._nodes = nodes

    def on_start(self, run: Run) -> None:
        record("start", round=run.k, method=run.method.name, devices=list(run.federation.names), capped=run.capped())

    def on_end(self, run: Run, result: Result) -> None:
        result.left_out.update(self._nodes.left_out)
        told = {"left_out": result.left_out, "capped": result.capped}
        record("end", rounds=run.k, numbers=run.ledger.floats, **told)

    def on_round(self, run: Run, row: dict[str, Any]) -> None:
        record("round", **{name: row[name] for name in ("round", "stage", "active", "replies", "seconds")})
        words = f"round {row['round'] + 1}: {row['replies']} of {row['active']} answered"
        log.info("%s, %s floats so far, %.1f s", words, f"{row['cost_floats']:,}", row["seconds"])


def _log_through_flower() -> None:
    """Send what fedfuse logs to Flower's log (``flwr log``, ``--stream``)."""
    ours, theirs = logging.getLogger("fedfuse"), logging.getLogger("flwr")
    ours.setLevel(logging.INFO)
    ours.propagate = False
    for handler in theirs.handlers:
        if handler not in ours.handlers:
            ours.addHandler(handler)
