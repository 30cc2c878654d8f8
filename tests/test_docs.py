"""The docs are true: every block of code in them runs, and the site builds without a warning and without a network."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["tutorials/table.md", "tutorials/pytorch.md", "howto.md", "algorithm.md"]
sybil = pytest.importorskip("sybil")


def shell(example, fedfuse):
    """Run the lines of a shell block: fedfuse's in this process, others by the shell."""
    for line in example.parsed.splitlines():
        words = shlex.split(line)
        if words[0] == "fedfuse":
            here = ["--jobs", "1"] if words[1] == "compare" else []  # workers have nothing to do with the docs
            status, _, err = fedfuse(*words[1:], *here)
            assert status == 0, f"{line}: {err}"
        else:
            subprocess.run(line, shell=True, check=True)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page, fedfuse, here):
    from sybil.evaluators.python import PythonEvaluator
    from sybil.parsers.markdown import CodeBlockParser

    if page == "tutorials/pytorch.md":
        pytest.importorskip("torch")
    if page == "howto.md":
        pytest.importorskip("matplotlib").use("Agg")
    parsers = [
        CodeBlockParser(language="python", evaluator=PythonEvaluator()),
        CodeBlockParser(language="sh", evaluator=lambda example: shell(example, fedfuse)),
    ]
    document = sybil.Sybil(parsers=parsers, path=str(ROOT / "docs")).parse(ROOT / "docs" / page)
    examples = list(document.examples())
    blocks = re.findall(r"^```(?:python|sh)$", (ROOT / "docs" / page).read_text(), re.M)
    assert len(examples) == len(blocks) > 0
    for example in examples:
        example.evaluate()


def test_blocks_that_are_not_run_are_few():
    """Whoever marks a block with ``notest`` says so here."""
    marked = {
        page.name: text.count("notest")
        for page in (ROOT / "docs").rglob("*.md")
        if "notest" in (text := page.read_text())
    }
    assert marked == {"howto.md": 1}  # trackers: test_tracking.py has them


def test_the_reference_names_all_that_is_exported():
    import fedfuse

    text = (ROOT / "docs" / "reference.md").read_text()
    named = {line.rpartition(".")[2] for line in re.findall(r"^::: (\S+)$", text, re.M)}
    assert set(fedfuse.__all__) - {"__version__"} <= named


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("matplotlib")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("figures"))
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "src").symlink_to(ROOT / "src")
    # a proxy that is not there: who asks for the network gets an error
    offline = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    environment = {**os.environ, **offline, "PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "Agg"}
    for command in (["docs/make_figures.py"], ["-m", "mkdocs", "build", "--strict"]):
        subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, check=True)
    for page in (tmp_path / "site").rglob("*.html"):
        if "figures" not in page.parts:
            loaded = re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"(https?:[^\"]+)", page.read_text())
            assert not loaded, (page, loaded)
    assert "fedfuse.fit" in (tmp_path / "site" / "reference.html").read_text()
