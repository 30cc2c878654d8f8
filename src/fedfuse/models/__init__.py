"""The mathematics on a device."""

from __future__ import annotations

from typing import Any

from fedfuse.data.federation import Goal
from fedfuse.models.base import Model
from fedfuse.models.linear import LinearRegression
from fedfuse.models.softmax import SoftmaxRegression

MODELS: dict[str, type[Model[Any]]] = {kind.__name__: kind for kind in (LinearRegression, SoftmaxRegression)}

__all__ = ["MODELS", "LinearRegression", "Model", "SoftmaxRegression", "default_model", "model_called"]


def default_model(goal: Goal) -> Model[Any]:
    """Return the model that is used when none is given."""
    return SoftmaxRegression() if goal == "classification" else LinearRegression()


def model_called(name: str) -> Model[Any]:
    """Return the model of this name, still without sizes."""
    return MODELS[name]()
