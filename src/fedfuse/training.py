"""The one training loop, synchronous or not.

Draw the active devices, ask the method for one task each, let the fleet perform them, look every reply over,
give the good ones to the method, record, save, stop when nothing moves any more. A synchronous round waits for all that
were asked, an asynchronous one takes the first reply and lets the others go on.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from math import ceil, floor
from numbers import Integral, Real
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from fedfuse import methods
from fedfuse._version import __version__
from fedfuse.clusters import adjusted_rand
from fedfuse.conditions import Conditions, check_mode
from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError
from fedfuse.fleet import Byzantine, Engine, Fleet
from fedfuse.fleet.byzantine import Attack, Lies, Scope, check_attack, draw_liars, flipped, known_attack
from fedfuse.fusion import Residuals
from fedfuse.methods import FPFC, Method, World
from fedfuse.methods.base import Arrays, Found, check_share
from fedfuse.methods.networks import NetworkRefit
from fedfuse.methods.refit import Refit
from fedfuse.models import Model, default_model, model_called
from fedfuse.models import from_config as model_from_config
from fedfuse.post import Heard, Post
from fedfuse.privacy import Noise, calibrated, spent
from fedfuse.randomness import generator
from fedfuse.result import Profile, Result, mean_score
from fedfuse.store import Store
from fedfuse.tasks import (
    LOOK,
    Install,
    Ledger,
    MetaTrain,
    Order,
    Part,
    Score,
    Show,
    Task,
    Train,
    Work,
    for_device,
    steps_of,
)
from fedfuse.trust import overlong
from fedfuse.types import Floats, Ints

log = logging.getLogger(__name__)

Sampler: TypeAlias = Callable[[int, int], Ints]
Row: TypeAlias = dict[str, Any]
RESIDUALS = ("primal", "dual", "moved")
NETWORK = Work(steps=5, lr=0.05, batch=10, momentum=0.9)  # of a device with a network, where none is given,
NETWORK_ROUNDS = 60  # and for how long
TRIES = 3  # to send what comes before the first round
FAILURES = 10  # rounds in a row that may be given up


@dataclass(frozen=True)
class Settings(Conditions):
    """How long and how to train, whatever the method; `Conditions` has what concerns time and trouble.

    Parameters
    ----------
    rounds
        At most so many.
    seed
        Every random draw of the run depends on it.
    participation
        Share of the devices that is active in a round; ``"sizes(0.3)"`` for a share drawn in proportion to the
        devices' rows; for every device its own probability to take part (the paper's Assumption 3); or a function
        ``(round, m) -> device numbers``.
    tol
        Stop when no residual of the last rounds exceeds this; 0 to go on to the last round.
    evaluate_every
        Rounds between two looks at clusters, validation and test.
    checkpoint_every
        Rounds between two checkpoints, where a directory is given.
    dtype
        ``"float32"`` or ``"float64"``, on server and devices.
    attack, liars, lies, scope
        For experiments: this share of the devices lies, and how (`fleet.Byzantine`). Scores are then means over the
        others.
    clip, epsilon, delta
        Devices clip what they send to the norm ``clip`` and add Gaussian noise, so that all uploads of a device
        together are (``epsilon``, ``delta``) differentially private (`privacy`); 0 for no noise.
    screen
        Refuse models whose length is far outside that of the others of a round (`trust.overlong`).
    """

    rounds: int = 500
    seed: int = 0
    participation: float | str | Sequence[float] | Sampler = 1.0
    tol: float = 1e-4
    evaluate_every: int = 10
    checkpoint_every: int = 25
    dtype: str = "float32"
    attack: Attack | None = None
    liars: float = 0.2
    lies: Lies = "all"
    scope: Scope = "all"
    screen: bool = False
    clip: float = 0.0
    epsilon: float = 0.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("seed", 0), ("evaluate_every", 1), ("checkpoint_every", 1)):
            number = getattr(self, name)
            if not isinstance(number, Integral) or number < least:
                raise FedfuseError(f"{name} must be a whole number of at least {least}, got {number!r}")
        object.__setattr__(self, "participation", _read_participation(self.participation))
        if self.overselect and not isinstance(self.participation, (Real, str)):
            raise FedfuseError("overselect needs a participation share: else there is no number of devices to exceed")
        self._check_conditions()
        if not isinstance(self.tol, Real) or not 0 <= self.tol < np.inf:
            raise FedfuseError(f"tol must be a number of at least 0, got {self.tol!r}")
        if self.dtype not in ("float32", "float64"):
            raise FedfuseError(f"dtype must be float32 or float64, got {self.dtype!r}")
        if (self.clip == 0) != (self.epsilon == 0):
            raise FedfuseError(f"clip and epsilon go together, got clip={self.clip!r}, epsilon={self.epsilon!r}")
        if self.attack is not None:
            check_attack(self.attack, self.lies, self.scope)
        if not isinstance(self.liars, Real) or not 0 <= self.liars <= 1:
            raise FedfuseError(f"liars must be a share from 0 to 1, got {self.liars!r}")

    def active(self, k: int, m: int, rows: Ints | None = None) -> Ints:
        """Return the devices that are asked in round k; ``rows`` are those of every device."""
        if callable(self.participation):
            return _distinct_devices(self.participation(k, m), k, m)
        rng = generator(self.seed, "participation", k)
        if isinstance(self.participation, tuple):
            return np.flatnonzero(rng.random(m) < _one_each(self.participation, m))
        by_size = isinstance(self.participation, str) and rows is not None
        weights = rows / rows.sum() if by_size else None  # type: ignore[union-attr]
        count = min(m, ceil(self.wanted(m) * (1 + self.overselect) - 1e-9))
        drawn: Ints = rng.choice(m, count, replace=False, p=weights)
        # of those drawn in excess nobody may be preferred because of a small number
        return drawn if self.overselect else np.sort(drawn)

    def wanted(self, m: int) -> int:
        """Return how many devices make a round, where that is a share of them."""
        share = self.participation
        return max(1, floor((_share_of(share) if isinstance(share, str) else share) * m + 1e-9))  # type: ignore

    def noise(self) -> Noise | None:
        """Return how devices protect what they send: within the budget even if they answer in every round."""
        return calibrated(self.clip, self.epsilon, self.delta, self.rounds) if self.epsilon else None


class Callback:
    """Three hooks into a run."""

    def on_start(self, run: Run) -> None:
        """Before the first round (or the first after a resume)."""

    def on_round(self, run: Run, row: Row) -> None:
        """After every round, with its row of the history."""

    def on_end(self, run: Run, result: Result) -> None:
        """After the last."""


@dataclass
class Run:
    """One training run: what is fixed, and everything that changes."""

    federation: Federation
    model: Model[Any]
    method: Method[Any]
    settings: Settings
    fleet: Fleet
    store: Store | None = None
    callbacks: Sequence[Callback] = ()
    dataset: str = "arrays"

    k: int = 0
    stage: int = 0  # which method of the plan is at work,
    stage_start: int = 0  # and since which round
    before: Found | None = None  # what the last one has found,
    cut_short: bool = False  # and whether one ran out of rounds
    state: Any = None
    turns: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # orders that each device has had
    failures: int = 0  # rounds in a row that were given up
    spent: int = 0  # of the budget
    history: list[Row] = field(default_factory=list)
    seconds: float = 0.0
    trouble: dict[str, int] = field(default_factory=dict)  # of the fleets before a resume
    whole: bool = False  # whether the state is that between two rounds, and so may be saved

    def __post_init__(self) -> None:
        self.plan = self.method.plan_for(self.model)
        self.world = _world(self.federation, self.model, self.settings)
        self._evaluator = Evaluator(self.federation, self.model, self.settings.dtype) if self.federation.here else None
        check_mode(self.method, self.settings.mode, self.plan)
        self.post = Post(self.fleet, self.world.m, self.world.d, self.world.dtype)
        lying = known_attack(self.fleet)
        self.liars: Ints = lying.who if lying else np.empty(0, np.int64)
        self.honest = np.setdiff1d(np.arange(self.world.m), self.liars)

    @property
    def now(self) -> Method[Any]:
        """The method of the plan that is at work."""
        method = self.plan[self.stage].given(self.before)
        return method.one_at_a_time() if self.asynchronous else method

    @property
    def asynchronous(self) -> bool:
        """Whether the method at work takes replies one at a time."""
        return self.settings.mode == "async" and self.plan[self.stage].asynchronous

    @property
    def ledger(self) -> Ledger:
        """What was sent and received."""
        return self.post.ledger

    def begin(self) -> None:
        """Set up the state of the method at work and send what it sends before its first round."""
        self.state = self.now.begin(self.world, self.before)
        self.turns = np.zeros(self.world.m, np.int64)
        self._open(self.now.opening(self.state))
        self.whole = True

    def _open(self, tasks: dict[int, Task]) -> None:
        """Send what comes before the first round, to those who do not answer a few times."""
        answers: dict[int, Floats] = {}
        for _ in range(TRIES):
            missing = {i: task for i, task in tasks.items() if i not in answers}
            answers |= {r.device: r.values for r in self.post.exchange(self._orders(missing, -1))}
        devices = np.array(sorted(answers), dtype=np.int64)
        self.now.opened(self.state, devices, [answers[i] for i in sorted(answers)])

    def go(self) -> Result:
        """Train to the end."""
        clock, before = time.perf_counter(), self.seconds
        self._tell("on_start")
        while not self.over or self._next_method():
            with _interrupts_wait():
                self.whole = False
                row = self.round()
                self.seconds = before + time.perf_counter() - clock
                moment = self.seconds if self.fleet.time is None else self.fleet.time
                self.history.append({**row, "seconds": self.seconds, "time": moment})
                self.whole = True
            self._tell("on_round", self.history[-1])
            if self.store and self.k % self.settings.checkpoint_every == 0:
                self.save()
        result = self.result()
        self._tell("on_end", result)
        return result

    def round(self) -> Row:
        """One round of the method: of all devices drawn, or asynchronously of the next one that answers."""
        k, method = self.k, self.now
        active = self._free() if self.asynchronous else self._drawn(k)
        tasks = method.tasks(self.state, active, k - self.stage_start) if active.size else []
        self.post.send(self._orders(dict(zip(active.tolist(), tasks, strict=True)), k))
        self.turns[active] += 1
        heard = self._replies(len(active))
        residuals = self._take_in(heard)
        self.post.exchange(self._orders(method.broadcast(self.state), k))
        self.k = k + 1
        row: Row = {"round": k, "active": len(heard) if self.asynchronous else len(active), "replies": len(heard)}
        row["staleness"] = max((h.staleness for h in heard), default=0)
        row["cost_floats"] = self.ledger.floats
        row |= asdict(residuals) if residuals else dict.fromkeys(RESIDUALS, np.nan)
        row |= method.describe(self.state)
        if self.k % self.settings.evaluate_every == 0:
            row |= self._evaluation()
        return row

    def _drawn(self, k: int) -> Ints:
        """Return who is asked in a synchronous round: nobody who is still at work on an older order."""
        drawn = self.settings.active(k, self.world.m, self.world.counts["train"])
        chosen = self.now.devices(self.state, drawn)
        return chosen[~np.isin(chosen, list(self.fleet.busy))] if self.fleet.busy else chosen

    def _free(self) -> Ints:
        """Return who is asked next in asynchronous training: those without an order, the fewest turns first.

        A device that is far ahead of the slowest waits, so that fast devices do not outvote the others.
        """
        free = np.ones(self.world.m, np.bool_)
        free[[*self.post.open, *self.fleet.busy]] = False
        free &= self.turns - self.turns.min() < self.settings.ahead
        room = (self.settings.at_once or self.world.m) - len(self.post.open)
        first = np.argsort(self.turns, kind="stable")
        return first[free[first]][: max(0, room)]

    def _orders(self, tasks: dict[int, Task], k: int) -> list[Order]:
        """Return the orders of a round, each with the work of its own device, within what is left of the budget."""
        left = np.inf if self.settings.budget is None else self.settings.budget - self.spent
        seed = self.settings.seed
        orders = [Order(i, k, for_device(task, seed, k, i, left)) for i, task in tasks.items()]
        self.spent += max((steps_of(order.task) for order in orders), default=0) if k >= 0 else 0
        return orders

    def _replies(self, asked: int) -> list[Heard]:
        """Wait for the replies of a round, and return those that may be used, by device."""
        settings, late = self.settings, self.settings.late == "use" and self.now.asynchronous
        if self.asynchronous:
            heard = self.post.gather(1, self.post.left(settings.deadline), late=late)
            if not heard:
                self.post.give_up(settings.deadline)
        else:
            first = settings.wanted(self.world.m) if settings.overselect and not self.now.gathers else asked
            heard = self.post.gather(max(first, 1), settings.deadline, late=late)
            self.post.close()
        return self._screened(sorted(heard, key=lambda h: h.reply.device))

    def _screened(self, heard: list[Heard]) -> list[Heard]:
        """Refuse models that are absurdly long beside the others of the round."""
        if not self.settings.screen:
            return heard
        models = {h.reply.device: h.reply.values for h in heard if isinstance(h.task, (Train, MetaTrain))}
        wrong = overlong(models)
        self.post.drop([h for h in heard if h.reply.device in wrong], "far too long")
        return [h for h in heard if h.reply.device not in wrong]

    def _take_in(self, heard: list[Heard]) -> Residuals | None:
        """Give replies to the method, unless they are too few."""
        if len(heard) < self.settings.minimum and not self.now.gathers:
            self._fail()
            self.post.drop(heard, "too few in the round")
            return None
        self.failures = 0
        self.post.use(heard)
        self.post.updates += bool(heard)
        devices = np.array([h.reply.device for h in heard], dtype=np.int64)
        return self.now.update(self.state, devices, [h.reply.values for h in heard])

    def _fail(self) -> None:
        self.failures += 1
        if self.failures == FAILURES:
            raise FedfuseError(
                f"in {FAILURES} rounds in a row fewer than minimum={self.settings.minimum} devices answered: lower it, "
                "raise participation or overselect, or give them more time (deadline)"
            )

    def _next_method(self) -> bool:
        """Go on with the next method of the plan, from what this one has found; False if this was the last."""
        if self.stage + 1 == len(self.plan):
            return False
        if self.asynchronous or self.fleet.busy:
            self.post.drain()
        self.post.exchange(self._orders(self.now.closing(self.state), -1))
        self.cut_short |= not self.settled
        self.before = self.now.final(self.state, self.world)
        self.stage, self.stage_start = self.stage + 1, self.k
        self.begin()
        return not self.over

    @property
    def over(self) -> bool:
        """Whether the method at work has come to its end."""
        limit = self.now.rounds or self.settings.rounds
        spent = self.settings.budget is not None and self.spent >= self.settings.budget and not self.now.gathers
        return self.now.finished(self.state) or self.k - self.stage_start >= limit or spent or self.converged

    @property
    def converged(self) -> bool:
        """Whether the last rounds, enough for two turns of most devices, moved nothing by more than tol."""
        turns = 0
        for row in reversed(self.history[self.stage_start :]):
            if not (self.settings.tol and all(row[r] <= self.settings.tol for r in RESIDUALS)):
                return False
            turns += row["active"]
            if turns >= 2 * self.world.m:
                return True
        return False

    @property
    def settled(self) -> bool:
        """Whether the methods so far came to their end before their rounds did."""
        return not self.cut_short and (self.converged or self.now.settled(self.state))

    def save(self) -> None:
        """Write a checkpoint from which `resume` goes on as if nothing had happened."""
        if self.store and self.whole:
            meta = {
                "fingerprint": self.federation.fingerprint,
                "round": self.k,
                "stage": self.stage,
                "stage_start": self.stage_start,
                "cut_short": self.cut_short,
                "seconds": self.seconds,
                "failures": self.failures,
                "spent": self.spent,
                "updates": self.post.updates,
                "ledger": asdict(self.ledger),
                "trouble": self._all_trouble(),
                "history": self.history,
            }
            try:
                hidden = self._hidden()  # before what is under way: a look may bring in some of it
            except FedfuseError as problem:  # what there was before is still whole
                log.warning("no checkpoint after round %d: %s", self.k, problem)
                return
            under_way = self.fleet.pack()
            post = {"turns": self.turns, **self.post.pack(), **_under("fleet_", under_way or {})}
            post["kept"] = np.array([under_way is not None])
            state = self.now.pack(self.state) | _under("before_", _packed(self.before)) | hidden
            self.store.save_checkpoint(meta, state | _under("run_", post))

    def _hidden(self) -> Arrays:
        """Return devices' own models where the server may not have them: private, late, under way or lied about."""
        ahead = self.post.unsettled and self.fleet.pack() is not None
        hidden = self.now.private or ahead or self.liars.size > 0
        return {"own": np.stack(self.post.look([Show()] * self.world.m))} if hidden else {}

    def restore(self) -> bool:
        """Go back to the last checkpoint; False if there is none."""
        saved = self.store.load_checkpoint() if self.store else None
        if saved is None:
            return False
        meta, arrays = saved
        try:
            if meta["fingerprint"] != self.federation.fingerprint:
                raise FedfuseError("the checkpoint belongs to another federation: its data are not these")
            self.stage, self.stage_start, self.before = meta["stage"], meta["stage_start"], _unpacked(arrays)
            self.cut_short = meta["cut_short"]
            own = arrays.pop("own", None)
            post, arrays = _within("run_", arrays), _without(("run_", "before_"), arrays)
            scratch = {name: array.copy() for name, array in arrays.items()}
            self.state = self.now.unpack(arrays, self.world)
            self.k, self.seconds, self.history = meta["round"], meta["seconds"], meta["history"]
            self.failures, self.spent, self.post.updates = meta["failures"], meta["spent"], meta["updates"]
            self.turns, self.post.ledger = post["turns"], Ledger(**meta["ledger"])
            self.trouble = meta.get("trouble", {})
        except (KeyError, TypeError) as gap:
            raise FedfuseError(f"the checkpoint is not one of this method: {gap} is missing") from None
        if self.now.models(self.state).shape != (self.world.m, self.world.d):
            raise FedfuseError("the checkpoint belongs to another model: the number of parameters differs")
        lost = self.now.recovery(self.state)  # devices of this process have forgotten everything
        if own is not None:
            lost.append({i: Install(w) for i, w in enumerate(own)})
        for tasks in lost:
            self.fleet.submit([Order(device, -1, task) for device, task in tasks.items()])
            while self.fleet.collect():
                pass
        self._restore_post(post, scratch)
        self.whole = True
        return True

    def _restore_post(self, post: Arrays, state: Arrays) -> None:
        """Take back what was under way; where a fleet cannot, devices are asked again in the next round."""
        kept = bool(post["kept"][0])
        if kept:
            self.fleet.unpack(_within("fleet_", post))
        tasks: Sequence[Task] = [Show()] * self.world.m
        if self.now.asynchronous:  # on a copy: to ask is an event for some
            everyone = np.arange(self.world.m)
            tasks = self.now.tasks(self.now.unpack(state, self.world), everyone, self.k - self.stage_start)
        self.post.unpack(post, tasks, kept=kept)

    def result(self) -> Result:
        """Return what the run has found so far."""
        found = self._in_use(self.now.final(self.state, self.world))
        sure = self.now.sureness(self.state)
        refitting = self.stage > 0 and isinstance(self.now, (Refit, NetworkRefit))
        return Result(
            profile=Profile.of(self.federation),
            model=self.model,
            method=self.method.to_config(),
            dataset=self.dataset,
            seed=self.settings.seed,
            rounds=self.stage_start if refitting else self.k,
            refit_rounds=self.k - self.stage_start if refitting else 0,
            converged=self.settled,
            lam=found.lam,
            chosen=dict(self.before.settings) if self.before else {},
            labels=found.labels,
            models=np.asarray(found.models),
            scores=self._scores(found),
            stability=None if sure is None else sure[0],
            confidence=None if sure is None else sure[1],
            kept=self.now.keep(self.state),
            history=pd.DataFrame(self.history),
            cost_floats=self.ledger.floats,
            refused=dict(self.ledger.refused),
            orders=self.post.outcome,
            trouble=self._all_trouble(),
            privacy=self._privacy(),
            seconds=self.seconds,
            attack=self._attack(),
            suspects=np.union1d(found.suspects, self.ledger.often_refused(self.world.m)).astype(np.int64),
        )

    def _privacy(self) -> dict[str, float] | None:
        """Return what devices have spent of their budget at the most."""
        noise = self.settings.noise()
        if noise is None:
            return None
        uploads = int(self.turns.max(initial=0))
        budget = {"epsilon": spent(noise, self.settings.delta, uploads), "delta": self.settings.delta}
        return budget | {"clip": noise.clip, "noise": noise.std, "uploads": uploads}

    def _attack(self) -> dict[str, Any] | None:
        lying = known_attack(self.fleet)
        return None if lying is None else {"attack": lying.attack, "lies": lying.lies, "who": lying.who.tolist()}

    def in_use(self) -> Found:
        """Return the models that devices have now, and their clusters."""
        return self._in_use(Found(self.now.models(self.state), self.now.labels(self.state)))

    def _in_use(self, found: Found) -> Found:
        """Return what devices really use: what they make of it at home, where they do."""
        tasks = self.now.at_home(self.state)
        if tasks is None:
            return found
        own = [for_device(task, self.settings.seed, LOOK, i) for i, task in enumerate(tasks)]
        return self.now.deployed(self.state, found, self.post.look(own, list(found.models)))

    def _scores(self, found: Found) -> dict[str, Floats]:
        """Return every device's score on each held-out part; devices whose rows are elsewhere are asked for it."""
        validated = self.now.validated(self.state, found)
        if self._evaluator is not None:  # rows are here
            return self._evaluator.all_parts(found.models, validated)
        unknown = np.full(self.world.m, np.nan)
        if self.settings.epsilon:  # a score would not be protected
            return {"validation": unknown, "test": unknown}
        seen = {"validation": validated, "test": found.models}
        return {part: unknown if w is None else self._asked_for_scores(part, w) for part, w in seen.items()}

    def _asked_for_scores(self, part: Any, models: Floats) -> Floats:
        nothing = [np.array([np.nan])] * self.world.m
        seen = self.post.look([Score(np.asarray(w), part, raw=True) for w in models], nothing)
        known = self.federation.rows(part).counts > 0
        return np.where(known, np.array([float(values[0]) for values in seen]), np.nan)

    def _all_trouble(self) -> dict[str, int]:
        now = self.fleet.trouble
        return {what: self.trouble.get(what, 0) + now.get(what, 0) for what in {**self.trouble, **now}}

    def _evaluation(self) -> Row:
        found = self.in_use()
        scores = self._scores(found)
        means = {part: mean_score(score[self.honest]) for part, score in scores.items()}
        truth = self.federation.truth
        ari = adjusted_rand(None if truth is None else truth[self.honest], found.labels[self.honest])
        return {"n_clusters": int(found.labels.max()) + 1, "ari": ari, **means}

    def _tell(self, hook: str, *args: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *args)


