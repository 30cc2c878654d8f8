"""The loop: who takes part, which replies are let in, when it ends; interruptions leave no trace."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfuse as ff
from fedfuse.engines import Engine, InProcess
from fedfuse.errors import FedfuseError
from fedfuse.methods.state_arrays import pack_state
from fedfuse.models import default_model
from fedfuse.protocol.ledger import CommunicationLedger
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.reply_checks import fault, largest_value
from fedfuse.protocol.tasks import Gradient, Install, Losses, Order, Reply, SendMoments, Train
from fedfuse.training.fit import fit, resume
from fedfuse.training.loop import Callback
from fedfuse.training.settings import Settings
from fedfuse.utils.files import read_arrays, write_arrays
from support.planted import Keep, planted

METHOD = ff.FPFC(lam=0.3, refit=False, work=Work(steps=3, lr=0.1))
EXACT = ff.FPFC(lam=0.3, refit=False, work=Work(solver="exact"))


def in_process(federation, **options):
    model = default_model(federation.goal).sized(federation.n_features, federation.n_classes)
    return InProcess(federation, model, **options)


# ------------------------------------------------------------------------------------------ participation


@given(st.floats(0.01, 1.0), st.integers(1, 200), st.integers(0, 50))
def test_so_many_devices_take_part(share, m, k):
    """floor(share m), as the paper's tables count it, and at least one; each at most once."""
    active = Settings(participation=share).active(k, m)
    assert len(active) == max(1, int(np.floor(share * m + 1e-9)))
    assert len(set(active.tolist())) == len(active)
    assert (active >= 0).all()
    assert (active < m).all()


@pytest.mark.parametrize(("share", "m", "count"), [(0.3, 100, 30), (0.3, 8, 2), (0.5, 20, 10), (0.29, 100, 29)])
def test_counts_of_the_paper(share, m, count):
    assert len(Settings(participation=share).active(0, m)) == count


def test_draws_are_keyed_by_seed_and_round():
    draws = [Settings(seed=s, participation=0.3).active(k, 100).tolist() for s in (0, 1) for k in (0, 1)]
    assert draws == [Settings(seed=s, participation=0.3).active(k, 100).tolist() for s in (0, 1) for k in (0, 1)]
    assert len({tuple(d) for d in draws}) == 4
    often = Counter(int(i) for k in range(400) for i in Settings(participation=0.3).active(k, 20))
    assert min(often.values()) > 80  # 120 expected, standard deviation 9


@pytest.mark.parametrize("wrong", [[0, 0], [6], [-1], [0.5], [[0, 1]], ["d0"], [True, False, True]], ids=repr)
def test_a_sampler_must_name_different_devices(wrong):
    with pytest.raises(FedfuseError, match="different device numbers from 0 to 5, in round 0"):
        fit(planted(m=6), METHOD, rounds=2, participation=lambda k, m: wrong)


def test_a_sampler_is_asked_once_per_round():
    """It may draw from a stream of its own."""
    asked = []

    def sampler(k, m):
        asked.append(k)
        return [k % m]

    fit(planted(m=6), METHOD, rounds=9, participation=sampler)
    assert asked == list(range(9))


def test_a_round_may_be_empty():
    result = fit(planted(m=6), METHOD, rounds=4, participation=lambda k, m: [] if k % 2 else [0, 1])
    assert result.history["active"].tolist() == [2, 0, 2, 0]
    assert result.history["moved"].isna().tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"participation": 0.0}, r"participation must be a share above 0 and at most 1, got 0\.0"),
        ({"participation": 1.5}, r"participation must be a share above 0 and at most 1, got 1\.5"),
        ({"participation": float("nan")}, "participation must be a share"),
        ({"participation": "half"}, "participation must be a share"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
        ({"rounds": 2.5}, "rounds must be a whole number"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"tol": -1e-9}, "tol must be a number of at least 0"),
        ({"tol": float("nan")}, "tol"),
        ({"dtype": "float16"}, "dtype must be 'float32' or 'float64'"),
    ],
)
def test_settings_out_of_range(wrong, words):
    with pytest.raises(FedfuseError, match=words):
        Settings(**wrong)


