"""The fusion tree: groups of every kind, and nothing that a run may meet on the way changes them."""

from dataclasses import replace

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.core.partitions import adjusted_rand
from fedfuse.errors import FedfuseError
from fedfuse.grouping import fusion_tree, simulated_replies
from fedfuse.grouping.refit import Oracle, RescaleColumns
from fedfuse.protocol.tasks import EvaluateModels, Rescale
from grouping.test_refit import Silent
from support.interruption import resumed_at
from support.planted import begun, many_sites, more_columns_than_rows, permuted, planted

GOALS = ["regression", "classification"]


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("groups", [2, 3])
def test_few_groups_are_found(goal, groups):
    federation = planted(goal, m=12, n=120, groups=groups)
    result = ff.fit(federation)
    oracle = ff.fit(federation, Oracle())
    assert result.ari == 1
    assert abs(result.score("test") - oracle.score("test")) < 0.02
    assert result.stability > 0.9
    assert not result.uncertain


SITES = [2000, pytest.param(10_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("m", SITES)
@pytest.mark.parametrize("groups", [1, 3])
def test_noise_of_many_sites_is_not_split(m, groups):
    result = ff.fit(many_sites(m, groups))
    assert result.n_clusters == groups
    assert result.ari in (1, None)
    assert not result.uncertain


@pytest.mark.parametrize("m", SITES)
def test_noise_that_differs_between_many_sites_makes_no_groups(m):
    result = ff.fit(many_sites(m, 3, noise_ratios=(1.0, 2.0, 4.0)))
    assert result.n_clusters == 3
    assert result.ari > 0.99


def test_groups_are_told_by_direction_where_columns_far_outnumber_rows(monkeypatch):
    """Lengths of models that are fitted to few rows are noise: by distance the same groups fall apart."""
    federation, method = more_columns_than_rows(seed=0), ff.FusionTree(personal=False)
    assert ff.fit(federation, method).ari == 1
    monkeypatch.setattr(fusion_tree, "MIN_COLUMNS_PER_ROW", np.inf)
    assert ff.fit(federation, method).ari < 0.6


def in_other_units(federation, columns, target):
    return replace(federation, X=federation.X * columns, y=federation.y * target)


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e9, 1e15, 1e30])
@pytest.mark.parametrize("what", ["columns", "target"])
def test_units_do_not_matter_for_values(what, scale):
    federation = planted("regression", m=6, n=60, groups=2)
    units = (scale, 1.0) if what == "columns" else (1.0, scale)
    plain, other = ff.fit(federation), ff.fit(in_other_units(federation, *units))
    assert plain.ari == other.ari == 1
    assert other.score("test") / units[1] == pytest.approx(plain.score("test"), rel=1e-3)
    assert not other.refused


@pytest.mark.parametrize("scale", [1e-20, 1e9, 1e20])
def test_units_do_not_matter_for_classes(scale):
    federation = planted("classification", m=6, n=120, groups=2)
    plain, other = ff.fit(federation), ff.fit(replace(federation, X=federation.X * scale))
    assert plain.ari == other.ari == 1
    assert other.score("test") == pytest.approx(plain.score("test"), abs=0.02)


def test_units_that_are_too_large_are_named():
    federation = in_other_units(planted("regression", m=4, n=40, groups=2), 1e100, 1.0)
    with pytest.raises(FedfuseError, match="need other units"):
        ff.fit(federation)
    federation = in_other_units(planted("regression", m=4, n=40, groups=2), 1.0, 1e40)
    with pytest.raises(FedfuseError, match="too large for float32"):
        ff.fit(federation)
    assert ff.fit(federation, dtype="float64").ari == 1


def test_classes_without_validation_rows_are_refused():
    rng = np.random.default_rng(0)
    rows = [(X := rng.normal(size=(50, 3)), X[:, i % 2] > 0) for i in range(6)]
    with pytest.raises(FedfuseError, match=r"no device has any.*or give a lambda"):
        ff.fit(ff.Federation.from_arrays(rows, validation=0))
    assert ff.fit(ff.Federation.from_arrays(rows, validation=0), ff.FPFC(lam=0.5, refit=False), rounds=3).rounds == 3


@pytest.mark.parametrize(
    "method", [ff.FusionTree(), ff.FPFC(lam=0.5, refit=True), Oracle()], ids=["tree", "lambda", "oracle"]
)
def test_a_federation_in_which_nobody_is_drawn_comes_to_an_end(method):
    federation = planted("regression", m=4, n=40, groups=2)
    result = ff.fit(federation, method, rounds=3, participation=lambda k, m: [])
    assert result.rounds < 1000


