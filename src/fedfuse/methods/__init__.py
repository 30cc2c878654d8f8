"""What the server does: one file per published method, each reading like its paper's algorithm box."""

from typing import TYPE_CHECKING, Any

from fedfuse.utils.lazy import later

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

_LATER = {
    "CFL": "cfl",
    "FPFC": "fpfc",
    "FPFCL1": "fpfc",
    "FedAsync": "fedasync",
    "FedAvg": "fedavg",
    "IFCA": "ifca",
    "LGFedAvg": "lg_fedavg",
    "Local": "local",
    "PACFL": "pacfl",
    "PerFedAvg": "per_fedavg",
}


def __getattr__(name: str) -> Any:
    return later(__name__, name, _LATER)