# ---------------------------------------------------------------------------------------------- uploads


def test_the_gate_names_what_is_wrong():
    asked = Order(1, 7, Train(Work()))
    good = np.ones(4)

    def verdict(device=1, k=7, values=good):
        return fault(Reply(device, k, values), asked, m=3, d=4, dtype="float32")

    assert verdict() is None
    assert verdict(values=np.ones(4, np.int64)) is None
    assert verdict(device=3) == verdict(device=-1) == "unknown device"
    assert verdict(device=2) == verdict(k=6) == verdict(k=8) == "not asked for, or too late"
    assert verdict(values=np.ones(5)) == verdict(values=np.ones((4, 1))) == verdict(values=np.float64(1))
    assert verdict(values=np.ones(5)) == "wrong length"
    assert verdict(values=np.array([1, 2, 3, "x"])) == verdict(values=good * 1j) == "not numbers"
    for bad in (np.nan, np.inf, -np.inf):
        assert verdict(values=np.array([0, 0, bad, 0])) == "not finite"
    assert verdict(values=good * 1e30) == "too large"
    asked = Order(1, 7, SendMoments(2))  # squares of numbers, which the server keeps in double precision
    assert verdict(values=good * 1e30) is None
    assert verdict(values=good * 1e200) == "too large"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_upload_leaves_the_state_finite(dtype):
    """Two devices at opposite ends of what is allowed: distances still do not overflow."""
    d = 50
    far = np.full(d, largest_value(d, dtype), dtype)
    state = ff.FusionState(np.zeros((3, d)), ff.SmoothedSCAD(0.6), dtype=dtype)
    for _ in range(3):
        state.update([0, 1], np.stack([far, -far]))
        assert np.isfinite(state.norms()).all()
        assert np.isfinite(state.anchors([0, 1, 2])).all()


class Liars(Engine):
    """An engine some of whose devices send nonsense; everybody else answers as in process."""

    def __init__(self, federation, lies, **options):
        self.honest, self.lies = in_process(federation, **options), lies

    def submit(self, orders):
        self.honest.submit(orders)

    def collect(self):
        return [lie for reply in self.honest.collect() for lie in self.tell(reply)]

    def tell(self, reply):
        if reply.round < 0 or reply.device not in self.lies:
            return [reply]
        return self.lies[reply.device](reply)


def with_values(change):
    return lambda reply: [Reply(reply.device, reply.round, change(reply.values))]


LIES = {
    "not finite": with_values(lambda v: np.full_like(v, np.nan)),
    "wrong length": with_values(lambda v: v[:-1]),
    "too large": with_values(lambda v: np.full(v.shape, 1e200)),
    "unknown device": lambda reply: [Reply(99, reply.round, reply.values)],
    "not asked for, or too late": lambda reply: [Reply(reply.device, reply.round - 1, reply.values)],
    "silent": lambda reply: [],
}


@pytest.mark.parametrize("reason", LIES)
def test_a_refused_upload_leaves_no_trace(reason):
    """Counted by its reason; the run is the same to the bit as one in which that device has no turn."""
    federation, rounds, keeps = planted(m=6), 12, (Keep(), Keep())
    engine = Liars(federation, {4: LIES[reason]})
    result = fit(federation, METHOD, rounds=rounds, tol=0, engine=engine, callbacks=[keeps[0]])
    others = [0, 1, 2, 3, 5]
    fit(federation, METHOD, rounds=rounds, tol=0, participation=lambda k, m: others, callbacks=[keeps[1]])
    if reason == "not asked for, or too late":  # from the second on, an answer to the round before
        assert result.refused == {reason: 1, "late": rounds - 1}
    else:
        assert result.refused == ({} if reason == "silent" else {reason: rounds})
    assert (result.history["replies"] == 5).all()
    for one, two in zip(*(pack_state(k.run.state).values() for k in keeps), strict=True):
        np.testing.assert_array_equal(one, two)
        assert np.isfinite(one).all()