class Evaluator:
    """Scores on held-out rows, for the record only: nothing is ever chosen by what it says of the test part."""

    def __init__(self, federation: Federation, model: Model[Any], dtype: str) -> None:
        self._model = model
        self._everyone = np.arange(federation.m)
        parts: tuple[Part, ...] = ("validation", "test")
        self._parts: dict[str, Any] = {part: model.load(federation.rows(part), np.dtype(dtype)) for part in parts}

    def all_parts(self, models: Floats, validated: Floats | None) -> dict[str, Floats]:
        """Return every device's score on each held-out part.

        On validation rows it is that of ``validated``, models that were not trained on them: the score of others
        would not mean anything.
        """
        unknown = np.full(len(self._everyone), np.nan)
        return {
            "validation": unknown if validated is None else self._score("validation", validated),
            "test": self._score("test", models),
        }

    def _score(self, part: str, models: Floats) -> Floats:
        return self._model.metric(self._parts[part], self._everyone, models)


def fit(
    federation: Federation,
    method: Method[Any] | None = None,
    model: Model[Any] | str | None = None,
    *,
    rounds: int | None = None,
    seed: int = 0,
    out: str | PathLike[str] | None = None,
    engine: str = "inprocess",
    workers: int | None = None,
    fleet: Fleet | None = None,
    callbacks: Iterable[Callback] = (),
    dataset: str = "arrays",
    source: dict[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Find which devices share a model, and train one per group.

    Parameters
    ----------
    federation
        The devices and their rows.
    method
        `FPFC` by default.
    model
        Softmax regression for classes, linear regression for values and the paper's network for images by default; or a
        name: ``"softmax"``, ``"linear"``, ``"cnn"``, ``"mlp"``.
    rounds, seed
        At most so many rounds (500; networks: 60); every random draw depends on the seed.
    out
        A new directory for checkpoints and results.
    engine, workers
        Where devices compute: ``"inprocess"``, ``"workers"`` for so many processes beside this one (by default
        one for each core), or ``"flower"`` for Flower's simulation engine. The result is the same to the bit.
    fleet
        A fleet of your own in place of an engine's; it is closed at the end.
    callbacks
        Hooks into the run.
    dataset, source
        How the data are called in the summary, and how `resume` finds them again.
    **settings
        The other fields of `Settings`.

    Examples
    --------
    >>> import fedfuse as ff
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(6, 50, 2))
    >>> y = [x @ ([1, 2] if i < 3 else [-2, 1]) + 0.1 * rng.normal(size=50) for i, x in enumerate(X)]
    >>> fed = ff.Federation.from_arrays(list(zip(X, y)))
    >>> res = ff.fit(fed, ff.FPFC(lam=0.5, work=ff.Work(solver="exact")))
    >>> res.labels.tolist()
    [0, 0, 0, 1, 1, 1]
    """
    chosen = Settings(seed=seed, **settings)
    model = _fitting_model(federation, model)
    if rounds is None and not model.convex:
        rounds = NETWORK_ROUNDS
    chosen = replace(chosen, rounds=rounds) if rounds is not None else chosen
    method = method or FPFC(work=Work(solver="exact") if model.convex else NETWORK)
    _check_plan(method, model)
    _check_noise(method, model, chosen)
    place = Engine(engine, workers)
    if fleet and place != Engine():
        raise FedfuseError(f"give a fleet or an engine, not both: engine={engine!r}, fleet={fleet!r}")
    store = Store(out) if out is not None else None
    if store:
        store.check_free()
    fleet = chosen.around(_attacked(fleet, federation, model, chosen, place), chosen.seed)
    run = Run(federation, model, method, chosen, fleet, store, _recorded(callbacks, store), dataset)
    if store:
        store.create(_config(run, source, place))
    return _finish(run)


def resume(
    directory: str | PathLike[str],
    federation: Federation | None = None,
    callbacks: Iterable[Callback] = (),
    model: Model[Any] | None = None,
    *,
    engine: str | None = None,
    workers: int | None = None,
    fleet: Fleet | None = None,
) -> Result:
    """Go on with an interrupted run from its last checkpoint; the result is the same to the bit.

    ``federation`` is needed only where the run was started from Python on data without a name, ``model`` only where
    it trains a module of your own (`TorchModel`): with the weights that it had, if some of them are frozen. ``engine``
    and ``workers`` are needed only to compute elsewhere than before, ``fleet`` only where the run had one of its own.
    """
    store = Store(directory)
    config = store.config()
    if store.finished:
        _tidy(store)
        return Result.load(directory, model)
    try:
        settings, method = Settings(**config["settings"]), methods.from_config(config["method"])
        model, dataset = model_from_config(config["model"], model), config["dataset"]
        source, fingerprint = config["source"], config["fingerprint"]
        place = Engine(**config.get("engine", {}))
    except (KeyError, TypeError) as gap:
        raise FedfuseError(f"{directory} holds no run that can be resumed: config.json lacks {gap}") from None
    if config.get("version") != __version__:
        words = "the run in %s was begun by fedfuse %s, this is %s: the last digits may differ"
        log.warning(words, directory, config.get("version"), __version__)
    if federation is None:
        federation = _load_again(source, directory)
    if federation.fingerprint != fingerprint:
        raise FedfuseError(f"the run in {directory} belongs to another federation: its data are not these")
    model = _fitting_model(federation, model)
    place = _elsewhere(place, engine, workers)
    fleet = settings.around(_attacked(fleet, federation, model, settings, place), settings.seed)
    run = Run(federation, model, method, settings, fleet, store, _recorded(callbacks, store), dataset)
    return _finish(run, restore=True)


def _elsewhere(place: Engine, engine: str | None, workers: int | None) -> Engine:
    """Return the engine that a run goes on with: its own, unless another is asked for."""
    if engine is not None and engine != place.name:
        return Engine(engine, workers)
    return place if workers is None else replace(place, workers=workers)


def _load_again(source: dict[str, Any] | None, directory: str | PathLike[str]) -> Federation:
    from fedfuse.data.sources import load

    if source is None:
        raise FedfuseError(
            f"the run in {directory} was started from Python on data without a name: resume it there, with "
            "fedfuse.resume(directory, federation)"
        )
    return load(**source)


def _finish(run: Run, *, restore: bool = False) -> Result:
    try:
        if not (restore and run.restore()):
            run.begin()
        result = run.go()
    except KeyboardInterrupt:
        run.save()
        raise
    finally:
        run.fleet.close()
    if run.store:
        result.save(run.store.directory)
        _tidy(run.store)
    return result


def _recorded(callbacks: Iterable[Callback], store: Store | None) -> tuple[Callback, ...]:
    """Add to the callbacks the one that leaves in a run's directory how it gets on."""
    from fedfuse.recorder import Recorder  # which is a callback

    return (*([Recorder(store.directory)] if store else []), *callbacks)


def _tidy(store: Store) -> None:
    from fedfuse import recorder

    recorder.tidy(store.directory)
    store.tidy()


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Let Ctrl-C wait for the end of a round, so that what is saved is whole; a second one does not wait."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    asked: list[int] = []

    def note(number: int, frame: Any) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked:
        raise KeyboardInterrupt


def _distinct_devices(devices: Any, k: int, m: int) -> Ints:
    chosen = np.asarray(devices)
    whole = chosen.ndim == 1 and (chosen.dtype.kind in "iu" or not chosen.size)
    if not whole or np.unique(chosen).size < chosen.size or not ((chosen >= 0) & (chosen < m)).all():
        raise FedfuseError(
            f"participation must return different device numbers from 0 to {m - 1}, in round {k} it returned "
            f"{devices!r}"
        )
    return chosen.astype(np.int64)


def draw_initial(model: Model[Any], start: Any, seed: int, number: int = 0) -> Floats:
    """Return the first parameters of a run; draws of other numbers differ from the first, whatever the model."""
    rng = generator(seed, "initial", *([number] if number else []))
    w = model.initial(start, rng)
    if number and not model.convex and (w == model.initial(start, generator(seed, "initial"))).all():
        w = w + w.std() * rng.normal(size=w.shape)  # a module that was given has but one start
    return w


def _read_participation(given: Any) -> float | str | tuple[float, ...] | Sampler:
    """Return a share, the word for a share by sizes, probabilities as a tuple, or a function; each looked at."""
    if callable(given):
        return given  # type: ignore[no-any-return]
    if isinstance(given, str):
        check_share("participation by sizes", _share_of(given))
        return given
    if np.ndim(given) == 1:
        for p in given:
            check_share("a device's probability to take part", p)
        return tuple(float(p) for p in given)
    check_share("participation", given)
    return given  # type: ignore[no-any-return]


def _share_of(text: str) -> float:
    """Read ``sizes`` or ``sizes(share)``."""
    call = re.fullmatch(r"\s*sizes\s*(?:\(\s*([^()]*)\))?\s*", text)
    try:
        return float(call[1] or 0.3)  # type: ignore[index]
    except (TypeError, ValueError):
        raise FedfuseError(
            f"participation must be a share above 0 and at most 1, sizes(share) or probabilities, got {text!r}"
        ) from None


def _one_each(probabilities: tuple[float, ...], m: int) -> Floats:
    if len(probabilities) != m:
        raise FedfuseError(f"participation needs one probability for each of {m} devices, got {len(probabilities)}")
    return np.array(probabilities)


def _world(federation: Federation, model: Model[Any], settings: Settings) -> World:
    def initial(start: Any, number: int = 0) -> Floats:
        return draw_initial(model, start, settings.seed, number)

    parts: tuple[Part, ...] = ("train", "validation", "train+validation")
    counts: dict[str, Ints] = {part: federation.rows(part).counts for part in parts}
    return World(federation.m, model, counts, initial, np.dtype(settings.dtype), federation.truth)


def _packed(found: Found | None) -> Arrays:
    if found is None:
        return {}
    lam = np.nan if found.lam is None else found.lam
    settings = np.frombuffer(json.dumps(dict(found.settings)).encode(), np.uint8)
    plain = {"models": found.models, "labels": found.labels, "lam": np.array([lam]), "settings": settings}
    plain["suspects"] = np.asarray(found.suspects, np.int64)
    kept = {f"kept_{name}": array for name, array in found.kept.items()}
    return plain | kept


def _under(prefix: str, arrays: Arrays) -> Arrays:
    return {prefix + name: array for name, array in arrays.items()}


def _within(prefix: str, arrays: Arrays) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _without(prefixes: tuple[str, ...], arrays: Arrays) -> Arrays:
    return {name: array for name, array in arrays.items() if not name.startswith(prefixes)}


def _unpacked(arrays: Arrays) -> Found | None:
    if "before_models" not in arrays:
        return None
    lam = float(arrays["before_lam"][0])
    settings = json.loads(arrays["before_settings"].tobytes())
    prefix = "before_kept_"
    kept = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    known = lam if np.isfinite(lam) else None
    return Found(arrays["before_models"], arrays["before_labels"], known, settings, kept, arrays["before_suspects"])


def _fitting_model(federation: Federation, model: Model[Any] | str | None) -> Model[Any]:
    if isinstance(model, str):
        model = model_called(model)
    model = model or default_model(federation.goal, federation.shape)
    model.check(federation.goal)
    return model.sized(federation.n_features, federation.n_classes, federation.shape)


def _check_plan(method: Method[Any], model: Model[Any]) -> None:
    """Refuse what a network cannot do before anything is trained."""
    if model.convex:
        return
    for part in method.plan_for(model):
        if part.work.solver == "exact":
            raise FedfuseError("a network has no exact solver: give work=Work(steps=…, lr=…, batch=…)")


def _check_noise(method: Method[Any], model: Model[Any], settings: Settings) -> None:
    """Refuse a method that asks devices for more than changes of models, if these are to be protected."""
    protected = (FPFC, methods.FedAvg, methods.FedAsync, methods.PerFedAvg, methods.Local, methods.LGFedAvg)
    plan = method.plan_for(model)
    if settings.epsilon and not all(isinstance(part, protected) for part in plan):
        raise FedfuseError(
            f"epsilon: {method.name} asks devices for more than changes of models ({plan[-1].name}), which noise does "
            "not protect: use fpfc with a lambda and refit=no, or fedavg"
        )


def _attacked(
    fleet: Fleet | None, federation: Federation, model: Model[Any], settings: Settings, place: Engine
) -> Fleet:
    """Return the devices, some of which lie where the settings say so."""
    attack, share, seed = settings.attack, settings.liars, settings.seed
    if attack == "label-flip":
        federation = flipped(federation, draw_liars(federation.m, share, seed))
    fleet = fleet or place.fleet(federation, model, seed, settings.dtype, settings.noise())
    if attack is None:
        return fleet
    how: dict[str, Any] = {"lies": settings.lies, "scope": settings.scope, "shared": model.fused.start}
    return Byzantine(fleet, attack, m=federation.m, share=share, seed=seed, **how)


def _config(run: Run, source: dict[str, Any] | None, place: Engine) -> dict[str, Any]:
    if callable(run.settings.participation):
        raise FedfuseError("a run directory needs a participation share: a function cannot be saved")
    return {
        "version": __version__,
        "dataset": run.dataset,
        "source": source,
        "fingerprint": run.federation.fingerprint,
        "model": run.model.to_config(),
        "method": run.method.to_config(),
        "settings": asdict(run.settings),
        "engine": asdict(place),
    }
