"""Exported models: safetensors as the format is, and files that score rows as the run does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedfuse as ff
from fedfuse.data.readers import read_table
from fedfuse.results.export import export, export_file, safetensors
from support.planted import planted, visits

HOWTO = (Path(__file__).parents[2] / "docs" / "howto.md").read_text()
ARRAYS = {
    "coef": np.arange(6.0).reshape(2, 3),
    "steps": np.array(7, np.int64),
    "mask": np.array([True, False, True]),
    "half": np.array([[0.5]], np.float16),
    "none": np.zeros((0, 4), np.float32),
    "big": np.array([1.5], ">f8"),
    "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
}


def test_arrays_come_back():
    read = pytest.importorskip("safetensors.numpy").load(safetensors(ARRAYS))
    assert read.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype.newbyteorder("=")


def test_header_by_hand():
    data = safetensors({"b": np.float32([1, 2])})
    n = int.from_bytes(data[:8], "little")
    assert n % 8 == 0
    assert json.loads(data[8 : 8 + n]) == {"b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    assert np.frombuffer(data[8 + n :], "<f4").tolist() == [1, 2]


def test_linear_models_need_no_extra(tmp_path, monkeypatch):
    frame = visits().drop(columns="outcome")
    result = ff.fit(ff.Federation.from_frame(frame, device="site", target="stay"), out=tmp_path / "run")
    for name in ("torch", "safetensors"):
        monkeypatch.setitem(sys.modules, name, None)
    paths = export(result, tmp_path / "export")
    assert [path.name for path in paths] == ["cluster-0.safetensors", "cluster-1.safetensors", "export.json"]
    described = json.loads(paths[-1].read_text())
    assert [(group["group"], len(group["devices"])) for group in described["clusters"]] == [(1, 6), (2, 4)]
    data = paths[0].read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n])
    start, end = header["coef"]["data_offsets"]
    slopes = np.frombuffer(data[8 + n :][start:end]).reshape(header["coef"]["shape"])
    np.testing.assert_array_equal(slopes, result.coefficients().loc[0].to_numpy()[:, :-1])


def messy():
    """Return a table with dates, gaps and rare levels."""
    frame, rng = visits(), np.random.default_rng(0)
    days = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 900, len(frame)), "D")
    frame["day"] = days.strftime("%Y-%m-%d")
    frame.loc[rng.random(len(frame)) < 0.1, "day"] = None
    frame.loc[rng.random(len(frame)) < 0.1, "ward"] = None
    frame.loc[rng.random(len(frame)) < 0.02, "ward"] = "roof"
    return frame


@pytest.mark.parametrize(("target", "verdict"), [("stay", "groups"), ("outcome", "groups"), ("stay", "personal")])
def test_the_reader_of_the_docs_scores_raw_rows_as_predict_does(target, verdict, tmp_path):
    """It is run without any installed package."""
    frame = messy().drop(columns={"stay": "outcome", "outcome": "stay"}[target])
    result = replace(ff.fit(ff.Federation.from_frame(frame, device="site", target=target)), verdict=verdict)
    path = export_file(result, tmp_path / "model.json")
    new, rows = tmp_path / "new.csv", frame.head(200).astype({"site": str})
    rows.loc[3, "ward"], rows.loc[7, "site"] = "on the moon", "elsewhere"
    rows.to_csv(new, index=False)
    (tmp_path / "score.py").write_text(re.search(r"```text title=\"score.py.*?\n(.*?)```", HOWTO, re.S).group(1))
    command = [sys.executable, "-I", "-S", tmp_path / "score.py", path, new]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    scores = np.array([line.split(",") for line in told], dtype=float)
    expected = result.predict_frame(read_table(new)).drop(columns=["device", "cluster", "group"], errors="ignore")
    numbers = expected.select_dtypes("number").to_numpy(float)
    known = np.arange(200) != 7
    np.testing.assert_allclose(scores[known], numbers[known], rtol=1e-6)
    everyone = result.model.outputs(result.alternatives["pooled"][0], result.profile.encoder.transform(rows[7:8]))
    np.testing.assert_allclose(scores[7], everyone.ravel(), rtol=1e-5)


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_onnx_scores_encoded_rows(goal, tmp_path):
    pytest.importorskip("onnx")
    federation = planted(goal)
    result = ff.fit(federation)
    models = json.loads(export_file(result, tmp_path / "model.json").read_text())
    path = export_file(result, tmp_path / "model.onnx")
    X = federation.X[:50]
    numbers = np.array([models["devices"][federation.names[i % federation.m]] for i in range(50)])
    inputs = {"features": X.astype(np.float64), "model": numbers}
    expected = [result.outputs(federation.names[i % federation.m], X[i : i + 1])[0] for i in range(50)]
    np.testing.assert_allclose(np.squeeze(run_onnx(path, inputs)), expected, rtol=1e-6, atol=1e-12)


def run_onnx(path, inputs):
    try:
        from onnxruntime import InferenceSession

        return InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, inputs)[0]
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(str(path)).run(None, inputs)[0]


def test_models_have_the_numbers_of_their_groups(tmp_path):
    result = ff.fit(planted("regression", m=9, groups=3))
    model = json.loads(export_file(result, tmp_path / "model.json").read_text())
    assert model["devices"] == model["groups"]
    assert len(model["models"]) == 1 + result.n_clusters
    np.testing.assert_allclose(model["models"][0][0], result.fallback, rtol=1e-5)


def test_other_files_and_networks_are_refused(tmp_path):
    result = ff.fit(planted("regression"))
    with pytest.raises(ff.FedfuseError, match=r"\.json or \.onnx file \(tables to .xlsx\), got model.txt"):
        export_file(result, tmp_path / "model.txt")
    pytest.importorskip("torch")
    with pytest.raises(ff.FedfuseError, match="without --to writes networks"):
        export_file(replace(result, model=ff.MLP().sized(3, 0)), tmp_path / "model.json")
