"""Run directories of strangers: nothing hangs, nothing takes memory that it has not, nothing reaches other files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedfuse as ff
from fedfuse.errors import FedfuseError
from fedfuse.results.export import export
from fedfuse.results.result import Result
from fedfuse.utils.files import csv_text, read_arrays, read_json, write_arrays, write_csv
from support import fuzzed_directories


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    place = tmp_path_factory.mktemp("foreign") / "run"
    table = fuzzed_directories.frame("regression")
    table["site"] = table["site"].map({str(i): f"=HYPERLINK({i})" for i in range(6)})
    ff.fit(ff.Federation.from_frame(table, device="site", target="y"), ff.FPFC(lam=0.5), rounds=5, out=place)
    return place


@pytest.fixture
def run(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "run"))


def zip_bomb(path, megabytes):
    """Zeros of so many megabytes, a thousandth of that on disk."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("models.npy", "w") as member:
        shape = (megabytes, 1_000_000)
        np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for _ in range(megabytes):
            member.write(bytes(1_000_000))


def test_a_zip_bomb_takes_no_memory(run):
    zip_bomb(run / "models.npz", 400)
    with pytest.raises(FedfuseError, match=r"models.npz is damaged .*larger than fedfuse writes them"):
        Result.load(run)


def test_an_array_is_as_large_as_its_bytes(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("a.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with pytest.raises(FedfuseError, match="an array of shape"):
        read_arrays(tmp_path / "a.npz")


def test_a_pickle_is_refused_without_advice_to_load_it(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.array([{}], dtype=object))
    with pytest.raises(FedfuseError, match="Python objects, which fedfuse never writes") as problem:
        read_arrays(tmp_path / "a.npz")
    assert "allow_pickle" not in str(problem.value)


@pytest.mark.parametrize("name", ["summary.json", "models.npz", "history.csv", "profile.json"])
def test_regular_files_only(run, name):
    """A pipe would wait for ever, and /dev/zero fill the memory."""
    for put in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to("/etc/passwd")):
        (run / name).unlink()
        put(run / name)
        with pytest.raises(FedfuseError, match=r"not a regular file|link to another directory|is not a zip file"):
            Result.load(run)


def test_a_link_within_the_directory_is_fine(run):
    (run / "models.npz").rename(run / "kept-elsewhere.npz")
    (run / "models.npz").symlink_to("kept-elsewhere.npz")
    assert Result.load(run).n_clusters >= 1


def test_an_export_does_not_follow_a_link(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (run / "export").symlink_to(tmp_path / "mine")
    with pytest.raises(FedfuseError, match=r"is a link to .*, which is not followed"):
        export(Result.load(run), run / "export")
    assert not list((tmp_path / "mine").iterdir())


def test_a_resumed_run_does_not_write_through_links(whole, tmp_path):
    """rounds.jsonl and checkpoints of an unfinished run, where they lead elsewhere."""
    run, mine = Path(shutil.copytree(whole, tmp_path / "run")), tmp_path / "mine"
    (run / "summary.json").unlink()
    mine.write_text("mine")
    (run / "rounds.jsonl").symlink_to(mine)
    table = fuzzed_directories.frame("regression")
    table["site"] = table["site"].map({str(i): f"=HYPERLINK({i})" for i in range(6)})
    ff.resume(run, ff.Federation.from_frame(table, device="site", target="y"))
    assert mine.read_text() == "mine"
    (run / "checkpoint").symlink_to(tmp_path)
    with pytest.raises(FedfuseError, match="which is not followed"):
        ff.resume(run)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_models_are_finite(run, value):
    arrays = read_arrays(run / "models.npz")
    arrays["models"][0, 0] = value
    write_arrays(run / "models.npz", arrays)
    with pytest.raises(FedfuseError, match="models that are not finite and cannot predict"):
        Result.load(run)


@pytest.mark.parametrize(("name", "value"), [("labels", 10**9), ("rounds", 10**30), ("seconds", 1e400)])
def test_absurd_counts(run, name, value):
    summary = read_json(run / "summary.json")
    summary[name] = [value] * len(summary["labels"]) if name == "labels" else value
    (run / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(FedfuseError, match=r"is not as fedfuse writes it|damaged"):
        Result.load(run)


def test_no_cell_is_a_formula(run, tmp_path):
    """In files that spreadsheets open: names and text are escaped, numbers stay numbers."""
    for name in ("labels.csv", "coefficients.csv", "contrasts.csv"):
        table = pd.read_csv(run / name, dtype=str, keep_default_na=False)
        for cell in [*table.columns, *table.to_numpy().ravel()]:
            assert not cell.startswith(("=", "+", "@", "-")) or float(cell) <= 0
    assert "'=HYPERLINK(0)" in (run / "labels.csv").read_text()
    assert "ward==east" in (run / "coefficients.csv").read_text()  # within a cell it does no harm
    odd = pd.DataFrame({"@a": ["+1", "-x", -1.5]}, index=pd.Index(["=b", "c", "\td"], name="n"))
    write_csv(tmp_path / "odd.csv", odd, index=True)
    assert (tmp_path / "odd.csv").read_text() == "n,'@a\n'=b,+1\nc,'-x\n'\td,-1.5\n" == csv_text(odd, index=True)


@pytest.mark.slow
def test_five_thousand_fuzzed_directories():
    """No crash, no hang, memory below 1 GB."""
    done = subprocess.run(
        [sys.executable, fuzzed_directories.__file__, "5000", "0"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=3000,
    )  # fmt: skip
    seen = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert seen["used"] + seen["refused"] == 5000
    assert seen["bytes"] < fuzzed_directories.MAX_BYTES
