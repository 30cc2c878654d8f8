"""The command line as a person uses it: one clear line for bad input, groups and files for good input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedfuse as ff
from fedfuse.data import load
from fedfuse.errors import FedfuseError
from fedfuse.methods.registry import METHODS
from fedfuse.protocol.local_work import Work
from fedfuse.report.terminal import ProgressBar
from fedfuse.results.result import Result
from fedfuse.results.run_directory import RunDirectory
from fedfuse.training.options import build_method, keys, parse_options
from fedfuse.training.presets import TABLE_STEPS, preset
from fedfuse.utils.files import read_arrays, write_arrays

CONTRACT = {
    *("dataset", "method", "seed", "lam", "rounds", "stages", "metric", "test", "validation", "n_clusters", "ari"),
    *("cost_floats", "seconds", "labels", "suspects", "unsure", "version"),
}
COMMAND = [sys.executable, "-m", "fedfuse"]


TABLE = ["--device", "site", "--target"]
QUICK = ["--lam", "0.3", "--rounds", "200", "--no-baselines"]


# ------------------------------------------------------------------------------------------- good input


def score_of(out, words):
    (line,) = (line for line in out.splitlines() if line.startswith(words))
    return float(line.split()[-1])


def test_a_regression_table(fedfuse, tables):
    status, out, err = fedfuse("run", "stay.csv", *TABLE, "stay", "--lam", "0.3", "--out", "run")
    assert (status, err) == (0, "")
    assert out.startswith("10 sites form 2 groups, each with its own model.\nOne model per group predicts ")
    assert "\nconverged after " in out
    lines = [line.split() for line in out.splitlines()]
    assert ["1", "6"] in [words[:2] for words in lines]
    assert ["2", "4"] in [words[:2] for words in lines]
    assert score_of(out, "one model per group") < 0.2 < score_of(out, "one model for all")
    assert score_of(out, "one model per group") < 1.1 * score_of(out, "a separate model per site")
    told = out.index("what tells the groups apart (stay per unit of the feature):")
    assert out[told:].splitlines()[2].split()[0] == "age"
    assert "files: run\n" in out
    assert "fedfuse predict run new.csv" in out
    assert "The grouping is a stationary point of FPFC's objective" in " ".join(out.split())
    assert set(json.loads(Path("run/summary.json").read_text())["certificate"]) == {"low", "high", "residual"}


def test_a_classification_table(fedfuse, tables):
    """Text classes; the files name features, classes and devices as the table does."""
    status, out, err = fedfuse("run", "outcome.csv", *TABLE, "outcome", *QUICK, "--out", "run")
    assert (status, err) == (0, "")
    assert "log-odds of well against ill per unit of the feature" in out
    assert pd.read_csv("run/labels.csv")["cluster"].tolist() == [0] * 6 + [1] * 4
    coefficients = pd.read_csv("run/coefficients.csv", index_col=["cluster", "output"])
    assert coefficients.index.tolist() == [(0, "ill"), (0, "well"), (1, "ill"), (1, "well")]
    assert {"age", "dose", "dose missing", "ward=north", "intercept"} <= set(coefficients.columns)
    effect = [coefficients["age"][c, "well"] - coefficients["age"][c, "ill"] for c in (0, 1)]
    np.testing.assert_allclose(effect, [1 / 6, -1 / 6], atol=0.04)  # per year, as planted
    assert pd.read_csv("run/contrasts.csv")["feature"].iloc[0] == "age"


def test_a_network_on_a_table(fedfuse, tables):
    """Its work has defaults, too."""
    pytest.importorskip("torch")
    words = ("--model", "mlp", "--rounds", "12", "--json")
    status, out, err = fedfuse("run", "outcome.csv", *TABLE, "outcome", *words)
    assert (status, err) == (0, "")
    summary = json.loads(out)
    assert summary["rounds"] == 12
    assert summary["test"] > 0.6


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (("rnu", "digits"), "Did you mean 'run'?"),
        (("run", "stay.csv", *TABLE, "stay", "--model", "mpl"), "did you mean 'mlp'?"),
        (("bench", "--only", "servr"), "did you mean 'server'?"),
    ],
)
def test_a_slip_of_the_finger_is_guessed_once(fedfuse, tables, words, question):
    status, _, err = fedfuse(*words)
    assert status == 2
    assert err.count(question) == 1
    assert err.lower().count("did you mean") == 1


def test_more_than_two_classes(fedfuse, tables):
    """One number per feature: by how much its coefficients differ between groups."""
    frame = tables.drop(columns="outcome").assign(stay=pd.qcut(tables["stay"], 3, labels=["short", "mid", "long"]))
    frame.to_csv("stays.csv", index=False)
    status, out, _ = fedfuse("run", "stays.csv", *TABLE, "stay", *QUICK)
    assert status == 0
    table = out[out.index("what tells the groups apart (root mean square difference") :].splitlines()
    assert table[1].split() == ["feature", "contrast"]
    assert table[2].split()[0] == "age"


def test_json_is_all_there_is_on_standard_output(fedfuse, tables):
    status, out, err = fedfuse("run", "stay.csv", *TABLE, "stay", *QUICK, "--json", "--out", "run")
    assert (status, err) == (0, "")
    summary = json.loads(out, parse_constant=pytest.fail)
    assert set(summary) >= CONTRACT
    assert summary["n_clusters"] == 2
    assert summary["ari"] is None
    assert summary["metric"] == "rmse"
    assert summary["dataset"] == "stay.csv"
    assert summary == json.loads(Path("run/summary.json").read_text())


def test_runs_get_directories_of_their_own(fedfuse, tables):
    for _ in range(2):
        assert fedfuse("run", "stay.csv", *TABLE, "stay", *QUICK)[0] == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["stay-fpfc-seed0-1", "stay-fpfc-seed0-2"]


def test_notes_are_shown_once_and_on_standard_error(fedfuse, tables):
    tables.drop(columns="outcome").assign(empty=np.nan).to_csv("odd.csv", index=False)
    status, out, err = fedfuse("run", "odd.csv", *TABLE, "stay", *QUICK)
    assert status == 0
    assert err == "note: column 'empty' is dropped: it is empty in all training rows\n"
    assert "note" not in out


def test_a_run_on_synthetic_data(fedfuse):
    words = ["--rounds", "2", "--method", "fpfc-l1", "--no-baselines"]
    status, out, _ = fedfuse("run", "synthetic:S4", *words, "--lam", "0.6", "--set", "refit=no")
    assert status == 0
    assert out.startswith(
        "All 50 devices form one group and share a model. Agreement with the true groups: ARI 1.000.\n"
    )
    assert "\nstopped after 2 rounds" in out
    assert "not converged" in out
    assert "predict" not in out
    assert Path("runs/synthetic-S4-fpfc-l1-seed0-1/summary.json").exists()
    # a refit comes to its end, but the groups it began with did not
    assert "\nstopped after 2 rounds" in fedfuse("run", "synthetic:S4", *words)[1]


def test_a_table_without_a_lambda(fedfuse, tables):
    """What most people will type first."""
    for target in ("stay", "outcome"):
        status, out, err = fedfuse("run", f"{target}.csv", *TABLE, target, "--out", target)
        assert (status, err) == (0, "")
        assert out.startswith(
            "10 sites form 2 groups, each with its own model.\nOne model per group is used, as nothing "
        )
        summary = json.loads(Path(target, "summary.json").read_text())
        assert summary["labels"] == [0] * 6 + [1] * 4
        assert (summary["method"], summary["lam"]) == ("fusion-tree", None)
        assert (summary["uncertain"], summary["unsure"]) == (False, [])
        assert summary["stability"] > 0.9


TUNINGS = {
    "--method fedavg": "'fedavg' has no setting 'lam'",
    "--method cfl": "'cfl' has no setting 'lam'",
    "--strategy both": "strategy must be 'warmup' or 'separate'",
}


@pytest.mark.parametrize("words", TUNINGS)
def test_what_cannot_be_tuned(refused, tables, words):
    assert TUNINGS[words] in refused("tune", "stay.csv", *TABLE, "stay", *words.split())


def test_the_oracle_needs_the_truth(fedfuse, refused, tables):
    status, out, _ = fedfuse("run", "synthetic:S4", "--method", "oracle", "--json")
    assert (status, json.loads(out)["ari"]) == (0, 1.0)
    line = "the oracle needs the true groups, but these data have none"
    status, out, err = fedfuse("run", "stay.csv", *TABLE, "stay", "--method", "oracle")
    assert (status, out, err) == (2, "", f"fedfuse: {line}\n")
    assert "method 'oracle' has no setting 'lam'" in refused("run", "synthetic:S4", "--method", "oracle", "--lam", "1")


@pytest.mark.skipif(not os.environ.get("FEDFUSE_DATA"), reason="FEDFUSE_DATA does not say where the data are")
def test_housing_and_body_fat(fedfuse):
    status, out, _ = fedfuse("run", "housing-bodyfat", "--lam", "4", "--set", "refit=no", "--json")
    summary = json.loads(out)
    assert status == 0
    assert summary["metric"] == "rmse"
    assert summary["cost_floats"] == 8 * 15 + summary["rounds"] * 2 * 2 * 15
    assert len(summary["labels"]) == 8


def test_many_groups_are_cut_short(fedfuse, tables):
    status, out, _ = fedfuse("run", "stay.csv", *TABLE, "stay", "--lam", "0", "--rounds", "3", "--no-baselines")
    assert status == 0
    assert "No two of the 10 sites share a model." in out
    frame = pd.concat([tables.assign(site=tables["site"] + 10 * k) for k in range(2)])
    frame.drop(columns="outcome").to_csv("more.csv", index=False)
    out = fedfuse("run", "more.csv", *TABLE, "stay", "--lam", "0", "--rounds", "3", "--no-baselines")[1]
    assert "8 more groups, in labels.csv" in out


def test_diverging_training_is_explained(fedfuse, tables):
    words = ["--lam", "0.6", "--set", "solver=gd", "--set", "lr=1000", "--rounds", "3", "--no-baselines"]
    with np.errstate(over="ignore", invalid="ignore"):
        status, out, _ = fedfuse("run", "stay.csv", *TABLE, "stay", *words)
    assert status == 0
    assert "uploads refused" in out
    assert "local training diverges: try a smaller step" in out


def test_trouble_that_was_asked_for_is_not_explained_away(fedfuse, tables):
    words = ["--lam", "0.6", "--rounds", "20", "--no-baselines", "--set", "lossy=late:0.3,twice:0.3,nan:0.2"]
    out = fedfuse("run", "stay.csv", *TABLE, "stay", *words)[1]
    assert "refused: not finite" in out
    assert "refused: came after its round was over" in out
    assert "refused: answer to an order no longer open" in out
    assert "diverges" not in out


def test_slow_devices_are_not_called_liars(fedfuse, tables):
    slow = ["--set", "compute=per_node(lognormal(0,1))", "--set", "deadline=2"]
    status, out, _ = fedfuse(
        "run", "stay.csv", *TABLE, "stay", "--lam", "0.6", "--rounds", "30", *slow, "--out", "slow"
    )
    result = Result.load("slow")
    assert status == 0
    assert 0 < result.unheard.size < len(result.labels)
    assert "never answered in time and have no models of their own: " in out
    assert "lie" not in out
    page = Path("slow/report.html").read_text()
    assert "never answered in time" in page
    assert "No answer" in page


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["predict", "--help"], []])
def test_help(fedfuse, words):
    status, out, err = fedfuse(*words)
    assert (status, err) == (0, "")
    assert "Usage: fedfuse" in out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run", "synthetic:5,5,5,5 for group sizes"),
        ("run", "fedasync"),
        ("run", "(default: fusion-tree; with --lam, fpfc)"),
        ("run", "(default: by data set and method"),
        ("predict", "The directory of a finished run on a table."),
        ("predict", "with the same columns"),
        ("join", "columns as that of the run"),
        ("report", "The directory of a finished run"),
        ("paper", "names shown by list"),
        ("data fetch", "mnist, fashion-mnist"),
    ],
)
def test_arguments_are_explained(fedfuse, monkeypatch, command, words):
    monkeypatch.setenv("COLUMNS", "200")
    assert words in fedfuse(*command.split(), "--help")[1]


def test_help_names_all_methods(fedfuse, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert ", ".join(METHODS) in fedfuse("run", "--help")[1]


def test_a_network_says_why_there_is_nothing_beside_its_score(fedfuse):
    pytest.importorskip("torch")
    out = fedfuse("run", "digits", "--rounds", "1", "--no-report")[1]
    assert "are fitted for linear and softmax models only" in out
    assert "a separate model per device" not in out


def test_version(fedfuse):
    assert fedfuse("--version") == (0, f"fedfuse {ff.__version__}\n", "")


def test_the_data_sets_with_names(fedfuse, here):
    status, out, err = fedfuse("data", "list", "--data-dir", here)
    assert status == 0
    rows = {line.split()[0]: line.split()[-1] for line in out.splitlines()[1:]}
    images = {
        name + kind: name == "digits" for name in ("mnist", "fashion-mnist", "digits") for kind in ("", ":rotated")
    }
    known = {**{f"synthetic:S{k}": True for k in range(1, 6)}, "housing-bodyfat": False, **images}
    assert rows == {name: "yes" if present else "no" for name, present in known.items()}
    assert str(here) in err.replace("\n", "")


def test_missing_images_say_how_to_get_them(fedfuse, here):
    status, out, err = fedfuse("run", "mnist", "--data-dir", here)
    assert (status, out) == (2, "")
    assert "'fedfuse data fetch mnist', or set FEDFUSE_DATA (or --data-dir)" in err


# -------------------------------------------------------------------------------------------- bad input

SETTINGS = {
    "--lam -1": "lambda must be at least 0, got -1",
    "--lam nan": "lambda must be a finite number, got nan",
    "--lam much": "lam takes a number, auto, warmup or separate, got 'much'",
    "--method fpfc-l1 --lam auto": "fpfc-l1 has no lam='auto': its groups depend on lambda; give a number",
    "--rounds 0": "rounds must be a whole number of at least 1, got 0",
    "--rounds ten": "Invalid value for '--rounds': 'ten' is not a valid int",
    "--seed 1.5": "Invalid value for '--seed': '1.5' is not a valid int",
    "--seed -3": "seed must be a whole number of at least 0, got -3",
    "--method fpcf": "unknown method 'fpcf'; did you mean 'fpfc'? known: fusion-tree, fpfc, ",
    "--method moon": "unknown method 'moon'; known: fusion-tree, fpfc, fpfc-l1, local, fedavg, fedasync, lg-",
    "--engine cloud": "unknown engine 'cloud'; known: inprocess, workers, flower",
    "--set workers=2": "engine 'inprocess' has no workers; workers=2 is for engine 'workers'",
    "--engine workers --set workers=0": "workers must be a whole number of at least 1, got 0",
    "--set participation=sizes(2)": "participation by sizes must be a share above 0 and at most 1, got 2.0",
    "--set participation=0.5,0": "a device's probability to take part must be a share above 0",
    "--set mode=later": "mode must be 'sync' or 'async', got 'later'",
    "--set mode=async": "fusion-tree cannot be trained asynchronously: it needs the replies of a whole round",
    "--method ifca --set mode=async": "ifca cannot be trained asynchronously: it needs the replies of a whole round",
    "--set delay=fast": "'fast' is not a distribution of times; known: a number, uniform(a,b)",
    "--set lossy=often": "lossy takes name:probability with commas (lost, late, twice, stale, nan), got 'often'",
    "--set deadline=0": "deadline must be a number above 0, got 0.0",
    "--set late=maybe": "late must be 'refuse' or 'use', got 'maybe'",
    "--set steps=uneven(0)": "steps: uneven takes a whole number of at least 1, got uneven(0)",
    "--task guess": "--task must be classification or regression, got 'guess'",
    "--features normal": "--features normal is for synthetic data only",
    "--colour red": "No such option",
    "--set participation=0": "participation must be a share above 0 and at most 1, got 0.0",
    "--set participation=1.5": "participation must be a share above 0 and at most 1, got 1.5",
    "--set participation=nan": "participation must be a share above 0 and at most 1, got nan",
    "--set participation=half": "participation takes a share above 0 and at most 1, or sizes(share), got 'half'",
    "--lam 0.6 --set nu=close": "nu takes a number, got 'close'",
    "--lam 0.6 --set nu=-1": "nu must be a number above 0, got -1",
    "--lam 0.6 --set nu=nan": "nu must be a number above 0, got nan",
    "--set nu": "--set takes key=value, got 'nu'",
    "--lam 0.6 --set xi=0.6": "xi must lie between 0 and lambda = 0.6, got xi = 0.6",
    "--lam 0.6 --set xi=0": "xi must lie between 0 and lambda = 0.6, got xi = 0",
    "--set xi=0.1": "method 'fusion-tree' has no setting 'xi'; it belongs to fpfc. Settings of 'fusion-tree': personal",
    "--lam 0.6 --set xi=nan": "xi must be a finite number, got nan",
    "--lam 0.6 --set refit=maybe": "refit takes yes or no, got 'maybe'",
    "--lam 0.6 --set rho=0.3": "rho must exceed 1/(a - 1) = 0.3704 for a = 3.7",
    "--lam 0.6 --set rho=-1": "rho must be positive, got -1",
    "--lam 0.6 --set a=2": "SCAD needs a > 2, got a = 2; 3.7 is usual",
    "--method fpfc-l1 --set a=3": "method 'fpfc-l1' has no setting 'a'; it belongs to fpfc. Settings of 'fpfc-l1': ",
    "--set start=warm": "start must be 'auto', 'zero' or 'normal', got 'warm'",
    "--set rows=test": "rows must be 'train' or 'train+validation' (test rows are never trained on)",
    "--set steps=0": "steps must be a whole number of at least 1, got 0",
    "--set steps=2.5": "steps must be a whole number of at least 1, got 2.5",
    "--set steps=nan": "steps must be a whole number of at least 1, got nan",
    "--set steps=many": "steps: 'many' is neither a number nor a schedule",
    "--set steps=grow(0)": "steps: the numbers of a schedule must be positive, got grow(0)",
    "--set lr=0": "lr must be a positive number, got 0",
    "--set batch=0": "batch must be a whole number of at least 1, got 0",
    "--set batch=1.5": "batch takes a whole number or 'all', got '1.5'",
    "--set solver=magic": "solver must be 'gd' or 'exact', got 'magic'",
    "--set dtype=float16": "dtype must be 'float32' or 'float64', got 'float16'",
    "--set tol=-1": "tol must be a number of at least 0, got -1.0",
    "--set checkpoint_every=0": "checkpoint_every must be a whole number of at least 1, got 0",
    "--set partcipation=0.5": "there is no setting 'partcipation'; did you mean 'participation'?",
}


@pytest.mark.parametrize("words", SETTINGS)
def test_bad_settings(refused, tables, words):
    assert SETTINGS[words] in refused("run", "stay.csv", *TABLE, "stay", *words.split())


def test_the_same_words_in_python():
    for words, message in SETTINGS.items():
        key, _, value = words.removeprefix("--lam 0.6 ").removeprefix("--set ").partition("=")
        if words.startswith("--lam 0.6") and key in ("xi", "rho", "a", "nu"):
            try:
                number = float(value)
            except ValueError:
                continue
            with pytest.raises(FedfuseError) as caught:
                ff.FPFC(lam=0.6, **{key: number})
            assert message in str(caught.value)


def csv(text):
    Path("t.csv").write_text(text)
    return "t.csv"


def rows(site="ab", n=20, x=lambda i: f"{i % 7}.5", y=lambda i: f"{i % 5}.25"):
    return "".join(f"{site[i % len(site)]},{x(i)},{y(i)}\n" for i in range(n))


HEAD = "site,x,y\n"
BAD_TABLES = {
    "empty file": ("", "is empty"),
    "no rows": (HEAD, "holds no rows"),
    "one class": (
        HEAD + rows(y=lambda i: "sick"),
        "the target is sick in every row, so there is nothing to learn",
    ),
    "one value": (HEAD + rows(y=lambda i: "1.5"), "the target is 1.5 in every row"),
    "too few rows": (HEAD + rows() + "c,1.5,2.5\nc,1.0,2.0\n", "too few rows on 1 of 3 devices: 'c' (2)"),
    "infinite": (HEAD + rows(x=lambda i: "inf" if i == 3 else f"{i}"), "device 'b', column 'x', row 3"),
    "infinite target": (
        HEAD + rows(y=lambda i: "inf" if i == 3 else f"{i}.5"),
        "device 'b', column 'y', row 3",
    ),
    "different numbers of fields": (HEAD + rows() + "a,1,2,3,4\n", "Expected 3 fields in line 22, saw 5"),
    "no feature": (
        HEAD + rows(x=lambda i: "1"),
        "no usable feature column is left beside 'site' and 'y'; columns that are empty, do not vary or are",
    ),
    "no device": (
        HEAD + rows(site=[""]),
        "no row has both a device (column 'site') and a target (column 'y')",
    ),
    "numbers with a limit of detection": (
        HEAD + rows(n=60, x=lambda i: ">9" if i == 5 else f"{i}.125"),
        "column 'x' looks like numbers but holds text such as '>9'",
    ),
    "identifiers as classes": (HEAD + rows(y=lambda i: f"k{i}"), "two such classes are needed"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables(refused, here, case):
    text, words = BAD_TABLES[case]
    assert words in refused("run", csv(text), *TABLE, "y")


def test_few_rows_are_enough_without_a_test(fedfuse, refused, here):
    """The refusal names the options that help, and they do; a resumed run has the same parts."""
    csv(HEAD + rows(site="abc", n=6))
    assert "fewer are needed with --test 0 or --validation 0" in refused("run", "t.csv", *TABLE, "y")
    for shares in (["--test", "0"], ["--validation", "0", "--out", "run"]):
        assert fedfuse("run", "t.csv", *TABLE, "y", *shares, "--no-report")[0] == 0
    source = json.loads(Path("run/config.json").read_text())["source"]
    assert source["validation"] == 0
    assert load(**source).rows("validation").counts.tolist() == [0, 0, 0]
    assert "test must be a share of at least 0 and below 1, got 2.0" in refused(
        "run", "t.csv", *TABLE, "y", "--test", "2"
    )


def test_columns_that_are_not_there(refused, tables):
    line = refused("run", "stay.csv", "--device", "sight", "--target", "stay")
    assert "the table has no device column 'sight'; did you mean 'site'? its columns are 'site', 'age'" in line
    line = refused("run", "stay.csv", "--device", "site", "--target", "outcome")
    assert "the table has no target column 'outcome'" in line
    line = refused("run", "stay.csv", "--device", "site")
    assert "say which column is the target (--device, --target); its columns are 'site', 'age'" in line
    assert "are both 'site'" in refused("run", "stay.csv", "--device", "site", "--target", "site")


def test_text_where_numbers_are_needed(refused, tables):
    line = refused("run", "outcome.csv", *TABLE, "outcome", "--task", "regression").replace("'ill'", "'well'")
    assert "the target column 'outcome' holds 'well', but a regression needs numbers" in line
    assert "use --task classification" in line
    line = refused("run", "stay.csv", *TABLE, "stay", "--task", "classification")
    assert "two such classes are needed; for numbers try --task regression" in line


def test_data_sets_that_are_not_there(refused, here):
    assert "no data set is called 'synthetic:S9'; did you mean" in refused("run", "synthetic:S9")
    assert "there is no file" in refused("run", "gone.csv", *TABLE, "y")
    assert "--device site is for tables only" in refused("run", "synthetic:S1", "--device", "site")
    assert "features must be" in refused("run", "synthetic:S4", "--features", "cauchy")
    assert "needs the file" in refused("run", "housing-bodyfat", "--data-dir", here / "nothing")
    assert "Missing argument 'dataset'" in refused("run").replace("DATASET", "dataset")
    assert "No such command 'train'" in refused("train")


def test_a_directory_that_holds_a_run(refused, fedfuse, tables):
    words = ["run", "stay.csv", *TABLE, "stay", *QUICK, "--out", "run"]
    assert fedfuse(*words)[0] == 0
    assert "run already holds a run: choose another directory" in refused(*words)
    assert "stay.csv is a file; a run needs a directory" in refused(*words[:-1], "stay.csv")


@pytest.mark.parametrize(
    ("problem", "status", "line"),
    [
        (MemoryError("Unable to allocate 9 GiB"), 2, "not enough memory: Unable to allocate 9 GiB"),
        (OSError(28, "No space left on device", "x"), 2, "No space left on device: x"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=["memory", "disk", "ctrl-c"],
)
def test_troubles_of_the_machine_are_one_line_too(fedfuse, monkeypatch, problem, status, line):
    def fail(store):
        raise problem

    monkeypatch.setattr(RunDirectory, "check_free", fail)
    assert fedfuse("run", "synthetic:S4") == (status, "", f"fedfuse: {line}\n")


def test_a_directory_that_cannot_be_made(refused, tables):
    line = refused("run", "stay.csv", *TABLE, "stay", *QUICK, "--out", "stay.csv/run")
    assert "cannot write to stay.csv/run: Not a directory" in line


# ------------------------------------------------------------------------------------- stop and resume


@pytest.fixture
def stopped(fedfuse, tables, monkeypatch):
    """Run on a table until Ctrl-C comes after some round; returns the run's directory."""

    def call(directory, after=60, seed="0"):
        def interrupt(bar, run, row):
            if run.k == after:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(ProgressBar, "on_round", interrupt)
            words = [*TABLE, "stay", *QUICK, "--set", "tol=0", "--seed", seed]
            status, out, err = fedfuse("run", "stay.csv", *words, "--out", directory)
        assert (status, out) == (130, "")
        assert err == f"fedfuse: interrupted; continue with: fedfuse resume {directory}\n"
        return Path(directory)

    return call


