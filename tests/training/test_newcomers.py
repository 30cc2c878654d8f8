"""Devices that come late: every method's rule, by hand, and what it costs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.core.partitions import Gap
from fedfuse.errors import FedfuseError
from fedfuse.grouping.refit import Oracle
from fedfuse.methods.fpfc import MAX_ADMISSION_ROUNDS_SGD
from fedfuse.methods.mixins import AdmitsNewcomers, RunSummary
from fedfuse.methods.registry import METHODS
from fedfuse.protocol.local_work import Decay
from fedfuse.training.fit import fit
from fedfuse.training.newcomers import admit
from support.planted import begun, descended, gradient, planted
from support.textbook import Textbook

WORK = ff.Work(steps=5, lr=0.1)
OPTIONS = {"rounds": 40, "tol": 0, "dtype": "float64", "participation": 0.5}
RULES = {
    "fusion-tree": ff.FusionTree(),
    "fpfc": ff.FPFC(lam=0.05, work=WORK),
    "fpfc-l1": ff.FPFCL1(lam=0.05, work=WORK, refit=False),
    "local": ff.Local(work=WORK),
    "fedavg": ff.FedAvg(work=WORK),
    "lg-fedavg": ff.LGFedAvg(work=WORK),
    "per-fedavg": ff.PerFedAvg(work=WORK, adapt_lr=0.03),
    "ifca": ff.IFCA(n_models=2, work=WORK),
    "cfl": ff.CFL(eps1=0.6, eps2=0.6, work=WORK),
    "pacfl": ff.PACFL(threshold=181.0, p=2, work=WORK),
    "fedasync": ff.FedAsync(),
    "oracle": Oracle(),
}


def parted(federation, newcomers):
    """The federation without some devices, and these alone."""
    old = [i for i in range(federation.m) if i not in newcomers]
    return tuple(
        replace(
            federation,
            names=tuple(federation.names[i] for i in which),
            cuts=federation.cuts[which],
            truth=federation.truth[which],
        )
        for which in (old, newcomers)
    )


@pytest.fixture(scope="module")
def both():
    return parted(planted(m=10, n=80), [1, 8])


@pytest.mark.parametrize("name", [name for name in METHODS if issubclass(METHODS[name], AdmitsNewcomers)])
@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_every_method_with_a_rule_has_a_model_for_those_who_come_late(name, goal, tmp_path):
    """Also from its directory, and with what was left open and then chosen."""
    old, new = parted(planted(goal, m=10, n=60), [1, 8])
    rule = RULES.get(name) or METHODS[name](work=WORK)
    result = fit(old, rule, rounds=25, participation=0.5, out=tmp_path / "run")
    came = admit(result, new)
    assert came.models.shape == (2, result.model.d)
    assert np.isfinite(came.models).all()
    assert came.names == new.names
    assert came.cost_floats >= 0
    # Without weights that all share, FedPer and FedRep are LOCAL.
    assert (came.cost_floats == 0) == (name in ("local", "fedper", "fedrep"))
    again = admit(ff.Result.load(tmp_path / "run"), new)
    np.testing.assert_array_equal(again.models, came.models)
    assert again.cost_floats == came.cost_floats


@pytest.mark.parametrize("name", [name for name in METHODS if not issubclass(METHODS[name], AdmitsNewcomers)])
def test_a_method_without_a_rule_says_so(name, both):
    old, new = both
    result = fit(old, METHODS[name](work=WORK), rounds=25)
    with pytest.raises(FedfuseError, match=f"{name} cannot admit newcomers"):
        admit(result, new)


def test_local_trains_as_long_as_the_others_did(both):
    old, new = both
    came = admit(fit(old, RULES["local"], **OPTIONS), new)
    alone = ff.Work(steps=5 * 40, lr=0.1)
    np.testing.assert_allclose(came.models, [descended(new, i, np.zeros(4), alone) for i in range(2)], atol=1e-10)
    assert came.cost_floats == 0


def test_fedavg_is_used_as_it_is(both):
    old, new = both
    result = fit(old, RULES["fedavg"], **OPTIONS)
    came = admit(result, new)
    np.testing.assert_array_equal(came.models, result.models[:2])
    assert came.cost_floats == 2 * 4
    assert came.clusters == (None, None)


def test_lg_fedavg_is_tuned_at_home(both):
    old, new = both
    result = fit(old, RULES["lg-fedavg"], **OPTIONS)
    came = admit(result, new)
    w = result.kept["model"]
    np.testing.assert_allclose(came.models, [descended(new, i, w, WORK) for i in range(2)], atol=1e-12)
    assert came.cost_floats == 2 * 4  # the model down, and nothing up


def test_per_fedavg_takes_one_step(both):
    old, new = both
    result = fit(old, RULES["per-fedavg"], **OPTIONS)
    came = admit(result, new)
    w = result.kept["model"]
    np.testing.assert_allclose(came.models, [w - 0.03 * gradient(new, i, w) for i in range(2)], atol=1e-12)
    assert came.cost_floats == 2 * 4


def test_ifca_takes_the_model_with_the_least_training_loss(both):
    old, new = both
    result = fit(old, RULES["ifca"], **OPTIONS)
    came = admit(result, new)
    data = result.model.load(new.rows("train+validation"), np.float64)
    losses = np.array([result.model.losses(data, np.arange(2), np.tile(w, (2, 1))) for w in result.kept["all"]])
    np.testing.assert_array_equal(came.models, result.kept["all"][losses.argmin(axis=0)])
    assert came.cost_floats == 2 * (2 * 4 + 2)
    for cluster, model in zip(came.clusters, came.models, strict=True):
        np.testing.assert_array_equal(result.models[result.labels == cluster][0], model)


def test_cfl_goes_down_the_tree(both):
    """One level: a step from the model that was cut, to the side of the most similar member."""
    old, new = both
    result = fit(old, RULES["cfl"], **OPTIONS)
    assert result.labels.tolist() == old.truth.tolist()
    came = admit(result, new)
    kept = result.kept
    for i in range(2):
        update = descended(new, i, kept["cut_models"][0], WORK) - kept["cut_models"][0]
        cosine = [u @ update / np.linalg.norm(u) for u in kept["cut_updates"]]
        side = kept["cut_side"][int(np.argmax(cosine))]
        np.testing.assert_allclose(came.models[i], result.models[kept["cut_members"][kept["cut_side"] == side][0]])
    assert came.clusters == (0, 1)
    assert came.cost_floats == 2 * (2 * 4 + 4)  # one level of two vectors, then the leaf's model


def test_pacfl_sends_a_basis_and_gets_its_clusters_model(both):
    old, new = both
    result = fit(old, RULES["pacfl"], **OPTIONS)
    came = admit(result, new)
    np.testing.assert_array_equal(came.models, np.tile(result.kept["models"][0], (2, 1)))
    assert came.clusters == (0, 0)
    assert came.cost_floats == 2 * (3 * 2 + 4)


def test_pacfl_has_the_mean_for_those_who_are_like_nobody(both):
    old, new = both
    result = fit(old, replace(RULES["pacfl"], threshold=0.0), **OPTIONS)
    came = admit(result, new)
    everybody = np.average(result.models, axis=0, weights=result.profile.counts)
    np.testing.assert_allclose(came.models, np.tile(everybody, (2, 1)))
    assert came.clusters == (None, None)


def test_fpfc_lets_a_newcomer_meet_the_others_by_the_book(both):
    """Theta and v of its pairs as in training, the others' parameters as they are (section 6.4.2)."""
    old, new = both
    method = ff.FPFC(lam=0.4, refit=False, work=WORK)
    result = fit(old, method, **{**OPTIONS, "rounds": 200})
    assert result.labels.tolist() == old.truth.tolist()
    came = admit(result, new)
    for i in range(2):
        book = Textbook(np.vstack([result.models, np.zeros(4)]), method.penalty, 1.0)
        book.omega[8] = descended(new, i, np.zeros(4), WORK)
        for _ in range(came.iterations[i] - 1):
            for j in range(8):
                book.update_pair(j, 8)
            book.omega[8] = descended(new, i, book.omega[8], WORK, book.anchor(8), 1.0)
        for j in range(8):
            book.update_pair(j, 8)
        joined = np.linalg.norm(book.theta[8, :8], axis=1) <= Gap(*result.kept["gap"]).nu
        assert (result.labels[joined] == came.clusters[i]).all()
        assert joined.any()
    assert came.clusters == (0, 1)
    assert came.cost_floats == sum(2 * 4 * n for n in came.iterations)


