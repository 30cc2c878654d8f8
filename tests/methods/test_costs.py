"""What every method sends, from the counter of a run, against the formula of docs/methods.md."""

from __future__ import annotations

from functools import partial

import pytest

import fedfuse as ff
from fedfuse import methods
from fedfuse.methods.registry import METHODS
from fedfuse.training.fit import fit
from support.planted import planted

# M devices, k of them in each of K rounds, d parameters, b of them below the last layer, L models.
M, L = 10, 2
MLP = ff.MLP(hidden=(4,))
WORK = ff.Work(steps=2, lr=0.05)


def plain(K, k, d, b):
    """Return one model to everybody, then one down and one up for each active device."""
    return M * d + K * k * 2 * d


def chosen(K, k, d, b):
    """Return all models down; a model and the choice up."""
    return K * k * (L * d + d + L)


COSTS = {
    **{name: (METHODS[name], plain) for name in ("fedavg", "fedasync", "per-fedavg", "fedavg-ft")},
    "fpfc": (partial(ff.FPFC, lam=0.6), plain),
    "fpfc-l1": (partial(ff.FPFCL1, lam=0.2), plain),
    "fedprox": (partial(methods.FedProx, mu=0.1), plain),
    "ditto": (partial(methods.Ditto, lam=1.0), plain),
    "pfedme": (partial(methods.PFedMe, lam=1.0, local_rounds=2), plain),
    "l2gd": (partial(methods.L2GD, lam=1.0), plain),
    "fedamp": (partial(methods.FedAMP, sigma=1.0), plain),
    "mocha": (partial(methods.MOCHA, lam=0.1), plain),
    "scaffold": (methods.Scaffold, lambda K, k, d, b: M * d + K * k * 3 * d),
    "local": (ff.Local, lambda K, k, d, b: 0),
    "lg-fedavg": (ff.LGFedAvg, lambda K, k, d, b: M * (d - b) + K * k * 2 * (d - b)),
    "fedper": (methods.FedPer, lambda K, k, d, b: K * k * 2 * b),
    "fedrep": (methods.FedRep, lambda K, k, d, b: K * k * 2 * b),
    "ifca": (partial(ff.IFCA, n_models=L), lambda K, k, d, b: K * k * (b + L * (d - b) + d + L)),
    "hypcluster": (
        partial(methods.HypCluster, n_models=L),
        lambda K, k, d, b: k * 2 * d + (K - 1) * k * (b + L * (d - b) + d + L),
    ),
    "fedem": (partial(methods.FedEM, n_models=L), lambda K, k, d, b: K * k * 2 * L * (d + 1)),
    "cfl": (partial(ff.CFL, eps1=0.1, eps2=0.2), lambda K, k, d, b: M * d + K * (k * d + M * d)),
    # each device has rows of all three classes, two vectors of three features for each
    "pacfl": (partial(ff.PACFL, threshold=10.0, p=2), lambda K, k, d, b: M * 3 * 2 * 3 + K * k * 2 * d),
    "fl-hc": (partial(methods.FLHC, threshold=0.5, before=2), lambda K, k, d, b: (K - 1) * k * 2 * d + M * 2 * d),
    "odcl-cc": (partial(methods.ODCLCC, lam=0.5, local_steps=5), lambda K, k, d, b: 2 * M * d),
    "odcl-km": (partial(methods.ODCLKM, n_models=2, local_steps=5), lambda K, k, d, b: 2 * M * d),
    "network-lasso": (partial(methods.NetworkLasso, lam=0.2), lambda K, k, d, b: M * d + K * M * (M + 1) * d),
}
# Its cost depends on when each device first takes part: see below.
BY_TURNS = ("stocfl",)
# Made of steps that each ask everybody once: for linear regression, see below.
IN_STEPS = {"fusion-tree": partial(ff.FusionTree, personal=False), "oracle": METHODS["oracle"]}


def test_every_method_has_a_formula():
    assert {*COSTS, *IN_STEPS, *BY_TURNS} == set(METHODS)


@pytest.mark.parametrize("model", [None, MLP], ids=["softmax", "network"])
@pytest.mark.parametrize("name", COSTS)
def test_cost_is_the_formula(name, model):
    if name == "mocha" and model:
        pytest.skip("mocha is for convex models")
    kind, formula = COSTS[name]
    federation = planted("classification", m=M, n=60)
    for share, rounds in ((0.3, 7), (1.0, 3)):
        result = fit(federation, kind(work=WORK), model=model, rounds=rounds, participation=share, tol=0)
        sized = result.model
        assert result.cost_floats == formula(rounds, int(share * M), sized.d, sized.fused.start)
        assert result.cost_floats == result.history["cost_floats"].iloc[-1]


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_cost_of_stocfl(share):
    """A device's first turn is the first model down and its gradient up, every other one two models down and up."""
    turns = []
    result = fit(
        planted("classification", m=M, n=60), methods.StoCFL(tau=0.5, work=WORK), rounds=7, participation=share, tol=0,
        callbacks=[Turns(turns)],
    )  # fmt: skip
    first, d = sum(turns), result.model.d
    assert first == M if share == 1 else 3 <= first <= M
    assert result.cost_floats == first * 2 * d + (7 * int(share * M) - first) * 4 * d


class Turns(ff.Callback):
    """Notes how many devices took part for the first time."""

    def __init__(self, turns):
        self.turns, self.known = turns, 0

    def on_round(self, run, row):
        known = int(run.state.known.sum())
        self.turns.append(known - self.known)
        self.known = known


@pytest.mark.parametrize("name", IN_STEPS)
def test_cost_of_linear_regression_in_steps(name):
    """Means and covariances of columns on training and validation rows and one number more; then a model to each."""
    result = fit(planted(m=M, n=60), IN_STEPS[name](), tol=0)
    d = columns = result.model.d  # the intercept for the target
    assert result.cost_floats == M * (2 * (columns + columns * (columns + 1) // 2) + 1) + M * d