@pytest.mark.parametrize("goal", GOALS)
def test_one_group_is_found(goal):
    result = ff.fit(planted(goal, m=10, n=120, groups=1, noise=1.0))
    assert result.n_clusters == 1


@pytest.mark.parametrize("goal", GOALS)
def test_no_groups_are_found(goal):
    result = ff.fit(planted(goal, m=6, n=150, groups=6))
    assert result.n_clusters == 6
    assert result.lam is None


def test_one_device_is_a_federation():
    result = ff.fit(planted(m=1, groups=1))
    assert result.labels.tolist() == [0]
    assert result.score("test") < 0.3


@pytest.mark.parametrize("goal", GOALS)
def test_tiny_devices(goal):
    federation = planted(goal, m=8, n=5, groups=2, noise=0.05)
    result = ff.fit(federation)
    assert np.isfinite(result.models).all()
    assert set(result.labels) == set(range(result.n_clusters))


def test_order_of_devices_does_not_matter():
    federation = planted(m=9, groups=3, n=80)
    order = np.random.default_rng(0).permutation(9)
    a, b = ff.fit(federation, dtype="float64"), ff.fit(permuted(federation, order), dtype="float64")
    assert a.ari == b.ari == 1
    np.testing.assert_allclose(a.models[order], b.models, atol=1e-4)


def test_test_rows_never_matter():
    federation = planted("classification", m=6, n=80)
    y, X = federation.y.copy(), federation.X.copy()
    for start, stop in federation.cuts[:, 2:]:
        y[start:stop], X[start:stop] = 0, 50.0
    a, b = (ff.fit(f) for f in (federation, replace(federation, X=X, y=y)))
    np.testing.assert_array_equal(a.models, b.models)
    np.testing.assert_array_equal(a.labels, b.labels)
    assert a.stability == b.stability


def test_everything_sent_is_counted(monkeypatch):
    """One group of two devices: the steps follow each other as in the method's description."""
    monkeypatch.setattr(simulated_replies, "MAX_STATISTICS_MODELS", 0)
    federation = planted(m=2, groups=1, n=60, p=2)
    keep = Counting()
    result = ff.fit(federation, ff.FusionTree(personal=False), callbacks=[keep])
    assert result.cost_floats == keep.down + keep.up
    columns, d, m = 3, 3, 2
    rows = keep.by_task
    assert rows["SendMoments"] == m * 2 * columns
    assert rows["Rescale"] == m * 2 * columns
    assert rows["Train"] % (m * d) == 0  # an estimate goes up, nothing comes down
    # own model and the only merge: one model down, two means and three entries of their covariance up
    assert rows["EvaluateModels"] % (m * (d + 2 + 3)) == 0


def test_rows_in_summary_are_all_that_linear_regression_needs():
    federation, keep = planted(m=8, n=100, p=3), Counting()
    result = ff.fit(federation, ff.FusionTree(personal=False), callbacks=[keep])
    assert result.ari == 1
    assert result.cost_floats == keep.down + keep.up
    assert keep.by_task == {"SendSufficientStatistics": 8 * (2 * (4 + 10) + 1), "Install": 8 * 4}


def test_judgements_and_evidence_find_the_same_groups(monkeypatch):
    federation = planted(m=10, n=120, p=3)
    found = ff.fit(federation)
    monkeypatch.setattr(simulated_replies, "MAX_STATISTICS_MODELS", 0)
    np.testing.assert_array_equal(ff.fit(federation).labels, found.labels)


class Counting(ff.Callback):
    """Counts what really passes, apart from the ledger."""

    def __init__(self):
        self.down = self.up = 0
        self.by_task = {}

    def on_start(self, run):
        submit, collect = run.engine.submit, run.engine.collect
        asked = {}

        def sending(orders):
            for order in orders:
                asked[order.device] = type(order.task).__name__
                floats = sum(v.size for v in vars(order.task).values() if isinstance(v, np.ndarray))
                self._add(asked[order.device], floats)
                self.down += floats
            submit(orders)

        def receiving():
            replies = collect()
            for reply in replies:
                self._add(asked[reply.device], reply.values.size)
                self.up += reply.values.size
            return replies

        run.engine.submit, run.engine.collect = sending, receiving

    def _add(self, task, floats):
        self.by_task[task] = self.by_task.get(task, 0) + floats