def test_a_newcomer_that_draws_batches_does_not_wait_for_rest(both):
    """Its parameters never rest; and its work is that of a first round, a second, and so on."""
    old, new = both
    work = ff.Work(steps=1, lr=Decay(0.05, 0.5, 1), batch=8)
    result = fit(old, ff.FPFC(lam=0.4, refit=False, work=work), **{**OPTIONS, "rounds": 20})
    talk = ff.FPFC(lam=0.4, refit=False, work=work).admit(
        RunSummary(result.models, result.labels, result.profile.counts, 0.4, {}),
        begun(new, ff.FPFC(lam=0.4, refit=True)).info,
        0,
    )
    steps, answer = [next(talk).work.lr], np.ones(4)
    with suppress(StopIteration):
        while True:
            answer = -answer
            steps.append(talk.send(answer).work.lr)
    np.testing.assert_allclose(steps, 0.05 * 0.5 ** np.arange(MAX_ADMISSION_ROUNDS_SGD + 1))
    assert max(admit(result, new).iterations) <= MAX_ADMISSION_ROUNDS_SGD + 1


def test_where_groups_were_refitted_losses_decide(both):
    old, new = both
    result = fit(old, ff.FusionTree(personal=False), dtype="float64")
    came = admit(result, new)
    assert came.clusters == (0, 1)
    np.testing.assert_allclose(came.models, result.cluster_models, rtol=1e-12)
    assert min(came.confidence) > 0.99


def test_a_device_of_another_kind_is_told_so():
    """Its own model is far better than that of any group."""
    old, new = parted(planted(m=9, n=300, groups=3), [6, 7, 8])
    came = admit(fit(old, ff.FusionTree()), new)
    assert came.clusters == (None, None, None)
    assert came.score() < 0.3


def test_settings_that_were_chosen_are_used():
    """Whether a run chose them before it trained, or tuned them."""
    old, new = parted(planted(m=10, n=60), [1, 8])
    method = ff.PACFL(p=2, evaluate="cluster", work=WORK)
    chosen = fit(old, method, rounds=10)
    told = fit(old, replace(method, **chosen.chosen), rounds=10)
    assert admit(chosen, new).clusters == admit(told, new).clusters
    fused = fit(old, ff.FPFC(lam="warmup", grid=(0.2, 0.4), work=ff.Work(solver="exact")), rounds=90)
    assert admit(fused, new).clusters == (0, 1)


def test_newcomers_with_other_columns():
    result = fit(planted(), ff.FedAvg(work=WORK), rounds=2)
    with pytest.raises(FedfuseError, match="newcomers need 3 features for regression, got 5 for regression"):
        admit(result, planted(p=5))
