"""Comparisons: the table is what the runs say, tests are scipy's, and nothing is run twice."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from scipy.stats import wilcoxon

import fedfuse as ff
from fedfuse.core.standard_errors import holm
from fedfuse.errors import FedfuseError
from fedfuse.protocol.local_work import Work
from fedfuse.studies.compare import compare, resume_comparison, seeds_of
from fedfuse.studies.comparison import NOTHING, Comparison, wilcoxon_p
from fedfuse.studies.jobs import Watcher
from fedfuse.training.options import build, options_by_method, parse_options
from fedfuse.training.presets import preset
from support.planted import planted, visits

EXACT = Work(solver="exact")
PAIR = {"apart": ff.FPFC(lam=0.0, refit=False, work=EXACT), "fused": ff.FPFC(lam=0.4, refit=False, work=EXACT)}
SHORT = {"rounds": 12, "participation": 0.5, "checkpoint_every": 3, "tol": 0.0}
COLUMNS = ("test", "n_clusters", "ari", "cost_floats", "rounds", "seconds")


@pytest.fixture(scope="module")
def federation():
    return planted(noise=1.0, n=30)


@pytest.fixture(scope="module")
def found(federation):
    return compare(federation, PAIR, seeds=2, **SHORT)


def made_up(found, scores, seeds=(0, 1), same=True, metric="rmse"):
    """A comparison with these device scores (method: seeds x devices), and everything else of a real one."""
    real = found.results["fused", 0]
    goal = "regression" if metric == "rmse" else "classification"
    results = {}
    for method, rows in scores.items():
        for seed, row in zip(seeds, rows, strict=True):
            names, counts = tuple(f"d{i}" for i in range(len(row))), np.full(len(row), 50)
            profile = replace(real.profile, goal=goal, metric=metric, names=names, counts=counts)
            results[method, seed] = replace(real, profile=profile, scores={"test": np.array(row)}, seed=seed)
    return Comparison("made up", tuple(scores), tuple(seeds), frozenset(scores), results, {}, same)


# -------------------------------------------------------------------------------------------- the table


def test_the_table_is_what_single_runs_say(found, federation):
    """Means, and the population standard deviation: ddof = 0, as in the paper's tables."""
    for label, method in PAIR.items():
        runs = [ff.fit(federation, method, seed=seed, **SHORT) for seed in (0, 1)]
        by_hand = {
            "test": [r.score("test") for r in runs],
            "n_clusters": [r.n_clusters for r in runs],
            "ari": [r.ari for r in runs],
            "cost_floats": [r.cost_floats for r in runs],
            "rounds": [r.rounds for r in runs],
        }
        row = found.table.loc[label]
        for name, (a, b) in by_hand.items():
            assert row[name] == pytest.approx((a + b) / 2)
            assert row[f"{name}_sd"] == pytest.approx(abs(a - b) / 2)  # of two numbers; with ddof = 1 it is / sqrt(2)
        assert row["runs"] == 2
    assert found.table["test_sd"].max() > 0
    assert found.table.index.tolist() == ["apart", "fused"]
    assert found.table["best"].tolist() == [False, True]


def test_scores_are_those_of_the_devices(found):
    assert list(found.scores.columns) == ["method", "seed", "device", "test"]
    assert len(found.scores) == 2 * 2 * 6
    one = found.scores.query("method == 'fused' and seed == 1")
    assert one["device"].tolist() == [f"d{i}" for i in range(6)]
    assert one["test"].tolist() == found.results["fused", 1].scores["test"].tolist()


def test_rounds_count_those_of_the_refit(federation):
    found = compare(federation, [ff.FPFC(lam=0.4, work=EXACT, refit=True)], seeds=1, rounds=5)
    result = found.results["fpfc", 0]
    assert len(result.stages) > 1
    assert found.table.loc["fpfc", "rounds"] == sum(stage["rounds"] for stage in result.stages)


def test_methods_without_groups_have_no_number_of_them(federation):
    methods = [ff.FedAvg(), ff.FPFC(lam=0.4, refit=False)]
    found = compare(federation, methods, seeds=1, rounds=3)
    assert found.table[["n_clusters", "ari"]].isna().all(axis=1).tolist() == [True, False]
    row = next(line for line in found.to_markdown().splitlines() if "fedavg" in line)
    assert row.count(NOTHING) == 2
    assert found.summary()["methods"][0]["n_clusters"] is None


