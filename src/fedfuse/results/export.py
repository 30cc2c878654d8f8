"""Models of a run for other programs.

`export` writes one safetensors file per group, described in JSON. `export_file` writes linear and softmax models as one
file that scores rows: JSON, which scores rows of the table as they are, or ONNX, which takes encoded features.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.data.encoders import CYCLES_DAYS
from fedfuse.errors import FedfuseError
from fedfuse.results.result import Result
from fedfuse.utils.files import atomic_write, check_no_link, make_directory, write_json
from fedfuse.utils.typing import Floats

SAFETENSORS_KINDS = {"f": "F", "i": "I", "u": "U"}
# Versions that runtimes of 2022 and later read.
ONNX_OPSET, ONNX_IR = 17, 8


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


def export_file(result: Result, path: str | PathLike[str]) -> Path:
    """Write the models of linear or softmax regression as one ``.json`` or ``.onnx`` file that scores rows.

    Number 0 of its models is for devices that the run does not know (`Result.fallback`). The others are those that
    `Result.predict` uses: of the groups by their numbers, or of devices with a model of their own.
    """
    file = Path(path)
    if file.suffix not in (".json", ".onnx"):
        raise FedfuseError(f"models are written to a .json or .onnx file (tables to .xlsx), got {file.name}")
    if not result.model.convex:
        raise FedfuseError("one file is for linear and softmax regression; fedfuse export without --to writes networks")
    models, of_device = _numbered_models(result)
    if file.suffix == ".json":
        write_json(file, _scoring(result, models, of_device))
    else:
        with atomic_write(file) as out:
            out.write(_onnx(result, models, of_device))
    return file


def _numbered_models(result: Result) -> tuple[Floats, dict[str, int]]:
    """Return coefficients (models x outputs x (features + 1)), the fallback's first, and each device's number."""
    groups, numbers, own = result.group_numbers, dict[bytes, int](), result.in_use
    models, of_device = [result.fallback], {}
    for i in np.lexsort((groups, groups == 0)).tolist():
        number = of_device[result.profile.names[i]] = numbers.setdefault(own[i].tobytes(), len(models))
        if number == len(models):
            models.append(own[i].astype(np.float64))
    return np.stack([result.model.coefficients(w) for w in models]), of_device


def _scoring(result: Result, models: Floats, of_device: dict[str, int]) -> dict[str, Any]:
    profile = result.profile
    table = profile.encoder.to_json() if profile.encoder else {"device": None, "target": None, "columns": None}
    return {
        "format": "fedfuse scoring model, version 1",
        "dataset": result.dataset,
        **{key: table[key] for key in ("device", "target", "columns")},
        "cycles_days": CYCLES_DAYS,
        "goal": profile.goal,
        "classes": np.array(profile.classes).tolist(),
        "features": list(profile.features),
        "groups": dict(zip(profile.names, result.group_numbers.tolist(), strict=True)),
        "devices": of_device,
        "models": models.tolist(),
    }


def _onnx(result: Result, models: Floats, of_device: dict[str, int]) -> bytes:
    """Return a graph from features (rows x features) and the number of each row's model to values or probabilities."""
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        raise FedfuseError("ONNX files need the package onnx: pip install 'fedfuse[onnx]'") from None
    constants = {"coef": models[:, :, :-1].transpose(0, 2, 1), "intercept": models[:, :, -1], "axis": np.array([1])}
    steps = [
        ("Gather", ["coef", "model"], "slopes"),
        ("Gather", ["intercept", "model"], "levels"),
        ("Unsqueeze", ["features", "axis"], "row"),
        ("MatMul", ["row", "slopes"], "product"),
        ("Squeeze", ["product", "axis"], "sums"),
        ("Add", ["sums", "levels"], "values"),
        *([("Softmax", ["values"], "probabilities")] if models.shape[1] > 1 else []),
    ]
    shapes = {"features": ["rows", models.shape[2] - 1], "model": ["rows"], steps[-1][2]: ["rows", models.shape[1]]}
    kinds = [TensorProto.DOUBLE, TensorProto.INT64, TensorProto.DOUBLE]
    ends = [helper.make_tensor_value_info(name, kind, shapes[name]) for name, kind in zip(shapes, kinds, strict=True)]
    nodes = [helper.make_node(operation, inputs, [output]) for operation, inputs, output in steps]
    tensors = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "fedfuse", ends[:2], ends[2:], tensors)
    opsets = [helper.make_opsetid("", ONNX_OPSET)]
    model = helper.make_model(graph, producer_name="fedfuse", opset_imports=opsets, ir_version=ONNX_IR)
    scoring = _scoring(result, models, of_device)
    helper.set_model_props(model, {key: json.dumps(scoring[key]) for key in ("features", "classes", "devices")})
    return bytes(model.SerializeToString())


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
        {
            "file": path.name,
            "group": result.cluster_numbers[c],
            "devices": members,
            "test": float(table.loc[table["cluster"] == c, "test"].mean()),
        }
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
