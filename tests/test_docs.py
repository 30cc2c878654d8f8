"""The docs are true: every block of code in them runs, and the site builds without a warning and without a network."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["tutorials/table.md", "tutorials/compare.md", "tutorials/pytorch.md", "howto.md", "algorithm.md"]
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


@pytest.fixture
def without_network(monkeypatch):
    """Tables that a page downloads are read where the data are."""
    read, real = pd.read_csv, Path(os.environ.get("FEDFUSE_DATA") or "nowhere") / "real"

    def here(place, *given, **options):
        if str(place).startswith("https:"):
            place = real / place.rpartition("/")[2]
            if not place.exists():
                pytest.skip(f"needs {place.name} in the folder real below FEDFUSE_DATA")
        return read(place, *given, **options)

    monkeypatch.setattr(pd, "read_csv", here)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page, fedfuse, here, without_network):
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
    """A block marked ``notest`` is listed here."""
    marked = {
        page.name: text.count("notest")
        for page in (ROOT / "docs").rglob("*.md")
        if "notest" in (text := page.read_text())
    }
    assert marked == {"howto.md": 1}  # a tracker, which need not be installed


def test_the_reference_names_all_that_is_exported():
    import fedfuse

    text = (ROOT / "docs" / "reference.md").read_text()
    named = {line.rpartition(".")[2] for line in re.findall(r"^::: (\S+)$", text, re.M)}
    assert set(fedfuse.__all__) - {"__version__"} <= named


@pytest.fixture(scope="module")
def reference():
    """docs/make_cli.py, which is no module of the package."""
    spec = importlib.util.spec_from_file_location("make_cli", ROOT / "docs" / "make_cli.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_key_has_a_meaning(reference):
    from fedfuse.training.options import keys

    assert [key for key in keys() if not reference.meaning(key)] == []


def test_the_page_of_the_command_line_is_up_to_date(reference):
    """If this fails: python docs/make_cli.py."""
    text = reference.page()
    assert (ROOT / "docs" / "cli.md").read_text() == text
    for words in ("fedfuse run", "fedfuse data fetch", "fedfuse flower new"):
        assert f"## {words}\n" in text
    assert "|  |  |" not in text  # an option without a meaning


def test_the_first_example_says_what_it_says(capsys):
    """Runs as it is, and prints what stands below it."""
    text = (ROOT / "docs" / "index.md").read_text()
    code, output = re.search(r"^```python\n(import numpy.*?)^```\n\n```\n(.*?)^```", text, re.M | re.S).groups()
    exec(code, {})
    assert capsys.readouterr().out == output


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"])
def test_links_lead_somewhere(page):
    """mkdocs looks at those of the docs."""
    for place in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        if place.startswith("http"):
            continue
        path, _, anchor = place.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), place
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, place


def test_where_things_are():
    """Every file in the table of CONTRIBUTING exists, and twelve ideas are in it."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("## Where things are") : text.index("## Words")]
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", table, re.M)[2:]
    ideas = {idea: re.findall(r"`([^`]+\.py)`", files) for idea, files in rows}
    assert all(files for files in ideas.values())
    assert [f for files in ideas.values() for f in files if not (ROOT / "src" / "fedfuse" / f).is_file()] == []
    for word in (
        *("SCAD", "communication cost", "what it sends", "liars are told", "CSV", "progress", "checkpoints"),
        *("virtual clock", "newcomers", "tree is cut", "Ray", "the report"),
    ):
        assert any(word in idea for idea in ideas), word


def test_the_method_in_contributing_is_the_one_that_is_tested():
    text, source = ((ROOT / name).read_text() for name in ("CONTRIBUTING.md", "tests/support/fedmedian.py"))
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert source.endswith(block)


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
    for command in (["docs/make_figures.py"], ["docs/make_cli.py"], ["-m", "mkdocs", "build", "--strict"]):
        subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, check=True)
    for page in (tmp_path / "site").rglob("*.html"):
        if "figures" not in page.parts:
            loaded = re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"(https?:[^\"]+)", page.read_text())
            assert not loaded, (page, loaded)
    assert "fedfuse.fit" in (tmp_path / "site" / "reference.html").read_text()
