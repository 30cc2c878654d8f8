"""Personal models, and the verdict: groups, models of devices' own, each device alone, or one model for all.

Real sites differ continuously, so that a device's own rows often know better than its group. After the refit

    devices: judge at home, by leaving out each row in turn, their group's model, models drawn to it, and models of
             their own rows alone; the groups' models stand if none of these is better
    all:     empirical Bayes: devices send the model that their rows draw from a common centre, and how sure it is; the
             server learns the centre, how much devices differ in each column, and the noise, in a few rounds
    devices: judge models drawn to the common centre and to their groups, with these variances; then averages of the
             best of these and of that of their own rows alone (stacking)
    server:  the verdict: what has the least loss, and the groups' unless another is better beyond chance

A device is put into the group that suits its other rows when a row is left out, and the group's model is taken without
the device: else groups, which were chosen by the same rows, look better than they are. So for linear and softmax
regression with up to `MAX_PARAMETERS`; the mathematics is in `models.personal_fit`.

For larger models and for networks one exchange decides: devices judge models drawn to their group's with a few
variances, and large models of their own rows alone. Of networks these are last layers (`models.head_fit`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np

from fedfuse.core.partitions import canonical, group_means
from fedfuse.core.robust_mean import Robust
from fedfuse.grouping.refit import RescaleColumns
from fedfuse.grouping.simulated_replies import n_columns
from fedfuse.grouping.steps import END, Step, StepMethod, StepState, by_name
from fedfuse.methods.method import FederationInfo, Outcome
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, RunSummary, WorksAtHome
from fedfuse.models.model import Model
from fedfuse.models.personal_fit import as_tables
from fedfuse.protocol import tasks
from fedfuse.protocol.tasks import Task
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Bools, Floats, Ints

# Devices that judge, and that the prior is learned of; of more, a sample.
MAX_JUDGES = 500
# Beyond this many parameters a device's Hessian matrix is too dear.
MAX_PARAMETERS = 256
# Ridges on a device's own rows that are tried, for each row and in columns that it standardises for itself.
ALONE_STRENGTHS = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
# Variances around groups' models that are tried first, and later as factors of what was learned.
FIRST_VARIANCES = (1.0, 0.1, 0.01)
GROUP_FACTORS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
COMMON_FACTORS = (3.0, 1.0, 0.3)
# By how much models of devices' own must beat those of sure groups before more is asked of devices.
MIN_GAIN_RATIO = 0.005
# Rounds of empirical Bayes, and the change of variances (as a ratio) and of the centre at which it ends.
MAX_PRIOR_ROUNDS, VARIANCE_TOLERANCE, CENTRE_TOLERANCE = 10, 0.1, 0.01
MIN_COLUMN_VARIANCE, MAX_COLUMN_VARIANCE = 1e-6, 1e3
# Models of devices' own must beat those of groups in a paired t test over devices, one-sided: of groups that are sure
# (above this stability) at the first level, of others at the second.
SURE_STABILITY = 0.9
SURE_GROUPS_LEVEL, UNSURE_GROUPS_LEVEL = 0.05, 0.3
# Groups whose models are judged by a device, the nearest to its own.
MAX_JUDGED_GROUPS = 20
NO_GROUP = "pooled"


# Weights of models drawn to the group's, to the common centre, and alone, in averages that are tried: quarters.
BLENDS = np.array([(a, b, 4 - a - b) for a in range(5) for b in range(5 - a)]) / 4

# Variances of last layers, and of large convex models, around the group's; and of large models around zero.
HEAD_VARIANCES = (1.0, 0.3, 0.1, 0.03, 0.01)
LARGE_VARIANCES, LARGE_ALONE_VARIANCES = (0.01, 0.1, 1.0), (0.03, 0.1, 0.3, 1.0, 10.0)


@dataclass
class VerdictState(StepState):
    """The groups that were found, in standardised columns where these are known; and what devices said of them."""

    before: Outcome = field(kw_only=True)
    shift: Floats = field(init=False)
    scale: Floats = field(init=False)
    shares: Floats = field(init=False)  # of every device in its group's rows
    losses: Floats = field(init=False)  # of every device: by its group, drawn, alone
    strength: float = ALONE_STRENGTHS[-1]
    factor: float = 1.0
    verdict: str = ""

    def __post_init__(self, previous: Outcome | None) -> None:
        super().__post_init__(previous)
        info, rows = self.info, self.info.counts["train+validation"].astype(np.float64)
        self.labels = canonical(self.labels)
        columns, kept = n_columns(info), self.before.kept
        self.shift, self.scale = kept.get("shift", np.zeros(columns)), kept.get("scale", np.ones(columns))
        self.models = self.group_models(self.before.models)
        self.shares = rows / np.maximum(np.bincount(self.labels, rows)[self.labels], 1)
        self.losses = np.full((info.m, 3), np.nan)

    def group_models(self, of_devices: Floats) -> Floats:
        """Return the models of groups, for rescaled columns."""
        models, model = group_means(of_devices, self.labels, np.ones(self.info.m)), self.info.model
        if model.convex:
            models = np.stack([model.unscaled(w, *_inverse(self.shift, self.scale)) for w in models])
        return models

    @property
    def judges(self) -> Bools:
        """Which devices judge: those that are trusted, but not more than are needed."""
        who, judges = self.trusted, np.zeros(self.info.m, np.bool_)
        if len(who) > MAX_JUDGES:
            who = generator(self.info.seed, "judges").choice(who, MAX_JUDGES, replace=False)
        judges[who] = True
        return judges

    @property
    def tried(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The variances that are tried: around groups' models, and around zero."""
        return (LARGE_VARIANCES, LARGE_ALONE_VARIANCES) if self.info.model.convex else (HEAD_VARIANCES, ())

    @property
    def n_groups(self) -> int:
        return len(self.models)

    @property
    def sure(self) -> bool:
        """Whether the groups are sure."""
        return (self.before.stability or 0.0) > SURE_STABILITY

    def active(self, drawn: int) -> int:
        # Networks have few rounds, and this is one exchange.
        return drawn if self.info.model.convex else self.info.m

    def heard(self, size: int) -> tuple[Ints, Floats]:
        """Return who has answered, and what a device with such losses risks: RMSE, or log-loss."""
        who = np.array(list(self.answers), np.int64)
        losses = np.reshape([self.answers[int(i)] for i in who], (len(who), size))
        return who, np.sqrt(losses) if self.info.model.goal == "regression" else losses

    def decide(self) -> str:
        """Set the verdict, and end."""
        by_group, drawn, alone = self.losses[np.isfinite(self.losses).all(axis=1)].T
        best, name = (drawn, "personal") if drawn.mean() < alone.mean() else (alone, "alone")
        gain = by_group - best
        better = len(gain) > 1 and _above_zero(gain, SURE_GROUPS_LEVEL if self.sure else UNSURE_GROUPS_LEVEL)
        self.verdict = name if better else ("groups" if self.n_groups > 1 else NO_GROUP)
        return END

    def learned(self) -> dict[str, Floats]:
        """Return what a newcomer's own model needs: see `personal_model`."""
        return {"drawn": np.array([self.factor, self.strength])}

    def recovery(self) -> list[dict[int, Task]]:
        if not self.info.model.convex:
            return []
        told = self.answers if self.step == RescaleColumns.name else range(self.info.m)
        return [dict.fromkeys(told, tasks.Rescale(self.shift, self.scale))]


