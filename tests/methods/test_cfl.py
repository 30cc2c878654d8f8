"""CFL: cuts worked out by hand, who is cut and when, and the tree that newcomers go down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.errors import FedfuseError
from fedfuse.methods.clustered.cfl import MIN_ROUNDS_BEFORE_CUT, bipartition, cosines
from fedfuse.methods.method import FederationInfo
from fedfuse.methods.mixins import RunSummary
from fedfuse.models import LinearRegression
from fedfuse.protocol.tasks import Install, PeekModel, Train
from fedfuse.training.fit import fit
from support.planted import begun, line, many_sites, planted, written_out

WORK = ff.Work(steps=3, lr=0.05)
# in the plane: to the right, up to the right, left, almost left
FOUR = np.array([[2.0, 0.0], [0.8, 0.6], [-3.0, 0.0], [-0.8, 0.6]])


def test_cosines_written_out():
    expected = [[1.0, 0.8, -1.0, -0.8], [0.8, 1.0, -0.8, -0.28], [-1.0, -0.8, 1.0, 0.8], [-0.8, -0.28, 0.8, 1.0]]
    np.testing.assert_allclose(cosines(FOUR), expected, atol=1e-11)
    assert (cosines(np.array([[0.0, 0.0], [1.0, 0.0]]))[0] == 0).all()  # who has not moved is like nobody


@pytest.mark.parametrize("linkage", ["complete", "single"])
def test_a_cut_by_hand(linkage):
    assert bipartition(FOUR, linkage).tolist() == [True, True, False, False]
    assert bipartition(FOUR[[2, 0, 3, 1]], linkage).tolist() == [True, False, True, False]


def test_single_linkage_makes_the_largest_cosine_across_the_cut_least():
    """Over all ways to cut, tried one by one."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        updates = rng.normal(size=(6, 3))
        C, ways = cosines(updates), [np.array([bool(k >> i & 1) for i in range(6)]) for k in range(1, 32)]
        first = bipartition(updates, "single")
        assert C[np.ix_(first, ~first)].max() == pytest.approx(min(C[np.ix_(w, ~w)].max() for w in ways))


def state_of(m, d=2, rounds=MIN_ROUNDS_BEFORE_CUT, **settings):
    """The state of a federation of equal devices, so many rounds old."""
    counts = {"train+validation": np.ones(m, np.int64)}
    info = FederationInfo(
        m, LinearRegression().sized(d - 1, 0), counts, lambda start, number=0: np.zeros(d), np.dtype("f8")
    )
    method = ff.CFL(**{"eps1": 0.4, "eps2": 0.5, **settings})
    state = method.init(info)
    state.age = np.array([rounds])
    return method, state


def told(method, state, updates):
    """One round in which these devices send these updates."""
    devices = np.array(sorted(updates))
    method.update(state, devices, [np.array(updates[i], float) for i in devices])


E1, E2 = np.array([1.0, 0.0]), np.array([0.0, 1.0])


def test_two_groups_with_opposite_updates_are_cut_exactly():
    method, state = state_of(4)
    told(method, state, {0: E1, 1: -E1, 2: E1, 3: -E1})
    assert state.labels.tolist() == [0, 1, 0, 1]
    # the mean update of all was 0; each part goes its own way in the same round
    np.testing.assert_allclose(state.models, [E1, -E1])


def test_further_cuts_are_by_device_number():
    """The second cut is inside {0, 3, 5, 6}, where positions 0, 1, 2, 3 are other devices."""
    method, state = state_of(8)
    side = {i: (E1 if i in (0, 3, 5, 6) else -E1) for i in range(8)}
    told(method, state, side)
    assert state.labels.tolist() == [0, 1, 1, 0, 1, 0, 0, 1]
    told(method, state, {i: side[i] if i in (1, 2, 4, 7) else (E2 if i in (0, 6) else -E2) for i in range(8)})
    assert state.labels.tolist() == [0, 1, 1, 2, 1, 2, 0, 1]
    np.testing.assert_allclose(state.models, [E1 + E2, -2 * E1, E1 - E2])


