"""Explain a run before it starts: its stages, what devices are asked in each, and how much is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfuse.data.federation import Federation
from fedfuse.grouping.steps import StepMethod
from fedfuse.methods.method import FederationInfo, Method, Outcome
from fedfuse.models.model import Model
from fedfuse.protocol.tasks import Install, MetaTrain, Task, Train
from fedfuse.training.fit import prepared
from fedfuse.training.loop import info_of
from fedfuse.training.stages import Stage, stages_of
from fedfuse.tuning.grid_search import GridSearch

SENT = {"model": ", and send the new model", "part": ", and send a part of it", "update": ", and send the change"}


@dataclass(frozen=True)
class PlannedStep:
    """One thing that devices are asked for, once in a pass over all of them or in every round.

    Attributes
    ----------
    rounds
        Of one pass, or of the stage at the most.
    floats
        Sent in these rounds, both ways; None where that depends on what is found before.
    """

    stage: str
    name: str
    what: str
    rounds: int
    floats: int | None = None


@dataclass(frozen=True)
class Explanation:
    """The stages of a run, in order; prints as a table."""

    method: str
    m: int
    d: int
    active: int
    rounds: int
    steps: tuple[PlannedStep, ...]
    in_passes: bool = False  # whether some steps are passes over all devices

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
    plan = _Plan(info, active, chosen.rounds)
    stages = stages_of(method, model, chosen.rounds)
    steps = tuple(step for stage in stages for step in plan.steps(stage))
    in_passes = any(isinstance(stage.method, StepMethod) for stage in stages)
    return Explanation(method.name, info.m, info.d, active, chosen.rounds, steps, in_passes)


@dataclass(frozen=True)
class _Plan:
    info: FederationInfo
    active: int
    rounds: int

    def steps(self, stage: Stage) -> list[PlannedStep]:
        method = stage.method
        if isinstance(method, StepMethod):
            return self._passes(stage, method)
        if isinstance(method, GridSearch):
            what = f"Settings of {method.inner.name} are tried on training rows; devices send scores."
            return [PlannedStep(stage.name, "", what, stage.max_rounds or self.rounds)]
        return self._rounds(stage, method)

    def _rounds(self, stage: Stage, method: Method[Any]) -> list[PlannedStep]:
        state, rounds = method.init(self.info), stage.max_rounds or self.rounds
        opening = list(method.opening(state).values())
        first = [PlannedStep(stage.name, "opening", _words(t), 0, self._size(t, len(opening))) for t in opening[:1]]
        active = len(method.devices(state, np.arange(self.active)))
        task = method.tasks(state, np.zeros(1, np.int64), 0)[0]
        floats, words = self._size(task, rounds * active), _words(task)
        if news := method.broadcast(state):
            floats += rounds * sum(self._size(each, 1) for each in news.values())
            words += " Then every device is told what has changed."
        return [*first, PlannedStep(stage.name, "", words, rounds, floats)]

    def _passes(self, stage: Stage, method: StepMethod[Any]) -> list[PlannedStep]:
        """Return the steps that reach devices: where they send sufficient statistics, the server simulates the rest."""
        m, first = self.info.m, np.zeros(1, np.int64)
        state = method.first_state(self.info, Outcome(np.zeros((m, self.info.d)), np.arange(m)))
        simulated = state.simulable is not None
        steps = [s for s in method.steps().values() if (s.on_devices if simulated else not s.with_statistics)]
        sizes = [self._size(s.ask(state, first)[0], m) if s.size_is_known else None for s in steps]
        rounds = -(-m // self.active)
        words = [(type(s).__doc__ or "").partition("\n")[0] for s in steps]
        return [PlannedStep(stage.name, s.name, w, rounds, n) for s, w, n in zip(steps, words, sizes, strict=True)]

    def _size(self, task: Task, times: int) -> int:
        return times * (task.floats_down + task.floats_up(self.info.d))


def _words(task: Task) -> str:
    """Say what a task asks of a device."""
    if isinstance(task, Install):
        return "Devices get their first model."
    if isinstance(task, (Train, MetaTrain)):
        return f"Devices train on their rows{SENT.get(getattr(task, 'send', 'model'), '')}."
    return (type(task).__doc__ or "").partition("\n")[0]