@dataclass
class PersonalState(VerdictState):
    """What was learned of devices beside: how they differ from a common centre."""

    without: Floats = field(init=False)  # every device's group's model without it, where that is known
    order: Ints = field(init=False)  # groups by their distance to each
    centre: Floats = field(init=False)
    variances: Floats = field(init=False)
    noise: float = 0.0
    common_factor: float = 1.0
    weights: Floats = field(default_factory=lambda: np.array([1.0, 0.0, 0.0]))
    rounds: int = 0

    def __post_init__(self, previous: Outcome | None) -> None:
        super().__post_init__(previous)
        apart = np.linalg.norm(self.models[:, None] - self.models[None], axis=2)
        self.order = np.argsort(apart, axis=1, kind="stable")[:, :MAX_JUDGED_GROUPS]
        self.without = self.before.kept.get("without", np.empty((0, self.info.d)))
        rows = self.info.counts["train+validation"].astype(np.float64)
        self.centre = np.average(self.models[self.labels], axis=0, weights=np.maximum(rows, 1e-12))
        self.variances = np.ones(self.info.model.n_features + 1)

    def judged(self, devices: Ints, **kinds: Any) -> list[Task]:
        """Return what asks devices for losses."""
        common, noise = self.centre.astype(self.info.dtype), np.array([self.noise])
        asked: list[Task] = []
        for i in devices:
            models, share = self.models[self.order[self.labels[i]]].astype(self.info.dtype), self.shares[[i]]
            if len(self.without) and share < 1:
                models[0], share = self.without[i], np.zeros(1)
            asked.append(tasks.JudgePersonalModels(models, common, self.variances, share, noise, **kinds))
        return asked

    @property
    def strengths(self) -> Floats:
        """Return how strongly models are drawn: to groups', to the common one; and the ridge of those alone."""
        return np.array([self.factor, self.common_factor, self.strength])

    def own(self, device: int) -> Task:
        """Return what asks a device for the models that it uses at home."""
        centre = self.models[self.labels[device]] if self.shares[device] < 1 else self.centre
        centres = np.stack([centre, self.centre]).astype(self.info.dtype)
        return tasks.PeekPersonalModels(centres, self.variances, np.array([self.noise]), self.strengths, self.weights)

    def learned(self) -> dict[str, Floats]:
        """Return what a newcomer's own model needs: see `personal_model`."""
        numbers = np.concatenate([[self.noise], self.strengths, self.weights])
        return {"centre": self.centre, "variances": self.variances, "personal": numbers}


