"""Names that a package has, but imports only when somebody asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def later(package: str, name: str, modules: Mapping[str, str]) -> Any:
    """Return what a package's module has under this name, for the package's own ``__getattr__``.

    >>> later("fedfuse", "Work", {"Work": "tasks"}).__module__
    'fedfuse.tasks'
    """
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    if not modules[name]:  # a module itself
        return import_module(f"{package}.{name}")
    return getattr(import_module(f"{package}.{modules[name]}"), name)
