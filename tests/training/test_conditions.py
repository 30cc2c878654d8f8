"""Who is asked, who is waited for, how much each does: rules of the loop that hold for every method."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.engines import InProcess, Latency
from fedfuse.engines.latency import Distribution
from fedfuse.errors import FedfuseError
from fedfuse.methods.registry import METHODS
from fedfuse.models import default_model
from fedfuse.protocol.local_work import Grow, Uneven, Work
from fedfuse.protocol.tasks import Train
from fedfuse.training.fit import fit, resume
from fedfuse.training.loop import MAX_FAILED_ROUNDS, Callback
from fedfuse.training.settings import Settings
from support.common_checks import StopAt, assert_same
from support.planted import Keep, planted

GD = Work(steps=3, lr=0.1)
FPFC = ff.FPFC(lam=0.3, refit=False, work=GD)
SLOW = {"compute": "per_node(uniform(0,20))"}


def pace(i, seed=0):
    return Distribution.of(SLOW["compute"]).draw(seed, "compute", 0, i)


class Watched(InProcess):
    """Writes down what it is asked."""

    def __init__(self, federation, **options):
        model = default_model(federation.goal).sized(federation.n_features, federation.n_classes)
        super().__init__(federation, model, **options)
        self.orders = []

    def submit(self, orders):
        self.orders += [o for o in orders if o.round >= 0]
        super().submit(orders)


# ----------------------------------------------------------------------------------------- participation


def test_every_device_takes_part_with_its_own_probability():
    """The paper's Assumption 3."""
    p = np.linspace(0.1, 1, 10)
    often = Counter(int(i) for k in range(2000) for i in Settings(participation=p).active(k, 10))
    np.testing.assert_allclose([often[i] / 2000 for i in range(10)], p, atol=0.05)


def test_participation_by_sizes():
    rows = np.array([10, 10, 10, 1000, 10, 10])
    draws = [Settings(participation="sizes(0.5)").active(k, 6, rows) for k in range(300)]
    assert all(len(set(d.tolist())) == 3 for d in draws)
    often = Counter(int(i) for d in draws for i in d)
    assert often[3] > 290
    assert min(often.values()) > 80  # two of five others: 120 expected


def test_participation_is_saved(tmp_path):
    federation = planted()
    for name, participation in (("p", np.full(6, 0.5)), ("s", "sizes")):
        options = {"rounds": 12, "tol": 0, "participation": participation, "checkpoint_every": 3}
        whole = fit(federation, FPFC, **options)
        with pytest.raises(KeyboardInterrupt):
            fit(federation, FPFC, out=tmp_path / name, callbacks=[StopAt(7)], **options)
        assert_same(whole, resume(tmp_path / name, federation))


@pytest.mark.parametrize("wrong", [[0.5, 0], [0.5, 1.5], "weights", "sizes(x)", "sizes(0)"])
def test_participation_that_cannot_be(wrong):
    with pytest.raises(FedfuseError, match=r"participation|probability to take part"):
        Settings(participation=wrong)


def test_one_probability_for_each_device():
    with pytest.raises(FedfuseError, match="one probability for each of 6 devices, got 2"):
        fit(planted(), FPFC, participation=[0.5, 0.5])


# --------------------------------------------------------------------------------- deadlines and stragglers


def test_a_round_ends_at_its_deadline():
    """Who is slower is not heard in time, and not asked again before it is free."""
    federation, keep = planted(), Keep()
    result = fit(federation, FPFC, rounds=12, tol=0, deadline=10.0, callbacks=[keep], **SLOW)
    fast = [i for i in range(6) if pace(i) <= 10]
    slow = [i for i in range(6) if pace(i) > 10]
    assert fast
    assert slow
    omega = keep.run.state.pairs.omega
    assert (omega[slow] == 0).all()
    assert (omega[fast] != 0).any(axis=1).all()
    history = result.history
    assert history["time"].iloc[0] == 10.0
    assert history["active"].iloc[1] == len(fast)
    assert set(result.refused) == {"late"}
    assert result.suspects.size == 0  # to be slow is not to lie
    assert result.unheard.tolist() == slow
    assert result.orders["sent"] == sum(result.orders[w] for w in ("used", "refused", "unanswered"))