def test_text_and_markdown(found):
    text = repr(found).splitlines()
    assert text[0].split() == ["method", "RMSE", "groups", "ARI", "numbers", "sent", "rounds", "seconds"]
    assert text[2].startswith("fused ")
    row = found.table.loc["fused"]
    assert f"{row['test']:.4f}"[:5] in text[2]
    assert "mean ± standard deviation over 2 seeds" in text[3]
    lines = found.to_markdown().splitlines()
    assert lines[1] == "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert lines[2].startswith("| apart | ")
    assert lines[3].startswith("| **fused** | **")


def test_accuracy_is_shown_in_percent(found):
    made = made_up(found, {"a": [[0.5, 0.7], [0.8, 1.0]], "b": [[0.4, 0.6], [0.7, 0.9]]}, metric="accuracy")
    assert "75.00 ± 15.00" in repr(made)
    assert "accuracy %" in repr(made)
    assert made.table["best"].tolist() == [True, False]
    assert made.table.loc["a", "test"] == pytest.approx(0.75)
    assert made_up(found, {"a": [[0.5, 0.7]], "b": [[0.4, 0.6]]}, seeds=[0]).table["best"].tolist() == [False, True]


def test_one_seed_has_no_spread(found):
    made = made_up(found, {"a": [[1.0, 2.0]], "b": [[1.5, 2.5]]}, seeds=[4])
    assert "±" not in made.to_markdown()
    assert "seed 4" in repr(made)


# ----------------------------------------------------------------------------------------- significance

RNG = np.random.default_rng(0)
FIRST, STEPS = RNG.normal(5, 1, (2, 12)), RNG.permutation(np.linspace(-1, 1.1, 24) + 0.01 * RNG.random(24))
DRAWN = {"a": FIRST, "b": FIRST + STEPS.reshape(2, 12), "c": FIRST + RNG.random((2, 12))}


def test_new_devices_in_every_seed_are_stacked(found):
    table = made_up(found, DRAWN, same=False).table
    for name in "bc":
        expected = wilcoxon((DRAWN[name] - DRAWN["a"]).ravel()).pvalue
        assert table.loc[name, "p"] == pytest.approx(expected, rel=1e-9)
        assert table.loc[name, "pairs"] == 24
    assert np.isnan(table.loc["a", "p"])


def test_the_same_devices_are_averaged_over_seeds(found):
    table = made_up(found, DRAWN, same=True).table
    for name in "bc":
        expected = wilcoxon((DRAWN[name] - DRAWN["a"]).mean(axis=0)).pvalue
        assert table.loc[name, "p"] == pytest.approx(expected, rel=1e-9)
        assert table.loc[name, "pairs"] == 12
    low, high = sorted(table["p"].dropna())
    assert sorted(table["p_holm"].dropna()) == pytest.approx([2 * low, max(2 * low, high)])


def test_who_is_told_the_groups_is_not_the_best(found):
    made = replace(made_up(found, DRAWN), oracles=frozenset("a"))
    assert made.table["best"].tolist() == [False, True, False]
    assert np.isfinite(made.table.loc["a", "p"])
    assert "a: given the true groups, as an upper bound" in repr(made)
    alone = replace(made_up(found, {"a": DRAWN["a"]}), oracles=frozenset("a"))
    assert alone.table["best"].tolist() == [True]
    assert "true groups" not in repr(alone)


def test_marks(found):
    made = made_up(found, DRAWN)
    marked = {line.split()[0]: "≈" in line for line in repr(made).splitlines()[1:4]}
    assert marked == {"a": False, "b": True, "c": False}
    verdict = (
        "≈ not significantly different from the best (a), by Wilcoxon's signed-rank test on device scores averaged"
    )
    assert verdict in repr(made)
    assert verdict in made.to_markdown()
    two = made_up(found, {"a": DRAWN["a"], "c": DRAWN["c"]}, same=False)
    assert "all others differ significantly from the best (a)" in repr(two)
    assert "device scores of all seeds" in repr(two)
    assert made.table.loc["c", "p_holm"] < 0.05 <= made.table.loc["b", "p_holm"]


def test_too_few_devices_are_said_to_be_so(found):
    """Five devices that all agree have p = 1/16."""
    made = made_up(found, {"a": [[1.0, 2, 3, 4, 5]], "b": [[1.1, 2.2, 3.3, 4.4, 5.5]]}, seeds=[0])
    assert made.table.loc["b", "p"] == 1 / 16
    assert "5 devices are too few for a paired test of 2 methods" in repr(made)
    assert "≈" not in repr(made) + made.to_markdown()
    assert "too few" not in repr(made_up(found, DRAWN))


