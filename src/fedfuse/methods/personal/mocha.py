"""MOCHA: linear models of related tasks, whose relations are learned with them.

V. Smith, C.-K. Chiang, M. Sanjabi, A. Talwalkar: Federated Multi-Task Learning (NIPS 2017), after Y. Zhang, D.-Y.
Yeung: A Convex Formulation for Learning Task Relationships (UAI 2010).

    the least of sum_i f_i(w_i) + lam / (2 m) tr(W' Omega W) over W (a row each) and Omega^-1 = Sigma >= 0, tr Sigma = 1
    server: sends a_i = w_i - (Omega W)_i / L, L the largest eigenvalue of Omega
    device: w_i <- the least of f_i(w) + lam L / (2 m) ||w - a_i||^2, by local steps; sends w_i
    server: every so many rounds, Sigma <- (W W')^(1/2) / tr (W W')^(1/2)

The device's problem is an upper bound of the whole one, so that every round lowers it with any devices. The original
solves the dual of a quadratic bound by coordinate ascent; this is its primal. Sigma has no more rank than a model has
parameters, so a little of the identity is mixed in. For convex models only, as the original.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy

from fedfuse.errors import FedfuseError
from fedfuse.methods.anchored import Anchored, OwnModels
from fedfuse.methods.method import FederationInfo, Outcome, Residuals, moved
from fedfuse.methods.parameters import Auto, Searchable, number
from fedfuse.utils.typing import Floats, Ints

# Share of the identity in Sigma: Omega's eigenvalues differ by at most a factor of m over this.
IDENTITY_SHARE = 0.1


@dataclass
class RelatedModels(OwnModels):
    """Models, how tasks are related (Sigma), how far that moved when it was last learned, and the rounds so far."""

    relations: Floats
    moved: float = float("inf")
    age: int = 0


@dataclass(frozen=True)
class MOCHA(Anchored, Searchable):
    """A model for every device, drawn to those of related tasks.

    Parameters
    ----------
    lam
        Strength of the penalty; ``"auto"`` chooses on validation rows.
    every
        Rounds from one update of the relations to the next.
    """

    name: ClassVar[str] = "mocha"
    lam: float | Auto = number("auto", least=0, tried=(0.01, 0.03, 0.1, 0.3, 1.0))
    every: int = number(10, least=1)

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> RelatedModels:
        if not info.model.convex:
            raise FedfuseError("mocha is for linear and softmax regression, not for networks; try fedamp")
        return RelatedModels(info, super().init(info).models, np.eye(info.m) / info.m)

    def anchors(self, state: Any, devices: Ints) -> tuple[Floats, float]:
        omega = np.linalg.inv(state.relations)
        largest = float(np.linalg.eigvalsh(omega)[-1])
        return state.models[devices] - omega[devices] @ state.models / largest, self.setting * largest / state.info.m

    def update(self, state: Any, devices: Ints, values: list[Floats]) -> Residuals | None:
        state.age += 1
        found = super().update(state, devices, values)
        if state.age % self.every == 0:
            old, state.relations = state.relations, relations(state.models)
            state.moved = moved(old, state.relations).moved
        return replace(found, moved=max(found.moved, state.moved)) if found else None  # neither alone is at rest

    def outcome(self, state: Any) -> Outcome:
        return super().outcome(state)._replace(kept={"relations": state.relations})


def relations(models: Floats) -> Floats:
    """Return Sigma of these models, with trace 1."""
    m, (values, vectors) = len(models), scipy.linalg.eigh(np.asarray(models @ models.T, np.float64))
    roots = np.sqrt(np.maximum(values, 0))
    sigma = (vectors * roots) @ vectors.T / (roots.sum() or 1.0)
    return np.asarray((1 - IDENTITY_SHARE) * sigma + IDENTITY_SHARE * np.eye(m) / m if roots.any() else np.eye(m) / m)
