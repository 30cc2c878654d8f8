"""Pictures: they say what the data say, draw where they are told, and ask for matplotlib in a sentence."""

import builtins

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.results.snapshots import DistanceSnapshot
from fedfuse.training.evaluation import Baselines
from support.planted import planted

plt = pytest.importorskip("matplotlib.pyplot")
plots = pytest.importorskip("fedfuse.report.plots")
plt.switch_backend("Agg")


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def test_history():
    result = ff.fit(planted(), ff.FPFC(lam=0.4, rows="train", refit=False), rounds=20, evaluate_every=5)
    scores, groups, *_ = plots.plot_history(result).ravel()
    assert [line.get_label() for line in scores.lines] == ["validation RMSE", "test RMSE"]
    np.testing.assert_array_equal(groups.lines[0].get_ydata(), result.history["n_clusters"].dropna())
    short = ff.fit(planted(), ff.FPFC(lam=0.4, refit=False), rounds=1)
    with pytest.raises(ff.FedfuseError, match="two rounds"):
        plots.plot_history(short)


def test_a_picture_of_another_kind_is_refused():
    with pytest.raises(ff.FedfuseError, match=r"\.png"):
        plots.check_picture("figure.gif")


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ff.FedfuseError, match=r"fedfuse\[report\]"):
        plots.check_picture("figure.png")


@pytest.fixture(scope="module")
def grouped():
    federation = planted(m=12, groups=3)
    result = ff.fit(federation)
    return result, Baselines.of(federation, result.model)


def test_distances_are_ordered_by_group(grouped):
    result, _ = grouped
    ax = plots.plot_distances(DistanceSnapshot.of(result.rounds, result.models, result.labels))
    shown = ax.images[0].get_array()
    same = np.kron(np.eye(3), np.ones((4, 4))) > 0
    assert shown[same].max() == 0
    assert shown[~same].min() > 0
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2", "3"]
    plots.plot_distances(DistanceSnapshot.of(7, np.zeros((4, 2)), np.arange(4)))


def test_devices_are_shown_with_their_scores(grouped, tmp_path):
    result, sticks = grouped
    ax = plots.plot_devices(result, sticks.scores)
    drawn = np.concatenate([c.get_offsets()[:, 1] for c in ax.collections[-3:]])
    np.testing.assert_allclose(np.sort(drawn), np.sort(result.scores["test"]))
    plots.save_picture(ax, tmp_path / "devices.pdf")
    assert (tmp_path / "devices.pdf").read_bytes().startswith(b"%PDF")
