"""What can go wrong with what people give: one clear line, and nothing left behind that stands in the way."""

from __future__ import annotations

import gc
import json
import re
import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import fedfuse as ff
from fedfuse.data.readers import read_table
from fedfuse.report.charts import Axis
from fedfuse.utils.files import read_arrays, write_arrays
from fedfuse.utils.threads import MIN_PARALLEL_WORK, spread

TABLE = ["reg.csv", "--device", "site", "--target", "y"]
RUN = ["run", *TABLE]


def table():
    """Return six devices of 30 rows, two groups with slopes of opposite sign."""
    rng = np.random.default_rng(0)
    X, sign = rng.normal(size=(180, 3)), np.repeat([1, -1] * 3, 30)
    sites = np.repeat([f"h{i}" for i in range(6)], 30)
    target = 3 * sign * X[:, 0] + 0.3 * rng.normal(size=180)
    return pd.DataFrame({"site": sites, **dict(zip("abc", X.T, strict=True)), "y": target})


@pytest.fixture
def frame():
    return table()


@pytest.fixture
def reg(here, frame):
    frame.to_csv("reg.csv", index=False)
    return frame


def test_an_axis_of_powers_without_a_positive_value():
    axis = Axis.around([0, np.nan, -1], log=True)
    assert 0 < axis.low < axis.high
    assert axis.ticks()


def test_a_comparison_in_which_nothing_is_sent(fedfuse, reg):
    """LOCAL costs nothing, and an axis of costs has no power of ten to begin with."""
    status, _, err = fedfuse("compare", *TABLE, "--methods", "local", "--seeds", "1", "--out", "c1")
    assert (status, err) == (0, "")
    assert fedfuse("resume", "c1")[0] == 0
    assert fedfuse("report", "c1")[0] == 0


@pytest.mark.parametrize(
    "words",
    [("--set", "participation=0.5,0.5"), ("--method", "oracle")],
)
def test_what_is_found_wrong_late_does_not_block_the_directory(fedfuse, refused, reg, words):
    """Nothing is left of a run that never got under way."""
    refused(*RUN, *words, "--out", "deep/q")
    assert fedfuse(*RUN, "--lam", "1", "--rounds", "3", "--out", "deep/q", "--json")[0] == 0


def test_what_else_is_in_a_directory_stays(fedfuse, reg, here):
    (here / "q").mkdir()
    (here / "q" / "notes.txt").write_text("mine")
    assert fedfuse(*RUN, "--method", "oracle", "--out", "q")[0] == 2
    assert [path.name for path in (here / "q").iterdir()] == ["notes.txt"]


def test_a_comparison_of_which_no_run_begins_is_taken_back(fedfuse, refused, reg):
    words = ("compare", *TABLE, "--methods", "local,fedavg", "--seeds", "1", "--rounds", "3", "--out", "c", "--json")
    refused(*words, "--jobs", "1", "--set", "participation=0.5,0.5")
    assert fedfuse(*words, "--jobs", "1", "--set", "participation=0.5")[0] == 0


def test_a_run_with_a_checkpoint_is_kept(frame, tmp_path):
    """An error in the middle of a run costs nothing of what was done."""

    class Trouble(ff.Callback):
        def on_round(self, run, row):
            if run.k == 3:
                raise ff.FedfuseError("no more")

    fed = ff.Federation.from_frame(frame, device="site", target="y")
    with pytest.raises(ff.FedfuseError, match="no more"):
        ff.fit(fed, ff.FPFC(lam=1.0), out=tmp_path / "q", checkpoint_every=2, callbacks=[Trouble()])
    assert (tmp_path / "q/checkpoint/latest.npz").exists()


@pytest.mark.parametrize(("header", "name"), [("site,a,a,c,y", "a"), ('site,a,b,"y","y"', "y"), ("site,b,c,b,y", "b")])
def test_two_columns_of_one_name(refused, reg, here, header, name):
    """pandas would call the second a.1, and a second target would become a feature that knows the answer."""
    body = (here / "reg.csv").read_text().split("\n", 1)[1]
    (here / "reg.csv").write_text(header + "\n" + body, encoding="utf-8-sig")
    assert f"reg.csv' are called '{name}': rename or remove one" in refused(*RUN)