def test_only_the_first_answer_counts():
    """A device that answers twice, and once more with another name."""

    def thrice(reply):
        spoiled = Reply(reply.device, reply.round, reply.values + 1)
        return [reply, spoiled, Reply(0, reply.round, reply.values + 5)]

    federation, keeps = planted(m=4), (Keep(), Keep())
    plain = fit(federation, METHOD, rounds=8, tol=0, callbacks=[keeps[0]])
    result = fit(federation, METHOD, rounds=8, tol=0, engine=Liars(federation, {2: thrice}), callbacks=[keeps[1]])
    np.testing.assert_array_equal(keeps[0].run.state.pairs.omega, keeps[1].run.state.pairs.omega)
    assert result.refused == {"not asked for, or too late": 16}
    d = result.model.d
    assert result.cost_floats == plain.cost_floats + 16 * d  # what was sent was sent


def test_answers_may_come_late_and_one_by_one():
    class Slow(InProcess):
        def __init__(self, *args, **kw):
            super().__init__(*args, **kw)
            self.arriving = []

        def collect(self):
            self.arriving += super().collect()[::-1]
            return [self.arriving.pop()] if self.arriving else []

    federation = planted(m=5)
    model = default_model("regression").sized(3, 0)
    slow = fit(federation, METHOD, rounds=10, tol=0, engine=Slow(federation, model))
    np.testing.assert_array_equal(slow.models, fit(federation, METHOD, rounds=10, tol=0).models)


def test_nobody_answers_at_all():
    """No hang, no convergence, the start as the result."""
    federation = planted(m=4)
    engine = Liars(federation, dict.fromkeys(range(4), LIES["silent"]))
    result = fit(federation, METHOD, rounds=5, engine=engine)
    assert result.rounds == 5
    assert not result.converged
    assert (result.models == 0).all()
    assert result.n_clusters == 1


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.integers(0, 4), st.sampled_from(sorted(LIES)), min_size=1))
def test_any_mixture_of_lies(plan):
    federation, keep = planted(m=5, n=20), Keep()
    engine = Liars(federation, {i: LIES[word] for i, word in plan.items()})
    result = fit(federation, METHOD, rounds=4, tol=0, engine=engine, callbacks=[keep])
    assert sum(result.refused.values()) == 4 * sum(word != "silent" for word in plan.values())
    assert np.isfinite(keep.run.state.pairs.omega).all()
    assert (keep.run.state.pairs.omega[sorted(plan)] == 0).all()


def test_divergence_is_refused_and_counted():
    """A step size that is far too large: uploads overflow and are counted, models stay what they were."""
    with np.errstate(over="ignore", invalid="ignore"):
        result = fit(planted(), ff.FPFC(lam=0.6, refit=False, work=Work(steps=50, lr=1e3)), rounds=3)
    assert set(result.refused) <= {"not finite", "too large"}
    assert sum(result.refused.values()) == 3 * 6
    assert (result.models == 0).all()


# ------------------------------------------------------------------------------------------------ costs


def test_tasks_know_their_size():
    v, d = np.zeros(7), 7
    sizes = {
        Install: (Install(v), 7, 0),
        Train: (Train(Work(), anchor=v), 7, 7),
        Gradient: (Gradient(v), 7, 7),
        Losses: (Losses(np.zeros((3, 7))), 21, 3),
    }
    for task, down, up in sizes.values():
        assert (task.floats_down, task.floats_up(d)) == (down, up)
    assert Train(Work(), start=v, anchor=v).floats_down == 14
    assert Train(Work()).floats_down == 0