def test_resumed_equals_uninterrupted(stopped, fedfuse, here, monkeypatch):
    """From another folder, too: the run remembers where its table is."""
    stopped("cut")
    assert fedfuse("run", "stay.csv", *TABLE, "stay", *QUICK, "--set", "tol=0", "--out", "whole")[0] == 0
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    status, out, _ = fedfuse("resume", here / "cut")
    assert status == 0
    assert "10 sites form 2 groups" in out
    for name in ("models.npz", "labels.csv", "coefficients.csv"):
        assert (here / "cut" / name).read_bytes() == (here / "whole" / name).read_bytes()
    again = json.loads(fedfuse("resume", here / "cut", "--json")[1])
    assert again["rounds"] == 200


def test_a_checkpoint_cut_short(stopped, refused):
    path = stopped("cut") / "checkpoint/latest.npz"
    path.write_bytes(path.read_bytes()[:-1000])
    line = refused("resume", "cut")
    assert "cut/checkpoint/latest.npz is damaged or cut short" in line
    assert "remove it to start the run again" in line


def test_a_checkpoint_of_another_federation(stopped, refused):
    run, other = stopped("cut"), stopped("other", seed="1")
    (run / "checkpoint/latest.npz").write_bytes((other / "checkpoint/latest.npz").read_bytes())
    assert "the checkpoint belongs to another federation: the data differ" in refused("resume", "cut")


