"""The yardstick: Algorithm 2 of the paper word for word, and local steps as one writes them in NumPy."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedfuse.core.penalties import Penalty
from fedfuse.errors import FedfuseError
from fedfuse.utils.typing import Floats, Ints

IN_CHECKOUT = Path(__file__).parents[3] / "tests" / "support" / "textbook.py"


def transcription() -> Any:
    """Return the module of the tests' textbook loops: a checkout has it in tests/, a wheel carries a copy."""
    if not IN_CHECKOUT.is_file():
        try:
            return importlib.import_module("fedfuse.bench._textbook")
        except ModuleNotFoundError:
            raise FedfuseError(f"the textbook loops are missing: no {IN_CHECKOUT}, and no copy here") from None
    spec = importlib.util.spec_from_file_location("fedfuse.bench._textbook", IN_CHECKOUT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TextbookServer:
    """theta and v explicit, one Python loop per pair, zeta of all devices after every round."""

    def __init__(self, omega: Floats, penalty: Penalty, *, warm: bool = False) -> None:
        self._book = transcription().Textbook(omega, penalty, warm=warm)
        self.zeta = self._zeta()

    @property
    def theta(self) -> Floats:
        """Of all ordered pairs: m x m x d."""
        return np.asarray(self._book.theta)

    def step(self, active: Sequence[int] | Ints, omegas: Floats) -> None:
        """Take in one round's uploads (step 5 of the algorithm)."""
        self._book.update(active, omegas)
        self.zeta = self._zeta()

    def _zeta(self) -> list[Floats]:
        return [self._book.anchor(i) for i in range(len(self._book.omega))]


def softmax_steps(X: Floats, y: Ints, W: Floats, anchor: Floats, rho: float, steps: int, lr: float) -> Floats:
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
