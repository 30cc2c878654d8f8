"""Exported models: the format is that of safetensors, and no extra is needed to write it."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.results.export import export, safetensors
from support.planted import visits

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
    for name in ("torch", "safetensors"):
        monkeypatch.setitem(sys.modules, name, None)
    frame = visits().drop(columns="outcome")
    result = ff.fit(ff.Federation.from_frame(frame, device="site", target="stay"), out=tmp_path / "run")
    paths = export(result, tmp_path / "export")
    assert [path.name for path in paths] == ["cluster-0.safetensors", "cluster-1.safetensors", "export.json"]
    described = json.loads(paths[-1].read_text())
    assert [len(group["devices"]) for group in described["clusters"]] == [6, 4]
    data = paths[0].read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n])
    start, end = header["coef"]["data_offsets"]
    slopes = np.frombuffer(data[8 + n :][start:end]).reshape(header["coef"]["shape"])
    np.testing.assert_array_equal(slopes, result.coefficients().loc[0].to_numpy()[:, :-1])
