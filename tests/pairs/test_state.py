import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfuse.core.partitions import components
from fedfuse.core.penalties import L1, MCP, SCAD, SmoothedSCAD, SquaredL2
from fedfuse.errors import FedfuseError
from fedfuse.pairs import memory
from fedfuse.pairs import state as pair_state
from fedfuse.pairs.layout import devices_of
from fedfuse.pairs.state import FusionState
from fedfuse.utils import threads as _threads
from support.textbook import Textbook

PENALTIES = [
    SmoothedSCAD(0.6, xi=1e-2),
    SmoothedSCAD(0.6),
    SCAD(0.6),
    L1(0.2),
    MCP(0.6),
    SquaredL2(0.3),
    SCAD(0.0),
]


def pull(rng, targets, state, active, strength=0.5):
    """One round of local work: each active device goes from its omega towards its target and its anchor."""
    anchors = state.anchors(active)
    return state.omega[active] + strength * (targets[active] + anchors - 2 * state.omega[active]) / 2


@pytest.fixture
def threads(monkeypatch):
    """Cut even small rounds into chunks, and give them to several threads."""
    monkeypatch.setattr(pair_state, "MIN_THREADED_NUMBERS", 0)
    monkeypatch.setattr(_threads, "MIN_PARALLEL_WORK", 0)


def assert_equal_pairs(state, book, tolerance=1e-10):
    everyone = range(state.m)
    theta = np.array([[state.theta(i, j) for j in everyone] for i in everyone])
    v = np.array([[state.v(i, j) for j in everyone] for i in everyone])
    np.testing.assert_allclose(theta, book.theta, rtol=0, atol=tolerance)
    np.testing.assert_allclose(v, book.v, rtol=0, atol=tolerance)


def assert_equal_anchors(state, book, devices, tolerance=1e-10):
    expected = np.array([book.anchor(i) for i in devices])
    np.testing.assert_allclose(state.anchors(devices), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: f"{p.name}-{p.lam}")
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("rho", [1.0, 2.5])
def test_iterates_equal_the_textbook(penalty, warm, rho):
    """50 rounds of random partial participation: equal to 1e-10."""
    rng = np.random.default_rng(1)
    m, d = 9, 7
    targets = np.repeat(rng.normal(size=(3, d)), 3, axis=0) + 0.1 * rng.normal(size=(m, d))
    start = rng.normal(size=(m, d)) if warm else np.zeros((m, d))
    state = FusionState(start, penalty, rho, warm=warm, dtype=np.float64)
    book = Textbook(start, penalty, rho, warm=warm)
    for _ in range(50):
        active = rng.choice(state.m, rng.integers(1, state.m + 1), replace=False)
        assert_equal_anchors(state, book, active)
        omegas = pull(rng, targets, state, active)
        state.update(active, omegas)
        book.update(active, omegas)
        assert_equal_pairs(state, book)
    np.testing.assert_allclose(state.norms(), np.linalg.norm(book.theta, axis=2), atol=1e-10)
    assert_equal_anchors(state, book, range(state.m))


@pytest.mark.parametrize(
    ("m", "k", "d"), [(80, 70, 3), (7, 4, 700), (3, 1, 2500)], ids=["many-active", "long", "longer"]
)
def test_large_rounds_equal_the_textbook(threads, m, k, d):
    """More active devices than a tile, rows longer than a block, several chunks and threads."""
    rng = np.random.default_rng(11)
    start = rng.normal(size=(m, d)) / np.sqrt(d)
    state = FusionState(start, SmoothedSCAD(0.6), warm=True, dtype=np.float64)
    book = Textbook(start, SmoothedSCAD(0.6), warm=True)
    for _ in range(3):
        active = rng.choice(m, k, replace=False)
        omegas = rng.normal(size=(k, d)) / np.sqrt(d)
        state.update(active, omegas)
        book.update(active, omegas)
    assert_equal_pairs(state, book)
    assert_equal_anchors(state, book, range(m))


