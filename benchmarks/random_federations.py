"""Random federations with known groups, for `regrets.py`."""

from __future__ import annotations

import numpy as np

import fedfuse as ff

MIN_ROWS, MAX_ROWS = 15, 1000
# Sixteen times the usual test rows, so that scores differ by more than chance; the rows to learn from stay as many.
TEST_SHARE = 0.8
NOISE_RATIOS = (1.0, 2.0, 4.0)  # of the devices' noise to each other, linear regression
WRONG_LABELS = (0.0, 0.1, 0.2)  # shares of labels drawn at random, classification


def draw(seed: int) -> tuple[ff.Federation, str]:
    """Return a federation, and what it is in words.

    Seeds take turns between linear and softmax regression, few rows (15 to 40) and more, equal noise and devices whose
    noise differs. Devices (8 to 100), groups (1 to 8, of unequal sizes), columns (2 to 20) and the distance of the
    groups' models, from easy to hardly separable, are drawn.
    """
    rng = np.random.default_rng([20261118, seed])
    linear, few_rows, unequal_noise = seed % 2 == 0, seed // 2 % 3 == 0, seed // 6 % 2 == 0
    m = int(np.exp(rng.uniform(np.log(8), np.log(101))))
    groups = int(rng.integers(1, min(8, m // 3) + 1))
    sizes = rng.dirichlet(np.ones(groups))
    truth = np.sort(np.concatenate([np.arange(groups), rng.choice(groups, m - groups, p=sizes)]))
    p, classes = int(rng.integers(2, 21)), int(rng.choice([2, 3, 5]))
    median = float(np.exp(rng.uniform(np.log(40), np.log(400))))
    counts = np.clip(rng.lognormal(np.log(median), 0.8, m), MIN_ROWS, MAX_ROWS).astype(int)
    if few_rows:
        counts = rng.integers(MIN_ROWS, 41, m)
    separation = float(np.exp(rng.uniform(np.log(0.15), np.log(3))))
    outputs = 1 if linear else classes
    models = rng.normal(size=(outputs, p + 1)) + separation * rng.normal(size=(groups, outputs, p + 1))
    mean, noise = rng.normal(size=p) * rng.choice([0, 1]), float(rng.uniform(0.3, 2))
    level = rng.integers(3, size=m) if unequal_noise else np.zeros(m, int)
    data = []
    for g, n, loud in zip(truth, 4 * counts, level, strict=True):
        X = mean + rng.normal(size=(n, p))
        scores = X @ models[g, :, :-1].T + models[g, :, -1]
        if linear:
            y = scores[:, 0] + noise * NOISE_RATIOS[loud] * rng.normal(size=n)
        else:
            y = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
            y = np.where(rng.random(n) < WRONG_LABELS[loud], rng.integers(classes, size=n), y)
        data.append((X, y))
    what = f"{'linear' if linear else f'{classes} classes'}, {m} devices, {groups} groups, {p} columns, "
    what += f"{int(np.median(counts))} rows, separation {separation:.2f}{', unequal noise' if unequal_noise else ''}"
    goal = "regression" if linear else "classification"
    return ff.Federation.from_arrays(data, truth=truth, goal=goal, test=TEST_SHARE, seed=seed), what
