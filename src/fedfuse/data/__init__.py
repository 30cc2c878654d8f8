"""Federations, and the data sets, tables and arrays that they are built from."""

from fedfuse.data.federation import Federation as Federation
from fedfuse.data.federation import Goal as Goal
from fedfuse.data.federation import Rows as Rows
from fedfuse.data.synthetic import SyntheticTruth as SyntheticTruth
from fedfuse.data.synthetic import synthetic as synthetic
from fedfuse.data.synthetic import synthetic_truth as synthetic_truth
from fedfuse.utils.lazy import lazy_names

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
