"""Compiled functions are kept as machine code: a later process computes the same bits without a compiler."""

import ast
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import fedfuse
from fedfuse.utils import jit
from fedfuse.utils.jit import Kernel, Kernels

TRAIN = """
import json, sys
import numpy as np
import fedfuse as ff
rng = np.random.default_rng(0)
rows = [(X := rng.normal(size=(60, 60)), (X[:, i % 2] > 0).astype(int)) for i in range(40)]
fed = ff.Federation.from_arrays(rows)
res = ff.fit(fed, ff.FPFC(lam=0.5, refit=False, work=ff.Work(steps=3, lr=0.1)), rounds=4)
print(json.dumps({"models": res.models.tobytes().hex(), "numba": "numba" in sys.modules}))
"""
HERE = Path(fedfuse.__file__).parent


def train(cache):
    done = subprocess.run(
        [sys.executable, "-c", TRAIN], env=os.environ | {"NUMBA_CACHE_DIR": str(cache)}, capture_output=True, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture
def shelf(monkeypatch, tmp_path):
    """Nothing is compiled yet."""
    monkeypatch.setattr(jit, "_shelf", lambda: tmp_path / "kernels" / "now")
    return tmp_path / "kernels" / "now"


def anchors(kernel, dtype=np.float64):
    """Call a small kernel, and check what it does."""
    rng = np.random.default_rng(0)
    omega, sums, devices = rng.normal(size=(5, 3)).astype(dtype), rng.normal(size=(5, 3)), np.array([4, 1])
    zeta = np.empty((2, 3), dtype)
    kernel(omega, sums, devices, zeta)
    np.testing.assert_allclose(zeta, omega[devices] + sums[devices] / 5, rtol=1e-6)


def new_kernel():
    return Kernel("fedfuse.pairs.pair_kernels", "anchors")


def test_a_later_process_needs_no_compiler_and_computes_the_same_bits(tmp_path):
    first, later = train(tmp_path), train(tmp_path)
    assert first["numba"]
    assert not later["numba"]
    assert first["models"] == later["models"]
    kept = {path.name.split("-")[0] for path in tmp_path.glob("fedfuse/*/*")}
    assert {"descend", "evaluate", "cut_chunks", "set_parameters", "update_pairs", "anchors"} <= kept


def test_every_combination_of_types_is_a_file(shelf):
    kernel = new_kernel()
    anchors(kernel)
    anchors(kernel)
    anchors(kernel, np.float32)
    assert [path.name.split("-")[0] for path in shelf.iterdir()] == ["anchors"] * 2
    before = {path: path.stat().st_mtime_ns for path in shelf.iterdir()}
    anchors(new_kernel())  # as another process would
    assert before == {path: path.stat().st_mtime_ns for path in shelf.iterdir()}


DAMAGE = {
    "end": lambda code: code[:-1],
    "most": lambda code: code[:7],
    "all": lambda code: b"",
    "words": lambda code: b"\0" + code,
    "not text": lambda code: b"\xff" + code,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_compiled_again(shelf, damage):
    anchors(new_kernel())
    (file,) = shelf.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert jit._read(file) is None
    anchors(new_kernel())
    assert jit._read(file) is not None
    assert [path.name for path in shelf.iterdir()] == [file.name]  # nothing half-written is left


def test_without_a_place_to_keep_code_there_is_still_code(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setattr(jit, "_shelf", lambda: tmp_path / "file" / "kernels")
    anchors(new_kernel())


def test_code_that_needs_numba_is_not_kept(shelf, monkeypatch):
    from fedfuse.utils import compiler

    monkeypatch.setattr(compiler, "_needs", lambda bitcode: {"__svml_log8"})
    anchors(new_kernel())
    assert not shelf.exists()


def test_threads_that_come_at_once_have_it_compiled_once(shelf, monkeypatch):
    from fedfuse.utils import compiler

    calls, compiled = [], compiler.compiled

    def slowly(*arguments):
        calls.append(arguments)
        time.sleep(0.2)
        return compiled(*arguments)

    monkeypatch.setattr(compiler, "compiled", slowly)
    kernel = new_kernel()
    threads = [threading.Thread(target=anchors, args=[kernel]) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(calls) == 1


def test_arrays_on_disk_and_arrays_not_to_be_written_are_arrays(shelf, tmp_path):
    rng = np.random.default_rng(0)
    omega = np.memmap(tmp_path / "omega", np.float64, "w+", shape=(5, 3))
    omega[:] = rng.normal(size=(5, 3))
    devices = np.array([4, 1])
    devices.setflags(write=False)
    zeta = np.empty((2, 3))
    new_kernel()(omega, np.zeros((5, 3)), devices, zeta)
    np.testing.assert_array_equal(zeta, omega[devices])


def test_numbers_are_what_they_are(shelf):
    kernel = Kernel("fedfuse.pairs.pair_kernels", "rescale")
    for ratio in (0.5, np.float64(0.5), np.float32(0.5)):
        delta, s, r = np.ones((1, 3)), np.array([0.5]), np.array([3.0])
        kernel(delta, s, r, np.zeros(1, np.int32), ratio)
        np.testing.assert_allclose(delta, 0.75)  # s + ratio (1 - s)
    with pytest.raises(TypeError):
        kernel(delta, s, r, np.zeros(1, np.int32), "0.5")
    assert len(list(shelf.iterdir())) == 1


def test_arrays_with_gaps_are_refused(shelf):
    with pytest.raises(ValueError, match="contiguous"):
        new_kernel()(np.zeros((5, 6))[:, ::2], np.zeros((5, 3)), np.arange(2), np.empty((2, 3)))


def test_code_of_long_ago_is_removed(shelf):
    old, recent = shelf.parent / "old", shelf.parent / "recent"
    for each in (old, recent):
        each.mkdir(parents=True)
        (each / "settle-0").write_bytes(b"")
    long_ago = time.time() - (jit.KEPT + 1) * 86400
    os.utime(old, (long_ago, long_ago))
    anchors(new_kernel())
    assert sorted(shelf.parent.iterdir()) == [shelf, recent]


def test_settings_of_the_compiler_and_sources_tell_code_apart(monkeypatch, tmp_path):
    def shelf():
        jit._shelf.cache_clear()
        return jit._shelf()

    try:
        first = shelf()
        monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
        assert shelf() == first
        monkeypatch.setenv("NUMBA_OPT", "1")
        assert shelf() != first
        monkeypatch.delenv("NUMBA_OPT")
        monkeypatch.setattr(jit, "SOURCES", jit.SOURCES[:-1])
        assert shelf().name != first.name
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
        assert shelf().parent == tmp_path / "fedfuse"
    finally:
        jit._shelf.cache_clear()


def test_all_that_loops_are_written_in_is_known():
    """Else a change would go unseen, and old code would be used."""
    for name in jit.SOURCES:
        tree = ast.parse((HERE / f"{name}.py").read_text())
        needed = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        ours = {module.removeprefix("fedfuse.").replace(".", "/") for module in needed if module.startswith("fedfuse.")}
        assert ours - {"types"} <= set(jit.SOURCES), name  # names for arrays, nothing more


def test_all_compiled_functions_belong_to_known_sources():
    users = [path for path in HERE.rglob("*.py") if "Kernels(" in path.read_text() and path.name != "_machine.py"]
    assert users
    for path in users:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Kernels":
                module = node.args[0].value.removeprefix("fedfuse.").replace(".", "/")
                assert module in jit.SOURCES


def test_private_names_are_no_kernels():
    with pytest.raises(AttributeError):
        Kernels("fedfuse.pairs.pair_kernels")._apart  # noqa: B018
