"""Refit: train one model for each group on all rows of its members; and the oracle, which is told the groups.

The paper stops at FPFC's own estimates, which are biased by the penalty and slow to converge once the groups are
right. Here each group minimises its pooled loss by L-BFGS on the server (`pooled_fit`), in these steps:

    sufficient statistics  devices send those of their rows (linear regression with a few dozen columns only)
    column moments         devices send means and squares of their columns
    column scales          devices rescale columns to mean 0 and standard deviation 1 over the federation
    group fits             L-BFGS on training rows, for as long as validation rows say
    lone fits              a device without companions fits its own rows
    final fits             L-BFGS on training and validation rows: groups that had converged go on from there, the
                           others go the same way once more, and as far
    tell models            devices that have seen no model yet are told theirs

Sufficient statistics are fewer floats than the gradients would be, and say as much: the server then computes what
devices would reply in all steps but the last (`simulated_replies`).

One device that lies could spoil the model of its whole group. So replies that no honest device can send
(`protocol.reply_checks`) are not used: such a device is alone from then on, and its group begins again without it.
Row counts that devices elsewhere claim count in full only if the others' losses do not object: see `RefitState.rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import scipy

from fedfuse.core.robust_mean import Robust, group_medians, pooled_moments, upper_fence
from fedfuse.data.federation import MAX_REMOTE_ROWS, Part
from fedfuse.errors import FedfuseError
from fedfuse.grouping.pooled_fit import PooledFit, PooledReplies, pool, regrouped
from fedfuse.grouping.simulated_replies import SimulatedReplies, n_columns, sends_statistics
from fedfuse.grouping.steps import END, Step, StepMethod, StepState, by_name, found_labels, true_labels
from fedfuse.methods.method import FederationInfo, Outcome
from fedfuse.protocol import tasks
from fedfuse.protocol.reply_checks import apart, monotone, possible_moments, possible_statistics, supported
from fedfuse.protocol.tasks import SUMMARISED, Task
from fedfuse.utils.typing import Bools, Floats, Ints

# Ridges that a device without companions chooses from.
LOCAL_RIDGES = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
# Ridge of a group's model without one of its devices.
SOLVE_RIDGE = 1e-3
# A column whose standard deviation is at most this share of its mean is constant but for rounding.
CONSTANT_COLUMN_RATIO = 1e-9
# Smallest group in which a majority can be believed: of two devices nobody knows which lies.
MIN_JUDGES = 3
# A member harms its group if the others' loss rises by more than this ratio (5 % in RMSE), and by more than noise
# does at this rate.
MAX_HARM_RATIO, FALSE_ALARM_RATE = 0.1, 1e-4
# A claimed number of rows counts up to this ratio to the median of the group, and in full if the others' losses rise no
# more than by noise, which exceeds the limit at this rate. Honest devices of any sizes stay far below.
MAX_CLAIM_RATIO, OBJECTION_RATE = 1.5, 0.5
# Log-losses below this are small, however many times as large as others they are.
MIN_CLASS_LOSS = 0.1


@dataclass
class RefitState(StepState):
    """Groups in training, in columns that are rescaled by ``(column - shift) / scale``."""

    shift: Floats = field(init=False)
    scale: Floats = field(init=False)
    statistics: Floats = field(init=False)  # one row per device, nan if not sent; without columns if not asked for
    last_gradients: Floats = field(init=False)  # of every device its last point, gradient and loss; nan if unknown
    fit: PooledFit = field(init=False)
    reference: Floats = field(init=False)  # loss of every device where it was least for most of its group,
    least: Floats = field(init=False)  # and the median of these, by group
    believed: Bools = field(init=False)  # whose row counts hold, though the others of the group have far fewer
    opening: Floats = field(init=False)  # loss of every device before its group was fitted by these counts

    def __post_init__(self, previous: Outcome | None) -> None:
        super().__post_init__(previous)
        m, d, columns = self.info.m, self.info.d, n_columns(self.info)
        self.shift, self.scale = np.zeros(columns), np.ones(columns)
        size = tasks.SendSufficientStatistics(columns).floats_up(d) if sends_statistics(self.info) else 0
        self.statistics = np.full((m, size), np.nan)
        self.last_gradients = np.full((m, 2 * d + 1), np.nan)
        self.believed, self.opening = np.full(m, not self.info.claimed), np.full(m, np.nan)
        self.fit = PooledFit(self.models, np.zeros(len(self.models), np.bool_))
        self.set_out()

    def set_out(self) -> None:
        """Forget the losses of another start."""
        self.reference, self.least = np.full(self.info.m, np.nan), np.full(len(self.models), np.inf)

    @property
    def simulable(self) -> Bools | None:
        return np.asarray(~np.isnan(self.statistics).any(axis=1)) if self.statistics.shape[1] else None

    def simulated(self) -> SimulatedReplies:
        simulated = SimulatedReplies(np.nan_to_num(self.statistics), self.info.counts)
        simulated.rescale(self.shift, self.scale)
        return simulated

    def device_models(self, models: Floats) -> Floats:
        unscaled = [self.info.model.unscaled(w, self.shift, self.scale) for w in models]
        return np.stack(unscaled)[self.labels]

    def scales(self) -> dict[str, Floats]:
        """Return the scales of columns, for what comes after the groups, and whose rows count for fewer."""
        return {"shift": self.shift, "scale": self.scale, **self.counted()}

    def counted(self) -> dict[str, Floats]:
        """Return for how many rows devices count in the end, where others have objected to what they claim."""
        doubted = self.fit.converged[self.labels] & ~self.believed & (self.validated_models is not None)
        shares = np.where(doubted, self.credible(), 1.0)
        return {"counted": shares * self.info.counts["train+validation"]} if doubted.any() else {}

    def models_without(self) -> dict[str, Floats]:
        """Return for every device its group's model without it, on the scales of columns, where statistics tell it."""
        if self.simulable is None:
            return {}
        moments = self.simulated().part("train+validation", np.arange(self.info.m)).moments
        moments[~self.simulable] = 0
        rest = np.zeros((len(self.models), *moments.shape[1:]))
        np.add.at(rest, self.labels, moments)
        left = rest[self.labels] - moments
        H = left[:, :-1, :-1] + SOLVE_RIDGE * np.maximum(left[:, -2, -2], 1)[:, None, None] * np.eye(self.info.d)
        return {"without": np.linalg.solve(H, left[:, :-1, -1:])[:, :, 0]}

    def recovery(self) -> list[dict[int, Task]]:
        return [] if self.simulable is not None else self.rescaled()

    def rescaled(self) -> list[dict[int, Task]]:
        """Return what devices were told of the scales of columns."""
        if self.step in (SendStatistics.name, ColumnMoments.name):
            return []
        told = self.answers if self.step == RescaleColumns.name else range(self.info.m)
        return [dict.fromkeys(told, tasks.Rescale(self.shift, self.scale))]

    def in_line(self, device: int, at: Floats, gradient: Floats, loss: float) -> bool:
        """Whether a gradient (and loss, if known) goes with the device's last one, and keep it for the next time."""
        d, last = self.info.d, self.last_gradients[device].copy()
        self.last_gradients[device] = np.concatenate([at, gradient, [loss]])
        w, g, f = last[:d], last[d:-1], float(last[-1])
        if np.isnan(g).any():
            return True
        if np.isnan(f) or np.isnan(loss):
            return monotone(w, g, at, gradient)
        return supported(w, g, f, at, gradient, loss)

    def rows(self, part: Part) -> Floats:
        """Return the rows for which devices count in their groups: claimed ones about as many as others have."""
        rows: Floats = self.info.counts[part]
        return rows if self.believed.all() else np.where(self.believed, rows, rows * self.credible())

    def credible(self) -> Floats:
        """Return the share of every device's rows that its group's median makes credible."""
        rows = self.info.counts["train+validation"]
        usual = group_medians(rows.astype(np.float64), self.labels, len(self.models))[self.labels]
        return np.asarray(np.minimum(1.0, MAX_CLAIM_RATIO * usual / np.maximum(rows, 1)))

    def doubt(self, group: int, losses: Floats, rows: Floats) -> bool:
        """Train a group again by credible row counts alone, where the others' losses object to claimed ones.

        These have risen since training began, at a model by credible counts; a likelihood ratio says if by noise.
        """
        if not self.info.claimed:
            return False
        inside = (self.labels == group) & np.isfinite(losses - self.opening)
        judges = inside & (self.credible() == 1)
        if self.validated_models is None or not self.believed[inside].any() or judges.sum() in (0, inside.sum()):
            return False
        rise, before = (float(rows[judges] @ each[judges]) for each in (losses - self.opening, self.opening))
        unit = max(before / rows[judges].sum(), 1e-300) if self.info.model.goal == "regression" else 0.5
        if rise <= unit * scipy.special.chdtri(self.info.free, OBJECTION_RATE):
            return False
        self.believed[self.labels == group] = False
        self.fit.restart(group, self.validated_models)
        self.reference[self.labels == group], self.least[group] = np.nan, np.inf
        return True

    def expel_harmful(self, ended: Bools, part: Part) -> None:
        """Suspect who harms its group, where training has just ended: by its loss, or because most others lose by it.

        Where most members were better off on the way, somebody has drawn the model away from them: whose gradient is
        the longest, as it stands against all others'. By noise alone, the likelihood ratio of both models is below a
        quantile of chi-squared.
        """
        d, regression, rows = self.info.d, self.info.model.goal == "regression", self.rows(part)
        losses, known = np.full(self.info.m, np.nan), np.array(list(self.answers), np.int64)
        losses[known] = [answer[d] for answer in self.answers.values()]
        middle = group_medians(losses[known], self.labels[known], len(self.least))
        best = known[(middle < self.least)[self.labels[known]]]
        self.opening = np.where(np.isnan(self.opening), losses, self.opening)
        self.reference[best], self.least = losses[best], np.minimum(self.least, middle)
        for c in np.flatnonzero(ended):
            inside = np.flatnonzero((self.labels == c) & np.isfinite(losses - self.reference))
            if self.doubt(int(c), losses, rows) or len(inside) < MIN_JUDGES:
                continue
            now, unit = losses[inside], self.reference[inside]
            first = int(np.argmax([rows[i] * np.linalg.norm(self.answers[int(i)][:d]) for i in inside]))
            sizes = np.sqrt(now) if regression else np.maximum(now, MIN_CLASS_LOSS)
            self.expel(inside[sizes > upper_fence(sizes)], "its loss is absurd beside those of its group")
            ratios = (now - unit) / np.maximum(unit, 1e-300 if regression else MIN_CLASS_LOSS)
            fits = rows[inside] * (ratios if regression else 2 * (now - unit))
            harm, excess = (float(np.median(np.delete(each, first))) for each in (ratios, fits))
            by_noise = scipy.special.chdtri(d, FALSE_ALARM_RATE) / (len(inside) - 1)
            if harm > MAX_HARM_RATIO and excess > by_noise:
                words = f"it draws the model of its group away from the others, whose loss rises by {harm:.0%}"
                self.expel(inside[[first]], words)

    def part_with_suspects(self) -> bool:
        """Take suspects out of their groups; False if there is none to take out."""
        old, new = self.labels, apart(self.labels, self.suspects)
        if (new == old).all():
            return False
        stay, n = self.trusted, int(new.max()) + 1
        self.labels, self.models = new, regrouped(self.models, old[stay], new[stay], n)
        if self.validated_models is not None:
            self.validated_models = regrouped(self.validated_models, old[stay], new[stay], n)
        self.fit.regroup(old[stay], new[stay], n)
        return True


