"""Where devices compute."""

from typing import TYPE_CHECKING

from fedfuse.utils.lazy import lazy_names

if TYPE_CHECKING:
    from fedfuse.engines.attacks import Attacks
    from fedfuse.engines.base import Engine, EngineWrapper
    from fedfuse.engines.factory import EngineSpec
    from fedfuse.engines.faults import Faults
    from fedfuse.engines.in_process import InProcess
    from fedfuse.engines.latency import Latency
    from fedfuse.engines.workers import Workers

__all__ = ["Attacks", "Engine", "EngineSpec", "EngineWrapper", "Faults", "InProcess", "Latency", "Workers"]

# imported when first asked for: a device needs one of these, and its process may live for one message only
__getattr__ = lazy_names(
    __name__,
    {
        "attacks": "Attacks",
        "base": "Engine EngineWrapper",
        "factory": "EngineSpec",
        "faults": "Faults",
        "in_process": "InProcess",
        "latency": "Latency",
        "workers": "Workers",
    },
)
