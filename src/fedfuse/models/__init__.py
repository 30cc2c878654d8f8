"""The mathematics on a device."""

from fedfuse.models.base import Model
from fedfuse.models.linear import LinearRegression
from fedfuse.models.softmax import SoftmaxRegression

__all__ = ["LinearRegression", "Model", "SoftmaxRegression"]
