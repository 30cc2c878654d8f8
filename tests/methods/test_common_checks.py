"""What every method must hold to, whatever its rule (`support.common_checks`).

Checks, methods, goals, works and precisions are covered in pairs: every check meets every method, and every method
meets every goal, every work and both precisions, but not in each of all combinations.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfuse as ff
from fedfuse import methods
from fedfuse.core.partitions import canonical
from fedfuse.grouping.refit import Oracle
from fedfuse.methods.registry import METHODS
from fedfuse.training.fit import fit, resume
from support.common_checks import (
    CHECKS,
    DTYPES,
    GOALS,
    WORKS,
    Case,
    StopAt,
    assert_found_the_same,
    assert_same,
    scrambled,
)
from support.planted import permuted, planted

# What a name of METHODS may stand for.
VARIANTS = {
    "fusion-tree": ff.FusionTree,
    "fpfc": partial(ff.FPFC, lam=0.6),
    "fpfc-auto": ff.FPFC,
    "fpfc-refit": partial(ff.FPFC, lam=0.6, refit=True),
    "fpfc-l1": ff.FPFCL1,
    "fpfc-l1-refit": partial(ff.FPFCL1, refit=True),
    "local": ff.Local,
    "fedavg": ff.FedAvg,
    "fedasync": ff.FedAsync,
    "lg-fedavg": ff.LGFedAvg,
    "lg-fedavg-local": partial(ff.LGFedAvg, evaluate="local", weights="equal"),
    "per-fedavg": ff.PerFedAvg,
    "per-fedavg-hf": partial(ff.PerFedAvg, variant="hessian-free"),
    "ifca": partial(ff.IFCA, n_models=2),
    "ifca-gradient": partial(ff.IFCA, n_models=2, average="gradient"),
    "ifca-soft": partial(ff.IFCA, n_models=2, temperature=0.5),
    "ifca-searched": ff.IFCA,
    "ifca-restarts": partial(ff.IFCA, n_models=2, restarts=2),
    "cfl": partial(ff.CFL, eps1=10.0, eps2=0.0),
    "cfl-searched": ff.CFL,
    "pacfl": partial(ff.PACFL, threshold=10.0, p=1),
    "pacfl-cluster": partial(ff.PACFL, threshold=10.0, p=1, evaluate="cluster"),
    "pacfl-searched": ff.PACFL,
    "fedprox": partial(methods.FedProx, mu=0.1),
    "fedprox-searched": methods.FedProx,
    "scaffold": methods.Scaffold,
    "fedavg-ft": methods.FedAvgFT,
    "ditto": partial(methods.Ditto, lam=0.5),
    "ditto-searched": methods.Ditto,
    "fedper": methods.FedPer,
    "fedrep": methods.FedRep,
    "pfedme": partial(methods.PFedMe, lam=1.0, local_rounds=3),
    "pfedme-searched": partial(methods.PFedMe, local_rounds=3),
    "l2gd": partial(methods.L2GD, lam=0.3),
    "fedamp": partial(methods.FedAMP, sigma=10.0),
    "fedamp-heuristic": partial(methods.FedAMP, sigma=2.0, form="heuristic"),
    "mocha": partial(methods.MOCHA, lam=0.1, every=3),
    "fedem": partial(methods.FedEM, n_models=2),
    "hypcluster": partial(methods.HypCluster, n_models=2),
    "odcl-cc": partial(methods.ODCLCC, lam=0.5, local_steps=20),
    "odcl-cc-searched": partial(methods.ODCLCC, local_steps=20),
    "odcl-km": partial(methods.ODCLKM, n_models=2, local_steps=20),
    "fl-hc": partial(methods.FLHC, threshold=0.5, before=3),
    "stocfl": partial(methods.StoCFL, tau=0.5),
    "stocfl-searched": methods.StoCFL,
    "network-lasso": partial(methods.NetworkLasso, lam=0.2),
    "oracle": Oracle,
}
# One exchange of models per round, and nothing else.
PLAIN = ("fpfc", "fpfc-l1", "fedavg", "fedasync", "lg-fedavg", "per-fedavg", "fedprox", "fedavg-ft", "ditto", "pfedme")
PLAIN += ("l2gd", "fedamp", "mocha")
# Every device is asked in turn, and answers without chance.
DRAWS_NOTHING = ("fusion-tree", "fpfc-auto", "oracle")
# The server draws which devices do what: with other numbers, others do.
DRAWS_DEVICES = ("hypcluster",)
# Many rounds: not in every check.
SEARCHED = ("ifca-searched", "ifca-restarts", "cfl-searched", "pacfl-searched", "fedprox-searched", "ditto-searched")
SEARCHED += ("pfedme-searched", "odcl-cc-searched", "stocfl-searched")
# As others in all but one step.
KINDRED = ("lg-fedavg-local", "per-fedavg-hf", "ifca-gradient", "ifca-soft", "pacfl-cluster")
KINDRED += ("fedamp-heuristic",)
COMMON = [name for name in VARIANTS if name not in SEARCHED + KINDRED]
COMBINATIONS = [(goal, work) for work in WORKS for goal in GOALS]


def covering():
    """Every check with every method; goal, work and precision take turns."""
    for c, check in enumerate(CHECKS):
        for v, name in enumerate(COMMON):
            goal, work = COMBINATIONS[(c + v) % len(COMBINATIONS)]
            case = Case(VARIANTS[name], goal, work, DTYPES[(c // 2 + c + v) % 2])
            yield pytest.param(CHECKS[check], case, id=f"{check}-{name}-{goal}-{work}-{case.dtype}")


def taking_turns(*names):
    """One goal for each method, the next one for the next."""
    turns = [(VARIANTS[name], GOALS[k % 2]) for k, name in enumerate(names)]
    return pytest.mark.parametrize(("kind", "goal"), turns, ids=names)


@pytest.mark.parametrize(("check", "case"), list(covering()))
def test_common(check, case):
    check(case)


def test_the_design_covers_all_pairs():
    cases = [(p.values[0], p.values[1].kind, p.values[1].goal, p.values[1].work, p.values[1].dtype) for p in covering()]
    for a in range(5):
        for b in range(a):
            firsts, seconds = {case[a] for case in cases}, {case[b] for case in cases}
            assert len({(case[a], case[b]) for case in cases}) == len(firsts) * len(seconds), (a, b)


def test_every_method_has_its_variants():
    assert {kind().name for kind in VARIANTS.values()} == set(METHODS)


@taking_turns(*(name for name in COMMON if name not in DRAWS_DEVICES))
@settings(max_examples=4, deadline=None)
@given(order=st.permutations(range(6)))
def test_the_order_of_devices_does_not_matter(kind, goal, order):
    federation, method = planted(goal), kind(work=WORKS["gd"])
    plain, other = (
        fit(f, method, rounds=40, tol=0, dtype="float64") for f in (federation, permuted(federation, order))
    )
    assert (other.labels == canonical(plain.labels[order])).all()
    assert (other.lam or 0) == pytest.approx(plain.lam or 0, rel=1e-6)
    np.testing.assert_allclose(other.models, plain.models[order], atol=1e-6 * np.abs(plain.models).max())
    np.testing.assert_allclose(other.scores["test"], plain.scores["test"][order], atol=1e-6)


@taking_turns(*(name for name in COMMON if name not in DRAWS_NOTHING))
def test_another_seed_another_run(kind, goal):
    """Another start and other devices in every round, so what a round moves differs from the first on."""
    one, two = (Case(kind, goal, "sgd", "float32").fit(seed=seed, start="normal") for seed in (1, 2))
    moves = [r.history["moved"].dropna().to_numpy()[:20] for r in (one, two)]
    assert not np.array_equal(*moves) or (one.models != two.models).any()


@taking_turns(*DRAWS_NOTHING)
def test_nothing_is_drawn(kind, goal):
    one, two = (Case(kind, goal, "gd", "float32").fit(seed=seed, start="normal") for seed in (1, 2))
    np.testing.assert_array_equal(one.models, two.models)
    assert one.cost_floats == two.cost_floats


@taking_turns(*PLAIN)
def test_validation_rows_influence_nothing_where_they_are_held_back(kind, goal):
    """Nothing is chosen here; where something is (fusion tree, refit), they choose, and may."""
    federation, case = planted(goal), Case(kind, goal, "gd", "float32")
    both = (federation, scrambled(federation, "validation"))
    plain, other = (case.fit(f, rows="train", rounds=40, tol=1e-3, participation=1.0) for f in both)
    assert_found_the_same(plain, other)
    assert (plain.scores["validation"] != other.scores["validation"]).any()


@taking_turns(*KINDRED)
def test_kindred_are_resumed_too(kind, goal):
    CHECKS["resumed_is_uninterrupted"](Case(kind, goal, "sgd", "float32"))


@taking_turns(*COMMON)
def test_one_device_is_a_federation_too(kind, goal):
    result = Case(kind, goal, "exact", "float32").fit(planted(goal, m=1, groups=1), tol=1e-4, participation=1.0)
    assert result.labels.tolist() == [0]
    assert np.isfinite(result.models).all()


@taking_turns(*SEARCHED)
def test_a_search_is_a_run_like_others(kind, goal, tmp_path):
    """Counted, resumable, without a look at test rows."""
    federation, method = planted(goal), kind(work=WORKS["gd"])
    options = {"rounds": 60, "participation": 0.5, "tol": 0, "checkpoint_every": 7}
    if method.name == "cfl":
        method = replace(method, eps1=1.0)  # three candidates in place of 15
    whole = fit(federation, method, out=tmp_path / "whole", **options)
    assert whole.chosen
    with pytest.raises(KeyboardInterrupt):
        fit(federation, method, out=tmp_path / "cut", callbacks=[StopAt(min(20, len(whole.history) // 2))], **options)
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "cut", federation, callbacks=[StopAt(len(whole.history) - 3)])
    assert_same(whole, resume(tmp_path / "cut", federation))
    assert_found_the_same(whole, fit(scrambled(federation, "test"), method, **options))
    other = fit(scrambled(federation, "validation"), method, **options)
    assert whole.history["watched"].dropna().to_numpy()[0] != other.history["watched"].dropna().to_numpy()[0]
