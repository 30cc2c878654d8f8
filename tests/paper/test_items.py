"""Every declared experiment, at a size that takes no time: runs, tables, pictures."""

from __future__ import annotations

import matplotlib as mpl
import pytest

from fedfuse.comparison.jobs import Watcher
from fedfuse.paper import output, runner
from fedfuse.paper.items import items

mpl.use("Agg")
NAMES = list(items())
NETWORKS = {"mnist", "fmnist", "cost", "attacks-mnist", "attacks-fmnist"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Items that share runs find them here."""
    return tmp_path_factory.mktemp("paper")


@pytest.mark.parametrize("name", NAMES)
def test_an_item(name, tiny, home, monkeypatch):
    from fedfuse.paper.setup import Setup

    monkeypatch.setattr(output, "PICTURES", ("figure.svg",))
    monkeypatch.setenv("FEDFUSE_DATA", str(home / "nothing"))  # digits stand for images
    item, setup = items()[name], Setup("quick", runner.cache(home))
    assert runner.run([item], setup, Watcher(), jobs=1) == {}
    assert runner.complete(item, setup)
    shown = item.experiment.show(setup)
    assert shown.tables
    files = output.save(item, setup, shown, home / name)
    assert all(path.stat().st_size > 0 for path in files)
    page = (home / name / f"{name}.md").read_text()
    assert f"fedfuse paper {name} --quick" in page
    assert "nan" not in page