@pytest.mark.parametrize("penalty", [SmoothedSCAD(0.6), SCAD(0.6), MCP(0.6), SCAD(0.0)], ids=lambda p: p.name)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_pairs_that_go_out_of_reach_and_come_back_equal_the_textbook(penalty, warm):
    """Far pairs have no rows; what is left in rows that are not in use is not read (it is spoilt here)."""
    rng = np.random.default_rng(13)
    m, d = 12, 5
    start = rng.normal(size=(m, d))
    state = FusionState(start, penalty, warm=warm, dtype=np.float64)
    book = Textbook(start, penalty, warm=warm)
    left = returned = 0
    for k in range(80):
        if k == 40:
            state.penalty = book.penalty = type(penalty)(1.5 * penalty.lam)  # a longer reach
        far = state.far
        idle = np.setdiff1d(np.arange(len(far)), state._where[~far])
        state._pool.rows[idle] = np.nan
        active = rng.choice(m, 4, replace=False)
        omegas = 0.9 * state.omega[active] + 0.4 * rng.normal(size=(4, d))
        state.update(active, omegas)
        book.update(active, omegas)
        assert len(np.unique(state._where[~state.far])) == (~state.far).sum()
        left, returned = left + (state.far & ~far).sum(), returned + (far & ~state.far).sum()
        assert_equal_pairs(state, book)
        assert_equal_anchors(state, book, range(m))
        np.testing.assert_allclose(state.norms(), np.linalg.norm(book.theta, axis=2), atol=1e-10)
        apart = np.where(state._square(state.far) > 0, state.distances(), np.inf).min(axis=1)
        assert all(state._bounds.within(np.array([i]), apart[i])[0] for i in range(m) if np.isfinite(apart[i]))
    assert min(left, returned) > 20 or not penalty.lam


@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(2, 40),
    d=st.integers(1, 20),
    penalty=st.sampled_from(PENALTIES),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=60, deadline=None)
def test_one_round_of_any_shape_equals_the_textbook(seed, m, d, penalty, dtype):
    rng = np.random.default_rng(seed)
    start = rng.normal(size=(m, d)).astype(dtype)
    state = FusionState(start, penalty, warm=True, dtype=dtype)
    book = Textbook(start, penalty, warm=True)
    for _ in range(3):
        active = rng.choice(m, rng.integers(1, m + 1), replace=False)
        omegas = rng.normal(size=(active.size, d)).astype(dtype)
        state.update(active, omegas)
        book.update(active, omegas)
    assert_equal_anchors(state, book, range(m), tolerance=1e-10 if dtype == np.float64 else 1e-5)


def test_pairs_are_antisymmetric_and_untouched_pairs_keep_every_bit():
    rng = np.random.default_rng(2)
    state = FusionState(rng.normal(size=(12, 5)), SmoothedSCAD(0.8), warm=True)
    for _ in range(10):
        active = rng.choice(12, 4, replace=False)
        idle = np.setdiff1d(np.arange(12), active)
        before = {(i, j): (state.theta(i, j), state.v(i, j)) for i in idle for j in idle}
        state.update(active, state.omega[active] + rng.normal(size=(4, 5)))
        for (i, j), (theta, v) in before.items():
            assert (state.theta(i, j) == theta).all()
            assert (state.v(i, j) == v).all()
        for i in range(12):
            for j in range(12):
                assert (state.theta(i, j) == -state.theta(j, i)).all()
                assert (state.v(i, j) == -state.v(j, i)).all()


def test_incremental_sums_stay_true_with_liars_of_size_100():
    """float32: after 300 rounds the kept sums still equal those of the definition."""
    rng = np.random.default_rng(3)
    state = FusionState(rng.normal(size=(30, 11)), SmoothedSCAD(0.6), warm=True)
    for _ in range(300):
        active = rng.choice(30, 9, replace=False)
        omegas = state.omega[active] + 0.1 * rng.normal(size=(9, 11))
        omegas[active < 6] = 100 * rng.normal(size=((active < 6).sum(), 11))
        state.update(active, omegas)
    zeta = [np.mean([state.omega[j] + state.theta(i, j) - state.v(i, j) for j in range(30)], axis=0) for i in range(30)]
    np.testing.assert_allclose(state.anchors(range(30)), zeta, atol=1e-4)
    # a liar beyond the reach of the penalty does not move an honest device's anchor
    honest = state.anchors(range(6, 30))
    assert np.abs(honest - state.omega[6:]).max() < 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_result_does_not_depend_on_threads_or_on_the_order_of_devices(threads, dtype):
    def run(threads, shuffle):
        _threads.keep_to(threads)
        rng = np.random.default_rng(4)
        state = FusionState(rng.normal(size=(120, 6)), SmoothedSCAD(0.9), warm=True, dtype=dtype)
        for _ in range(5):
            active = rng.choice(120, 40, replace=False)
            omegas = rng.normal(size=(40, 6))
            order = np.argsort(active) if shuffle else slice(None)
            residuals = state.update(active[order], omegas[order])
        return state, residuals

    try:
        first, residuals = run(1, False)
        for other, its_residuals in (run(None, False), run(None, True)):
            assert its_residuals == residuals
            for name, array in first.pack().items():
                assert (array == other.pack()[name]).all(), name
    finally:
        _threads.keep_to(None)


