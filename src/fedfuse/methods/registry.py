"""Names of methods, and where each is.

To add a method is to write its file and a line here. A method is imported when its name is first asked for.
"""

from __future__ import annotations

from collections import UserDict
from typing import Any

from fedfuse.errors import FedfuseError, guess
from fedfuse.methods.method import Method, work_from_config
from fedfuse.utils.lazy import load


class Registry(UserDict[str, Any]):
    """Classes by name, each given as ``"module:Class"`` until it is first asked for, or as itself."""

    def __getitem__(self, name: str) -> type[Method[Any]]:
        if isinstance(self.data[name], str):
            self.data[name] = load(self.data[name])
        kind: type[Method[Any]] = self.data[name]
        return kind

    def add(self, method: type[Method[Any]]) -> None:
        """Add a method of your own, under its name; ``del METHODS[name]`` takes it out again."""
        self.data[method.name] = method


METHODS = Registry(
    {
        "fusion-tree": "fedfuse.grouping.fusion_tree:FusionTree",
        "fpfc": "fedfuse.methods.fpfc:FPFC",
        "fpfc-l1": "fedfuse.methods.fpfc:FPFCL1",
        "local": "fedfuse.methods.personal.local:Local",
        "fedavg": "fedfuse.methods.one_model.fedavg:FedAvg",
        "fedasync": "fedfuse.methods.one_model.fedasync:FedAsync",
        "lg-fedavg": "fedfuse.methods.personal.lg_fedavg:LGFedAvg",
        "per-fedavg": "fedfuse.methods.personal.per_fedavg:PerFedAvg",
        "ifca": "fedfuse.methods.clustered.ifca:IFCA",
        "cfl": "fedfuse.methods.clustered.cfl:CFL",
        "pacfl": "fedfuse.methods.clustered.pacfl:PACFL",
        "fedprox": "fedfuse.methods.one_model.fedprox:FedProx",
        "scaffold": "fedfuse.methods.one_model.scaffold:Scaffold",
        "fedavg-ft": "fedfuse.methods.personal.fine_tuning:FedAvgFT",
        "ditto": "fedfuse.methods.personal.ditto:Ditto",
        "fedper": "fedfuse.methods.personal.fedper:FedPer",
        "fedrep": "fedfuse.methods.personal.fedrep:FedRep",
        "pfedme": "fedfuse.methods.personal.pfedme:PFedMe",
        "l2gd": "fedfuse.methods.personal.l2gd:L2GD",
        "fedamp": "fedfuse.methods.personal.fedamp:FedAMP",
        "mocha": "fedfuse.methods.personal.mocha:MOCHA",
        "fedem": "fedfuse.methods.personal.fedem:FedEM",
        "hypcluster": "fedfuse.methods.clustered.hypcluster:HypCluster",
        "odcl-cc": "fedfuse.methods.clustered.odcl:ODCLCC",
        "odcl-km": "fedfuse.methods.clustered.odcl:ODCLKM",
        "fl-hc": "fedfuse.methods.clustered.flhc:FLHC",
        "stocfl": "fedfuse.methods.clustered.stocfl:StoCFL",
        "network-lasso": "fedfuse.methods.clustered.network_lasso:NetworkLasso",
        "oracle": "fedfuse.grouping.refit:Oracle",
    }
)
# What only other methods are made of.
_PARTS = Registry(
    {
        "tuned": "fedfuse.grouping.lambda_path:LambdaPath",
        "searched": "fedfuse.tuning.grid_search:GridSearch",
    }
)
# What a comparison may name in place of methods; fedasync, which is FedAvg in another mode, is in none of them.
FAMILIES = ("paper", "clustered", "personal", "all")
OWN_METHODS = ("fusion-tree", "fpfc", "fpfc-l1", "oracle")
PAPER_METHODS = (*OWN_METHODS, "local", "fedavg", "lg-fedavg", "per-fedavg", "ifca", "cfl", "pacfl")
# What runs where no method is named.
DEFAULT_METHOD = "fusion-tree"


def default_name(lam: object = None) -> str:
    """Return the method that is meant where none is named: a lambda means FPFC."""
    return DEFAULT_METHOD if lam is None else "fpfc"


def methods_of(family: str) -> tuple[str, ...]:
    """Return the methods of a family: those of the paper's tables, all that find groups, all personal ones, or all.

    >>> methods_of("personal")[:3]
    ('local', 'lg-fedavg', 'per-fedavg')
    """
    places = {n: p if isinstance(p, str) else p.__module__ for n, p in METHODS.data.items() if n != "fedasync"}
    if family in ("clustered", "personal"):
        return tuple(n for n, p in places.items() if f".{family}." in p or (family == "clustered" and n in OWN_METHODS))
    return tuple(name for name in places if family == "all" or name in PAPER_METHODS)


def method_called(name: str) -> type[Method[Any]]:
    """Return the method of this name."""
    if name not in METHODS:
        raise FedfuseError(f"unknown method {name!r}; {guess(name, METHODS)}known: {', '.join(METHODS)}")
    return METHODS[name]


def from_config(config: dict[str, Any]) -> Method[Any]:
    """Build the method that `Method.to_config` described."""
    settings = dict(config)
    name = settings.pop("method")
    kind = _PARTS[name] if name in _PARTS else method_called(name)
    if "inner" in settings:
        settings["inner"] = from_config(settings["inner"])
    if "work" in settings:
        settings["work"] = work_from_config(settings["work"])
    return kind(**settings)
