"""fedfuse: which devices of a federation share a model, and one good model per group."""

from typing import TYPE_CHECKING, Any

from fedfuse._version import __version__
from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError
from fedfuse.fusion import FusionState
from fedfuse.methods import CFL, FPFC, FPFCL1, IFCA, PACFL, FedAsync, FedAvg, LGFedAvg, Local, PerFedAvg
from fedfuse.models import LinearRegression, SoftmaxRegression
from fedfuse.penalties import L1, MCP, SCAD, SmoothedSCAD, SquaredL2
from fedfuse.result import Result
from fedfuse.schedules import Decay, Grow, Paced, Uneven
from fedfuse.tasks import Work
from fedfuse.training import Callback, Settings, fit, resume

if TYPE_CHECKING:
    from fedfuse.comparison import Comparison, compare
    from fedfuse.estimators import FPFCClassifier, FPFCRegressor
    from fedfuse.models.networks import CNN, MLP
    from fedfuse.models.torch import TorchModel
    from fedfuse.paths import SolutionPath, solution_path
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


# imported when first asked for: scikit-learn and torch take most of a second, and most runs need none of these
_LATER = {
    "CNN": "models",
    "Comparison": "comparison",
    "MLP": "models",
    "TorchModel": "models",
    "FPFCClassifier": "estimators",
    "FPFCRegressor": "estimators",
    "SolutionPath": "paths",
    "Tuning": "tuning",
    "compare": "comparison",
    "solution_path": "paths",
    "tune": "tuning",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(f"fedfuse.{_LATER[name]}"), name)
    raise AttributeError(f"module 'fedfuse' has no attribute {name!r}")
