"""Tasks, orders and replies: the vocabulary that server and devices share.

A task is what the server asks of one device, a reply is what the device sends back. A task knows how many
floats it carries down and how many must come up, so that the cost of every method is counted from what is
really sent (`CommunicationLedger`) and an upload of another size is refused (`fault`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from fedfuse.data.federation import Part
from fedfuse.protocol.local_work import Uneven, Work, value
from fedfuse.utils.typing import Floats

Into: TypeAlias = Literal["all", "shared", "fused"]
Send: TypeAlias = Literal["model", "part", "update", "nothing"]
# The parts of their rows that devices send sufficient statistics of.
SUMMARISED: tuple[Part, ...] = ("train", "validation")
# Pseudo-round for evaluation that is not counted.
EVALUATION_ROUND = -2


def part_of(into: Into, d: int, fused: slice) -> slice:
    """Return the place of a part among d parameters."""
    return {"all": slice(0, d), "shared": slice(0, fused.start), "fused": slice(fused.start, d)}[into]


class _Message:
    """Cost of a task: its arrays and tuples of numbers are sent down; of a model with d parameters so many come up."""

    @property
    def floats_down(self) -> int:
        down = 0
        for sent in vars(self).values():
            if isinstance(sent, np.ndarray):
                down += sent.size
            elif isinstance(sent, tuple):
                down += sum(isinstance(n, (int, float)) for n in sent)
        return down

    def floats_up(self, d: int) -> int:
        return 0


class _AsksForModel(_Message):
    def floats_up(self, d: int) -> int:
        return d


@dataclass(frozen=True)
class Install(_Message):
    """Keep this as your own model; its first ``known`` numbers you can make yourself. Answered without floats."""

    model: Floats
    known: int = 0

    @property
    def floats_down(self) -> int:
        return super().floats_down - self.known


@dataclass(frozen=True)
class Add(_Message):
    """Add this vector to your own model. Answered without floats."""

    update: Floats


@dataclass(frozen=True)
class PeekModel(_AsksForModel):
    """Send your own model for evaluation: never part of a method, and not counted."""


@dataclass(frozen=True)
class Train(_Message):
    """Minimise ``f_i(w) + rho/2 ||w - anchor||^2`` from ``start``; send the new w.

    ``start=None`` means: from your own last model, which you keep. ``anchor=None`` with ``rho`` means: towards
    zero, and without it no anchor at all. Nothing is sent for either. With ``score``, the accuracy or RMSE of the
    new w on that part of your rows follows it (0 if there are none).

    Of a model with shared weights, ``start`` may be one part alone, ``into`` says which; the rest is the device's own.
    The anchor pulls on the fused part or on all of a model, as its length says; with ``near`` it is ``start`` itself,
    and not sent again. ``send`` says what comes back: the new model, only the ``"part"`` that ``start`` was, the
    ``"update"`` (new minus old, and the old model is kept), or nothing at all.

    For some methods: ``share``, to begin between your own model (0) and ``start`` (1); ``slope``, which is added to
    every gradient; ``rest_steps``, to take so many steps on the rest of the model first, and then those of ``work`` on
    the part alone; ``neighbours``, models of others, as Network Lasso sends them along.
    """

    work: Work
    start: Floats | None = None
    anchor: Floats | None = None
    rho: float = 0.0
    rows: Part = "train"
    score: Part | None = None
    into: Into = "all"
    send: Send = "model"
    near: bool = False
    share: float = 1.0
    slope: Floats | None = None
    rest_steps: int = 0
    neighbours: Floats | None = None

    def floats_up(self, d: int) -> int:
        sent = {"model": d, "update": d, "nothing": 0, "part": 0 if self.start is None else self.start.size}
        return sent[self.send] + (self.score is not None)


@dataclass(frozen=True)
class MetaTrain(_AsksForModel):
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


@dataclass(frozen=True)
class TrainPair(_Message):
    """Train ``start`` on f_i, and a personal model on f_i + rho/2 ||v - start||^2; send the first.

    The personal model is your own, which you keep; or ``second``, and then it is sent too, after the first.
    """

    work: Work
    start: Floats
    rho: float
    second: Floats | None = None
    rows: Part = "train"

    def floats_up(self, d: int) -> int:
        return d if self.second is None else 2 * d


@dataclass(frozen=True)
class EnvelopeTrain(_AsksForModel):
    """Descend on the Moreau envelope of f_i, ``local_rounds`` times: w <- w - rate (w - theta); send w.

    theta is what ``work`` makes of f_i + rho/2 ||theta - w||^2, from the last theta.
    """

    work: Work
    start: Floats
    rho: float
    rate: float
    local_rounds: int
    rows: Part = "train"


@dataclass(frozen=True)
class MixtureTrain(_Message):
    """Take one step of EM on a mixture of models: ``shares`` become the mean posterior of your rows.

    A row is of component c with probability ~ shares_c exp(-loss_c). Every component then takes the steps of ``work``
    on rows weighted by this. The answer is all components, one after the other, then the new shares.
    """

    work: Work
    components: Floats
    shares: Floats
    rows: Part = "train"

    def floats_up(self, d: int) -> int:
        return len(self.components) * d + len(self.components)


@dataclass(frozen=True)
class Choose(_Message):
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

    def floats_up(self, d: int) -> int:
        answers = len(self.heads) if self.temperature else 1
        return answers * d + len(self.heads)


@dataclass(frozen=True)
class Subspace(_Message):
    """Send the first ``p`` left singular vectors of your features (features x rows), for classes those of each class.

    Columns one after the other, each with a sum that is not negative: singular vectors have no sign of their own.
    """

    p: int
    features: int
    classes: int
    rows: Part = "train"

    def floats_up(self, d: int) -> int:
        """An upper bound: a device that lacks a class, or rows of it, sends less."""
        return self.features * self.p * max(self.classes, 1)


@dataclass(frozen=True)
class Score(_Message):
    """Send the accuracy or RMSE of this model, or without one of your own, on these of your rows (0 if there are none).

    With ``metric``, its ``size`` sums over them (`core.metrics`). With ``raw``, columns are as they were before any
    `Rescale`.
    """

    model: Floats | None = None
    rows: Part = "validation"
    raw: bool = False
    metric: str | None = None
    size: int = 1

    def floats_up(self, d: int) -> int:
        return self.size


@dataclass(frozen=True)
class FitLocally(_AsksForModel):
    """Fit your own rows with each of these ridges and send the best: all that a device without companions can do.

    Validation rows say which is best; the model that is sent was then fitted with these rows included.
    """

    ridges: tuple[float, ...]


@dataclass(frozen=True)
class Gradient(_Message):
    """Send the gradient of your loss at this vector, and your loss on the parts ``also``."""

    at: Floats
    rows: Part = "train"
    also: tuple[Part, ...] = ()

    def floats_up(self, d: int) -> int:
        return d + len(self.also)


@dataclass(frozen=True)
class Losses(_Message):
    """Send the loss of each of these models (one row each) on your data."""

    models: Floats
    rows: Part = "train"

    def floats_up(self, d: int) -> int:
        return len(self.models)


@dataclass(frozen=True)
class EvaluateModels(_Message):
    """Send the mean loss of each of these models on your rows, and how these means vary together.

    With ``own``, your own model is judged too, as the first. The answer is n means, then the n (n + 1) / 2 entries
    of the upper triangle of their covariance matrix, row by row: what a paired test of any two models needs.
    With ``balanced``, every class counts the same: a device's own mix of classes then says nothing for its own model.
    """

    models: Floats
    rows: Part = "validation"
    own: bool = False
    balanced: bool = False

    def floats_up(self, d: int) -> int:
        n = len(self.models) + self.own
        return n + n * (n + 1) // 2


@dataclass(frozen=True)
class GradientCosine(_Message):
    """Send the cosine between the gradients of your training and of your validation loss at this vector.

    From both, ``common`` is taken first: the gradient of your whole group. Where the group's model suits a device,
    what is left is noise and independent, and the cosine is around zero. Where it does not, both point the same way.
    With ``curvature``, the diagonal of the Hessian of the loss of all rows but those of the test follows, and the trace
    of the Hessian squared: they say how long gradients are by noise and by differences of models.
    """

    at: Floats
    common: Floats
    curvature: bool = False

    def floats_up(self, d: int) -> int:
        return 1 + self.curvature * (d + 1)


@dataclass(frozen=True)
class JudgePersonalModels(_Message):
    """Send how well each way to have a model of your own predicts your rows, each row left out in turn.

    ``centres`` are models of groups, the device's own first, of whose rows it has this ``share``. The answer are mean
    losses on training and validation rows: of the group that suits the other rows best; of a model drawn to that
    group's with ``variances`` times each of ``to_group``; of one drawn to ``common``, with these times each of
    ``to_common``; of a ridge on the device's own rows of each strength in ``alone``; of averages of these own models
    with each row of ``blends`` as weights. ``noise`` is that of an average device (0: unknown).
    """

    centres: Floats
    common: Floats
    variances: Floats  # of columns
    share: Floats  # one number
    noise: Floats  # one number
    to_group: tuple[float, ...] = ()
    to_common: tuple[float, ...] = ()
    alone: tuple[float, ...] = ()
    blends: Floats = field(default_factory=lambda: np.empty((0, 0)))

    def floats_up(self, d: int) -> int:
        return 1 + len(self.to_group) + len(self.to_common) + len(self.alone) + len(self.blends)


@dataclass(frozen=True)
class SendPosterior(_Message):
    """Send your model, drawn to a centre; the variances of its columns given your rows; and the noise of your rows."""

    centre: Floats
    variances: Floats
    noise: Floats  # one number

    def floats_up(self, d: int) -> int:
        return d + self.variances.size + 1


@dataclass(frozen=True)
class PeekPersonalModels(_Message):
    """Send the models that you use at home: an average of three, and the last of these. Not counted.

    They are drawn to the group's model and to the common one (``centres``), with ``variances`` times the first two
    ``strengths``, and of the device's own rows alone, with a ridge of the third.
    """

    centres: Floats
    variances: Floats
    noise: Floats
    strengths: Floats
    weights: Floats

    def floats_up(self, d: int) -> int:
        return 2 * d


@dataclass(frozen=True)
class JudgeDrawnModels(_Message):
    """Send how well your group's model predicts your rows, and models of your own that are drawn to it.

    ``model`` is the group's, of whose rows the device has this ``share``. The answer are mean losses: of the group's
    model; of one drawn to it with each variance of ``to_group``; of one of your rows alone, drawn to zero with each
    variance of ``alone``. Of a network only the last layer is drawn, and folds of training and validation rows judge.
    Convex models are fitted to training rows and judged by validation rows, which ``model`` has not seen either.
    """

    model: Floats
    share: Floats  # one number
    to_group: tuple[float, ...]
    alone: tuple[float, ...] = ()

    def floats_up(self, d: int) -> int:
        return 1 + len(self.to_group) + len(self.alone)


@dataclass(frozen=True)
class PeekDrawnModels(_Message):
    """Send what you use at home: a model drawn to this, and (no network) one of your rows alone. Not counted."""

    model: Floats
    variance: float
    alone: float | None = None

    def floats_up(self, d: int) -> int:
        return d if self.alone is None else 2 * d


@dataclass(frozen=True)
class SendMoments(_Message):
    """Send the means of your columns, then of their squares (for values the target is the last column)."""

    columns: int
    rows: Part = "train"

    def floats_up(self, d: int) -> int:
        return 2 * self.columns


@dataclass(frozen=True)
class SendSufficientStatistics(_Message):
    """Send the means of your columns (the target is the last) and their covariances, of each part of `SUMMARISED`.

    Of the symmetric matrix, which is that of all rows and not an estimate for more of them, the upper triangle, row by
    row; zeros for a part without rows. One number follows: how much larger the noise of rows is that matter for the
    parameters than that of all (White, 1980; 1 where noise is the same everywhere). That is all that linear regression
    can learn from these rows, and how far it is to be trusted.
    """

    columns: int

    def floats_up(self, d: int) -> int:
        return len(SUMMARISED) * self.columns * (self.columns + 3) // 2 + 1


@dataclass(frozen=True)
class Rescale(_Message):
    """From now on use ``(column - shift) / scale`` in place of every column. Answered without floats."""

    shift: Floats
    scale: Floats


# Tasks that are answered by numbers about rows, not by vectors of a model: the server computes with these in float64.
STATISTICS = (
    Score, Losses, EvaluateModels, GradientCosine, JudgePersonalModels, SendPosterior, JudgeDrawnModels,
    SendMoments, SendSufficientStatistics,
)  # fmt: skip

Task: TypeAlias = (
    Install | Add | PeekModel | Train | MetaTrain | TrainPair | EnvelopeTrain | MixtureTrain | Choose | Subspace
    | Score | FitLocally | Gradient | Losses | EvaluateModels | GradientCosine | JudgePersonalModels | SendPosterior
    | PeekPersonalModels | JudgeDrawnModels | PeekDrawnModels | SendMoments | SendSufficientStatistics | Rescale
)  # fmt: skip


def for_device(task: Task, seed: int, k: int, device: int, most: float = np.inf) -> Task:
    """Return the task as this device gets it in round k: with its own number of steps, at most ``most``.

    >>> from fedfuse.protocol.local_work import Uneven
    >>> 1 <= for_device(Train(Work(steps=Uneven(10))), 0, 3, 1).work.steps <= 10
    True
    """
    work: Work | None = getattr(task, "work", None)
    if work is None or work.solver == "exact":
        return task
    steps = work.steps.drawn(seed, max(k, 0), device) if isinstance(work.steps, Uneven) else value(work.steps, k)
    limited = max(1, int(min(steps, most)))
    return task if limited == work.steps else replace(task, work=replace(work, steps=limited))  # type: ignore[arg-type]


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