def test_a_checkpoint_that_lost_something(stopped, refused):
    path = stopped("cut") / "checkpoint/latest.npz"
    arrays = read_arrays(path)
    del arrays["state.omega"]
    write_arrays(path, arrays)
    assert "the checkpoint is not one of this method: 'omega' is missing" in refused("resume", "cut")


def test_a_table_that_changed_since(stopped, refused, tables):
    stopped("cut")
    tables.drop(columns="outcome").iloc[1:].to_csv("stay.csv", index=False)
    assert "the run in cut belongs to another federation: the data differ" in refused("resume", "cut")


def test_directories_that_hold_no_run(refused, stopped, here):
    (here / "empty").mkdir()
    assert "empty holds no run of fedfuse: config.json is missing" in refused("resume", "empty")
    assert "nowhere holds no run of fedfuse" in refused("resume", "nowhere")
    assert "nowhere holds no run of fedfuse" in refused("predict", "nowhere", "stay.csv")
    (here / "foreign").mkdir()
    (here / "foreign/config.json").write_text('{"a": 1}')
    assert "foreign holds no run that can be resumed: config.json lacks 'settings'" in refused("resume", "foreign")
    stopped("cut")
    assert "the run in cut is not finished: continue it with 'fedfuse resume cut'" in refused(
        "predict", "cut", "stay.csv"
    )


