"""Trouble with replies: as often as asked for, by key, and what must not be lost is not."""

from __future__ import annotations

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.core.partitions import adjusted_rand
from fedfuse.data.synthetic import synthetic
from fedfuse.engines import Engine, Faults, InProcess
from fedfuse.engines.faults import Trouble
from fedfuse.errors import FedfuseError
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import EVALUATION_ROUND, Install, Order, PeekModel, Reply, Train
from fedfuse.training.fit import fit
from support.planted import planted

GD = Train(Work(steps=2, lr=0.1))


class Echo(Engine):
    """Answers at once."""

    def __init__(self):
        self.waiting = []

    def submit(self, orders):
        self.waiting += orders

    def collect(self, patience=None):
        orders, self.waiting = self.waiting, []
        return [Reply(o.device, o.round, np.ones(0 if isinstance(o.task, Install) else 3)) for o in orders]


def rounds_of(engine, rounds, m=50, task=GD):
    """What comes in each round."""
    for k in range(rounds):
        engine.submit([Order(i, k, task) for i in range(m)])
        found = []
        while arrived := engine.collect():
            found += arrived
        yield k, found


def share(counts, n=2000):
    return sum(counts) / n


@pytest.mark.parametrize(
    ("trouble", "count"),
    [
        ({"lost": 0.3}, lambda k, found: 50 - len(found)),
        ({"twice": 0.3}, lambda k, found: len(found) - 50),
        ({"nan": 0.3}, lambda k, found: sum(np.isnan(r.values).all() for r in found)),
        ({"stale": 0.3}, lambda k, found: sum(r.round != k for r in found)),
        ({"late": 0.3}, lambda k, found: 50 - sum(r.round == k for r in found)),
    ],
    ids=["lost", "twice", "nan", "stale", "late"],
)
def test_as_often_as_asked_for(trouble, count):
    counts = [count(k, found) for k, found in rounds_of(Faults(Echo(), **trouble), 40)]
    assert share(counts) == pytest.approx(0.3, abs=0.04)  # four standard deviations


def test_what_is_late_comes_one_to_three_rounds_later():
    lags = [k - r.round for k, found in rounds_of(Faults(Echo(), late=0.5), 40) for r in found]
    assert set(lags) == {0, 1, 2, 3}
    assert len(lags) >= 2000 - 3 * 50  # and nothing gets lost


def test_by_key():
    def story(seed):
        engine = Faults(Echo(), lost=0.3, late=0.2, twice=0.1, nan=0.1, seed=seed)
        return [(k, r.device, r.round) for k, found in rounds_of(engine, 10) for r in found]

    assert story(0) == story(0)
    assert story(0) != story(1)


@pytest.mark.parametrize(("k", "task"), [(-1, GD), (EVALUATION_ROUND, PeekModel()), (3, Install(np.ones(2)))])
def test_what_must_come_comes(k, task):
    engine = Faults(Echo(), lost=1, nan=1, late=1)
    engine.submit([Order(i, k, task) for i in range(5)])
    replies = engine.collect()
    assert [r.device for r in replies] == list(range(5))
    assert all(np.isfinite(r.values).all() for r in replies)


@pytest.mark.parametrize("text", ["lost", "lost:x", "gone:0.3", "lost:0.3;nan:0.1", ""])
def test_nonsense_is_refused(text):
    with pytest.raises(FedfuseError, match="lossy takes name:probability with commas"):
        Trouble.read(text)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_probability_is_one(share):
    with pytest.raises(FedfuseError, match="late must be a probability from 0 to 1"):
        Trouble(late=share)


# -------------------------------------------------------------------------------------- whole runs

TROUBLE = "lost:0.3,late:0.2,twice:0.1,nan:0.05"
METHODS = [
    ff.FusionTree(),
    ff.FPFC(lam=0.6, refit=False, work=Work(steps=3, lr=0.1)),
    ff.FedAvg(work=Work(steps=3, lr=0.1)),
    ff.CFL(eps1=10.0, eps2=0.0, work=Work(steps=3, lr=0.1)),
    ff.LGFedAvg(work=Work(steps=3, lr=0.1)),
]


def check_counts(result):
    orders, refused = result.orders, sum(result.refused.values())
    assert orders["sent"] == orders["used"] + orders["refused"] + orders["unanswered"]
    assert refused == orders["refused"] + orders["uncalled"]
    assert min(orders.values()) >= 0


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize(
    "more",
    [{}, {"delay": "uniform(0,20)", "deadline": 12.0}, {"late": "use", "delay": "exponential(3)"}],
    ids=["plain", "deadline", "late"],
)
def test_counts_add_up(method, more):
    federation = planted("classification", m=8)
    result = fit(federation, method, rounds=25, tol=0, participation=0.5, lossy=TROUBLE + ",stale:0.1", **more)
    check_counts(result)
    assert result.orders["unanswered"] > 10
    assert result.refused["not asked for, or too late"] > 0
    assert np.isfinite(result.models).all()


def test_without_trouble_every_order_is_used():
    result = fit(planted(m=8), ff.FusionTree(), rounds=50, participation=0.5)
    assert result.orders["sent"] == result.orders["used"] > 0
    assert sum(result.orders.values()) == 2 * result.orders["sent"]


@pytest.mark.parametrize("goal", ["classification", "regression"])
def test_groups_are_found_all_the_same(goal):
    """Every second answer is of no use; the groups are those of a federation in which all answer."""
    federation = planted(goal, m=12, n=80, groups=3)
    plain, lossy = (fit(federation, ff.FusionTree(), participation=0.5, lossy=text) for text in (None, TROUBLE))
    check_counts(lossy)
    assert lossy.orders["used"] < 0.7 * lossy.orders["sent"]
    assert plain.ari == lossy.ari == 1.0
    assert lossy.score() == pytest.approx(plain.score(), rel=0.02)


@pytest.mark.slow
def test_a_hundred_devices_in_trouble():
    result = fit(synthetic("S1"), ff.FusionTree(), participation=0.3, rounds=2000, lossy=TROUBLE)
    check_counts(result)
    assert result.ari == 1.0


def test_a_device_that_is_gone_is_left_out():
    """From the first round on: it is asked 15 times, then three times in each stage; the others are grouped."""

    class Gone(Faults):
        def _fate(self, reply):
            return [] if reply.device == 2 and reply.round >= 0 else [reply]

    federation = planted("classification", m=12, n=80, groups=3)
    model = ff.SoftmaxRegression().sized(federation.n_features, federation.n_classes)
    result = fit(federation, ff.FusionTree(), engine=Gone(InProcess(federation, model)), rounds=2000)
    others = [i for i in range(12) if i != 2]
    assert adjusted_rand(federation.truth[others], result.labels[others]) == 1.0
    check_counts(result)
