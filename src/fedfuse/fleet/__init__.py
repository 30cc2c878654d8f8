"""Where devices compute."""

from typing import TYPE_CHECKING, Any

from fedfuse._later import later

if TYPE_CHECKING:
    from fedfuse.fleet.base import Fleet, Wrapper
    from fedfuse.fleet.byzantine import Byzantine
    from fedfuse.fleet.delayed import Delayed
    from fedfuse.fleet.engines import Engine
    from fedfuse.fleet.inprocess import InProcess
    from fedfuse.fleet.lossy import Lossy
    from fedfuse.fleet.workers import Workers

__all__ = ["Byzantine", "Delayed", "Engine", "Fleet", "InProcess", "Lossy", "Workers", "Wrapper"]

# imported when first asked for: a device needs one of these, and its process may live for one message only
_LATER = {
    "Byzantine": "byzantine",
    "Delayed": "delayed",
    "Engine": "engines",
    "Fleet": "base",
    "InProcess": "inprocess",
    "Lossy": "lossy",
    "Workers": "workers",
    "Wrapper": "base",
}


def __getattr__(name: str) -> Any:
    return later(__name__, name, _LATER)
