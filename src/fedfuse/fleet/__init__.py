"""Where devices compute."""

from fedfuse.fleet.base import Fleet
from fedfuse.fleet.byzantine import Byzantine
from fedfuse.fleet.engines import Engine
from fedfuse.fleet.inprocess import InProcess
from fedfuse.fleet.workers import Workers

__all__ = ["Byzantine", "Engine", "Fleet", "InProcess", "Workers"]
