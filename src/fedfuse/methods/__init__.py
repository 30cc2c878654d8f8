"""What the server does: one file per published method, each reading like its paper's algorithm box."""

from typing import TYPE_CHECKING

from fedfuse.utils.lazy import lazy_names

if TYPE_CHECKING:
    from fedfuse.methods.cfl import CFL
    from fedfuse.methods.fedasync import FedAsync
    from fedfuse.methods.fedavg import FedAvg
    from fedfuse.methods.fpfc import FPFC, FPFCL1
    from fedfuse.methods.ifca import IFCA
    from fedfuse.methods.lg_fedavg import LGFedAvg
    from fedfuse.methods.local import Local
    from fedfuse.methods.pacfl import PACFL
    from fedfuse.methods.per_fedavg import PerFedAvg

__all__ = ["CFL", "FPFC", "FPFCL1", "IFCA", "PACFL", "FedAsync", "FedAvg", "LGFedAvg", "Local", "PerFedAvg"]

__getattr__ = lazy_names(
    __name__,
    {
        "cfl": "CFL",
        "fedasync": "FedAsync",
        "fedavg": "FedAvg",
        "fpfc": "FPFC FPFCL1",
        "ifca": "IFCA",
        "lg_fedavg": "LGFedAvg",
        "local": "Local",
        "pacfl": "PACFL",
        "per_fedavg": "PerFedAvg",
    },
)
