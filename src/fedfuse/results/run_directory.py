"""The one place that saves: a run is a directory of plain files, each written whole or not at all.

``config.json`` (what was asked for), ``checkpoint/latest.npz`` while the run goes on, and at the end what
`Result.save` writes. Nothing is pickled, so nothing is executed when a directory is read.
"""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError
from fedfuse.utils.files import _HALF, NOTHING, Kinds, check_fields, read_arrays, read_json, write_arrays, write_json

CONFIG: dict[str, Kinds] = {
    "dataset": str, "source": (dict, NOTHING), "fingerprint": str, "model": (dict, str), "method": dict,
    "settings": dict, "engine": dict, "version": str,
}  # fmt: skip
_META = "meta"


class Store:
    """A run directory."""

    def __init__(self, directory: str | PathLike[str]) -> None:
        self.directory = Path(directory)
        self._made: list[Path] = []  # directories that were not there before this run

    def check_free(self) -> None:
        """Refuse a directory that holds a run already."""
        if self.directory.exists() and not self.directory.is_dir():
            raise FedfuseError(f"{self.directory} is a file; a run needs a directory")
        if self.started:
            advice = "choose another directory"
            if not self.finished:
                advice = f"go on with it by 'fedfuse resume {self.directory}' or {advice}"
            raise FedfuseError(f"{self.directory} already holds a run: {advice}")

    def create(self, config: dict[str, Any]) -> None:
        """Begin a run here; refuse to write over another."""
        self.check_free()
        self._made = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_json(self.directory / "config.json", config)
        except OSError as problem:
            raise FedfuseError(f"cannot write to {self.directory}: {problem.strerror}") from None

    def config(self) -> dict[str, Any]:
        """Return what the run was asked to do."""
        path = self.directory / "config.json"
        config = read_json(path)
        if not isinstance(config, dict):
            raise FedfuseError(f"{self.directory} holds no run of fedfuse: config.json says something else")
        config = check_fields(config, CONFIG, path, whole=False)
        return {**config, "method": modern_config(config["method"])} if "method" in config else config

    def withdraw(self) -> None:
        """Take back `create`, and remove the directories that were made for the run, if nothing else is in them."""
        (self.directory / "config.json").unlink(missing_ok=True)
        self.tidy()
        for path in self._made:
            if any(path.iterdir()):
                break
            path.rmdir()

    @property
    def under_way(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self._checkpoint.exists()

    @property
    def started(self) -> bool:
        return (self.directory / "config.json").exists() or self.finished

    @property
    def finished(self) -> bool:
        return (self.directory / "summary.json").exists()

    def save_checkpoint(self, meta: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Replace the last checkpoint."""
        (self.directory / "checkpoint").mkdir(exist_ok=True)
        text = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
        write_arrays(self._checkpoint, {_META: text, **arrays})

    def load_checkpoint(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]] | None:
        """Return the last checkpoint, or None if there is none yet."""
        if not self._checkpoint.exists():
            return None
        try:
            arrays = read_arrays(self._checkpoint)
        except FedfuseError as problem:
            raise FedfuseError(f"{problem}; remove it to begin the run anew") from None
        try:
            meta = json.loads(arrays.pop(_META).tobytes())
        except (KeyError, ValueError):
            raise FedfuseError(f"{self._checkpoint} is not a checkpoint of fedfuse") from None
        return meta, arrays

    def tidy(self) -> None:
        """Remove the checkpoint of a finished run, and what a killed process left half-written."""
        self._checkpoint.unlink(missing_ok=True)
        for folder in (self._checkpoint.parent, self.directory):
            for rest in folder.glob(f".*{_HALF}"):
                rest.unlink(missing_ok=True)
        if self._checkpoint.parent.exists() and not any(self._checkpoint.parent.iterdir()):
            self._checkpoint.parent.rmdir()

    @property
    def _checkpoint(self) -> Path:
        return self.directory / "checkpoint" / "latest.npz"


def modern_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a method's configuration as it is written today.

    Version 0.1.0 called the fusion tree FPFC with ``lam="auto"``.
    """
    if config.get("method") != "fpfc" or config.get("lam") != "auto":
        return config
    common = ("start", "work", "rows", "robust")
    return {"method": "fusion-tree", **{name: config[name] for name in common if name in config}}