Transition = Callable[[Any], str]


def begin_fit(state: RefitState, start: Floats) -> str:
    """Train all groups with trusted members from here."""
    state.fit = PooledFit(start, np.arange(len(start)) < state.n_trusted_groups)
    state.believed[:] = not state.info.claimed
    state.set_out()
    return Fit.name


def fit_from_zero(state: RefitState) -> str:
    """Train all groups with trusted members from zero."""
    return begin_fit(state, np.zeros_like(state.models))


def begin_final_fit(state: RefitState) -> str:
    """Let validation rows join."""
    alone = np.bincount(state.labels) == 1
    state.validated_models = state.models.copy()
    state.believed |= state.fit.converged[state.labels]  # They begin at models by credible counts.
    state.opening[:] = np.nan
    state.fit.resume(state.models, ~alone)
    state.last_gradients[:] = np.nan  # Other rows have another loss.
    state.set_out()
    return FitAlone.name if alone.any() else FinalFit.name


def after_final_fit(state: RefitState) -> str:
    """Return the last step."""
    return END if state.simulable is None else TellModels.name


@dataclass(frozen=True, repr=False)
class SendStatistics(Step[RefitState]):
    """Devices send sufficient statistics of their rows."""

    name = "sufficient statistics"
    on_devices = with_statistics = True
    robust: Robust

    def ask(self, state: RefitState, devices: Ints) -> list[Task]:
        return [tasks.SendSufficientStatistics(n_columns(state.info))] * len(devices)

    def possible(self, state: RefitState, device: int, answer: Floats) -> bool:
        rows = [state.info.counts[part] for part in SUMMARISED]
        # Sums of weights do not say how many rows there are.
        return possible_statistics(answer, [int(n[device]) if n.dtype.kind == "i" else MAX_REMOTE_ROWS for n in rows])

    def skip(self, state: RefitState) -> Bools:
        return np.full(state.info.m, state.simulable is None)

    def take(self, state: RefitState) -> str:
        state.statistics = state.filled(state.statistics)
        known = np.flatnonzero(np.isfinite(state.statistics[:, -1:]).any(axis=1))
        if self.robust != "none" and len(known) >= MIN_JUDGES:
            lengths = state.simulated().part("train+validation", known).lengths
            wrong = known[lengths > upper_fence(lengths)]
            state.expel(wrong, "its columns are absurdly large beside those of others")
            state.statistics[wrong] = np.nan
        return ColumnMoments.name