def _above_zero(differences: Floats, level: float) -> bool:
    """Whether the mean of these differences is above 0 in a one-sided t test."""
    from scipy.special import stdtrit

    n = len(differences)
    return bool(differences.mean() > stdtrit(n - 1, 1 - level) * differences.std(ddof=1) / np.sqrt(n))


def _inverse(shift: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """Return the rescaling that undoes one."""
    return -shift / scale, 1 / scale


V = TypeVar("V", bound=VerdictState)


class JudgeStep(Step[V]):
    """Judges alone are asked."""

    size_is_known = False

    def skip(self, state: V) -> Bools:
        return ~state.judges


class JudgeGroups(JudgeStep[PersonalState]):
    """Devices judge their group's model, models drawn to it, and models of their own rows alone."""

    name = "judge groups"

    def ask(self, state: PersonalState, devices: Ints) -> list[Task]:
        return state.judged(devices, to_group=FIRST_VARIANCES, alone=ALONE_STRENGTHS)

    def take(self, state: PersonalState) -> str:
        drawn = len(FIRST_VARIANCES)
        who, risks = state.heard(1 + drawn + len(ALONE_STRENGTHS))
        if len(who) < 2:
            state.verdict = "groups" if state.n_groups > 1 else NO_GROUP
            return END
        lone = int(risks[:, 1 + drawn :].mean(axis=0).argmin())
        single = state.shares[who] >= 1  # Without companions the group's model is one of a device's own rows.
        risks[single, 0] = risks[single, 1 + drawn + lone]
        means = risks.mean(axis=0)
        first = int(means[1 : 1 + drawn].argmin())
        state.factor, state.strength = FIRST_VARIANCES[first], ALONE_STRENGTHS[lone]
        state.losses[who] = risks[:, [0, 1 + first, 1 + drawn + lone]]
        best = float(means[[0, 1 + first, 1 + drawn + lone]].min())
        state.noise = best**2 if state.info.model.goal == "regression" else 1.0
        if state.sure and best > (1 - MIN_GAIN_RATIO) * means[0]:
            return state.decide()
        state.variances = np.full_like(state.variances, max(state.factor, FIRST_VARIANCES[1]))
        return LearnPrior.name


class LearnPrior(JudgeStep[PersonalState]):
    """Devices send models that their rows draw from a common centre; the server learns how much they differ."""

    name = "learn prior"
    size_is_known = True

    def ask(self, state: PersonalState, devices: Ints) -> list[Task]:
        centre = state.centre.astype(state.info.dtype)
        return [tasks.SendPosterior(centre, state.variances, np.array([state.noise]))] * len(devices)

    def possible(self, state: PersonalState, device: int, answer: Floats) -> bool:
        return bool((answer[state.info.d :] >= 0).all())

    def take(self, state: PersonalState) -> str:
        d, p = state.info.d, len(state.variances)
        sent = np.reshape(list(state.answers.values()), (-1, d + p + 1))
        state.rounds += 1
        if not len(sent):
            return JudgePersonal.name
        away = as_tables(state.info.model, sent[:, :d] - state.centre)
        # MacKay's update: squared deviations by how many of them the rows determine.
        known = np.maximum((1 - sent[:, d : d + p] / state.variances).sum(axis=0), 1e-3)
        new = np.clip(np.square(away).mean(axis=1).sum(axis=0) / known, MIN_COLUMN_VARIANCE, MAX_COLUMN_VARIANCE)
        step = (sent[:, :d] - state.centre).mean(axis=0)
        moved = np.abs(np.log(new / state.variances))[new > 1e3 * MIN_COLUMN_VARIANCE].max(initial=0)
        still = moved < VARIANCE_TOLERANCE and np.abs(step).max() < CENTRE_TOLERANCE
        state.variances, state.centre = new, state.centre + step
        if state.info.model.goal == "regression":
            state.noise = float(sent[:, -1].mean())
        return JudgePersonal.name if still or state.rounds == MAX_PRIOR_ROUNDS else self.name


class JudgePersonal(JudgeStep[PersonalState]):
    """Devices judge models drawn to the common centre and to their groups."""

    name = "judge personal"

    def ask(self, state: PersonalState, devices: Ints) -> list[Task]:
        return state.judged(devices, to_group=GROUP_FACTORS, to_common=COMMON_FACTORS)

    def take(self, state: PersonalState) -> str:
        _, risks = state.heard(1 + len(GROUP_FACTORS) + len(COMMON_FACTORS))
        if not len(risks):
            return state.decide()
        to_group, to_common = np.split(risks[:, 1:].mean(axis=0), [len(GROUP_FACTORS)])
        state.factor, state.common_factor = GROUP_FACTORS[to_group.argmin()], COMMON_FACTORS[to_common.argmin()]
        return JudgeBlends.name


class JudgeBlends(JudgeStep[PersonalState]):
    """Devices judge averages of models drawn to their groups, to the common centre, and of their own rows alone."""

    name = "judge blends"

    def ask(self, state: PersonalState, devices: Ints) -> list[Task]:
        to_group, to_common, alone = ((float(strength),) for strength in state.strengths)
        return state.judged(devices, to_group=to_group, to_common=to_common, alone=alone, blends=BLENDS)

    def take(self, state: PersonalState) -> str:
        who, risks = state.heard(4 + len(BLENDS))
        if len(who):
            best = int(risks[:, 4:].mean(axis=0).argmin())
            state.weights = BLENDS[best]
            state.losses[who, 1] = risks[:, 4 + best]
        return state.decide()


class JudgeDrawn(JudgeStep[VerdictState]):
    """Devices judge their group's model, models drawn to it, and large models of their own rows alone."""

    name = "judge own models"
    size_is_known = True

    def ask(self, state: VerdictState, devices: Ints) -> list[Task]:
        # Large models are judged by rows that they have not seen.
        validated, asked = state.before.validated if state.info.model.convex else None, state.tried
        models = (state.models if validated is None else state.group_models(validated)).astype(state.info.dtype)
        return [tasks.JudgeDrawnModels(models[state.labels[i]], state.shares[[i]], *asked) for i in devices]

    def skip(self, state: VerdictState) -> Bools:
        convex = state.info.model.convex
        rows = state.info.counts["validation" if convex else "train+validation"]
        return np.asarray(~state.judges | (rows == 0))

    def possible(self, state: VerdictState, device: int, answer: Floats) -> bool:
        return bool((answer >= 0).all())

    def take(self, state: VerdictState) -> str:
        to_group, alone = state.tried
        who, risks = state.heard(1 + len(to_group) + len(alone))
        if not len(who):
            return state.decide()
        drawn, lone = 1 + int(risks[:, 1 : 1 + len(to_group)].mean(axis=0).argmin()), 0
        state.factor = to_group[drawn - 1]
        if alone:
            best = int(risks[:, 1 + len(to_group) :].mean(axis=0).argmin())
            state.strength, lone = alone[best], 1 + len(to_group) + best
            single = state.shares[who] >= 1  # Without companions the group's model is one of a device's own rows.
            risks[single, 0] = risks[single, lone]
        state.losses[who] = risks[:, [0, drawn, lone]]
        return state.decide()


@dataclass(frozen=True)
class JudgesModels(StepMethod[V], WorksAtHome):
    """Give each device a model of its own where that predicts better: what all ways to do so have in common."""

    def current(self, state: V) -> Outcome:
        kept = {name: array for name, array in state.before.kept.items() if name != "without"}
        return state.before._replace(suspects=np.flatnonzero(state.suspects), kept=kept | state.learned())

    def outcome(self, state: V) -> Outcome:
        return self.current(state)._replace(verdict=state.verdict or None)

    def in_use(self, state: V, found: Outcome, seen: list[Floats]) -> Outcome:
        d, model = state.info.d, state.info.model
        names = ("personal", "alone") if model.convex else ("personal",)
        alternatives = {name: np.array(found.models) for name in names}
        for i, values in enumerate(seen):
            if len(values) == len(names) * d:  # A device that does not answer has its group's model.
                for name, w in zip(names, np.split(values, len(names)), strict=True):
                    alternatives[name][i] = model.unscaled(w, state.shift, state.scale) if model.convex else w
        return found._replace(alternatives=alternatives)


@dataclass(frozen=True)
class Personal(JudgesModels[PersonalState]):
    """Give each device a model of its own, drawn to its group's or to that of all, where that predicts better."""

    name: ClassVar[str] = "personal"

    def steps(self) -> dict[str, Step[Any]]:
        begin = RescaleColumns(lambda state: JudgeGroups.name)
        return by_name(begin, JudgeGroups(), LearnPrior(), JudgePersonal(), JudgeBlends())

    def first_state(self, info: FederationInfo, previous: Outcome | None) -> PersonalState:
        assert previous is not None
        return PersonalState(info, canonical(previous.labels), previous, before=previous)

    def at_home(self, state: PersonalState) -> list[Task]:
        if not state.verdict:
            return []
        return [state.own(i) for i in range(state.info.m)]


@dataclass(frozen=True)
class PersonalHeads(JudgesModels[VerdictState]):
    """Give each device a last layer of its own, drawn to its group's, where that predicts better."""

    name: ClassVar[str] = "personal-heads"

    def steps(self) -> dict[str, Step[Any]]:
        return by_name(JudgeDrawn())

    def first_state(self, info: FederationInfo, previous: Outcome | None) -> VerdictState:
        assert previous is not None
        return VerdictState(info, canonical(previous.labels), previous, before=previous)

    def at_home(self, state: VerdictState) -> list[Task]:
        if not state.verdict:
            return []
        models, alone = state.models.astype(state.info.dtype), state.strength if state.info.model.convex else None
        return [tasks.PeekDrawnModels(models[c], state.factor, alone) for c in state.labels]


@dataclass(frozen=True)
class PersonalLarge(PersonalHeads):
    """Give each device a large convex model of its own, drawn to its group's, where that predicts better."""

    name: ClassVar[str] = "personal-large"

    def steps(self) -> dict[str, Step[Any]]:
        return by_name(RescaleColumns(lambda state: JudgeDrawn.name), JudgeDrawn())


def personal_model(known: RunSummary, info: FederationInfo, joined: AdmissionResult, verdict: str) -> AdmissionDialogue:
    """Let a newcomer that has joined a group have a model of its own, as the devices of the run have."""
    kept, model, convex = known.kept, info.model, info.model.convex
    centre, own = joined.model, verdict != "personal"
    if convex:
        shift, scale = kept["shift"], kept["scale"]
        yield tasks.Rescale(shift, scale)
        centre = model.unscaled(centre, *_inverse(shift, scale))
    if joined.group is None:
        return joined
    if "drawn" in kept:
        variance, alone = kept["drawn"].tolist()
        asked: Task = tasks.PeekDrawnModels(centre.astype(info.dtype), variance, alone if convex else None)
    else:
        noise, strengths, weights = np.split(kept["personal"], [1, 4])
        centres = np.stack([centre, kept["centre"]]).astype(info.dtype)
        asked = tasks.PeekPersonalModels(centres, kept["variances"], noise, strengths, weights)
    seen = yield asked
    w = np.split(seen, 1 + convex)[own]
    return joined._replace(model=model.unscaled(w, shift, scale) if convex else w)


def personal_stage(model: Model[Any], robust: Robust) -> StepMethod[Any] | None:
    """Return what gives devices models of their own; None for networks without a layer of classes."""
    if model.convex:
        return Personal(robust=robust) if model.d <= MAX_PARAMETERS else PersonalLarge(robust=robust)
    return None if model.head is None else PersonalHeads(robust=robust)