# ---------------------------------------------------------------------------------------------- predict


@pytest.fixture(params=["stay", "outcome"])
def trained(request, fedfuse, tables):
    status, _, err = fedfuse("run", f"{request.param}.csv", *TABLE, request.param, *QUICK, "--out", "run")
    assert status == 0, err
    return Result.load("run")


def test_predictions_are_the_results_own(trained, fedfuse, tables):
    """Parquet in, CSV out; the target may be missing; every row by its device."""
    pytest.importorskip("pyarrow")
    new = tables.iloc[:50].drop(columns=["stay", "outcome"])
    new.to_parquet("new.parquet")
    assert fedfuse("predict", "run", "new.parquet", "--out", "answer.csv") == (0, "", "")
    answer = pd.read_csv("answer.csv", index_col="row", dtype={"device": str})
    expected = trained.predict_frame(new)
    assert answer["device"].tolist() == expected["device"].tolist() == new["site"].astype(str).tolist()
    assert answer["cluster"].tolist() == expected["cluster"].tolist()
    X = trained.profile.encoder.transform(new)
    for row in range(50):
        (value,) = trained.predict(str(new["site"].iloc[row]), X[row : row + 1])
        got = answer["prediction"].iloc[row]
        assert got == value if isinstance(value, str) else got == pytest.approx(value, rel=1e-9)


