"""Save the state of a method: a dataclass of arrays and plain values becomes named arrays, and is filled from them.

No method packs by hand. Arrays are saved as they are, numbers, text, lists and dictionaries of these in one JSON
header, dictionaries of arrays and nested dataclasses under a prefix, and an object with ``pack`` and ``filled`` (as the
pair state has them) by its own rule. What the server knows anyway is left out: the federation (`info`), and what the
stage before has found (`before`).
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from fedfuse.utils.files import Arrays, prefixed, within

HEADER = "header"
NOT_SAVED = ("info", "before")


def pack_state(state: Any) -> Arrays:
    """Return a state as named arrays."""
    if hasattr(state, "pack"):
        own: Arrays = state.pack()
        return own
    arrays: Arrays = {}
    plain: dict[str, Any] = {}
    for name in _names(state):
        value = getattr(state, name)
        if isinstance(value, np.ndarray):
            arrays[name] = value
        elif is_dataclass(value) or hasattr(value, "pack"):
            arrays |= prefixed(f"{name}.", pack_state(value))
        elif isinstance(value, dict) and (not value or isinstance(next(iter(value.values())), np.ndarray)):
            arrays |= {f"{name}.{key}": array for key, array in value.items()}
            plain[name] = list(value)
        else:
            plain[name] = value
    return {HEADER: np.frombuffer(json.dumps(plain).encode(), np.uint8), **arrays}


def fill_state(fresh: Any, arrays: Arrays) -> Any:
    """Fill a freshly initialised state with what `pack_state` returned, and return it."""
    if hasattr(fresh, "pack"):
        return fresh.filled(arrays)
    plain = json.loads(arrays[HEADER].tobytes())
    for name in _names(fresh):
        value, inside = getattr(fresh, name), within(f"{name}.", arrays)
        if name in arrays:
            setattr(fresh, name, arrays[name])
        elif is_dataclass(value) or hasattr(value, "pack"):
            setattr(fresh, name, fill_state(value, inside))
        elif isinstance(value, dict) and isinstance(plain[name], list):
            setattr(fresh, name, {key: inside[str(key)] for key in plain[name]})
        else:
            setattr(fresh, name, plain[name])
    return fresh


def _names(state: Any) -> list[str]:
    return [f.name for f in fields(state) if f.name not in NOT_SAVED]
