"""Models: loss, gradient and local training on a device."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedfuse.data.federation import Federation, Goal
from fedfuse.errors import FedfuseError, guess
from fedfuse.models.linear import LinearRegression
from fedfuse.models.model import MissingModule, Model
from fedfuse.models.softmax import SoftmaxRegression

MODELS: dict[str, type[Model[Any]]] = {kind.__name__: kind for kind in (LinearRegression, SoftmaxRegression)}
NETWORKS = ("CNN", "MLP")
_NEED_TORCH = {"CNN": "networks", "MLP": "networks", "TorchModel": "torch"}

__all__ = ["MODELS", "NETWORKS", "LinearRegression", "Model", "SoftmaxRegression"]
__all__ += ["default_model", "from_config", "is_network", "model_called", "model_for"]


def default_model(goal: Goal, shape: tuple[int, ...] | None = None) -> Model[Any]:
    """Return the model that is used when none is given: for images the paper's network."""
    if shape is not None and len(shape) in (2, 3):
        return model_called("CNN")
    return SoftmaxRegression() if goal == "classification" else LinearRegression()


SHORT = {"linear": "LinearRegression", "softmax": "SoftmaxRegression", "cnn": "CNN", "mlp": "MLP"}


def model_called(name: str, **parameters: Any) -> Model[Any]:
    """Return the model of this name (also softmax, linear, cnn, mlp), still without sizes."""
    name = SHORT.get(name, name)
    if name in NETWORKS:
        return _with_torch(name)(**parameters)
    if name not in MODELS:
        raise FedfuseError(f"unknown model {name!r}; {guess(name, SHORT)}known: {', '.join(SHORT)}")
    return MODELS[name](**parameters)


def model_for(federation: Federation, model: Model[Any] | str | None = None) -> Model[Any]:
    """Return a model with the sizes of a federation: the one given, by name or as it is, or one that suits the data."""
    given = model_called(model) if isinstance(model, str) else model
    chosen = given or default_model(federation.goal, federation.shape)
    chosen.check(federation.goal)
    return chosen.sized(federation.n_features, federation.n_classes, federation.shape)


def is_network(name: str) -> bool:
    """Whether the model of this name is a network.

    >>> is_network("mlp"), is_network("softmax")
    (True, False)
    """
    return SHORT.get(name, name) in NETWORKS


def _with_torch(name: str) -> type[Model[Any]]:
    try:
        kind: type[Model[Any]] = getattr(import_module(f"fedfuse.models.{_NEED_TORCH[name]}"), name)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise FedfuseError(f"{name} needs PyTorch, which is not installed: pip install 'fedfuse[torch]'") from None
    return kind


def __getattr__(name: str) -> Any:
    # imported when first asked for: torch is large, and tables need none of it
    if name in _NEED_TORCH:
        return _with_torch(name)
    raise AttributeError(f"module 'fedfuse.models' has no attribute {name!r}")


def from_config(config: dict[str, Any] | str, own: Model[Any] | None = None) -> Model[Any]:
    """Build the model that `Model.to_config` described; a user's own module must be given again, as ``own``."""
    if isinstance(config, str):
        config = {"name": config}
    if own is not None:
        own.check_config(config)
        return own
    if config["name"] not in (*MODELS, *NETWORKS) or config.get("loss") == "custom":
        if "tensors" not in config:
            raise FedfuseError(f"unknown model {config['name']!r}; known: {', '.join((*MODELS, *NETWORKS))}")
        return MissingModule(config)
    return model_called(config["name"], **{k: v for k, v in config.items() if k not in ("name", "tensors")})