def test_named_data_are_new_devices_for_every_seed(tmp_path):
    made = compare("synthetic:S4", ["fpfc", "fpfc-l1"], seeds=2, rounds=1, words=["refit=no", "lam=0.1"])
    assert not made.same_devices
    assert made.table["pairs"].dropna().tolist() == [100]
    assert "device scores of all seeds" in repr(made)


def test_methods_that_do_not_differ(found):
    table = made_up(found, {"a": DRAWN["a"], "same": DRAWN["a"].copy()}).table
    assert table["best"].tolist() == [True, True]
    assert table.loc["same", "p"] == 1.0


def test_devices_without_test_rows_are_no_pairs(found):
    gap = DRAWN["b"].copy()
    gap[:, 3] = np.nan
    table = made_up(found, {"a": DRAWN["a"], "b": gap}).table
    keep = np.arange(12) != 3
    assert table.loc["b", "pairs"] == 11
    assert table.loc["b", "p"] == pytest.approx(wilcoxon((gap - DRAWN["a"])[:, keep].mean(axis=0)).pvalue)


def test_holm_by_hand():
    p = np.array([0.04, 0.001, np.nan, 0.02, 0.6])
    # sorted 0.001 x 4, 0.02 x 3, 0.04 x 2 raised to 0.08, 0.6 x 1
    np.testing.assert_allclose(holm(p), [0.08, 0.004, np.nan, 0.06, 0.6])
    assert holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]


def test_rounding_is_no_difference():
    assert wilcoxon_p(np.array([1e-17, -2e-16, 0.0])) == 1.0
    assert np.isnan(wilcoxon_p(np.empty(0)))


def test_the_best_is_one_that_did_all_seeds(found):
    """A method that failed where it is hard must not win by that."""
    made = made_up(found, {"a": [[1.0, 2.0], [5.0, 6.0]], "b": [[0.5, 1.5], [0.0, 0.0]]}, same=False)
    del made.results["b", 1]
    half = replace(made, errors={("b", 1): "diverged"})
    assert half.table["best"].tolist() == [True, False]
    assert half.table.loc["b", "pairs"] == 2  # the devices of the seed that both have
    assert "b: 1 of 2 runs failed: diverged" in half.to_markdown()


def test_each_value_of_a_setting_is_the_run_that_it_says():
    federation, words = planted(), ["solver=exact"]
    found = compare(federation, "fpfc,local", 2, over="lam=0.1,0.4", rounds=20, words=words)
    assert found.methods == ("fpfc-lam=0.1", "fpfc-lam=0.4", "local")
    for row in found.runs[found.runs["method"] != "local"].itertuples():
        method = ff.FPFC(lam=float(row.method.partition("=")[2]), work=ff.Work(solver="exact"))
        by_hand = ff.fit(federation, method, rounds=20, seed=row.seed)
        assert row.test == pytest.approx(by_hand.score(), rel=1e-9)
        assert row.n_clusters == by_hand.n_clusters
    schedules = compare(federation, "fpfc", 1, over="steps=2,uneven(4)", rounds=3, words=["lam=0.3"])
    assert schedules.methods == ("fpfc-steps=2", "fpfc-steps=uneven_4_")


# ------------------------------------------------------------------------------- directories and going on


class Interrupt(Watcher):
    """Ctrl-C after so many looks."""

    def __init__(self, after):
        self.left = after

    def look(self, shares):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


class Count(Watcher):
    jobs: tuple = ()

    def begin(self, jobs):
        self.jobs = [(job.label, job.seed) for job in jobs]


def without_seconds(table):
    return table.drop(columns=["seconds", "seconds_sd"])


