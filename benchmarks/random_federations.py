"""Random federations with known groups, for `regrets.py` and `calibration.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import fedfuse as ff

# Sixteen times the usual test rows, so that scores differ by more than chance; the rows to learn from stay as many.
TEST_SHARE = 0.8
# What is added to a seed for which all rows have one class: nothing can be learned from them.
NEXT_DRAW = 10**6
NOISE_RATIOS = (1.0, 2.0, 4.0)  # of the devices' noise to each other, linear regression


@dataclass(frozen=True)
class Ranges:
    """What is drawn, from least to most; of rows the median over devices, and between which bounds they are."""

    devices: tuple[int, int] = (8, 100)
    groups: int = 8  # at the most
    smallest_group: int = 1  # devices
    columns: tuple[int, int] = (2, 20)
    median_rows: tuple[int, int] = (40, 400)
    rows: tuple[int, int] = (15, 1000)
    separation: tuple[float, float] = (0.15, 3.0)  # of coefficients, in units of what groups have in common
    wrong_labels: tuple[float, ...] = (0.0, 0.1, 0.2)  # shares of labels drawn at random, where noise differs
    imbalance: float = 0.0  # standard deviation of the log odds of classes, in every second federation


REGRETS = Ranges()
CALIBRATION = Ranges((6, 120), 6, 2, (2, 12), (30, 150), (20, 200), (0.4, 3.0), (0.0, 0.05, 0.1), imbalance=1.0)


def draw(seed: int, ranges: Ranges = REGRETS) -> tuple[ff.Federation, str]:
    """Return a federation, and what it is in words.

    Seeds take turns between linear and softmax regression, few rows (up to 40) and more, equal noise and devices whose
    noise differs. Devices, groups (of unequal sizes), columns and the distance of the groups' models, from easy to
    hardly separable, are drawn.
    """
    rng = np.random.default_rng([20261118, seed])
    linear, few_rows, unequal_noise = seed % 2 == 0, seed // 2 % 3 == 0, seed // 6 % 2 == 0
    m = int(np.exp(rng.uniform(np.log(ranges.devices[0]), np.log(ranges.devices[1] + 1))))
    groups = int(rng.integers(1, min(ranges.groups, m // 3) + 1))
    sizes = rng.dirichlet(np.ones(groups))
    least = np.repeat(np.arange(groups), ranges.smallest_group)
    truth = np.sort(np.concatenate([least, rng.choice(groups, m - least.size, p=sizes)]))
    p, classes = int(rng.integers(ranges.columns[0], ranges.columns[1] + 1)), int(rng.choice([2, 3, 5]))
    median = float(np.exp(rng.uniform(*np.log(ranges.median_rows))))
    counts = np.clip(rng.lognormal(np.log(median), 0.8, m), *ranges.rows).astype(int)
    if few_rows:
        counts = rng.integers(ranges.rows[0], 41, m)
    separation = float(np.exp(rng.uniform(*np.log(ranges.separation))))
    outputs = 1 if linear else classes
    models = rng.normal(size=(outputs, p + 1)) + separation * rng.normal(size=(groups, outputs, p + 1))
    mean, noise = rng.normal(size=p) * rng.choice([0, 1]), float(rng.uniform(0.3, 2))
    level = rng.integers(3, size=m) if unequal_noise else np.zeros(m, int)
    if ranges.imbalance and rng.random() < 0.5:
        models[:, :, -1] += ranges.imbalance * rng.normal(size=outputs)
    data = []
    for g, n, loud in zip(truth, 4 * counts, level, strict=True):
        X = mean + rng.normal(size=(n, p))
        scores = X @ models[g, :, :-1].T + models[g, :, -1]
        if linear:
            y = scores[:, 0] + noise * NOISE_RATIOS[loud] * rng.normal(size=n)
        else:
            y = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
            y = np.where(rng.random(n) < ranges.wrong_labels[loud], rng.integers(classes, size=n), y)
        data.append((X, y))
    if len(np.unique(np.concatenate([y for _, y in data]))) == 1:
        return draw(seed + NEXT_DRAW, ranges)
    what = f"{'linear' if linear else f'{classes} classes'}, {m} devices, {groups} groups, {p} columns, "
    what += f"{int(np.median(counts))} rows, separation {separation:.2f}{', unequal noise' if unequal_noise else ''}"
    goal = "regression" if linear else "classification"
    return ff.Federation.from_arrays(data, truth=truth, goal=goal, test=TEST_SHARE, seed=seed), what
