"""Federations, and the data sets, tables and arrays that they are built from."""

from typing import TYPE_CHECKING, Any

from fedfuse.data.federation import Federation, Goal, Rows
from fedfuse.data.synthetic import SyntheticTruth, synthetic, synthetic_truth
from fedfuse.utils.lazy import later

if TYPE_CHECKING:
    from fedfuse.data import images, partition
    from fedfuse.data.catalog import Source, available, load
    from fedfuse.data.datasets import federation_from_datasets
    from fedfuse.data.download import data_directory
    from fedfuse.data.encoders import Encoder
    from fedfuse.data.housing import housing_bodyfat
    from fedfuse.data.tables import federation_from_frame, read_table

__all__ = [
    "Encoder",
    "Federation",
    "Goal",
    "Rows",
    "Source",
    "SyntheticTruth",
    "available",
    "data_directory",
    "federation_from_datasets",
    "federation_from_frame",
    "housing_bodyfat",
    "images",
    "load",
    "partition",
    "read_table",
    "synthetic",
    "synthetic_truth",
]

# Imported when first used: tables need pandas.
_LATER = {
    **dict.fromkeys(("Source", "available", "load"), "catalog"),
    **dict.fromkeys(("federation_from_frame", "read_table"), "tables"),
    **dict.fromkeys(("images", "partition"), ""),
    "Encoder": "encoders",
    "data_directory": "download",
    "federation_from_datasets": "datasets",
    "housing_bodyfat": "housing",
}


def __getattr__(name: str) -> Any:
    return later(__name__, name, _LATER)