def test_files(federation, found, tmp_path):
    made = compare(federation, PAIR, seeds=2, out=tmp_path / "c", **SHORT)
    pd.testing.assert_frame_equal(without_seconds(made.table), without_seconds(found.table))
    folder = tmp_path / "c"
    assert sorted(p.name for p in (folder / "runs").iterdir()) == [f"{m}-seed{s}" for m in PAIR for s in (0, 1)]
    assert ff.Result.load(folder / "runs/fused-seed1").seed == 1
    table = pd.read_csv(folder / "table.csv", index_col="method")
    np.testing.assert_allclose(table["test"], made.table["test"])
    assert set(table.columns) >= {*COLUMNS, *(f"{c}_sd" for c in COLUMNS), "runs", "best", "p", "p_holm", "error"}
    pd.testing.assert_frame_equal(pd.read_csv(folder / "scores.csv"), made.scores)
    assert json.loads((folder / "table.json").read_text()) == made.summary()
    assert (folder / "table.md").read_text() == made.to_markdown()
    again = Comparison.load(folder)
    pd.testing.assert_frame_equal(without_seconds(again.table), without_seconds(made.table))


def test_an_interrupted_comparison_goes_on(federation, found, tmp_path):
    out = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt):
        compare(federation, PAIR, seeds=2, out=out, watcher=Interrupt(22), **SHORT)
    assert not (out / "table.csv").exists()
    assert (out / "runs/apart-seed0/summary.json").exists()
    assert list(out.glob("runs/fused-seed0/checkpoint/latest.npz"))
    count = Count()
    resumed = compare(federation, PAIR, seeds=2, out=out, watcher=count, **SHORT)
    assert count.jobs == [("fused", 0), ("apart", 1), ("fused", 1)]
    pd.testing.assert_frame_equal(without_seconds(resumed.table), without_seconds(found.table))
    for run, result in found.results.items():
        np.testing.assert_array_equal(resumed.results[run].models, result.models)


def test_more_seeds_and_more_methods(federation, tmp_path):
    first, out = {"apart": PAIR["apart"]}, tmp_path / "c"
    compare(federation, first, seeds=1, out=out, **SHORT)
    count = Count()
    compare(federation, first, seeds=[0, 2], out=out, watcher=count, jobs=None, **SHORT)
    assert count.jobs == [("apart", 2)]
    wider = compare(federation, {"fused": PAIR["fused"]}, seeds=1, out=out, watcher=count, **SHORT)
    assert count.jobs == [("fused", 0), ("fused", 2)]
    assert (wider.methods, wider.seeds) == (("apart", "fused"), (0, 2))


def test_another_request_is_refused(federation, tmp_path):
    out = tmp_path / "c"
    compare(federation, PAIR, seeds=1, out=out, **SHORT)
    before = (out / "compare.json").read_text()
    with pytest.raises(FedfuseError, match=r"c holds another comparison: rounds was 12 and is now 13; choose another"):
        compare(federation, PAIR, seeds=1, out=out, **{**SHORT, "rounds": 13})
    with pytest.raises(FedfuseError, match=r"methods\.fused\.method\.lam was 0\.4 and is now 0\.5"):
        compare(federation, {"fused": replace(PAIR["fused"], lam=0.5)}, seeds=1, out=out, **SHORT)
    with pytest.raises(FedfuseError, match="the data differ"):
        compare(planted(seed=3), PAIR, seeds=1, out=out, **SHORT)
    assert (out / "compare.json").read_text() == before
    with pytest.raises(FedfuseError, match="started from Python on unnamed data"):
        resume_comparison(out)
    with pytest.raises(FedfuseError, match="already holds a run"):
        compare(federation, PAIR, seeds=1, out=out / "runs/fused-seed0", **SHORT)


def test_damaged_files(federation, tmp_path):
    out = tmp_path / "c"
    compare(federation, PAIR, seeds=1, out=out, **SHORT)
    (out / "runs/apart-seed0/models.npz").write_bytes(b"nothing")
    again = compare(federation, PAIR, seeds=1, out=out, **SHORT)
    assert "damaged or cut short" in again.table.loc["apart", "error"]
    assert again.table["best"].tolist() == [False, True]
    (out / "compare.json").write_text('{"a": 1}')
    with pytest.raises(FedfuseError, match="is not a comparison of fedfuse"):
        compare(federation, PAIR, seeds=1, out=out, **SHORT)


