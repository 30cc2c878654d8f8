"""The paper's synthetic federations: ten classes, sixty features, devices in known groups (App. E.1).

The draws and their order follow one legacy NumPy stream, so that a seed gives the data of the paper's tables; only
the split into parts is keyed by seed and device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, TypeAlias

import numpy as np

from fedfuse.data.checks import check_splits
from fedfuse.data.federation import Federation, cut_points, default_features, shuffled_rows
from fedfuse.errors import FedfuseError, check_choice
from fedfuse.utils.typing import Floats, Ints

FeatureDistribution: TypeAlias = Literal["uniform", "normal"]

N_FEATURES = 60
N_CLASSES = 10
NOISE_SD = 0.5
GROUP_SIZES = re.compile(r"[1-9]\d{0,5}(,[1-9]\d{0,5})*")  # A scenario may also be written out: devices per group.
# Devices per group, numbered one group after the other.
SCENARIOS: dict[str, tuple[int, ...]] = {
    "S1": (25, 25, 25, 25),
    "S2": (10, 40, 10, 40),
    "S3": (50, 50),
    "S4": (50,),
    "S5": (1,) * 50,
}


@dataclass(frozen=True)
class SyntheticTruth:
    """What the data were drawn from."""

    counts: Ints  # rows of every device
    groups: Ints  # the group of every device
    mu: Floats  # the mean of each group's parameters; it shifts all logits alike, so labels do not depend on it
    W: Floats  # weights, groups x 10 x 60, float32 as drawn
    b: Floats  # intercepts, groups x 10

    def scores(self, device: int, X: Floats) -> Floats:
        """Return the logits of this device's rows before noise; no classifier beats their argmax."""
        g = self.groups[device]
        return np.asarray(X @ self.W[g].astype(np.float64).T + self.b[g])


def synthetic(
    scenario: str = "S1",
    features: FeatureDistribution = "uniform",
    seed: int = 0,
    test: float = 0.2,
    validation: float = 0.2,
) -> Federation:
    """Return one of the synthetic federations.

    Parameters
    ----------
    scenario
        ``"S1"`` four equal groups of 100 devices, ``"S2"`` four unequal ones, ``"S3"`` two equal ones;
        ``"S4"`` 50 devices all alike, ``"S5"`` 50 devices all different; or devices per group: ``"5,5,5,5"``.
    features
        ``"uniform"`` on [0, 1), which the paper's numbers come from, or ``"normal"``, which its text says.
    test, validation, seed
        As in `Federation.from_arrays`; the seed also draws the data, by a legacy NumPy stream.

    Examples
    --------
    >>> synthetic("S4", seed=1)
    Federation(50 devices, 86,835 rows (250 to 18,460 each), 60 features, 10 classes)
    """
    check_splits(test, validation, seed)
    check_choice("features", features, FeatureDistribution)
    stream = _stream(seed)
    truth = _draw_truth(stream, _group_sizes(scenario))
    cuts, rows = cut_points(truth.counts, test, validation), shuffled_rows(truth.counts, seed)
    X, y = np.empty((len(rows), N_FEATURES)), np.empty(len(rows), dtype=np.int64)
    for i, (start, *_, stop) in enumerate(cuts):
        shape = (stop - start, N_FEATURES)
        Xi = stream.random_sample(shape) if features == "uniform" else stream.normal(size=shape)
        noise = stream.normal(0, NOISE_SD, (stop - start, N_CLASSES)).astype(np.float32)
        yi = np.argmax(truth.scores(i, Xi) + noise, axis=1)
        order = rows[start:stop] - start
        X[start:stop], y[start:stop] = Xi[order], yi[order]
    names = tuple(str(i) for i in range(len(truth.counts)))
    labels, columns = tuple(range(N_CLASSES)), default_features(N_FEATURES)
    return Federation(names, X, y, cuts, "classification", labels, columns, truth.groups)


def synthetic_truth(scenario: str = "S1", seed: int = 0) -> SyntheticTruth:
    """Return the parameters that `synthetic` draws its data from (the same for both feature distributions).

    >>> truth = synthetic_truth("S1", seed=0)
    >>> truth.counts[:3].tolist(), truth.mu.round(2).tolist()
    ([9545, 855, 2180], [1.88, -1.35, -1.27, 0.97])
    """
    return _draw_truth(_stream(seed), _group_sizes(scenario))


def _group_sizes(scenario: str) -> tuple[int, ...]:
    if GROUP_SIZES.fullmatch(scenario):
        return tuple(int(size) for size in scenario.split(","))
    if scenario not in SCENARIOS:
        known = f"{', '.join(SCENARIOS)}, or devices per group, such as 5,5,5,5"
        raise FedfuseError(f"no synthetic scenario is called {scenario!r}; known: {known}")
    return SCENARIOS[scenario]


def _stream(seed: int) -> np.random.RandomState:
    if not isinstance(seed, Integral) or not 0 <= seed < 2**32:
        raise FedfuseError(f"seed must be a whole number from 0 to {2**32 - 1} for synthetic data, got {seed}")
    return np.random.RandomState(int(seed))


def _draw_truth(stream: np.random.RandomState, sizes: tuple[int, ...]) -> SyntheticTruth:
    # The order of the draws decides the data: row numbers, means, then W and b group by group.
    counts = 5 * (np.floor(stream.lognormal(4, 2, sum(sizes))).astype(np.int64) + 50)
    mu = stream.normal(0, 1, len(sizes))
    W = np.empty((len(sizes), N_CLASSES, N_FEATURES), dtype=np.float32)
    b = np.empty((len(sizes), N_CLASSES), dtype=np.float32)
    for g, mean in enumerate(mu):
        W[g] = stream.normal(mean, 1, W[g].shape)
        b[g] = stream.normal(mean, 1, N_CLASSES)
    return SyntheticTruth(counts, np.repeat(np.arange(len(sizes)), sizes), mu, W, b)
