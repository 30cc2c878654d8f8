"""Models: loss, gradient and local training on a device."""

from __future__ import annotations

from typing import Any

from fedfuse.data.federation import Federation, Goal
from fedfuse.errors import FedfuseError, guess
from fedfuse.models.linear import LinearRegression
from fedfuse.models.model import MissingModule, Model
from fedfuse.models.softmax import SoftmaxRegression
from fedfuse.utils.lazy import lazy_names

__all__ = ["LinearRegression", "Model", "SoftmaxRegression", "default_model", "from_config", "is_network"]
__all__ += ["model_called", "model_for"]

SHORT = {"linear": "LinearRegression", "softmax": "SoftmaxRegression", "cnn": "CNN", "mlp": "MLP"}
# Imported when first used: torch is large, and tables need none of it.
__getattr__ = lazy_names(
    __name__,
    {"linear": "LinearRegression", "softmax": "SoftmaxRegression", "networks": "CNN MLP", "torch": "TorchModel"},
)


def default_model(goal: Goal, shape: tuple[int, ...] | None = None) -> Model[Any]:
    """Return the model that is used when none is given: for images the paper's network."""
    if shape is not None and len(shape) in (2, 3):
        return model_called("cnn")
    return SoftmaxRegression() if goal == "classification" else LinearRegression()


def model_called(name: str, **parameters: Any) -> Model[Any]:
    """Return the model of this name (also softmax, linear, cnn, mlp), still without sizes."""
    name = SHORT.get(name, name)
    if name not in SHORT.values():
        raise FedfuseError(f"unknown model {name!r}; {guess(name, SHORT)}known: {', '.join(SHORT)}")
    model: Model[Any] = __getattr__(name)(**parameters)
    return model


def model_for(federation: Federation, model: Model[Any] | str | None = None) -> Model[Any]:
    """Return a model with the sizes of a federation: the one given, by name or as it is, or one that suits the data."""
    given = model_called(model) if isinstance(model, str) else model
    chosen = given or default_model(federation.goal, federation.shape)
    chosen.check(federation.goal)
    return chosen.sized(federation.n_features, federation.n_classes, federation.shape)


def is_network(name: str) -> bool:
    """Whether the model of this name is a network."""
    return SHORT.get(name, name) in ("CNN", "MLP")


def from_config(config: dict[str, Any] | str, own: Model[Any] | None = None) -> Model[Any]:
    """Build the model that `Model.to_config` described; a user's own module must be given again, as ``own``."""
    if isinstance(config, str):
        config = {"name": config}
    if own is not None:
        own.check_config(config)
        return own
    if "tensors" in config and (config["name"] not in SHORT.values() or config.get("loss") == "custom"):
        return MissingModule(config)
    return model_called(**{key: value for key, value in config.items() if key != "tensors"})
