"""The two apps together, in this process: devices say what they have, the server trains and goes on after its end."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")

import fedfuse as ff
from fedfuse.data.federation import RemoteFederation, impossible
from fedfuse.errors import FedfuseError
from fedfuse.flower import client_app
from fedfuse.flower.client import facts_of, next_version, plain_labels, with_classes
from fedfuse.flower.node_registry import NodeRegistry
from fedfuse.flower.server import gather, method_and_settings, serve
from fedfuse.results.result import Result
from support.local_grid import LocalGrid
from support.planted import planted

CONFIG = {"lam": "0.5", "set": "solver=exact refit=no", "num-server-rounds": 8, "seed": 0}

SECOND = """
import sys
from fedfuse.flower.server import serve
serve(None, {"out": sys.argv[1]})
"""


def split(federation):
    """An app whose devices have the rows of a federation, cut as there."""
    return client_app(lambda name, config: federation.only([int(name)]))


def test_devices_with_rows_of_their_own(tmp_path):
    federation = planted(m=6)
    there = serve(LocalGrid(split(federation), 6), CONFIG | {"out": str(tmp_path / "run")})
    method = ff.FPFC(lam=0.5, work=ff.Work(solver="exact"), refit=False)
    here = ff.fit(federation, method, rounds=8)
    assert there.labels.tolist() == here.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(there.models, here.models)
    assert there.score("test") == pytest.approx(here.score("test"), rel=1e-6)
    assert Result.load(tmp_path / "run").labels.tolist() == here.labels.tolist()


def test_classes_are_those_of_all_devices(tmp_path):
    rng = np.random.default_rng(0)
    rows = {}
    for i, labels in enumerate([["ant", "bee"], ["bee", "cow"], ["ant", "cow"]]):
        y = np.array(labels)[rng.integers(0, 2, 40)]
        X = np.stack([(y == label) * 3.0 for label in ("ant", "bee", "cow")], axis=1) + rng.normal(size=(40, 3))
        rows[str(i)] = (X, y)
    grid = LocalGrid(client_app(lambda name, config: rows[name]), 3)
    result = serve(
        grid, {"method": "fedavg", "set": "solver=exact", "num-server-rounds": 4, "out": str(tmp_path / "r")}
    )
    assert result.profile.classes == ("ant", "bee", "cow")
    assert set(result.predict("0", np.eye(3) * 6)) == {"ant", "bee", "cow"}


def test_the_server_goes_on_after_its_end(tmp_path):
    federation = planted(m=6)
    out = CONFIG | {"out": str(tmp_path / "run")}
    whole = serve(LocalGrid(split(federation), 6), CONFIG | {"out": str(tmp_path / "whole")})

    class KilledError(Exception):
        pass

    class Kill(ff.Callback):
        def on_round(self, run, row):
            if row["round"] == 4:
                raise KilledError

    with pytest.raises(KilledError):
        serve(LocalGrid(split(federation), 6), out, callbacks=(Kill(),))
    again = serve(LocalGrid(split(federation), 6), out)
    assert np.array_equal(again.models, whole.models)
    assert again.labels.tolist() == whole.labels.tolist()
    assert [row["round"] for row in again.history.to_dict("records")] == list(range(8))


def test_other_rows_are_another_federation(tmp_path):
    out = CONFIG | {"out": str(tmp_path / "run"), "num-server-rounds": 1}

    class Kill(ff.Callback):
        def on_end(self, run, result):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(LocalGrid(split(planted(m=3)), 3), out, callbacks=(Kill(),))
    with pytest.raises(FedfuseError, match="another federation"):
        serve(LocalGrid(split(planted(m=3, seed=1)), 3), out)


def test_too_few_devices():
    with pytest.raises(FedfuseError, match=r"2 of 3 devices said hello within 0.3 seconds: 0, 1; start the others"):
        gather(NodeRegistry(LocalGrid(split(planted(m=2)), 2)), 3, 0.3)


def test_devices_that_disagree():
    facts = {name: facts_of(planted(m=2).only([0])) for name in "ab"}
    facts["b"] |= {"goal": "classification", "classes": [0, 1]}
    with pytest.raises(
        FedfuseError, match='device \'b\' cannot take part: it has goal "classification", most others "regression"'
    ):
        RemoteFederation.from_facts(facts)


@pytest.mark.parametrize("key", ["rows", "columns", "classes", "shape", "digest", "features", "goal"])
@pytest.mark.parametrize("value", ["x", -1, [[]], [-1, 0, 0], 10**13, {"a": 1}])
def test_impossible_facts(key, value):
    facts = facts_of(planted(m=2).only([0])) | {key: value}
    if key == "digest" and value == "x":
        assert RemoteFederation.from_facts({"a": facts}).m == 1
        return
    with pytest.raises(
        FedfuseError, match=rf"device 'a' cannot take part: it says impossible things of its rows \(.*{key}"
    ):
        RemoteFederation.from_facts({"a": facts})


def test_device_that_lies_about_its_rows_is_left_out():
    grid = LocalGrid(split(planted(m=3)), 3)

    def forge(asked, answer):
        line = json.loads(answer.content["config"]["hello"])
        if line["device"] == "1":
            line["rows"] = "many"
        answer.content["config"]["hello"] = json.dumps(line)
        return answer

    grid.forge = forge
    assert gather(NodeRegistry(grid), 0, 5).names == ("0", "2")


def test_numbers_come_in_their_order():
    facts = facts_of(planted(m=2).only([0]))
    assert RemoteFederation.from_facts(dict.fromkeys(("10", "9", "b", "a"), facts)).names == ("9", "10", "a", "b")


def test_class_numbers_of_the_whole_federation():
    one = planted("classification", m=2).only([0])
    both = with_classes(one, [-1, 0, 1, 2])
    assert np.array_equal(both.y, one.y + 1)


def test_configuration_is_that_of_the_command_line():
    method, settings = method_and_settings({"method": "ifca", "set": "n_models=3 mode=sync tol=0", "seed": 4})
    assert (method.name, method.n_models, settings["tol"], settings["seed"]) == ("ifca", 3, 0.0, 4)
    with pytest.raises(FedfuseError, match="there is no setting 'stepz'"):
        method_and_settings({"set": "stepz=3"})


def test_versions_and_labels_as_they_are_sent():
    assert next_version("ab12.3") == "ab12.4"
    assert plain_labels((np.int64(1), np.str_("b"))) == [1, "b"]


def test_devices_with_weights_of_rows(tmp_path):
    """The server knows the sums of a device's weights, and they count as in one process."""
    federation = planted(m=6)
    weights = np.random.default_rng(0).exponential(size=len(federation.y)) + (federation.X[:, 0] > 0)
    federation = replace(federation, weights=weights / weights.mean())
    words = {"method": "fedavg", "num-server-rounds": 3, "out": str(tmp_path / "run")}
    there = serve(LocalGrid(split(federation), 6), words)
    here = ff.fit(federation, "fedavg", rounds=3)
    np.testing.assert_allclose(there.models, here.models, rtol=1e-6)
    assert there.score("test") == pytest.approx(here.score("test"), rel=1e-6)
    assert "weights" in impossible(facts_of(federation.only([0])) | {"weights": [1.0, -2.0, 1.0]})


def test_a_second_run_in_the_same_directory_is_refused_and_leaves_no_trace(tmp_path):
    federation, out = planted(m=4), tmp_path / "run"
    seen = []

    class Second(ff.Callback):
        def on_round(self, run, row):
            if not seen:
                before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
                words = [sys.executable, "-c", SECOND, str(out)]
                seen.append(subprocess.run(words, capture_output=True, text=True, check=False).stderr.splitlines()[-1])
                assert before == {path: path.read_bytes() for path in before}

    serve(LocalGrid(split(federation), 4), CONFIG | {"out": str(out)}, callbacks=(Second(),))
    assert "another process is using" in seen[0]
    events = [json.loads(line)["event"] for line in (out / "audit.jsonl").read_text().splitlines()]
    assert "stopped" not in events
    assert events[-1] == "end"