def test_the_ledger_adds_up():
    ledger = CommunicationLedger()
    ledger.sent(Order(0, 0, Gradient(np.zeros(5))))
    ledger.received(Reply(0, 0, np.zeros(3)))
    ledger.refuse("late", 3)
    ledger.refuse("not finite", 3)
    ledger.refuse("not finite", 3)
    assert (ledger.down, ledger.up, ledger.floats, ledger.refused) == (5, 3, 8, {"late": 1, "not finite": 2})
    assert ledger.blamed == {"3": 2}  # late is no lie


@pytest.mark.parametrize(("reason", "accused"), [("late", []), ("not asked for, or too late", []), ("too large", [3])])
def test_only_what_a_device_says_makes_it_a_suspect(reason, accused):
    ledger = CommunicationLedger()
    for _ in range(10):
        ledger.refuse(reason, 3)
    assert ledger.often_refused(6) == accused


# -------------------------------------------------------------------------------------------- the loop


class Diary(Callback):
    def __init__(self):
        self.entries = []

    def on_start(self, run):
        self.entries.append("start")

    def on_round(self, run, row):
        assert row == run.history[-1]
        self.entries.append(row["round"])

    def on_end(self, run, result):
        assert result.rounds == run.k
        self.entries.append("end")


def test_callbacks_see_everything_once():
    diary = Diary()
    fit(planted(), METHOD, rounds=3, callbacks=[diary])
    assert diary.entries == ["start", 0, 1, 2, "end"]


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_it_stops_when_nothing_moves_for_two_turns(share):
    settings = {"rounds": 3000, "tol": 1e-4, "participation": share, "dtype": "float64"}
    result = fit(planted(), EXACT, **settings)
    assert result.converged
    assert result.rounds < 3000
    largest = result.history[["primal", "dual", "moved"]].max(axis=1)
    quiet = int(2 / share)
    assert (largest[-quiet:] <= 1e-4).all()
    windows = largest.rolling(quiet).max()
    assert (windows[quiet - 1 : -1] > 1e-4).all()  # and not a round earlier


@pytest.mark.parametrize("rounds", [9, 300])
def test_a_refit_does_not_hide_that_the_groups_were_cut_short(rounds, tmp_path):
    """Also after a resume: a refit always comes to its end, what it refits may not have."""
    federation, method = planted(), ff.FPFC(lam=0.3, work=Work(solver="exact"), refit=True)

    class StopInTheRefit(Callback):
        def on_round(self, run, row):
            if run.stage.name == "refit" and run.k == run.stage_start + 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(federation, method, rounds=rounds, out=tmp_path / "run", callbacks=[StopInTheRefit()])
    results = [fit(federation, method, rounds=rounds), resume(tmp_path / "run", federation)]
    for result in results:
        assert result.converged == (rounds == 300)
        assert result.stages[0]["name"] == "fpfc"
        assert len(result.stages) > 1
        assert sum(stage["rounds"] for stage in result.stages) == result.rounds == len(result.history) <= rounds
        assert sum(stage["floats"] for stage in result.stages) == result.cost_floats
        assert (result.rounds == 2) == (rounds == 2)


def test_without_tolerance_it_goes_on():
    result = fit(planted(), EXACT, rounds=200, tol=0)
    assert result.rounds == 200
    assert not result.converged


def test_history_has_a_row_per_round_and_looks_every_few():
    result = fit(planted(), METHOD, rounds=7, evaluate_every=3, tol=0)
    history = result.history
    assert history["round"].tolist() == list(range(7))
    assert history["test"].notna().tolist() == [False, False, True, False, False, True, False]
    assert history["seconds"].is_monotonic_increasing
    assert history["cost_floats"].is_monotonic_increasing
    assert history["validation"].isna().all()  # trained on: a score would mean nothing


def test_validation_is_scored_where_it_is_held_back():
    result = fit(planted(), ff.FPFC(lam=0.3, refit=False, rows="train"), rounds=20)
    assert np.isfinite(result.score("validation"))
    assert result.score("validation") != result.score("test")


