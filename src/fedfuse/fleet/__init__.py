"""Where devices compute."""

from fedfuse.fleet.base import Fleet
from fedfuse.fleet.engines import Engine
from fedfuse.fleet.inprocess import InProcess
from fedfuse.fleet.workers import Workers

__all__ = ["Engine", "Fleet", "InProcess", "Workers"]
