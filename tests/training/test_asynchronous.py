"""Asynchronous training (Algorithm 3): the synchronous loop with the first reply in place of all."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.engines import InProcess
from fedfuse.engines.latency import Distribution
from fedfuse.errors import FedfuseError
from fedfuse.methods.registry import METHODS
from fedfuse.protocol.local_work import Work
from fedfuse.training.fit import fit, resume
from fedfuse.training.loop import Callback
from fedfuse.training.settings import Settings
from support.common_checks import StopAt, assert_same
from support.planted import Keep, planted
from support.textbook import Textbook

GD = Work(steps=3, lr=0.1)
FPFC = ff.FPFC(lam=0.3, refit=False, work=GD)
ABLE = {
    "fpfc": FPFC,
    "fpfc-l1": ff.FPFCL1(refit=False, work=GD),
    "fedavg": ff.FedAvg(work=GD),
    "fedasync": ff.FedAsync(work=GD),
}
every_method = pytest.mark.parametrize("method", ABLE.values(), ids=ABLE)


class Visits(Callback):
    """Whose reply each round took: the device whose model has changed."""

    def __init__(self):
        self.devices, self.before = [], 0.0

    def on_round(self, run, row):
        omega = run.state.pairs.omega
        self.devices += np.flatnonzero((omega != self.before).any(axis=1)).tolist()
        self.before = omega.copy()


# ----------------------------------------------------------------------------- against synchronous rounds


@pytest.mark.parametrize("goal", ["regression", "classification"])
@pytest.mark.parametrize("method", [ABLE["fpfc"], ABLE["fpfc-l1"]], ids=["fpfc", "fpfc-l1"])
@pytest.mark.parametrize("delay", [None, 0, "uniform(0,20)"])
def test_one_device_at_a_time_is_one_active_device_per_round(goal, method, delay):
    """The same order of devices, hence the same numbers, however long each takes."""
    federation, options = planted(goal), {"rounds": 60, "tol": 0, "dtype": "float64"}
    one = fit(federation, method, mode="async", at_once=1, delay=delay, **options)
    two = fit(federation, method, participation=lambda k, m: [k % m], **options)
    np.testing.assert_allclose(one.models, two.models, rtol=0, atol=1e-12)
    assert one.cost_floats == two.cost_floats
    assert (one.history["staleness"] == 0).all()


@every_method
def test_schedules_count_a_turn_of_everybody_as_a_round(method, monkeypatch):
    """A step size that falls from round to round must not be gone after a few single updates."""
    asked, kind = [], type(method.single_reply_rule())
    tasks = kind.tasks
    monkeypatch.setattr(kind, "tasks", lambda self, state, who, k: asked.append(k) or tasks(self, state, who, k))
    fit(planted(m=5), method, rounds=23, tol=0, mode="async", at_once=1)
    assert asked == [k // 5 for k in range(23)]


@pytest.mark.parametrize("laws", [{}, {"delay": 0}, {"compute": 2}])
def test_equal_devices_are_visited_in_turn(laws):
    visits = Visits()
    fit(planted(m=5), FPFC, rounds=23, tol=0, mode="async", callbacks=[visits], **laws)
    assert visits.devices == [k % 5 for k in range(23)]


def test_an_event_is_what_algorithm_3_says():
    """Anchors are those of a device's last event; against the textbook's loops, in order of the virtual clock."""
    federation, visits, keep = planted(m=5), Visits(), Keep()
    options = {"rounds": 40, "tol": 0, "mode": "async", "delay": "uniform(0,20)", "dtype": "float64"}
    fit(federation, FPFC, callbacks=[visits, keep], **options)
    model, engine = keep.run.model, InProcess(federation, keep.run.model, dtype="float64")
    data = engine.load("train+validation")
    book = Textbook(np.zeros((5, model.d)), FPFC.penalty, FPFC.rho)
    anchors = {i: book.omega[i].copy() for i in range(5)}
    for i in visits.devices:
        new = model.train(data, np.array([i]), book.omega[i][None], anchors[i][None], FPFC.rho, GD, None)
        book.update([i], new)
        anchors[i] = book.anchor(i)
    np.testing.assert_allclose(keep.run.state.pairs.omega, book.omega, atol=1e-10)


@every_method
def test_history_has_time_and_staleness(method):
    federation = planted(m=6)
    result = fit(federation, method, rounds=80, tol=0, mode="async", delay="uniform(0,20)")
    history = result.history
    assert (np.diff(history["time"]) >= 0).all()
    assert (history["active"] == 1).all()
    # each of six devices takes ten seconds: in the long run five updates lie between its own
    assert history["staleness"].iloc[10:].mean() == pytest.approx(5, abs=1)
    assert history["time"].iloc[-1] == pytest.approx(80 * 10 / 6, rel=0.25)
    assert result.orders["sent"] == result.orders["used"] + result.orders["unanswered"]
    assert result.orders["unanswered"] == 5  # still under way


def test_time_is_that_on_the_wall_without_a_clock():
    history = fit(planted(), FPFC, rounds=5, tol=0).history
    assert (history["time"] == history["seconds"]).all()


def test_synchronous_time_is_the_slowest_device():
    settings = Settings(participation=0.5)
    law, total, times = Distribution.of("uniform(0,20)"), 0.0, []
    for k in range(10):
        total += max(law.draw(0, "delay", k, int(i)) + 1 for i in settings.active(k, 6))
        times.append(total)
    history = fit(planted(), FPFC, rounds=10, tol=0, participation=0.5, delay="uniform(0,20)", compute=1).history
    np.testing.assert_allclose(history["time"], times, rtol=1e-12)
    plain = fit(planted(), FPFC, rounds=10, tol=0, participation=0.5).history
    np.testing.assert_array_equal(history["moved"], plain["moved"])  # the clock changes nothing else


# ---------------------------------------------------------------------------------------------- fairness


@pytest.mark.parametrize("ahead", [1, 3])
def test_the_fast_wait_for_the_slow(ahead):
    class Turns(Callback):
        leads = ()

        def on_round(self, run, row):
            self.leads = (*self.leads, int(np.ptp(run.turns)))

    turns = Turns()
    fit(
        planted(), FPFC, rounds=120, tol=0, mode="async", compute="per_node(lognormal(0,2))", ahead=ahead,
        callbacks=[turns],
    )  # fmt: skip
    assert max(turns.leads) == ahead


def test_without_the_rule_they_run_away():
    turns = Keep()
    fit(planted(), FPFC, rounds=120, tol=0, mode="async", compute="per_node(lognormal(0,2))", callbacks=[turns])
    assert np.ptp(turns.run.turns) > 20


def test_few_at_once_take_turns():
    keep = Keep()
    options = {"rounds": 60, "tol": 0, "mode": "async", "at_once": 2, "delay": "uniform(0,20)"}
    result = fit(planted(), FPFC, callbacks=[keep], **options)
    assert np.ptp(keep.run.turns) <= 2
    assert result.history["staleness"].mean() == pytest.approx(1, abs=0.3)


# ------------------------------------------------------------------------------------- who can, who cannot


CANNOT = sorted(set(METHODS) - set(ABLE))


@pytest.mark.parametrize("name", CANNOT)
def test_others_say_so(name, tmp_path):
    method = METHODS[name]()
    with pytest.raises(FedfuseError, match="cannot be trained asynchronously"):
        fit(planted(), method, mode="async", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_refit_is_synchronous():
    """It asks everybody once and waits; only FPFC's own part takes replies one by one."""
    federation, method = planted("classification", m=8, n=60), ff.FPFC(lam=0.6, work=GD, refit=True)
    result = fit(federation, method, rounds=450, tol=0, mode="async", delay="uniform(0,20)", participation=0.5)
    staged = result.history["stage"] != "fpfc"
    assert staged.any()
    assert (~staged).sum() == 300
    assert (result.history.loc[~staged, "active"] == 1).all()
    assert result.history.loc[staged, "active"].max() == 4
    assert (np.diff(result.history["time"]) >= 0).all()
    orders = result.orders
    assert orders["sent"] == orders["used"] + orders["refused"] + orders["unanswered"]
    assert result.ari == 1.0