@given(m=st.integers(1, 60), share=st.floats(0, 1), chunks=st.integers(1, 8), seed=st.integers(0, 99))
def test_chunks_hold_every_partner_once_and_about_the_same_work(m, share, chunks, seed):
    k = max(1, round(share * m))
    active = np.sort(np.random.default_rng(seed).choice(m, k, replace=False))
    rank, bounds = pair_state._cut(m, active, chunks)
    assert bounds[0] == 0
    assert bounds[-1] == m
    assert (np.diff(bounds) >= 0).all()
    assert rank[active].tolist() == list(range(k))
    work = np.where(rank < 0, k, rank)
    parts = [work[bounds[c] : bounds[c + 1]].sum() for c in range(chunks)]
    assert max(parts) <= work.sum() / chunks + k


def test_huge_lambda_is_consensus_and_lambda_zero_is_no_influence():
    rng = np.random.default_rng(5)
    targets = rng.normal(size=(6, 4))
    state = FusionState(np.zeros((6, 4)), SmoothedSCAD(1e4, xi=1e-6), dtype=np.float64)
    for _ in range(600):
        # exact minimiser of ||w - target||^2/2 + rho/2 ||w - anchor||^2
        state.update(range(6), (targets + state.anchors(range(6))) / 2)
    np.testing.assert_allclose(state.omega, np.tile(targets.mean(axis=0), (6, 1)), atol=1e-3)

    free = FusionState(rng.normal(size=(6, 4)), SmoothedSCAD(0.0), warm=True)
    free.update([0, 1], rng.normal(size=(2, 4)))
    np.testing.assert_allclose(free.anchors(range(6)), free.omega, atol=1e-6)


def test_optimality_at_convergence():
    """KKT: the gradient of f_i plus (1/m) sum_j g'(||theta_ij||) theta_ij / ||theta_ij|| vanishes."""
    rng = np.random.default_rng(6)
    targets = np.array([[0.0, 0], [0.2, 0], [0.1, 0.1], [5, 5], [5.1, 5], [5, 5.2]])
    penalty = SmoothedSCAD(0.9, xi=1e-2)  # the smaller xi, the slower
    state = FusionState(targets, penalty, warm=True, dtype=np.float64)
    for _ in range(3000):
        active = rng.choice(6, 3, replace=False)
        state.update(active, (targets[active] + state.anchors(active)) / 2)
    diff = state.omega[:, None] - state.omega[None]
    norms = np.linalg.norm(diff, axis=2)
    direction = diff / np.maximum(norms, 1e-300)[..., None]
    gradient = state.omega - targets + (penalty.derivative(norms)[..., None] * direction).mean(axis=1)
    assert np.abs(gradient).max() < 1e-10
    np.testing.assert_allclose(state.omega[3:].mean(axis=0), targets[3:].mean(axis=0), atol=1e-10)


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: f"{p.name}-{p.lam}")
def test_residuals_are_those_of_the_definition(penalty):
    rng = np.random.default_rng(7)
    start = rng.normal(size=(5, 3))
    state = FusionState(start, penalty, warm=True, dtype=np.float64)
    book = Textbook(start, penalty, warm=True)
    for _ in range(5):
        active, omegas = [1, 3], rng.normal(size=(2, 3))
        before, theta = book.omega.copy(), book.theta.copy()
        book.update(active, omegas)
        residuals = state.update(active, omegas)
        pairs = [(i, j) for i in range(5) for j in range(i) if {i, j} & {1, 3}]
        primal = np.mean([np.sum((book.omega[i] - book.omega[j] - book.theta[i, j]) ** 2) for i, j in pairs])
        dual = np.mean([np.sum((book.theta[i, j] - theta[i, j]) ** 2) for i, j in pairs])
        moved = np.mean(np.sum((book.omega[active] - before[active]) ** 2, axis=1))
        scale = np.sqrt(np.mean(np.sum(book.omega**2, axis=1)))
        expected = np.sqrt([primal, dual, moved]) / scale
        found = [residuals.primal, residuals.dual, residuals.moved]
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-15)


