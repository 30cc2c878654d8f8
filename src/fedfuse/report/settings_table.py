"""Settings of a run and versions of the libraries: the last section of a page."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedfuse._version import __version__
from fedfuse.results.result import Result
from fedfuse.results.run_directory import RunDirectory

LIBRARIES = ("numpy", "scipy", "numba", "scikit-learn", "pandas", "torch", "flwr")
LEFT_OUT = {"version", "fingerprint"}
ATTACK = {"attack", "liars", "lies", "scope"}


def settings_of(directory: Path, result: Result) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the settings of a run in groups of (name, value)."""
    config = RunDirectory(directory).config() if (directory / "config.json").exists() else {}
    run = dict(config.get("settings") or {"seed": result.seed})
    if run.get("attack") is None:
        run = {key: value for key, value in run.items() if key not in ATTACK}
    model = config.get("model") or result.model.to_config()
    parts = {
        "method": config.get("method") or result.method,
        "run": run,
        "model": {"name": model} if isinstance(model, str) else model,
        "data": {"dataset": result.dataset, **(config.get("source") or {})},
        "chosen on validation rows": result.chosen,
        "engine": config.get("engine"),
    }
    return [(name, list(_flat(values))) for name, values in parts.items() if values]


def versions(of_run: str | None) -> list[tuple[str, str]]:
    """Return the versions of this computer's programs, and that of fedfuse when the run was made."""
    found = [("fedfuse, of the run", of_run or "unknown"), ("fedfuse, of this page", __version__)]
    found.append(("Python", platform.python_version()))
    return found + [(name, number) for name in LIBRARIES if (number := _version(name))]


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield what was set, with dots between the names of nested parts."""
    for key, value in values.items():
        if key in LEFT_OUT or value is None:
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else _plain(value)
            yield prefix + str(key), text if len(text) <= 200 else text[:199] + "…"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
