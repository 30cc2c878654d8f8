"""Explain a run before it starts: its stages, what devices are asked in each, and how much is sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfuse.data.federation import Federation
from fedfuse.grouping.lambda_path import FINAL_STAGE, LambdaPath
from fedfuse.grouping.steps import StepMethod
from fedfuse.methods.method import FederationInfo, Method, Outcome
from fedfuse.models.model import Model
from fedfuse.protocol.tasks import Install, MetaTrain, Task, Train
from fedfuse.training.fit import prepared
from fedfuse.training.loop import info_of
from fedfuse.training.stages import Stage, stages_of
from fedfuse.tuning.grid_search import JUDGING, TRYING, GridSearch

SENT = {"model": ", and send the new model", "part": ", and send a part of it", "update": ", and send the change"}


@dataclass(frozen=True)
class PlannedStep:
    """One thing that devices are asked for, once in a pass over all of them or in every round."""

    stage: str
    name: str
    what: str
    rounds: int  # of one pass, or at most of the stage
    floats: int | None = None  # sent in these rounds, both ways; None where that depends on what is found before


@dataclass(frozen=True)
class Explanation:
    """The stages of a run, in order; prints as a table."""

    method: str
    m: int
    d: int
    active: int
    rounds: int
    steps: tuple[PlannedStep, ...]
    in_passes: bool  # Whether some steps are passes over all devices.

    def __str__(self) -> str:
        head = (
            f"{self.method}: {self.m} devices, {self.active} in a round, models of {self.d} numbers, "
            f"at most {self.rounds} rounds in all"
        )
        lines = [("stage", "rounds", "numbers sent", "what")]
        for step in self.steps:
            floats = "depends" if step.floats is None else f"{step.floats:,}"
            title = f"{step.stage}: {step.name}" if step.name else step.stage
            lines.append((title, f"{step.rounds:,}", floats, step.what))
        widths = [max(len(line[k]) for line in lines) for k in range(3)]
        table = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d}" for a, b, c, d in lines]
        repeated = ["", "A pass asks every device once; passes are repeated until the step is done."]
        return "\n".join([head, "", *table, *(repeated if self.in_passes else [])])


def explain(
    federation: Federation,
    method: Method[Any] | str | None = None,
    model: Model[Any] | str | None = None,
    *,
    rounds: int | None = None,
    engine: Any = None,
    workers: int | None = None,
    **settings: Any,
) -> Explanation:
    """Say what `fit` with the same arguments will ask of devices, in how many rounds, and how much is sent.

    Nothing is trained and nothing is sent; where devices compute (``engine``, ``workers``) does not matter.

    Examples
    --------
    >>> import fedfuse as ff
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> fed = ff.Federation.from_arrays([(rng.normal(size=(50, 2)), rng.normal(size=50)) for _ in range(6)])
    >>> print(ff.explain(fed, ff.FPFC(lam=0.5), rounds=100, participation=0.5))
    fpfc: 6 devices, 3 in a round, models of 3 numbers, at most 100 rounds in all
    <BLANKLINE>
    stage          rounds  numbers sent  what
    fpfc: opening       0            18  Devices get their first model.
    fpfc              100         1,800  Devices train on their rows, and send the new model.
    """
    method, model, chosen = prepared(federation, method, model, rounds, **settings)
    info, active = info_of(federation, model, chosen.seed, chosen.dtype, chosen.share), chosen.wanted(federation.m)
    stages = stages_of(method, model, chosen.rounds)
    steps = tuple(step for stage in stages for step in _steps(stage, info, active, stage.max_rounds or chosen.rounds))
    in_passes = any(isinstance(stage.method, StepMethod) for stage in stages)
    return Explanation(method.name, info.m, info.d, active, chosen.rounds, steps, in_passes)


def _steps(stage: Stage, info: FederationInfo, active: int, rounds: int) -> Iterator[PlannedStep]:
    method, one = stage.method, np.zeros(1, np.int64)

    def size(task: Task) -> int:
        return task.floats_down + task.floats_up(info.d)

    if isinstance(method, StepMethod):
        # Where devices send sufficient statistics, the server simulates other replies.
        state = method.first_state(info, Outcome(np.zeros((info.m, info.d)), np.arange(info.m)))
        simulated = state.simulable is not None
        for step in method.steps().values():
            if step.on_devices if simulated else not step.with_statistics:
                floats = info.m * size(step.ask(state, one)[0]) if step.size_is_known else None
                yield PlannedStep(stage.name, step.name, _first_line(step), -(-info.m // active), floats)
    elif isinstance(method, GridSearch):
        words = f"Settings of {method.inner.name} are tried on training rows; devices send scores."
        yield PlannedStep(stage.name, f"{TRYING}, {JUDGING}", words, rounds)
    else:
        state = method.init(info)
        if opening := list(method.opening(state).values()):
            yield PlannedStep(stage.name, "opening", _words(opening[0]), 0, len(opening) * size(opening[0]))
        task = method.tasks(state, one, 0)[0]
        news = method.broadcast(state)
        floats = len(method.devices(state, np.arange(active))) * size(task) + sum(map(size, news.values()))
        words = _words(task) + " Then every device is told what has changed." * bool(news)
        name = f"trying, {FINAL_STAGE}" if isinstance(method, LambdaPath) else ""
        yield PlannedStep(stage.name, name, words, rounds, rounds * floats)


def _words(task: Task) -> str:
    """Say what a task asks of a device."""
    if isinstance(task, Install):
        return "Devices get their first model."
    if isinstance(task, (Train, MetaTrain)):
        return f"Devices train on their rows{SENT.get(getattr(task, 'send', 'model'), '')}."
    return _first_line(task)


def _first_line(of: object) -> str:
    return (type(of).__doc__ or "").partition("\n")[0]
