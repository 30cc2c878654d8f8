"""Run directories as a stranger might make them: damaged, absurd, enormous, or of things that are no files.

    python tests/support/fuzzed_directories.py [number] [seed]

Everything that reads a run directory is tried on them. An error must be a `FedfuseError`, nothing may hang, and memory
stays below a gigabyte; prints how many were refused, and the largest memory.
"""

from __future__ import annotations

import io
import json
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections import Counter
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

import numpy as np
import pandas as pd

import fedfuse as ff
from fedfuse.errors import FedfuseError
from fedfuse.report import render
from fedfuse.report.watch import read_progress
from fedfuse.results.export import export
from fedfuse.results.result import Result
from fedfuse.training.newcomers import noted, with_noted

SECONDS = 20  # for one directory
MAX_BYTES = 1_000_000_000
NASTY = (
    None, True, -1, 0, 1, 3, 2**31, 2**63, 10**30, 1e308, -0.5, float("nan"), float("inf"), "", "x", "=1+1", "\ud800",
    "é" * 50, "10", [], [[]], [1] * 1000, {}, {"a": 1}, [None], ["a", "a"], "cnn", "mlp", "regression",
)  # fmt: skip


def frame(goal: str) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 120
    table = pd.DataFrame({"site": rng.integers(0, 6, n).astype(str), "age": rng.normal(size=n)})
    table["ward"] = rng.choice(["north", "south", "=east"], n)
    table["day"] = pd.to_datetime("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D")
    signal_ = table["age"] * np.where(table["site"].astype(int) < 3, 2, -2) + 0.1 * rng.normal(size=n)
    table["y"] = signal_ if goal == "regression" else np.where(signal_ > 0, "yes", "no")
    return table


def directories(home: Path) -> list[Path]:
    """Finished runs of several kinds, and one that is not."""
    made = []
    methods = {"tree": None, "fpfc": ff.FPFC(lam=0.5), "ifca": "ifca"}
    for goal in ("regression", "classification"):
        federation = ff.Federation.from_frame(frame(goal), device="site", target="y")
        for name, method in methods.items():
            made.append(home / f"{goal}-{name}")
            ff.fit(federation, method, rounds=15, out=made[-1], source={"dataset": "t.csv"})

    class Stop(ff.Callback):
        def on_round(self, run, row):
            if run.k == 8:
                raise KeyboardInterrupt

    made.append(home / "unfinished")
    with suppress(KeyboardInterrupt):
        ff.fit(federation, ff.FPFC(lam=0.5), rounds=15, out=made[-1], callbacks=[Stop()])
    return made


# -- damage


def places(data, path=()):
    """Every place in JSON data."""
    yield path
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        yield from places(value, (*path, key))


def change_json(path: Path, rng: random.Random) -> None:
    data = json.loads(path.read_text())
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        *way, last = rng.choice(list(places(data))) or (None,)
        if last is None:
            data = deepcopy(rng.choice(NASTY))
            break
        inside = data
        for key in way:
            inside = inside[key]
        try:
            if rng.random() < 0.2:
                del inside[last]
            else:
                inside[last] = deepcopy(rng.choice(NASTY))
        except (IndexError, KeyError, TypeError):
            pass
    path.write_bytes(json.dumps(data).encode("utf-8", "surrogatepass"))


def change_lines(path: Path, rng: random.Random) -> None:
    lines = path.read_text().split("\n")
    cells = lines[rng.randrange(len(lines))].split(",")
    cells[rng.randrange(len(cells))] = rng.choice(("", "nan", "inf", "-1", "1e400", "x", '"', "=1", "9" * 400, "\0"))
    lines[rng.randrange(len(lines))] = ",".join(cells)
    path.write_text("\n".join(lines))


def change_arrays(path: Path, rng: random.Random) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    name = rng.choice(list(arrays))
    array = arrays[name]
    kind = rng.randrange(10)
    if kind < 3 and array.dtype.kind == "f" and array.size:
        array = array.copy()
        array.flat[rng.randrange(array.size)] = rng.choice((np.nan, np.inf, 1e300, -1e38))
    elif kind == 3:
        array = np.zeros((0,))
    elif kind == 4:
        array = np.array(rng.choice((2**62, -1, 0.5)))
    elif kind == 5:
        array = np.array(["a", "b"])
    elif kind == 6:
        array = np.concatenate([array.reshape(-1)] * 2)
    elif kind == 7:
        array = array.astype(rng.choice(("int8", "complex128", "float16", "S3", "bool")))
    elif kind == 8:
        del arrays[name]
    else:
        array = array.T.copy()
    if kind != 8:
        arrays[name] = array
    with path.open("wb") as file:
        np.savez(file, **arrays)


