"""fedfuse: which devices of a federation share a model, and one good model per group."""

from typing import TYPE_CHECKING, Any

from fedfuse._version import __version__
from fedfuse.utils.lazy import later

if TYPE_CHECKING:
    from fedfuse import data as data
    from fedfuse import engines as engines
    from fedfuse import methods as methods
    from fedfuse import models as models
    from fedfuse.core.penalties import L1, MCP, SCAD, SmoothedSCAD, SquaredL2
    from fedfuse.data.federation import Federation
    from fedfuse.errors import FedfuseError
    from fedfuse.estimators import FPFCClassifier, FPFCRegressor, GroupedClassifier, GroupedRegressor
    from fedfuse.grouping.fusion_tree import FusionTree
    from fedfuse.methods import CFL, FPFC, FPFCL1, IFCA, PACFL, FedAsync, FedAvg, LGFedAvg, Local, PerFedAvg
    from fedfuse.models import LinearRegression, SoftmaxRegression
    from fedfuse.models.networks import CNN, MLP
    from fedfuse.models.torch import TorchModel
    from fedfuse.pairs.state import FusionState
    from fedfuse.protocol.local_work import Decay, Grow, Paced, Uneven, Work
    from fedfuse.results.result import Result
    from fedfuse.studies.compare import compare
    from fedfuse.studies.comparison import Comparison
    from fedfuse.studies.solution_path import SolutionPath, solution_path
    from fedfuse.studies.tune import Tuning, tune
    from fedfuse.training.explain import explain
    from fedfuse.training.fit import fit, resume
    from fedfuse.training.loop import Callback
    from fedfuse.training.settings import Settings

__all__ = [
    "CFL",
    "CNN",
    "FPFC",
    "FPFCL1",
    "IFCA",
    "L1",
    "MCP",
    "MLP",
    "PACFL",
    "SCAD",
    "Callback",
    "Comparison",
    "Decay",
    "FPFCClassifier",
    "FPFCRegressor",
    "FedAsync",
    "FedAvg",
    "Federation",
    "FedfuseError",
    "FusionState",
    "FusionTree",
    "GroupedClassifier",
    "GroupedRegressor",
    "Grow",
    "LGFedAvg",
    "LinearRegression",
    "Local",
    "Paced",
    "PerFedAvg",
    "Result",
    "Settings",
    "SmoothedSCAD",
    "SoftmaxRegression",
    "SolutionPath",
    "SquaredL2",
    "TorchModel",
    "Tuning",
    "Uneven",
    "Work",
    "__version__",
    "compare",
    "explain",
    "fit",
    "resume",
    "solution_path",
    "tune",
]


# imported when first asked for: what computes, draws or reads tables takes a second and more, and a device's process
# on Flower, which lives for one message, needs little of it
_LATER = {
    "CFL": "methods",
    "CNN": "models",
    "Callback": "training.loop",
    "Comparison": "studies.comparison",
    "Decay": "protocol.local_work",
    "FPFC": "methods",
    "FPFCClassifier": "estimators",
    "FPFCL1": "methods",
    "FPFCRegressor": "estimators",
    "FedAsync": "methods",
    "FedAvg": "methods",
    "Federation": "data.federation",
    "FedfuseError": "errors",
    "FusionState": "pairs.state",
    "FusionTree": "grouping.fusion_tree",
    "GroupedClassifier": "estimators",
    "GroupedRegressor": "estimators",
    "Grow": "protocol.local_work",
    "IFCA": "methods",
    "L1": "core.penalties",
    "LGFedAvg": "methods",
    "LinearRegression": "models",
    "Local": "methods",
    "MCP": "core.penalties",
    "MLP": "models",
    "PACFL": "methods",
    "Paced": "protocol.local_work",
    "PerFedAvg": "methods",
    "Result": "results.result",
    "SCAD": "core.penalties",
    "Settings": "training.settings",
    "SmoothedSCAD": "core.penalties",
    "SoftmaxRegression": "models",
    "SolutionPath": "studies.solution_path",
    "SquaredL2": "core.penalties",
    "TorchModel": "models",
    "Tuning": "studies.tune",
    "Uneven": "protocol.local_work",
    "Work": "protocol.local_work",
    "compare": "studies.compare",
    "explain": "training.explain",
    "data": "",
    "fit": "training.fit",
    "engines": "",
    "methods": "",
    "models": "",
    "resume": "training.fit",
    "solution_path": "studies.solution_path",
    "tune": "studies.tune",
}


def __getattr__(name: str) -> Any:
    return later(__name__, name, _LATER)


def __dir__() -> list[str]:
    return sorted(__all__)
