"""Pictures: they say what the data say, draw where they are told, and ask for matplotlib in a sentence."""

import builtins

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.results.snapshots import DistanceSnapshot
from fedfuse.studies.solution_path import Quadratics, solution_path
from fedfuse.training.evaluation import Baselines
from support.planted import planted

plt = pytest.importorskip("matplotlib.pyplot")
plots = pytest.importorskip("fedfuse.report.plots")
plt.switch_backend("Agg")
POINTS = np.array([[-1.2], [-1.0], [1.0], [1.1]])


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def test_path_has_a_line_for_each_device():
    path = solution_path(Quadratics(POINTS, np.full(4, 0.25)), "scad", [0, 0.1, 0.3, 0.4])
    ax = path.plot()
    assert len(ax.lines) == 4
    assert "2 from 0." in " ".join(t.get_text() for t in ax.texts)
    assert {line.get_color() for line in ax.lines} == set(plots.COLOURS[:2])


def test_path_of_a_large_model_shows_the_parameters_that_differ_most():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(3, 40)) * np.where(np.arange(40) < 2, 10, 0.1)
    ax = plots.plot_path(solution_path(points, "l1", [0, 0.1]))
    assert len(ax.lines) == 3 * plots.MAX_PARAMETERS


def test_figure_1_has_four_panels(tmp_path):
    paths = [solution_path(POINTS, name, [0, 0.2, 0.4]) for name in ("l2", "l1", "scad", "smoothed-scad")]
    axes = plots.plot_figure1(paths)
    assert [ax.get_title().strip() for ax in axes.ravel()] == ["squared l2", "l1", "SCAD", "smoothed SCAD"]
    plots.save_picture(axes, tmp_path / "figure1.png")
    assert (tmp_path / "figure1.png").stat().st_size > 10_000


def test_axes_that_are_given_are_drawn_on():
    _, ax = plt.subplots()
    assert plots.plot_path(solution_path(POINTS, "l1", [0, 0.1]), ax) is ax


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
