"""The small vocabulary that server and devices share.

A task is what the server asks of one device, a reply is what the device sends back. A task knows how many
floats it carries down and how many must come up, so that the cost of every method is counted from what is
really sent (`Ledger`) and an upload of another size is refused (`fault`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError
from fedfuse.protocol.local_work import PER_DEVICE, Schedule, value
from fedfuse.utils.typing import Floats

Part: TypeAlias = Literal["train", "train/1", "train/2", "validation", "train+validation", "test", "all"]
Solver: TypeAlias = Literal["gd", "exact"]
Into: TypeAlias = Literal["all", "shared", "fused"]
Send: TypeAlias = Literal["model", "part", "update", "nothing"]
Unit: TypeAlias = Literal["epochs", "batches"]
OFTEN = 3  # refusals that make a device suspect, where it is for what it sent:
CONTENT = ("wrong length", "not numbers", "not finite", "too large", "far too long")  # late is not a lie
SUMMARISED: tuple[Part, ...] = ("train", "validation")  # the parts that devices can sum up
LOOK = -2  # the round of what is no message, but a look at a device


@dataclass(frozen=True)
class Work:
    """How a device trains: gradient steps, mini-batch steps, or its problem solved to the end.

    Parameters
    ----------
    steps
        Full-batch gradient steps; with ``batch``, passes over the data or mini-batch steps, as ``unit`` says.
    lr
        Step size.
    batch
        Rows per mini-batch; ``None`` for full-batch gradient descent.
    solver
        ``"gd"`` follows ``steps``, ``lr`` and ``batch``; ``"exact"`` solves the device's convex problem
        (linear regression in closed form, softmax regression by Newton's method) and needs none of them.
    momentum
        As `torch.optim.SGD` has it, from rest in every round; for networks only.
    decay
        Weight decay: ``decay * w`` is added to the gradient.
    unit
        What ``steps`` counts when ``batch`` is given: ``"epochs"`` or ``"batches"``. Batches go on through reshuffled
        epochs; the last batch of an epoch may be smaller.
    """

    steps: Schedule = 10
    lr: Schedule = 0.1
    batch: int | None = None
    solver: Solver = "gd"
    momentum: float = 0.0
    decay: float = 0.0
    unit: Unit = "epochs"

    def __post_init__(self) -> None:
        steps, lr = value(self.steps, 0), value(self.lr, 0)
        if not 1 <= steps < np.inf or (steps is self.steps and steps != int(steps)):
            raise FedfuseError(f"steps must be a whole number of at least 1, got {self.steps}")
        if not 0 < lr < np.inf:
            raise FedfuseError(f"lr must be a positive number, got {self.lr}")
        if isinstance(self.lr, PER_DEVICE):
            raise FedfuseError(f"lr cannot be drawn for each device, got {self.lr}; steps can")
        if self.batch is not None and self.batch < 1:
            raise FedfuseError(f"batch must be at least 1, got {self.batch}")
        if self.solver not in ("gd", "exact"):
            raise FedfuseError(f"solver must be 'gd' or 'exact', got {self.solver!r}")
        if not 0 <= self.momentum < 1:
            raise FedfuseError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        if not 0 <= self.decay < np.inf:
            raise FedfuseError(f"decay must be a number of at least 0, got {self.decay}")
        if self.unit not in ("epochs", "batches"):
            raise FedfuseError(f"unit must be 'epochs' or 'batches', got {self.unit!r}")

    def at(self, k: int) -> Work:
        """Return the work of round ``k``: the same with plain numbers for schedules.

        What is drawn for each device stays open until its order is made (`for_device`).
        """
        # a schedule that falls ends at the smallest work there is, not in an error after hours
        steps, lr = max(1, int(value(self.steps, k))), max(value(self.lr, k), sys.float_info.min)
        return replace(self, steps=self.steps if isinstance(self.steps, PER_DEVICE) else steps, lr=lr)


@dataclass(frozen=True)
class Install:
    """Keep this vector as your own model (the first broadcast). Answered without floats.

    The first ``known`` numbers devices can make themselves (zeros, or a draw from a seed that all know): these are not
    sent.
    """

    model: Floats
    known: int = 0

    @property
    def floats_down(self) -> int:
        return int(self.model.size) - self.known

    def floats_up(self, d: int) -> int:
        return 0


@dataclass(frozen=True)
class Add:
    """Add this vector to your own model. Answered without floats."""

    update: Floats

    @property
    def floats_down(self) -> int:
        return int(self.update.size)

    def floats_up(self, d: int) -> int:
        return 0


@dataclass(frozen=True)
class Show:
    """Let your own model be looked at: for the record of an experiment, never part of a method."""

    @property
    def floats_down(self) -> int:
        return 0

    def floats_up(self, d: int) -> int:
        return d


@dataclass(frozen=True)
class Train:
    """Minimise ``f_i(w) + rho/2 ||w - anchor||^2`` from ``start``; send the new w.

    ``start=None`` means: from your own last model, which you keep. ``anchor=None`` with ``rho`` means: towards
    zero, and without it no anchor at all. Nothing is sent for either. With ``score``, the accuracy or RMSE of the
    new w on that part of your rows follows it (0 if there are none).

    Of a model with shared weights, ``start`` may be one part alone, ``into`` says which; the rest is the device's own.
    The anchor pulls on the fused part, and has its length. ``send`` says what comes back: the new model, only the
    ``"part"`` that ``start`` was, the ``"update"`` (new minus old, and the old model is kept), or nothing at all.
    """

    work: Work
    start: Floats | None = None
    anchor: Floats | None = None
    rho: float = 0.0
    rows: Part = "train"
    score: Part | None = None
    into: Into = "all"
    send: Send = "model"

    @property
    def floats_down(self) -> int:
        return sum(v.size for v in (self.start, self.anchor) if v is not None)

    def floats_up(self, d: int) -> int:
        sent = {"model": d, "update": d, "nothing": 0, "part": 0 if self.start is None else self.start.size}
        return sent[self.send] + (self.score is not None)


@dataclass(frozen=True)
class MetaTrain:
    """Take ``work.steps`` steps of size ``work.lr`` against the loss after one gradient step of size ``inner``; send w.

    u = w - inner grad f(w), g = grad f(u), then w - lr g (first order), or with ``hessian`` w - lr (g - inner h), where
    h = (grad f(w + eps g) - grad f(w - eps g)) / (2 eps) stands for the Hessian times g. With mini-batches the
    gradients of u, g and h are each on a batch of their own.
    """

    work: Work
    start: Floats
    inner: float
    hessian: bool = False
    rows: Part = "train"

    @property
    def floats_down(self) -> int:
        return int(self.start.size)

    def floats_up(self, d: int) -> int:
        return d


@dataclass(frozen=True)
class Choose:
    """Find the head that suits your rows best, and work with it: the step of a device in IFCA.

    A head is the fused part of a model, ``shared`` the part that all have in common. Without ``work`` the gradient
    comes back, else the trained model; then one weight for each head: 1 for the one with the least loss, 0 for the
    others. With a ``temperature`` the weights are softmax(-loss / temperature), and there are as many answers as heads,
    one after the other.
    """

    shared: Floats
    heads: Floats
    work: Work | None = None
    temperature: float = 0.0
    rows: Part = "train"

    @property
    def floats_down(self) -> int:
        return int(self.shared.size + self.heads.size)

    def floats_up(self, d: int) -> int:
        answers = len(self.heads) if self.temperature else 1
        return answers * d + len(self.heads)


@dataclass(frozen=True)
class Subspace:
    """Send the first ``p`` left singular vectors of your features (features x rows), for classes those of each class.

    Columns one after the other, each with a sum that is not negative: singular vectors have no sign of their own.
    """

    p: int
    features: int
    classes: int
    rows: Part = "train"

    @property
    def floats_down(self) -> int:
        return 0

    def floats_up(self, d: int) -> int:
        """At the most: a device that lacks a class, or rows of it, sends less."""
        return self.features * self.p * max(self.classes, 1)


@dataclass(frozen=True)
class Score:
    """Send the accuracy or RMSE of this model on these of your rows (0 if there are none).

    With ``raw``, on their columns as they were before any `Rescale`.
    """

    model: Floats
    rows: Part = "validation"
    raw: bool = False

    @property
    def floats_down(self) -> int:
        return int(self.model.size)

    def floats_up(self, d: int) -> int:
        return 1


@dataclass(frozen=True)
class Alone:
    """Fit your own rows with each of these ridges and send the best: all that a device without companions can do.

    Validation rows say which is best; the model that is sent was then fitted with these rows included.
    """

    ridges: tuple[float, ...]

    @property
    def floats_down(self) -> int:
        return len(self.ridges)

    def floats_up(self, d: int) -> int:
        return d


@dataclass(frozen=True)
class Gradient:
    """Send the gradient of your loss at this vector, and your loss on the parts ``also``."""

    at: Floats
    rows: Part = "train"
    also: tuple[Part, ...] = ()

    @property
    def floats_down(self) -> int:
        return int(self.at.size)

    def floats_up(self, d: int) -> int:
        return d + len(self.also)


@dataclass(frozen=True)
class Losses:
    """Send the loss of each of these models (one row each) on your data."""

    models: Floats
    rows: Part = "train"

    @property
    def floats_down(self) -> int:
        return int(self.models.size)

    def floats_up(self, d: int) -> int:
        return len(self.models)


@dataclass(frozen=True)
class Judge:
    """Send the mean loss of each of these models on your rows, and how these means vary together.

    With ``own``, your own model is judged too, as the first. The answer is n means, then the n (n + 1) / 2 entries
    of the upper triangle of their covariance matrix, row by row: what a paired test of any two models needs.
    With ``balanced``, every class counts the same: a device's own mix of classes then says nothing for its own model.
    """

    models: Floats
    rows: Part = "validation"
    own: bool = False
    balanced: bool = False

    @property
    def floats_down(self) -> int:
        return int(self.models.size)

    def floats_up(self, d: int) -> int:
        n = len(self.models) + self.own
        return n + n * (n + 1) // 2


@dataclass(frozen=True)
class Residue:
    """Send the cosine between the gradients of your training and of your validation loss at this vector.

    From both, ``common`` is taken first: the gradient of your whole group. Where the group's model suits a device,
    what is left is noise and independent, and the cosine is around zero. Where it does not, both point the same way.
    """

    at: Floats
    common: Floats

    @property
    def floats_down(self) -> int:
        return int(self.at.size + self.common.size)

    def floats_up(self, d: int) -> int:
        return 1


@dataclass(frozen=True)
class Moments:
    """Send the means of your columns, then of their squares (for values the target is the last column)."""

    columns: int
    rows: Part = "train"

    @property
    def floats_down(self) -> int:
        return 0

    def floats_up(self, d: int) -> int:
        return 2 * self.columns


@dataclass(frozen=True)
class Summarise:
    """Send the means of your columns (the target is the last) and their covariances, of each part of `SUMMARISED`.

    Of the symmetric matrix, which is that of all rows and not an estimate for more of them, the upper triangle, row by
    row; zeros for a part without rows. One number follows: how much larger the noise of rows is that matter for the
    parameters than that of all (White, 1980; 1 where noise is the same everywhere). That is all that linear regression
    can learn from these rows, and how far it is to be trusted.
    """

    columns: int

    @property
    def floats_down(self) -> int:
        return 0

    def floats_up(self, d: int) -> int:
        return len(SUMMARISED) * self.columns * (self.columns + 3) // 2 + 1


@dataclass(frozen=True)
class Rescale:
    """From now on use ``(column - shift) / scale`` in place of every column. Answered without floats."""

    shift: Floats
    scale: Floats

    @property
    def floats_down(self) -> int:
        return int(self.shift.size + self.scale.size)

    def floats_up(self, d: int) -> int:
        return 0


# Tasks that are answered by numbers about rows, not by vectors of a model: the server computes with these in float64.
STATISTICS = (Score, Losses, Judge, Residue, Moments, Summarise)

Task: TypeAlias = (
    Install | Add | Show | Train | MetaTrain | Choose | Subspace | Score
    | Alone | Gradient | Losses | Judge | Residue | Moments | Summarise | Rescale
)  # fmt: skip


def for_device(task: Task, seed: int, k: int, device: int, most: float = np.inf) -> Task:
    """Return the task as this device gets it in round k: with its own number of steps, and with ``most`` at the most.

    >>> from fedfuse.protocol.local_work import Uneven
    >>> 1 <= for_device(Train(Work(steps=Uneven(10))), 0, 3, 1).work.steps <= 10
    True
    """
    work: Work | None = getattr(task, "work", None)
    if work is None or work.solver == "exact":
        return task
    steps = work.steps.drawn(seed, k, device) if isinstance(work.steps, PER_DEVICE) else value(work.steps, k)
    limited = max(1, int(min(steps, most)))
    return task if limited == work.steps else with_work(task, replace(work, steps=limited))


def with_work(task: Task, work: Work) -> Task:
    """Return a task that asks for training with other work."""
    return replace(task, work=work)  # type: ignore[arg-type]


def steps_of(task: Task) -> int:
    """Return the gradient steps that a task asks for (0 if it asks for none)."""
    work: Work | None = getattr(task, "work", None)
    return 0 if work is None or work.solver == "exact" else int(value(work.steps, 0))


@dataclass(frozen=True)
class Order:
    """A task for one device in one round."""

    device: int
    round: int
    task: Task


@dataclass(frozen=True)
class Reply:
    """What a device sent back, as it arrived: not yet checked (see `fault`)."""

    device: int
    round: int
    values: Floats

    @property
    def floats_up(self) -> int:
        return int(np.size(self.values))


def largest_value(d: int, dtype: npt.DTypeLike) -> float:
    """Return the largest number that ``d`` parameters may hold: squared distances must not overflow."""
    return _largest_value(d, np.dtype(dtype))


@cache
def _largest_value(d: int, dtype: np.dtype[np.floating]) -> float:
    return float(np.sqrt(np.finfo(dtype).max / (16 * max(d, 1))))


def fault(reply: Reply, asked: Mapping[int, Order], m: int, d: int, dtype: npt.DTypeLike) -> str | None:
    """Say what is wrong with a reply, or None: the gate between devices and the server's state.

    >>> asked = {1: Order(1, 7, Gradient(np.zeros(2)))}
    >>> fault(Reply(1, 6, np.ones(2)), asked, m=3, d=2, dtype="float32")
    'not asked for, or too late'
    """
    if not 0 <= reply.device < m:
        return "unknown device"
    order = asked.get(reply.device)
    if order is None or reply.round != order.round:
        return "not asked for, or too late"
    values = np.asarray(reply.values)
    if values.ndim != 1 or not _fits(order.task, values.size, d):
        return "wrong length"
    if values.dtype.kind not in "fiu":
        return "not numbers"
    largest = float(np.abs(values).max(initial=0))
    if not np.isfinite(largest):
        return "not finite"
    kind = np.float64 if isinstance(order.task, STATISTICS) else dtype
    return "too large" if largest > largest_value(d, kind) else None


def _fits(task: Task, size: int, d: int) -> bool:
    if isinstance(task, Subspace):
        return 0 < size <= task.floats_up(d) and size % task.features == 0
    return size == task.floats_up(d)


@dataclass
class Ledger:
    """The one place that counts communication: floats sent in either direction, orders, and what became of them.

    Every order is used, refused or unanswered; every reply is used or refused. Some replies answer no order that is
    still open (second answers, answers to old rounds): they are among the refused ones, and counted as ``uncalled``.
    """

    down: int = 0
    up: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # replies, by reason
    orders: int = 0
    replies: int = 0
    used: int = 0
    uncalled: int = 0
    unanswered: int = 0
    blamed: dict[str, int] = field(default_factory=dict)  # refusals for content by device; as text, for JSON

    def sent(self, order: Order) -> None:
        self.down += order.task.floats_down
        self.orders += 1

    def received(self, reply: Reply) -> None:
        self.up += reply.floats_up
        self.replies += 1

    def refuse(self, reason: str, device: int) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        if reason in CONTENT:
            self.blamed[str(device)] = self.blamed.get(str(device), 0) + 1

    def often_refused(self, m: int) -> list[int]:
        """Return the devices whose answers were refused for what they say several times, and far more often than most.

        An answer that is late, or that nobody waits for any more, says nothing of its sender.
        """
        counts = np.array([self.blamed.get(str(i), 0) for i in range(m)])
        return [int(i) for i in np.flatnonzero((counts >= OFTEN) & (counts > 3 * np.median(counts)))]

    @property
    def outcome(self) -> dict[str, int]:
        """Return what became of the orders: ``sent = used + refused + unanswered``."""
        refused = sum(self.refused.values()) - self.uncalled
        return {
            "sent": self.orders, "used": self.used, "refused": refused, "unanswered": self.unanswered,
            "uncalled": self.uncalled,
        }  # fmt: skip

    @property
    def floats(self) -> int:
        return self.down + self.up
