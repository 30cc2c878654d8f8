"""Liars: what they send, what they leave alone, and that nobody else is touched."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.engines import Attacks, Engine, InProcess
from fedfuse.engines.attacks import FORGE, draw_liars, flipped
from fedfuse.errors import FedfuseError
from fedfuse.models import default_model
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import (
    EVALUATION_ROUND,
    Choose,
    EvaluateModels,
    Gradient,
    Install,
    Order,
    PeekModel,
    Reply,
    SendMoments,
    Subspace,
    Train,
)
from fedfuse.training.fit import resume
from fedfuse.training.loop import Callback
from support.planted import planted

WHO = [1, 3, 4]
PAPER = ("same-value", "sign-flip", "gaussian")
METHODS = {
    "fpfc": partial(ff.FPFC, lam=0.6, refit=False),
    "fpfc-refit": partial(ff.FPFC, lam=0.6, refit=True),
    "fusion-tree": ff.FusionTree,
    "local": ff.Local,
    "fedavg": ff.FedAvg,
    "lg-fedavg": ff.LGFedAvg,
    "per-fedavg": ff.PerFedAvg,
    "ifca": partial(ff.IFCA, n_models=2),
    "cfl": partial(ff.CFL, eps1=10.0, eps2=0.0),
    "pacfl": partial(ff.PACFL, threshold=10.0, p=1),
}
every_method = pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)


def devices(goal="regression", **options):
    federation = planted(goal, **options)
    model = default_model(goal).sized(federation.n_features, federation.n_classes)
    return federation, InProcess(federation, model), model


def answers(engine, tasks, k=0):
    engine.submit([Order(i, k, task) for i, task in enumerate(tasks)])
    return {r.device: r.values for r in engine.collect()}


def honest_and_forged(attack, task, k=0, goal="regression", **options):
    _, inside, _ = devices(goal)
    honest = answers(inside, [task] * 6, k)
    _, inside, _ = devices(goal)
    return honest, answers(Attacks(inside, attack, m=6, who=WHO, **options), [task] * 6, k)


TRAIN = Train(Work(steps=3), start=np.ones(4))
GRADIENT = Gradient(np.ones(4), also=("train",))


@pytest.mark.parametrize("attack", FORGE)
@pytest.mark.parametrize("task", [TRAIN, GRADIENT], ids=["train", "gradient"])
def test_only_liars_lie(attack, task):
    honest, sent = honest_and_forged(attack, task)
    for i in range(6):
        assert (honest[i] == sent[i]).all() == (i not in WHO)
        assert honest[i].shape == sent[i].shape
        assert honest[i].dtype == sent[i].dtype


def test_the_papers_attacks_are_their_formulas():
    honest, same = honest_and_forged("same-value", TRAIN)
    assert all(np.ptp(same[i]) == 0 for i in WHO)
    _, turned = honest_and_forged("sign-flip", TRAIN)
    for i in WHO:
        factor = turned[i] / honest[i]
        assert (factor < 0).all()
        assert np.ptp(factor) <= 1e-5 * abs(factor[0])
    draws = np.concatenate(
        [v for k in range(400) for i, v in honest_and_forged("gaussian", TRAIN, k)[1].items() if i in WHO]
    )
    assert abs(draws.std() - 100) < 5
    assert abs(draws.mean()) < 5


@pytest.mark.parametrize("attack", PAPER)
def test_draws_are_new_for_every_device_and_round_and_the_same_again(attack):
    one, two, again = (honest_and_forged(attack, TRAIN, k)[1] for k in (0, 1, 0))
    assert all((one[i] != two[i]).any() and (one[i] == again[i]).all() for i in WHO)
    assert (one[1] != one[3]).any()


def test_liars_that_agree_use_each_others_honest_answers_alone():
    honest, sent = honest_and_forged("little", TRAIN)
    crowd = np.stack([honest[i] for i in WHO]).astype(np.float64)
    assert (sent[1] == sent[3]).all()
    assert (sent[3] == sent[4]).all()
    assert (sent[1] <= crowd.mean(axis=0) + 1e-6).all()
    _, product = honest_and_forged("inner-product", TRAIN)
    np.testing.assert_allclose(product[1], -0.5 * crowd.mean(axis=0), rtol=1e-5)


def test_a_mean_with_replacements_is_what_the_liars_aim_at():
    honest, sent = honest_and_forged("replacement", TRAIN)
    aim = -np.mean([honest[i] for i in WHO], axis=0)
    others = np.mean([honest[i] - TRAIN.start for i in range(6) if i not in WHO], axis=0)
    np.testing.assert_allclose(np.mean(list(sent.values()), axis=0), aim + others / 2, rtol=1e-4)


def test_flipped_labels():
    federation = planted("classification")
    other = flipped(federation, [2])
    rows = slice(*federation.cuts[2, [0, 3]])
    assert (other.y[rows] == 2 - federation.y[rows]).all()
    assert (np.delete(other.y, np.r_[rows]) == np.delete(federation.y, np.r_[rows])).all()
    values = planted()
    assert (flipped(values, [0]).y[: values.cuts[0, 3]] == -values.y[: values.cuts[0, 3]]).all()


@pytest.mark.parametrize("attack", FORGE)
def test_looks_broadcasts_and_bases_are_left_alone(attack):
    for task in (PeekModel(), Install(np.ones(4)), Subspace(1, 3, 0)):
        honest, sent = honest_and_forged(attack, task)
        assert all((honest[i] == sent[i]).all() for i in range(6))
    honest, sent = honest_and_forged(attack, TRAIN, k=EVALUATION_ROUND)
    assert all((honest[i] == sent[i]).all() for i in range(6))


def test_numbers_are_lies_too_unless_models_alone_are():
    for task in (EvaluateModels(np.ones((2, 4))), SendMoments(4)):
        honest, sent = honest_and_forged("gaussian", task)
        assert (honest[1] != sent[1]).all()
        honest, sent = honest_and_forged("gaussian", task, lies="models")
        assert (honest[1] == sent[1]).all()
    honest, sent = honest_and_forged("gaussian", GRADIENT, lies="models")
    assert (honest[1][:4] != sent[1][:4]).all()
    assert honest[1][4] == sent[1][4]


def test_what_names_a_cluster_is_true():
    heads = np.stack([np.zeros(4), np.ones(4)])
    honest, sent = honest_and_forged("same-value", Choose(np.empty(0), heads))
    assert (honest[1][-2:] == sent[1][-2:]).all()
    assert (honest[1][:-2] != sent[1][:-2]).any()


def test_shared_weights_are_honest_where_only_the_fused_are_attacked():
    honest, sent = honest_and_forged("gaussian", TRAIN, scope="fused", shared=2)
    assert (honest[1][:2] == sent[1][:2]).all()
    assert (honest[1][2:] != sent[1][2:]).all()


class OneByOne(Engine):
    """Gives back one reply at a time."""

    def __init__(self, engine):
        self.engine, self.ready = engine, []

    def submit(self, orders):
        self.engine.submit(orders)

    def collect(self):
        self.ready += self.engine.collect()
        return [self.ready.pop()] if self.ready else []


@pytest.mark.parametrize("attack", FORGE)
def test_the_same_lies_however_replies_arrive(attack):
    _, plain, _ = devices()
    at_once = answers(Attacks(plain, attack, m=6, who=WHO), [TRAIN] * 6)
    _, plain, _ = devices()
    engine = Attacks(OneByOne(plain), attack, m=6, who=WHO)
    engine.submit([Order(i, 0, TRAIN) for i in range(6)])
    slowly = {}
    while arrived := engine.collect():
        slowly |= {r.device: r.values for r in arrived}
    assert slowly.keys() == at_once.keys()
    assert all((slowly[i] == at_once[i]).all() for i in range(6))


class Watched(Attacks):
    """Remembers what liars would have sent, and what came out."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.inside, self.outside = [], []

    def _hold(self, reply):
        if reply.device in self._liars and reply.round != EVALUATION_ROUND and np.abs(reply.values).sum() > 0:
            self.inside.append(reply.values.tobytes())
        return super()._hold(reply)

    def collect(self):
        replies = super().collect()
        self.outside += [r.values.tobytes() for r in replies if isinstance(r, Reply) and r.round != EVALUATION_ROUND]
        return replies


