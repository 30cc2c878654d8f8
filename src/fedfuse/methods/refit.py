"""Refit: every cluster trains its own model on all its rows, federated; and the oracle, which knows the clusters.

The paper stops at FPFC's own estimates, which are biased by the penalty and slow to converge once the clusters are
right. Here each cluster minimises its pooled, sample-weighted loss by L-BFGS on the server: devices send gradients of
their own loss, nothing else. Three things keep the number of rounds small and need no parameter: columns are rescaled
to mean 0 and standard deviation 1 over the federation (devices send moments once); how long to train is told by the
validation rows; then the same path is gone again with these rows included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedfuse.clusters import canonical
from fedfuse.errors import FedfuseError
from fedfuse.lbfgs import LBFGS
from fedfuse.methods.base import Found, World
from fedfuse.methods.staged import END, Staged, StagedState
from fedfuse.tasks import Gradient, Moments, Part, Rescale, Task
from fedfuse.types import Bools, Floats, Ints

LONGEST = 60  # evaluations at the most
FLAT = 1e-4  # relative: a training loss that fell by less in WINDOW evaluations has converged
WINDOW = 3
WORSE = 1e-2  # relative: a validation loss above its best by more than this is rising,
PATIENCE = 4  # and when it has been for so many evaluations, the cluster overfits


@dataclass(frozen=True)
class Refit(Staged):
    """Train one model for each cluster that the method before has found."""

    name: ClassVar[str] = "refit"
    first: ClassVar[str] = "moments"
    rows: Part = "train"

    @property
    def rounds(self) -> int | None:
        return 10**9  # ends by itself: every stage is bounded

    def _prepare(self, state: StagedState, before: Found | None) -> None:
        labels = self._clusters(state.world, before)
        state.put("labels", labels)
        state.put("lam", np.nan if before is None or before.lam is None else before.lam)
        state.memory["models"] = np.zeros((int(labels.max()) + 1, state.world.d))
        columns = state.world.model.n_features + (state.world.model.goal == "regression")
        state.put("shift", np.zeros(columns))
        state.put("scale", np.ones(columns))

    def _clusters(self, world: World, before: Found | None) -> Ints:
        if before is None:
            raise FedfuseError("refit needs clusters that another method has found")
        return canonical(before.labels)

    # -- one scale for all devices

    def _ask_moments(self, state: StagedState, devices: Ints) -> list[Task]:
        return [Moments(len(state.memory["shift"]))] * len(devices)

    def _take_moments(self, state: StagedState) -> str:
        who = list(state.answers)
        weights = state.world.counts["train"][who]
        first, second = np.split(np.average([state.answers[i] for i in who], axis=0, weights=weights), 2)
        deviation = np.sqrt(np.maximum(second - first**2, 0))
        constant = deviation <= 1e-9 * np.maximum(np.abs(first), 1)
        state.put("shift", first)
        state.put("scale", np.where(constant, 1.0, deviation))
        return "rescale"

    def _ask_rescale(self, state: StagedState, devices: Ints) -> list[Task]:
        return [Rescale(state.memory["shift"], state.memory["scale"])] * len(devices)

    def _take_rescale(self, state: StagedState) -> str:
        return self._fit_from(state, np.zeros_like(state.memory["models"]))

    # -- how long to train: on training rows, watched by validation rows

    def _fit_from(self, state: StagedState, start: Floats) -> str:
        state.memory["start"] = start
        state.memory |= LBFGS.start(start).pack()
        clusters = len(start)
        for name in ("best_step", "steps"):
            state.put(name, np.zeros(clusters, np.int64))
        state.put("best_loss", np.full(clusters, np.inf))
        state.memory["slopes"] = np.zeros_like(start)
        state.memory["losses"] = np.full((clusters, WINDOW + 1), np.finfo(np.float64).max)
        state.put("still", np.ones(clusters, np.bool_))
        return "fit"

    def _ask_fit(self, state: StagedState, devices: Ints) -> list[Task]:
        return [Gradient(w, "train", also=("train", "validation")) for w in self._trials(state, devices)]

    def _skip_fit(self, state: StagedState) -> Bools:
        return ~state.memory["still"][state.memory["labels"]]

    def _take_fit(self, state: StagedState) -> str:
        optimiser = LBFGS.unpack(state.memory)
        loss, gradient, (_, watched) = self._pooled(state, "train", 2)
        memory, still = state.memory, state.memory["still"]
        optimiser.done |= ~still
        trial = optimiser.ask().copy()
        optimiser.tell(loss, gradient)
        memory["steps"][still] += 1
        memory["losses"][still] = np.column_stack([optimiser.f, memory["losses"][:, :-1]])[still]
        good = still & (watched <= memory["best_loss"] * (1 + WORSE))  # of equals, the one trained longest
        memory["best_loss"][still] = np.minimum(watched, memory["best_loss"])[still]
        memory["best_step"][good] = memory["steps"][good]
        memory["models"][good], memory["slopes"][good] = trial[good], gradient[good]
        flat = memory["losses"][:, -1] - memory["losses"][:, 0] <= FLAT * np.abs(memory["losses"][:, 0])
        rising = memory["steps"] >= memory["best_step"] + PATIENCE
        memory["still"] = still & ~optimiser.done & ~flat & ~rising & (memory["steps"] < LONGEST)
        memory |= optimiser.pack()
        return "fit" if memory["still"].any() else self._after_fit(state)

    def _after_fit(self, state: StagedState) -> str:
        return self._go_again(state)

    # -- the same path with the validation rows

    def _go_again(self, state: StagedState) -> str:
        state.memory["chosen"] = state.memory["models"].copy()
        state.memory |= LBFGS.start(state.memory["start"]).pack()
        state.put("steps", np.zeros(len(state.memory["start"]), np.int64))
        state.put("still", state.memory["best_step"] > 0)
        return "again" if state.memory["still"].any() else END

    def _ask_again(self, state: StagedState, devices: Ints) -> list[Task]:
        rows: Part = "train+validation"
        return [Gradient(w, rows, also=(rows,)) for w in self._trials(state, devices)]

    _skip_again = _skip_fit

    def _take_again(self, state: StagedState) -> str:
        optimiser = LBFGS.unpack(state.memory)
        loss, gradient, _ = self._pooled(state, "train+validation", 1)
        memory, still = state.memory, state.memory["still"]
        optimiser.done |= ~still
        optimiser.tell(loss, gradient)
        memory["models"][still] = optimiser.x[still]
        memory["steps"][still] += 1
        memory["still"] = still & ~optimiser.done & (memory["steps"] < memory["best_step"])
        memory |= optimiser.pack()
        return "again" if memory["still"].any() else END

    def _trials(self, state: StagedState, devices: Ints) -> Floats:
        return state.memory["lbfgs_trial"][state.memory["labels"][devices]].astype(state.world.dtype)

    def _pooled(self, state: StagedState, rows: Part, parts: int) -> tuple[Floats, Floats, list[Floats]]:
        """Return loss, gradient and the other losses of every cluster from its members' answers."""
        labels, d, clusters = state.memory["labels"], state.world.d, len(state.memory["start"])
        total = np.zeros((clusters, d + parts))
        weight = np.zeros((clusters, 2))
        for i, answer in state.answers.items():
            n, n_watched = state.world.counts[rows][i], state.world.counts["validation"][i]
            total[labels[i], : d + 1] += n * answer[: d + 1]
            total[labels[i], d + 1 :] += n_watched * answer[d + 1 :]
            weight[labels[i]] += n, n_watched
        total[:, : d + 1] /= np.maximum(weight[:, :1], 1)
        total[:, d + 1 :] /= np.maximum(weight[:, 1:], 1)
        # a cluster without validation rows is watched by its training rows: it trains to the end
        blind = weight[:, 1] == 0
        total[blind, d + 1 :] = total[blind, d : d + 1]
        return total[:, d], total[:, :d], [total[:, d + k] for k in range(parts)]

    def recovery(self, state: StagedState) -> list[dict[int, Task]]:
        if state.stage in ("moments", "rescale"):
            return []
        everyone = np.arange(state.world.m)
        return [dict(enumerate(self._ask_rescale(state, everyone)))]

    # -- what there is to see

    def models(self, state: StagedState) -> Floats:
        return self._raw(state, state.memory["models"])[state.memory["labels"]]

    def labels(self, state: StagedState) -> Ints:
        return canonical(state.memory["labels"])

    def final(self, state: StagedState, world: World) -> Found:
        lam = float(state.memory["lam"][0])
        return Found(self.models(state), self.labels(state), lam if np.isfinite(lam) else None)

    def validated(self, state: StagedState, found: Found) -> Floats | None:
        chosen = state.memory.get("chosen")
        return None if chosen is None else self._raw(state, chosen)[state.memory["labels"]]

    def describe(self, state: StagedState) -> dict[str, Any]:
        return {"stage": state.stage, "lam": float(state.memory["lam"][0])}

    def _raw(self, state: StagedState, models: Floats) -> Floats:
        """Return models for the columns as they are on the devices at first."""
        shift, scale = state.memory["shift"], state.memory["scale"]
        return np.stack([state.world.model.unscaled(w, shift, scale) for w in models])


@dataclass(frozen=True)
class Oracle(Refit):
    """Pooled training within the true clusters: the yardstick for every method, where the truth is known."""

    name: ClassVar[str] = "oracle"

    def _clusters(self, world: World, before: Found | None) -> Ints:
        if world.truth is None:
            raise FedfuseError("the oracle needs to be told the true groups, and these data have none")
        return canonical(world.truth)