@pytest.mark.parametrize("goal", GOALS)
def test_resumed_in_every_step_equals_uninterrupted(goal, tmp_path):
    federation, method = planted(goal, m=5, groups=2, n=30, seed=3), ff.FusionTree()
    settings = {"participation": 0.5, "rounds": 300}
    whole = ff.fit(federation, method, **settings)
    steps = whole.history["stage"].tolist()
    # after the first round of every step, when some devices have answered
    stops = sorted({steps.index(step) + 1 for step in steps} - {len(steps)})
    for resumed in resumed_at(stops, federation, method, tmp_path / "run", **settings):
        np.testing.assert_array_equal(resumed.models, whole.models)
        np.testing.assert_array_equal(resumed.labels, whole.labels)
        np.testing.assert_array_equal(resumed.confidence, whole.confidence)
        assert resumed.cost_floats == whole.cost_floats
        assert resumed.stability == whole.stability


@pytest.mark.parametrize("goal", GOALS)
def test_lost_replies_do_not_keep_it_from_the_end(goal):
    federation = planted(goal, m=10, n=120)
    result = ff.fit(federation, engine=Silent(federation))
    assert result.converged
    assert result.ari > 0.5
    assert np.isfinite(result.models).all()


class LiesAboutLosses(Silent):
    """Some devices answer with losses below zero from the n-th comparison on."""

    def __init__(self, federation, liars, n):
        super().__init__(federation, share=0.0)
        self._liars, self._left, self._lie = liars, n, False

    def submit(self, orders):
        self._lie = any(isinstance(order.task, EvaluateModels) for order in orders)
        self._left -= self._lie
        super().submit(orders)

    def collect(self):
        lie = self._lie and self._left < 0
        return [replace(r, values=-r.values) if lie and r.device in self._liars else r for r in super().collect()]


@pytest.mark.parametrize("comparison", [0, 3, 4])
@pytest.mark.parametrize("liars", [(0,), (7,), (4, 5, 6, 7)])
def test_devices_that_lie_when_models_are_compared_do_not_stop_the_others(liars, comparison):
    """Also where a leaf of the tree, or a group, has no other members."""
    federation = planted("classification", m=8, n=120)
    result = ff.fit(federation, engine=LiesAboutLosses(federation, liars, comparison))
    assert set(result.suspects) <= set(liars)
    honest = np.setdiff1d(range(8), liars)
    assert adjusted_rand(federation.truth[honest], result.labels[honest]) == 1


def test_devices_that_have_forgotten_their_scale_are_told_again():
    federation, method = planted("classification"), ff.FusionTree()
    state = begun(federation, method).state
    state.step, state.answers = RescaleColumns.name, {2: np.empty(0), 4: np.empty(0)}
    scales = method.recovery(state)[0]
    assert sorted(scales) == [2, 4]
    assert all(isinstance(task, Rescale) for task in scales.values())


def test_a_device_that_never_answers_is_called_unsure():
    federation = planted(m=8, n=100)
    result = ff.fit(federation, engine=Silent(federation, share=0.0, never=(7,)))
    assert result.converged
    assert 7 in result.unsure
    assert adjusted_rand(federation.truth[:7], result.labels[:7]) == 1


def test_a_barely_separable_problem_is_flagged():
    """Two groups whose models differ about as much as the estimates of two devices of one group do."""
    rng = np.random.default_rng(0)
    data = []
    for i in range(20):
        X = rng.normal(size=(30, 4))
        data.append((X, X @ (np.ones(4) + (0.25 if i % 2 else -0.25)) + rng.normal(size=30)))
    result = ff.fit(ff.Federation.from_arrays(data, truth=np.arange(20) % 2))
    assert result.uncertain
    assert result.summary()["uncertain"]
    assert result.stability < 1 or len(result.unsure)


def test_l1_has_no_auto():
    with pytest.raises(ff.FedfuseError, match="auto"):
        ff.FPFCL1(lam="auto")


def test_of_many_devices_a_sample_makes_the_tree(monkeypatch):
    """The others join by their models: they are asked less, and the groups are the same."""
    fed = ff.data.synthetic("S1", seed=0)
    everyone = ff.fit(fed, seed=0)
    monkeypatch.setattr(fusion_tree, "MAX_TREE_DEVICES", 40)
    sample = ff.fit(fed, seed=0)
    assert everyone.ari == sample.ari == 1
    assert sample.cost_floats < everyone.cost_floats
