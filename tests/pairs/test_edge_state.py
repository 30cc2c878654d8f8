import subprocess
import sys

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.core.penalties import L1, MCP, SmoothedSCAD
from fedfuse.errors import FedfuseError
from fedfuse.pairs import edge_parts, edge_state
from fedfuse.pairs.neighbour_graph import Edges, check_graph, nearest_neighbours, neighbour_edges
from fedfuse.pairs.state import FusionState
from fedfuse.utils import threads
from support.textbook import EdgeTextbook

PENALTIES = [SmoothedSCAD(0.6), L1(0.2), MCP(0.6)]


def grouped(m=40, d=5, groups=4, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    return 3 * rng.normal(size=(groups, d))[np.arange(m) % groups] + noise * rng.normal(size=(m, d))


def rounds(state, targets, n, seed=1):
    """Devices, and their new parameters: from omega towards target and anchor."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        active = rng.choice(state.m, rng.integers(1, state.m + 1), replace=False)
        yield active, state.omega[active] + 0.25 * (targets[active] + state.anchors(active) - 2 * state.omega[active])


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.name)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_all_neighbours_are_all_pairs(penalty, warm):
    targets = grouped(24)
    start = targets if warm else np.zeros_like(targets)
    dense = FusionState(start, penalty, warm=warm, dtype=np.float64)
    graph = FusionState(start, penalty, warm=warm, dtype=np.float64, graph="knn:23")
    for active, new in rounds(dense, targets, 50):
        np.testing.assert_allclose(graph.anchors(active), dense.anchors(active), atol=1e-10)
        a, b = dense.update(active, new), graph.update(active, new)
        np.testing.assert_allclose([a.primal, a.dual, a.moved], [b.primal, b.dual, b.moved], atol=1e-10)
    np.testing.assert_allclose(graph.norms(), dense.norms(), atol=1e-10)
    np.testing.assert_allclose(graph.heights(), dense.heights(), atol=1e-10)
    assert (graph.labels(0.1) == dense.labels(0.1)).all()


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.name)
def test_iterates_equal_the_textbook(penalty, monkeypatch):
    """50 rounds of random participation on a sparse graph, in several threads and chunks."""
    monkeypatch.setattr(edge_parts, "JOB_SIZE", 7)
    monkeypatch.setattr(threads, "MIN_PARALLEL_WORK", 0)
    monkeypatch.setattr(edge_state, "MAX_STRETCHED_SHARE", 1.0)  # always the same edges
    targets = grouped()
    state = FusionState(targets, penalty, warm=True, dtype=np.float64, graph="knn:4")
    book = EdgeTextbook(targets, penalty, zip(*(each.tolist() for each in state.edges), strict=True), warm=True)
    for active, new in rounds(state, targets, 50):
        np.testing.assert_allclose(state.anchors(active), [book.anchor(i) for i in active], atol=1e-10)
        state.update(active, new)
        book.update(active, new)
    for i, j in book.edges:
        np.testing.assert_allclose(state.theta(j, i), book.theta[j, i], atol=1e-10)
        np.testing.assert_allclose(state.v(i, j), book.v[i, j], atol=1e-10)


@pytest.mark.parametrize("d", [3, 20], ids=["tree", "products"])
def test_neighbours_are_the_nearest(d):
    points = np.random.default_rng(0).normal(size=(80, d))
    apart = np.linalg.norm(points[:, None] - points, axis=2) + np.diag(np.full(80, np.inf))
    expected = np.sort(np.argsort(apart, axis=1)[:, :6], axis=1)
    np.testing.assert_array_equal(np.sort(nearest_neighbours(points, 6), axis=1), expected)


@pytest.mark.parametrize("d", [2, 20])
def test_graph_is_connected_also_where_points_coincide(d):
    points = np.repeat(grouped(12, d, 12), 30, axis=0)
    lo, hi = edges = neighbour_edges(points, 3)
    assert edges.components(len(points)).max() == 0
    assert (lo < hi).all()
    assert len(set(zip(lo.tolist(), hi.tolist(), strict=True))) == lo.size
    assert (np.bincount(np.concatenate(edges)) >= 3).all()


def test_spanning_tree_may_have_edges_of_length_zero():
    edges = Edges.of(np.array([0, 1, 0, 2]), np.array([1, 2, 2, 3]), 4)  # 01 02 12 23
    assert sorted(edges.spanning(np.array([0.0, 5.0, 0.0, 1.0]), 4)) == [0, 2, 3]


def test_devices_that_have_not_moved_have_no_neighbours():
    targets = grouped()
    state = FusionState(np.zeros_like(targets), SmoothedSCAD(0.6), dtype=np.float64, graph="knn:5")
    assert state.s.size == 0
    np.testing.assert_array_equal(state.anchors([0, 7]), 0)
    state.update(np.arange(20), targets[:20])
    assert max(each.max() for each in state.edges) < 20
    state.update(np.arange(20, 40), targets[20:])
    assert state.edges.components(40).max() == 0


def test_neighbours_are_renewed_when_they_have_parted():
    rng = np.random.default_rng(0)
    state = FusionState(rng.normal(size=(40, 5)), SmoothedSCAD(0.6), warm=True, dtype=np.float64, graph="knn:4")
    targets = 5 * grouped()
    state.update(np.arange(40), targets)
    lo, hi = state.edges
    assert (lo % 4 == hi % 4).mean() > 0.9
    kept = state.pack()["delta"]
    state.update([0], targets[:1])
    assert state.pack()["delta"].shape == kept.shape  # they have not parted again


def test_a_state_comes_back_from_its_arrays():
    targets = grouped()
    state = FusionState(np.zeros_like(targets), SmoothedSCAD(0.6), graph="knn:5")
    for active, new in rounds(state, targets, 10):
        state.update(active, new)
    again = FusionState.unpack(state.pack(), state.penalty, graph="knn:5")
    for active, new in rounds(state, targets, 10, seed=2):
        state.update(active, new)
        again.update(active, new)
    assert all((a == b).all() for a, b in zip(state.pack().values(), again.pack().values(), strict=True))
    with pytest.raises(FedfuseError, match="do not fit"):
        FusionState.unpack({**state.pack(), "s": state.s[1:]}, state.penalty, graph="knn:5")


@pytest.fixture
def parts_in_this_process(monkeypatch):
    monkeypatch.setattr(edge_state, "RayParts", edge_parts.LocalParts)


def whole_life(one, many):
    """Rounds from a common start, neighbours renewed, arrays that change places."""
    targets, everyone = grouped(seed=3), np.arange(40)
    for active, new in rounds(one, targets, 12):
        a, b = one.update(active, new), many.update(active, new)
        np.testing.assert_allclose([a.primal, a.dual, a.moved], [b.primal, b.dual, b.moved], atol=1e-12)
        np.testing.assert_allclose(one.anchors(everyone), many.anchors(everyone), atol=1e-12)
    for state in (one, FusionState.unpack(many.pack(), many.penalty, graph="knn:5"), many):
        state.update([0, 39], targets[:2])
        np.testing.assert_allclose(one.anchors(everyone), state.anchors(everyone), atol=1e-12)
        np.testing.assert_array_equal(one.labels(0.1), state.labels(0.1))
    np.testing.assert_allclose(one.theta(1, 0), many.theta(1, 0), atol=1e-12)


@pytest.mark.parametrize("graph", ["knn:5", None], ids=str)
@pytest.mark.parametrize("actors", [2, 7])
def test_several_parts_go_the_way_of_one(graph, actors, parts_in_this_process):
    start = {"omega": np.zeros((40, 5)), "penalty": SmoothedSCAD(0.6), "dtype": np.float64}
    one, many = FusionState(**start, graph=graph or "knn:39"), FusionState(**start, graph=graph, actors=actors)
    whole_life(one, many)
    if graph:
        shares = np.diff(many._firsts) / many.edges.lo.size
        assert shares.max() < 2 / actors  # no part has much more than its share
    again = FusionState.unpack(one.pack(), one.penalty, graph=graph, actors=3)
    np.testing.assert_allclose(one.anchors(np.arange(40)), again.anchors(np.arange(40)), atol=1e-12)


def test_without_ray_the_message_says_what_to_install():
    words = (
        "import sys; sys.modules['ray'] = None\n"
        "import numpy as np, fedfuse as ff\n"
        "try: ff.FusionState(np.zeros((2, 2)), ff.SCAD(0.5), actors=2)\n"
        "except ff.FedfuseError as problem: print(problem)\n"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout == "actors need Ray, which is not installed: pip install 'fedfuse[ray]'\n"


def test_a_number_of_actors_is_positive():
    with pytest.raises(FedfuseError, match="at least 1"):
        ff.FPFC(lam=0.6, actors=0)


@pytest.fixture(scope="module")
def two_nodes():
    """A cluster of two nodes with a processor each, on this machine."""
    ray = pytest.importorskip("ray", reason="pip install 'fedfuse[ray]'")
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 10**8, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1, object_store_memory=10**8)
    cluster.wait_for_nodes()
    edge_parts.start(ray, address=cluster.address)
    yield ray
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.slow
def test_two_nodes_find_the_same_groups_and_a_lost_actor_is_survived(two_nodes, tmp_path, monkeypatch):
    start = {"omega": np.zeros((40, 5)), "penalty": SmoothedSCAD(0.6), "dtype": np.float64, "graph": "knn:5"}
    one, many = FusionState(**start), FusionState(**start, actors=2)
    nodes = [a.__ray_call__.remote(lambda _: two_nodes.get_runtime_context().get_node_id()) for a in many._parts._parts]
    assert len(set(two_nodes.get(nodes))) == 2
    whole_life(one, many)

    fed = ff.data.synthetic("S1", seed=0)
    how = {"rounds": 40, "seed": 0, "checkpoint_every": 10}
    plain = ff.fit(fed, ff.FPFC(lam=0.6, graph="knn:10"), **how)
    update, turns = edge_state.EdgeState._update_squares, iter(range(10**6))

    def lose_an_actor(state, active, new):
        if next(turns) == 25:
            two_nodes.kill(state._parts._parts[1])
        return update(state, active, new)

    with monkeypatch.context() as patch:
        patch.setattr(edge_state.EdgeState, "_update_squares", lose_an_actor)
        with pytest.raises(FedfuseError, match="an actor that holds a part of the edges is gone") as lost:
            ff.fit(fed, ff.FPFC(lam=0.6, graph="knn:10", actors=2), out=tmp_path / "run", **how)
    assert "\n" not in str(lost.value)
    found = ff.resume(tmp_path / "run", fed)
    np.testing.assert_array_equal(found.labels, plain.labels)
    np.testing.assert_allclose(found.models, plain.models, atol=1e-5)
    assert found.rounds == plain.rounds


@pytest.mark.parametrize("graph", ["knn", "knn:0", "knn:-1", "knn:x", "ring:3"])
def test_wrong_graphs_are_refused(graph):
    with pytest.raises(FedfuseError, match="'knn:10'"):
        check_graph(graph)
    with pytest.raises(FedfuseError, match="graph"):
        ff.FPFC(lam=0.6, graph=graph)


@pytest.mark.parametrize("how", [{}, {"participation": 0.3}, {"mode": "async"}], ids=str)
def test_fpfc_finds_the_groups_that_all_pairs_find(how):
    fed = ff.data.synthetic("S1", seed=0)
    found, dense = (
        ff.fit(fed, ff.FPFC(lam=0.6, graph=graph), rounds=1000 if "mode" in how else 60, **how)
        for graph in ("knn:10", None)
    )
    assert found.n_clusters == 4
    assert found.ari == 1
    np.testing.assert_array_equal(found.labels, dense.labels)


def test_a_thousand_devices_have_the_groups_of_all_pairs():
    """From local optima, by exact local work, 30 % active; models differ by a few percent of what optima do."""
    optima, truth, rng = grouped(1000, 10, noise=0.03), np.arange(1000) % 4, np.random.default_rng(1)
    how = {"penalty": SmoothedSCAD(0.6), "warm": True, "dtype": np.float64}
    dense, sparse = (FusionState(optima, graph=graph, **how) for graph in (None, "knn:10"))
    for _ in range(60):
        active = rng.choice(1000, 300, replace=False)
        for state in (dense, sparse):
            state.update(active, (optima[active] + state.anchors(active)) / 2)
    for state in (dense, sparse):
        np.testing.assert_array_equal(state.labels(0.05), truth)
    means = np.stack([optima[truth == g].mean(axis=0) for g in range(4)])
    apart, width = np.linalg.norm(dense.omega - sparse.omega, axis=1), np.linalg.norm(optima - means[truth], axis=1)
    assert apart.mean() < 0.05 * width.mean()
