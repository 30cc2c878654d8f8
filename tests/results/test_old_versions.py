"""Run directories of version 0.1.0, which called the fusion tree FPFC with lam="auto", still serve."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import fedfuse as ff
from fedfuse.errors import FedfuseError
from fedfuse.utils.files import read_arrays, write_arrays
from support.common_checks import StopAt
from support.planted import planted, visits

OLD_METHOD = {"method": "fpfc", "start": "auto", "rows": "train+validation", "lam": "auto", "refit": True, "rho": 1.0}
OLD_METHOD |= {"nu": None, "robust": "screen", "memory": None, "spill": None, "backend": None, "blocks": None}
OLD_METHOD |= {"collapse": None, "a": 3.7, "xi": 1e-4}


def changed(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def as_old(directory, summary=True, lam="auto"):
    """Write a run's files as version 0.1.0 did."""

    def method(data):
        data["method"] = OLD_METHOD | {"work": data["method"]["work"], "lam": lam}

    def numbers(data):
        stages = data.pop("stages")
        used = 0.76 if lam == "auto" else lam
        data |= {"method": "fpfc", "lam": used, "version": "0.1.0", "refit_rounds": stages[-1]["rounds"]}
        data["rounds"] -= data["refit_rounds"]
        data["unsure_devices"] = data.pop("unsure")

    for name in ("config.json", "profile.json") if summary else ("config.json",):
        changed(directory / name, method)
    changed(directory / "config.json", lambda data: data.update(version="0.1.0"))
    if summary:
        changed(directory / "summary.json", numbers)
    return directory


@pytest.fixture
def old(tmp_path):
    federation = ff.Federation.from_frame(visits().drop(columns="stay"), device="site", target="outcome")
    result = ff.fit(federation, out=tmp_path / "run", rounds=300)
    return as_old(tmp_path / "run"), result, federation


def test_a_finished_run_is_read_under_its_true_name(old):
    directory, result, _ = old
    again = ff.Result.load(directory)
    assert again.method["method"] == "fusion-tree"
    assert again.lam is None
    assert again.rounds == result.rounds
    np.testing.assert_array_equal(again.labels, result.labels)
    pd.testing.assert_frame_equal(again.predict_frame(visits()), result.predict_frame(visits()))


def test_it_is_reported_and_takes_in_newcomers(old, fedfuse):
    directory, result, federation = old
    assert fedfuse("report", directory)[0] == 0
    page = (directory / "report.html").read_text()
    assert "fusion-tree" in page or "fusion tree" in page
    X, y = federation.rows("train").of(0)
    classes = np.array(federation.classes)
    joined = ff.Result.load(directory).admit(X, classes[y])
    assert joined.clusters == (result.labels[0],)


def test_fpfc_with_a_lambda_is_reported_and_takes_in_newcomers(tmp_path, fedfuse):
    """It had fields that FPFC has no more."""
    federation = planted("classification", m=8)
    result = ff.fit(federation, ff.FPFC(lam=0.3, refit=True), out=tmp_path / "run", rounds=60)
    directory = as_old(tmp_path / "run", lam=0.3)
    assert fedfuse("report", directory)[0] == 0
    X, y = federation.rows("train").of(0)
    joined = ff.Result.load(directory).admit(X, np.array(federation.classes)[y])
    assert joined.clusters == (result.labels[0],)


def test_settings_that_are_gone_are_left_out_unless_they_were_switched_on(tmp_path):
    federation = planted()
    whole = ff.fit(federation, "fedavg", rounds=9, tol=0)
    with pytest.raises(KeyboardInterrupt):
        ff.fit(federation, "fedavg", out=tmp_path / "cut", rounds=9, tol=0, callbacks=[StopAt(5)])
    changed(tmp_path / "cut/config.json", lambda data: data["settings"].update(overselect=0.5, screen=False))
    with pytest.raises(FedfuseError, match="overselect"):
        ff.resume(tmp_path / "cut", federation)
    changed(tmp_path / "cut/config.json", lambda data: data["settings"].update(overselect=0.0))
    np.testing.assert_array_equal(ff.resume(tmp_path / "cut", federation).models, whole.models)


def test_an_unfinished_run_is_run_again_to_the_same_end(tmp_path, caplog):
    federation, options = planted("classification", m=8), {"participation": 0.5, "checkpoint_every": 3}
    whole = ff.fit(federation, **options)
    with pytest.raises(KeyboardInterrupt):
        ff.fit(federation, out=tmp_path / "cut", callbacks=[StopAt(7)], **options)
    as_old(tmp_path / "cut", summary=False)
    path = tmp_path / "cut" / "checkpoint" / "latest.npz"
    arrays = read_arrays(path)
    meta = json.loads(arrays["meta"].tobytes())
    del meta["format"]
    write_arrays(path, arrays | {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)})
    again = ff.resume(tmp_path / "cut", federation)
    assert "older version" in caplog.text
    np.testing.assert_array_equal(again.models, whole.models)
    assert again.cost_floats == whole.cost_floats
