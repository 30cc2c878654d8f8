"""The benchmark runs and writes what it should. How fast anything is, no test says."""

import io
import json
import math
import os
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedfuse.bench import (
    SECTIONS,
    BenchSizes,
    Curve,
    Figure,
    chosen,
    local_training,
    rounds_to_groups,
    run_all,
    startup,
    table,
)
from fedfuse.bench.local_training import TextbookRun, begun
from fedfuse.data.synthetic import synthetic
from fedfuse.errors import FedfuseError

TINY = BenchSizes(
    m=8, d=5, large=40, triad=10_000, sgemm=32, seconds=0.0, rounds=10, over_m=(6, 8, 10), over_d=(3, 4, 5),
    over_rows=(5, 6, 7), over_points=(100, 200, 300), linked=200, budget=60.0, images=20,
)  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """All parts but the starts of processes, at tiny sizes."""
    directory = tmp_path_factory.mktemp("bench")
    console = Console(file=io.StringIO(), width=120)
    only = [name for name in SECTIONS if name != "startup"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_training, "TURNS", 1)
        patch.setattr(local_training, "REPEATS", 1)
        patch.setattr(local_training, "synthetic", lambda name, seed: synthetic("3,3,3,3", seed=seed))
        patch.setattr(rounds_to_groups, "synthetic", lambda name, seed: synthetic("6,6,6,6", seed=seed))
        figures = run_all(directory / "bench.json", TINY, console=console, only=only)
    return directory, figures, console.file.getvalue()


def test_every_figure_is_a_ratio_and_is_written_down(measured):
    directory, figures, shown = measured
    content = json.loads((directory / "bench.json").read_text())
    assert content["quick"]
    assert {"processor", "cores", "threads", "memory_bytes", "system"} <= content["machine"].keys()
    assert {"python", "fedfuse", "numpy", "numba"} <= content["versions"].keys()
    assert [f["name"] for f in content["figures"]] == [f.name for f in figures]
    for figure in content["figures"]:
        assert figure["what"]
        assert figure["against"]
        assert figure["met"] is None
        for number in ("value", "reference", "ratio"):
            assert math.isfinite(figure[number])
            assert figure[number] > 0 or figure["unit"] in ("", "modules")
    assert all(f.name in shown for f in figures)
    assert [curve["over"] for curve in content["growth"]] == [
        "points", "devices", "devices", "parameters", "rows of a device",
    ]  # fmt: skip


def test_the_page_has_all_figures(measured, tmp_path):
    directory, figures, _ = measured
    pytest.importorskip("matplotlib").use("Agg")
    (tmp_path / "page.md").write_text("old")
    script = Path(__file__).parents[2] / "benchmarks/speed.py"
    words = [sys.executable, str(script), str(tmp_path / "page.md"), str(directory / "bench.json")]
    subprocess.run(words, check=True, env={**os.environ, "MPLBACKEND": "Agg"})
    text = (tmp_path / "page.md").read_text()
    assert all(f"| {figure.name} |" in text for figure in figures)
    assert "old" not in text
    assert (tmp_path / "page-growth.png").stat().st_size > 1000


def test_parts_are_chosen_by_name():
    assert chosen("") == list(SECTIONS)
    with pytest.raises(FedfuseError, match=r"no part 'disk'.*server, formed"):
        chosen("server,disk")


def test_a_run_of_a_table_imports_nothing_heavy(tmp_path):
    """By ``python -X importtime``, which lists all modules. Only pairwise fusion, with a lambda, is compiled."""
    startup.write_tables(tmp_path)
    runs = [startup.run_line(words, tmp_path / name) for name, words in startup.RUNS.items() if "visits.csv" in words]
    for words in (("-c", "import fedfuse"), *runs):
        modules = startup.imports(*words, cwd=tmp_path)
        assert "fedfuse" in modules
        compiled = set() if "--lam" in words else {"numba", "sklearn"}
        assert not {name.split(".")[0] for name in modules} & {*startup.HEAVY_MODULES, *compiled}


def test_rounds_of_the_yardstick_are_those_of_fedfuse():
    """Textbook loops with NumPy gradients and the real run go the same way: the race is a fair one."""
    federation = synthetic("S1", seed=0)
    run, book = begun(federation), TextbookRun(federation)
    for _ in range(2):
        run.round()
        book.round()
    weights = [run.model.coefficients(w) for w in run.state.pairs.omega]
    np.testing.assert_allclose(weights, book.book.W, atol=1e-4)
    assert np.abs(book.book.W).max() > 0.1


def test_a_curve_ends_where_its_time_does(monkeypatch):
    monkeypatch.setattr("fedfuse.bench.measurement.time.perf_counter", cycle([0.0, 0.0, 2.0, 2.0, 9.0]).__next__)
    curve = Curve.measured("a", "b", (10, 20, 40), float, budget=20.0)
    assert curve.sizes == (10, 20)  # 9 s so far, and 7 s for 20 are at least 14 s for 40
    assert curve.seconds == (10.0, 20.0)


def test_goals_are_judged_in_the_right_sense():
    assert Figure("a", "b", "c", 1, 2, "s", goal=1.5).met
    assert not Figure("a", "b", "c", 1, 2, "s", goal=0.4, sense="at most").met
    assert not Figure("a", "b", "c", 1, 2, "GB/s", goal=0.9).met
    assert Figure("a", "b", "c", 1, 2, "s").met is None
    shown = Console(file=io.StringIO(), width=120)
    shown.print(table([Figure("a", "b", "c", 1, 2, "s", goal=1.5).to_dict(judged=True)]))
    assert "at least 1.5" in shown.file.getvalue()


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path):
    for out in (tmp_path, tmp_path / "missing" / "bench.json"):
        with pytest.raises(FedfuseError, match="cannot write"):
            run_all(out, console=Console(file=io.StringIO()))


def test_without_the_textbook_there_is_a_clear_error(monkeypatch, tmp_path):
    monkeypatch.setattr(local_training, "IN_CHECKOUT", tmp_path / "textbook.py")
    with pytest.raises(FedfuseError, match="textbook loops are missing"):
        local_training.textbook()