def test_unknown_devices_are_named_and_predicted_by_one_model_for_all(trained, fedfuse, tables):
    new = tables.iloc[:6].copy()
    new["site"] = ["3", "x9", "x10", "x9", None, "0"]
    new.to_csv("new.csv", index=False)
    status, out, err = fedfuse("predict", "run", "new.csv")
    assert status == 0
    assert err == "4 of 6 rows of unknown devices predicted by one model for all: (none), x10, x9\n"
    Path("answer.csv").write_text(out)
    answer = pd.read_csv("answer.csv")
    assert answer["prediction"].notna().all()
    assert answer["cluster"].isna().tolist() == [False, True, True, True, True, False]


def test_new_levels_and_missing_values_are_predicted(trained, fedfuse, tables):
    new = tables.iloc[:4].copy()
    new["ward"], new["dose"], new["age"] = ["west", None, "north", "east"], np.nan, [np.nan, 50, 60, 70]
    new.to_csv("new.csv", index=False)
    status, out, err = fedfuse("predict", "run", "new.csv")
    assert (status, err) == (0, "")
    assert len(out.splitlines()) == 5
    assert ",," not in out


def test_tables_that_cannot_be_predicted(trained, refused, tables):
    tables.drop(columns="site").to_csv("a.csv", index=False)
    assert "the table has no device column 'site'" in refused("predict", "run", "a.csv")
    tables.drop(columns="ward").to_csv("b.csv", index=False)
    assert "the table has no column 'ward'" in refused("predict", "run", "b.csv")
    tables.assign(age="old").to_csv("c.csv", index=False)
    assert "column 'age', row 0 (from 0): the value is 'old', but numbers are needed" in refused(
        "predict", "run", "c.csv"
    )
    assert "there is no file" in refused("predict", "run", "gone.csv")
    assert "predictions are written as .csv" in refused("predict", "run", "stay.csv", "--out", "x.parquet")
    assert "No such file or directory" in refused("predict", "run", "stay.csv", "--out", "no/where.csv")