@every_method
def test_the_server_never_sees_the_honest_vector_of_a_liar(kind):
    federation, inside, _ = devices("classification")
    engine = Watched(inside, "gaussian", m=6, who=WHO, seed=3)
    ff.fit(federation, kind(), rounds=8, engine=engine, seed=3)
    if kind().name == "pacfl":
        return  # its bases are honest
    assert not set(engine.inside) & set(engine.outside)


@every_method
def test_no_liars_is_no_attack_to_the_bit(kind):
    federation = planted("classification")
    plain, none = (
        ff.fit(federation, kind(), rounds=12, participation=0.5, **a)
        for a in ({}, {"attack": "gaussian", "liars": 0.0})
    )
    np.testing.assert_array_equal(plain.models, none.models)
    np.testing.assert_array_equal(plain.labels, none.labels)
    assert plain.cost_floats == none.cost_floats
    assert none.summary()["recall"] is None
    assert none.summary()["who"] == []


@every_method
@pytest.mark.parametrize("attack", ["sign-flip", "little"])
def test_resumed_is_uninterrupted_under_attack(kind, attack, tmp_path):
    class StopAt(Callback):
        def on_round(self, run, row):
            if run.k == 9:
                raise KeyboardInterrupt

    federation = planted("classification", m=8)
    options = {"rounds": 15, "tol": 0, "checkpoint_every": 4, "attack": attack, "liars": 0.25}
    whole = ff.fit(federation, kind(), **options)
    if len(whole.history) < 10:
        pytest.skip("over before it is interrupted")
    with pytest.raises(KeyboardInterrupt):
        ff.fit(federation, kind(), out=tmp_path / "cut", callbacks=[StopAt()], **options)
    cut = resume(tmp_path / "cut", federation)
    np.testing.assert_array_equal(whole.models, cut.models)
    np.testing.assert_array_equal(whole.suspects, cut.suspects)
    assert cut.attack == whole.attack == ff.Result.load(tmp_path / "cut").attack
    assert cut.summary()["test"] == whole.summary()["test"]