@dataclass(frozen=True, repr=False)
class ColumnMoments(Step[RefitState]):
    """Devices send means and squares of their columns."""

    name = "column moments"
    robust: Robust

    def ask(self, state: RefitState, devices: Ints) -> list[Task]:
        return [tasks.SendMoments(len(state.shift))] * len(devices)

    def possible(self, state: RefitState, device: int, answer: Floats) -> bool:
        return possible_moments(answer)

    def take(self, state: RefitState) -> str:
        who = list(state.answers)
        if not who:
            raise FedfuseError(
                "no device has sent usable moments of its columns, though each was asked many times; values "
                "whose squares overflow a double (1e75 and more) need other units"
            )
        weights = state.info.counts["train"][who]
        answers = np.array([state.answers[i] for i in who])
        if self.robust == "none":
            first, second = np.split(np.average(answers, axis=0, weights=weights), 2)
        else:
            first, second = pooled_moments(answers, weights)
        deviation = np.sqrt(np.maximum(second - first**2, 0))
        constant = deviation <= CONSTANT_COLUMN_RATIO * np.abs(first)
        state.shift, state.scale = first, np.where(constant, 1.0, deviation)
        return RescaleColumns.name


@dataclass(frozen=True, repr=False)
class RescaleColumns(Step[RefitState]):
    """Devices rescale their columns, one scale for all."""

    name = "column scales"
    for_all = True
    then: Transition

    def ask(self, state: RefitState, devices: Ints) -> list[Task]:
        return [tasks.Rescale(state.shift, state.scale)] * len(devices)

    def take(self, state: RefitState) -> str:
        return self.then(state)


