"""What the server does: one file per published method, each reading like its paper's algorithm box.

The folders are the families that a comparison can name: one model for all devices, groups of devices, personal models.
Every class of the registry is also a name of this package, imported when it is first asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfuse.methods.clustered.cfl import CFL as CFL
    from fedfuse.methods.clustered.ifca import IFCA as IFCA
    from fedfuse.methods.clustered.pacfl import PACFL as PACFL
    from fedfuse.methods.fpfc import FPFC as FPFC
    from fedfuse.methods.fpfc import FPFCL1 as FPFCL1
    from fedfuse.methods.one_model.fedasync import FedAsync as FedAsync
    from fedfuse.methods.one_model.fedavg import FedAvg as FedAvg
    from fedfuse.methods.personal.lg_fedavg import LGFedAvg as LGFedAvg
    from fedfuse.methods.personal.local import Local as Local
    from fedfuse.methods.personal.per_fedavg import PerFedAvg as PerFedAvg


def __getattr__(name: str) -> Any:
    from fedfuse.methods.registry import METHODS

    for method, place in METHODS.data.items():
        if (place.rpartition(":")[2] if isinstance(place, str) else place.__name__) == name:
            return METHODS[method]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
