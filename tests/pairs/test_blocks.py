"""State that is cut by coordinates: the same iterates as the plain state, in threads and on a real Ray cluster."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfuse as ff
from fedfuse.core.penalties import L1, MCP, SCAD, SmoothedSCAD, SquaredL2
from fedfuse.errors import FedfuseError
from fedfuse.pairs import ray_blocks
from fedfuse.pairs.blocks import COLUMNS_PER_BLOCK, MAX_BLOCKS
from fedfuse.pairs.state import FusionState
from fedfuse.utils import threads as _threads
from pairs.test_state import assert_equal_anchors, assert_equal_pairs, pull, spread_out, wandering_rounds
from support.planted import planted
from support.textbook import Textbook

PENALTIES = [SmoothedSCAD(0.6), L1(0.2), MCP(0.6), SquaredL2(0.3), SCAD(0.0)]


def pair_of_states(start, penalty=PENALTIES[0], *, backend="threads", blocks=3, dtype=np.float64, **options):
    plain = FusionState(start, penalty, dtype=dtype, **options)
    return plain, FusionState(start, penalty, dtype=dtype, backend=backend, blocks=blocks, **options)


def assert_same(cut, plain, tolerance=1e-10):
    mine, theirs = cut.pack(), plain.pack()
    for packed in (mine, theirs):
        packed["r"] = packed["r"][packed["near"]]  # of far pairs it is some lower bound, which may differ
    for name, array in theirs.items():
        np.testing.assert_allclose(mine[name], array, rtol=0, atol=tolerance, err_msg=name)
    everyone = range(plain.m)
    np.testing.assert_allclose(cut.anchors(everyone), plain.anchors(everyone), rtol=0, atol=tolerance)
    np.testing.assert_allclose(cut.norms(), plain.norms(), atol=1e-7)
    np.testing.assert_allclose(cut.distances(), plain.distances(), atol=1e-7)
    np.testing.assert_array_equal(cut.labels(0.3), plain.labels(0.3))


def assert_same_residuals(a, b):
    np.testing.assert_allclose([a.primal, a.dual, a.moved], [b.primal, b.dual, b.moved], rtol=1e-8, atol=1e-12)


def whole_life(plain, cut):
    """Rounds, newcomers, another penalty: all that a state can meet."""
    rng = np.random.default_rng(20)
    wide = plain.d**-0.5

    def rounds(n):
        for _ in range(n):
            active = rng.choice(plain.m, max(1, plain.m // 3), replace=False)
            omegas = 0.9 * plain.omega[active] + 0.5 * wide * rng.normal(size=(active.size, plain.d))
            assert_same_residuals(cut.update(active, omegas), plain.update(active, omegas))
        assert_same(cut, plain)

    rounds(6)
    newcomers = wide * rng.normal(size=(2, plain.d))
    np.testing.assert_array_equal(cut.admit(newcomers), plain.admit(newcomers))
    rounds(3)
    for state in (plain, cut):
        state.penalty = SmoothedSCAD(0.9)
    rounds(3)
    for i, j in ((0, 1), (plain.m - 1, 2), (3, 3)):
        np.testing.assert_allclose(cut.theta(i, j), plain.theta(i, j), atol=1e-10)
        np.testing.assert_allclose(cut.v(i, j), plain.v(i, j), atol=1e-10)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("blocks", [1, 4])
def test_a_whole_life(warm, blocks):
    start = np.random.default_rng(21).normal(size=(9, 30)) / np.sqrt(30)
    whole_life(*pair_of_states(start, blocks=blocks, warm=warm))


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: f"{p.name}-{p.lam}")
def test_iterates_equal_the_textbook(penalty):
    rng = np.random.default_rng(22)
    start = rng.normal(size=(9, 7))
    targets = np.repeat(rng.normal(size=(3, 7)), 3, axis=0) + 0.1 * rng.normal(size=(9, 7))
    state = FusionState(start, penalty, warm=True, dtype=np.float64, backend="threads", blocks=3)
    book = Textbook(start, penalty, warm=True)
    for _ in range(20):
        active = rng.choice(9, rng.integers(1, 10), replace=False)
        omegas = pull(rng, targets, state, active)
        state.update(active, omegas)
        book.update(active, omegas)
        assert_equal_pairs(state, book)
        assert_equal_anchors(state, book, range(9))


@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(2, 30),
    d=st.integers(1, 40),
    blocks=st.integers(1, 9),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=40, deadline=None)
def test_any_number_of_blocks_gives_the_same(seed, m, d, blocks, dtype):
    rng = np.random.default_rng(seed)
    start = rng.normal(size=(m, d)) / np.sqrt(d)
    plain, cut = pair_of_states(start, warm=True, blocks=blocks, dtype=dtype)
    assert cut.blocks == min(blocks, d)
    for _ in range(3):
        active = rng.choice(m, rng.integers(1, m + 1), replace=False)
        omegas = (plain.omega[active] + 0.5 * rng.normal(size=(active.size, d)) / np.sqrt(d)).astype(dtype)
        plain.update(active, omegas)
        cut.update(active, omegas)
    tolerance = 1e-10 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(cut.anchors(range(m)), plain.anchors(range(m)), rtol=0, atol=tolerance)


def test_long_rows_in_many_tiles_and_threads(monkeypatch):
    """Rows longer than a tile; what comes out does not depend on the number of threads."""
    monkeypatch.setattr(_threads, "MIN_PARALLEL_WORK", 0)
    start = spread_out(m=12, d=2500)
    plain, cut = pair_of_states(start, warm=True)
    for active, omegas in wandering_rounds(start, n=6):
        plain.update(active, omegas)
        cut.update(active, omegas)
    assert_same(cut, plain)


def test_blocks_by_default_depend_on_the_length_alone():
    assert FusionState(np.zeros((2, 10)), SCAD(0.5), backend="threads").blocks == 1
    assert FusionState(np.zeros((2, 3 * COLUMNS_PER_BLOCK)), SCAD(0.5), backend="threads").blocks == 3
    assert FusionState(np.zeros((2, 50 * COLUMNS_PER_BLOCK)), SCAD(0.5), backend="threads").blocks == MAX_BLOCKS


def test_rows_that_are_given_back_and_moved_together(monkeypatch):
    monkeypatch.setattr("fedfuse.pairs.memory.MIN_RETURNED_BYTES", 0)
    start = spread_out()
    plain, cut = pair_of_states(start, warm=True)
    for turn in wandering_rounds(start):
        plain.update(*turn)
        cut.update(*turn)
    assert_same(cut, plain)
    assert cut.nbytes < 0.6 * FusionState(start, plain.penalty, dtype=np.float64).nbytes


def test_packed_states_change_places(tmp_path):
    """What one kind of state packs, the other unpacks; a file says nothing of blocks."""
    start = spread_out(m=12, d=30)
    plain, cut = pair_of_states(start, warm=True)
    for state in (plain, cut):
        state.update(range(12), start + 0.01)
    again = FusionState.unpack(cut.pack(), cut.penalty)
    assert type(again) is FusionState
    cut.save(tmp_path / "state.npz")
    loaded = FusionState.load(tmp_path / "state.npz", backend="threads", blocks=5)
    assert loaded.blocks == 5
    for state in (again, loaded, cut):
        state.update([3, 1], start[:2])
    plain.update([3, 1], start[:2])
    for state in (again, loaded, cut):
        assert_same(state, plain)


@pytest.mark.parametrize("memory", [200_000])
def test_a_round_that_memory_does_not_allow_is_undone(memory, tmp_path):
    start = spread_out()
    plain, cut = pair_of_states(start, warm=True, memory=memory)
    for state in (plain, cut):
        state.update([0], start[:1])
        with pytest.raises(FedfuseError, match="are allowed: start warm"):
            state.update(range(40), start + 0.01)
        np.testing.assert_array_equal(state.omega[1:], start[1:])
        state.update([4], start[4:5] + 0.02)
    np.testing.assert_allclose(cut.anchors(range(40)), plain.anchors(range(40)), rtol=0, atol=1e-10)
    spilt = FusionState(
        start, plain.penalty, warm=True, dtype=np.float64, memory=memory, spill=tmp_path, backend="threads", blocks=3
    )
    spilt.update(range(40), start + 0.01)
    free = FusionState(start, plain.penalty, warm=True, dtype=np.float64)
    free.update(range(40), start + 0.01)
    assert_same(spilt, free)


def test_nan_spoils_its_own_pairs_only():
    state = FusionState(
        np.diag([10.0, 20.0, 30.0]), SmoothedSCAD(0.6), warm=True, dtype=np.float64, backend="threads", blocks=2
    )
    state.update([0], np.full((1, 3), np.nan))
    assert state.far.tolist() == [False, False, True]
    assert np.isfinite(state.theta(1, 2)).all()


def test_odd_calls():
    state = FusionState(np.zeros((4, 3)), SmoothedSCAD(0.6), backend="threads")
    assert state.update([], np.zeros((0, 3))).largest == 0
    with pytest.raises(ValueError, match="read-only"):
        state.omega[0] = 1
    with pytest.raises(FedfuseError, match="0 … 3"):
        state.anchors([4])
    with pytest.raises(FedfuseError, match="3 parameters"):
        state.admit(np.zeros(4))
    with pytest.raises(FedfuseError, match="one row per device"):
        FusionState(np.zeros(3), SmoothedSCAD(0.6), backend="threads")
    with pytest.raises(FedfuseError, match="'threads' or 'ray', got 'spark'"):
        FusionState(np.zeros((4, 3)), SmoothedSCAD(0.6), backend="spark")
    with pytest.raises(FedfuseError, match="at least 1"):
        ff.FPFC(lam=0.6, backend="threads", blocks=0)
    with pytest.raises(FedfuseError, match="need a backend"):
        ff.FPFC(lam=0.6, blocks=2)
    with pytest.raises(FedfuseError, match="need a backend"):
        FusionState(np.zeros((4, 3)), SmoothedSCAD(0.6), blocks=2)


def test_runs_with_blocks_and_goes_on_where_it_stopped(tmp_path):
    federation = planted(m=8, p=12, n=30)
    work = ff.Work(steps=2, lr=0.05)
    runs = [
        ff.fit(federation, ff.FPFC(lam=0.3, refit=False, work=work, **room), rounds=6, seed=0, dtype="float64")
        for room in ({}, {"backend": "threads", "blocks": 3})
    ]
    np.testing.assert_allclose(runs[1].models, runs[0].models, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(runs[1].labels, runs[0].labels)


def test_without_ray_the_message_says_what_to_install():
    words = (
        "import sys; sys.modules['ray'] = None\n"
        "import numpy as np, fedfuse as ff\n"
        "try: ff.FusionState(np.zeros((2, 2)), ff.SCAD(0.5), backend='ray')\n"
        "except ff.FedfuseError as problem: print(problem)\n"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout == "backend 'ray' needs Ray, which is not installed: pip install 'fedfuse[ray]'\n"


def test_ray_is_not_imported_unless_it_is_used():
    words = (
        "import sys, numpy as np, fedfuse as ff\n"
        "ff.FusionState(np.zeros((2, 2)), ff.SCAD(0.5), backend='threads'); ff.FPFC(backend='ray')\n"
        "assert 'ray' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", words], check=True)


# ---------------------------------------------------------------------------------------- on a real Ray cluster


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="pip install 'fedfuse[ray]'")
    ray_blocks.start(ray, num_cpus=2, object_store_memory=100_000_000, include_dashboard=False)
    yield ray
    ray.shutdown()


def test_on_ray(cluster):
    """All that a state can meet, on two actors."""
    start = np.random.default_rng(23).normal(size=(9, 30)) / np.sqrt(30)
    plain, cut = pair_of_states(start, backend="ray", blocks=None, warm=True)
    assert cut.blocks == 2
    whole_life(plain, cut)


@pytest.mark.slow
def test_a_packed_state_goes_to_ray(cluster):
    start = spread_out(m=12, d=30)
    plain = FusionState(start, SmoothedSCAD(0.6), warm=True, dtype=np.float64)
    plain.update(range(12), start + 0.01)
    cut = FusionState.unpack(plain.pack(), plain.penalty, backend="ray", blocks=3)
    for state in (plain, cut):
        state.update([3, 1], start[:2])
    assert_same(cut, plain)


@pytest.mark.slow
def test_a_refused_round_on_ray(cluster):
    """One line, not the traceback of another process; and the state goes on."""
    start = spread_out()
    small = FusionState(start, SmoothedSCAD(0.6), warm=True, memory=100_000, backend="ray", blocks=2)
    with pytest.raises(FedfuseError, match="are allowed: start warm") as refused:
        small.update(range(40), start + 0.01)
    assert "\n" not in str(refused.value)
    assert small.update([4], start[4:5]).moved == 0


@pytest.mark.slow
def test_a_method_runs_on_ray(cluster):
    federation, work = planted(m=6, p=12, n=30), ff.Work(steps=2, lr=0.05)
    runs = [
        ff.fit(federation, ff.FPFC(lam=0.3, refit=False, work=work, **room), rounds=3, seed=0, dtype="float64")
        for room in ({}, {"backend": "ray"})
    ]
    np.testing.assert_allclose(runs[1].models, runs[0].models, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_an_actor_that_dies_is_named(cluster):
    state = FusionState(np.zeros((3, 4)), SCAD(0.5), backend="ray", blocks=2)
    cluster.kill(state._executor._actors[0])
    with pytest.raises(FedfuseError, match="is gone"):
        state.anchors([0])