def test_who_was_never_heard_survives_a_file_and_an_interruption(tmp_path):
    federation, options = planted(), {"rounds": 12, "tol": 0, "deadline": 10.0, "checkpoint_every": 3, **SLOW}
    whole = fit(federation, FPFC, **options)
    with pytest.raises(KeyboardInterrupt):
        fit(federation, FPFC, out=tmp_path / "run", callbacks=[StopAt(7)], **options)
    resumed = resume(tmp_path / "run", federation)
    assert 0 < whole.unheard.size < 6
    assert resumed.unheard.tolist() == ff.Result.load(tmp_path / "run").unheard.tolist() == whole.unheard.tolist()


def test_late_replies_may_be_used():
    federation, keep = planted(), Keep()
    result = fit(federation, FPFC, rounds=12, tol=0, deadline=10.0, late="use", callbacks=[keep], **SLOW)
    assert (keep.run.state.pairs.omega != 0).any(axis=1).all()
    assert result.refused == {}
    assert result.history["staleness"].max() >= 1
    assert result.history["replies"].sum() + 6 == result.orders["used"]  # six were opened


def test_what_is_late_is_not_used_by_methods_that_cannot():
    options = {"rounds": 12, "tol": 0, "deadline": 10.0, "participation": 0.5, **SLOW}
    one, two = (fit(planted(), ff.LGFedAvg(work=GD), late=late, **options) for late in ("use", "refuse"))
    np.testing.assert_array_equal(one.models, two.models)
    assert one.refused == two.refused


def test_a_deadline_that_all_meet_changes_nothing():
    one, two = (fit(planted(), FPFC, rounds=12, tol=0, deadline=deadline, **SLOW) for deadline in (None, 21.0))
    np.testing.assert_array_equal(one.models, two.models)
    np.testing.assert_array_equal(one.history["time"], two.history["time"])


@pytest.mark.parametrize("method", [ff.FusionTree(), ff.FPFC(lam=0.3, work=GD, refit=True)], ids=["auto", "refit"])
def test_stages_wait_longer_for_stragglers(method):
    """They need everybody: a device that misses the deadline is asked again when it is free."""
    federation = planted("classification", m=12, n=80, groups=3)
    result = fit(federation, method, rounds=3000, deadline=10.0, delay="uniform(0,20)", participation=0.5)
    assert result.n_clusters >= 2
    if method.name == "fusion-tree":
        assert result.ari == 1.0


# ----------------------------------------------------------------------------------- minimum


def test_a_round_with_too_few_replies_is_given_up():
    """It leaves no trace in the state; others are drawn in the next."""
    federation, keep = planted(m=8), Keep()
    options = {"rounds": 30, "tol": 0, "participation": 0.5, "lossy": "lost:0.5", "minimum": 3}
    result = fit(federation, FPFC, callbacks=[keep], **options)
    history = result.history
    few = history["replies"] < 3
    assert few.any()
    assert history["moved"].isna().equals(few)
    assert result.refused == {"too few in the round": int(history.loc[few, "replies"].sum())}
    assert keep.run.transport.updates == (~few).sum()


def test_it_does_not_go_on_for_ever():
    with pytest.raises(
        FedfuseError, match=rf"in {MAX_FAILED_ROUNDS} rounds in a row fewer than minimum=6 devices answered"
    ):
        fit(planted(), FPFC, rounds=500, tol=0, lossy="lost:0.9", minimum=6)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("more", [{}, {"deadline": 5.0}, {"deadline": 5.0, "delay": "uniform(0,20)"}])