def bomb(path: Path, rng: random.Random) -> None:
    """An archive whose arrays are said to be, or are, enormous."""
    header = io.BytesIO()
    shape = rng.choice(((10**12,), (4 * 10**8,), (10**6, 10**6)))
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("models.npy", "w") as member:
        member.write(header.getvalue())
        for _ in range(rng.choice((0, 40, 400))):
            member.write(bytes(1_000_000))


def change_bytes(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    kind = rng.randrange(3)
    if kind == 0:
        del data[rng.randrange(len(data) + 1) :]
    elif kind == 1:
        for _ in range(rng.randrange(1, 20)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    else:
        data = bytearray(rng.randbytes(rng.randrange(200)))
    path.write_bytes(data)


def replace(path: Path, rng: random.Random) -> None:
    """Something else than a file."""
    path.unlink()
    kind = rng.randrange(6)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.symlink_to("/dev/zero")
    elif kind == 2:
        path.symlink_to("/etc/passwd")
    elif kind == 3:
        path.mkdir()
    elif kind == 4:
        path.symlink_to(path.name)
    # else it is gone


def damage(directory: Path, rng: random.Random) -> str:
    """Change one or two files of a run; return what was done."""
    done = []
    for _ in range(rng.choice((1, 1, 2))):
        files = [p for p in sorted(directory.rglob("*")) if p.is_file() and not p.is_symlink() and p.stat().st_size]
        path = rng.choice(files)
        ways = {".json": change_json, ".csv": change_lines, ".jsonl": change_lines, ".npz": change_arrays}
        ways_here = [ways.get(path.suffix, change_bytes)] * 6 + [change_bytes, replace]
        ways_here += [bomb] if path.suffix == ".npz" and rng.random() < 0.2 else []
        how = rng.choice(ways_here)
        try:
            how(path, rng)
        except Exception:  # it was damaged before
            change_bytes(path, rng)
        done.append(f"{how.__name__} {path.name}")
        if how is bomb:  # What unpacks it here would take the memory.
            break
    return ", ".join(done)


# -- use


def use(directory: Path, rng: random.Random, federation) -> None:
    """Do one of the things that are done with a run directory."""
    kind = rng.randrange(6)
    if not (directory / "summary.json").exists() and kind < 3:
        ff.resume(directory, federation)
    elif kind == 0:
        render(directory, baselines=False)
    elif kind == 1:
        [run.line() for run in read_progress(directory)]
    elif kind == 2:
        export(Result.load(directory), directory / "export")
    else:
        result = Result.load(directory)
        repr(result)
        json.dumps(result.summary())
        noted(directory)
        if result.profile.encoder is not None:
            with_noted(result, directory).predict_frame(frame(result.profile.goal).drop(columns="y"))
        [run.line() for run in read_progress(directory)]


def fuzz(number: int, home: Path, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Return how many directories were used, refused and crashed upon, and what was wrong with those."""
    whole, seen, wrong = directories(home / "whole"), Counter(), []
    federation = ff.Federation.from_frame(frame("classification"), device="site", target="y")
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError()))
    warnings.simplefilter("ignore")
    logging.getLogger("fedfuse").setLevel(logging.CRITICAL)
    for k in range(number):
        rng, place = random.Random(f"{seed}.{k}"), home / "used"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(rng.choice(whole), place)
        done = damage(place, rng)
        signal.alarm(SECONDS)
        try:
            use(place, rng, federation)
            seen["used"] += 1
        except FedfuseError:
            seen["refused"] += 1
        except BaseException:
            seen["crashed"] += 1
            wrong.append(f"{seed}.{k}: {done}\n{traceback.format_exc(limit=-4)}")
        finally:
            signal.alarm(0)
    return seen, wrong


def main() -> None:
    number, seed = (int(word) for word in (*sys.argv[1:], *("5000", "0")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as home:
        seen, wrong = fuzz(number, Path(home), seed)
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print("\n".join(wrong[:12]))
    kinds = Counter(" / ".join(text.strip().splitlines()[-3:]) for text in wrong)
    print("\n".join(f"{n} x {kind}" for kind, n in kinds.most_common(40)))
    print(json.dumps({**seen, "bytes": largest}))
    sys.exit(bool(wrong) or largest > MAX_BYTES)


if __name__ == "__main__":
    main()
