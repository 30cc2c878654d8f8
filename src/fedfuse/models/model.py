"""What a model is: the mathematics on a device, for a flat parameter vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from fedfuse.core.metrics import Metric
from fedfuse.data.federation import Goal, Rows
from fedfuse.errors import FedfuseError
from fedfuse.protocol.local_work import Work, value
from fedfuse.utils.typing import Floats, Ints

Start: TypeAlias = Literal["auto", "zero", "normal"]
Shape: TypeAlias = tuple[int, ...]
Rngs: TypeAlias = list[np.random.Generator] | None
Data = TypeVar("Data")
M = TypeVar("M", bound="Model[Any]")
# Rows that tell the curvature of a loss: all pairs of them are compared.
MAX_CURVATURE_ROWS = 500
_FITTING: dict[Goal, str] = {"classification": "SoftmaxRegression()", "regression": "LinearRegression()"}


@dataclass(frozen=True)
class Model(ABC, Generic[Data]):
    """A loss over flat parameter vectors of length ``d``, computed for many devices at once.

    A model is written without sizes, ``SoftmaxRegression()``; `sized` fills them in. Methods take ``devices``
    (positions, k of them) and a parameter vector for each (k x d), and never look at another device's rows.
    """

    n_features: int = field(default=0, kw_only=True)
    n_classes: int = field(default=0, kw_only=True)

    convex: ClassVar[bool] = True  # what needs exact solvers or rescaled columns asks for this
    quadratic: ClassVar[bool] = False  # whether means and covariances of its columns tell the loss of every parameter

    def sized(self: M, n_features: int, n_classes: int, shape: Shape | None = None) -> M:
        """Return this model for so many features and classes (0: regression), and rows of this shape."""
        self.check("classification" if n_classes else "regression")
        return replace(self, n_features=n_features, n_classes=n_classes)

    @property
    @abstractmethod
    def goal(self) -> Goal:
        """What the model is for."""

    @property
    @abstractmethod
    def d(self) -> int:
        """Number of parameters."""

    def check(self, goal: Goal) -> None:
        """Raise an error unless the model is for this goal."""
        if goal != self.goal:
            advice = f"use {_FITTING[goal]} or change the target"
            raise FedfuseError(f"{self._name} is for {self.goal}, but the target needs {goal}; {advice}")

    @property
    def fused(self) -> slice:
        """Which parameters take part in fusion; the others are shared by all devices."""
        return slice(0, self.d)

    @property
    def head(self) -> Ints | None:
        """Where the last layer of classes is in the vector: classes x (columns + 1), intercepts last; None without."""
        return None

    def features(self, w: Floats, X: Floats) -> Floats:
        """Return what enters the last layer for these rows."""
        return X

    def initial(self, start: Start, rng: np.random.Generator) -> Floats:
        """Return a first parameter vector: zeros (also for auto), or one draw of N(0, 1)."""
        return rng.normal(size=self.d) if start == "normal" else np.zeros(self.d)

    @abstractmethod
    def load(self, rows: Rows, dtype: npt.DTypeLike) -> Data:
        """Bring one part of the federation's rows into the form that the methods below want."""

    @abstractmethod
    def train(
        self, data: Data, devices: Ints, start: Floats, anchor: Floats | None, rho: float, work: Work, rngs: Rngs = None
    ) -> Floats:
        """Minimise ``f_i(w) + rho/2 ||w - anchor_i||^2`` on every device as ``work`` says; return the new w.

        The `fused` parameters have an anchor, or all, as its width says. ``start`` is not changed. ``rngs`` (one per
        device) shuffle mini-batches; they are needed for these and for models that are not convex.
        """

    @abstractmethod
    def losses(self, data: Data, devices: Ints, w: Floats) -> Floats:
        """Return each device's mean loss (float64)."""

    @abstractmethod
    def gradients(self, data: Data, devices: Ints, w: Floats) -> Floats:
        """Return each device's gradient of its mean loss."""

    @abstractmethod
    def metric(self, data: Data, devices: Ints, w: Floats) -> Floats:
        """Return each device's accuracy or RMSE (nan for a device without rows)."""

    def losses_and_metric(self, data: Data, devices: Ints, w: Floats) -> tuple[Floats, Floats]:
        """Return both; a model for which rows are dear looks at them once."""
        return self.losses(data, devices, w), self.metric(data, devices, w)

    @abstractmethod
    def outputs(self, w: Floats, X: Floats) -> Floats:
        """Return what one parameter vector says about rows: values, or class probabilities (n x classes)."""

    def coefficients(self, w: Floats) -> Floats:
        """Return one parameter vector as (outputs x (features + 1)), the intercept last."""
        raise FedfuseError(f"{self._name} has no coefficients: result.module(device) has its weights")

    def flat(self, coefficients: Floats) -> Floats:
        """Return the parameter vector whose `coefficients` these are."""
        raise FedfuseError(f"{self._name} has no coefficients")

    def unscaled(self, w: Floats, shift: Floats, scale: Floats) -> Floats:
        """Return what parameters for rescaled columns (`protocol.tasks.Rescale`) are for the columns as they were."""
        p = self.n_features
        given = self.coefficients(np.asarray(w, dtype=np.float64))
        slopes = given[:, :p] / scale[:p]
        intercepts = given[:, p] - slopes @ shift[:p]
        if len(shift) > p:  # the target was rescaled too
            slopes, intercepts = slopes * scale[p], intercepts * scale[p] + shift[p]
        return self.flat(np.column_stack([slopes, intercepts]))

    def row_losses(self, models: Floats, X: Floats, y: npt.NDArray[Any]) -> Floats:
        """Return the loss of every row under every one of these parameter vectors (models x rows)."""
        outputs = np.stack([self.outputs(w, X) for w in np.asarray(models, dtype=np.float64)])
        if self.goal == "regression":
            return np.asarray(np.square(outputs - y))
        likelihood = outputs[:, np.arange(len(y)), np.asarray(y, dtype=np.int64)]
        return np.asarray(-np.log(np.maximum(likelihood, 1e-300)))

    def metric_sums(self, metric: Metric, rows: Rows, devices: Ints, w: Floats) -> Floats:
        """Return each device's sums of a metric (k x size)."""
        stop = np.cumsum(rows.counts[devices])
        outputs = [self.outputs(own, rows.of(i)[0]) for i, own in zip(devices, w, strict=True)]
        y = np.concatenate([rows.of(i)[1] for i in devices])
        weights = None if rows.weights is None else np.concatenate([rows.weights_of(i) for i in devices])
        return metric.sums(np.concatenate(outputs), y, stop - rows.counts[devices], stop, weights)

    def hessian_numbers(self, w: Floats, X: Floats) -> Floats:
        """Return the diagonal of the Hessian of the mean loss of rows, and the trace of its square.

        For models whose scores are linear. The Hessian is the mean over rows of Kronecker's product of S and z z',
        where z is a row with a 1 for the intercept, and S is 2 for squared errors and diag(p) - p p' for
        probabilities p.
        """
        X = np.asarray(X[:MAX_CURVATURE_ROWS], np.float64)
        Z, n = np.column_stack([X, np.ones(len(X))]), max(len(X), 1)
        S, pairs = np.full((len(Z), 1), 2.0), np.full((len(Z), len(Z)), 4.0)
        if self.goal == "classification":
            P = self.outputs(np.asarray(w, np.float64), X)
            products, cross = P @ P.T, P @ np.square(P).T
            S, pairs = P * (1 - P), products - cross - cross.T + np.square(products)
        # Where all probabilities are nearly 0 or 1, rounding may leave a negative sum.
        trace = max(float((pairs * np.square(Z @ Z.T)).sum()), 0.0)
        return np.append(self.flat(S.T @ np.square(Z) / n), trace / n**2)

    def to_config(self) -> dict[str, Any]:
        """Return the model as JSON-ready data (see `models.from_config`)."""
        return {"name": self._name}

    def check_config(self, config: dict[str, Any]) -> None:
        """Raise an error unless `to_config` of the model of a run could have been this."""
        if config["name"] != self._name:
            raise FedfuseError(f"the run has the model {config['name']}, got {self._name}")

    def module_with(self, w: Floats) -> Any:
        """Return a torch module with these parameters, where the model is one."""
        raise FedfuseError(f"{self._name} is no torch module: result.coefficients() has its parameters")

    def tensors(self, w: Floats) -> dict[str, npt.NDArray[Any]]:
        """Return one parameter vector as named arrays, for other programs."""
        table = self.coefficients(w)
        return {"coef": table[:, :-1], "intercept": table[:, -1]}

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _check_load(self, rows: Rows, dtype: npt.DTypeLike) -> None:
        """Raise an error unless the model is sized for these rows and can compute in this precision."""
        if np.dtype(dtype) not in (np.float32, np.float64):
            raise FedfuseError(f"dtype must be float32 or float64, got {np.dtype(dtype)}")
        if rows.X.shape[1] != self.n_features:
            sizes = f"the model has {self.n_features} features, the rows have {rows.X.shape[1]}"
            raise FedfuseError(f"{sizes}; call model.sized(n_features, n_classes) first")


