"""Run directories: every file whole or not there, nothing unpickled, damage named."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfuse.errors import FedfuseError
from fedfuse.results.run_directory import RunDirectory
from fedfuse.utils.files import atomic_write, read_arrays, read_json, without_nan, write_arrays, write_json

META = {"round": 3, "history": [{"moved": float("nan"), "round": 2}], "seconds": 0.1}
ARRAYS = {"omega": np.arange(6, dtype=np.float32).reshape(2, 3), "s": np.array([0.5, 1 / 3])}


@pytest.fixture
def run_directory(tmp_path):
    made = RunDirectory(tmp_path / "a" / "run")
    made.create({"dataset": "x", "lam": 0.6})
    return made


def test_a_checkpoint_comes_back_to_the_bit(run_directory):
    assert run_directory.load_checkpoint() is None
    run_directory.save_checkpoint({"round": 1}, {"omega": np.zeros(9)})
    run_directory.save_checkpoint(META, ARRAYS)
    meta, arrays = run_directory.load_checkpoint()
    assert str(meta) == str(META)  # nan is not equal to itself
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def test_config_comes_back(run_directory):
    assert run_directory.config() == {"dataset": "x", "lam": 0.6}
    assert run_directory.started
    assert not run_directory.finished


def test_options_that_are_gone_are_dropped_from_old_configurations(run_directory):
    old = {"method": "fpfc", "lam": 0.6, "collapse": None}
    write_json(
        run_directory.path / "config.json", {"method": {"method": "lambda-path", "inner": old, "collapse": None}}
    )
    assert run_directory.config()["method"] == {"method": "lambda-path", "inner": {"method": "fpfc", "lam": 0.6}}


def test_a_directory_is_used_once(run_directory):
    with pytest.raises(FedfuseError, match="already holds a run: go on with it by 'fedfuse resume"):
        run_directory.create({})
    write_json(run_directory.path / "summary.json", {})
    with pytest.raises(FedfuseError, match="already holds a run: choose another directory"):
        run_directory.create({})
    assert run_directory.config() == {"dataset": "x", "lam": 0.6}


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FedfuseError, match="is a file; a run needs a directory"):
        RunDirectory(tmp_path / "file").create({})
    with pytest.raises(FedfuseError, match="holds no run of fedfuse"):
        RunDirectory(tmp_path / "file").config()
    with pytest.raises(FedfuseError, match=r"cannot write to .*: Not a directory"):
        RunDirectory(tmp_path / "file" / "run").create({})


def test_an_empty_or_foreign_directory_is_fine(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    RunDirectory(tmp_path).create({"a": 1})
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_fails_half_way_changes_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail():
        with atomic_write(path) as file:
            file.write(b"new and lon")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208 - the hidden ones too


def test_a_file_is_replaced_not_overwritten(tmp_path):
    """Whoever is reading the old file goes on reading the old file."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        with atomic_write(path) as file:
            file.write(b"new and longer")
            assert path.read_bytes() == b"old"
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new and longer"


def test_tidy_removes_checkpoint_and_rests(run_directory):
    run_directory.save_checkpoint(META, ARRAYS)
    for rest in ("checkpoint/.latest.npz.12345.half", ".summary.json.12345.half"):
        (run_directory.path / rest).write_bytes(b"cut sho")
    (run_directory.path / "notes.txt").write_text("mine")
    run_directory.tidy()
    assert sorted(os.listdir(run_directory.path)) == ["config.json", "notes.txt"]  # noqa: PTH208
    run_directory.tidy()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run_directory = RunDirectory(tmp_path_factory.mktemp("whole"))
    run_directory.save_checkpoint(META, ARRAYS)
    return (run_directory.path / "checkpoint/latest.npz").read_bytes()


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged")
    (path / "checkpoint").mkdir()
    return RunDirectory(path)


def read_damaged(run_directory, content):
    (run_directory.path / "checkpoint/latest.npz").write_bytes(content)
    return run_directory.load_checkpoint()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_checkpoint_cut_short_is_named(whole, damaged, data):
    content = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(FedfuseError, match=r"latest\.npz is damaged or cut short .*remove it to start the run again"):
        read_damaged(damaged, content)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_is_named_or_harmless(whole, damaged, data):
    """Arrays are protected by check sums; names and dates in the archive are not."""
    content = bytearray(whole)
    content[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        _, arrays = read_damaged(damaged, bytes(content))
    except FedfuseError:
        return
    for name in set(ARRAYS) & set(arrays):
        np.testing.assert_array_equal(arrays[name], ARRAYS[name])


def test_other_files_are_no_checkpoints(damaged):
    path = damaged.path / "checkpoint/latest.npz"
    write_arrays(path, {"x": np.zeros(3)})
    with pytest.raises(FedfuseError, match="is not a checkpoint of fedfuse"):
        damaged.load_checkpoint()
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(FedfuseError, match="damaged"):
        damaged.load_checkpoint()


def test_nothing_is_unpickled(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{"a": 1}, None], dtype=object))
    with pytest.raises(FedfuseError, match="damaged"):
        read_arrays(path)


def test_damaged_json_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"a": ')
    with pytest.raises(FedfuseError, match=r"config\.json is damaged or cut short"):
        read_json(tmp_path / "config.json")
    with pytest.raises(FedfuseError, match=r"holds no run of fedfuse: summary\.json is missing"):
        read_json(tmp_path / "summary.json")


def test_json_is_strict(tmp_path):
    """No NaN in a file: it is not JSON, and other readers stop at it."""
    data = {"a": np.float32(0.5), "b": [np.nan, np.inf, 1], "c": (np.int64(3), "é"), "d": None}
    write_json(tmp_path / "x.json", data)
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    expected = {"a": 0.5, "b": [None, None, 1], "c": [3, "é"], "d": None}
    assert json.loads(text, parse_constant=pytest.fail) == expected == without_nan(data)
