"""The training loop, synchronous and asynchronous.

Draw the active devices, ask the method for one task each, let the engine perform them, check every reply, give the good
ones to the method, record, save, and stop at convergence. A synchronous round waits for all devices that were asked, an
asynchronous one takes the first reply and lets the others go on.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedfuse.core.metrics import metric_for
from fedfuse.core.partitions import adjusted_rand
from fedfuse.core.robust_mean import upper_fence
from fedfuse.data.federation import Federation, Part
from fedfuse.engines.attacks import known_attack
from fedfuse.engines.base import Engine
from fedfuse.errors import FedfuseError, Terminated
from fedfuse.methods.method import FederationInfo, Method, Outcome, Share
from fedfuse.methods.mixins import GathersReplies, WorksAtHome
from fedfuse.models import Model
from fedfuse.pairs.state import Residuals
from fedfuse.protocol.ledger import CommunicationLedger
from fedfuse.protocol.privacy import spent
from fedfuse.protocol.reply_checks import absurd_scores
from fedfuse.protocol.sufficient_statistics import tells_rows
from fedfuse.protocol.tasks import EVALUATION_ROUND, Order, Score, Task, for_device, steps_of
from fedfuse.results.profile import Profile
from fedfuse.results.result import Result, mean_score
from fedfuse.results.run_directory import RunDirectory
from fedfuse.training import checkpoint
from fedfuse.training.evaluation import Evaluator, RemoteEvaluator, pooled_model
from fedfuse.training.settings import Settings, check_mode, takes_single_replies
from fedfuse.training.stages import Stage, stage_totals, stages_of
from fedfuse.training.transport import ReceivedReply, Transport
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Floats, Ints

log = logging.getLogger(__name__)

Row: TypeAlias = dict[str, Any]
RESIDUALS = ("primal", "dual", "moved")
MAX_OPENING_TRIES = 3  # Times that the opening is sent to a device.
MAX_FAILED_ROUNDS = 10  # Rounds in a row with too few replies, after which the run ends.


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
    engine: Engine
    directory: RunDirectory | None = None
    callbacks: Sequence[Callback] = ()
    dataset: str = "arrays"
    class_weights: tuple[float, ...] = ()

    k: int = 0
    place: int = 0  # Of the current stage.
    stage_start: int = 0  # The round in which it began.
    previous: Outcome | None = None  # Of the stage before.
    cut_short: bool = False  # Whether a stage ran out of rounds.
    state: Any = None
    turns: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # Orders of each device.
    failures: int = 0  # Rounds in a row that were given up.
    spent: int = 0  # Of the budget.
    history: list[Row] = field(default_factory=list)
    seconds: float = 0.0
    trouble: dict[str, int] = field(default_factory=dict)  # Of the engines before a resume.
    between_rounds: bool = False  # Only then may the state be saved.

    def __post_init__(self) -> None:
        settings = self.settings
        self.stages = stages_of(self.method, self.model, settings.rounds)
        self.trained = self.federation.weighted(self.class_weights)  # Scores are without the weights of classes.
        self.info = info_of(self.trained, self.model, settings.seed, settings.dtype, settings.share)
        self.metric = metric_for(self.federation.goal, settings.metric)
        check_mode(self.method, settings.mode)
        settings.check_devices(self.info.m)
        self.transport = Transport(self.engine, self.info.m, self.info.d, self.info.dtype)
        self.attack = known_attack(self.engine)
        self.liars: Ints = self.attack.who if self.attack else np.empty(0, np.int64)
        self.honest = np.setdiff1d(np.arange(self.info.m), self.liars)

    @cached_property
    def _evaluator(self) -> Evaluator | RemoteEvaluator:
        if self.federation.here:
            return Evaluator(self.federation, self.model, self.settings.dtype, self.metric)
        return RemoteEvaluator(self.federation, self.transport, self.metric, self.settings)

    @property
    def stage(self) -> Stage:
        """The current stage."""
        return self.stages[self.place]

    @property
    def asynchronous(self) -> bool:
        """Whether the current stage takes replies one at a time."""
        return self.settings.mode == "async" and takes_single_replies(self.stage.method)

    def set_rule(self) -> None:
        """Look up the rule of the current stage, once for all its rounds."""
        self.rule = self.stage.given(self.previous, single_replies=self.asynchronous)

    @property
    def ledger(self) -> CommunicationLedger:
        """What was sent and received."""
        return self.transport.ledger

    def begin(self) -> None:
        """Initialise the state of the current stage, and send what it sends before its first round."""
        self.set_rule()
        self.state = self.rule.init(self.info, self.previous)
        self.turns = np.zeros(self.info.m, np.int64)
        self._open(self.rule.opening(self.state))
        self.between_rounds = True

    def _open(self, tasks: dict[int, Task]) -> None:
        """Send the opening, again to devices that do not answer."""
        answers: dict[int, Floats] = {}
        for _ in range(MAX_OPENING_TRIES):
            missing = {i: task for i, task in tasks.items() if i not in answers}
            answers |= {r.device: r.values for r in self.transport.exchange(self._orders(missing, -1))}
        devices = np.array(sorted(answers), dtype=np.int64)
        self.rule.opened(self.state, devices, [answers[i] for i in sorted(answers)])

    def go(self) -> Result:
        """Train to the end."""
        clock, before = time.perf_counter(), self.seconds
        self._tell("on_start")
        with _signals_wait() as noted:
            while not self.over or self._next_stage():
                self.between_rounds = False
                row = self.round()
                self.seconds = before + time.perf_counter() - clock
                moment = self.seconds if self.engine.time is None else self.engine.time
                self.history.append({**row, "seconds": self.seconds, "time": moment})
                self.between_rounds = True
                self._tell("on_round", self.history[-1])
                if noted:
                    raise KeyboardInterrupt if signal.SIGINT in noted else Terminated(0)
                if self.directory and self.k % self.settings.checkpoint_every == 0:
                    self.save()
        result = self.result()
        self._tell("on_end", result)
        return result

    def round(self) -> Row:
        """Perform one round: of all devices drawn, or asynchronously of the next one that answers."""
        k, method = self.k, self.rule
        phase = method.phase(self.state) or self.stage.name
        active = self._free() if self.asynchronous else self._drawn(k)
        # The round that schedules of step sizes and steps are at: single updates of everybody are one.
        turn = (k - self.stage_start) // (self.info.m if self.asynchronous else 1)
        tasks = method.tasks(self.state, active, turn) if active.size else []
        self.transport.send(self._orders(dict(zip(active.tolist(), tasks, strict=True)), k))
        self.turns[active] += 1
        heard = self._replies(len(active))
        residuals = self._take_in(heard)
        if news := method.broadcast(self.state):
            self.transport.exchange(self._orders(news, k))
        self.k = k + 1
        active_now = len(heard) if self.asynchronous else len(active)
        row: Row = {"round": k, "stage": phase, "active": active_now, "replies": len(heard)}
        row["staleness"] = max((h.staleness for h in heard), default=0)
        row["cost_floats"] = self.ledger.floats
        row |= asdict(residuals) if residuals else dict.fromkeys(RESIDUALS, np.nan)
        row |= method.describe(self.state)
        if self.k % self.settings.evaluate_every == 0:
            row |= self._evaluation()
        return row

    def _drawn(self, k: int) -> Ints:
        """Return the devices of a synchronous round: those drawn that are not at work on an older order."""
        drawn = self.settings.active(k, self.info.m, self.info.counts["train"])
        chosen = self.rule.devices(self.state, drawn)
        return chosen[~np.isin(chosen, list(self.engine.busy))] if self.engine.busy else chosen

    def _free(self) -> Ints:
        """Return the devices that are asked next in asynchronous training: without an order, fewest turns first."""
        free = np.ones(self.info.m, np.bool_)
        free[[*self.transport.open, *self.engine.busy]] = False
        free &= self.turns - self.turns.min() < self.settings.ahead  # Fast devices must not outvote the others.
        room = (self.settings.at_once or self.info.m) - len(self.transport.open)
        first = np.argsort(self.turns, kind="stable")
        return first[free[first]][: max(0, room)]

    def _orders(self, tasks: dict[int, Task], k: int) -> list[Order]:
        """Return the orders of a round, each with the work of its own device, within what is left of the budget."""
        left = np.inf if self.settings.budget is None else self.settings.budget - self.spent
        seed = self.settings.seed
        orders = [Order(i, k, for_device(task, seed, k, i, left)) for i, task in tasks.items()]
        self.spent += max((steps_of(order.task) for order in orders), default=0) if k >= 0 else 0
        return orders

    def _replies(self, asked: int) -> list[ReceivedReply]:
        """Wait for the replies of a round, and return those that may be used, by device."""
        settings, late = self.settings, self.settings.late == "use" and takes_single_replies(self.rule)
        if self.asynchronous:
            heard = self.transport.gather(1, self.transport.left(settings.deadline), late=late)
            if not heard:
                self.transport.give_up(settings.deadline)
        else:
            heard = self.transport.gather(max(asked, 1), settings.deadline, late=late)
            self.transport.close()
        heard.sort(key=lambda h: h.reply.device)
        return heard if self.federation.here else self._bounded(heard)

    def _bounded(self, heard: list[ReceivedReply]) -> list[ReceivedReply]:
        """Bound the scores that devices send of themselves: a false one must not choose lambda for all."""
        scored = [h for h in heard if isinstance(h.task, Score) or getattr(h.task, "score", None)]
        sent = np.array([h.reply.values[-1] for h in scored], np.float64)
        most = float(upper_fence(sent[sent > 0])[0]) if self.model.goal == "regression" else 1.0
        for h in scored:
            h.reply.values[-1] = min(h.reply.values[-1], most)
        return heard

    def _take_in(self, heard: list[ReceivedReply]) -> Residuals | None:
        """Give replies to the method, unless they are too few."""
        if len(heard) < self.settings.minimum and not isinstance(self.rule, GathersReplies):
            self.failures += 1
            if self.failures == MAX_FAILED_ROUNDS:
                raise FedfuseError(
                    f"in {MAX_FAILED_ROUNDS} rounds in a row fewer than minimum={self.settings.minimum} devices "
                    "answered: lower it, raise participation, or give them more time (deadline)"
                )
            self.transport.drop(heard, "too few in the round")
            return None
        self.failures = 0
        self.transport.use(heard)
        self.transport.updates += bool(heard)
        devices = np.array([h.reply.device for h in heard], dtype=np.int64)
        return self.rule.update(self.state, devices, [h.reply.values for h in heard])

    def _next_stage(self) -> bool:
        """Start the next stage from the outcome of this one; False if this was the last, or no rounds are left."""
        if self.place + 1 == len(self.stages) or self.k >= self.settings.rounds:
            return False
        if self.asynchronous or self.engine.busy:
            self.transport.drain()
        self.cut_short |= not self.settled
        self.previous = self.rule.outcome(self.state)
        self.place, self.stage_start = self.place + 1, self.k
        self.begin()
        return not self.over

    @property
    def over(self) -> bool:
        """Whether the current stage is over."""
        limit = self.stage.max_rounds or self.settings.rounds
        rounds_spent = self.k >= self.settings.rounds or self.k - self.stage_start >= limit
        steps_spent = self.settings.budget is not None and self.spent >= self.settings.budget
        steps_spent = steps_spent and not isinstance(self.rule, GathersReplies)
        return self.rule.finished(self.state) or rounds_spent or steps_spent or self.converged

    @property
    def converged(self) -> bool:
        """Whether the last rounds, enough for two turns of most devices, moved nothing by more than tol.

        A method that gathers replies says itself when it has come to its end.
        """
        if isinstance(self.rule, GathersReplies):
            return False
        turns = 0
        for row in reversed(self.history[self.stage_start :]):
            if not (self.settings.tol and all(row[r] <= self.settings.tol for r in RESIDUALS)):
                return False
            turns += row["active"]
            if turns >= 2 * self.info.m:
                return True
        return False

    @property
    def settled(self) -> bool:
        """Whether all stages so far converged within their rounds."""
        return not self.cut_short and (self.converged or self.rule.settled(self.state))

    def save(self) -> None:
        """Write a checkpoint, from which `resume` goes on to the same result."""
        if self.directory and self.between_rounds:
            checkpoint.save(self, self.directory)

    def result(self) -> Result:
        """Return what the run has found so far."""
        found = self._in_use(self.rule.outcome(self.state))
        scores = self._scores(found)
        alternatives, compared = self._alternatives(found)
        values = {part: s if s.ndim == 1 else self.metric.by_device(s) for part, s in scores.items()}
        suspects = self._suspects(found, scores)
        return Result(
            profile=Profile.of(self.federation, self.metric.name, self.class_weights),
            model=self.model,
            method=self.method.to_config(),
            dataset=self.dataset,
            seed=self.settings.seed,
            rounds=self.k,
            stages=stage_totals(self.history, self.ledger.floats),
            converged=self.settled,
            lam=found.lam,
            chosen=dict(self.previous.settings) if self.previous else {},
            labels=found.labels,
            models=np.asarray(found.models),
            scores=values,
            sums={part: s for part, s in scores.items() if s.ndim > 1},
            alternatives=alternatives,
            compared=compared,
            verdict=found.verdict,
            stability=found.stability,
            confidence=self._confidence(found),
            kept=dict(found.kept),
            history=pd.DataFrame(self.history),
            cost_floats=self.ledger.floats,
            refused=dict(self.ledger.refused),
            orders=self.transport.outcome,
            trouble=self.all_trouble(),
            privacy=self._privacy(),
            seconds=self.seconds,
            attack=self.attack.described() if self.attack else None,
            suspects=np.array(sorted(suspects), np.int64),
            unheard=np.setdiff1d(self.transport.unheard, found.suspects).astype(np.int64),
            left_out={self.federation.names[i]: why for i, why in sorted(suspects.items())},
            capped=self.capped(found.kept),
        )

    def capped(self, kept: Mapping[str, Any] = MappingProxyType({})) -> dict[str, int]:
        """Row counts of devices that claim more than others make credible, as they are used."""
        used = kept.get("counted", self.info.counts["train+validation"])
        claimed = self.trained.totals("train") + self.trained.totals("validation")
        rows = zip(self.federation.names, claimed, used, strict=True)
        return {name: int(counted) for name, said, counted in rows if counted < said}

    def _confidence(self, found: Outcome) -> Floats | None:
        """Return how sure every device's group is: 0 for devices that seldom answered."""
        seldom = self.transport.seldom_heard
        if not seldom.size:
            return found.confidence
        confidence = np.full(self.info.m, np.nan) if found.confidence is None else found.confidence.copy()
        confidence[seldom] = 0.0
        return confidence

    def _suspects(self, found: Outcome, scores: dict[str, Floats]) -> dict[int, str]:
        """Return the devices that seem to lie, and why."""
        reasons = dict.fromkeys(self.ledger.often_refused(self.info.m), "its replies had to be refused, time and again")
        if not self.federation.here:  # Scores are what devices say of themselves.
            part: Part
            for part in ("validation", "test"):
                values, false, score = scores[part], np.empty(0, np.int64), scores[part]
                if score.ndim > 1:
                    rows, total = self.federation.rows(part).counts, self.federation.totals(part)
                    values = self.metric.by_device(score)
                    false = np.flatnonzero(self.metric.impossible(score, rows if (rows == total).all() else np.inf))
                absurd = absurd_scores(values, self.metric.greater_is_better)
                reasons |= dict.fromkeys(absurd, f"its {part} score is absurd beside those of others")
                reasons |= dict.fromkeys(false.tolist(), f"its sums for the {part} {self.metric.label} cannot be")
        far = "it stays far from every group and never converges"
        return reasons | {int(i): found.reasons.get(str(i), far) for i in np.asarray(found.suspects, np.int64)}

    def _privacy(self) -> dict[str, float] | None:
        """Return the largest share of its privacy budget that a device has spent."""
        noise = self.settings.noise()
        if noise is None:
            return None
        uploads = int(self.turns.max(initial=0))
        budget = {"epsilon": spent(noise, self.settings.delta, uploads), "delta": self.settings.delta}
        return budget | {"clip": noise.clip, "noise": noise.std, "uploads": uploads}

    def in_use(self) -> Outcome:
        """Return the models that devices have now, and their groups."""
        return self._in_use(self.rule.current(self.state))

    def _in_use(self, found: Outcome) -> Outcome:
        """Return what devices use: where the method has them work at home, what they make of their model there."""
        if not isinstance(self.rule, WorksAtHome) or not (tasks := self.rule.at_home(self.state)):
            return found
        own = [for_device(task, self.settings.seed, EVALUATION_ROUND, i) for i, task in enumerate(tasks)]
        return self.rule.in_use(self.state, found, self.transport.look(own, list(found.models)))

    def _scores(self, found: Outcome) -> dict[str, Floats]:
        """Return every device's score, or sums, on each held-out part; of models that saw validation rows, none."""
        unseen = None if "validation" in self.rule.rows else found.models
        validated = unseen if found.validated is None else found.validated
        score, unknown = self._evaluator.score, np.full(self.info.m, np.nan)
        return {
            "validation": unknown if validated is None else score("validation", validated),
            "test": score("test", found.in_use),
        }

    def _alternatives(self, found: Outcome) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Return models that devices might use in place of their group's, and how each kind does on test rows.

        One model for all is fitted here, from rows, where they are in this process: it is only to be compared with.
        """
        alternatives = dict(found.alternatives)
        if not alternatives:
            return {}, {}
        if found.labels.max(initial=0) == 0:
            alternatives["pooled"] = np.asarray(found.models)
        elif self.federation.here and self.model.convex:
            pooled = pooled_model(self.trained, self.model, self.info.dtype)
            alternatives["pooled"] = np.repeat(pooled, self.info.m, axis=0)
        models = {"groups": found.models, **alternatives}
        return alternatives, {name: self._evaluator.score("test", w) for name, w in models.items()}

    def all_trouble(self) -> dict[str, int]:
        """Return what went wrong in the engine, before a resume too."""
        now = self.engine.trouble
        return {what: self.trouble.get(what, 0) + now.get(what, 0) for what in {**self.trouble, **now}}

    def _evaluation(self) -> Row:
        found = self.in_use()
        scores = self._scores(found)
        means = {part: mean_score(score[self.honest], self.metric.name) for part, score in scores.items()}
        truth = self.federation.truth
        ari = adjusted_rand(None if truth is None else truth[self.honest], found.labels[self.honest])
        return {"n_clusters": int(found.labels.max()) + 1, "ari": ari, **means}

    def _tell(self, hook: str, *args: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *args)


@contextmanager
def _signals_wait() -> Iterator[list[int]]:
    """Note Ctrl-C and SIGTERM for the end of the round, so that what is saved is whole; a second one does not wait."""
    noted = list[int]()

    def note(number: int, frame: Any) -> None:
        noted.append(number)
        if len(noted) > 1:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated(128 + number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        if before[signal.SIGINT] is not signal.default_int_handler:
            del before[signal.SIGINT]  # Another library handles Ctrl-C.
        if before[signal.SIGTERM] in (signal.SIG_IGN, None):
            del before[signal.SIGTERM]
    for number in before:
        signal.signal(number, note)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def info_of(
    federation: Federation, model: Model[Any], seed: int, dtype: Any, share: Share = "moments"
) -> FederationInfo:
    """Return what the server knows of a federation."""

    def initial(start: Any, number: int = 0) -> Floats:
        """Return the first parameters; draws of other numbers differ from the first, whatever the model."""
        rng = generator(seed, "initial", *([number] if number else []))
        w = model.initial(start, rng)
        if number and not model.convex and (w == model.initial(start, generator(seed, "initial"))).all():
            w = w + w.std() * rng.normal(size=w.shape)  # A module that was given has only one start.
        return w

    parts: tuple[Part, ...] = ("train", "validation")
    counts: dict[str, npt.NDArray[Any]] = {part: federation.totals(part) for part in parts}
    if not federation.here:  # Rows that nobody here has seen weigh no more than others' make credible.
        share = "models" if tells_rows(federation) else share
        counts = {part: np.minimum(n, upper_fence(n[n > 0])).astype(n.dtype) for part, n in counts.items()}
    counts["train+validation"] = counts["train"] + counts["validation"]
    known = federation.m, model, counts, initial, np.dtype(dtype), federation.truth, seed, share
    return FederationInfo(*known, claimed=not federation.here)
