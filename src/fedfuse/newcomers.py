"""Devices that come when a run is over: each gets a model by its method's own rule, and nobody else is retrained.

A method's `admit` is a conversation with one newcomer: it yields tasks and is given the answers. Here the newcomers'
tasks go to a fleet, all at the same time, and what is sent is counted. A look at a device (`tasks.Show`), as at a model
that it has made for itself, is no message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError
from fedfuse.fleet import Fleet, InProcess
from fedfuse.methods import from_config
from fedfuse.methods.base import Admission, Joined, Known, Method, World
from fedfuse.methods.search import Searched
from fedfuse.methods.tuned import Tuned
from fedfuse.models import Model
from fedfuse.result import Result, mean_score
from fedfuse.tasks import Ledger, Order, Part, Show, Task, fault, for_device
from fedfuse.training import draw_initial
from fedfuse.types import Floats, Ints


@dataclass(frozen=True)
class Newcomers:
    """What has become of devices that came late.

    Attributes
    ----------
    names
        Of the newcomers.
    models
        One each (newcomers x d).
    clusters
        The cluster of the run that each has come to; None for one that fits none, or where the method has none.
    sureness
        How sure that is (0 to 1), where the method can tell.
    scores
        Accuracy or RMSE of each on its test rows (nan without any).
    iterations
        Exchanges with each.
    cost_floats
        Floats sent in both directions.
    """

    names: tuple[str, ...]
    models: Floats
    clusters: tuple[int | None, ...]
    sureness: tuple[float | None, ...]
    scores: Floats
    iterations: tuple[int, ...]
    cost_floats: int

    def score(self) -> float:
        """Return the mean over newcomers of accuracy or RMSE on their test rows."""
        return mean_score(self.scores)


def admit(result: Result, newcomers: Federation, fleet: Fleet | None = None) -> Newcomers:
    """Take in the devices of another federation, with the same columns, by the rule of the run's method."""
    model = result.model
    if newcomers.n_features != model.n_features or newcomers.goal != model.goal:
        raise FedfuseError(
            f"newcomers need {model.n_features} features for {model.goal}, "
            f"got {newcomers.n_features} for {newcomers.goal}"
        )
    method, dtype = _rule(result), result.models.dtype
    world = _world(newcomers, model, result.seed, dtype)
    known = Known(result.models, result.labels, result.profile.counts, result.lam, result.kept)
    fleet = fleet or InProcess(newcomers, model, seed=result.seed, dtype=dtype)
    talks = [method.admit(known, world, i) for i in range(newcomers.m)]
    joined, iterations, ledger = _converse(talks, fleet, model.d, dtype, result.seed)
    models = np.stack([j.model for j in joined])
    scores = model.metric(model.load(newcomers.rows("test"), dtype), np.arange(newcomers.m), models.astype(dtype))
    return Newcomers(
        names=newcomers.names,
        models=models,
        clusters=tuple(j.cluster for j in joined),
        sureness=tuple(j.sureness for j in joined),
        scores=scores,
        iterations=tuple(iterations),
        cost_floats=ledger.floats,
    )


def _rule(result: Result) -> Method[Any]:
    """Return the run's method, with what it has chosen for settings that were left open."""
    method = from_config(result.method)
    if isinstance(method, Tuned):
        method = method.at(result.lam or 0.0)
    elif isinstance(method, Searched):
        method = method.inner
    return replace(method, **result.chosen)


def _world(newcomers: Federation, model: Model[Any], seed: int, dtype: Any) -> World:
    def initial(start: Any, number: int = 0) -> Floats:
        return draw_initial(model, start, seed, number)

    parts: tuple[Part, ...] = ("train", "validation", "train+validation")
    counts: dict[str, Ints] = {part: newcomers.rows(part).counts for part in parts}
    return World(newcomers.m, model, counts, initial, np.dtype(dtype))


def _converse(
    talks: Sequence[Admission], fleet: Fleet, d: int, dtype: Any, seed: int
) -> tuple[list[Joined], list[int], Ledger]:
    """Let every newcomer's conversation go on until it ends."""
    ledger, ends, turns = Ledger(), {}, [0] * len(talks)
    tasks: dict[int, Task] = {i: next(talk) for i, talk in enumerate(talks)}
    k = 0
    while tasks:
        asked = {i: Order(i, k, for_device(task, seed, k, i)) for i, task in tasks.items()}
        for order in asked.values():
            ledger.sent(order)
        looks = {i for i, task in tasks.items() if isinstance(task, Show)}
        fleet.submit(list(asked.values()))
        tasks, waiting = {}, dict(asked)
        while waiting and (arrived := fleet.collect()):
            for reply in arrived:
                if reply.device not in looks:
                    ledger.received(reply)
                wrong = fault(reply, waiting, len(talks), d, dtype)
                if wrong:
                    raise FedfuseError(f"newcomer {reply.device} sent something that cannot be used: {wrong}")
                del waiting[reply.device]
                turns[reply.device] += 1
                try:
                    tasks[reply.device] = talks[reply.device].send(reply.values)
                except StopIteration as end:
                    ends[reply.device] = end.value
        if waiting:
            raise FedfuseError(f"newcomer {min(waiting)} did not answer")
        k += 1
    return [ends[i] for i in range(len(talks))], turns, ledger
