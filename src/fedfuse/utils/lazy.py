"""Lazy imports: names that a package has and imports when first asked for, and what an upper room does for a lower one.

Imports go downwards only (see CONTRIBUTING). Where an object offers what an upper room does, as a result that draws
itself, or where a registry names what lies above it, the place is given as text and looked up when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def load(place: str) -> Any:
    """Return what ``"package.module:name"`` names.

    >>> load("fedfuse.errors:FedfuseError").__name__
    'FedfuseError'
    """
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def later(package: str, name: str, modules: Mapping[str, str]) -> Any:
    """Return what a package's module has under this name, for the package's own ``__getattr__``.

    >>> later("fedfuse", "FedfuseError", {"FedfuseError": "errors"}).__module__
    'fedfuse.errors'
    """
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    if not modules[name]:  # a module itself
        return import_module(f"{package}.{name}")
    return load(f"{package}.{modules[name]}:{name}")