@pytest.mark.parametrize(("name", "value"), [("minimum", 2), ("budget", 10)])
def test_rounds_of_several_devices_have_no_meaning(name, value):
    with pytest.raises(FedfuseError, match=f"{name} applies to rounds of several devices"):
        Settings(mode="async", **{name: value})


# ------------------------------------------------------------------------------------------- checkpoints

LOSSY = "lost:0.2,late:0.2,twice:0.1,stale:0.1,nan:0.05"
WORLDS = {
    "plain": {},
    "delayed": {"delay": "uniform(0,20)", "compute": "per_node(lognormal(0,1))"},
    "lossy": {"delay": "uniform(0,20)", "lossy": LOSSY, "deadline": 15.0},
    "few": {"delay": "exponential(4)", "at_once": 3, "ahead": 2},
}


@every_method
@pytest.mark.parametrize("info", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("batch", [None, 10])
def test_resumed_is_uninterrupted(method, info, batch, tmp_path):
    """The clock, the orders under way and what devices hold: to the bit, wherever it is cut."""
    federation = planted()
    method = type(method)(**{**vars(method), "work": Work(steps=2, lr=0.1, batch=batch)})
    options = {"rounds": 45, "tol": 0, "mode": "async", "checkpoint_every": 4, **info}
    whole = fit(federation, method, **options)
    with pytest.raises(KeyboardInterrupt):
        fit(federation, method, out=tmp_path / "cut", callbacks=[StopAt(1)], **options)
    for k in (7, 8, 30, 44):
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "cut", federation, callbacks=[StopAt(k)])
    again = resume(tmp_path / "cut", federation)
    assert_same(whole, again)
    if info:
        np.testing.assert_allclose(whole.history["time"], again.history["time"], rtol=1e-14)


