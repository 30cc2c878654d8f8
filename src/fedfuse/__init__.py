"""fedfuse: which devices of a federation share a model, and one good model per group."""

from typing import TYPE_CHECKING, Any

from fedfuse._later import later
from fedfuse._version import __version__

if TYPE_CHECKING:
    from fedfuse import data as data
    from fedfuse import fleet as fleet
    from fedfuse import methods as methods
    from fedfuse import models as models
    from fedfuse.comparison import Comparison, compare
    from fedfuse.data.federation import Federation
    from fedfuse.errors import FedfuseError
    from fedfuse.estimators import FPFCClassifier, FPFCRegressor
    from fedfuse.fitting import fit, resume
    from fedfuse.fusion import FusionState
    from fedfuse.methods import CFL, FPFC, FPFCL1, IFCA, PACFL, FedAsync, FedAvg, LGFedAvg, Local, PerFedAvg
    from fedfuse.models import LinearRegression, SoftmaxRegression
    from fedfuse.models.networks import CNN, MLP
    from fedfuse.models.torch import TorchModel
    from fedfuse.paths import SolutionPath, solution_path
    from fedfuse.penalties import L1, MCP, SCAD, SmoothedSCAD, SquaredL2
    from fedfuse.result import Result
    from fedfuse.schedules import Decay, Grow, Paced, Uneven
    from fedfuse.settings import Settings
    from fedfuse.tasks import Work
    from fedfuse.training import Callback
    from fedfuse.tuning import Tuning, tune

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
    "Callback": "training",
    "Comparison": "comparison",
    "Decay": "schedules",
    "FPFC": "methods",
    "FPFCClassifier": "estimators",
    "FPFCL1": "methods",
    "FPFCRegressor": "estimators",
    "FedAsync": "methods",
    "FedAvg": "methods",
    "Federation": "data.federation",
    "FedfuseError": "errors",
    "FusionState": "fusion",
    "Grow": "schedules",
    "IFCA": "methods",
    "L1": "penalties",
    "LGFedAvg": "methods",
    "LinearRegression": "models",
    "Local": "methods",
    "MCP": "penalties",
    "MLP": "models",
    "PACFL": "methods",
    "Paced": "schedules",
    "PerFedAvg": "methods",
    "Result": "result",
    "SCAD": "penalties",
    "Settings": "settings",
    "SmoothedSCAD": "penalties",
    "SoftmaxRegression": "models",
    "SolutionPath": "paths",
    "SquaredL2": "penalties",
    "TorchModel": "models",
    "Tuning": "tuning",
    "Uneven": "schedules",
    "Work": "tasks",
    "compare": "comparison",
    "data": "",
    "fit": "fitting",
    "fleet": "",
    "methods": "",
    "models": "",
    "resume": "fitting",
    "solution_path": "paths",
    "tune": "tuning",
}


def __getattr__(name: str) -> Any:
    return later(__name__, name, _LATER)


def __dir__() -> list[str]:
    return sorted(__all__)
