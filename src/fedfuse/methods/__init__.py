"""What the server does: one file per published method, each reading like its paper's algorithm box.

The folders are the families that a comparison can name: one model for all devices, groups of devices, personal models.
"""

from typing import TYPE_CHECKING

from fedfuse.utils.lazy import lazy_names

if TYPE_CHECKING:
    from fedfuse.methods.clustered.cfl import CFL
    from fedfuse.methods.clustered.ifca import IFCA
    from fedfuse.methods.clustered.pacfl import PACFL
    from fedfuse.methods.fpfc import FPFC, FPFCL1
    from fedfuse.methods.one_model.fedasync import FedAsync
    from fedfuse.methods.one_model.fedavg import FedAvg
    from fedfuse.methods.one_model.fedprox import FedProx
    from fedfuse.methods.one_model.scaffold import Scaffold
    from fedfuse.methods.personal.ditto import Ditto
    from fedfuse.methods.personal.fedper import FedPer
    from fedfuse.methods.personal.fedrep import FedRep
    from fedfuse.methods.personal.fine_tuning import FedAvgFT
    from fedfuse.methods.personal.l2gd import L2GD
    from fedfuse.methods.personal.lg_fedavg import LGFedAvg
    from fedfuse.methods.personal.local import Local
    from fedfuse.methods.personal.per_fedavg import PerFedAvg
    from fedfuse.methods.personal.pfedme import PFedMe

__all__ = [
    "CFL",
    "FPFC",
    "FPFCL1",
    "IFCA",
    "L2GD",
    "PACFL",
    "Ditto",
    "FedAsync",
    "FedAvg",
    "FedAvgFT",
    "FedPer",
    "FedProx",
    "FedRep",
    "LGFedAvg",
    "Local",
    "PFedMe",
    "PerFedAvg",
    "Scaffold",
]

__getattr__ = lazy_names(
    __name__,
    {
        "fpfc": "FPFC FPFCL1",
        "one_model.fedavg": "FedAvg",
        "one_model.fedasync": "FedAsync",
        "one_model.fedprox": "FedProx",
        "one_model.scaffold": "Scaffold",
        "clustered.cfl": "CFL",
        "clustered.ifca": "IFCA",
        "clustered.pacfl": "PACFL",
        "personal.ditto": "Ditto",
        "personal.fedper": "FedPer",
        "personal.fedrep": "FedRep",
        "personal.fine_tuning": "FedAvgFT",
        "personal.l2gd": "L2GD",
        "personal.lg_fedavg": "LGFedAvg",
        "personal.local": "Local",
        "personal.per_fedavg": "PerFedAvg",
        "personal.pfedme": "PFedMe",
    },
)
