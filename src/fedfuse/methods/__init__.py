"""What the server does. One file per method, each reading like its paper's algorithm."""

from __future__ import annotations

from typing import Any

from fedfuse.errors import FedfuseError
from fedfuse.methods.base import Method, World, work_from_config
from fedfuse.methods.fpfc import FPFC, FPFCL1
from fedfuse.methods.refit import Oracle
from fedfuse.methods.tuned import Tuned

METHODS: dict[str, type[Method[Any]]] = {kind.name: kind for kind in (FPFC, FPFCL1, Oracle)}

__all__ = ["FPFC", "FPFCL1", "METHODS", "Method", "Oracle", "World", "from_config", "method_called"]


def method_called(name: str) -> type[Method[Any]]:
    """Return the method of this name."""
    if name not in METHODS:
        raise FedfuseError(f"unknown method {name!r}; known: {', '.join(METHODS)}")
    return METHODS[name]


def from_config(config: dict[str, Any]) -> Method[Any]:
    """Build the method that `Method.to_config` described."""
    settings = dict(config)
    name = settings.pop("method")
    kind = Tuned if name == Tuned.name else method_called(name)
    if "inner" in settings:
        settings["inner"] = from_config(settings["inner"])
    if "work" in settings:
        settings["work"] = work_from_config(settings["work"])
    return kind(**settings)
