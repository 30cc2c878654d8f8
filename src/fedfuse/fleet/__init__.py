"""Where devices compute."""

from fedfuse.fleet.base import Fleet
from fedfuse.fleet.inprocess import InProcess

__all__ = ["Fleet", "InProcess"]
