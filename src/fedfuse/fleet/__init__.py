"""Where devices compute."""

from fedfuse.fleet.base import Fleet
from fedfuse.fleet.byzantine import Byzantine
from fedfuse.fleet.inprocess import InProcess

__all__ = ["Byzantine", "Fleet", "InProcess"]