def test_small_residuals_keep_their_digits_in_float32():
    """Near convergence residuals are differences of large numbers; stopping depends on them."""

    def run(dtype):
        rng = np.random.default_rng(12)
        groups = np.repeat(rng.normal(size=(2, 200)), 5, axis=0)
        state = FusionState(groups + 0.01 * rng.normal(size=groups.shape), SmoothedSCAD(0.9), dtype=dtype)
        for _ in range(40):
            state.update(range(10), (groups + state.anchors(range(10))) / 2)
        return state.update(range(10), state.omega + 1e-5 * rng.normal(size=groups.shape))

    exact, rough = run(np.float64), run(np.float32)
    assert 0 < exact.dual < 1e-4
    np.testing.assert_allclose([rough.primal, rough.dual], [exact.primal, exact.dual], rtol=0.01)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_packing_keeps_every_bit(dtype):
    rng = np.random.default_rng(9)
    state = FusionState(rng.normal(size=(7, 3)), SmoothedSCAD(0.7), 1.5, warm=True, dtype=dtype)
    state.update([1, 2], rng.normal(size=(2, 3)))
    back = FusionState.unpack(state.pack(), state.penalty)
    for name, array in state.pack().items():
        assert back.pack()[name].dtype == array.dtype
        assert (back.pack()[name] == array).all()
    with pytest.raises(FedfuseError, match="do not fit"):
        FusionState.unpack({**state.pack(), "s": state.s[1:]}, state.penalty)


def test_distances_match_the_definition():
    rng = np.random.default_rng(10)
    state = FusionState(1000 + rng.normal(size=(8, 5)), SmoothedSCAD(0.5), dtype=np.float64)
    expected = np.linalg.norm(state.omega[:, None] - state.omega[None], axis=2)
    np.testing.assert_allclose(state.distances(), expected, atol=1e-10)


def test_memory_is_a_quarter_of_the_textbook():
    state = FusionState(np.zeros((100, 610)), SmoothedSCAD(0.6))
    assert state.nbytes / (2 * 100 * 100 * 610 * 4) <= 0.26


@pytest.mark.parametrize(
    ("devices", "omegas", "words"),
    [
        ([0, 9], np.zeros((2, 3)), "0 … 3"),
        ([0, 0], np.zeros((2, 3)), "twice"),
        ([0], np.zeros((1, 4)), "shape"),
        ([-1], np.zeros((1, 3)), "0 … 3"),
    ],
)
@pytest.mark.parametrize("graph", [None, "knn:2"])
def test_bad_rounds_are_refused(devices, omegas, words, graph):
    state = FusionState(np.zeros((4, 3)), SmoothedSCAD(0.6), graph=graph)
    with pytest.raises(FedfuseError, match=words):
        state.update(devices, omegas)


def test_odd_calls():
    state = FusionState(np.zeros((4, 3)), SmoothedSCAD(0.6))
    assert state.update([], np.zeros((0, 3))).largest == 0
    with pytest.raises(FedfuseError, match="one row per device"):
        FusionState(np.zeros(3), SmoothedSCAD(0.6))
    with pytest.raises(FedfuseError, match="rho must exceed"):
        FusionState(np.zeros((4, 3)), SmoothedSCAD(0.6), rho=0.2)


