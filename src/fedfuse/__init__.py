"""fedfuse: which devices of a federation share a model, and one good model per group."""

from typing import TYPE_CHECKING

from fedfuse._version import __version__
from fedfuse.utils.lazy import lazy_names

if TYPE_CHECKING:
    from fedfuse import data as data
    from fedfuse import engines as engines
    from fedfuse import methods as methods
    from fedfuse import models as models
    from fedfuse.clustering import FusionClustering
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
    "FusionClustering",
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
    "tune",
]


# imported when first asked for: what computes, draws or reads tables takes a second and more, and a device's process
# on Flower, which lives for one message, needs little of it
__getattr__ = lazy_names(
    __name__,
    {
        "": "data engines methods models",
        "clustering": "FusionClustering",
        "core.penalties": "L1 MCP SCAD SmoothedSCAD SquaredL2",
        "data.federation": "Federation",
        "errors": "FedfuseError",
        "estimators": "FPFCClassifier FPFCRegressor GroupedClassifier GroupedRegressor",
        "grouping.fusion_tree": "FusionTree",
        "methods": "CFL FPFC FPFCL1 FedAsync FedAvg IFCA LGFedAvg Local PACFL PerFedAvg",
        "models": "CNN LinearRegression MLP SoftmaxRegression TorchModel",
        "pairs.state": "FusionState",
        "protocol.local_work": "Decay Grow Paced Uneven Work",
        "results.result": "Result",
        "studies.compare": "compare",
        "studies.comparison": "Comparison",
        "studies.tune": "Tuning tune",
        "training.explain": "explain",
        "training.fit": "fit resume",
        "training.loop": "Callback",
        "training.settings": "Settings",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
