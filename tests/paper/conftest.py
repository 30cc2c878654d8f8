"""A size that takes no time, in the place of the quick one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedfuse.paper.runner import cache
from fedfuse.paper.setup import SCALES, PaperSetup, Scale
from fedfuse.training.presets import GROUPS

DEVICES = {
    "synthetic:S1": "synthetic:3,3", "synthetic:S2": "synthetic:2,4", "synthetic:S3": "synthetic:4,4",
    "synthetic:S4": "synthetic:5", "synthetic:S5": "synthetic:1,1,1,1",
}  # fmt: skip
TINY = Scale(
    style="usual", seeds=(0,), rows=24, images=400, rounds={"synthetic": 3, "housing-bodyfat": 3, "images": 2},
    figure_rounds={"synthetic": 4, "housing-bodyfat": 3, "images": 2}, trial=2, starts=2, shares=(0.4,), few=True,
    length=0.01,
)  # fmt: skip


@pytest.fixture
def tiny(monkeypatch):
    """Make --quick tiny; returns a function that changes it further."""

    def change(**fields):
        monkeypatch.setitem(SCALES, "quick", replace(TINY, **fields))

    change()
    whole = PaperSetup.recipe

    def few_devices(self, name):
        data = whole(self, name)
        data = replace(data, name=DEVICES.get(data.name, data.name))
        return replace(data, rows=10) if data.name == "digits" else data

    monkeypatch.setattr(PaperSetup, "recipe", few_devices)
    for name in ("S1", "S2", "S3", "S4", "S5"):
        monkeypatch.setitem(GROUPS, DEVICES[f"synthetic:{name}"], 2)
    return change


@pytest.fixture
def quick(tiny, tmp_path):
    return PaperSetup("quick", cache(tmp_path / "paper"))
