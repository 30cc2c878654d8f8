"""Estimators with scikit-learn's contract: all rows in one table, and ``groups`` for the device of each row."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedfuse.data.federation import Federation, Goal, default_features, shuffled_rows
from fedfuse.errors import FedfuseError
from fedfuse.methods.fpfc import FPFC, Lambda
from fedfuse.methods.method import Method
from fedfuse.protocol.local_work import Work
from fedfuse.results.result import Result
from fedfuse.training.fit import fit as train
from fedfuse.utils.typing import Floats, Ints


class _GroupedEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of all estimators: devices from ``groups``, training, and predictions by the model of a device's group."""

    def __init__(
        self,
        method: Method[Any] | str | None = None,
        *,
        rounds: int = 500,
        tol: float = 1e-4,
        participation: float = 1.0,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.method = method
        self.rounds = rounds
        self.tol = tol
        self.participation = participation
        self.random_state = random_state

    def _fit(self, X: Floats, y: npt.NDArray[Any], groups: Any, goal: Goal, classes: Sequence[Any] = ()) -> Floats:
        """Train on rows and class numbers or values; return each group's table of coefficients.

        A table is outputs x (features + 1), the intercept last, in the units of X and of this y.
        """
        distinct, codes = _distinct(np.zeros(len(X), np.int64) if groups is None else groups, len(X))
        self.groups_ = distinct.to_numpy()
        scaler = StandardScaler().fit(X)
        counts = np.bincount(codes)
        seed = self._seed()  # once: a RandomState gives another one each time
        order = np.argsort(codes, kind="stable")[shuffled_rows(counts, seed)]
        self.result_ = self._train(
            Federation(
                names=_names(self.groups_),
                X=scaler.transform(X[order]),
                y=y[order],
                cuts=_cuts(counts),
                goal=goal,
                classes=tuple(classes),
                features=tuple(getattr(self, "feature_names_in_", default_features(X.shape[1]))),
            ),
            seed,
        )
        self.labels_ = self.result_.labels
        self.n_clusters_ = self.result_.n_clusters
        self.n_iter_ = self.result_.rounds
        tables = [self.result_.model.coefficients(w) for w in self.result_.cluster_models]
        return _unscaled(np.stack(tables), scaler)

    def _seed(self) -> int:
        """Return a seed: the number given, or one drawn as scikit-learn draws, from a RandomState or NumPy's own."""
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        try:
            return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        except ValueError:
            allowed = "a whole number, None or a numpy.random.RandomState"
            raise FedfuseError(f"random_state must be {allowed}, got {self.random_state!r}") from None

    def _method(self) -> Method[Any] | str | None:
        """Return what finds the groups."""
        return self.method

    def _train(self, federation: Federation, seed: int) -> Result:
        how: dict[str, Any] = {"rounds": self.rounds, "participation": self.participation, "tol": self.tol}
        result = train(federation, self._method(), seed=seed, dtype="float64", **how)
        if self.tol and not result.converged:
            advice = "raise rounds, or tol if that is precise enough"
            warnings.warn(f"not converged after {result.rounds} rounds: {advice}", ConvergenceWarning, stacklevel=4)
        return result

    def _outputs(self, X: Any, groups: Any) -> Floats:
        """Return the linear outputs of each row by the model of its device's group (n x outputs)."""
        check_is_fitted(self, "coef_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        labels = self._row_labels(groups, len(X))
        coef = self.coef_.reshape(self.n_clusters_, -1, self.n_features_in_)
        intercept = self.intercept_.reshape(self.n_clusters_, -1)
        outputs = np.empty((len(X), coef.shape[1]))
        for c in np.unique(labels):
            rows = labels == c
            outputs[rows] = X[rows] @ coef[c].T + intercept[c]
        return outputs

    def _row_labels(self, groups: Any, n: int) -> Ints:
        """Return the group of each row's device."""
        if groups is None:
            if self.n_clusters_ > 1:
                raise FedfuseError(
                    f"there are {self.n_clusters_} groups of devices, so each row's device is needed: pass groups="
                )
            return np.zeros(n, np.int64)
        given, codes = _distinct(groups, n)
        devices = pd.Index(self.groups_, tupleize_cols=False).get_indexer(given)
        if (devices < 0).any():
            raise FedfuseError(
                f"no model for groups that fit has not seen: {_some(given[devices < 0])}; known: {_some(self.groups_)}"
            )
        return np.asarray(self.labels_[devices[codes]])


def _cuts(counts: Ints) -> Ints:
    """Hold every fifth row of a device back, for what has to be chosen; there is no test part."""
    ends = np.cumsum(counts)
    return np.stack([ends - counts, ends - counts // 5, ends, ends], axis=1)


class GroupedClassifier(ClassifierMixin, _GroupedEstimator):  # type: ignore[misc]
    """Softmax regression per group of devices, the groups found by the default method.

    Rows with the same value in ``groups`` are one device: a hospital, a store, a sensor. Devices whose models
    agree are joined to a group, which has one model. Features are standardised inside.

    Parameters
    ----------
    method
        What finds the groups: a method such as ``FusionTree()`` or ``FPFC(lam=0.6)``, or a name as on the command
        line; the fusion tree by default.
    rounds, tol
        At most so many rounds, and the residual at which to stop before.
    participation
        Share of the devices that is active in a round.
    random_state
        Draws the active devices and each device's validation rows, which are every fifth of its rows and choose
        what has to be chosen. A whole number, with which every fit is the same; as in scikit-learn, ``None`` and a
        `numpy.random.RandomState` draw anew for each fit.

    Attributes
    ----------
    groups_ : ndarray of shape (n_devices,)
        The distinct values of ``groups``, one per device, sorted.
    labels_ : ndarray of shape (n_devices,)
        The group that each device was put in.
    n_clusters_ : int
        Number of groups of devices.
    classes_ : ndarray of shape (n_classes,)
        The classes, the same for all devices, whichever a device has seen.
    coef_ : ndarray of shape (n_clusters, n_outputs, n_features)
        Each group's coefficients in the units of X; ``coef_[c]`` is laid out as `LogisticRegression.coef_`:
        one output per class, or for two classes one in all, which speaks for ``classes_[1]``.
    intercept_ : ndarray of shape (n_clusters, n_outputs)
        Each group's intercepts.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if X had any.
    n_iter_ : int
        Number of rounds.
    result_ : Result
        The whole outcome of the run. Its models are those of standardised features.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, hospital = rng.normal(size=(600, 2)), np.repeat(["a", "b", "c", "d"], 150)
    >>> sign = np.where(np.isin(hospital, ["a", "c"]), 1, -1)
    >>> y = np.where(3 * sign * X[:, 0] + rng.logistic(size=600) > 0, "ill", "well")
    >>> model = GroupedClassifier().fit(X, y, groups=hospital)
    >>> model.labels_.tolist()
    [0, 1, 0, 1]
    >>> model.predict([[3.0, 0.0], [3.0, 0.0]], groups=["a", "b"]).tolist()
    ['ill', 'well']
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> GroupedClassifier:
        """Find the groups and their models.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            All rows of all devices.
        y : array-like of shape (n_rows,)
            Classes.
        groups : array-like of shape (n_rows,), optional
            The device of each row, as any hashable values. Without it all rows are of one device.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            only = self.classes_.tolist()[0]
            raise FedfuseError(f"y has only one class, {only!r}: give at least two classes")
        tables = self._fit(X, codes, groups, "classification", self.classes_.tolist())
        if len(self.classes_) == 2:
            tables = tables[:, 1:] - tables[:, :1]
        self.coef_, self.intercept_ = tables[..., :-1], tables[..., -1]
        return self

    def decision_function(self, X: Any, groups: Any = None) -> Floats:
        """Return log odds: one number per row for two classes (of ``classes_[1]``), else one per class.

        ``groups`` is the device of each row; it may be left out when there is only one group.
        """
        outputs = self._outputs(X, groups)
        return outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict_proba(self, X: Any, groups: Any = None) -> Floats:
        """Return each row's class probabilities (n_rows x n_classes) by its group's model."""
        outputs = self.decision_function(X, groups)
        if outputs.ndim == 1:
            return np.column_stack([expit(-outputs), expit(outputs)])
        return np.asarray(softmax(outputs, axis=1))

    def predict(self, X: Any, groups: Any = None) -> npt.NDArray[Any]:
        """Return each row's class by its group's model; see `decision_function` for ``groups``."""
        outputs = self.decision_function(X, groups)
        best = (outputs > 0).astype(np.int64) if outputs.ndim == 1 else outputs.argmax(axis=1)
        return np.asarray(self.classes_[best])

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy."""
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))


class GroupedRegressor(RegressorMixin, _GroupedEstimator):  # type: ignore[misc]
    """Linear regression per group of devices, the groups found by the default method.

    Rows with the same value in ``groups`` are one device: a hospital, a store, a sensor. Devices whose models
    agree are joined to a group, which has one model. Features and target are standardised inside.

    Parameters
    ----------
    method, rounds, tol, participation, random_state
        See `GroupedClassifier`.

    Attributes
    ----------
    coef_ : ndarray of shape (n_clusters, n_features)
        Each group's coefficients, in the units of X and y.
    intercept_ : ndarray of shape (n_clusters,)
        Each group's intercept.
    groups_, labels_, n_clusters_, n_features_in_, feature_names_in_, n_iter_, result_
        See `GroupedClassifier`; the models of ``result_`` are those of standardised features and target.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, store = rng.normal(size=(200, 2)), np.repeat(["a", "b", "c", "d"], 50)
    >>> slope = np.where(np.isin(store, ["a", "c"]), 10.0, -10.0)
    >>> y = 5 + slope * X[:, 0] + rng.normal(size=200)
    >>> model = GroupedRegressor().fit(X, y, groups=store)
    >>> model.labels_.tolist()
    [0, 1, 0, 1]
    >>> model.predict([[1.0, 0.0], [1.0, 0.0]], groups=["a", "b"]).round().tolist()
    [15.0, -5.0]
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> GroupedRegressor:
        """Find the groups and their models; y holds values, X and groups are as in `GroupedClassifier.fit`."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        scaler = StandardScaler().fit(y[:, None])
        tables = self._fit(X, scaler.transform(y[:, None])[:, 0], groups, "regression")
        tables = tables[:, 0] * scaler.scale_[0]
        self.coef_, self.intercept_ = tables[:, :-1], tables[:, -1] + scaler.mean_[0]
        return self

    def predict(self, X: Any, groups: Any = None) -> Floats:
        """Return each row's value by its group's model.

        ``groups`` is the device of each row; it may be left out when there is only one group.
        """
        return self._outputs(X, groups)[:, 0]

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """Return R squared."""
        return float(r2_score(y, self.predict(X, groups), sample_weight=sample_weight))


class _FPFCEstimator(_GroupedEstimator):
    """Base of the estimators of FPFC: its parameters."""

    def __init__(
        self,
        lam: float | Lambda = "auto",
        *,
        refit: bool = False,
        rho: float = 1.0,
        a: float = 3.7,
        xi: float = 1e-4,
        nu: float | None = None,
        rounds: int = 500,
        tol: float = 1e-4,
        participation: float = 1.0,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        super().__init__(rounds=rounds, tol=tol, participation=participation, random_state=random_state)
        self.lam = lam
        self.refit = refit
        self.rho = rho
        self.a = a
        self.xi = xi
        self.nu = nu

    def _method(self) -> FPFC:
        penalty: dict[str, Any] = {"lam": self.lam, "rho": self.rho, "nu": self.nu, "a": self.a, "xi": self.xi}
        return FPFC(**penalty, refit=self.refit, work=Work(solver="exact"))


class FPFCClassifier(_FPFCEstimator, GroupedClassifier):
    """`GroupedClassifier` with FPFC.

    Parameters
    ----------
    lam
        Strength of the fusion penalty: how different two devices' models may be, per standard deviation of the
        features, and still become one. 0 leaves every device with its own model; ``"warmup"`` and ``"separate"``
        choose it on validation rows.
    refit
        Train each group's model anew once the groups are found, instead of keeping the penalty's estimates.
    rho, a, xi
        Weight of the proximal term, reach of the penalty in units of ``lam``, and its smoothing width: see `FPFC`.
    nu
        Devices whose models were pulled this close are joined; ``None`` derives it from ``lam``.
    rounds, tol, participation, random_state
        See `GroupedClassifier`.
    """


class FPFCRegressor(_FPFCEstimator, GroupedRegressor):
    """`GroupedRegressor` with FPFC.

    Parameters
    ----------
    lam
        Strength of the fusion penalty: how different two devices' models may be, in standard deviations of the
        target per standard deviation of the features, and still become one. 0 leaves every device with its own model;
        ``"warmup"`` and ``"separate"`` choose it on validation rows.
    refit, rho, a, xi, nu
        See `FPFCClassifier`.
    rounds, tol, participation, random_state
        See `GroupedRegressor`.
    """


def _distinct(groups: Any, n: int) -> tuple[pd.Index[Any], Ints]:
    """Return the distinct groups in sorted order, and each row's place among them."""
    try:
        codes, found = pd.factorize(pd.Index(groups, tupleize_cols=False))
    except (TypeError, ValueError) as error:
        raise FedfuseError(
            f"groups must hold one hashable value per row, got a {type(groups).__name__} ({error})"
        ) from None
    if len(codes) != n:
        raise FedfuseError(f"X has {n} rows but groups has {len(codes)} values; they must match")
    if (codes < 0).any():
        raise FedfuseError(f"groups[{codes.argmin()}] is missing: every row must belong to a device")
    distinct = pd.Index(_sorted(found), tupleize_cols=False)
    return distinct, distinct.get_indexer(found)[codes].astype(np.int64)


def _sorted(values: Iterable[Any]) -> list[Any]:
    distinct = list(values)
    try:
        return sorted(distinct)
    except TypeError:  # of different kinds: kind by kind
        return sorted(distinct, key=lambda v: (type(v).__name__, str(v)))


def _names(groups: npt.NDArray[Any]) -> tuple[str, ...]:
    """Return the devices' names: the groups as text, written out where 1 and "1" both occur."""
    names = [str(g) for g in groups]
    return tuple(names if len(set(names)) == len(names) else [repr(g) for g in groups])


def _unscaled(tables: Floats, scaler: StandardScaler) -> Floats:
    """Turn coefficients of standardised features into those of the features as they are."""
    coef = tables[..., :-1] / scaler.scale_
    intercept = tables[..., -1] - coef @ scaler.mean_
    return np.concatenate([coef, intercept[..., None]], axis=-1)


def _some(values: Iterable[Any], most: int = 6) -> str:
    shown = [repr(v) for v in pd.Index(values, tupleize_cols=False)]  # plain values, not numpy's
    return ", ".join(shown[:most]) + (f", … ({len(shown)} in all)" if len(shown) > most else "")