@pytest.mark.parametrize("late", ["refuse", "use"])
@pytest.mark.parametrize("method", [FPFC, ff.FusionTree(), ff.LGFedAvg(work=GD)], ids=["fpfc", "auto", "lg"])
def test_synchronous_runs_in_trouble_are_resumed_too(method, late, tmp_path):
    federation = planted("classification", m=8)
    options = {
        "rounds": 40, "tol": 0, "participation": 0.5, "checkpoint_every": 4, "lossy": LOSSY, "deadline": 15.0,
        "delay": "uniform(0,20)", "late": late, "minimum": 1,
    }  # fmt: skip
    whole = fit(federation, method, **options)
    with pytest.raises(KeyboardInterrupt):
        fit(federation, method, out=tmp_path / "cut", callbacks=[StopAt(3)], **options)
    for k in (11, 12, 31):
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "cut", federation, callbacks=[StopAt(k)])
    assert_same(whole, resume(tmp_path / "cut", federation))


# ----------------------------------------------------------------------------------------------- FedAsync


def test_fedasync_by_hand():
    """Two replies, the second one update old: w <- w + a (w_i - w), a = alpha n_i / mean(n) (1 + s)^-1/2."""
    keep = Keep()
    federation = planted(m=2, groups=1)
    options = {"rounds": 2, "tol": 0, "mode": "async", "dtype": "float64", "callbacks": [keep]}
    result = fit(federation, ff.FedAvg(work=GD), **options)
    replies = fit(federation, ff.Local(work=GD), rounds=1, tol=0, dtype="float64").models
    n = federation.rows("train+validation").counts
    w = np.zeros(result.model.d)
    for i, staleness in ((0, 0), (1, 1)):
        w = w + 0.6 * n[i] / n.mean() * (1 + staleness) ** -0.5 * (replies[i] - w)
    np.testing.assert_allclose(result.models[0], w, rtol=1e-12)
    assert result.history["staleness"].tolist() == [0, 1]
    assert result.method["method"] == "fedavg"


def test_asynchronous_averaging_comes_to_the_same_model():
    federation = planted(groups=1, m=8, n=100)
    plain = fit(federation, ff.FedAvg(work=GD), rounds=200, tol=0)
    result = fit(federation, ff.FedAvg(work=GD), rounds=1600, tol=0, mode="async", delay="uniform(0,20)")
    assert result.score() == pytest.approx(plain.score(), rel=0.02)


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"alpha": 1.5}, {"power": -1.0}])
def test_fedasync_parameters(wrong):
    with pytest.raises(FedfuseError, match=next(iter(wrong))):
        ff.FedAsync(**wrong)


ALL = partial(fit, rounds=400, tol=1e-4, mode="async", delay="uniform(0,20)")


def test_it_stops_when_nothing_moves():
    result = ALL(planted(), ff.FPFC(lam=0.3, refit=False, work=Work(solver="exact")), rounds=5000, dtype="float64")
    assert result.converged
    assert result.rounds < 5000
    last = result.history[["primal", "dual", "moved"]].iloc[-12:]
    assert (last <= 1e-4).all().all()
