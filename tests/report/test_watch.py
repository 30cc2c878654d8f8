"""A run that goes on, seen from outside: in a terminal, in a pipe."""

import io
import json

import pytest
from rich.console import Console

import fedfuse as ff
from fedfuse.report.watch import Progress, picture, read_progress, watch
from fedfuse.training.progress import ROUNDS
from support.planted import planted


class Stop(ff.Callback):
    def __init__(self, after):
        self.after = after

    def on_round(self, run, row):
        if run.k == self.after:
            raise KeyboardInterrupt


def unfinished(place, after=8, **settings):
    with pytest.raises(KeyboardInterrupt):
        ff.fit(
            planted(), ff.FPFC(lam=0.4, refit=False), rounds=30, tol=0, out=place, dataset="<b>d</b>",
            callbacks=[Stop(after)], evaluate_every=2, checkpoint_every=1, **settings,
        )  # fmt: skip


def finished(place):
    return ff.fit(planted(), ff.FPFC(lam=0.4, refit=False), rounds=12, out=place, evaluate_every=2)


@pytest.fixture
def all_rounds(monkeypatch):
    """Write every round down at once."""
    monkeypatch.setattr("fedfuse.training.progress.WRITE_SECONDS", -1.0)


def shown(looks, width=100):
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    console.print(picture(looks))
    return console.file.getvalue()


def test_a_run_that_goes_on(tmp_path, all_rounds):
    unfinished(tmp_path / "run")
    look = Progress.of(tmp_path / "run")
    assert look.state == "running"
    rows = [json.loads(line) for line in (tmp_path / "run" / ROUNDS).read_text().splitlines()]
    assert 7 <= len(rows) <= 8
    assert look.facts["round"] == f"{len(rows)} of at most 30"
    text = shown([look])
    assert "<b>d</b> · FPFC, running" in text
    assert "of at most 30" in text


def test_a_finished_run_says_what_it_came_to(tmp_path):
    result = finished(tmp_path / "run")
    look = Progress.of(tmp_path / "run")
    assert look.state == "finished"
    assert look.facts["groups"] == str(result.n_clusters)
    assert f"{result.cost_floats:,}" in look.line()


def test_watching_ends_with_the_run(tmp_path, all_rounds):
    """While it is watched the run is gone on with: the lines tell the rounds, the last one the end."""
    unfinished(tmp_path / "run")
    federation, pauses = planted(), []

    def pause(seconds):
        pauses.append(seconds)
        ff.resume(tmp_path / "run", federation)

    console = Console(file=io.StringIO(), width=200)
    watch(tmp_path / "run", console, 0.5, pause)
    lines = console.file.getvalue().splitlines()
    assert pauses == [0.5]
    assert "running" in lines[0]
    assert "finished" in lines[-1]
    assert "round 30" in lines[-1]


def test_watching_in_a_terminal(tmp_path):
    finished(tmp_path / "run")
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    watch(tmp_path / "run", console)
    assert "finished" in console.file.getvalue()


def test_a_comparison_is_watched_run_by_run(tmp_path):
    ff.compare(planted(), {"a": ff.Local(), "b": ff.FedAvg()}, seeds=1, rounds=4, jobs=1, out=tmp_path / "c")
    looks = read_progress(tmp_path / "c")
    assert [(look.name, look.state) for look in looks] == [("a-seed0", "finished"), ("b-seed0", "finished")]
    (tmp_path / "c" / "runs" / "b-seed0").rename(tmp_path / "elsewhere")
    looks = read_progress(tmp_path / "c")
    assert [look.state for look in looks] == ["finished", "waiting"]
    assert "b-seed0, waiting" in shown(looks)
    assert looks[1].line() == "waiting"


def test_a_long_silence_is_told():
    look = Progress("r", "running", {"round": "1"}, silent=100.0)
    assert "nothing was written for 100 s" in shown([look])
    assert "nothing" not in shown([Progress("r", "running", look.facts, silent=5.0)])


def test_no_run_is_refused(refused, here):
    assert "holds no run" in refused("watch", "nothing")


def test_the_command_line(fedfuse, here):
    finished("run")
    status, out, _ = fedfuse("watch", "run")
    assert status == 0
    assert "finished" in out
