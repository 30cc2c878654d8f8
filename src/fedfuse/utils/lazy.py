"""Lazy imports: names that a package has and imports when first asked for, and what an upper room does for a lower one.

Imports go downwards only (see CONTRIBUTING). Where an object offers what an upper room does, as a result that draws
itself, or where a registry names what lies above it, the place is given as text and looked up when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from fedfuse.errors import FedfuseError


def load(place: str) -> Any:
    """Return what ``"package.module:name"`` names; an error that says which extra it needs where torch is missing.

    >>> load("fedfuse.errors:FedfuseError").__name__
    'FedfuseError'
    """
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise FedfuseError(f"{name} needs PyTorch, which is not installed: pip install 'fedfuse[torch]'") from None


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``: names by the module that has them, ``""`` for modules of the package itself.

    >>> lazy_names("fedfuse", {"errors": "FedfuseError guess"})("FedfuseError").__module__
    'fedfuse.errors'
    """
    places = {name: module for module, names in modules.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not places[name]:
            return import_module(f"{package}.{name}")
        return load(f"{package}.{places[name]}:{name}")

    return find