def test_a_run_without_a_table_cannot_predict(fedfuse, refused, tables):
    fedfuse("run", "synthetic:S4", "--rounds", "1", "--no-baselines", "--out", "run")
    assert "was not trained on a table" in refused("predict", "run", "stay.csv")


# ---------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("dataset", "work", "settings"),
    [
        ("synthetic:S1", Work(steps=10, lr=0.1), {"participation": 0.3, "rounds": 2000}),
        ("housing-bodyfat", Work(steps=20, lr=0.01), {"participation": 0.3, "rounds": 200}),
        ("some.csv", Work(solver="exact"), {}),
    ],
)
def test_presets_are_the_papers(dataset, work, settings):
    assert preset(dataset).work == work
    assert preset(dataset).settings == settings


def test_defaults_of_a_method():
    """LOCAL has as many steps on each device as 30 % of 2000 rounds; Per-FedAvg never solves exactly."""
    assert preset("synthetic:S2", "local").settings == {"participation": 0.3, "rounds": 600}
    assert preset("some.csv", "per-fedavg").work == TABLE_STEPS
    assert preset("some.csv", "fedavg").work == Work(solver="exact")


# keys of methods other than FPFC
OTHERS = {
    "personal": ("fusion-tree", "no", False), "graph": ("fpfc", "knn:5", "knn:5"),
    "n_models": ("ifca", "3", 3), "average": ("ifca", "gradient", "gradient"), "temperature": ("ifca", "0.5", 0.5),
    "restarts": ("ifca", "10", 10), "first_draw": ("ifca", "2", 2), "weights": ("lg-fedavg", "equal", "equal"),
    "eps1": ("cfl", "0.2", 0.2), "eps2": ("cfl", "auto", "auto"), "linkage": ("cfl", "single", "single"),
    "relative": ("cfl", "no", False),
    "threshold": ("pacfl", "4.5", 4.5), "p": ("pacfl", "3", 3), "angle": ("pacfl", "principal", "principal"),
    "evaluate": ("pacfl", "cluster", "cluster"), "adapt_lr": ("per-fedavg", "0.05", 0.05),
    "variant": ("per-fedavg", "hessian-free", "hessian-free"),
    "alpha": ("fedasync", "0.5", 0.5), "power": ("fedasync", "1", 1.0),
    "mu": ("fedprox", "auto", "auto"), "server_lr": ("scaffold", "0.5", 0.5), "tune_steps": ("fedavg-ft", "7", 7),
    "head_steps": ("fedrep", "3", 3), "rate": ("pfedme", "0.2", 0.2),
    "local_rounds": ("pfedme", "4", 4), "beta": ("pfedme", "0.5", 0.5), "sigma": ("fedamp", "2", 2.0),
    "every": ("mocha", "5", 5), "form": ("fedamp", "heuristic", "heuristic"), "self_weight": ("fedamp", "0.3", 0.3),
    "tau": ("stocfl", "0.7", 0.7), "before": ("fl-hc", "4", 4), "local_steps": ("odcl-cc", "3", 3),
}  # fmt: skip


