"""``fedfuse compare`` and ``tune`` as a person uses them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from fedfuse.report.terminal import ComparisonBars
from support.planted import visits

COMMAND = [sys.executable, "-m", "fedfuse"]


@pytest.fixture
def small(here):
    """A table that takes no time, named s.csv."""
    visits(500).drop(columns="outcome").to_csv("s.csv", index=False)
    return here


DATA = ["s.csv", "--device", "site", "--target", "stay"]
QUICK = ["--rounds", "10", "--set", "refit=no", "--set", "fpfc.lam=0.3", "--jobs", "1"]
WORDS = ["compare", *DATA, "--methods", "fpfc,fpfc-l1", "--seeds", "2", *QUICK]


def test_a_comparison(fedfuse, small):
    status, out, err = fedfuse(*WORDS, "--out", "c")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["method", "RMSE", "groups", "numbers", "sent", "rounds", "seconds"]
    assert [line.split()[0] for line in lines[1:3]] == ["fpfc", "fpfc-l1"]
    assert "s.csv, mean ± standard deviation over 2 seeds" in out
    assert out.endswith("\nfiles: c\nreport: c/report.html\n")
    names = {p.name for p in Path("c").iterdir()}
    assert names == {"compare.json", "report.html", "runs", "scores.csv", "table.csv", "table.json", "table.md"}
    assert len(pd.read_csv("c/scores.csv")) == 2 * 2 * 10
    config = json.loads(Path("c/runs/fpfc-l1-seed1/config.json").read_text())
    assert config["source"]["seed"] == config["settings"]["seed"] == 1


def test_a_search_that_was_cut_short_is_told(fedfuse, here):
    """Its score is no more than a beginning; a network has other stages, and says the same."""
    pytest.importorskip("torch")
    words = ["compare", "digits", "--methods", "fusion-tree,local", "--seeds", "1", "--jobs", "1"]
    out = fedfuse(*words, "--rounds", "5", "--out", "c")[1]
    said = "stopped after 5 rounds, before it had finished"
    assert f"fusion-tree {said}" in out
    assert "local stopped" not in out
    assert said in Path("c/report.html").read_text()


def test_json_is_all_there_is_on_standard_output(fedfuse, small):
    status, out, err = fedfuse(*WORDS, "--json", "--out", "c")
    assert (status, err, out.count("\n")) == (0, "", 1)
    answer = json.loads(out, parse_constant=pytest.fail)
    assert answer == json.loads(Path("c/table.json").read_text())
    assert [row["method"] for row in answer["methods"]] == ["fpfc", "fpfc-l1"]
    assert (answer["metric"], answer["seeds"], answer["dataset"]) == ("rmse", [0, 1], "s.csv")
    assert len(answer["runs"]) == 4
    assert answer["runs"][0]["error"] is None


def test_the_same_again_and_more_seeds(fedfuse, small):
    first = fedfuse(*WORDS, "--json", "--out", "c")[1]
    before = {p: p.stat().st_mtime_ns for p in Path("c/runs").rglob("*")}
    assert fedfuse(*WORDS, "--json", "--out", "c")[1] == first
    assert fedfuse("resume", "c", "--json")[1] == first
    more = [*WORDS[:-len(QUICK) - 1], "0,1,4", *QUICK]  # fmt: skip
    answer = json.loads(fedfuse(*more, "--json", "--out", "c")[1])
    assert answer["seeds"] == [0, 1, 4]
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert json.loads(first)["runs"][0] == answer["runs"][0]


def test_directories_below_runs(fedfuse, small):
    for _ in range(2):
        assert fedfuse("compare", *DATA, "--methods", "fpfc", "--seeds", "1", *QUICK)[0] == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["s-compare-1", "s-compare-2"]


def test_all_without_the_truth(fedfuse, small):
    words = ["--seeds", "1", "--rounds", "2", "--set", "refit=no", "--set", "fpfc.lam=0.3", "--jobs", "1"]
    status, out, err = fedfuse("compare", *DATA, *words, "--json")
    assert status == 0
    assert err == "note: the oracle is left out, because the true groups of these data are unknown\n"
    assert "oracle" not in [row["method"] for row in json.loads(out)["methods"]]


def test_a_failing_method_is_a_row(fedfuse, small):
    words = ["compare", *DATA, "--seeds", "1", *QUICK, "--methods"]
    status, out, err = fedfuse(*words, "fpfc,oracle")
    assert (status, err) == (0, "")
    assert "oracle: 1 of 1 runs failed: the oracle needs the true groups" in out
    words = [word for word in words if word not in ("fpfc.lam=0.3", "refit=no", "--set")]
    status, out, err = fedfuse(*words, "oracle")
    assert (status, out) == (2, "")
    assert err.startswith("fedfuse: all 1 runs failed; oracle, seed 0: the oracle needs")


def test_notes_are_shown_once(fedfuse, small):
    pd.read_csv("s.csv").assign(empty=float("nan")).to_csv("s.csv", index=False)
    status, _, err = fedfuse(*WORDS)
    assert status == 0
    assert err == "note: column 'empty' is dropped: it is empty in all training rows\n"


def test_values_of_a_setting(fedfuse, small):
    words = ["compare", *DATA, "--methods", "fpfc,local", "--over", "lam=0.1,30", "--seeds", "1", "--rounds", "10"]
    status, out, err = fedfuse(*words, "--jobs", "1", "--out", "c")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["fpfc-lam=0.1", "fpfc-lam=30", "local"]
    assert Path("c/runs/fpfc-lam=30-seed0/summary.json").exists()
    assert fedfuse("resume", "c")[1] == out


def test_options_of_tables_reach_every_run(fedfuse, small):
    words = ["--methods", "local", "--seeds", "1", "--jobs", "1", "--out", "c", "--min-rows", "3"]
    assert fedfuse("compare", *DATA, *words)[0] == 0
    assert json.loads(Path("c/runs/local-seed0/config.json").read_text())["source"]["min_rows"] == 3


BAD = {
    "--methods moon": "unknown method 'moon'; known: fusion-tree, fpfc",
    "--methods fpfc,fpfc": "method 'fpfc' is given twice",
    "--seeds 0": "--seeds takes how many (at least 1)",
    "--seeds two": "--seeds takes how many (at least 1) or which (0,5,7; a single one: 5,), got 'two'",
    "--seeds 1,1": "each seed may be given only once",
    "--seeds 1,-2": "seeds must be",
    "--jobs 0": "Invalid value for '--jobs': 0 is not in the range x>=1",
    "--jobs many": "'many' is not a valid int",
    "--rounds 0": "rounds must be a whole number of at least 1",
    "--set participation=2": "participation must be a share",
    "--set color=2": "there is no setting 'color'",
    "--set fpfc.colour=2": "there is no setting 'colour'",
    "--methods fpfc-l1 --set xi=1": "none of the methods compared (fpfc-l1) has a setting 'xi'",
    "--methods fpfc --set oracle.start=zero": "'oracle' is not one of the methods compared",
    "--methods fpfc-l1 --set lam=auto": "fpfc-l1 has no lam='auto'",
    "--set lam=much": "lam takes a number, auto, warmup or separate, got 'much'",
    "--set preset=book": "preset must be 'usual' or 'paper', got 'book'",
    "--set preset=paper": "preset=paper is for the paper's data sets (synthetic, housing-bodyfat, ",
    "--task guess": "--task must be classification or regression",
    "--target gone": "the table has no target column 'gone'",
    "--features normal": "--features normal is for synthetic data only",
    "--over lam": "over takes key=value,value,",
    "--over lam=0.1,,0.2": "over takes key=value,value,",
    "--over lam=1,1": "with every value once",
    "--over lamda=1,2": "there is no setting 'lamda'; did you mean 'lam'?",
    "--over lam=0.1,x": "lam takes a number",
    "--over eps1=1,2 --methods fpfc": "none of the methods compared (fpfc) has a setting 'eps1'",
    "--over lam=1,2 --set lam=3": "lam is given twice",
    "--out s.csv": "s.csv is a file; a run needs a directory",
    "--out s.csv/c": "cannot write to s.csv/c: Not a directory",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input(refused, small, words):
    assert BAD[words] in refused("compare", *DATA, "--seeds", "1", *words.split())


def test_a_directory_with_something_else(fedfuse, refused, small):
    assert fedfuse(*WORDS, "--out", "c")[0] == 0
    line = refused(*WORDS, "--set", "participation=0.5", "--out", "c")
    assert "c holds another comparison: participation was not given and is now 0.5; choose another directory" in line
    assert "c holds another comparison: target was stay and is now age" in refused(
        *(word.replace("stay", "age") for word in WORDS), "--out", "c"
    )
    assert "already holds a run" in refused(*WORDS, "--out", "c/runs/fpfc-seed0")
    visits(500, seed=2).drop(columns="outcome").to_csv("s.csv", index=False)
    assert "c holds another comparison: the data differ" in refused(*WORDS, "--out", "c")
    assert "the comparison in c belongs to another federation" in refused("resume", "c")


def test_ctrl_c_in_this_process(fedfuse, small, monkeypatch):
    whole = json.loads(fedfuse(*WORDS, "--json", "--out", "whole")[1])

    def interrupt(bars, shares):
        if 0.3 < shares[1] < 0.5:  # rounds of the second run
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ComparisonBars, "look", interrupt)
        assert fedfuse(*WORDS, "--out", "c") == (130, "", "fedfuse: interrupted; continue with: fedfuse resume c\n")
    assert Path("c/runs/fpfc-l1-seed0/checkpoint/latest.npz").exists()
    assert not Path("c/table.json").exists()
    assert timeless(json.loads(fedfuse(*WORDS, "--json", "--out", "c")[1])) == timeless(whole)


# ------------------------------------------------------------------------------------- real processes


def timeless(answer):
    """The table without what depends on the clock."""
    for row in [*answer["methods"], *answer["runs"]]:
        row.pop("seconds"), row.pop("seconds_sd", None)
    return answer


LONG = ["compare", *DATA, "--methods", "fpfc,fpfc-l1", "--seeds", "2", "--rounds", "150", "--set", "tol=0",
        "--set", "refit=no", "--set", "fpfc.lam=0.3", "--set", "checkpoint_every=5", "--json"]  # fmt: skip


@pytest.fixture
def begun(small):
    """Begin a comparison in two workers and wait for a checkpoint; returns the process and its workers' numbers."""
    started = []

    def begin(directory):
        running = subprocess.Popen(
            [*COMMAND, *LONG, "--jobs", "2", "--out", directory],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(running)
        while not list(Path(directory).glob("runs/*/checkpoint/latest.npz")):
            assert running.poll() is None, running.communicate()
            time.sleep(0.01)
        return running

    yield begin
    for running in started:
        if running.poll() is None:
            running.kill()
            running.communicate()


def test_kill_9_and_the_same_again(begun, fedfuse, small):
    """All of it is killed; the same command goes on, and the table is that of a comparison that nobody killed."""
    running = begun("c")
    running.kill()
    running.communicate(timeout=150)  # its pipes are closed only when the workers are gone, too
    assert not Path("c/table.json").exists()
    files = {p.relative_to("c"): p.read_bytes() for p in Path("c").rglob("latest.npz")}
    time.sleep(0.3)
    assert files == {p.relative_to("c"): p.read_bytes() for p in Path("c").rglob("latest.npz")}  # nobody is at work
    status, out, err = fedfuse(*LONG, "--jobs", "1", "--out", "c")
    assert (status, err) == (0, "")
    whole = fedfuse(*LONG, "--jobs", "1", "--out", "whole")[1]
    assert timeless(json.loads(out)) == timeless(json.loads(whole))
    for run in ("fpfc-seed0", "fpfc-l1-seed1"):
        for name in ("models.npz", "labels.csv"):
            assert Path("c/runs", run, name).read_bytes() == Path("whole/runs", run, name).read_bytes()
    assert not list(Path("c").rglob("*.half"))


def children(parent):
    lines = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(parent)], capture_output=True, text=True, check=True
    )
    return [int(line.split()[0]) for line in lines.stdout.splitlines() if "spawn_main" in line]