def test_accuracy_is_the_share_of_right_answers():
    """Scores of the result, recomputed by predicting."""
    for goal in ("classification", "regression"):
        federation = planted(goal)
        result = fit(federation, METHOD, rounds=30)
        for i, name in enumerate(federation.names):
            X, y = federation.rows("test").of(i)
            answer = result.predict(name, X)
            if goal == "classification":
                expected = np.mean(answer == np.array(federation.classes)[y])
            else:
                expected = np.sqrt(np.mean((answer - y) ** 2))
            assert result.scores["test"][i] == pytest.approx(expected, rel=1e-5)


def test_the_model_must_fit_the_target():
    with pytest.raises(FedfuseError, match="SoftmaxRegression is for classification"):
        fit(planted("regression"), METHOD, model=ff.SoftmaxRegression())


@pytest.mark.parametrize("goal", ["regression", "classification"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_devices_without_held_out_rows_have_no_score(goal, dtype):
    result = fit(planted(goal, test=0, validation=0), METHOD, rounds=5, dtype=dtype)
    assert np.isnan(result.score("test"))
    assert json.dumps(result.summary()["labels"])
    assert repr(result)


# ------------------------------------------------------------------------------------- stop and resume


class Interrupted(InProcess):
    """Sends this process a real Ctrl-C in the middle of a round, as often as told."""

    def __init__(self, *args, at, times, **kw):
        super().__init__(*args, **kw)
        self.at, self.times = at, times

    def collect(self):
        replies = super().collect()
        if replies and replies[0].round == self.at:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)
        return replies


OPTIONS = {"rounds": 20, "tol": 0, "participation": 0.5, "checkpoint_every": 4}


def interrupted_fit(federation, directory, at, times):
    model = default_model(federation.goal).sized(federation.n_features, federation.n_classes)
    engine = Interrupted(federation, model, at=at, times=times)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Other libraries may have left one that ends the process.
    with pytest.raises(KeyboardInterrupt):
        fit(federation, METHOD, out=directory, engine=engine, **OPTIONS)


def test_an_interrupt_waits_for_the_end_of_the_round(tmp_path):
    """Ctrl-C in round 6: that round is finished and saved, and the resumed run is the same to the bit."""
    federation = planted()
    interrupted_fit(federation, tmp_path / "run", at=6, times=1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    meta = json.loads(read_arrays(tmp_path / "run/checkpoint/latest.npz")["meta"].tobytes())
    assert meta["k"] == 7
    assert len(meta["history"]) == 7
    result = resume(tmp_path / "run", federation)
    np.testing.assert_array_equal(result.models, fit(federation, METHOD, **OPTIONS).models)


def test_a_second_interrupt_does_not_wait(tmp_path):
    """The half-done round is not saved: the last checkpoint stands."""
    federation = planted()
    interrupted_fit(federation, tmp_path / "run", at=6, times=2)
    meta = json.loads(read_arrays(tmp_path / "run/checkpoint/latest.npz")["meta"].tobytes())
    assert meta["k"] == 4
    result = resume(tmp_path / "run", federation)
    np.testing.assert_array_equal(result.models, fit(federation, METHOD, **OPTIONS).models)


def test_an_interrupt_before_the_first_round_leaves_nothing(tmp_path):
    interrupted_fit(planted(), tmp_path / "run", at=-1, times=1)
    assert not (tmp_path / "run").exists()


def test_training_works_in_a_thread():
    """Only the main thread may touch signals."""
    found = []
    thread = threading.Thread(target=lambda: found.append(fit(planted(), METHOD, rounds=3)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0].models, fit(planted(), METHOD, rounds=3).models)


def test_divergence_does_not_break_resume(tmp_path):
    """A device whose uploads are refused goes on from what the server has: also when nobody interrupts."""
    federation = planted()
    federation.X[federation.cuts[1, 0] : federation.cuts[1, 2]] *= 200  # lr 0.1 is too much for this one
    with np.errstate(over="ignore", invalid="ignore"):
        whole = fit(federation, METHOD, **OPTIONS)
        interrupted_fit(federation, tmp_path / "run", at=9, times=1)
        again = resume(tmp_path / "run", federation)
    assert whole.refused
    assert whole.refused == again.refused
    np.testing.assert_array_equal(whole.models, again.models)


def stopped_run(directory, federation=None):
    interrupted_fit(federation or planted(), directory, at=6, times=1)
    return directory


def test_a_run_of_another_federation_is_refused(tmp_path):
    run = stopped_run(tmp_path / "run")
    with pytest.raises(FedfuseError, match="belongs to another federation"):
        resume(run, planted(seed=1))


def test_a_checkpoint_of_another_federation_is_refused(tmp_path):
    federation = planted()
    run, other = stopped_run(tmp_path / "run", federation), stopped_run(tmp_path / "other", planted(seed=1))
    (other / "checkpoint/latest.npz").replace(run / "checkpoint/latest.npz")
    with pytest.raises(FedfuseError, match="the checkpoint belongs to another federation"):
        resume(run, federation)


@pytest.mark.parametrize("lost", ["state.delta", "state.omega", "meta"])
def test_a_checkpoint_with_a_gap_is_refused(tmp_path, lost):
    federation = planted()
    path = stopped_run(tmp_path / "run", federation) / "checkpoint/latest.npz"
    arrays = read_arrays(path)
    del arrays[lost]
    write_arrays(path, arrays)
    with pytest.raises(FedfuseError, match=r"not (one of this method|a checkpoint)"):
        resume(tmp_path / "run", federation)


def test_a_config_that_is_not_ours_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"settings": {}}')
    with pytest.raises(FedfuseError, match=r"no run that can be resumed: config\.json lacks 'method'"):
        resume(tmp_path)
    (tmp_path / "config.json").write_text("[1, 2]")
    with pytest.raises(FedfuseError, match="is not as fedfuse writes it"):
        resume(tmp_path)


def test_another_version_says_so(tmp_path, caplog):
    federation = planted()
    path = stopped_run(tmp_path / "run", federation) / "config.json"
    path.write_text(path.read_text().replace(f'"version": "{ff.__version__}"', '"version": "0.0.1"'))
    resume(tmp_path / "run", federation)
    assert f"was started by fedfuse 0.0.1, this is {ff.__version__}" in caplog.text


def test_data_without_a_name_must_be_passed_again(tmp_path):
    with pytest.raises(FedfuseError, match=r"fedfuse\.resume\(directory, federation\)"):
        resume(stopped_run(tmp_path / "run"))


def test_a_finished_run_is_just_read(tmp_path):
    result = fit(planted(), METHOD, out=tmp_path / "run", **OPTIONS)
    assert not (tmp_path / "run/checkpoint").exists()
    again = resume(tmp_path / "run")
    np.testing.assert_array_equal(again.models, result.models)


def test_nothing_is_written_for_what_cannot_be_saved(tmp_path):
    with pytest.raises(FedfuseError, match="a function cannot be saved"):
        fit(planted(), METHOD, out=tmp_path / "run", participation=lambda k, m: [0])
    assert list(tmp_path.iterdir()) == []


def test_a_used_directory_is_refused_before_any_work(tmp_path):
    fit(planted(), METHOD, out=tmp_path / "run", rounds=2)
    before = {p: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    with pytest.raises(FedfuseError, match="already holds a run: choose another directory"):
        fit(planted(), METHOD, out=tmp_path / "run", rounds=2)
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    run = stopped_run(tmp_path / "cut")
    with pytest.raises(FedfuseError, match=r"go on with it by 'fedfuse resume .*cut' or choose another"):
        fit(planted(), METHOD, out=run, rounds=2)