@pytest.mark.parametrize(
    ("updates", "cut"),
    [
        ({0: E1, 1: -E1, 2: E1, 3: -E1}, True),
        ({0: E1, 1: E1, 2: E1, 3: -0.4 * E1}, False),  # mean (0.65, 0): not at rest
        ({0: 0.5 * E1, 1: -0.5 * E1, 2: E2 / 2, 3: -E2 / 2}, False),  # nobody longer than eps2
        ({0: 0.51 * E1, 1: -0.5 * E1, 2: E2 / 2, 3: -E2 / 2}, True),
    ],
)
def test_when_a_cluster_is_cut(updates, cut):
    method, state = state_of(4)
    told(method, state, updates)
    assert (len(state.models) == 2) == cut


@pytest.mark.parametrize("rounds", [0, MIN_ROUNDS_BEFORE_CUT - 1, MIN_ROUNDS_BEFORE_CUT])
def test_nothing_is_cut_in_the_first_twenty_rounds(rounds):
    method, state = state_of(4, rounds=rounds)
    told(method, state, {0: E1, 1: -E1, 2: E1, 3: -E1})
    assert (len(state.models) == 2) == (rounds >= 20)


def test_two_devices_stay_together():
    method, state = state_of(2)
    told(method, state, {0: E1, 1: -E1})
    assert state.labels.tolist() == [0, 0]
    np.testing.assert_array_equal(state.models, [[0.0, 0.0]])


def test_nobody_is_cut_of_whom_nothing_is_known():
    """Device 3 has never answered: no cut. Then it has; later cuts use the last update of those who are absent."""
    method, state = state_of(4)
    told(method, state, {0: E1, 1: -E1, 2: E1, 3: E1})  # mean (0.5, 0): not at rest
    method, fresh = state_of(4)
    told(method, fresh, {0: E1, 1: -E1})
    assert fresh.labels.tolist() == [0, 0, 0, 0]
    told(method, state, {0: E1, 1: -E1})
    assert state.labels.tolist() == [0, 1, 0, 0]
    np.testing.assert_allclose(state.step, [E1, -E1])  # of the active members alone
    told(method, state, {1: E1})
    np.testing.assert_allclose(state.step, [0 * E1, E1])  # nobody of the first was there


@pytest.mark.parametrize(("weights", "mean"), [("rows", [0.25, 0.75]), ("equal", [0.5, 0.5])])
def test_means_are_by_rows_or_alike(weights, mean):
    method, state = state_of(3)
    state.info.counts["train+validation"][:] = [1, 2, 3]
    told(replace(method, weights=weights), state, {0: E1, 2: E2})
    np.testing.assert_allclose(state.models, [mean])


def test_whether_a_group_is_at_rest_is_told_by_the_same_mean():
    """Opposite updates of 1 and 3 rows: their mean by rows has length 1/2, without weights it is 0."""
    for weights, groups in (("rows", 1), ("equal", 2)):
        method, state = state_of(4)
        state.info.counts["train+validation"][:] = [1, 1, 3, 3]
        told(replace(method, weights=weights, eps1=0.4, eps2=0.9), state, {0: E1, 1: E1, 2: -E1, 3: -E1})
        assert len(state.models) == groups


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_without_cuts_it_is_fedavg(goal):
    options = {"rounds": 30, "participation": 0.5, "tol": 0, "seed": 4, "dtype": "float64"}
    federation = planted(goal)
    one, other = (fit(federation, m, **options) for m in (ff.CFL(eps1=0.0, eps2=0.0, work=WORK), ff.FedAvg(work=WORK)))
    np.testing.assert_allclose(one.models, other.models, atol=1e-12)
    assert one.n_clusters == 1


