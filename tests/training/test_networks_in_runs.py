"""Networks from the federation to the files: runs, resumption, results in the user's world, export."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.errors import FedfuseError
from fedfuse.results.export import export
from fedfuse.training.loop import Callback

torch = pytest.importorskip("torch", reason="networks need the extra fedfuse[torch]")
from safetensors.numpy import load_file  # noqa: E402
from torch import nn  # noqa: E402

WORK = ff.Work(steps=2, lr=0.1, batch=20, momentum=0.9)
METHOD = ff.FPFC(lam=0.5, refit=False, work=WORK)
EXAMPLES = Path(__file__).parents[2] / "examples"


def federation(m=6, n=80, goal="classification"):
    rng = np.random.default_rng(0)
    X, W = rng.normal(size=(m, n, 4)), rng.normal(size=(2, 4, 3))
    y = [x @ W[i % 2] for i, x in enumerate(X)]
    y = [v.argmax(axis=1) if goal == "classification" else v[:, 0] + np.sin(v[:, 1]) for v in y]
    return ff.Federation.from_arrays(list(zip(X, y, strict=True)), truth=np.arange(m) % 2)


def network(outputs=3, width=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, outputs))


def own(**kwargs):
    return ff.TorchModel(network(**kwargs), fused="all")


class Stop(Callback):
    def __init__(self, after):
        self.after = after

    def on_round(self, run, row):
        if run.k == self.after:
            raise KeyboardInterrupt


MODELS = {"own": own, "named": lambda: ff.MLP(hidden=(8,), fused="all")}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_resumed_is_uninterrupted_to_the_bit(make, tmp_path):
    fed = federation()
    whole = ff.fit(fed, METHOD, make(), rounds=12, seed=3)
    with pytest.raises(KeyboardInterrupt):
        ff.fit(fed, METHOD, make(), rounds=12, seed=3, out=tmp_path / "run", callbacks=[Stop(5)])
    named = isinstance(make(), ff.MLP)
    resumed = ff.resume(tmp_path / "run", fed, model=None if named else make())
    np.testing.assert_array_equal(whole.models, resumed.models)
    assert whole.history["round"].tolist() == resumed.history["round"].tolist()
    loaded = ff.Result.load(tmp_path / "run", None if named else make())
    X = fed.rows("test").of(0)[0]
    np.testing.assert_array_equal(loaded.outputs(0, X), whole.outputs(0, X))


def test_a_module_of_ones_own_is_needed_again_and_must_be_the_same(tmp_path):
    fed, run = federation(), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        ff.fit(fed, METHOD, own(), rounds=6, out=run, callbacks=[Stop(3)])
    with pytest.raises(FedfuseError, match=r"module of your own.*model=TorchModel"):
        ff.resume(run, fed)
    with pytest.raises(FedfuseError, match=r"0.weight has the shape \(8, 4\), here it has the shape \(5, 4\)"):
        ff.resume(run, fed, model=own(width=5))
    with pytest.raises(FedfuseError, match="the run has the model TorchModel, got MLP"):
        ff.resume(run, fed, model=ff.MLP())
    with pytest.raises(FedfuseError, match="there fused='all', here '0'"):
        ff.resume(run, fed, model=ff.TorchModel(network(), fused="0"))
    done = ff.resume(run, fed, model=own())
    bare = ff.Result.load(run)
    np.testing.assert_array_equal(bare.models, done.models)
    assert bare.labels.tolist() == done.labels.tolist()
    assert bare.score("test") == done.score("test")
    X = np.zeros((1, 4))
    with pytest.raises(FedfuseError, match="module of your own"):
        bare.predict(0, X)
    with pytest.raises(FedfuseError, match="not the model of the run"):
        ff.Result.load(run, own(width=5))


def test_a_device_gets_its_clusters_module_and_the_users_stays_as_it_was():
    fed, model = federation(), own()
    before = model.module[0].weight.clone()
    res = ff.fit(fed, METHOD, model, rounds=10)
    X = fed.rows("test").of(2)[0]
    module = res.module(2)
    with torch.no_grad():
        scores = module(torch.from_numpy(X).float())
    np.testing.assert_array_equal(np.array(fed.classes)[scores.argmax(1).numpy()], res.predict(2, X))
    same = res.module(cluster=int(res.labels[2]))
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), same.parameters(), strict=True))
    assert torch.equal(before, model.module[0].weight)
    with pytest.raises(FedfuseError, match="a device or cluster"):
        res.module()
    with pytest.raises(FedfuseError, match="there is no group 9"):
        res.module(cluster=9)
    plain = ff.fit(fed, ff.FPFC(lam=0.5, refit=False), rounds=2)
    with pytest.raises(FedfuseError, match="is no torch module"):
        plain.module(0)


def test_values_by_a_network():
    fed = federation(goal="regression")
    model = ff.TorchModel(network(outputs=1), "mse", fused="all")
    res = ff.fit(fed, ff.FPFC(lam=0.1, refit=False, work=ff.Work(steps=2, lr=0.02, batch=10)), model, rounds=60)
    flat = ff.fit(fed, ff.FPFC(lam=0.1, refit=False, work=ff.Work(steps=20, lr=0.05)), rounds=60)
    assert res.score("test") < flat.score("test")


def test_exported_weights_are_those_of_the_module(tmp_path):
    fed = federation()
    res = ff.fit(fed, METHOD, own(), rounds=10, out=tmp_path / "run")
    paths = export(res, tmp_path / "out")
    for c, path in enumerate(paths[:-1]):
        fresh = network()
        fresh.load_state_dict({name: torch.from_numpy(a) for name, a in load_file(path).items()})
        kept = res.module(cluster=c).state_dict()
        assert all(torch.equal(kept[name], value) for name, value in fresh.state_dict().items())
    # from the directory alone: the same tensors, without the module
    for path in export(ff.Result.load(tmp_path / "run"), tmp_path / "bare")[:-1]:
        other = load_file(tmp_path / "out" / path.name)
        assert all((other[name] == array).all() for name, array in load_file(path).items())
    about = json.loads(paths[-1].read_text())
    assert [c["devices"] for c in about["clusters"]] == res.clusters
    assert about["model"]["name"] == "TorchModel"


def test_export_of_coefficients_by_the_command_line(tmp_path):
    fed = federation()
    res = ff.fit(fed, ff.FPFC(lam=0.5, refit=False), rounds=5, out=tmp_path / "run")
    command = [sys.executable, "-m", "fedfuse", "export", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == res.n_clusters + 1
    arrays = load_file(tmp_path / "run" / "export" / "cluster-0.safetensors")
    table = res.coefficients().loc[0].to_numpy()
    exported = np.column_stack([arrays["coef"], arrays["intercept"]])
    np.testing.assert_allclose(exported - exported[0], table, rtol=1e-6, atol=1e-9)  # the first class is the reference


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (ff.FusionTree(work=ff.Work(solver="exact")), "no exact solver"),
        (ff.FPFC(lam=0.5, refit=False, work=ff.Work(solver="exact")), "no exact solver"),
    ],
)
def test_what_a_network_cannot_do_is_said_before_the_first_round(method, words):
    with pytest.raises(FedfuseError, match=words):
        ff.fit(federation(), method, own(), rounds=5)


def test_torch_is_imported_only_where_it_is_used():
    code = "import sys, fedfuse, fedfuse.cli; assert 'torch' not in sys.modules; fedfuse.TorchModel; import torch"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_torch_the_extra_is_named():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import fedfuse\n"
        "try: fedfuse.TorchModel\n"
        "except fedfuse.FedfuseError as e: assert 'fedfuse[torch]' in str(e), e\n"
        "else: raise SystemExit(1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["own_network", "pretrained_trunk"])
def test_examples(name, capsys):
    told = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    assert told["res"].labels.tolist() == ([0] * 4 + [1] * 4 if name == "own_network" else [0, 1] * 5)
    assert capsys.readouterr().out