@dataclass(frozen=True)
class MissingModule(Model[Any]):
    """A user's own module that was not given again: what the run directory says of it, and nothing that computes."""

    config: dict[str, Any]

    convex: ClassVar[bool] = False

    @property
    def goal(self) -> Goal:
        return "classification" if self.n_classes else "regression"

    @property
    def d(self) -> int:
        return sum(prod(shape) for _, shape in self.config["tensors"])

    def check(self, goal: Goal) -> None:
        """Raise nothing: only the module knows, and it is not here."""

    def tensors(self, w: Floats) -> dict[str, npt.NDArray[Any]]:
        parts = np.split(np.asarray(w), np.cumsum([prod(shape) for _, shape in self.config["tensors"]])[:-1])
        named = zip(self.config["tensors"], parts, strict=True)
        return {name: part.reshape(shape).astype(np.float32) for (name, shape), part in named}

    def to_config(self) -> dict[str, Any]:
        return self.config

    def _missing(self, *args: Any, **kwargs: Any) -> Any:
        told = "this run trained a module of your own, which its directory does not hold"
        raise FedfuseError(f"{told}: give it again, model=TorchModel(module, …), to fedfuse.resume or Result.load")

    load = train = losses = gradients = metric = outputs = flat = coefficients = _missing
    unscaled = row_losses = initial = module_with = metric_sums = _missing


