"""Result of a run: groups, models, scores, and the record of training."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedfuse._version import __version__
from fedfuse.core.certificate import Certificate
from fedfuse.core.metrics import METRICS
from fedfuse.core.partitions import adjusted_rand, group_means
from fedfuse.data.checks import as_numpy, position_of
from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError
from fedfuse.models import Model
from fedfuse.results.profile import Profile
from fedfuse.results.run_directory import read_run
from fedfuse.utils.files import make_directory, prefixed, write_arrays, write_csv, write_json
from fedfuse.utils.lazy import load
from fedfuse.utils.typing import Floats, Ints

if TYPE_CHECKING:
    from fedfuse.training.newcomers import Newcomers

VERDICTS = ("groups", "personal", "alone", "pooled")
MIN_CONFIDENCE = 0.9  # Below this, a grouping or a device's place in it is called uncertain.


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes
    ----------
    labels, models
        The group of every device, numbered by first appearance, in the order of ``profile.names``; and its parameters
        (m x d), which devices of one group share.
    scores, sums
        Every device's accuracy, RMSE or other metric on the parts ``"validation"`` and ``"test"``; and its sums, where
        the metric is taken over all rows together (`core.metrics`).
    history, cost_floats
        One row per round; numbers sent in both directions.
    refused
        Uploads that were not used, by reason.
    orders
        Counts of orders: ``sent = used + refused + unanswered``. ``uncalled`` are replies that answer no open order
        (second answers, answers to old rounds); `refused` includes them.
    trouble
        Counts of other faults on the way to devices and back.
    privacy
        Where devices add noise to uploads: the largest ``"epsilon"`` spent, its ``"delta"``, the ``"clip"``, the
        standard deviation of the ``"noise"`` and the number of ``"uploads"``.
    rounds, stages
        Rounds in all, and ``name``, ``rounds`` and ``floats`` of each stage.
    lam
        The strength of the penalty that was used; None for methods without one.
    stability, confidence
        Probability that the grouping is right, and for every device that no other group's model fits it better, where
        the method can tell.
    certificate, intervals
        What `certify` and `infer` return, where they were asked for; ``fedfuse run`` asks with a convex model.
    alternatives, compared
        Where the method gives devices models of their own as well: those drawn to a centre (``"personal"``), of a
        device's own rows (``"alone"``), and of all rows together (``"pooled"``), each m x d. And every device's test
        score with these, and with its group's model (``"groups"``).
    verdict
        What predicts best, by rows that choose (`grouping.personal`): ``"groups"``, ``"personal"``, ``"alone"`` or
        ``"pooled"``. `predict` uses it.
    kept, chosen
        What else the method needs to admit newcomers; settings that were left open and were chosen on validation rows.
    attack
        Where devices were made to lie: how (``"attack"``, ``"lies"``) and ``"who"``, by position.
    suspects
        Positions of the devices whose replies are implausible: they contradict themselves, often sent what had to be
        refused, or stay far from every group and never converge.
    unheard
        Positions of the devices that never answered in time: their model and group are those they started with.
    left_out
        Who was left out, and why, by name: the suspects, and nodes whose hello could not be used, which are not
        among the devices of the result.
    capped
        For how many rows those count, by name, who claim more than others make credible.
    """

    profile: Profile
    model: Model[Any]
    method: dict[str, Any]
    dataset: str
    seed: int
    rounds: int
    converged: bool
    labels: Ints
    models: Floats
    scores: dict[str, Floats]
    history: pd.DataFrame
    cost_floats: int
    refused: dict[str, int]
    seconds: float
    orders: dict[str, int] = field(default_factory=dict)
    trouble: dict[str, int] = field(default_factory=dict)
    privacy: dict[str, float] | None = None
    stages: tuple[dict[str, Any], ...] = ()
    lam: float | None = None
    stability: float | None = None
    confidence: Floats | None = None
    certificate: Certificate | None = None
    intervals: pd.DataFrame | None = None
    alternatives: dict[str, Floats] = field(default_factory=dict)
    compared: dict[str, Floats] = field(default_factory=dict)
    verdict: str | None = None
    kept: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    attack: dict[str, Any] | None = None
    suspects: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    unheard: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    sums: dict[str, Floats] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    capped: dict[str, int] = field(default_factory=dict)

    @property
    def n_clusters(self) -> int:
        return int(self.labels.max()) + 1

    @property
    def groups(self) -> Ints:
        """The groups, largest first, without those of suspects and unheard devices alone."""
        doubtful = np.union1d(self.suspects, self.unheard)
        known = np.unique(np.delete(self.labels, doubtful)) if doubtful.size else np.arange(self.n_clusters)
        # Newcomers, which have no score among the run's, make groups larger and change no number.
        sizes = np.bincount(self.labels[: len(self.scores["test"])], minlength=self.n_clusters)
        order: Ints = known[np.argsort(-sizes[known], kind="stable")]
        return order

    @property
    def apart(self) -> Ints:
        """The devices in none of the `groups`: suspects and unheard devices."""
        return np.flatnonzero(~np.isin(self.labels, self.groups))

    @property
    def group_numbers(self) -> Ints:
        """The number of every device's group as people see it: 1 for the largest, 0 for devices in none."""
        numbers = np.zeros(self.n_clusters, np.int64)
        numbers[self.groups] = np.arange(1, len(self.groups) + 1)
        return np.asarray(numbers[self.labels])

    @property
    def cluster_numbers(self) -> dict[int | None, int]:
        """The number as people see it of every label."""
        return dict(zip(self.labels.tolist(), self.group_numbers.tolist(), strict=True))

    @property
    def in_use(self) -> Floats:
        """The parameters that every device predicts with (m x d), by the `verdict`."""
        return self.models if self.verdict is None else self.alternatives.get(self.verdict, self.models)

    @property
    def cut_short(self) -> bool:
        """Whether rounds were over before groups were found without a lambda."""
        name = self.method["method"]
        without_lambda = name == "fusion-tree" or (name == "fpfc" and self.method["lam"] == "auto")
        return without_lambda and not self.converged

    @property
    def ari(self) -> float | None:
        """Agreement with the true groups (adjusted Rand index), or None where they are unknown; of honest devices."""
        truth, honest = self.profile.truth, self.honest
        return adjusted_rand(None if truth is None else truth[honest], self.labels[honest])

    @property
    def honest(self) -> Ints:
        """The devices that were not made to lie."""
        return np.setdiff1d(np.arange(len(self.labels)), self.attack["who"] if self.attack else [])

    @property
    def scored(self) -> Ints:
        """The devices that count in mean scores: those not made to lie; where nobody was, all but suspects."""
        believed = np.setdiff1d(np.arange(len(self.scores["test"])), self.suspects)
        return self.honest if self.attack or not believed.size else believed

    @cached_property
    def clusters(self) -> list[list[str]]:
        """The names of the devices in each group."""
        members = (np.flatnonzero(self.labels == c) for c in range(self.n_clusters))
        return [[self.profile.names[i] for i in inside] for inside in members]

    @property
    def cluster_models(self) -> Floats:
        """The parameters of each group (n_clusters x d); where devices have their own, the mean."""
        shared = self.models[np.unique(self.labels, return_index=True)[1]]
        if (self.models == shared[self.labels]).all():
            return shared
        return group_means(self.models, self.labels, self.profile.counts)

    def score(self, part: str = "test", devices: Ints | None = None) -> float:
        """Return the score on ``"validation"`` or ``"test"`` of all devices but suspects, or of these.

        Accuracy, log-loss, RMSE and MAE are plain means over devices, the other metrics those of all rows together.
        Where devices were made to lie for an experiment, the others count.
        """
        if part not in self.scores:
            raise FedfuseError(f"no scores for {part!r}; known: {', '.join(self.scores)}")
        known = self.sums.get(part, self.scores[part])
        return mean_score(known[self.scored if devices is None else devices], self.profile.metric)

    @property
    def default_verdict(self) -> str:
        """What devices predict with where nothing else was tried."""
        if self.method["method"] == "local":
            return "alone"
        if self.n_clusters > 1:
            return "groups"
        return "pooled" if (self.models == self.models[0]).all() else "personal"

    def comparison(self) -> dict[str, float | None]:
        """Return the test score by groups, personal models, alone and with one model for all; None where unknown."""
        known = {name: mean_score(scores[self.scored], self.profile.metric) for name, scores in self.compared.items()}
        known = known or {self.default_verdict: self.score("test")}
        return {name: known.get(name) for name in VERDICTS}

    def index(self, device: str | int) -> int:
        """Return the position of a device given by name or position."""
        return position_of(device, self._positions)

    @property
    def fallback(self) -> Floats:
        """The parameters for unknown devices: one model for all, or else the mean of all models."""
        return np.asarray(self.alternatives.get("pooled", self.models).mean(axis=0, dtype=np.float64))

    def outputs(self, device: str | int, X: npt.ArrayLike) -> Floats:
        """Return values, or class probabilities (n x classes), for rows by a device's model."""
        try:
            rows = np.asarray(as_numpy(X, "X", str(device)), dtype=np.float64)
        except (TypeError, ValueError) as problem:
            raise FedfuseError(f"features must be numbers: {problem}") from None
        need, shape = self.model.n_features, self.profile.shape
        if shape is not None and rows.shape[1:] == shape:
            rows = rows.reshape(len(rows), -1)
        if rows.ndim != 2 or rows.shape[1] != need:
            raise FedfuseError(f"X must be rows x {need} features, got an array of shape {rows.shape}")
        if not np.isfinite(rows).all():
            raise FedfuseError(f"X must be finite, got {rows[~np.isfinite(rows)][0]}; fill missing values first")
        return self.model.outputs(self.in_use[self.index(device)], rows)

    def predict(self, device: str | int, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the predicted classes or values for rows by a device's model."""
        outputs = self.outputs(device, X)
        if self.profile.goal == "regression":
            return outputs
        return np.asarray(np.array(self.profile.classes)[outputs.argmax(axis=1)])

    def predict_frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a prediction for every row of a table with the device column of the training table.

        The answer has columns ``device``, ``cluster``, ``group`` and ``prediction``, and for classes one column of
        probabilities each. Rows of unknown devices have no group, and are predicted by the `fallback`,
        those of networks left empty.
        """
        encoder = self.profile.encoder
        if encoder is None:
            raise FedfuseError("this run was not trained on a table, so the columns to use are not known")
        devices, X = encoder.devices(frame), encoder.transform(frame)
        outputs = np.full((len(frame), len(self._output_names)), np.nan)
        for name, rows in pd.Series(devices).groupby(devices).indices.items():
            if name in self._positions:
                outputs[rows] = self.outputs(name, X[rows]).reshape(len(rows), -1)
            elif self.model.convex:  # The mean of networks is none.
                outputs[rows] = self.model.outputs(self.fallback, X[rows]).reshape(len(rows), -1)
        group = dict(zip(self.profile.names, self.labels.tolist(), strict=True))
        clusters = pd.array([group.get(name) for name in devices], dtype="Int64")
        answer: pd.DataFrame = pd.DataFrame({"device": devices, "cluster": clusters}, index=frame.index)
        answer["group"] = answer["cluster"].map(self.cluster_numbers).astype("Int64")
        if self.profile.goal == "regression":
            answer["prediction"] = outputs[:, 0]
            return answer
        best = np.where(np.isnan(outputs).any(axis=1), len(self.profile.classes), outputs.argmax(axis=1))
        answer["prediction"] = np.array([*self.profile.classes, None], dtype=object)[best]
        for c, name in enumerate(self._output_names):
            answer[f"p({name})"] = outputs[:, c]
        return answer

    def certify(self, federation: Federation) -> Certificate:
        """Return the lambdas for which the grouping is a stationary point of FPFC's objective, whatever found it.

        Computed from the rows of the federation that the run was trained on; nothing is sent.
        ``dataclasses.replace(result, certificate=…)`` keeps it in the summary and the report.
        """
        self._check_names(federation)
        certificate: Certificate = load("fedfuse.training.evaluation:certify")(self, federation)
        return certificate

    def infer(self, federation: Federation) -> pd.DataFrame:
        """Return estimates with standard errors, 95 % confidence intervals and p-values, in the units of the table.

        A row for each coefficient of each group, and for each difference between two groups (``group`` less
        ``against``; for classes log-odds against the first), from the training and validation rows of the federation
        that the run was trained on; nothing is sent. ``p_holm`` is corrected for the number of coefficients or
        differences, ``detectable`` is the size that would have been found with 80 % power. The groups were found on the
        same rows, which the intervals do not allow for. ``dataclasses.replace(result, intervals=…)`` keeps the table.
        """
        self._check_names(federation)
        table: pd.DataFrame = load("fedfuse.results.intervals:infer")(self, federation)
        return table

    def _check_names(self, federation: Federation) -> None:
        if federation.names != self.profile.names:
            raise FedfuseError("this is not the federation of the run: its devices have other names")

    def module(self, device: str | int | None = None, *, cluster: int | None = None) -> Any:
        """Return a copy of the torch module with the weights of a device, or of a group, ready for use."""
        if (device is None) == (cluster is None):
            raise FedfuseError("module takes a device or cluster=number")
        if cluster is not None and cluster not in self.labels:
            raise FedfuseError(f"there is no group {cluster}; groups are 0 … {self.n_clusters - 1}")
        i = int((self.labels == cluster).argmax()) if device is None else self.index(device)
        return self.model.module_with(self.models[i])

    def admit(self, X: Any, y: Any = None, *, test: float = 0.2, validation: float = 0.2) -> Newcomers:
        """Admit newcomers: each gets a group and a model by the method's own rule, and nobody is retrained.

        Parameters
        ----------
        X, y
            The rows of one newcomer. Or, without ``y``: ``{name: (X, y)}``, a list of (X, y), or a `Federation`.
        test, validation
            Shares of a newcomer's rows as in `Federation.from_arrays`; with few rows there are fewer parts.
        """
        if not isinstance(X, Federation):
            gathered = load("fedfuse.training.newcomers:gathered")
            X = gathered(self, X, y, test=test, validation=validation, seed=self.seed)
        newcomers: Newcomers = load("fedfuse.training.newcomers:admit")(self, X)
        return newcomers

    def coefficients(self) -> pd.DataFrame:
        """Return the models of the groups with feature names, in the units of the table.

        One row per group (and class), one column per feature, ``intercept`` last. Those of classes are log-odds
        against the first class, whose own are 0.
        """
        encoder = self.profile.encoder
        models = [self.model.coefficients(w.astype(np.float64)) for w in self.cluster_models]
        if encoder is not None:
            models = [encoder.unscale(coefficients) for coefficients in models]
        if self.profile.classes:
            models = [coefficients - coefficients[0] for coefficients in models]
        index = pd.MultiIndex.from_product([range(len(models)), self._output_names], names=["cluster", "output"])
        columns = [*self.profile.features, "intercept"]
        table: pd.DataFrame = pd.DataFrame(np.concatenate(models), index=index, columns=columns)
        return table

    def contrasts(self) -> pd.Series[float]:
        """Return how much each feature, and the ``intercept``, tells the groups apart, largest first.

        The root mean square difference between the coefficients of two devices of different groups, in the
        scale that was trained on (for tables: per standard deviation of the feature, and the intercept at average
        features), over all classes.
        """
        table = np.stack([self.model.coefficients(w.astype(np.float64)) for w in self.cluster_models])
        if table.shape[1] > 1:
            table -= table.mean(axis=1, keepdims=True)  # adding the same to all classes changes no probability
        sizes = np.bincount(self.labels).astype(np.float64)
        m, pairs = sizes.sum(), sizes.sum() ** 2 - np.square(sizes).sum()
        # sum_ab n_a n_b |w_a - w_b|^2 = 2 m sum_a n_a |w_a - mean|^2
        away = np.square(table - np.average(table, axis=0, weights=sizes)).sum(axis=1)
        spread = np.sqrt(2 * m * (sizes @ away) / max(pairs, 1.0))
        contrasts: pd.Series[float] = pd.Series(spread, index=[*self.profile.features, "intercept"], name="contrast")
        return contrasts.sort_values(ascending=False, kind="stable")

    def summary(self) -> dict[str, Any]:
        """Return the run in a few numbers: what ``summary.json`` holds."""
        return {
            "dataset": self.dataset,
            "method": self.method["method"],
            "seed": self.seed,
            "lam": self.lam,
            "rounds": self.rounds,
            "stages": list(self.stages),
            "metric": self.profile.metric,
            "test": self.score("test"),
            "validation": self.score("validation"),
            "scores": self.comparison(),
            "verdict": self.verdict or self.default_verdict,
            "n_clusters": self.n_clusters,
            "ari": self.ari,
            "cost_floats": self.cost_floats,
            "seconds": round(self.seconds, 3),
            "labels": self.labels.tolist(),
            "version": __version__,
            "cost_megabytes": 4e-6 * self.cost_floats,
            "converged": self.converged,
            "chosen": self.chosen,
            "refused": self.refused,
            "orders": self.orders,
            "stability": self.stability,
            "uncertain": self.uncertain,
            "unsure": [self.profile.names[i] for i in self.unsure],
            "suspects": [self.profile.names[i] for i in self.suspects],
            "left_out": self.left_out,
            **({"capped": self.capped} if self.capped else {}),
            **({"trouble": self.trouble} if self.trouble else {}),
            **({"privacy": self.privacy} if self.privacy else {}),
            **({"certificate": self.certificate.to_json()} if self.certificate else {}),
            **self._exposed(),
        }

    def _exposed(self) -> dict[str, Any]:
        """Return who lied, where that is known, and precision and recall of the suspects."""
        if self.attack is None:
            return {}
        who, found = self.attack["who"], len(np.intersect1d(self.attack["who"], self.suspects))
        return {
            "attack": self.attack["attack"],
            "lies": self.attack["lies"],
            "liars": len(who) / len(self.labels),
            "who": [self.profile.names[i] for i in who],
            "precision": found / len(self.suspects) if len(self.suspects) else None,
            "recall": found / len(who) if who else None,
        }

    @property
    def uncertain(self) -> bool | None:
        """Whether the grouping should not be relied on; None where the method cannot tell."""
        if self.stability is None or self.confidence is None:
            return None
        return bool(self.stability < MIN_CONFIDENCE or len(self.unsure) > 0.1 * len(self.labels))

    @property
    def unsure(self) -> Ints:
        """The devices that another group's model fits about as well, or that were never judged."""
        return np.flatnonzero([] if self.confidence is None else self.confidence < MIN_CONFIDENCE)

    def save(self, directory: str | PathLike[str]) -> None:
        """Write the result as plain files; ``summary.json`` comes last and marks a finished run."""
        path = Path(directory)
        make_directory(path)
        write_csv(path / "history.csv", self.history)
        write_csv(path / "labels.csv", self.devices())
        if self.model.convex:
            self.save_coefficients(path)
        arrays: dict[str, npt.NDArray[Any]] = {"models": self.models, **self.scores}
        arrays |= prefixed("alternative.", self.alternatives) | prefixed("compared.", self.compared)
        if self.confidence is not None:
            arrays["confidence"] = self.confidence
        if self.unheard.size:
            arrays["unheard"] = self.unheard
        write_arrays(path / "models.npz", arrays)
        if self.kept:
            write_arrays(path / "kept.npz", self.kept)
        if self.sums:
            write_arrays(path / "sums.npz", self.sums, compress=True)
        profile = {"model": self.model.to_config(), "method": self.method, **self.profile.to_json()}
        write_json(path / "profile.json", profile)
        write_json(path / "summary.json", self.summary())

    def save_coefficients(self, directory: str | PathLike[str]) -> None:
        """Write coefficients, contrasts and, where they are known, intervals as tables."""
        path, contrasts = Path(directory), self.contrasts().rename_axis("feature").to_frame()
        write_csv(path / "coefficients.csv", self.coefficients(), index=True)
        if self.intervals is not None:
            contrasts = contrasts.join(load("fedfuse.results.intervals:feature_tests")(self.intervals))
            write_csv(path / "intervals.csv", self.intervals)
        write_csv(path / "contrasts.csv", contrasts.reset_index())

    @classmethod
    def load(cls, directory: str | PathLike[str], model: Model[Any] | None = None) -> Result:
        """Read what `save` wrote.

        A run that trained a module of your own needs it again as ``model`` to predict; labels, scores and parameters
        are there without it.
        """
        return cls(**read_run(directory, model))

    def __repr__(self) -> str:
        sizes = ", ".join(str(n) for n in sorted(np.bincount(self.labels), reverse=True)[:8])
        more = ", …" if self.n_clusters > 8 else ""
        ari = "" if self.ari is None else f", ARI {self.ari:.3f}"
        groups = f"{self.n_clusters} group{'s' if self.n_clusters > 1 else ''} of {sizes}{more} devices"
        score = self.score("test")
        test = "" if np.isnan(score) else f", test {self.profile.metric} {score:.4f}"
        sent = f"{self.rounds} rounds, {self.cost_floats:,} numbers sent"
        return f"Result({self.dataset}, {self.method['method']}: {groups}{test}{ari}, {sent})"

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.profile.names)}

    @property
    def _output_names(self) -> list[str]:
        return [str(c) for c in self.profile.classes] or ["value"]

    def devices(self) -> pd.DataFrame:
        """Return one row per device: group, rows and scores; where known, its confidence and the true group.

        ``group`` is the number in the report: 1 for the largest group, 0 for devices in none.
        """
        columns = {"device": self.profile.names, "cluster": self.labels, "group": self.group_numbers}
        table: pd.DataFrame = pd.DataFrame({**columns, "rows": self.profile.counts})
        for part, scores in self.scores.items():
            table[part] = scores
        if self.confidence is not None:
            table["confidence"] = self.confidence
        if self.profile.truth is not None:
            table["truth"] = self.profile.truth
        return table


def mean_score(scores: Floats, metric: str = "") -> float:
    """Return the plain mean over the devices that have rows to be scored on; of sums (devices x size), the metric."""
    if scores.ndim > 1:
        return METRICS[metric].overall(scores)
    return float(np.nanmean(scores)) if np.isfinite(scores).any() else float("nan")