def test_scores_are_of_honest_devices():
    federation = planted("classification", m=10)
    result = ff.fit(federation, ff.FedAvg(), rounds=5, attack="gaussian", liars=0.3, seed=1, evaluate_every=5)
    who = draw_liars(10, 0.3, 1)
    assert result.attack["who"] == who.tolist()
    assert len(who) == 3
    assert result.score() == pytest.approx(np.delete(result.scores["test"], who).mean())
    assert result.history["test"].iloc[-1] == pytest.approx(result.score())
    assert result.scores["test"].shape == (10,)
    summary = result.summary()
    assert summary["attack"] == "gaussian"
    assert summary["liars"] == 0.3
    assert len(summary["who"]) == 3


def test_bad_words_are_one_clear_line():
    federation = planted()
    for settings, words in (
        ({"attack": "rumour"}, "attack must be 'same-value', 'sign-flip'"),
        ({"attack": "gaussian", "liars": 1.5}, "liars must be a number of at least 0 and at most 1"),
        ({"attack": "gaussian", "lies": "some"}, "lies must be 'all' or 'models'"),
    ):
        with pytest.raises(FedfuseError, match=words):
            ff.fit(federation, ff.FedAvg(), rounds=1, **settings)
    with pytest.raises(FedfuseError, match="device numbers from 0 to 5"):
        Attacks(devices()[1], "gaussian", m=6, who=[7])