@pytest.mark.parametrize("key", OTHERS)
def test_every_key_of_other_methods_reaches_its_place(key):
    name, text, value = OTHERS[key]
    assert getattr(build_method(name, Work(), parse_options([f"{key}={text}"])), key) == value


def test_every_key_reaches_its_place():
    texts = {
        "steps": "grow(5)", "lr": "decay(0.1,0.5,3)", "batch": "32", "solver": "gd", "start": "normal",
        "momentum": "0.9", "decay": "0.01", "unit": "batches",
        "rho": "2", "a": "3", "xi": "0.01", "nu": "0.2", "refit": "no", "rows": "train", "participation": "0.5",
        "tol": "0", "evaluate_every": "7", "checkpoint_every": "9", "dtype": "float64", "lam": "0.7", "rounds": "8",
        "preset": "paper",
        "workers": "3", "alpha": "0.5", "power": "1", "mode": "sync", "at_once": "3", "ahead": "7",
        "delay": "uniform(0,20)", "compute": "2", "lossy": "lost:0.1", "deadline": "9.5", "minimum": "2",
        "late": "use", "budget": "100", "robust": "median", "attack": "gaussian", "liars": "0.2",
        "lies": "models", "scope": "fused", "clip": "3", "epsilon": "8", "delta": "1e-6",
        "actors": "3", "grid": "0,0.5,1", "metric": "auc",
        "class_weight": "a=1,b=5", "share": "models",
    }  # fmt: skip
    assert set(texts) | set(OTHERS) == set(keys())
    options = parse_options([f" {key} = {text} " for key, text in texts.items()])
    assert options.preset == {"preset": "paper"}
    assert options.method.pop("alpha") == 0.5
    assert options.method.pop("power") == 1.0
    method = build_method("fpfc", Work(), options)
    assert method == ff.FPFC(
        lam=0.7, refit=False, rho=2, a=3, xi=0.01, nu=0.2, start="normal", rows="train", robust="median",
        actors=3, grid=(0.0, 0.5, 1.0),
        work=Work(ff.Grow(5), ff.Decay(0.1, 0.5, 3), 32, "gd", 0.9, 0.01, "batches"),
    )  # fmt: skip
    assert options.engine == {"workers": 3}
    assert ff.Settings(**options.settings) == ff.Settings(
        rounds=8, participation=0.5, tol=0.0, evaluate_every=7, checkpoint_every=9, dtype="float64", at_once=3, ahead=7,
        delay="uniform(0,20)", compute="2", lossy="lost:0.1", deadline=9.5, minimum=2, late="use",
        budget=100, attack="gaussian", liars=0.2, lies="models", scope="fused",
        clip=3.0, epsilon=8.0, delta=1e-6, metric="auc", class_weight="a=1,b=5", share="models",
    )  # fmt: skip
    assert build_method("fedasync", Work(), parse_options(["alpha=0.5", "power=1"])).alpha == 0.5
    assert parse_options(["batch=all"]).work == {"batch": None}