def test_names_that_pandas_might_have_made(reg, here):
    """A column may be called a.1 by itself, and several may have no name; gzip is read as well."""
    names = {"b": "a.1", "c": "x.10"}
    frame = reg.rename(columns=names).assign(**{"  ": 1, " ": 2})
    frame.to_csv("reg.csv.gz", index=False)
    assert list(read_table("reg.csv.gz").columns) == list(frame.columns)
    (here / "blank.csv").write_text("a,a.1,,\n1,2,3,4\n")
    assert len(read_table("blank.csv").columns) == 4


@pytest.mark.parametrize("scale", [1e300, 1e30, -1e30])
def test_targets_that_are_too_large_to_be_squared(refused, reg, scale):
    reg.assign(y=scale * reg["y"]).to_csv("reg.csv", index=False)
    line = refused(*RUN)
    assert "the target column 'y' holds values up to" in line
    assert "above 1e+18 are too large to be squared; divide them by a power of ten" in line


def test_features_that_are_too_large_to_be_squared():
    X = np.ones((10, 2))
    X[3, 1] = -1e150
    with pytest.raises(ff.FedfuseError, match=r"'b': X\[3, 1\] is -1e\+150 \(column 'x1'\).*too large to be squared"):
        ff.Federation.from_arrays({"a": (np.ones((10, 2)), np.arange(10)), "b": (X, np.arange(10))})


def test_large_targets_that_can_be_squared(reg):
    """What is allowed works: the models are those of small targets, times the scale."""
    fed, large = (
        ff.Federation.from_frame(reg.assign(y=scale * reg["y"]), device="site", target="y") for scale in (1, 8e16)
    )
    method = ff.FedAvg(work=ff.Work(solver="exact"))
    small, great = ff.fit(fed, method, rounds=20), ff.fit(large, method, rounds=20)
    np.testing.assert_allclose(great.models, 8e16 * small.models, rtol=1e-3)


