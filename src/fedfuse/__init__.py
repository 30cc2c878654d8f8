"""fedfuse: which devices of a federation share a model, and one good model per group."""

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

__all__ = [
    "FPFC",
    "FPFCL1",
    "L1",
    "MCP",
    "SCAD",
    "Callback",
    "Decay",
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
