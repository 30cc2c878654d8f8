"""Where devices compute."""

from fedfuse.fleet.base import Fleet, Wrapper
from fedfuse.fleet.byzantine import Byzantine
from fedfuse.fleet.delayed import Delayed
from fedfuse.fleet.engines import Engine
from fedfuse.fleet.inprocess import InProcess
from fedfuse.fleet.lossy import Lossy
from fedfuse.fleet.workers import Workers

__all__ = ["Byzantine", "Delayed", "Engine", "Fleet", "InProcess", "Lossy", "Workers", "Wrapper"]
