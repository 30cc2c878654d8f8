"""Far pairs without vectors, against a state that keeps all vectors: same clusters, same iterates, less memory."""

import numpy as np
import pytest

from fedfuse.bench.server_step import APART, NU, PENALTY, WIDTH, form, grouped
from fedfuse.pairs import state as pair_state
from fedfuse.pairs.layout import LEAVING
from fedfuse.pairs.state import FusionState


class DenseState(FusionState):
    """A `FusionState` by the same kernels in which no pair ever counts as far: every pair touched keeps its row."""

    @property
    def _reach(self):
        return np.inf

    def _release_far(self):
        marked = self._where <= LEAVING
        self._where[marked] = LEAVING - self._where[marked]


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-12)], ids=["single", "double"])
def test_a_state_without_far_pairs_goes_the_way_of_one_with_all(dtype, tolerance):
    m, d = 200, 100
    start = grouped(m, d, APART, WIDTH)
    state, dense = (kind(start, PENALTY, warm=True, dtype=dtype) for kind in (FusionState, DenseState))
    for each in (state, dense):
        form(each, start.astype(dtype), 0.3)
    assert not dense.far.any()
    assert state.near.size == 4 * 50 * 49 // 2
    np.testing.assert_array_equal(state.labels(NU), np.arange(m) % 4)
    np.testing.assert_array_equal(dense.labels(NU), np.arange(m) % 4)
    for ours, theirs in ((state.omega, dense.omega), (state.anchors(range(m)), dense.anchors(range(m)))):
        assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()
    assert state.nbytes <= 0.3 * dense.nbytes
    norms = dense.norms()
    np.testing.assert_allclose(state.norms(), norms, atol=tolerance * norms.max())


def test_clusters_were_not_there_at_the_start():
    start = grouped(200, 100, APART, WIDTH)
    assert np.unique(FusionState(start, PENALTY, warm=True).labels(NU)).size == 200


@pytest.mark.parametrize("large", [0, np.inf], ids=["several chunks", "one chunk"])
def test_residuals_are_the_same_whether_far_pairs_are_added_or_the_others_subtracted(large, monkeypatch):
    monkeypatch.setattr(pair_state, "MIN_THREADED_NUMBERS", large)
    d = 100
    start = grouped(200, d, APART, WIDTH)
    state, dense = (kind(start, PENALTY, warm=True, dtype=np.float64) for kind in (FusionState, DenseState))
    for each in (state, dense):
        form(each, start, 0.3)
    rng = np.random.default_rng(0)
    for size in (1e-9, 1e-3, 1.0):
        active = rng.permutation(200)[:60]
        new = state.omega[active] + size * rng.normal(size=(60, d))
        new[0] = state.omega[active[0] - 1]  # into another cluster: far pairs become near
        ours, theirs = state.update(active, new), dense.update(active, new)
        assert (ours.primal, ours.dual) == pytest.approx((theirs.primal, theirs.dual), rel=1e-9)
        assert 2 * state.near.size < state.s.size