@pytest.mark.parametrize("d", [3, 300])
def test_uploads_may_be_a_view_of_the_state_or_not_to_be_written(d):
    """Devices swap their parameters; short rows, and rows that are stored with zeros behind them."""
    rng = np.random.default_rng(14)
    start = rng.normal(size=(4, d)) / np.sqrt(d)
    states = [FusionState(start, SmoothedSCAD(0.6), dtype=np.float64) for _ in range(3)]
    frozen = start.copy()
    frozen.flags.writeable = False
    for state, uploads in zip(states, (start.copy(), states[1].omega, frozen), strict=True):
        state.update([3, 2, 1, 0], uploads)
        for name, array in state.pack().items():
            np.testing.assert_array_equal(array, states[0].pack()[name])
    assert states[1].pack()["delta"].shape[1] == d
    np.testing.assert_array_equal(states[1].omega, start[::-1])


def test_a_device_that_sends_nan_is_far_from_nobody():
    """It spoils its own pairs, the others go on."""
    state = FusionState(np.diag([10.0, 20.0, 30.0]), SmoothedSCAD(0.6), warm=True, dtype=np.float64)
    state.update([0], np.full((1, 3), np.nan))
    assert state.far.tolist() == [False, False, True]
    assert np.isfinite(state.theta(1, 2)).all()


def spread_out(m=40, d=300, groups=4):
    rng = np.random.default_rng(15)
    centres = 9 * rng.normal(size=(groups, d)) / np.sqrt(d)
    return centres[np.arange(m) % groups] + rng.normal(size=(m, d)) / 4 / np.sqrt(d)


def wandering_rounds(start, n=30):
    """Groups, then everybody for themselves, then groups again: pairs come and go."""
    rng = np.random.default_rng(16)
    for k in range(n):
        active = np.sort(rng.choice(len(start), 12, replace=False))
        away = 3 if 10 <= k < 20 else 0.1
        yield active, start[active] + away * rng.normal(size=(12, start.shape[1])) / np.sqrt(start.shape[1])


def test_memory_is_that_of_the_pairs_within_reach():
    start = spread_out()
    state = FusionState(start, SmoothedSCAD(0.6), warm=True)
    assert state._pool.used == 0
    state.update(range(40), start)
    assert (~state.far).sum() == 4 * 10 * 9 // 2
    dense = FusionState(start, SmoothedSCAD(0.6)).nbytes
    assert state.nbytes < 0.25 * dense


def test_moving_rows_together_changes_nothing(monkeypatch):
    start = spread_out()
    plain = FusionState(start, SmoothedSCAD(0.6), warm=True)
    for turn in wandering_rounds(start):
        plain.update(*turn)
    monkeypatch.setattr("fedfuse.pairs.memory.MIN_RETURNED_BYTES", 0)
    tidy, sizes = FusionState(start, SmoothedSCAD(0.6), warm=True), []
    for turn in wandering_rounds(start):
        tidy.update(*turn)
        sizes.append(tidy._pool.used)
    assert (np.diff(sizes) < 0).any(), "no row was given back"
    for name, array in plain.pack().items():
        np.testing.assert_array_equal(tidy.pack()[name], array)


@pytest.mark.parametrize("large", [0, np.inf], ids=["several chunks", "one chunk"])
def test_without_memory_the_round_is_refused_and_undone(large, monkeypatch):
    start = spread_out()
    monkeypatch.setattr(memory, "free_memory", lambda: 100_000)
    state = FusionState(start, SmoothedSCAD(0.6), warm=True)
    monkeypatch.undo()
    monkeypatch.setattr(pair_state, "MIN_THREADED_NUMBERS", large)
    state.update([0], start[:1])
    plain = FusionState.unpack(state.pack(), state.penalty)
    with pytest.raises(FedfuseError, match=r"take 219 kB, and 100 kB are free: use a warm start"):
        state.update(range(40), start + 0.01)
    np.testing.assert_array_equal(state.omega, plain.omega)
    for other in (state, plain):
        other.update([4], start[4:5] + 0.02)
    np.testing.assert_array_equal(state.anchors(range(40)), plain.anchors(range(40)))


