"""Names of the package and where they are, for type checkers and for `fedfuse/__init__.py`."""

from fedfuse import data as data
from fedfuse import engines as engines
from fedfuse import methods as methods
from fedfuse import models as models
from fedfuse.clustering import FusionClustering as FusionClustering
from fedfuse.core.penalties import L1 as L1
from fedfuse.core.penalties import MCP as MCP
from fedfuse.core.penalties import SCAD as SCAD
from fedfuse.core.penalties import SmoothedSCAD as SmoothedSCAD
from fedfuse.core.penalties import SquaredL2 as SquaredL2
from fedfuse.data.federation import Federation as Federation
from fedfuse.errors import FedfuseError as FedfuseError
from fedfuse.estimators import FPFCClassifier as FPFCClassifier
from fedfuse.estimators import FPFCRegressor as FPFCRegressor
from fedfuse.estimators import GroupedClassifier as GroupedClassifier
from fedfuse.estimators import GroupedRegressor as GroupedRegressor
from fedfuse.grouping.fusion_tree import FusionTree as FusionTree
from fedfuse.methods import CFL as CFL
from fedfuse.methods import FPFC as FPFC
from fedfuse.methods import FPFCL1 as FPFCL1
from fedfuse.methods import IFCA as IFCA
from fedfuse.methods import PACFL as PACFL
from fedfuse.methods import FedAsync as FedAsync
from fedfuse.methods import FedAvg as FedAvg
from fedfuse.methods import LGFedAvg as LGFedAvg
from fedfuse.methods import Local as Local
from fedfuse.methods import PerFedAvg as PerFedAvg
from fedfuse.models import LinearRegression as LinearRegression
from fedfuse.models import SoftmaxRegression as SoftmaxRegression
from fedfuse.models.networks import CNN as CNN
from fedfuse.models.networks import MLP as MLP
from fedfuse.models.torch import TorchModel as TorchModel
from fedfuse.pairs.state import FusionState as FusionState
from fedfuse.protocol.local_work import Decay as Decay
from fedfuse.protocol.local_work import Grow as Grow
from fedfuse.protocol.local_work import Paced as Paced
from fedfuse.protocol.local_work import Uneven as Uneven
from fedfuse.protocol.local_work import Work as Work
from fedfuse.results.result import Result as Result
from fedfuse.studies.compare import compare as compare
from fedfuse.studies.comparison import Comparison as Comparison
from fedfuse.training.explain import explain as explain
from fedfuse.training.fit import fit as fit
from fedfuse.training.fit import resume as resume
from fedfuse.training.loop import Callback as Callback
from fedfuse.training.settings import Settings as Settings

__version__: str
__all__: list[str]
