"""L-BFGS on the pooled loss of every group, stopped by validation rows.

Each group minimises the sample-weighted mean of its members' losses. Devices send gradients and losses at the point
that the server proposes; the server does the rest. A group is trained until its training loss has converged, or until
its validation loss has been rising for a few steps. The model with the least validation loss is kept, and of models
that cannot be told apart the one that was trained longest.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np

from fedfuse.core.lbfgs import LBFGS
from fedfuse.core.robust_mean import Robust, robust_mean, upper_fence
from fedfuse.data.federation import Goal
from fedfuse.utils.typing import Bools, Floats, Ints

MAX_EVALUATIONS = 60
# A training loss that fell by less than this ratio in CONVERGENCE_STEPS steps has converged.
MIN_LOSS_FALL_RATIO = 1e-3
CONVERGENCE_STEPS = 3
# A validation loss is rising when it is above its best by more than this ratio and by more than so many standard errors
# (1 %); when it has been rising for MAX_RISING_STEPS steps, the group overfits.
MAX_LOSS_RISE_RATIO = 1e-2
LOSS_RISE_ZSCORE = 2.33
MAX_RISING_STEPS = 4
# A loss that is not known yet.
UNKNOWN_LOSS = float(np.finfo(np.float64).max)


class PooledReplies(NamedTuple):
    """What the members of every group have answered, pooled."""

    loss: Floats
    gradient: Floats
    validation_loss: Floats
    heard: Bools  # whether a member has answered


def pool(
    values: Floats, labels: Ints, n_groups: int, d: int, rows: Floats, validation_rows: Floats, robust: Robust
) -> PooledReplies:
    """Pool what devices have answered: gradients of length d, the loss, and where asked the validation loss.

    ``labels``, ``rows`` and ``validation_rows`` are those of the devices that answered.
    """
    total, heard = np.zeros((n_groups, values.shape[1])), np.bincount(labels, minlength=n_groups) > 0
    if robust in ("none", "screen"):
        trained, watched = (np.bincount(labels, n, n_groups) for n in (rows, validation_rows))
        if robust == "screen" and values.shape[1] > d + 1:  # One false loss must not say how long all train.
            judges = validation_rows > 0
            # What is usual elsewhere is not absurd: of two devices, one whose rows are told apart without error would
            # hide what a model in which they differ costs the other.
            seen = values[judges, -1]
            fences = np.maximum(upper_fence(seen, labels[judges], n_groups), upper_fence(seen)[0])
            values = np.column_stack([values[:, :-1], np.minimum(values[:, -1], fences[labels])])
        np.add.at(total[:, : d + 1], labels, rows[:, None] * values[:, : d + 1])
        np.add.at(total[:, d + 1 :], labels, validation_rows[:, None] * values[:, d + 1 :])
        total[:, : d + 1] /= np.maximum(trained, 1)[:, None]
        total[:, d + 1 :] /= np.maximum(watched, 1)[:, None]
        heard = trained > 0
    else:
        watched = np.bincount(labels, validation_rows > 0, n_groups)
        for c in np.flatnonzero(heard):
            answers = values[labels == c].astype(np.float64)
            total[c] = robust_mean(answers, rows[labels == c].astype(np.float64), robust)
            # Devices without validation rows have no say in how long to train.
            if watched[c]:
                judges = validation_rows[labels == c] > 0
                total[c, d + 1 :] = np.median(answers[judges, d + 1 :], axis=0)
    # A group without validation rows is watched by its training rows: it trains until it has converged.
    unwatched = watched == 0
    total[unwatched, d + 1 :] = total[unwatched, d : d + 1]
    return PooledReplies(total[:, d], total[:, :d], total[:, -1], heard)


@dataclass
class PooledFit:
    """Training of all groups from ``start``: each array has one entry per group."""

    start: Floats
    training: Bools
    optimiser: LBFGS = field(init=False)
    evaluations: Ints = field(init=False)
    steps: Ints = field(init=False)
    losses: Floats = field(init=False)  # the last few training losses, newest first
    best_loss: Floats = field(init=False)  # least validation loss so far,
    best_train_loss: Floats = field(init=False)  # and the training loss of that model
    best_step: Ints = field(init=False)  # step of the model that is kept,
    since_best: Ints = field(init=False)  # steps since then,
    gradients: Floats = field(init=False)  # and its gradient on training rows
    converged: Bools = field(init=False)  # whether training ended because there was nothing left to gain

    def __post_init__(self) -> None:
        n = len(self.start)
        self.best_loss, self.best_train_loss = np.full((2, n), np.inf)
        self.best_step, self.since_best = np.zeros((2, n), np.int64)
        self.gradients, self.converged = np.zeros_like(self.start), np.zeros(n, np.bool_)
        self._set_out()

    def _set_out(self) -> None:
        """Go to the start."""
        n = len(self.start)
        self.optimiser, self.losses = LBFGS.start(self.start), np.full((n, CONVERGENCE_STEPS + 1), UNKNOWN_LOSS)
        self.evaluations, self.steps = np.zeros((2, n), np.int64)

    def resume(self, models: Floats, training: Bools) -> None:
        """Train on more rows: converged groups from their models and curvature, others from the same start."""
        there, old = self.converged, self.optimiser
        self.start, self.training = np.where(there[:, None], models, self.start), training
        self._set_out()
        self.optimiser.S[there], self.optimiser.Y[there] = old.S[there], old.Y[there]
        self.optimiser.pairs[there] = old.pairs[there]

    def restart(self, group: int, models: Floats) -> None:
        """Train one group again from its model; others go on."""
        new = LBFGS.start(models)
        for f in fields(new):
            getattr(self.optimiser, f.name)[group] = getattr(new, f.name)[group]
        self.losses[group], self.evaluations[group], self.steps[group] = UNKNOWN_LOSS, 0, 0
        self.training = self.training | (np.arange(len(models)) == group)

    def regroup(self, old: Ints, new: Ints, n_groups: int) -> None:
        """Renumber groups before a new start or `resume`; ``old`` and ``new`` are labels of the devices that stay."""
        for part in (self, self.optimiser):
            arrays = {f.name: getattr(part, f.name) for f in fields(part) if f.name != "optimiser"}
            for name, array in arrays.items():
                setattr(part, name, regrouped(array, old, new, n_groups))

    def advance(self, replies: PooledReplies) -> Bools:
        """Take in an evaluation; return the groups for which it was a step, and not one that was too long."""
        self.optimiser.done |= ~self.training
        self.optimiser.tell(replies.loss, replies.gradient, replies.heard)
        stepped: Bools = self.training & replies.heard & (self.optimiser.cuts == 0)
        self.evaluations[self.training] += 1
        self.steps[stepped] += 1
        self.losses[stepped] = np.column_stack([replies.loss, self.losses[:, :-1]])[stepped]
        return stepped

    def watch(self, replies: PooledReplies, margin: Floats) -> Bools:
        """Take in an evaluation of training and validation rows; return the groups whose new model is to be kept."""
        loss, watched = replies.loss, replies.validation_loss
        stepped = self.advance(replies)
        good = stepped & (watched <= self.best_loss + margin)
        better = stepped & (watched < self.best_loss)
        self.best_loss[better], self.best_train_loss[better] = watched[better], loss[better]
        self.since_best[stepped] += 1
        self.since_best[good] = 0
        self.best_step[good] = self.steps[good]
        self.gradients[good] = replies.gradient[good]
        ends = self.training & (self.flat() | (self.since_best >= MAX_RISING_STEPS))
        self.converged |= ends & (self.since_best == 0)
        self.training = self.training & ~ends
        return good

    def follow(self, replies: PooledReplies) -> Bools:
        """Take in an evaluation on all rows: go on for as many steps as were good before, or until converged."""
        stepped = self.advance(replies)
        going_on = self.converged | (self.steps < self.best_step)
        self.training = self.training & going_on & ~self.flat()
        return stepped

    def flat(self) -> Bools:
        """Return the groups whose training loss no longer falls."""
        now, before = self.losses[:, 0], self.losses[:, -1]
        flat = (before < UNKNOWN_LOSS) & (before - now <= MIN_LOSS_FALL_RATIO * np.abs(now))
        return np.asarray(self.optimiser.done | flat | (self.evaluations >= MAX_EVALUATIONS))

    def margin(self, loss: Floats, validation_rows: Floats | Ints, goal: Goal) -> Floats:
        """Return how far above its best a validation loss may be by chance.

        The difference between two models' losses varies as the gradient does along the way from one to the other,
        and for both losses here that is by their curvature (times twice the noise for squares): so it is told by
        how much the training loss fell on that way.
        """
        seen = np.isfinite(self.best_loss)
        known = np.where(seen, self.best_loss, 0)
        unit = 2 * known if goal == "regression" else 1.0
        fell = np.where(seen, self.best_train_loss - loss, 0).clip(min=0)
        by_chance = LOSS_RISE_ZSCORE * np.sqrt(2 * unit * fell / np.maximum(validation_rows, 1))
        return np.maximum(MAX_LOSS_RISE_RATIO * known, by_chance)


def regrouped(values: Floats, old: Ints, new: Ints, n_groups: int) -> Floats:
    """Return one row per new group, each from the old group of a device in it; zero where there is none."""
    rows = np.zeros((n_groups, *values.shape[1:]), values.dtype)
    rows[new] = values[old]
    return rows
