"""Federations, and the data sets, tables and arrays that they are built from."""

from typing import TYPE_CHECKING

from fedfuse.data.federation import Federation, Goal, Rows
from fedfuse.data.synthetic import SyntheticTruth, synthetic, synthetic_truth
from fedfuse.utils.lazy import lazy_names

if TYPE_CHECKING:
    from fedfuse.data import images, partition
    from fedfuse.data.catalog import Source, available, load
    from fedfuse.data.download import data_directory
    from fedfuse.data.encoders import Encoder
    from fedfuse.data.housing import housing_bodyfat
    from fedfuse.data.readers import read_table
    from fedfuse.data.tables import federation_from_frame

__all__ = [
    "Encoder", "Federation", "Goal", "Rows", "Source", "SyntheticTruth", "available", "data_directory",
    "federation_from_frame", "housing_bodyfat", "images", "load", "partition", "read_table",
    "synthetic", "synthetic_truth",
]  # fmt: skip

# Imported when first used: tables need pandas.
__getattr__ = lazy_names(
    __name__,
    {
        "": "images partition",
        "catalog": "Source available load",
        "download": "data_directory",
        "encoders": "Encoder",
        "housing": "housing_bodyfat",
        "readers": "read_table",
        "tables": "federation_from_frame",
    },
)