def test_groups_of_lines_are_told_apart_and_devices_know_what_the_server_knows():
    """y = x and y = -x: from 0 all updates are opposite, and 12 rounds after the first cut each line is found."""
    federation = written_out(*(line(1.0 if i in (0, 3, 4) else -1.0) for i in range(6)))
    rng = np.random.default_rng(0)
    run = begun(
        federation,
        ff.CFL(eps1=0.2, eps2=0.3, work=ff.Work(steps=1, lr=0.25)),
        participation=lambda k, m: np.arange(6) if k == MIN_ROUNDS_BEFORE_CUT else rng.choice(6, 4, replace=False),
    )
    for k in range(33):
        run.round()
        np.testing.assert_array_equal(run.transport.look([PeekModel()] * 6), run.rule.current(run.state).models)
        assert len(run.state.models) == 1 or k >= MIN_ROUNDS_BEFORE_CUT
    result = run.result()
    assert result.labels.tolist() == [0, 1, 1, 0, 0, 1]
    np.testing.assert_allclose(result.models[:, 0], [1, -1, -1, 1, 1, -1], atol=1e-2)
    assert run.ledger.down == (1 + 33) * 6 * 2
    assert run.ledger.up == (32 * 4 + 6) * 2


def test_a_newcomer_goes_down_the_tree():
    """At every cut to the side of the member whose update is most like its own."""
    method, state = state_of(8)
    side = {i: (E1 if i in (0, 3, 5, 6) else -E1) for i in range(8)}
    told(method, state, side)
    told(method, state, {i: side[i] if i in (1, 2, 4, 7) else (E2 if i in (0, 6) else -E2) for i in range(8)})
    labels = method.outcome(state).labels
    known = RunSummary(
        method.outcome(state).models, labels, np.ones(8, np.int64), None, dict(method.outcome(state).kept)
    )

    talk = method.admit(known, state.info, 0)
    root = next(talk)
    assert isinstance(root, Train)
    np.testing.assert_array_equal(root.start, [0.0, 0.0])  # the model of all, when it was cut
    below = talk.send(np.array([3.0, 0.1]))
    np.testing.assert_array_equal(below.start, E1)  # the first part's model, when it was cut
    leaf = talk.send(np.array([0.5, -2.0]))
    assert isinstance(leaf, Install)
    np.testing.assert_array_equal(leaf.model, E1 - E2)
    with pytest.raises(StopIteration) as end:
        talk.send(np.empty(0))
    assert end.value.value.group == labels[3]

    talk = method.admit(known, state.info, 0)
    next(talk)
    assert (talk.send(-E1).model == -2 * E1).all()  # the other part was never cut again


def test_a_newcomer_where_nothing_was_cut():
    method, state = state_of(3, eps1=0.0)
    told(method, state, {0: E1, 1: E2})
    known = RunSummary(
        method.outcome(state).models,
        method.outcome(state).labels,
        np.ones(3, np.int64),
        None,
        dict(method.outcome(state).kept),
    )
    task = next(method.admit(known, state.info, 0))
    assert isinstance(task, Install)
    np.testing.assert_array_equal(task.model, [0.5, 0.5])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"eps1": -1.0}, "eps1 must be a number of at least 0 or auto"),
        ({"eps2": "large"}, "eps2 must be a number of at least 0 or auto"),
        ({"linkage": "ward"}, "linkage must be 'complete' or 'single'"),
        ({"weights": "sqrt"}, "weights must be 'rows' or 'equal'"),
    ],
)
def test_settings_out_of_range(settings, words):
    with pytest.raises(FedfuseError, match=words):
        ff.CFL(**settings)


@pytest.mark.parametrize("settings", [{"eps1": 0.3, "eps2": 0.3, "relative": True}, {"eps1": 0.5, "eps2": 0.5}])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_group_that_rests_before_it_may_be_cut_is_cut_all_the_same(seed, settings):
    """Exact local work: the model of all does not move after the first round, which is no end; groups follow."""
    federation = many_sites(12, 2, rows=120, seed=seed)
    result = ff.fit(federation, ff.CFL(work=ff.Work(solver="exact"), **settings), rounds=600, seed=seed)
    assert result.ari == 1
    assert result.converged


def test_a_search_is_read_again(tmp_path):
    """Its history has numbers alone, also for what is yes or no."""
    result = ff.fit(planted(), ff.CFL(work=ff.Work(solver="exact")), rounds=90, out=tmp_path / "run")
    again = ff.Result.load(tmp_path / "run")
    assert again.chosen == result.chosen
    assert again.chosen["relative"] is True