@pytest.mark.parametrize("method", ["fedavg", "fpfc", "local", "ifca", "per-fedavg", "cfl"])
@pytest.mark.parametrize("target", ["y", "group"])
def test_training_that_diverges_is_silent(fedfuse, reg, recwarn, method, target):
    """Replies that are not finite are refused; NumPy's warnings would be more lines on standard error."""
    reg.assign(group=np.where(reg["y"] > 0, "up", "down")).drop(columns="y" if target == "group" else []).to_csv(
        "reg.csv", index=False
    )
    steps = ["--set", "lr=1e30", "--set", "steps=20", "--rounds", "20", "--json"]
    lam = ["--lam", "1"] if method == "fpfc" else []
    status, _, err = fedfuse(*RUN[:-1], target, "--method", method, *steps, *lam)
    assert status in (0, 2), err
    assert err.count("\n") <= 1, err
    assert not [str(w.message) for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_threads_warn_as_their_caller_wishes():
    def run(jobs):
        for _ in jobs:
            np.float64(1e300) * np.array([1e300])

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        spread(run, np.full(64, MIN_PARALLEL_WORK))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a finished run on a table, to be copied and damaged."""
    place = tmp_path_factory.mktemp("finished")
    made = table()
    made.to_csv(place / "reg.csv", index=False)
    source = dict.fromkeys(("device", "target", "goal", "data_dir")) | {"features": "uniform", "seed": 0}
    source |= {"dataset": str(place / "reg.csv"), "device": "site", "target": "y"}
    fed = ff.Federation.from_frame(made, device="site", target="y")
    ff.fit(fed, ff.FPFC(lam=1.0), rounds=30, out=place / "run", source=source)
    return place / "run"


@pytest.fixture
def damaged(finished, here):
    """Copy the finished run and put something else in one of its files; returns the copy."""

    def damage(file, *change):
        shutil.copytree(finished, here / "run", dirs_exist_ok=True)
        whole = json.loads((finished / file).read_text())
        *way, last = change[0].split(".") if len(change) == 2 else [""]
        inner = whole
        for key in way:
            inner = inner[key]
        if last:
            inner[last] = change[-1]
        (here / "run" / file).write_text(json.dumps(whole if last else change[-1]))
        return here / "run"

    return damage


def not_as_written(fedfuse, *words):
    status, _, err = fedfuse(*words)
    assert status == 2, err
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", ([],)),
        ("config.json", (None,)),
        ("config.json", ("method", "x")),
        ("summary.json", ([],)),
        ("summary.json", ("labels", [])),
        ("summary.json", ("labels", [-1] * 6)),
        ("summary.json", ("seconds", None)),
        ("summary.json", ("orders", {"sent": "x"})),
        ("profile.json", (3,)),
        ("profile.json", ("counts", [])),
        ("profile.json", ("features", [])),
        ("profile.json", ("features", [1, 2, 3])),
        ("profile.json", ("goal", "x")),
        ("profile.json", ("method", {})),
        ("profile.json", ("method.a", -7)),
        ("profile.json", ("model", "x")),
        ("profile.json", ("encoder.device", [])),
        ("profile.json", ("encoder.columns", [])),
    ],
)
def test_files_of_other_types(fedfuse, damaged, file, change):
    """JSON that somebody has edited ends in one line, whatever it says now."""
    not_as_written(fedfuse, "report", damaged(file, *change), "--no-baselines")


@pytest.mark.parametrize(
    "change",
    [
        ("source", "x"),
        ("source", {}),
        ("source.dataset", None),
        ("source.seed", "x"),
        ("method", "x"),
        ("method.lam", []),
        ("method.method", None),
        ("settings.rounds", []),
        ("settings.minimum", None),
        ("model", "x"),
        ("settings", []),
        ("engine", {"name": 3}),
        ("model", {}),
        ("fingerprint", 3),
    ],
)
def test_a_run_to_go_on_with_of_other_types(fedfuse, damaged, change):
    place = damaged("config.json", *change)
    (place / "summary.json").unlink()
    not_as_written(fedfuse, "resume", place, "--json")


def test_files_that_do_not_belong_together(finished, damaged):
    place = damaged("summary.json", "seed", 0)
    write_arrays(place / "models.npz", {"models": np.zeros((5, 4))})
    with pytest.raises(ff.FedfuseError, match=r"has models for 5 devices, profile.json names 6"):
        ff.Result.load(place)
    write_arrays(place / "models.npz", {"models": np.zeros((6, 3)), "test": np.zeros(6)})
    with pytest.raises(ff.FedfuseError, match=r"models of shape \(6, 3\)"):
        ff.Result.load(place)


def test_a_damaged_picture_is_left_out(fedfuse, finished, here):
    """Pictures are for the page alone: a run with a bad one is a good run."""
    shutil.copytree(finished, here / "run")
    (here / "run" / "snapshots.npz").write_bytes((finished / "snapshots.npz").read_bytes()[:100])
    assert fedfuse("resume", "run", "--json")[0] == 0
    status, _, err = fedfuse("report", "run", "--no-baselines")
    assert status == 0, err
    assert "note: snapshots are left out:" in err


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_files_that_cannot_be_read_are_closed(here):
    (here / "x.npz").write_bytes(b"PK\x03\x04 and nothing else")
    with pytest.raises(ff.FedfuseError, match="damaged or cut short"):
        read_arrays(here / "x.npz")
    gc.collect()


@pytest.fixture
def fed(frame):
    return ff.Federation.from_frame(frame, device="site", target="y")


@pytest.mark.parametrize(
    ("arguments", "settings", "words"),
    [
        ((ff.FPFC,), {}, r"got the class FPFC: give an instance, FPFC\(\)"),
        ((3,), {}, r"method must be one such as FusionTree\(\) or a name \(.*fpfc, .*, got int 3"),
        (("fpcf",), {}, "unknown method 'fpcf'; did you mean 'fpfc'"),
        ((None, ff.LinearRegression), {}, r"got the class LinearRegression: give an instance, LinearRegression\(\)"),
        ((None, 3), {}, "model must be one such as .* or a name .*linear.*, got int 3"),
        ((), {"participaton": 3}, "no setting 'participaton'; did you mean 'participation'?"),
        ((), {"lam": 3}, r"no setting 'lam'; .*the method's: FPFC\(lam=0.5\)"),
    ],
)
def test_fit_says_what_it_takes(fed, arguments, settings, words):
    with pytest.raises(ff.FedfuseError, match=words):
        ff.fit(fed, *arguments, **settings)


@pytest.mark.parametrize("given", [None, {"a": (np.ones((3, 2)), np.arange(3))}])
def test_only_a_federation_is_one(given):
    with pytest.raises(ff.FedfuseError, match=r"fit needs a Federation, got .*; make one by Federation.from_arrays"):
        ff.fit(given)


def test_a_comparison_names_the_closest_setting(fed):
    with pytest.raises(ff.FedfuseError, match="did you mean 'participation'"):
        ff.compare(fed, "local", 1, participaton=0.5)


@pytest.mark.parametrize("lam", [None, "x", [1.0]])
def test_lambda_is_a_number_or_a_strategy(lam):
    with pytest.raises(ff.FedfuseError, match="lam must be a number, 'auto', 'warmup' or 'separate', got "):
        ff.FPFC(lam=lam)


def test_methods_by_name(fed):
    """A name stands for the method with work that suits the model."""
    by_name, built = ff.fit(fed, "fusion-tree"), ff.fit(fed)
    np.testing.assert_array_equal(by_name.models, built.models)
    assert ff.fit(fed, "per-fedavg", rounds=3).method["work"]["solver"] == "gd"


@pytest.mark.parametrize(
    "method",
    [
        ff.FPFC(lam=np.float32(0.5), work=ff.Work(steps=np.int64(5), lr=np.float32(0.1))),
        ff.IFCA(n_models=np.int64(2), work=ff.Work(solver="exact")),
    ],
)
def test_numbers_of_numpy_are_saved(fed, here, method):
    """Also in checkpoints and in the middle of a run."""
    result = ff.fit(fed, method, rounds=np.int64(4), seed=np.int64(3), checkpoint_every=np.int64(2), out=here / "run")
    assert type(result.summary()["seed"]) is int
    assert json.loads(json.dumps(result.summary()))["seed"] == 3
    np.testing.assert_array_equal(ff.Result.load(here / "run").models, result.models)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*RUN, "--out", ""), "'' is not a directory; give a name, or . for the current one"),
        (("compare", *TABLE, "--out", ""), "'' is not a directory"),
        (("run", "folder.csv", "--device", "site", "--target", "y"), "folder.csv' is a directory; give a file"),
        (("compare", *TABLE, "--seeds", "0"), "--seeds takes how many (at least 1)"),
        (("compare", *TABLE, "--seeds", "-2"), "got '-2'"),
        ((*RUN, "--rounds", "5", "--set", "rounds=3"), "rounds is given twice, as 3 and as 5: leave one out"),
        (("compare", *TABLE, "--rounds", "5", "--set", "rounds=3"), "--set rounds: --rounds 5 is given too"),
        ((*RUN, "--set", "seed=3"), "'seed' is not a key of --set: it is an option of its own, --seed"),
        (("run", "synthetic:5,x"), "synthetic:5,5 (groups of so many devices)"),
        (("resume", "run", "--engine", "nope"), "unknown engine 'nope'; known: inprocess"),
        (("report", "run", "--out", "folder.csv"), "the page is a file, but folder.csv is a directory"),
    ],
)
def test_messages_speak_of_what_was_typed(refused, reg, finished, here, words, message):
    (here / "folder.csv").mkdir()
    shutil.copytree(finished, here / "run")
    assert message in refused(*words)


@pytest.mark.parametrize("goal", [[], ["--task", "regression"]])
def test_text_among_the_numbers_of_a_target(refused, reg, goal):
    target = reg["y"].astype(object)
    target[3] = "oops"
    reg.assign(y=target).to_csv("reg.csv", index=False)
    assert "device 'h0', column 'y', row 3 (from 0): the value is 'oops', but numbers are needed" in refused(
        *RUN, *goal
    )


def test_numbers_as_text_may_be_classes(frame):
    """Few of them, or classification as it was asked for."""
    few = np.where(frame["y"] > 0, np.where(frame["a"] > 0, "1", "2"), "none")
    assert ff.Federation.from_frame(frame.assign(y=few), device="site", target="y").classes == ("1", "2", "none")


def test_sparse_matrices_are_named():
    X = scipy.sparse.csr_array(np.eye(10))
    with pytest.raises(ff.FedfuseError, match=r"device 'a': X is a sparse matrix; give X.toarray\(\)"):
        ff.Federation.from_arrays({"a": (X, np.arange(10))})


@pytest.mark.parametrize(
    ("file", "text"), [("history.csv", ""), ("history.csv", "a\n1\n2,3,4\n"), ("summary.json", "[]")]
)
def test_watching_a_damaged_run(refused, finished, here, file, text):
    shutil.copytree(finished, here / "run")
    (here / "run" / file).write_text(text)
    assert re.search("contains no complete run of fedfuse|history.csv is damaged", refused("watch", "run"))
