"""The house holds: rooms of a bearable size, names that occur once, imports that go downwards."""

from __future__ import annotations

import ast
import configparser
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedfuse"
FILES = sorted(PACKAGE.rglob("*.py"))
# The package had 33,744 lines in version 0.1.0. It shall hold more in fewer.
MAX_LINES = 33_450


def test_rooms_are_small():
    assert len(list(PACKAGE.glob("*.py"))) <= 6
    for folder in {file.parent for file in FILES}:
        assert len(list(folder.glob("*.py"))) <= 14, folder
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in FILES) <= MAX_LINES


def test_no_name_occurs_twice():
    files = Counter(file.name for file in FILES if file.name != "__init__.py")
    classes = Counter(
        node.name
        for file in FILES
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for names in (files, classes) for name, n in names.items() if n > 1] == []


def test_every_room_has_its_place_in_the_contract():
    contract = configparser.ConfigParser()
    contract.read(ROOT / ".importlinter")
    layers = contract["importlinter:contract:rooms"]["layers"].replace("|", " ").split()
    rooms = {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")}
    assert rooms | {"errors", "estimators", "clustering"} == set(layers)