def test_an_asynchronous_run(fedfuse, tables):
    """By one command, on a virtual clock, in trouble; its directory says so."""
    words = ["mode=async", "delay=uniform(0,20)", "compute=per_node(lognormal(0,1))", "lossy=lost:0.1", "deadline=30"]
    options = [word for pair in words for word in ("--set", pair)]
    status, out, err = fedfuse("run", "stay.csv", *TABLE, "stay", *QUICK, *options, "--out", "run", "--json")
    assert status == 0, err
    summary = json.loads(out)
    orders = summary["orders"]
    assert orders["sent"] == orders["used"] + orders["refused"] + orders["unanswered"]
    history = Result.load("run").history
    assert history["time"].iloc[-1] > 60
    assert {"time", "staleness"} <= set(history)
    settings = json.loads(Path("run/config.json").read_text())["settings"]
    assert [settings[word.partition("=")[0]] for word in words] == [*(w.partition("=")[2] for w in words[:-1]), 30.0]


# -------------------------------------------------------------------------------- as a process of its own


def process(*words, **options):
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, check=False, **options)


def test_bad_input_as_a_process(here):
    done = process("run", "synthetic:S1", "--set", "participation=0")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "fedfuse: participation must be a share above 0 and at most 1, got 0.0\n"
    assert list(here.iterdir()) == []


def test_the_reader_may_go_away(here, tables):
    assert process("run", "stay.csv", *TABLE, "stay", *QUICK, "--out", "run").returncode == 0
    big = pd.concat([tables] * 40)
    big.to_csv("big.csv", index=False)
    pipe = f"{' '.join(COMMAND)} predict run big.csv | head -n 1"
    done = subprocess.run(pipe, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout == "row,device,cluster,group,prediction\n"
    assert done.stderr == ""


def test_ctrl_c_then_resume(fedfuse, tables):
    """A real SIGINT to a real process: status 130, one line that says how to go on, the same to the bit."""
    words = ["run", "stay.csv", *TABLE, "stay", "--lam", "0.3", "--rounds", "500", "--set", "tol=0", "--json"]
    running = subprocess.Popen(
        [*COMMAND, *words, "--out", "cut"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not Path("cut/checkpoint/latest.npz").exists() and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=150)
    assert (running.returncode, out) == (130, "")
    assert err == "fedfuse: interrupted; continue with: fedfuse resume cut\n"
    resumed, whole = fedfuse("resume", "cut", "--json"), fedfuse(*words, "--out", "whole")
    assert resumed[0] == whole[0] == 0
    ours, theirs = json.loads(resumed[1]), json.loads(whole[1])
    assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    for name in ("models.npz", "labels.csv"):
        assert Path("cut", name).read_bytes() == Path("whole", name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_s1_has_four_groups(here, seed):
    done = process(
        *(
            "run",
            "synthetic:S1",
            "--lam",
            "0.6",
            "--rounds",
            "200",
            "--seed",
            seed,
            "--set",
            "refit=no",
            "--json",
        )
    )
    assert done.returncode == 0
    summary = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert set(summary) >= CONTRACT
    assert (summary["n_clusters"], summary["ari"]) == (4, 1.0)
    assert (summary["dataset"], summary["method"], summary["lam"]) == ("synthetic:S1", "fpfc", 0.6)
    assert summary["cost_floats"] == 100 * 610 + summary["rounds"] * 30 * 2 * 610


def large_table(n=200_000, sites=50, seed=0):
    """Numbers, categories and gaps; the slope of age turns round in the second half of the sites."""
    rng = np.random.default_rng(seed)
    site = rng.integers(0, sites, n)
    frame = pd.DataFrame({"site": np.char.add("site ", site.astype(str))})
    for j in range(12):
        frame[f"lab{j}"] = np.where(rng.random(n) < 0.05, np.nan, rng.normal(j, 1 + j, n))
    frame["age"] = rng.integers(18, 95, n)
    frame["sex"] = rng.choice(["f", "m"], n)
    frame["ward"] = rng.choice(["north", "south", "east", "west", None], n)
    frame["code"] = rng.choice([f"c{k:02d}" for k in range(30)], n)
    slope = np.where(site < sites // 2, 1, -1)
    score = slope * (frame["age"] - 56) / 12 + 0.5 * (frame["sex"] == "m") + rng.logistic(size=n)
    frame["outcome"] = np.where(score > 0, "well", "ill")
    return frame


@pytest.mark.slow
def test_a_large_table_fits_into_two_gigabytes(here):
    large_table().to_csv("large.csv", index=False)
    words = ["run", "large.csv", "--device", "site", "--target", "outcome", "--json"]
    clock = time.perf_counter()
    with Path("out.json").open("w") as out, subprocess.Popen([*COMMAND, *words], stdout=out) as running:
        _, status, usage = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    seconds, gigabytes = time.perf_counter() - clock, usage.ru_maxrss / 2**20
    print(f"200,000 rows: {seconds:.1f} s ({usage.ru_utime:.1f} s of computing), {gigabytes:.2f} GB")
    assert running.returncode == 0
    assert gigabytes < 2
    assert json.loads(Path("out.json").read_text())["n_clusters"] == 2


def test_sources_of_a_run_can_be_loaded_again(fedfuse, tables):
    fedfuse("run", "stay.csv", *TABLE, "stay", *QUICK, "--out", "run")
    config = json.loads(Path("run/config.json").read_text())
    assert load(**config["source"]).fingerprint == config["fingerprint"]