@dataclass(frozen=True, repr=False)
class _GradientStep(Step[RefitState]):
    """Devices send gradients and losses at the point that L-BFGS proposes for their group."""

    robust: Robust
    rows: ClassVar[Part]
    also: ClassVar[tuple[Part, ...]]

    def skip(self, state: RefitState) -> Bools:
        return ~state.fit.training[state.labels]

    def ask(self, state: RefitState, devices: Ints) -> list[Task]:
        return [tasks.Gradient(w, self.rows, also=self.also) for w in self._points(state, devices)]

    def possible(self, state: RefitState, device: int, answer: Floats) -> bool:
        at, d = self._points(state, np.array([device]))[0], state.info.d
        return bool((answer[d:] >= 0).all()) and state.in_line(device, at, answer[:d], float(answer[d]))

    def _points(self, state: RefitState, devices: Ints) -> Floats:
        return state.fit.optimiser.trial[state.labels[devices]].astype(state.info.dtype)

    def _pooled(self, state: RefitState) -> PooledReplies:
        d, who = state.info.d, np.array(list(state.answers), np.int64)
        values = np.reshape([state.answers[i] for i in state.answers], (-1, d + len(self.also)))
        rows, validation = (state.rows(part)[who] for part in (self.rows, "validation"))
        return pool(values, state.labels[who], len(state.fit.start), d, rows, validation, self.robust)

    def _harmed(self, state: RefitState, before: Bools) -> bool:
        """Whether groups that were in training before have to begin again without some member."""
        if self.robust != "none":
            state.expel_harmful(before & ~state.fit.training, self.rows)
        return state.part_with_suspects()


