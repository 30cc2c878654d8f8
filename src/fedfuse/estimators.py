"""Estimators with scikit-learn's contract: all rows in one table; ``groups`` or a column has the device of each row."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
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
from sklearn.utils import Tags, check_array, check_random_state, check_X_y
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedfuse.data.checks import relative_weights
from fedfuse.data.encoders import unscaled_encoder
from fedfuse.data.federation import Federation, Goal, default_features, shuffled_rows
from fedfuse.errors import FedfuseError, guess
from fedfuse.methods.fpfc import FPFC, Lambda
from fedfuse.methods.method import Method
from fedfuse.protocol.local_work import Work
from fedfuse.results.result import Result
from fedfuse.training.fit import fit as train
from fedfuse.utils.typing import Bools, Floats, Ints


class _GroupedEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of all estimators: each row's device, training, and predictions by the model of a device's group."""

    def __init__(
        self,
        method: Method[Any] | str | None = None,
        *,
        device: str | int | None = None,
        rounds: int = 500,
        tol: float = 1e-4,
        participation: float = 1.0,
        class_weight: str | Mapping[Any, float] | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.method = method
        self.device = device
        self.rounds = rounds
        self.tol = tol
        self.participation = participation
        self.class_weight = class_weight
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags._skip_test = True  # the common checks fit without groups, which is refused
        return tags

    def known_rows(self, X: Any, groups: Any = None) -> Bools:
        """Tell which rows are of devices that `fit` has seen; the others are predicted by the fallback model."""
        check_is_fitted(self, "coef_")
        X, groups = self._features(X, groups)
        return np.asarray(self._row_tables(groups, len(X)) != self.n_clusters_)

    def _features(self, X: Any, groups: Any, *, reset: bool = False) -> tuple[Floats, Any]:
        """Return each row's features, those of a data frame encoded, and its device (None: nothing tells it)."""
        frame = isinstance(X, pd.DataFrame)
        checks = {"skip_check_array": True} if frame else {"dtype": None, "ensure_all_finite": False}
        X = validate_data(self, X, reset=reset, **checks)
        names = getattr(self, "feature_names_in_", None)
        places = [] if self.device is None else [_place(self.device, names, self.n_features_in_)]
        for place in places:
            if groups is not None:
                raise FedfuseError(f"device={self.device!r} is already a column of X: leave out groups=")
            groups = X.iloc[:, place] if frame else X[:, place]
        if reset:
            self.encoder_ = unscaled_encoder(X, names[places]) if frame and names is not None else None
        if self.encoder_ is not None:
            return self.encoder_.transform(X if frame else pd.DataFrame(X, columns=names)), groups
        features = np.delete(np.asarray(X), places, axis=1)
        return check_array(features, dtype=np.float64, estimator=self, input_name="X"), groups

    def _training_rows(self, X: Any, y: Any, groups: Any, **checks: Any) -> tuple[Floats, npt.NDArray[Any], Any]:
        """Return features, target and device of each row."""
        X, groups = self._features(X, groups, reset=True)
        X, y = check_X_y(X, y, dtype=np.float64, estimator=self, **checks)
        if groups is None:
            raise FedfuseError(
                "the device of each row is missing: pass groups= to fit, or name a column of X with device=; "
                "cross_val_score and GridSearchCV pass groups= only to the splitter, unless it is routed"
            )
        return X, y, groups

    def _fit(
        self,
        X: Floats,
        y: npt.NDArray[Any],
        groups: Any,
        weights: Floats | None,
        goal: Goal,
        classes: Sequence[Any] = (),
    ) -> Floats:
        """Train on rows and class numbers or values; return tables of coefficients.

        They are those of groups, of the fallback, and of devices where these use models of their own. A table is
        outputs x (features + 1), the intercept last, in the units of X and of this y.
        """
        distinct, codes = _distinct(groups, len(X))
        self.groups_ = distinct.to_numpy()
        scaler = StandardScaler().fit(X, sample_weight=weights)
        counts = np.bincount(codes)
        ends = np.cumsum(counts)
        # Every fifth row of a device is held back, for what has to be chosen; there is no test part.
        cuts = np.stack([ends - counts, ends - counts // 5, ends, ends], axis=1)
        seed = self._seed()  # once: a RandomState gives another one each time
        order = np.argsort(codes, kind="stable")[shuffled_rows(counts, seed)]
        names = [str(g) for g in self.groups_]
        if len(set(names)) < len(names):  # 1 and "1" both occur
            names = [repr(g) for g in self.groups_]
        federation = Federation(
            names=tuple(names),
            X=scaler.transform(X[order]),
            y=y[order],
            cuts=cuts,
            goal=goal,
            classes=tuple(classes),
            features=default_features(X.shape[1]) if self.encoder_ is None else self.encoder_.features,
            weights=None if weights is None else weights[order],
        )
        self.result_ = self._train(federation, seed)
        self.labels_ = self.result_.labels
        self.n_clusters_ = self.result_.n_clusters
        self.n_iter_ = self.result_.rounds
        self.verdict_ = self.result_.verdict or self.result_.default_verdict
        own = self.result_.in_use if self.verdict_ in ("personal", "alone") else ()
        models = [*self.result_.cluster_models, self.result_.fallback, *own]
        tables = np.stack([self.result_.model.coefficients(w) for w in models])
        coef = tables[..., :-1] / scaler.scale_
        return np.concatenate([coef, tables[..., -1:] - coef @ scaler.mean_[:, None]], axis=-1)

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
        how["class_weight"] = self.class_weight
        result = train(federation, self._method(), seed=seed, dtype="float64", **how)
        if self.tol and not result.converged:
            advice = "raise rounds, or tol if that is precise enough"
            warnings.warn(f"not converged after {result.rounds} rounds: {advice}", ConvergenceWarning, stacklevel=4)
        return result

    def _outputs(self, X: Any, groups: Any) -> Floats:
        """Return the linear outputs of each row by the model of its device's group (n x outputs)."""
        check_is_fitted(self, "coef_")
        X, groups = self._features(X, groups)
        places = self._row_tables(groups, len(X))
        if (places == self.n_clusters_).any():
            unseen = _some(pd.Index(groups, tupleize_cols=False)[places == self.n_clusters_].unique())
            message = f"devices that fit has not seen are predicted by the fallback model: {unseen}; see known_rows"
            warnings.warn(message, UserWarning, stacklevel=3)
        coef = np.concatenate([self.coef_, self.fallback_coef_[None], self.device_coef_])
        coef = coef.reshape(len(coef), -1, X.shape[1])
        intercept = np.append(np.append(self.intercept_, self.fallback_intercept_), self.device_intercept_)
        intercept = intercept.reshape(len(coef), -1)
        outputs = np.empty((len(X), coef.shape[1]))
        for k in np.unique(places):
            rows = places == k
            outputs[rows] = X[rows] @ coef[k].T + intercept[k]
        return outputs

    def _keep(self, tables: Floats) -> None:
        """Keep coefficients and intercepts: of the groups, of the fallback, and of devices."""
        groups, fallback, devices = np.split(tables, [self.n_clusters_, self.n_clusters_ + 1])
        self.coef_, self.intercept_ = groups[..., :-1], groups[..., -1]
        self.fallback_coef_, self.fallback_intercept_ = fallback[0, ..., :-1], fallback[0, ..., -1]
        self.device_coef_, self.device_intercept_ = devices[..., :-1], devices[..., -1]

    def _row_tables(self, groups: Any, n: int) -> Ints:
        """Return for each row whose model predicts it: a group's, then the fallback's, then a device's own."""
        if groups is None:
            if self.n_clusters_ > 1:
                words = f"there are {self.n_clusters_} groups of devices"
                raise FedfuseError(f"{words}, so each row's device is needed: pass groups=")
            return np.zeros(n, np.int64)
        given, codes = _distinct(groups, n)
        devices = pd.Index(self.groups_, tupleize_cols=False).get_indexer(given)
        own = len(self.device_coef_) > 0
        used = self.n_clusters_ + 1 + np.arange(len(self.labels_)) if own else self.labels_
        # An unseen device has place -1, the last one.
        return np.asarray(np.append(used, self.n_clusters_)[devices[codes]])


def _place(device: str | int, names: npt.NDArray[Any] | None, n: int) -> int:
    """Return the position of the device column among n columns."""
    known = [] if names is None else names.tolist()
    if isinstance(device, Integral) and -n <= device < n:
        return int(device) % n
    if device in known:
        return known.index(device)
    columns = _some(known) if known else f"{n} without names"
    need = "device must be the name or position of a column of X"
    raise FedfuseError(f"{need}, got {device!r}; {guess(str(device), known)}its columns are {columns}")


class GroupedClassifier(ClassifierMixin, _GroupedEstimator):  # type: ignore[misc]
    """Softmax regression per group of devices, the groups found by the default method.

    Rows with the same value in ``groups``, or in the column ``device`` of X, are one device: a hospital, a store, a
    sensor. Devices whose models agree are joined to a group, which has one model. Features are standardised inside.
    In a DataFrame with column names, categories are one-hot encoded, dates become days, and missing numbers the median
    with a 0/1 feature that says where. Devices that `fit` has not seen are predicted, with a warning, by one fallback
    model.

    Parameters
    ----------
    method
        What finds the groups: a method such as ``FusionTree()`` or ``FPFC(lam=0.6)``, or a name as on the command
        line; the fusion tree by default.
    device
        The column of X with each row's device: a name, or a position. With it `fit` and `predict` need no ``groups``,
        and every scorer, splitter and inspection tool of scikit-learn works as it is.
    rounds, tol
        At most so many rounds, and the residual at which to stop before.
    participation
        Share of the devices that is active in a round.
    class_weight
        Classifiers: what rows of each class count for, ``"balanced"`` or ``{class: weight}`` (1 for the others).
    random_state
        Draws the active devices and each device's validation rows, which are every fifth of its rows and choose
        what has to be chosen. A whole number, with which every fit is the same; as in scikit-learn, ``None`` and a
        `numpy.random.RandomState` draw anew for each fit.

    Attributes
    ----------
    groups_, labels_ : ndarrays of shape (n_devices,)
        The distinct devices, sorted, and the group of each.
    n_clusters_ : int
        Number of groups of devices.
    classes_ : ndarray of shape (n_classes,)
        The classes, the same for all devices, whichever a device has seen.
    coef_, intercept_ : ndarrays of shape (n_clusters, n_outputs, n_features) and (n_clusters, n_outputs)
        Each group's model in the units of X; ``coef_[c]`` is laid out as `LogisticRegression.coef_`: one output per
        class, or for two classes one in all, which speaks for ``classes_[1]``.
    verdict_ : str
        What predicts rows best that are left out in turn, and is used for devices that `fit` has seen: models of
        ``"groups"``, one for all (``"pooled"``), devices' own, drawn towards the others (``"personal"``), or of their
        own rows ``"alone"``.
    device_coef_, device_intercept_ : ndarrays of shape (n_devices, n_outputs, n_features) and (n_devices, n_outputs)
        Devices' own models, where these are used; else empty.
    fallback_coef_, fallback_intercept_ : ndarrays of shape (n_outputs, n_features) and (n_outputs,)
        The model of devices that `fit` has not seen: one model for all rows, where the method compares its groups with
        that; else the mean of the devices' models.
    encoder_ : Encoder or None
        What was learned of a DataFrame's columns; ``encoder_.features`` names the columns of ``coef_``.
    n_features_in_, feature_names_in_
        Number of columns of X, the device's included, and their names, if they have any.
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

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> GroupedClassifier:
        """Find the groups and their models from all rows of all devices.

        ``groups`` has the device of each row, as any hashable values; it is needed unless ``device`` names a column.
        ``sample_weight`` says what each row counts for; only ratios matter.
        """
        X, y, groups = self._training_rows(X, y, groups)
        weights = None if sample_weight is None else relative_weights(sample_weight, len(X))
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            only = self.classes_.tolist()[0]
            raise FedfuseError(f"y has only one class, {only!r}: give at least two classes")
        tables = self._fit(X, codes, groups, weights, "classification", self.classes_.tolist())
        if len(self.classes_) == 2:
            tables = tables[:, 1:] - tables[:, :1]
        self._keep(tables)
        return self

    def decision_function(self, X: Any, groups: Any = None) -> Floats:
        """Return log odds: one number per row for two classes (of ``classes_[1]``), else one per class.

        ``groups`` has the device of each row; it may be left out when there is only one group.
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

    Devices whose models agree are joined to a group, which has one model. Features and target are standardised inside.
    Parameters, devices, data frames and unseen devices are as in `GroupedClassifier`.

    Attributes
    ----------
    coef_, intercept_ : ndarrays of shape (n_clusters, n_features) and (n_clusters,)
        Each group's model, in the units of X and y. The other attributes are as in `GroupedClassifier`; the models of
        ``result_`` are those of standardised features and target.

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

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> GroupedRegressor:
        """Find the groups and their models; y holds values, the others are as in `GroupedClassifier.fit`."""
        X, y, groups = self._training_rows(X, y, groups, y_numeric=True)
        weights = None if sample_weight is None else relative_weights(sample_weight, len(X))
        scaler = StandardScaler().fit(y[:, None], sample_weight=weights)
        tables = self._fit(X, scaler.transform(y[:, None])[:, 0], groups, weights, "regression")
        tables = tables[:, 0] * scaler.scale_[0]
        tables[:, -1] += scaler.mean_[0]
        self._keep(tables)
        return self

    def predict(self, X: Any, groups: Any = None) -> Floats:
        """Return each row's value by its group's model; see `GroupedClassifier.decision_function` for ``groups``."""
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
        device: str | int | None = None,
        rounds: int = 500,
        tol: float = 1e-4,
        participation: float = 1.0,
        class_weight: str | Mapping[Any, float] | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        run: dict[str, Any] = {"rounds": rounds, "tol": tol, "participation": participation}
        super().__init__(device=device, class_weight=class_weight, random_state=random_state, **run)
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
    device, rounds, tol, participation, class_weight, random_state
        See `GroupedClassifier`.
    """


class FPFCRegressor(_FPFCEstimator, GroupedRegressor):
    """`GroupedRegressor` with FPFC; its parameters are those of `FPFCClassifier`.

    ``lam`` is in standard deviations of the target per standard deviation of the features.
    """


def _distinct(groups: Any, n: int) -> tuple[pd.Index[Any], Ints]:
    """Return the distinct devices in sorted order, and each row's place among them."""
    try:
        codes, found = pd.factorize(pd.Index(groups, tupleize_cols=False))
    except (TypeError, ValueError) as error:
        raise FedfuseError(
            f"devices must be one hashable value per row, got a {type(groups).__name__} ({error})"
        ) from None
    if len(codes) != n:
        raise FedfuseError(f"X has {n} rows but groups has {len(codes)} values; they must match")
    if (codes < 0).any():
        raise FedfuseError(f"row {codes.argmin()} (from 0) has no device: every row must belong to one")
    try:
        ordered = sorted(found)
    except TypeError:  # of different kinds: kind by kind
        ordered = sorted(found, key=lambda v: (type(v).__name__, str(v)))
    distinct = pd.Index(ordered, tupleize_cols=False)
    return distinct, distinct.get_indexer(found)[codes].astype(np.int64)


def _some(values: Iterable[Any], most: int = 6) -> str:
    shown = [repr(v) for v in pd.Index(values, tupleize_cols=False)]  # plain values, not numpy's
    return ", ".join(shown[:most]) + (f", … ({len(shown)} in all)" if len(shown) > most else "")
