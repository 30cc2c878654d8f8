"""What the server does: one file per published method, each reading like its paper's algorithm box."""

from typing import TYPE_CHECKING

from fedfuse.utils.lazy import lazy_names

if TYPE_CHECKING:
    from fedfuse.methods.clustered.cfl import CFL
    from fedfuse.methods.clustered.ifca import IFCA
    from fedfuse.methods.clustered.pacfl import PACFL
    from fedfuse.methods.fpfc import FPFC, FPFCL1
    from fedfuse.methods.one_model.fedasync import FedAsync
    from fedfuse.methods.one_model.fedavg import FedAvg
    from fedfuse.methods.personal.lg_fedavg import LGFedAvg
    from fedfuse.methods.personal.local import Local
    from fedfuse.methods.personal.per_fedavg import PerFedAvg

__all__ = ["CFL", "FPFC", "FPFCL1", "IFCA", "PACFL", "FedAsync", "FedAvg", "LGFedAvg", "Local", "PerFedAvg"]

__getattr__ = lazy_names(
    __name__,
    {
        "clustered.cfl": "CFL",
        "one_model.fedasync": "FedAsync",
        "one_model.fedavg": "FedAvg",
        "fpfc": "FPFC FPFCL1",
        "clustered.ifca": "IFCA",
        "personal.lg_fedavg": "LGFedAvg",
        "personal.local": "Local",
        "clustered.pacfl": "PACFL",
        "personal.per_fedavg": "PerFedAvg",
    },
)
