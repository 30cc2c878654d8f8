"""Algorithm 2 of the paper, word for word: theta and v explicit, one Python loop per pair; local steps in NumPy.

Slow on purpose. It is the oracle of the tests and the yardstick of the benchmark.
"""

from __future__ import annotations

import numpy as np


def prox(penalty, delta, rho):
    """theta = argmin g(||theta||) + rho/2 ||theta - delta||^2, by the formulas as printed."""
    r = np.linalg.norm(delta)
    lam = penalty.lam
    if lam == 0:
        return delta.copy()
    if penalty.name == "l2":
        return rho / (rho + 2 * lam) * delta
    if penalty.name == "l1":
        return max(0.0, 1 - lam / (rho * r)) * delta if r else 0 * delta
    a = penalty.a
    if penalty.name == "mcp":
        if r > a * lam:
            return delta.copy()
        return max(0.0, 1 - lam / (rho * r)) / (1 - 1 / (a * rho)) * delta if r else 0 * delta
    if penalty.name == "smoothed-scad" and r <= penalty.xi + lam / rho:
        return penalty.xi * rho / (lam + penalty.xi * rho) * delta
    if r <= lam + lam / rho:
        return max(0.0, 1 - lam / (rho * r)) * delta if r else 0 * delta
    if r <= a * lam:
        return max(0.0, 1 - a * lam / ((a - 1) * rho * r)) / (1 - 1 / ((a - 1) * rho)) * delta
    return delta.copy()


class Textbook:
    """omega (m x d); theta and v (m x m x d), zeta for all devices after every round."""

    def __init__(self, omega, penalty, rho=1.0, warm=False):
        self.omega = np.array(omega, dtype=float)
        self.penalty, self.rho = penalty, rho
        m, d = self.omega.shape
        self.theta, self.v = np.zeros((m, m, d)), np.zeros((m, m, d))
        if warm:
            for i in range(m):
                for j in range(m):
                    self.theta[i, j] = self.omega[i] - self.omega[j]

    def update(self, active, omegas):
        self.omega[list(active)] = omegas
        m, active = len(self.omega), set(active)
        for i in range(m):
            for j in range(i + 1, m):
                if i in active or j in active:
                    self.update_pair(i, j)

    def update_pair(self, i, j):
        diff = self.omega[i] - self.omega[j]
        self.theta[i, j] = prox(self.penalty, diff + self.v[i, j] / self.rho, self.rho)
        self.v[i, j] += self.rho * (diff - self.theta[i, j])
        self.theta[j, i], self.v[j, i] = -self.theta[i, j], -self.v[i, j]

    def anchor(self, i):
        zeta = np.zeros(self.omega.shape[1])
        for j in range(len(self.omega)):
            zeta += self.omega[j] + self.theta[i, j] - self.v[i, j] / self.rho
        return zeta / len(self.omega)


class EdgeTextbook(Textbook):
    """The same for some pairs alone: an anchor is a mean over a device and its neighbours."""

    def __init__(self, omega, penalty, edges, rho=1.0, warm=False):
        super().__init__(omega, penalty, rho, warm)
        self.edges = set(edges)

    def update_pair(self, i, j):
        if (i, j) in self.edges:
            super().update_pair(i, j)

    def anchor(self, i):
        zeta, neighbours = self.omega[i].copy(), 0
        for j in range(len(self.omega)):
            if (min(i, j), max(i, j)) in self.edges:
                zeta += self.omega[j] + self.theta[i, j] - self.v[i, j] / self.rho
                neighbours += 1
        return zeta / (1 + neighbours)


def softmax_steps(X, y, W, anchor, rho, steps, lr):
    """Gradient steps of one device on mean cross-entropy + rho/2 ||W - anchor||^2.

    X has a last column of ones; W and anchor are (classes x columns of X).
    """
    onehot = np.eye(len(W), dtype=X.dtype)[y]
    for _ in range(steps):
        scores = X @ W.T
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        scores -= onehot
        W = W - lr * (scores.T @ X / X.dtype.type(len(X)) + rho * (W - anchor))
    return W


class SoftmaxTextbook:
    """Rounds of the algorithm with softmax devices, from zero; ``rows`` are X and y of every device."""

    def __init__(self, rows, classes, penalty, steps, lr):
        self.rows, self.steps, self.lr = rows, steps, lr
        X = rows[0][0]
        self.W = np.zeros((len(rows), classes, X.shape[1]), X.dtype)
        self.server = Textbook(self.W.reshape(len(rows), -1), penalty)
        self.zeta = self._anchors()

    def _anchors(self):
        return np.array([self.server.anchor(i) for i in range(len(self.W))], self.W.dtype).reshape(self.W.shape)

    def round(self, active):
        for i in active:
            self.W[i] = softmax_steps(*self.rows[i], self.W[i], self.zeta[i], 1.0, self.steps, self.lr)
        self.server.update(active, self.W[active].reshape(len(active), -1))
        self.zeta = self._anchors()