@dataclass(frozen=True, repr=False)
class Fit(_GradientStep):
    """L-BFGS on training rows, for as long as validation rows say."""

    name = "group fits"
    rows = "train"
    also = ("train", "validation")
    then: Transition

    def take(self, state: RefitState) -> str:
        if state.part_with_suspects():
            return begin_fit(state, state.fit.start)
        fit, trial, replies = state.fit, state.fit.optimiser.trial.copy(), self._pooled(state)
        before = fit.training
        validation_rows = np.bincount(state.labels, state.rows("validation"), len(trial))
        good = fit.watch(replies, fit.margin(replies.loss, validation_rows, state.info.model.goal))
        state.models[good] = trial[good]
        if self._harmed(state, before):
            return begin_fit(state, state.fit.start)
        return self.name if fit.training.any() else self.then(state)


class FitAlone(Step[RefitState]):
    """Devices without companions fit their own rows."""

    name = "lone fits"
    for_all = True

    def ask(self, state: RefitState, devices: Ints) -> list[Task]:
        return [tasks.FitLocally(LOCAL_RIDGES)] * len(devices)

    def skip(self, state: RefitState) -> Bools:
        return np.asarray(np.bincount(state.labels)[state.labels] > 1)

    def take(self, state: RefitState) -> str:
        for i, answer in state.answers.items():
            state.models[state.labels[i]] = answer
        return FinalFit.name if state.fit.training.any() else after_final_fit(state)


class FinalFit(_GradientStep):
    """L-BFGS on training and validation rows together."""

    name = "final fits"
    rows = "train+validation"
    also = ("train+validation",)

    def take(self, state: RefitState) -> str:
        if state.part_with_suspects():
            return self._again(state)
        trial, before = state.fit.optimiser.trial.copy(), state.fit.training
        stepped = state.fit.follow(self._pooled(state))
        state.models[stepped] = trial[stepped]
        if self._harmed(state, before):
            return self._again(state)
        return self.name if state.fit.training.any() else after_final_fit(state)

    def _again(self, state: RefitState) -> str:
        assert state.validated_models is not None
        state.models = state.validated_models
        return begin_final_fit(state)


class TellModels(Step[RefitState]):
    """Devices that have seen no model yet are told theirs."""

    name = "tell models"
    for_all = True
    on_devices = with_statistics = True

    def ask(self, state: RefitState, devices: Ints) -> list[Task]:
        models, kind = state.device_models(state.models)[devices], state.info.dtype
        largest = np.abs(models).max(initial=0)
        if largest > np.finfo(kind).max:
            raise FedfuseError(
                f"parameters reach {largest:.0e}, too large for {kind}: fit with dtype=float64 (--set dtype=float64), "
                "or use other units"
            )
        return [tasks.Install(w) for w in models.astype(kind)]

    def take(self, state: RefitState) -> str:
        return END


def refit_steps(
    robust: Robust, after_rescale: Transition = fit_from_zero, after_fit: Transition = begin_final_fit
) -> tuple[Step[Any], ...]:
    """Return the steps of a refit; others may come between rescaling and fitting, and before the final fit."""
    scaling = (SendStatistics(robust), ColumnMoments(robust), RescaleColumns(after_rescale))
    return (*scaling, Fit(robust, after_fit), FitAlone(), FinalFit(robust), TellModels())


@dataclass(frozen=True)
class Refit(StepMethod[RefitState]):
    """Train one model for each group that the stage before has found."""

    name: ClassVar[str] = "refit"

    def steps(self) -> dict[str, Step[Any]]:
        return by_name(*refit_steps(self.robust))

    def outcome(self, state: RefitState) -> Outcome:
        return super().outcome(state)._replace(kept=state.counted())

    def first_state(self, info: FederationInfo, previous: Outcome | None) -> RefitState:
        return RefitState(info, found_labels(previous), previous)


@dataclass(frozen=True)
class Oracle(Refit):
    """Pooled training within the true groups, where these are known: the reference for every method."""

    name: ClassVar[str] = "oracle"

    def first_state(self, info: FederationInfo, previous: Outcome | None) -> RefitState:
        return RefitState(info, true_labels(info), previous)