def test_a_chunk_that_has_its_rows_waits_for_one_that_may_not_get_them(monkeypatch):
    """Else its pairs would be ahead of the others when the round is refused."""
    monkeypatch.setattr(pair_state, "MIN_THREADED_NUMBERS", 0)
    rng = np.random.default_rng(0)
    start = rng.normal(size=(50, 20))
    start[40:] += 100 * np.arange(1, 11)[:, None]  # in the second of two chunks, and far from all
    monkeypatch.setattr(memory, "free_memory", lambda: 64_000)
    state = FusionState(start, SmoothedSCAD(10.0), warm=True)
    state.update(range(50), start)
    before = {name: array.copy() for name, array in state.pack().items()}
    new = start + 0.1 * rng.normal(size=start.shape)
    new[40:] = new[40]
    with pytest.raises(FedfuseError, match="are free"):
        state.update(range(50), new)
    for name, array in state.pack().items():
        if name != "r":  # bounds of far pairs' norms may have got lower
            np.testing.assert_array_equal(array, before[name])


def test_a_cold_start_needs_all_pairs(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 10_000_000)
    with pytest.raises(FedfuseError, match="4,950 pairs"):
        FusionState(np.zeros((100, 610)), SmoothedSCAD(0.6))


@given(seed=st.integers(0, 2**32 - 1), m=st.integers(2, 30), nu=st.floats(0.01, 4))
def test_labels_are_the_components_of_all_norms(seed, m, nu):
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 3, (m, 2)) + 0.2 * rng.normal(size=(m, 2))
    state = FusionState(start, SmoothedSCAD(0.3), warm=True, dtype=np.float64)
    for _ in range(3):
        active = rng.choice(m, rng.integers(1, m + 1), replace=False)
        state.update(active, state.anchors(active))
    np.testing.assert_array_equal(state.labels(nu), components(state.norms(), nu))


def test_devices_of_a_pair():
    lo, hi = devices_of(np.arange(30 * 29 // 2))
    assert [(a, b) for b in range(30) for a in range(b)] == list(zip(lo, hi, strict=True))
    last = np.array([70_000 * 69_999 // 2 - 1])
    assert [x.item() for x in devices_of(last)] == [69_998, 69_999]


def two_groups():
    """Six devices here, six there; and which pairs are between them."""
    start = np.repeat([[0.0] * 4, [30.0] * 4], 6, axis=0) + 0.1 * np.random.default_rng(3).normal(size=(12, 4))
    lo, hi = devices_of(np.arange(66))
    return start, (lo < 6) & (hi >= 6)


def test_far_pairs_are_looked_at_again_only_when_they_may_be_near(monkeypatch):
    """Two groups that come closer step by step: until then nothing is looked at, and then nothing is missed."""
    start, between = two_groups()
    state = FusionState(start, SmoothedSCAD(1.0), warm=True, dtype=np.float64)
    book = Textbook(start, SmoothedSCAD(1.0), warm=True)
    looks, enter = [], FusionState._enter

    def noted(self, turn, touched):
        enter(self, turn, touched)
        looks.append(self._bounds.within(turn.active, self._reach).any())

    monkeypatch.setattr(FusionState, "_enter", noted)
    rng = np.random.default_rng(3)
    for k in range(250):
        active = rng.choice(12, 5, replace=False) if k else np.arange(12)
        omegas = state.omega[active] * (0.95 if k else 1.0)
        state.update(active, omegas)
        book.update(active, omegas)
        assert_equal_pairs(state, book)
        assert state.far[between].all() or k > 10
    assert not state.far[between].all()
    assert not any(looks[:6])


def test_devices_that_go_to_and_fro_for_ever_stay_where_they_are():
    start, between = two_groups()
    state, book = FusionState(start, SmoothedSCAD(1.0), warm=True), Textbook(start, SmoothedSCAD(1.0), warm=True)
    for k in range(60):
        omegas = start[::2] + (-1) ** k
        state.update(range(0, 12, 2), omegas)
        book.update(range(0, 12, 2), omegas)
    assert state.far[between].all()
    assert_equal_anchors(state, book, range(12), 1e-4)


def test_nothing_is_known_of_a_device_that_sends_no_numbers():
    start, between = two_groups()
    state = FusionState(start, SmoothedSCAD(1.0), warm=True)
    state.update(range(12), start)
    state.update([2], np.full((1, 4), np.nan))
    lo, hi = devices_of(np.arange(66))
    of_it = (lo == 2) | (hi == 2)
    assert not state.far[of_it].any()
    state.update(range(6), start[:6] + 0.01)
    assert state.far[between & ~of_it].all()