def test_nobody_ever_answers(mode, more):
    """No hang, and the start as the result."""
    result = fit(planted(), FPFC, rounds=20, mode=mode, lossy="lost:1", **more)
    assert result.rounds == 20
    assert (result.models == 0).all()
    assert result.unheard.tolist() == list(range(6))
    assert result.orders["sent"] == 6 + result.orders["unanswered"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"mode": "later"}, "mode must be 'sync' or 'async'"),
        ({"late": "maybe"}, "late must be 'refuse' or 'use'"),
        ({"at_once": 0}, "at_once must be a whole number of at least 1"),
        ({"ahead": 0}, "ahead must be"),
        ({"minimum": -1}, "minimum must be"),
        ({"budget": 1.5}, "budget must be"),
        ({"deadline": -1.0}, "deadline must be a number above 0"),
        ({"deadline": "soon"}, "deadline must be"),
        ({"delay": "soon"}, "not a distribution of times"),
        ({"lossy": "much"}, "lossy takes"),
    ],
)
def test_conditions_out_of_range(wrong, words):
    with pytest.raises(FedfuseError, match=words):
        Settings(**wrong)


# --------------------------------------------------------------------------------------------------- work


def test_every_device_gets_its_own_work():
    """PROTOCOL 6.8, resolved in the loop: no method knows of it."""
    federation = planted()
    engine = Watched(federation)
    fit(federation, ff.FPFC(lam=0.3, refit=False, work=Work(steps=Uneven(10))), rounds=20, tol=0, engine=engine)
    trained = [o for o in engine.orders if isinstance(o.task, Train)]
    assert len(trained) == 120
    assert all(o.task.work.steps == Uneven(10).drawn(0, o.round, o.device) for o in trained)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"oracle", "scaffold"}))
@pytest.mark.parametrize("steps", [Uneven(4), ff.Paced(4)], ids=str)
def test_any_method_can(name, steps, tmp_path):
    given = {
        "fpfc": {"lam": 0.3},
        "ifca": {"n_models": 2},
        "cfl": {"eps1": 1.0, "eps2": 0.1},
        "pacfl": {"threshold": 10.0, "p": 1},
    }
    method = METHODS[name](work=Work(steps=steps, lr=0.05), **given.get(name, {}))
    federation, options = planted(), {"rounds": 12, "tol": 0, "checkpoint_every": 5}
    whole = fit(federation, method, **options)
    assert np.isfinite(whole.models).all()
    with pytest.raises(KeyboardInterrupt):
        fit(federation, method, out=tmp_path / "cut", callbacks=[StopAt(min(8, len(whole.history) - 1))], **options)
    assert_same(whole, resume(tmp_path / "cut", federation))


class Steps(Callback):
    def __init__(self):
        self.spent = []

    def on_round(self, run, row):
        self.spent.append(run.spent)


@pytest.mark.parametrize(
    ("total", "steps", "rounds", "last"),
    [(195, Grow(4), 38, 5), (100, 7, 15, 2), (60, Grow(1), 11, 5), (12, 3, 4, 3)],
)
def test_a_budget_is_spent_to_the_last_step(total, steps, rounds, last):
    """PROTOCOL 6.7: K T is fixed, the last round is cut short."""
    spent, method = Steps(), ff.FPFC(lam=0.3, refit=False, work=Work(steps=steps, lr=0.01))
    result = fit(planted(), method, rounds=1000, tol=0, budget=total, callbacks=[spent])
    assert result.rounds == rounds
    assert spent.spent[-1] == total
    assert np.diff([0, *spent.spent])[-1] == last


def test_budgets_of_the_paper():
    """10,000 steps at ceil(k/20): 623 rounds; 1,000 at ceil(k/2): 63, the last with 8; 800 at k: 40, with 20."""
    for total, every, rounds, last in ((10_000, 20, 623, 16), (1000, 2, 63, 8), (800, 1, 40, 20)):
        steps, count = 0, 0
        while steps < total:
            step = min(Grow(every)(count), total - steps)
            steps, count = steps + step, count + 1
        assert (count, step) == (rounds, last)


def test_a_virtual_clock_needs_a_fleet_below():
    federation = planted()
    engine = Latency(Watched(federation), "uniform(0,20)")
    one = fit(federation, FPFC, rounds=8, tol=0, engine=engine)
    two = fit(federation, FPFC, rounds=8, tol=0, delay="uniform(0,20)")
    np.testing.assert_array_equal(one.history["time"], two.history["time"])
