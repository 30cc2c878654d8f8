"""Refit: every cluster trains its own model on all its rows, federated; and the oracle, which knows the clusters.

The paper stops at FPFC's own estimates, which are biased by the penalty and slow to converge once the clusters are
right. Here each cluster minimises its pooled, sample-weighted loss by L-BFGS on the server: devices send gradients of
their own loss. Three things keep the number of rounds small and need no parameter: columns are rescaled
to mean 0 and standard deviation 1 over the federation (devices send moments once); how long to train is told by the
validation rows; then these rows join, and a cluster that had come to the end goes on from there, with what it knows of
its curvature; one that was stopped before goes the same path again, and as far.

For linear regression with a few dozen columns all this takes one answer of every device: the means and covariances of
its columns are fewer floats than the gradients would be, and say as much. The server then asks stand-ins (`standins`)
in place of the devices, and tells every device its model at the end.

One device that lies could spoil the model of its whole cluster. So what no honest device can send (`trust`) is not
used: who sends it stands alone from then on, and its cluster begins again without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np

from fedfuse.core.lbfgs import LBFGS
from fedfuse.core.partitions import canonical
from fedfuse.core.robust_mean import Robust, pooled_moments, robust_mean
from fedfuse.data.federation import Part
from fedfuse.errors import FedfuseError
from fedfuse.grouping.admission import judged
from fedfuse.grouping.simulated_replies import SimulatedReplies
from fedfuse.grouping.steps import END, SKIPPED, Staged, StagedState
from fedfuse.methods.method import AdmissionDialogue, FederationInfo, Outcome, RunSummary
from fedfuse.pairs.state import Residuals
from fedfuse.protocol.reply_checks import apart, monotone, possible_moments, possible_summary, supported
from fedfuse.protocol.tasks import (
    SUMMARISED,
    FitLocally,
    Gradient,
    Install,
    Rescale,
    SendMoments,
    SendSufficientStatistics,
    Task,
)
from fedfuse.utils.typing import Bools, Floats, Ints

LADDER = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)  # ridges that a device without companions tries
CURVATURE = ("S", "Y", "pairs")  # what `LBFGS` knows of it
LONGEST = 60  # evaluations at the most
FLAT = 1e-3  # relative: a training loss that fell by less in WINDOW steps has converged
WINDOW = 3
WORSE = 1e-2  # relative: a validation loss above its best by more than this,
Z = 2.33  # and by more than so many standard errors (1 %), is rising,
PATIENCE = 4  # and when it has been for so many steps, the cluster overfits
FOR_ALL = ("rescale", "alone", "tell")  # stages that suspects take part in: they harm nobody there
OF_DEVICES = ("summaries", "tell", END)  # stages in which nobody can stand in for them
SUMMARY = 50  # models that a device's summary may be as long as: to do without takes the floats of 60 to 120


@dataclass(frozen=True)
class Refit(Staged):
    """Train one model for each cluster that the method before has found.

    Parameters
    ----------
    robust
        ``"screen"``: who sends what no honest device can send is left out. ``"median"``, ``"trimmed"`` and ``"krum"``
        also take the place of the mean over a cluster's members. ``"none"``: everybody is believed.
    """

    name: ClassVar[str] = "refit"
    first: ClassVar[str] = "moments"
    rows: Part = "train+validation"
    robust: Robust = "screen"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.robust not in get_args(Robust):
            raise FedfuseError(f"robust must be one of {', '.join(get_args(Robust))}, got {self.robust!r}")

    def _prepare(self, state: StagedState, before: Outcome | None) -> None:
        suspects = np.zeros(state.info.m, np.bool_)
        suspects[np.asarray(() if before is None else before.suspects, np.int64)] = True
        state.put("suspects", suspects)
        labels = apart(self._clusters(state.info, before), suspects)
        state.put("labels", labels)
        # of every device its last gradient: where, which, and the loss (nan: unknown)
        state.memory["seen"] = np.full((state.info.m, 2 * state.info.d + 1), np.nan)
        state.put("lam", np.nan if before is None or before.lam is None else before.lam)
        state.memory["models"] = np.zeros((int(labels.max()) + 1, state.info.d))
        columns = _columns(state.info)
        state.put("shift", np.zeros(columns))
        state.put("scale", np.ones(columns))
        if self._first(state.info) == "summaries":
            state.memory["summaries"] = np.full(
                (state.info.m, SendSufficientStatistics(columns).floats_up(state.info.d)), np.nan
            )

    def _first(self, info: FederationInfo) -> str:
        short = SendSufficientStatistics(_columns(info)).floats_up(info.d) <= SUMMARY * info.d
        return "summaries" if info.model.quadratic and short else self.first

    def _clusters(self, info: FederationInfo, before: Outcome | None) -> Ints:
        if before is None:
            raise FedfuseError("refit needs clusters that another method has found")
        return canonical(before.labels)

    # -- rows in summary

    def _in_summary(self, state: StagedState) -> bool:
        """Whether devices sum up their rows, and are asked for nothing else."""
        return "summaries" in state.memory

    def _summed_up(self, state: StagedState) -> Bools:
        """Return which devices have done so."""
        return np.asarray(~np.isnan(state.memory["summaries"]).any(axis=1))

    def _ask_summaries(self, state: StagedState, devices: Ints) -> list[Task]:
        return [SendSufficientStatistics(_columns(state.info))] * len(devices)

    def _take_summaries(self, state: StagedState) -> str:
        for i, answer in state.answers.items():
            state.memory["summaries"][i] = answer
        return "moments"

    def update(self, state: StagedState, devices: Ints, values: list[Floats]) -> Residuals | None:
        self._hear(state, devices, values)
        if self._in_summary(state) and state.stage not in OF_DEVICES:
            simulated = self._simulated(state)
            while state.stage not in OF_DEVICES:
                devices = np.flatnonzero(state.waiting)
                self._hear(state, devices, simulated.answers(self.tasks(state, devices, 0), devices))
        return None

    def _simulated(self, state: StagedState) -> SimulatedReplies:
        """Return who answers in the place of devices."""
        simulated = SimulatedReplies(np.nan_to_num(state.memory["summaries"]), state.info.counts)
        simulated.rescale(state.memory["shift"], state.memory["scale"])
        return simulated

    def _end(self, state: StagedState) -> str:
        """Return the last stage: devices that have seen no model yet are told theirs."""
        return "tell" if self._in_summary(state) else END

    def _ask_tell(self, state: StagedState, devices: Ints) -> list[Task]:
        models, kind = self.models(state)[devices], state.info.dtype
        largest = np.abs(models).max(initial=0)
        if largest > np.finfo(kind).max:
            raise FedfuseError(
                f"parameters reach {largest:.0e}, too large for {kind}: fit with dtype=float64 (--set dtype=float64), "
                "or use other units"
            )
        return [Install(w) for w in models.astype(kind)]

    def _take_tell(self, state: StagedState) -> str:
        return END

    # -- whom to believe

    def _hear(self, state: StagedState, devices: Ints, values: list[Floats]) -> None:
        """Take in answers that an honest device can give."""
        if self.robust == "none" or state.stage in FOR_ALL:
            super().update(state, devices, values)
            return
        suspects = state.memory["suspects"]
        for i, answer in zip(devices, values, strict=True):
            suspects[i] |= not self._possible(state, int(i), answer)
        state.asked[suspects] = SKIPPED
        for i in np.flatnonzero(suspects):
            state.answers.pop(int(i), None)
        good = ~suspects[devices]
        super().update(state, devices[good], [v for v, fine in zip(values, good, strict=True) if fine])

    def _enter(self, state: StagedState, stage: str) -> None:
        super()._enter(state, stage)
        if stage not in FOR_ALL:
            state.asked[state.memory["suspects"]] = SKIPPED
        if self._in_summary(state) and stage not in OF_DEVICES:
            state.asked[~self._summed_up(state)] = SKIPPED

    def _possible(self, state: StagedState, i: int, answer: Floats) -> bool:
        """Whether an honest device can send this, after what it sent before."""
        if state.stage == "summaries":
            return possible_summary(answer, [int(state.info.counts[part][i]) for part in SUMMARISED])
        if state.stage == "moments":
            return possible_moments(answer)
        if state.stage in ("fit", "again"):
            at, d = self._trials(state, np.array([i]))[0], state.info.d
            return bool((answer[d:] >= 0).all()) and self._in_line(state, i, at, answer[:d], float(answer[d]))
        return True

    def _in_line(self, state: StagedState, i: int, at: Floats, gradient: Floats, loss: float) -> bool:
        """Whether this gradient (and loss, if known) goes with the one before; it is the one to compare with next."""
        d, before = state.info.d, state.memory["seen"][i].copy()
        state.memory["seen"][i] = np.concatenate([at, gradient, [loss]])
        w, g, f = before[:d], before[d:-1], float(before[-1])
        if np.isnan(g).any():
            return True
        if np.isnan(f) or np.isnan(loss):
            return monotone(w, g, at, gradient)
        return supported(w, g, f, at, gradient, loss)

    def _expelled(self, state: StagedState) -> bool:
        """Take suspects out of their clusters; False if there is none to take out."""
        memory, old = state.memory, state.memory["labels"]
        new = apart(old, memory["suspects"])
        if (new == old).all():
            return False
        state.put("labels", new)
        kept = ~memory["suspects"]
        curvature = (f"lbfgs_{name}" for name in CURVATURE)
        for name in ("models", "start", "slopes", "best_step", "to_the_end", "chosen", *curvature):
            if name in memory:
                array = np.zeros((int(new.max()) + 1, *memory[name].shape[1:]), memory[name].dtype)
                array[new[kept]] = memory[name][old[kept]]
                memory[name] = array
        return True

    def _groups(self, state: StagedState) -> int:
        """Return how many clusters have trusted members; they come first."""
        return int(state.memory["labels"][~state.memory["suspects"]].max(initial=-1)) + 1

    # -- one scale for all devices

    def _ask_moments(self, state: StagedState, devices: Ints) -> list[Task]:
        return [SendMoments(len(state.memory["shift"]))] * len(devices)

    def _take_moments(self, state: StagedState) -> str:
        who = list(state.answers)
        if not who:
            raise FedfuseError(
                "no device has sent moments of its columns that can be used, though each was asked many times; numbers "
                "whose squares are beyond a double (of 1e75 and more) need other units"
            )
        weights = state.info.counts["train"][who]
        answers = np.array([state.answers[i] for i in who])
        if self.robust == "none":
            first, second = np.split(np.average(answers, axis=0, weights=weights), 2)
        else:
            first, second = pooled_moments(answers, weights)
        deviation = np.sqrt(np.maximum(second - first**2, 0))
        constant = deviation <= 1e-9 * np.abs(first)
        state.put("shift", first)
        state.put("scale", np.where(constant, 1.0, deviation))
        return "rescale"

    def _ask_rescale(self, state: StagedState, devices: Ints) -> list[Task]:
        return [Rescale(state.memory["shift"], state.memory["scale"])] * len(devices)

    def _take_rescale(self, state: StagedState) -> str:
        return self._fit_from(state, np.zeros_like(state.memory["models"]))

    # -- how long to train: on training rows, watched by validation rows

    def _fit_from(self, state: StagedState, start: Floats) -> str:
        clusters = len(start)
        state.memory["start"] = start
        self._set_out(state)
        for name in ("best_step", "since"):
            state.put(name, np.zeros(clusters, np.int64))
        for name in ("best_watched", "best_train"):
            state.put(name, np.full(clusters, np.inf))
        state.memory["slopes"] = np.zeros_like(start)
        state.put("still", np.arange(clusters) < self._groups(state))
        state.put("to_the_end", np.zeros(clusters, np.bool_))
        return "fit"

    def _set_out(self, state: StagedState, knowing: Bools | None = None) -> None:
        """Go to the start of the path; clusters that are ``knowing`` keep what they have learned of their curvature."""
        memory, clusters = state.memory, len(state.memory["start"])
        optimiser = LBFGS.start(memory["start"])
        if knowing is not None:
            for name in CURVATURE:
                getattr(optimiser, name)[knowing] = memory[f"lbfgs_{name}"][knowing]
        memory |= optimiser.pack()
        for name in ("evaluations", "steps"):
            state.put(name, np.zeros(clusters, np.int64))
        memory["losses"] = np.full((clusters, WINDOW + 1), np.finfo(np.float64).max)

    def _advance(self, state: StagedState, loss: Floats, gradient: Floats, heard: Bools) -> Bools:
        """Take in an evaluation; return the clusters for which it was a step, and not one that was too long."""
        memory, still = state.memory, state.memory["still"]
        optimiser = LBFGS.unpack(memory)
        optimiser.done |= ~still
        optimiser.tell(loss, gradient, heard)
        memory |= optimiser.pack()
        stepped: Bools = still & heard & (optimiser.cuts == 0)
        memory["evaluations"][still] += 1
        memory["steps"][stepped] += 1
        memory["losses"][stepped] = np.column_stack([loss, memory["losses"][:, :-1]])[stepped]
        return stepped

    def _converged(self, state: StagedState) -> Bools:
        now, before = state.memory["losses"][:, 0], state.memory["losses"][:, -1]
        flat = (before < np.finfo(np.float64).max) & (before - now <= FLAT * np.abs(now))
        return np.asarray(state.memory["lbfgs_done"] | flat | (state.memory["evaluations"] >= LONGEST))

    def _ask_fit(self, state: StagedState, devices: Ints) -> list[Task]:
        return [Gradient(w, "train", also=("train", "validation")) for w in self._trials(state, devices)]

    def _skip_fit(self, state: StagedState) -> Bools:
        return ~state.memory["still"][state.memory["labels"]]

    def _take_fit(self, state: StagedState) -> str:
        if self._expelled(state):
            return self._fit_from(state, state.memory["start"])
        memory, trial = state.memory, state.memory["lbfgs_trial"].copy()
        loss, gradient, (_, watched), heard = self._pooled(state, "train", 2)
        stepped = self._advance(state, loss, gradient, heard)
        good = stepped & (watched <= memory["best_watched"] + self._margin(state, loss))
        better = stepped & (watched < memory["best_watched"])
        memory["best_watched"][better], memory["best_train"][better] = watched[better], loss[better]
        memory["since"][stepped] += 1
        memory["since"][good] = 0  # of equals, the one trained longest
        memory["best_step"][good] = memory["steps"][good]
        memory["models"][good], memory["slopes"][good] = trial[good], gradient[good]
        ends = memory["still"] & (self._converged(state) | (memory["since"] >= PATIENCE))
        memory["to_the_end"] |= ends & (memory["since"] == 0)
        memory["still"] = memory["still"] & ~ends
        return "fit" if memory["still"].any() else self._after_fit(state)

    def _margin(self, state: StagedState, loss: Floats) -> Floats:
        """Return how far above its best a validation loss may be without saying anything.

        The difference between two models' losses varies as the gradient does along the way from one to the other,
        and for both losses here that is by their curvature (times twice the noise for squares): so it is told by
        how much the training loss fell on that way.
        """
        labels, best = state.memory["labels"], state.memory["best_watched"]
        rows = np.bincount(labels, state.info.counts["validation"], len(best))
        known = np.where(np.isfinite(best), best, 0)
        unit = 2 * known if state.info.model.goal == "regression" else 1.0
        fell = np.where(np.isfinite(best), state.memory["best_train"] - loss, 0).clip(min=0)
        return np.maximum(WORSE * known, Z * np.sqrt(2 * unit * fell / np.maximum(rows, 1)))

    def _after_fit(self, state: StagedState) -> str:
        return self._go_again(state)

    # -- once more, with the validation rows

    def _go_again(self, state: StagedState) -> str:
        """Clusters that came to the end go on from there, the others go the same way once more, and as far."""
        memory, there = state.memory, state.memory["to_the_end"]
        memory["chosen"] = memory["models"].copy()
        memory["start"] = np.where(there[:, None], memory["models"], memory["start"])
        self._set_out(state, there)
        alone = np.bincount(state.memory["labels"]) == 1
        state.put("still", ~alone)
        state.memory["seen"][:] = np.nan  # other rows, another function
        return "alone" if alone.any() else "again"

    def _ask_alone(self, state: StagedState, devices: Ints) -> list[Task]:
        return [FitLocally(LADDER)] * len(devices)

    def _skip_alone(self, state: StagedState) -> Bools:
        labels = state.memory["labels"]
        return np.asarray(np.bincount(labels)[labels] > 1)

    def _take_alone(self, state: StagedState) -> str:
        for i, answer in state.answers.items():
            state.memory["models"][state.memory["labels"][i]] = answer
        return "again" if state.memory["still"].any() else self._end(state)

    def _ask_again(self, state: StagedState, devices: Ints) -> list[Task]:
        rows: Part = "train+validation"
        return [Gradient(w, rows, also=(rows,)) for w in self._trials(state, devices)]

    _skip_again = _skip_fit

    def _take_again(self, state: StagedState) -> str:
        if self._expelled(state):
            state.memory["models"] = state.memory["chosen"]
            return self._go_again(state)
        memory, trial = state.memory, state.memory["lbfgs_trial"].copy()
        loss, gradient, _, heard = self._pooled(state, "train+validation", 1)
        stepped = self._advance(state, loss, gradient, heard)
        memory["models"][stepped] = trial[stepped]
        # as many steps as were good before; to the end where that was the end
        on = memory["to_the_end"] | (memory["steps"] < memory["best_step"])
        memory["still"] = memory["still"] & on & ~self._converged(state)
        return "again" if memory["still"].any() else self._end(state)

    def _trials(self, state: StagedState, devices: Ints) -> Floats:
        return state.memory["lbfgs_trial"][state.memory["labels"][devices]].astype(state.info.dtype)

    def _pooled(self, state: StagedState, rows: Part, parts: int) -> tuple[Floats, Floats, list[Floats], Bools]:
        """Return loss, gradient and the other losses of every cluster, and whether a member has answered at all."""
        labels, d, clusters = state.memory["labels"], state.info.d, len(state.memory["start"])
        if self.robust not in ("none", "screen"):
            return self._robustly_pooled(state, rows, parts)
        total = np.zeros((clusters, d + parts))
        weight = np.zeros((clusters, 2))
        for i, answer in state.answers.items():
            n, n_watched = state.info.counts[rows][i], state.info.counts["validation"][i]
            total[labels[i], : d + 1] += n * answer[: d + 1]
            total[labels[i], d + 1 :] += n_watched * answer[d + 1 :]
            weight[labels[i]] += n, n_watched
        total[:, : d + 1] /= np.maximum(weight[:, :1], 1)
        total[:, d + 1 :] /= np.maximum(weight[:, 1:], 1)
        # a cluster without validation rows is watched by its training rows: it trains to the end
        blind = weight[:, 1] == 0
        total[blind, d + 1 :] = total[blind, d : d + 1]
        return total[:, d], total[:, :d], [total[:, d + k] for k in range(parts)], weight[:, 0] > 0

    def _robustly_pooled(
        self, state: StagedState, rows: Part, parts: int
    ) -> tuple[Floats, Floats, list[Floats], Bools]:
        labels, d, clusters = state.memory["labels"], state.info.d, len(state.memory["start"])
        total, heard = np.zeros((clusters, d + parts)), np.zeros(clusters, np.bool_)
        counts, watching = state.info.counts[rows], state.info.counts["validation"]
        for c in range(clusters):
            members = [i for i in state.answers if labels[i] == c]
            if not members:
                continue
            heard[c], answers = True, np.stack([state.answers[i] for i in members]).astype(np.float64)
            total[c] = robust_mean(answers, counts[members].astype(np.float64), self.robust)
            # who has no validation rows has no say in how long to train
            watch = watching[members] > 0
            if parts > 1:
                total[c, d + 1 :] = np.median(answers[watch, d + 1 :], axis=0) if watch.any() else total[c, d]
        return total[:, d], total[:, :d], [total[:, d + k] for k in range(parts)], heard

    def recovery(self, state: StagedState) -> list[dict[int, Task]]:
        if state.stage in ("moments", "rescale") or self._in_summary(state):
            return []
        everyone = np.arange(state.info.m)
        return [dict(enumerate(self._ask_rescale(state, everyone)))]

    # -- what there is to see

    def models(self, state: StagedState) -> Floats:
        return self._raw(state, state.memory["models"])[state.memory["labels"]]

    def labels(self, state: StagedState) -> Ints:
        return canonical(state.memory["labels"])

    def outcome(self, state: StagedState) -> Outcome:
        lam = float(state.memory["lam"][0])
        suspects = np.flatnonzero(state.memory["suspects"])
        return Outcome(
            self.models(state),
            self.labels(state),
            lam if np.isfinite(lam) else None,
            suspects=suspects,
            validated=self.validated(state),
        )

    def validated(self, state: StagedState) -> Floats | None:
        chosen = state.memory.get("chosen")
        return None if chosen is None else self._raw(state, chosen)[state.memory["labels"]]

    def describe(self, state: StagedState) -> dict[str, Any]:
        return {"lam": float(state.memory["lam"][0])}

    def _raw(self, state: StagedState, models: Floats) -> Floats:
        """Return models for the columns as they are on the devices at first."""
        shift, scale = state.memory["shift"], state.memory["scale"]
        return np.stack([state.info.model.unscaled(w, shift, scale) for w in models])


def _columns(info: FederationInfo) -> int:
    """Return how many columns devices have, the target included where it is a value."""
    return int(info.model.n_features) + (info.model.goal == "regression")


@dataclass(frozen=True)
class Oracle(Refit):
    """Pooled training within the true clusters: the yardstick for every method, where the truth is known."""

    name: ClassVar[str] = "oracle"

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Find the newcomer's cluster by losses: its true group is not known here."""
        return (yield from judged(known, info, self.work, "train+validation", device))

    def _clusters(self, info: FederationInfo, before: Outcome | None) -> Ints:
        if info.truth is None:
            raise FedfuseError("the oracle needs to be told the true groups, and these data have none")
        return canonical(info.truth)
