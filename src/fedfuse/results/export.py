"""The models of a run for other programs: one safetensors file per cluster, and what they are in JSON."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError
from fedfuse.results.result import Result
from fedfuse.utils.files import atomic_write, write_json


def export(result: Result, directory: str | PathLike[str]) -> list[Path]:
    """Write ``cluster-0.safetensors``, … and ``export.json``; return their paths.

    Networks have the names of the module's state dict; of a module that only the user has, its trained tensors alone
    (``module.load_state_dict(tensors, strict=False)`` then). Linear and softmax regression have ``coef`` and
    ``intercept``, for tables in the units of the table.
    """
    try:
        from safetensors.numpy import save
    except ModuleNotFoundError:
        raise FedfuseError("export needs safetensors: pip install 'fedfuse[torch]'") from None
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for cluster in range(result.n_clusters):
        path = folder / f"cluster-{cluster}.safetensors"
        arrays = {name: np.ascontiguousarray(array) for name, array in _tensors(result, cluster).items()}
        with atomic_write(path) as file:
            file.write(save(arrays))
        paths.append(path)
    write_json(folder / "export.json", _description(result, paths))
    return [*paths, folder / "export.json"]


def _tensors(result: Result, cluster: int) -> dict[str, npt.NDArray[Any]]:
    if result.profile.encoder is None or not result.model.convex:
        return result.model.tensors(result.cluster_models[cluster])
    table = result.coefficients().loc[cluster].to_numpy()
    return {"coef": table[:, :-1], "intercept": table[:, -1]}


def _description(result: Result, paths: list[Path]) -> dict[str, Any]:
    table, profile = result.devices(), result.profile
    clusters = [
        {"file": path.name, "devices": members, "test": float(table.loc[table["cluster"] == c, "test"].mean())}
        for c, (path, members) in enumerate(zip(paths, result.clusters, strict=True))
    ]
    return {
        "dataset": result.dataset,
        "model": result.model.to_config(),
        "goal": profile.goal,
        "metric": profile.metric,
        "classes": np.array(profile.classes).tolist(),
        "features": list(profile.features),
        "clusters": clusters,
    }