@pytest.mark.skipif(sys.platform != "linux", reason="asks ps for the workers")
def test_a_killed_worker(begun, fedfuse):
    running = begun("c")
    os.kill(children(running.pid)[0], signal.SIGKILL)
    out, err = running.communicate(timeout=150)
    assert (running.returncode, out) == (2, "")
    assert err == "fedfuse: a worker process was killed (is memory short?); go on with: fedfuse resume c\n"
    assert Path("c/compare.json").exists()


def test_ctrl_c_ends_all_workers(begun):
    """As a terminal sends it: to every process of the group."""
    running = begun("c")
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=150)
    assert (running.returncode, out) == (130, "")
    assert err == "fedfuse: interrupted; continue with: fedfuse resume c\n"


# --------------------------------------------------------------------------------------- tune

TUNE = ["tune", *DATA, "--set", "grid=0,0.3,30", "--rounds", "100"]


def test_tune(fedfuse, small):
    status, out, err = fedfuse(*TUNE, "--out", "t")
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["lambda", "rounds", "seconds", "numbers", "sent", "groups", "validation", "RMSE"]
    assert [line[0] for line in lines[1:4]] == ["0", "0.3", "30"]
    assert [line[-1] for line in lines[1:4]].count("chosen") == 1
    assert lines[2][-1] == "chosen"
    assert "lambda 0.3 in " in out
    assert "files: t\nreport: t/report.html\n" in out


def test_tune_as_json_and_again(fedfuse, small):
    """It is the run with --lam, in other words."""
    status, out, err = fedfuse(*TUNE[:-1], "400", "--strategy", "separate", "--json", "--out", "t")
    assert (status, err, out.count("\n")) == (0, "", 1)
    answer = json.loads(out, parse_constant=pytest.fail)
    assert (answer["method"], answer["lam"]) == ("fpfc", 0.3)
    for again in (["resume", "t"], ["run", *TUNE[1:-1], "400", "--lam", "separate"]):
        same = json.loads(fedfuse(*again, "--json")[1])
        assert same | {"seconds": 0} == answer | {"seconds": 0}


TUNE_BAD = {
    "--set grid=1,much": "grid takes numbers separated by commas, got '1,much'",
    "--set grid=2,1": "the grid of lambdas must increase, got 2, 1",
    "--strategy guess": "strategy",
    "--method oracle": "oracle",
    "--set lam=1": "--set lam: lambda is chosen here; --set grid=0,0.5,1 has the candidates",
}


@pytest.mark.parametrize("words", TUNE_BAD)
def test_bad_tuning(refused, small, words):
    assert TUNE_BAD[words] in refused("tune", *DATA, *words.split())
