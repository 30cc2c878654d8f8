"""Every declared experiment, at a size that takes no time: runs, tables, pictures."""

from __future__ import annotations

import matplotlib as mpl
import pytest

from fedfuse.data.download import missing_files
from fedfuse.paper import reproduction_page, runner, setup
from fedfuse.paper.items import items
from fedfuse.paper.setup import PaperSetup
from fedfuse.paper.trials import Data
from fedfuse.studies.jobs import Watcher

mpl.use("Agg")
IMAGES = [name for name, item in items().items() if any(Data(data).kind == "images" for data in item.experiment.data)]
CONVEX = [n for n, item in items().items() if n not in IMAGES or len({Data(d).kind for d in item.experiment.data}) > 1]
LONG = set(IMAGES) - {"mnist"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Items that share runs find them here."""
    return tmp_path_factory.mktemp("paper")


def _images_missing(name, data_dir):
    return [f"{name}.gz"] if Data(name).kind == "images" else missing_files(name, data_dir)


def _works(name, home):
    item, quick = items()[name], PaperSetup("quick", runner.cache(home))
    assert runner.run([item], quick, Watcher(), jobs=1) == {}
    assert runner.complete(item, quick)
    found = item.experiment.findings(quick)
    assert found.tables
    files = reproduction_page.save(item, quick, found, home / name)
    assert all(path.stat().st_size > 0 for path in files)
    page = (home / name / f"{name}.md").read_text()
    assert f"`fedfuse paper {name} --quick`" in page
    assert "nan" not in page


@pytest.mark.parametrize("name", CONVEX)
def test_an_item(name, tiny, home, monkeypatch):
    monkeypatch.setattr(reproduction_page, "PICTURES", ("figure.png",))
    monkeypatch.setattr(setup, "missing_files", _images_missing)
    monkeypatch.setattr(PaperSetup, "substitutes", lambda self, name: False)
    _works(name, home)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in IMAGES])
def test_an_item_on_images(name, tiny, home, monkeypatch):
    monkeypatch.setattr(reproduction_page, "PICTURES", ("figure.png",))
    monkeypatch.setattr(setup, "missing_files", _images_missing)  # digits stand for them
    _works(name, home)
    assert "digits, at most 10 rows for " in (home / name / f"{name}.md").read_text()
