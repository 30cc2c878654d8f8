"""Checkpoints: all that a run needs to be resumed with the same result, as named arrays and JSON.

A state has the form of its dataclass (`methods.state_arrays`). A checkpoint of another format is not read: its rounds
are run again, to the same result, as every draw depends on the seed alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfuse.errors import FedfuseError
from fedfuse.methods.method import Outcome
from fedfuse.methods.mixins import WorksAtHome
from fedfuse.methods.state_arrays import fill_state, pack_state
from fedfuse.protocol.ledger import CommunicationLedger
from fedfuse.protocol.tasks import Install, Order, PeekModel, Task
from fedfuse.results.run_directory import RunDirectory
from fedfuse.training.settings import takes_single_replies
from fedfuse.utils.files import Arrays, naming_damage, prefixed, within

if TYPE_CHECKING:
    from fedfuse.training.loop import Run

log = logging.getLogger(__name__)

CHECKPOINT_FORMAT = 4
# What is saved of a run as it is.
SAVED = ("k", "place", "stage_start", "cut_short", "seconds", "failures", "spent", "history")


def save(run: Run, run_directory: RunDirectory) -> None:
    """Replace the last checkpoint."""
    meta = {
        "format": CHECKPOINT_FORMAT,
        "fingerprint": run.federation.fingerprint,
        **{name: getattr(run, name) for name in SAVED},
        "updates": run.transport.updates,
        "ledger": asdict(run.ledger),
        "trouble": run.all_trouble(),
    }
    try:
        hidden = _hidden(run)  # Before what is under way: a look may bring in some of it.
    except FedfuseError as problem:  # The checkpoint before is still whole.
        log.warning("no checkpoint after round %d: %s", run.k, problem)
        return
    under_way = run.engine.pack()
    sent = {"turns": run.turns, **run.transport.pack(), **prefixed("engine.", under_way or {})}
    sent["kept"] = np.array([under_way is not None])
    parts = {"state.": pack_state(run.state), "previous.": _packed(run.previous), "run.": sent}
    arrays = {name: a for prefix, part in parts.items() for name, a in prefixed(prefix, part).items()}
    run_directory.save_checkpoint(meta, arrays | hidden)


def _hidden(run: Run) -> Arrays:
    """Return devices' own models where the server may not have them: private, late, under way or lied about."""
    ahead = run.transport.unsettled and run.engine.pack() is not None
    private = isinstance(run.rule, WorksAtHome) and run.rule.keeps_models
    hidden = private or ahead or run.liars.size > 0
    return {"own": np.stack(run.transport.look([PeekModel()] * run.info.m))} if hidden else {}


def restore(run: Run, run_directory: RunDirectory) -> bool:
    """Go back to the last checkpoint; False if there is none that can be used."""
    saved = run_directory.load_checkpoint()
    if saved is None:
        return False
    with naming_damage(run_directory.path):
        return _restore(run, *saved)


def _restore(run: Run, meta: dict[str, Any], arrays: Arrays) -> bool:
    if meta.get("format") != CHECKPOINT_FORMAT:
        log.warning(
            "the checkpoint is from an older version of fedfuse: rounds are repeated with the same random draws"
        )
        return False
    sent, packed = within("run.", arrays), within("state.", arrays)
    scratch = {name: array.copy() for name, array in packed.items()}
    try:
        if meta["fingerprint"] != run.federation.fingerprint:
            raise FedfuseError("the checkpoint belongs to another federation: the data differ")
        for name in SAVED:
            setattr(run, name, meta[name])
        run.previous = _unpacked(within("previous.", arrays))
        run.set_rule()
        run.state = _filled(run, packed)
        run.turns, run.trouble, run.transport.updates = sent["turns"], meta["trouble"], meta["updates"]
        run.transport.ledger = CommunicationLedger(**meta["ledger"])
    except (KeyError, TypeError) as gap:
        raise FedfuseError(f"the checkpoint is not one of this method: {gap} is missing") from None
    if run.rule.current(run.state).models.shape != (run.info.m, run.info.d):
        raise FedfuseError("the checkpoint belongs to another model: the number of parameters differs")
    counts = [sent[name] for name in ("turns", "last", "asked", "heard")]
    if any(count.shape != (run.info.m,) or count.dtype.kind != "i" for count in counts):
        raise FedfuseError("the checkpoint is damaged: its orders do not match these devices")
    _remind(run, arrays.get("own"))
    _restore_transport(run, sent, scratch)
    run.between_rounds = True
    return True


def _remind(run: Run, own: Any) -> None:
    """Bring devices up to date: those of this process have forgotten everything."""
    lost = run.rule.recovery(run.state)
    if own is not None:
        lost.append({i: Install(w) for i, w in enumerate(own)})
    for tasks in lost:
        run.engine.submit([Order(device, -1, task) for device, task in tasks.items()])
        while run.engine.collect():
            pass


def _filled(run: Run, arrays: Arrays) -> Any:
    return fill_state(run.rule.init(run.info, run.previous), arrays)


def _restore_transport(run: Run, sent: Arrays, state: Arrays) -> None:
    """Take back what was under way; where an engine cannot, devices are asked again in the next round."""
    kept = bool(sent["kept"][0])
    if kept:
        run.engine.unpack(within("engine.", sent))
    tasks: Sequence[Task] = [PeekModel()] * run.info.m
    if takes_single_replies(run.rule):  # On a copy: asking changes the state of some methods.
        tasks = run.rule.tasks(_filled(run, state), np.arange(run.info.m), run.k - run.stage_start)
    run.transport.unpack(sent, tasks, kept=kept)


def _packed(found: Outcome | None) -> Arrays:
    """Return what a stage has found as arrays; numbers, text and dictionaries of these as JSON."""
    if found is None:
        return {}
    values = {**found._asdict(), "suspects": np.asarray(found.suspects, np.int64)}
    parts = {name: dict(values.pop(name)) for name in ("kept", "alternatives")}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    plain = {name: dict(v) if isinstance(v, Mapping) else v for name, v in values.items() if name not in arrays}
    arrays["plain"] = np.frombuffer(json.dumps(plain).encode(), np.uint8)
    return arrays | {key: array for name, part in parts.items() for key, array in prefixed(f"{name}.", part).items()}


def _unpacked(arrays: Arrays) -> Outcome | None:
    if not arrays:
        return None
    own: dict[str, Any] = {name: array for name, array in arrays.items() if "." not in name}
    parts: dict[str, Any] = {name: within(f"{name}.", arrays) for name in ("kept", "alternatives")}
    return Outcome(**json.loads(own.pop("plain").tobytes()), **own, **parts)
