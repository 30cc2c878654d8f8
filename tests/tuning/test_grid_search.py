"""Settings chosen on validation rows: which, by what, and at what cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.errors import FedfuseError
from fedfuse.training.fit import fit
from fedfuse.tuning.grid_search import GridSearch
from support.planted import planted

WORK = ff.Work(steps=5, lr=0.1)
GRID = ({"threshold": 1e-6}, {"threshold": 181.0})


def searched(inner, trial=15, grid=()):
    return GridSearch(inner=inner, trial=trial, grid=grid)


def judged(result):
    """What every candidate came to, from the history."""
    history = result.history
    return history[history["stage"] == "judging"].set_index("candidate")["watched"]


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_the_best_on_validation_rows_is_chosen(goal):
    """Each candidate's score is that of a run with it alone, on training rows, from a fresh start."""
    federation, options = planted(goal), {"participation": 1.0, "tol": 0, "dtype": "float64"}
    inner = ff.PACFL(evaluate="cluster", work=WORK)
    result = fit(federation, searched(inner, grid=GRID), rounds=52, **options)
    alone = [
        fit(federation, replace(inner, rows="train", **settings), rounds=15, **options).score("validation")
        for settings in GRID
    ]
    np.testing.assert_allclose(judged(result), alone, atol=1e-12)
    better = np.argmax if goal == "classification" else np.argmin
    assert better(alone) == 0  # two groups, and one model for all is worse than one for each device
    assert result.chosen == GRID[0]
    assert result.history["candidate"].dropna().iloc[-1] == 1  # every row is of the candidate that its round was of


def test_what_was_chosen_is_trained_on_all_rows():
    federation, options = planted(m=8, n=60), {"participation": 0.5, "tol": 0, "dtype": "float64", "seed": 1}
    result = fit(federation, ff.PACFL(p=2, evaluate="cluster", work=WORK), rounds=300, **options)
    outcome, settings = judged(result), result.history.groupby("candidate")["threshold"].first()
    assert result.chosen == {"threshold": settings[outcome.idxmin()]}
    assert len(outcome) == len(set(settings)) > 2
    assert outcome.idxmin() == outcome.argmin()


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_all_that_is_sent_is_counted(goal):
    """Trials, one model and one score for each device, then the run itself."""
    federation = planted(goal, m=10)
    inner = ff.IFCA(work=WORK)
    method = replace(searched(inner, trial=4), grid=({"n_models": 1}, {"n_models": 3}))
    d = fit(federation, ff.IFCA(n_models=1), rounds=1).model.d
    result = fit(federation, method, rounds=16, participation=0.3, tol=0)
    trials, L = sum(4 * 3 * (L * d + d + L) for L in (1, 3)), result.chosen["n_models"]
    assert result.cost_floats == trials + 2 * 10 * (d + 1) + 6 * 3 * (L * d + d + L)
    # CFL: every trial begins with a broadcast, and so does every round but the last, as models go along with `Score`
    cfl = replace(searched(ff.CFL(work=WORK), trial=4), grid=({"eps1": 0.1, "eps2": 0.2},) * 2)
    result = fit(federation, cfl, rounds=16, participation=0.3, tol=0)
    trial = 10 * d + 4 * 3 * d + 3 * 10 * d + 10 * (d + 1)
    assert result.cost_floats == 2 * trial + 10 * d + 6 * (3 * d + 10 * d)


def test_bases_are_sent_once():
    federation = planted(m=6, p=4)
    found = fit(federation, ff.PACFL(p=2, work=WORK), rounds=50, participation=0.5, tol=0)
    candidates, d = len(judged(found)), 5
    trial = found.history["stage"].eq("trying").sum() // candidates
    rounds = 50 - candidates  # devices are asked for scores in the others
    assert candidates * (trial + 1) <= 25
    assert found.cost_floats == 6 * 4 * 2 + rounds * 3 * 2 * d + candidates * 6 * (d + 1)


@pytest.mark.parametrize("method", [ff.IFCA(work=WORK), ff.CFL(eps1=1.0, work=WORK)], ids=lambda m: m.name)
def test_others_choose_likewise(method):
    federation = planted(m=9, groups=3)
    result = fit(federation, method, rounds=10)
    names = list(result.chosen)
    settings = result.history.groupby("candidate")[names].first()
    assert result.chosen == settings.loc[judged(result).idxmin()].to_dict()


def test_what_cannot_be_searched():
    with pytest.raises(FedfuseError, match="no device has any"):
        fit(planted(validation=0.0), ff.PACFL())
    with pytest.raises(FedfuseError, match="needs a method with settings to search for"):
        GridSearch()
    with pytest.raises(FedfuseError, match="trial must be at least 1 round"):
        GridSearch(inner=ff.CFL(), trial=0)


@pytest.mark.parametrize("method", [ff.CFL(work=WORK), ff.IFCA(work=WORK), ff.PACFL(work=WORK)], ids=lambda m: m.name)
@pytest.mark.parametrize("rounds", [4, 40, 400])
def test_search_and_training_share_the_rounds(method, rounds):
    result = fit(planted("regression", m=6, n=60, groups=2), method, rounds=rounds, tol=0)
    assert result.rounds == len(result.history) == rounds
    searching = result.history["stage"].isin(["trying", "judging"])
    assert 0 < searching.sum() <= -(-rounds // 2)
    assert result.chosen


def test_a_search_that_does_not_fit_is_refused():
    with pytest.raises(FedfuseError, match="2 candidates of 15 rounds need 32 rounds besides training: raise rounds"):
        fit(planted(), searched(ff.PACFL(work=WORK), grid=GRID), rounds=20)
