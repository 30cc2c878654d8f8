"""Runs are found by what they are: kept, shared, gone on with."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from fedfuse.data.synthetic import synthetic
from fedfuse.paper import runner
from fedfuse.paper.experiment import Experiment, Findings, Item, measures
from fedfuse.paper.items import items
from fedfuse.paper.setup import SCALES, PaperSetup
from fedfuse.paper.trials import Data, draw_newcomers, fewer_rows
from fedfuse.studies.jobs import Watcher


class Some(Experiment):
    """FPFC and FedAvg on a few devices."""

    def __init__(self, lam=0.6, rounds=3, labels=("fpfc", "fedavg"), **extra):
        super().__init__(data=("synthetic:S1",))
        vars(self).update(lam=lam, rounds=rounds, labels=labels, extra=extra)

    def runs(self, setup, name):
        found = {}
        for label in self.labels:
            method, settings = setup.entry(name, label)
            method = replace(method, lam=self.lam) if label == "fpfc" else method
            settings |= {"rounds": self.rounds, "checkpoint_every": 2}
            found[label] = setup.trial(name, label, method, settings, **self.extra)
        return found

    def findings(self, setup):
        return Findings()


class Counting(Watcher):
    """Counts what is run."""

    def __init__(self):
        self.labels = []

    def begin(self, jobs):
        self.labels += [job.label.partition(" ")[0] for job in jobs]


def _run(setup, **changes):
    watcher = Counting()
    assert runner.run([Item("some", "", "", Some(**changes))], setup, watcher, jobs=1) == {}
    return sorted(watcher.labels)


def test_what_is_done_is_not_done_again(quick):
    assert _run(quick) == ["FPFC", "FedAvg"]
    assert _run(quick) == []


def test_a_changed_setting_reruns_only_what_it_touches(quick):
    _run(quick)
    assert _run(quick, lam=0.5) == ["FPFC"]
    assert _run(quick, rounds=4) == ["FPFC", "FedAvg"]
    assert _run(quick, lam=0.6) == []


def test_keys_know_all_that_matters_and_nothing_else(quick):
    (trial,) = Some(labels=("fpfc",)).trials(quick)
    others = [
        replace(trial, seed=1), replace(trial, data_seed=3), replace(trial, recipe=Data("synthetic:S2")),
        replace(trial, recipe=replace(trial.recipe, rows=5)), replace(trial, at=(1,)), replace(trial, curve=True),
        replace(trial, newcomers=0.2), replace(trial, settings={**trial.settings, "tol": 0.1}),
        replace(trial, method=replace(trial.method, xi=1e-3)),
    ]  # fmt: skip
    assert len({trial.key, *(other.key for other in others)}) == len(others) + 1
    same = [
        replace(trial, label="x"), replace(trial, source={"data_dir": "/elsewhere"}),
        replace(trial, settings={**trial.settings, "checkpoint_every": 7}), replace(trial, data_seed=trial.seed),
    ]  # fmt: skip
    assert {other.key for other in same} == {trial.key}


def test_failures_are_told_and_nothing_is_lost(quick):
    item = Item("some", "", "", Some(rounds=0))
    failed = runner.run([item], quick, Watcher(), jobs=1)
    assert len(failed) == 2
    assert all("rounds must be a whole number" in words for words in failed.values())
    assert not runner.complete(item, quick)


def test_models_after_some_rounds_and_training_scores(quick):
    assert _run(quick, labels=("fpfc",), at=(0, 2), curve=True) == ["FPFC"]
    (trial,) = Some(labels=("fpfc",), at=(0, 2), curve=True).trials(quick)
    first, second = trial.models_at(0), trial.models_at(2)
    assert (first == first[0]).all()
    assert not (second == second[0]).all()
    history = replace(trial, settings={**trial.settings, "evaluate_every": 1})
    history = replace(history, directory=trial.place.parent / "evaluated").perform(history.data()).history
    assert np.isfinite(history[["train", "train_loss", "test"]]).all(axis=None)
    assert history["train_loss"].iloc[-1] < history["train_loss"].iloc[0]


def test_newcomers_are_not_in_training(quick):
    assert _run(quick, labels=("fedavg",), newcomers=0.34) == ["FedAvg"]
    (trial,) = Some(labels=("fedavg",), newcomers=0.34).trials(quick)
    trained, joined = trial.result().profile.names, [n["name"] for n in trial.joined()["newcomers"]]
    assert len(joined) == 2
    assert sorted([*trained, *joined]) == sorted(trial.data().names)
    truth = trial.data().truth
    assert sorted(truth[draw_newcomers(truth, 0.34, 0)].tolist()) == [0, 1]


def test_fewer_rows_are_a_sample_of_each_part():
    whole = synthetic("3,3", seed=0)
    some = fewer_rows(whole, 20)
    for part, most in (("train", 20), ("validation", 5), ("test", 5)):
        for i in range(whole.m):
            X, y = some.rows(part).of(i)
            assert len(y) == most
            np.testing.assert_array_equal(X, whole.rows(part).of(i)[0][:most])
    assert some.fingerprint != whole.fingerprint


# Five rounds are so few that tuning has lambdas without a score.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_costs_are_the_formulas_of_training_alone(quick, tiny):
    """The run-time counter at a small size; choosing settings is a run of its own."""
    tiny(rounds={"synthetic": 5}, trial=2)
    table = items()["table1"].experiment
    item = Item("s1", "", "", replace(table, data=table.data[:1]))
    assert runner.run([item], quick, Watcher(), jobs=1) == {}
    found = {label: measures(trial, result) for _, (label, _), trial, result in item.experiment.results(quick)}
    m, active, d, K, L = 6, 1, 610, 5, 2
    plain = m * d + K * active * 2 * d
    fixed = ("FPFC-l1, lambda 0.2, nu 0.1", "FPFC, lambda of the paper, nu 0.1")
    for label in ("fedavg", "lg-fedavg", "per-fedavg", *fixed):
        assert found[label]["cost"] == plain, label
    assert found["local"]["cost"] == 0
    assert found["ifca"]["cost"] == K * active * (L * d + d + L)
    assert found["cfl"]["cost"] == m * d + K * (active + m) * d
    bases = found["pacfl"]["cost"] - K * active * 2 * d  # at most three vectors of 60 for each class of a device
    assert 0 < bases <= m * 10 * 3 * 60
    assert bases % 60 == 0


def test_efforts_are_told_for_all(tmp_path):
    for size in SCALES:
        setup = PaperSetup(size, tmp_path)
        for item in items().values():
            for trial in item.experiment.trials(setup):
                assert 0 < runner.effort(trial) < 10 * 3600, trial.label


SCRIPT = """
import sys
from pathlib import Path
from fedfuse.studies.jobs import Watcher
from fedfuse.paper import runner
from fedfuse.paper.setup import PaperSetup
from test_runner import Some
from fedfuse.paper.experiment import Item
setup = PaperSetup("quick", Path(sys.argv[1]))
print(runner.run([Item("some", "", "", Some(rounds=int(sys.argv[2]), labels=("fpfc",)))], setup, Watcher(), jobs=1))
"""


@pytest.mark.slow
def test_killed_runs_go_on(tmp_path, monkeypatch):
    """SIGKILL in the middle; the same call goes on from the checkpoint and ends as if nothing had been."""
    import os
    from pathlib import Path

    import fedfuse

    paths = [str(Path(fedfuse.__file__).parents[1]), str(Path(__file__).parent), str(Path(__file__).parents[1])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "killed"), "400"]
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL) as running:
        while not list((tmp_path / "killed").glob("*/checkpoint/latest.npz")):
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGKILL)
    words[3] = str(tmp_path / "killed")
    assert subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout == "{}\n"
    setup = PaperSetup("quick", tmp_path / "whole")
    assert runner.run([Item("some", "", "", Some(rounds=400, labels=("fpfc",)))], setup, Watcher(), jobs=1) == {}
    (trial,) = Some(rounds=400, labels=("fpfc",)).trials(setup)
    for name in ("models.npz", "labels.csv"):
        assert (tmp_path / "killed" / trial.key / name).read_bytes() == (trial.place / name).read_bytes()


def test_half_a_run_is_gone_on_with(quick, monkeypatch):
    """As after a kill, without the waiting: a run that was broken off between two rounds."""
    (trial,) = Some(labels=("fpfc",), rounds=6).trials(quick)
    from fedfuse.training.loop import Callback

    class Stop(Callback):
        def on_round(self, run, row):
            if run.k == 5:
                raise RuntimeError  # nothing is saved on the way out: the checkpoint is that of round 4

    with pytest.raises(RuntimeError):
        trial.perform(trial.data(), [Stop()])
    assert not trial.done
    assert (trial.place / "checkpoint" / "latest.npz").exists()
    assert _run(quick, labels=("fpfc",), rounds=6) == ["FPFC"]
    whole = replace(trial, directory=trial.place.parent / "whole")
    np.testing.assert_array_equal(whole.perform(whole.data()).models, trial.result().models)
