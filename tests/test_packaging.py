"""A release installs: wheel and sdist are built, and every extra brings what it is for into an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.planted import visits

ROOT = Path(__file__).parents[1]
ESTIMATORS = """
import numpy as np, fedfuse as ff
rng = np.random.default_rng(0)
sites, X = np.tile(list("abcdef"), 80), rng.normal(size=(480, 2))
y = np.where(np.isin(sites, list("abc")), 2.0, -2.0) * X[:, 0] + 0.1 * rng.normal(size=480)
assert len(set(ff.GroupedRegressor().fit(X, y, groups=sites).labels_)) == 2
assert ff.GroupedClassifier().fit(X, y > 0, groups=sites).score(X, y > 0, groups=sites) > 0.9
assert len(set(ff.FPFCRegressor().fit(X, y, groups=sites).labels_)) == 2
assert ff.FusionClustering().fit(X[:50]).labels_.shape == (50,)
"""
# What needs an extra: a command, or a program for Python; in this order, as some extras bring others along.
EXTRAS = {
    "report": "fedfuse paper figure1",
    "parquet": "fedfuse run visits.parquet --device site --target stay",
    "excel": "fedfuse run visits.xlsx --device site --target stay",
    "onnx": "fedfuse export first --to model.onnx",
    "privacy": "fedfuse run synthetic:3,3 --lam 0.6 --rounds 3 --set clip=3 --set epsilon=8",
    "ray": "fedfuse run synthetic:3,3 --lam 0.6 --rounds 3 --set actors=2",
    "flower": "fedfuse run synthetic:3,3 --lam 0.6 --rounds 3 --engine flower",
    "torch": "fedfuse run digits --method fedavg --rounds 3",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An empty folder outside the repository, with tables in it."""
    folder = tmp_path_factory.mktemp("release")
    frame = visits().drop(columns="outcome")
    frame.to_csv(folder / "visits.csv", index=False)
    for library in ("pyarrow", "openpyxl"):
        pytest.importorskip(library)
    frame.to_parquet(folder / "visits.parquet")
    frame.to_excel(folder / "visits.xlsx", index=False)
    return folder


@pytest.fixture(scope="module")
def call(place):
    """Run a program of a virtual environment in the folder; what lies in the repository is out of sight."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "FEDFUSE_DATA", "PYTEST_CURRENT_TEST")
    environment = {name: text for name, text in os.environ.items() if name not in hidden}
    environment |= {"FLWR_HOME": str(place / "flwr"), "FLWR_TELEMETRY_ENABLED": "0"}
    environment["RAY_ADDRESS"] = "local"  # Ray would wait minutes for a cluster that somebody has killed here

    def run(venv, *words):
        program = [str(venv / "bin" / words[0]), *map(str, words[1:])]
        return subprocess.run(program, cwd=place, env=environment, capture_output=True, text=True)

    return run


@pytest.fixture(scope="module")
def fresh(place, call):
    """Make a virtual environment with nothing but pip; returns its folder, and a function that installs."""

    def make(name):
        venv = place / name
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)

        def install(*what):
            done = call(venv, "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", *what)
            if "Failed to establish a new connection" in done.stderr or "Could not find a version" in done.stderr:
                pytest.skip(f"no package registry here: {done.stderr[-200:]}")
            assert done.returncode == 0, done.stderr

        return venv, install

    return make


@pytest.fixture(scope="module")
def wheel(place, call, fresh):
    """The wheel, built of the sdist, as `make dist` does."""
    venv, install = fresh("tools")
    install("build", "twine")
    built = call(venv, "python", "-m", "build", "--outdir", place / "dist", ROOT)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,), (sdist,) = (list((place / "dist").glob(end)) for end in ("*.whl", "*.tar.gz"))
    checked = call(venv, "twine", "check", "--strict", wheel, sdist)
    assert checked.returncode == 0, checked.stdout
    return wheel


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(place, call, fresh, wheel):
    venv, install = fresh("fresh")

    def works(what):
        return call(venv, *what.split()) if what.startswith("fedfuse") else call(venv, "python", "-c", what)

    install(wheel)
    assert call(venv, "fedfuse", "--version").stdout == f"fedfuse {wheel.name.split('-')[1]}\n"
    for words in ("fedfuse run synthetic:5,5", "fedfuse run visits.csv --device site --target stay --out first"):
        done = works(words)
        assert done.returncode == 0, done.stderr
        assert re.search(r"^10 \w+ form 2 groups", done.stdout, re.M), done.stdout
        assert "fedfuse predict first" in done.stdout or words.endswith("5,5")
    done = works(ESTIMATORS)
    assert done.returncode == 0, done.stderr
    for extra, what in EXTRAS.items():
        before = works(what)
        assert before.returncode != 0
        assert f"fedfuse[{extra}]" in before.stderr, before.stderr
        install(f"{wheel}[{extra}]")
        done = works(what)
        assert done.returncode == 0, f"{extra}: {done.stderr}"
    assert (place / "runs" / "paper" / "full" / "figure1" / "figure.svg").stat().st_size > 10_000
    assert call(venv, "python", "-m", "pip", "check").returncode == 0
    # where fedfuse comes from: not from the repository
    found = call(venv, "python", "-c", "import fedfuse; print(fedfuse.__file__)").stdout
    assert str(venv) in found


def test_the_version_is_the_same_in_changelog_and_citation():
    from fedfuse import __version__

    text, citation = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), (ROOT / "CITATION.cff").read_text()
    entry = re.search(rf"^## {re.escape(__version__)} \((\d{{4}}-\d\d-\d\d)\)$", text, re.M)
    assert entry
    assert f'version: {__version__}\ndate-released: "{entry[1]}"\n' in citation


def test_all_is_every_extra():
    """Of those that a user may want; ``docs`` and ``dev`` are for developers. The docs name each."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"all", "docs", "dev"}
    (whole,) = project["optional-dependencies"]["all"]
    assert set(re.findall(r"\w+", whole.partition("[")[2])) == extras == set(EXTRAS)
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert all(extra in index for extra in extras)
