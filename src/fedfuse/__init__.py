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
    from fedfuse.estimators import FPFCClassifier, FPFCRegressor
    from fedfuse.paths import SolutionPath, solution_path
    from fedfuse.tuning import Tuning, tune

__all__ = [
    "CFL",
    "FPFC",
    "FPFCL1",
    "IFCA",
    "L1",
    "MCP",
    "PACFL",
    "SCAD",
    "Callback",
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
    "Tuning",
    "Uneven",
    "Work",
    "__version__",
    "fit",
    "resume",
    "solution_path",
    "tune",
]


# imported when first asked for: scikit-learn takes most of a second, and most runs need none of these
_LATER = {
    "FPFCClassifier": "estimators",
    "FPFCRegressor": "estimators",
    "SolutionPath": "paths",
    "Tuning": "tuning",
    "solution_path": "paths",
    "tune": "tuning",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(f"fedfuse.{_LATER[name]}"), name)
    raise AttributeError(f"module 'fedfuse' has no attribute {name!r}")
