"""What the server does. One file per method, each reading like its paper's algorithm."""

from __future__ import annotations

from typing import Any

from fedfuse.errors import FedfuseError, guess
from fedfuse.methods.base import Method, World, work_from_config
from fedfuse.methods.cfl import CFL
from fedfuse.methods.fedasync import FedAsync
from fedfuse.methods.fedavg import ClusteredFedAvg, FedAvg
from fedfuse.methods.fpfc import FPFC, FPFCL1
from fedfuse.methods.ifca import IFCA
from fedfuse.methods.lg_fedavg import LGFedAvg
from fedfuse.methods.local import Local
from fedfuse.methods.pacfl import PACFL
from fedfuse.methods.per_fedavg import PerFedAvg
from fedfuse.methods.refit import Oracle
from fedfuse.methods.search import Searched
from fedfuse.methods.tuned import Tuned

METHODS: dict[str, type[Method[Any]]] = {
    kind.name: kind for kind in (FPFC, FPFCL1, Local, FedAvg, FedAsync, LGFedAvg, PerFedAvg, IFCA, CFL, PACFL, Oracle)
}
# those of the paper's tables, and the yardstick: what a comparison of all compares
FIELD = tuple(name for name in METHODS if name != FedAsync.name)
# what only other methods are made of
_PARTS: dict[str, type[Method[Any]]] = {kind.name: kind for kind in (Tuned, Searched, ClusteredFedAvg)}

__all__ = [
    "CFL",
    "FIELD",
    "FPFC",
    "FPFCL1",
    "IFCA",
    "METHODS",
    "PACFL",
    "ClusteredFedAvg",
    "FedAsync",
    "FedAvg",
    "LGFedAvg",
    "Local",
    "Method",
    "Oracle",
    "PerFedAvg",
    "World",
    "from_config",
    "method_called",
]


def method_called(name: str) -> type[Method[Any]]:
    """Return the method of this name."""
    if name not in METHODS:
        raise FedfuseError(f"unknown method {name!r}; {guess(name, METHODS)}known: {', '.join(METHODS)}")
    return METHODS[name]


def from_config(config: dict[str, Any]) -> Method[Any]:
    """Build the method that `Method.to_config` described."""
    settings = dict(config)
    name = settings.pop("method")
    kind = _PARTS.get(name) or method_called(name)
    if "inner" in settings:
        settings["inner"] = from_config(settings["inner"])
    if "work" in settings:
        settings["work"] = work_from_config(settings["work"])
    return kind(**settings)
