"""What is said before a run is what the run does."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fedfuse as ff
from support.planted import planted

WORK = ff.Work(steps=3, lr=0.05)
SAID = [
    ff.FPFC(lam=0.3, work=WORK),
    ff.FPFCL1(work=WORK),
    ff.FedAvg(work=WORK),
    ff.LGFedAvg(work=WORK),
    ff.PerFedAvg(work=WORK),
    ff.Local(work=WORK),
    ff.IFCA(n_models=3, work=WORK),
    ff.CFL(eps1=1e-9, eps2=1.0, work=WORK),
    ff.PACFL(threshold=10.0, p=1, work=WORK),
]


@pytest.mark.parametrize("method", SAID, ids=lambda method: method.name)
def test_what_is_said_is_what_is_sent(method):
    federation, settings = planted("regression", m=9), {"rounds": 7, "participation": 0.4, "tol": 0}
    said, done = ff.explain(federation, method, **settings), ff.fit(federation, method, **settings)
    assert sum(step.floats for step in said.steps) == done.cost_floats
    assert sum(step.rounds for step in said.steps) == done.rounds == 7


@pytest.mark.parametrize("method", [ff.FusionTree(), ff.FPFC()], ids=["fusion-tree", "fpfc"])
@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_every_step_of_the_fusion_tree_and_path_is_listed(goal, method):
    federation = planted(goal, m=8)
    said, done = ff.explain(federation, method), ff.fit(federation, method)
    names = [step.name for step in said.steps]
    seen = [stage["name"] for stage in done.stages]
    assert set(seen) <= set(names)
    assert sorted(seen, key=names.index) == seen  # in the order in which they begin
    if goal == "regression" and method.name == "fusion-tree":  # sufficient statistics and models, once each
        groups = replace(method, personal=False)
        said, done = ff.explain(federation, groups), ff.fit(federation, groups)
        assert sum(step.floats for step in said.steps) == done.cost_floats


@pytest.mark.parametrize(
    ("method", "steps"),
    [
        (ff.CFL(), [("grid search", "trying, judging", 50), ("cfl", "opening", 0), ("cfl", "", 100)]),
        (ff.FPFC(lam="warmup"), [("lambda path", "opening", 0), ("lambda path", "trying, training on", 100)]),
    ],
)
def test_a_search_and_its_training(method, steps):
    said, done = ff.explain(planted(), method, rounds=100), ff.fit(planted(), method, rounds=100)
    assert [(step.stage, step.name, step.rounds) for step in said.steps] == steps
    words = " ".join(f"{step.stage} {step.name}" for step in said.steps)
    assert {stage["name"].split()[0] for stage in done.stages} <= set(words.replace(",", "").split())


def test_it_reads_as_a_table():
    text = str(ff.explain(planted(m=8), ff.FPFC(lam=0.3, refit=True), rounds=90))
    assert text.startswith("fpfc: 8 devices, 8 in a round, models of ")
    assert "fpfc                              60 " in text
    assert "refit: sufficient statistics" in text
    assert text.endswith("passes are repeated until the step is done.")
