"""Compiled functions: kept on disk, never those of other sources; numba is imported when one is called."""

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
from fedfuse.utils.jit import Kernels

PACKAGE = Path(fedfuse.__file__).parent
TRAIN = """
import json, sys
import numpy as np
import fedfuse as ff
rng = np.random.default_rng(0)
rows = [(X := rng.normal(size=(60, 60)), (X[:, i % 2] > 0).astype(int)) for i in range(40)]
fed = ff.Federation.from_arrays(rows)
before = "numba" in sys.modules
res = ff.fit(fed, ff.FPFC(lam=0.5, refit=False, work=ff.Work(steps=3, lr=0.1)), rounds=4)
from fedfuse.models import loss_kernels
from fedfuse.pairs import pair_kernels
compiled = [loss_kernels.descend, loss_kernels.evaluate, pair_kernels.update_pairs, pair_kernels.anchors]
hits = [sum(kernel.stats.cache_hits.values()) for kernel in compiled]
print(json.dumps({"models": res.models.tobytes().hex(), "numba before": before, "hits": hits}))
"""


def train(**environment):
    done = subprocess.run([sys.executable, "-c", TRAIN], env=os.environ | environment, capture_output=True, check=True)
    return json.loads(done.stdout)


def call_anchors(kernel, dtype=np.float64):
    """Call a small kernel, and check what it does."""
    rng = np.random.default_rng(0)
    omega, sums, devices = rng.normal(size=(5, 3)).astype(dtype), rng.normal(size=(5, 3)), np.array([4, 1])
    zeta = np.empty((2, 3), dtype)
    kernel(omega, sums, devices, zeta)
    np.testing.assert_allclose(zeta, omega[devices] + sums[devices] / 5, rtol=1e-6)


@pytest.fixture
def anchors():
    """The kernel as a new process would have it: nothing is loaded."""
    from fedfuse.pairs import pair_kernels

    return lambda: jit.kernel(fastmath=pair_kernels.FASTMATH)(pair_kernels.anchors.py_func)


@pytest.fixture
def directory(monkeypatch, tmp_path):
    """Where machine code is kept; nothing is there yet."""
    import numba

    jit._cache_directory.cache_clear()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    yield tmp_path / "fedfuse"
    jit._cache_directory.cache_clear()


def test_later_processes_load_machine_code_and_compute_the_same_bits(tmp_path):
    first, later = train(NUMBA_CACHE_DIR=str(tmp_path)), train(NUMBA_CACHE_DIR=str(tmp_path))
    assert not first["numba before"]
    assert first["hits"] == [0, 0, 0, 0]
    assert later["hits"] == [1, 1, 1, 1]
    assert first["models"] == later["models"]


def test_every_combination_of_types_is_kept_once(directory, anchors):
    for dtype in (np.float64, np.float32, np.float64):
        call_anchors(anchors(), dtype)
    assert len(list(directory.rglob("*.nbc"))) == 2
    again = anchors()
    call_anchors(again)
    assert sum(again.stats.cache_hits.values()) == 1


def test_numba_keeps_its_own_setting(directory, anchors):
    import numba

    before = numba.config.CACHE_DIR
    assert anchors().stats.cache_path.startswith(str(directory))
    assert before == numba.config.CACHE_DIR


def test_without_a_place_to_keep_code_there_is_still_code(monkeypatch, tmp_path, anchors):
    import numba

    (tmp_path / "file").write_text("no directory")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "file"))
    kernel = anchors()
    assert kernel.stats.cache_path is None
    call_anchors(kernel)


def test_without_a_setting_code_is_kept_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jit._cache_directory.cache_clear()
    try:
        assert tmp_path in jit._cache_directory("").parents
    finally:
        jit._cache_directory.cache_clear()


def test_other_sources_have_another_directory(monkeypatch, tmp_path):
    first = jit._cache_directory(str(tmp_path))
    jit._cache_directory.cache_clear()
    assert jit._cache_directory(str(tmp_path)) == first
    jit._cache_directory.cache_clear()
    monkeypatch.setattr(jit, "SOURCES", jit.SOURCES[:-1])
    assert jit._cache_directory(str(tmp_path)) != first
    jit._cache_directory.cache_clear()


def test_code_of_long_ago_is_removed(directory, anchors):
    old, recent = directory / "old", directory / "recent"
    for each in (old, recent):
        each.mkdir(parents=True)
    long_ago = time.time() - (jit.MAX_AGE_DAYS + 1) * 86400
    os.utime(old, (long_ago, long_ago))
    anchors()
    assert not old.exists()
    assert recent.exists()


def test_threads_that_come_at_once_have_it_compiled_once(directory, anchors):
    kernel = anchors()
    threads = [threading.Thread(target=call_anchors, args=[kernel]) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(kernel.signatures) == 1


def test_arrays_on_disk_and_arrays_not_to_be_written_are_arrays(directory, anchors, tmp_path):
    rng = np.random.default_rng(0)
    omega = np.memmap(tmp_path / "omega", np.float64, "w+", shape=(5, 3))
    omega[:] = rng.normal(size=(5, 3))
    devices = np.array([4, 1])
    devices.setflags(write=False)
    zeta = np.empty((2, 3))
    anchors()(omega, np.zeros((5, 3)), devices, zeta)
    np.testing.assert_array_equal(zeta, omega[devices])


def test_all_that_kernels_are_written_in_is_known():
    """Else a change would go unseen, and old code would be used."""
    known = set(jit.SOURCES) | {"utils/typing", "models/flat_parameters"}  # types of arrays; what is not compiled
    for name in jit.SOURCES:
        tree = ast.parse((PACKAGE / f"{name}.py").read_text())
        needed = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        ours = {module.removeprefix("fedfuse.").replace(".", "/") for module in needed if module.startswith("fedfuse.")}
        assert {module for module in ours if (PACKAGE / f"{module}.py").exists()} <= known, name


def test_all_kernels_are_in_known_sources():
    users = {
        str(path.relative_to(PACKAGE).with_suffix(""))
        for path in PACKAGE.rglob("*.py")
        if "@kernel(" in path.read_text()
    }
    assert "pairs/pair_kernels" in users
    assert users <= set(jit.SOURCES)


def test_private_names_are_no_kernels():
    with pytest.raises(AttributeError):
        Kernels("fedfuse.pairs.pair_kernels")._apart  # noqa: B018


def kept(place):
    """Where machine code is kept under a directory, asked anew."""
    jit._cache_directory.cache_clear()
    try:
        return jit._cache_directory(str(place))
    finally:
        jit._cache_directory.cache_clear()


def test_code_is_not_loaded_from_where_others_may_write(tmp_path, caplog):
    """A world-writable NUMBA_CACHE_DIR is no cache, unless it is sticky and what is inside is one's own."""
    pytest.importorskip("fcntl")
    place = tmp_path / "shared"
    place.mkdir()
    private = kept(place)
    assert private.stat().st_mode & 0o777 == 0o700
    place.chmod(0o777)
    assert kept(place) is None
    assert "others may write to" in caplog.text
    place.chmod(0o1777)
    assert kept(place) == private
    private.chmod(0o777)
    assert kept(place) is None
    private.chmod(0o700)
    (private / "planted.nbc").write_bytes(b"")
    (private / "planted.nbc").chmod(0o666)
    assert kept(place) is None


def test_code_of_other_owners_is_not_loaded(tmp_path):
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can give files away")
    planted = kept(tmp_path) / "planted.nbc"
    planted.write_bytes(b"")
    assert kept(tmp_path) is not None
    os.chown(planted, 12345, 12345)
    assert kept(tmp_path) is None
