"""What a comparison is asked for: data, methods with their settings, and seeds. ``compare.json`` holds it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from fedfuse._version import __version__
from fedfuse.errors import FedfuseError
from fedfuse.methods.method import Method
from fedfuse.methods.registry import compared_by_default, from_config, method_called
from fedfuse.training.options import build, options_by_method
from fedfuse.training.presets import preset
from fedfuse.training.settings import Settings
from fedfuse.utils.files import read_json, write_json

FILE = "compare.json"
RUNS = "runs"
Methods: TypeAlias = str | Sequence[str | Method[Any]] | Mapping[str, Method[Any]]


@dataclass(frozen=True)
class Entry:
    """A method of a comparison, and the settings of its runs (all but the seed)."""

    method: Method[Any]
    settings: dict[str, Any]

    def __post_init__(self) -> None:
        if callable(Settings.named(**self.settings).participation):
            raise FedfuseError("a comparison needs a participation share: a function cannot be saved")

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON-ready data."""
        return {"method": self.method.to_config(), "settings": self.settings}


@dataclass(frozen=True)
class Request:
    """Methods x seeds on one data set.

    Attributes
    ----------
    dataset, source
        How the data are called, and what `data.load` needs to find them, without the seed; no source for a
        federation that was built in Python.
    witness, fingerprint
        A seed, and the fingerprint of its data: they show whether the data have changed.
    model
        The name of the model, where one was given.
    common
        Settings that were given to all methods alike.
    methods
        Every method with its settings, by its name in the table.
    seeds
        Increasing.
    repeats
        What the runs of a method differ by, as tables call it.
    """

    dataset: str
    source: dict[str, Any] | None
    witness: int
    fingerprint: str
    model: str | None
    common: dict[str, Any]
    methods: dict[str, Entry]
    seeds: tuple[int, ...]
    repeats: str = "seed"

    @property
    def runs(self) -> list[tuple[str, int]]:
        """All runs, as (method, seed), method by method."""
        return [(label, seed) for label in self.methods for seed in self.seeds]

    @staticmethod
    def run_directory(directory: str | PathLike[str], run: tuple[str, int]) -> Path:
        """Return the directory of one run of a comparison."""
        return Path(directory) / RUNS / f"{run[0]}-seed{run[1]}"

    def extended(self, other: Request, directory: Path) -> Request:
        """Return the request of a directory with the methods and seeds of another; all the rest must agree."""
        shared = self.methods.keys() & other.methods
        difference = _first_difference(self._fixed(shared), other._fixed(shared))
        if difference:
            raise FedfuseError(f"{directory} holds another comparison: {difference}; choose another directory")
        return replace(self, methods=self.methods | other.methods, seeds=tuple(sorted({*self.seeds, *other.seeds})))

    def _fixed(self, labels: Iterable[str]) -> dict[str, Any]:
        """Return what a continued comparison may not change."""
        data = self.to_json()
        names = ["source", "model", "common", "fingerprint", *(["dataset"] if self.source is None else [])]
        return {name: data[name] for name in names} | {"methods": {label: data["methods"][label] for label in labels}}

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON-ready data."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        methods = {label: entry.to_json() for label, entry in self.methods.items()}
        return {"version": __version__, **plain, "methods": methods, "seeds": list(self.seeds)}

    def save(self, directory: Path) -> None:
        """Write ``compare.json``."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_json(directory / FILE, self.to_json())
        except OSError as problem:
            raise FedfuseError(f"cannot write to {directory}: {problem.strerror}") from None

    @classmethod
    def load(cls, directory: Path) -> Request:
        """Read ``compare.json``."""
        data = read_json(directory / FILE)
        try:
            given = {f.name: data[f.name] for f in fields(cls) if f.name != "repeats" or "repeats" in data}
            given["methods"] = {
                label: Entry(from_config(entry["method"]), entry["settings"])
                for label, entry in data["methods"].items()
            }
            return cls(**given | {"seeds": tuple(data["seeds"])})
        except (KeyError, TypeError, AttributeError) as gap:
            raise FedfuseError(f"{directory / FILE} is not a comparison of fedfuse: {gap}") from None


def entries_of(
    methods: Methods, dataset: str, words: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> dict[str, Entry]:
    """Return the methods that are asked for, by name or as they are, with the settings of their runs.

    ``settings`` go to all; ``words`` are those of ``--set``, go to methods given by name, and take precedence.
    """
    chosen = _by_label(methods)
    names = [label for label, method in chosen.items() if method is None]
    if words and not names:
        raise FedfuseError("key=value words are for methods given by name; set the fields of the others themselves")
    options = options_by_method(words, names)
    if "fpfc" in options and not options["fpfc"].preset:  # Without a lambda, it is tuned as in the paper.
        options["fpfc"].method.setdefault("lam", "warmup")
    return {
        label: Entry(*build(dataset, label, options[label], settings=settings))
        if method is None
        else Entry(method, {**preset(dataset, method.name).settings, **(settings or {})})
        for label, method in chosen.items()
    }


def seeds_of(seeds: int | Iterable[int]) -> tuple[int, ...]:
    """Return seeds in increasing order: this many from 0 on, or these."""
    numbers = list(range(int(seeds)) if isinstance(seeds, Integral) else seeds)  # type: ignore[arg-type]
    if not numbers or not all(isinstance(n, Integral) and n >= 0 for n in numbers):
        raise FedfuseError(f"seeds must be how many (at least 1) or a list of whole numbers from 0 on, got {seeds!r}")
    if len(set(numbers)) < len(numbers):
        raise FedfuseError(f"every seed may be named once, got {', '.join(map(str, numbers))}")
    return tuple(sorted(int(n) for n in numbers))


def _by_label(methods: Methods) -> dict[str, Method[Any] | None]:
    """Return methods by their names in the table; None for those given by name, which are still to be built."""
    if isinstance(methods, str):
        methods = list(compared_by_default()) if methods == "all" else [word.strip() for word in methods.split(",")]
    pairs: list[tuple[str, Method[Any] | None]]
    if isinstance(methods, Mapping):
        pairs = list(methods.items())
    else:
        pairs = [(m, None) if isinstance(m, str) else (m.name, m) for m in methods]
    if not pairs:
        raise FedfuseError("no method to compare; give names, or 'all'")
    found: dict[str, Method[Any] | None] = {}
    for label, method in pairs:
        if method is None:
            method_called(label)  # raises an error for an unknown name
        elif not re.fullmatch(r"[\w.+=-]+", label):
            raise FedfuseError(f"{label!r} cannot name a directory: use letters, digits and . + = - _")
        if label in found:
            advice = "in Python, {'a': FPFC(…), 'b': FPFC(…)} tells them apart"
            raise FedfuseError(f"method {label!r} is there twice; {advice}")
        found[label] = method
    return found


def _first_difference(old: Any, new: Any, name: str = "") -> str | None:
    """Say where two pieces of JSON differ first, and how."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        found = (_first_difference(old.get(key), new.get(key), f"{name}.{key}".lstrip(".")) for key in keys)
        return next(filter(None, found), None)
    same = list(old) == list(new) if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) else old == new
    if same:
        return None
    if name == "fingerprint":
        return "its data are not these"
    before, after = ("not given" if value is None else value for value in (old, new))
    return f"{name.removeprefix('common.').removeprefix('source.')} was {before} and is now {after}"
