"""Where devices compute."""

from typing import TYPE_CHECKING, Any

from fedfuse.utils.lazy import later

if TYPE_CHECKING:
    from fedfuse.engines.attacks import Byzantine
    from fedfuse.engines.base import Fleet, Wrapper
    from fedfuse.engines.factory import Engine
    from fedfuse.engines.faults import Lossy
    from fedfuse.engines.in_process import InProcess
    from fedfuse.engines.latency import Delayed
    from fedfuse.engines.workers import Workers

__all__ = ["Byzantine", "Delayed", "Engine", "Fleet", "InProcess", "Lossy", "Workers", "Wrapper"]

# imported when first asked for: a device needs one of these, and its process may live for one message only
_LATER = {
    "Byzantine": "attacks",
    "Delayed": "latency",
    "Engine": "factory",
    "Fleet": "base",
    "InProcess": "in_process",
    "Lossy": "faults",
    "Workers": "workers",
    "Wrapper": "base",
}


def __getattr__(name: str) -> Any:
    return later(__name__, name, _LATER)
