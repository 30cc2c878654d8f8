"""Models of a run for other programs: one safetensors file per group, described in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.results.result import Result
from fedfuse.utils.files import atomic_write, check_no_link, make_directory, write_json

SAFETENSORS_KINDS = {"f": "F", "i": "I", "u": "U"}


def export(result: Result, directory: str | PathLike[str]) -> list[Path]:
    """Write ``cluster-0.safetensors``, … and ``export.json``; return their paths.

    Networks have the names of the module's state dict; of a module that only the user has, its trained tensors alone
    (``module.load_state_dict(tensors, strict=False)`` then). Linear and softmax regression have ``coef`` and
    ``intercept``, for tables in the units of the table.
    """
    folder = Path(directory)
    check_no_link(folder)
    make_directory(folder)
    paths = [folder / f"cluster-{group}.safetensors" for group in range(result.n_clusters)]
    for group, path in enumerate(paths):
        with atomic_write(path) as file:
            file.write(safetensors(_tensors(result, group)))
    write_json(folder / "export.json", _description(result, paths))
    return [*paths, folder / "export.json"]


def safetensors(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return arrays in the safetensors format: the length of a JSON header, the header, and the numbers."""
    header, parts, end = {}, [], 0
    # Larger types first keep every tensor aligned.
    for name, array in sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0])):
        part = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        kind = "BOOL" if array.dtype == np.bool_ else f"{SAFETENSORS_KINDS[array.dtype.kind]}{8 * array.itemsize}"
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [end, end + len(part)]}
        parts.append(part)
        end += len(part)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def _tensors(result: Result, group: int) -> dict[str, npt.NDArray[Any]]:
    if result.profile.encoder is None or not result.model.convex:
        return result.model.tensors(result.cluster_models[group])
    table = result.coefficients().loc[group].to_numpy()
    return {"coef": table[:, :-1], "intercept": table[:, -1]}


def _description(result: Result, paths: list[Path]) -> dict[str, Any]:
    table, profile = result.devices(), result.profile
    groups = [
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
        "clusters": groups,
    }
