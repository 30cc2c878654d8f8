"""fedfuse: which devices of a federation share a model, and one good model per group."""

from typing import TYPE_CHECKING, Any

from fedfuse._version import __version__
from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError
from fedfuse.fusion import FusionState
from fedfuse.methods import FPFC, FPFCL1
from fedfuse.models import LinearRegression, SoftmaxRegression
from fedfuse.penalties import L1, MCP, SCAD, SmoothedSCAD, SquaredL2
from fedfuse.result import Result
from fedfuse.schedules import Decay, Grow
from fedfuse.tasks import Work
from fedfuse.training import Callback, Settings, fit, resume

if TYPE_CHECKING:
    from fedfuse.estimators import FPFCClassifier, FPFCRegressor

__all__ = [
    "FPFC",
    "FPFCL1",
    "L1",
    "MCP",
    "SCAD",
    "Callback",
    "Decay",
    "FPFCClassifier",
    "FPFCRegressor",
    "Federation",
    "FedfuseError",
    "FusionState",
    "Grow",
    "LinearRegression",
    "Result",
    "Settings",
    "SmoothedSCAD",
    "SoftmaxRegression",
    "SquaredL2",
    "Work",
    "__version__",
    "fit",
    "resume",
]


def __getattr__(name: str) -> Any:
    # scikit-learn takes most of a second to import: only those who ask for an estimator wait for it
    if name in ("FPFCClassifier", "FPFCRegressor"):
        from fedfuse import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'fedfuse' has no attribute {name!r}")