def test_one_comparison_at_a_time(federation, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # As another process does.
    with pytest.raises(FedfuseError, match="another process is using"):
        compare(federation, PAIR, seeds=1, out=tmp_path, **SHORT)
    os.close(handle)
    compare(federation, PAIR, seeds=1, out=tmp_path, **SHORT)


# -------------------------------------------------------------------------------------------- what fails


@dataclass(frozen=True)
class Broken(ff.FPFC):
    name: ClassVar[str] = "broken"

    def update(self, state, devices, values):
        raise ZeroDivisionError("nobody\nforesaw this")


def test_a_failing_run_is_a_row(federation):
    found = compare(federation, [PAIR["fused"], Broken(lam=0.4)], seeds=2, **SHORT)
    assert found.table["runs"].tolist() == [2, 0]
    assert found.table.loc["broken", "error"] == "ZeroDivisionError: nobody foresaw this"
    assert found.table["best"].tolist() == [True, False]
    assert set(found.errors) == {("broken", 0), ("broken", 1)}
    assert "failed" in repr(found)
    json.dumps(found.summary(), allow_nan=False)


def test_if_all_fail_it_is_an_error(federation):
    with pytest.raises(FedfuseError, match="all 2 runs failed; broken, seed 0: ZeroDivisionError"):
        compare(federation, [Broken(lam=0.4)], seeds=2, **SHORT)


def test_the_oracle_without_the_truth(federation, caplog):
    unknown = replace(federation, truth=None)
    with caplog.at_level(logging.WARNING):
        found = compare(unknown, "all", seeds=1, rounds=3, words=["refit=no"])
    assert "oracle" not in found.methods
    assert {"fpfc", "fusion-tree"} <= set(found.methods)
    assert "the oracle is left out" in caplog.text
    assert "ARI" not in repr(found)
    named = compare(unknown, ["fusion-tree", "oracle"], seeds=1, rounds=3)
    assert "true groups" in named.table.loc["oracle", "error"]
    known = compare(federation, "all", seeds=1, rounds=3)
    assert known.oracles == {"oracle"}
    assert "oracle" in known.methods
    assert "oracle" not in known.contestants


BAD = {
    "no method": ({"methods": []}, "no method to compare"),
    "unknown method": ({"methods": ["moon"]}, "unknown method 'moon'"),
    "the same method twice": (
        {"methods": [ff.FPFC(lam=0.5), ff.FPFC(lam=1.0, refit=True)]},
        "method 'fpfc' is given twice",
    ),
    "a name for no directory": ({"methods": {"a/b": ff.FusionTree()}}, "'a/b' cannot name a directory"),
    "no seed": ({"seeds": 0}, r"seeds must be how many \(at least 1\)"),
    "negative seed": ({"seeds": [-1]}, "seeds must be"),
    "seed and a half": ({"seeds": [1.5]}, "seeds must be"),
    "a seed twice": ({"seeds": [1, 1]}, "each seed may be given only once, got 1, 1"),
    "no round": ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
    "a function": ({"participation": lambda k, m: [0]}, "needs a participation share"),
    "no job": ({"jobs": 0}, "jobs must be a whole number of at least 1, got 0"),
    "processes for a federation": ({"jobs": 2}, "cannot be built again in other processes"),
    "columns of a federation": ({"device": "site"}, "device='site' is for data sets given by name"),
    "words for methods": ({"methods": [ff.FusionTree()], "words": ["nu=1"]}, "words are for methods given by name"),
    "a key for nobody": ({"methods": ["oracle"], "words": ["xi=1"]}, r"none of the methods compared \(oracle\) has"),
    "a method not there": ({"methods": ["fpfc"], "words": ["fpfc-l1.lam=1"]}, "'fpfc-l1' is not one of the methods"),
    "a key of another": (
        {"methods": ["fpfc", "fpfc-l1"], "words": ["fpfc-l1.xi=1"]},
        "method 'fpfc-l1' has no setting 'xi'",
    ),
    "the paper's preset": ({"words": ["preset=paper"]}, "preset=paper is for the paper's data sets"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(federation, tmp_path, case):
    words, message = BAD[case]
    with pytest.raises(FedfuseError, match=message):
        compare(federation, out=tmp_path / "c", **words)
    assert list(tmp_path.iterdir()) == []


def test_data_of_another_kind():
    with pytest.raises(FedfuseError, match="data must be a Federation or the name of a data set, got DataFrame"):
        compare(visits(50))


def test_seeds():
    assert seeds_of(3) == (0, 1, 2)
    assert seeds_of([7, 0, 5]) == (0, 5, 7)
    assert seeds_of(np.int64(2)) == (0, 1)


# ------------------------------------------------------------------------------------------ data by name


@pytest.fixture
def stay(tmp_path):
    path = tmp_path / "stay.csv"
    visits(600).drop(columns="outcome").to_csv(path, index=False)
    return str(path)


NAMED = {"device": "site", "target": "stay", "rounds": 10, "words": ["fpfc.lam=0.3", "refit=no"]}


def test_rounds_of_one_method(stay):
    found = compare(stay, ["fpfc", "fpfc-l1"], seeds=1, **{**NAMED, "words": [*NAMED["words"], "fpfc-l1.rounds=4"]})
    assert found.table["rounds"].tolist() == [10, 4]


def test_a_seed_changes_the_data(stay):
    found = compare(stay, ["fpfc"], seeds=2, **NAMED)
    for seed in (0, 1):
        federation = ff.Federation.from_frame(pd.read_csv(stay), device="site", target="stay", seed=seed)
        alone = ff.fit(federation, ff.FPFC(lam=0.3, refit=False, work=EXACT), rounds=10, seed=seed)
        np.testing.assert_array_equal(found.results["fpfc", seed].models, alone.models)
    assert found.results["fpfc", 0].score() != found.results["fpfc", 1].score()
    assert found.same_devices


def test_worker_processes_give_the_same(stay, tmp_path):
    """And a comparison that was begun in one process is gone on with in two."""
    here = compare(stay, ["fpfc", "fpfc-l1"], seeds=2, **NAMED)
    compare(stay, ["fpfc"], seeds=1, out=tmp_path / "c", **NAMED)
    assert compare(stay, ["fpfc"], seeds=2, jobs=2, **NAMED).scores.equals(here.scores.query("method == 'fpfc'"))
    there = compare(stay, ["fpfc", "fpfc-l1"], seeds=2, out=tmp_path / "c", jobs=2, **NAMED)
    pd.testing.assert_frame_equal(without_seconds(there.table), without_seconds(here.table))
    for run, result in here.results.items():
        np.testing.assert_array_equal(there.results[run].models, result.models)
    again = resume_comparison(tmp_path / "c")
    assert again.summary() == there.summary()
    visits(600, seed=1).drop(columns="outcome").to_csv(stay, index=False)
    with pytest.raises(FedfuseError, match="the data differ"):
        resume_comparison(tmp_path / "c")
    assert Path(tmp_path / "c/table.md").exists()


# ---------------------------------------------------------------------------------------------- options


def test_words_go_where_they_belong():
    words = ["fpfc.lam=0.6", "lam=0.2", "xi=0.001", "tol=0", "fpfc.rounds=7", "rounds=5", "steps=3"]
    found = options_by_method(words, ["fpfc", "fpfc-l1", "oracle"])
    assert found["fpfc"].method == {"lam": 0.6, "xi": 0.001}
    assert found["fpfc-l1"].method == {"lam": 0.2}
    assert found["oracle"].method == {}
    assert [found[name].settings["rounds"] for name in found] == [7, 5, 5]
    assert all(options.work == {"steps": 3} for options in found.values())


@pytest.mark.parametrize(
    ("dataset", "method", "rounds"),
    [
        ("synthetic:S1", "fpfc", 2000),
        ("synthetic:S2", "ifca", 20_000),
        ("synthetic:S1", "cfl", 2000),
        ("housing-bodyfat", "pacfl", 200),
        ("housing-bodyfat", "ifca", 3000),
        ("housing-bodyfat", "cfl", 1000),
    ],
)
def test_rounds_of_the_paper(dataset, method, rounds):
    settings = preset(dataset, method, "paper").settings
    assert settings == {"participation": 0.3, "rounds": rounds, "tol": 0.0}
    assert preset(dataset, method).settings["rounds"] == preset(dataset).settings["rounds"]


def test_the_papers_preset_and_what_overrides_it():
    method, settings = build("synthetic:S1", "fpfc", parse_options(["preset=paper"]))
    assert method == ff.FPFC(lam=0.6, refit=False, start="normal", work=Work(steps=10, lr=0.1))
    assert settings["tol"] == 0
    method, settings = build("synthetic:S1", "fpfc", parse_options(["preset=paper", "nu=0.2", "rounds=9", "lam=0.5"]))
    assert (method.nu, method.lam, settings["rounds"]) == (0.2, 0.5, 9)
    assert build("synthetic:S1", "oracle", parse_options(["preset=paper"]))[0].start == "normal"
    with pytest.raises(FedfuseError, match=r"lam is given twice, as 0.5 and as 0.6"):
        parse_options(["lam=0.5", "lam=0.6"])
