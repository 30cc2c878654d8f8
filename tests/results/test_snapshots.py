"""Pictures of all pairs: as far apart as devices are, few, and the same after an interruption."""

import json

import numpy as np
import pytest
from scipy.spatial.distance import pdist

import fedfuse as ff
from fedfuse.results.run_directory import ROUNDS
from fedfuse.results.snapshots import MAX_DEVICES, DistanceSnapshot, SnapshotFile, distances, due
from fedfuse.training.fit import resume
from fedfuse.training.progress import read_rounds
from support.planted import planted


class Stop(ff.Callback):
    """Ends a run after so many rounds, as Ctrl-C does."""

    def __init__(self, after):
        self.after = after

    def on_round(self, run, row):
        if run.k == self.after:
            raise KeyboardInterrupt


def test_distances_are_those_of_scipy():
    points = np.random.default_rng(0).normal(size=(30, 7)) + 100
    points[3] = points[9]
    np.testing.assert_allclose(distances(points), pdist(points), atol=1e-9)
    assert distances(points)[pdist(points) == 0].tolist() == [0.0]


def test_a_model_that_is_not_finite_spoils_no_other_pair():
    points = np.array([[0.0, 0.0], [3.0, 4.0], [np.nan, np.inf]])
    assert distances(points)[0] == 5.0


def test_a_byte_tells_near_pairs_apart_though_somebody_is_far_out():
    points = np.concatenate([np.zeros(5), np.ones(5), [10_000.0]])[:, None]
    snapshot = DistanceSnapshot.of(3, points, np.zeros(11, int))
    matrix = snapshot.matrix
    assert matrix[0, 1] == 0
    assert 0.5 < matrix[0, 5] < 2
    assert matrix[0, 10] == pytest.approx(10_000)


def test_of_many_devices_some_are_looked_at():
    snapshot = DistanceSnapshot.of(0, np.random.default_rng(0).normal(size=(2500, 2)), np.arange(2500))
    assert len(snapshot.devices) == MAX_DEVICES
    assert snapshot.devices[0] == 0
    assert snapshot.devices[-1] == 2499
    assert snapshot.levels.nbytes == MAX_DEVICES * (MAX_DEVICES - 1) // 2


def test_pictures_are_few_and_a_new_stage_has_one():
    seen = [0]
    for k in range(1, 20_001):
        if due(k, seen[-1]):
            seen.append(k)
    assert len(seen) < 45
    assert due(101, 100, new_stage=True)
    assert not due(101, 100)


def test_a_run_leaves_pictures_of_its_way(tmp_path):
    result = ff.fit(planted(m=8), ff.FPFC(lam=0.4, refit=False), rounds=12, tol=0, out=tmp_path / "run")
    pages = SnapshotFile(tmp_path / "run").load()
    assert [page.round for page in pages] == [0, 1, 2, 3, 4, 6, 8, 11, 12]
    assert pages[0].largest == 0
    np.testing.assert_array_equal(pages[-1].labels, result.labels)
    step = np.sqrt(pages[-1].largest) / 255  # of the root
    np.testing.assert_allclose(np.sqrt(pages[-1].pairs), np.sqrt(pdist(result.models)), atol=step)
    assert not (tmp_path / "run" / "snapshots").exists()
    assert not (tmp_path / "run" / ROUNDS).exists()


@pytest.mark.parametrize("stop", [3, 7])
def test_an_interrupted_run_has_the_same_pictures(tmp_path, stop):
    federation, method = planted(), ff.FPFC(lam=0.4, refit=False)
    common = {"rounds": 12, "tol": 0, "checkpoint_every": 2}
    ff.fit(federation, method, out=tmp_path / "whole", **common)
    with pytest.raises(KeyboardInterrupt):
        ff.fit(federation, method, out=tmp_path / "cut", callbacks=[Stop(stop)], **common)
    resume(tmp_path / "cut", federation)
    whole, cut = (SnapshotFile(tmp_path / name).load() for name in ("whole", "cut"))
    assert [page.round for page in whole] == [page.round for page in cut]
    for one, other in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(one.levels, other.levels)
        np.testing.assert_array_equal(one.labels, other.labels)


def test_a_run_that_goes_on_can_be_read(tmp_path):
    """Rows on disk are rows of the history, also while the last one is being written."""
    with pytest.raises(KeyboardInterrupt):
        ff.fit(planted(), ff.FPFC(lam=0.4, refit=False), rounds=9, out=tmp_path / "run", callbacks=[Stop(5)])
    rows = read_rounds(tmp_path / "run")
    assert [row["round"] for row in rows] == list(range(len(rows)))
    path = tmp_path / "run" / ROUNDS
    path.write_text(json.dumps({"round": 0}) + '\n{"rou')
    assert read_rounds(tmp_path / "run") == [{"round": 0}]
    assert read_rounds(tmp_path) == []


def test_another_file_is_left_out(tmp_path, caplog):
    """No result depends on pictures, so a bad one must not stand in the way of a run."""
    np.savez(tmp_path / "snapshots.npz", other=np.zeros(3))
    assert SnapshotFile(tmp_path).load() == []
    assert "holds no snapshots of fedfuse" in caplog.text