def plain(work: Work) -> tuple[int, float]:
    """Return steps and step size as plain numbers (of a schedule, which rounds fill in, its first)."""
    return int(value(work.steps, 0)), float(value(work.lr, 0))


def one_each(rngs: Rngs, devices: Ints) -> list[np.random.Generator]:
    """Return the generators that shuffle mini-batches, or say that they are missing."""
    if rngs is None or len(rngs) != len(devices):
        raise FedfuseError(f"mini-batches need one random generator per device, got {rngs and len(rngs)}")
    return rngs


def batch_orders(n: int, work: Work, rng: np.random.Generator) -> list[Ints]:
    """Return the order of n rows in each epoch (epochs x rows): whole epochs, then what is gone of the last.

    >>> work = Work(steps=7, batch=2, unit="batches")
    >>> [order.shape for order in batch_orders(5, work, np.random.default_rng(0))]
    [(2, 5), (1, 2)]
    """
    whole, rest, batch = plain(work)[0], 0, work.batch or max(n, 1)
    if work.unit != "epochs":
        whole, rest = divmod(whole, max(1, -(-n // batch)))
    epochs = whole + (rest > 0)
    orders = np.array([rng.permutation(n) for _ in range(epochs)], np.int64).reshape(epochs, n)
    parts = (orders[:whole], np.ascontiguousarray(orders[whole:, : rest * batch]))
    return [part for part in parts if len(part)]
