"""The benchmark runs and writes what it should. How fast anything is, no test says."""

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from fedfuse.bench import Sizes, run_all, textbook
from fedfuse.bench.figure import Figure, table
from fedfuse.bench.local import Problem, TextbookRun
from fedfuse.data.synthetic import synthetic
from fedfuse.errors import FedfuseError

TINY = Sizes(m=8, d=5, large=20, triad=10_000, sgemm=32, seconds=0.0)


def test_every_figure_is_a_ratio_and_is_written_down(tmp_path):
    console = Console(file=io.StringIO(), width=120)
    figures = run_all(tmp_path / "bench.json", quick=True, console=console, sizes=TINY)
    content = json.loads((tmp_path / "bench.json").read_text())
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
            assert figure[number] > 0
    shown = console.file.getvalue()
    assert all(f.name in shown for f in figures)


def test_rounds_of_the_yardstick_are_those_of_fedfuse():
    """Textbook loops with NumPy gradients and the real run go the same way: the race is a fair one."""
    problem = Problem(synthetic("S1", seed=0))
    run, book = problem.run(), TextbookRun(problem)
    for _ in range(2):
        run.round()
        book.round()
    np.testing.assert_allclose(run.state.pairs.omega, book.omega, atol=1e-4)
    assert np.abs(book.omega).max() > 0.1


def test_goals_are_judged_in_the_right_sense():
    assert Figure("a", "b", "c", 1, 2, "s", 2.0, goal=1.5).met
    assert not Figure("a", "b", "c", 1, 2, "bytes", 2.0, goal=1.5, sense="at most").met
    assert Figure("a", "b", "c", 1, 2, "s", 2.0).met is None
    shown = Console(file=io.StringIO(), width=120)
    shown.print(table([Figure("a", "b", "c", 1, 2, "s", 2.0, goal=1.5)], judged=True))
    assert "at least 1.5" in shown.file.getvalue()


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path):
    for out in (tmp_path, tmp_path / "missing" / "bench.json"):
        with pytest.raises(FedfuseError, match="cannot write"):
            run_all(out, quick=True, console=Console(file=io.StringIO()))


def test_without_the_textbook_there_is_a_clear_error(monkeypatch, tmp_path):
    monkeypatch.setattr(textbook, "IN_CHECKOUT", tmp_path / "textbook.py")
    with pytest.raises(FedfuseError, match="textbook loops are missing"):
        textbook.transcription()
