"""What a comparison is asked for: data, methods with their settings, and seeds. It is what ``compare.json`` holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
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
Methods: TypeAlias = str | Sequence[str | Method[Any]] | Mapping[str, Method[Any]]


@dataclass(frozen=True)
class Entry:
    """A method of a comparison, and the settings of its runs (all but the seed)."""

    method: Method[Any]
    settings: dict[str, Any]

    def __post_init__(self) -> None:
        settings = Settings.named(**self.settings)
        if callable(settings.participation):
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
        federation that came from Python.
    witness, fingerprint
        A seed, and the fingerprint of the data that it gives: whether data have changed is told by it.
    model
        The name of the model, where one was given.
    common
        What was asked of all methods alike.
    entries
        Every method with its settings, by the name that it has in the table.
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
    entries: dict[str, Entry]
    seeds: tuple[int, ...]
    repeats: str = "seed"

    def extended(self, other: Request, directory: Path) -> Request:
        """Return the request of a directory with the methods and seeds of another; all the rest must agree."""
        old, new = (request._fixed(self.entries.keys() & other.entries) for request in (self, other))
        gap = _difference(old, new)
        if gap:
            raise FedfuseError(f"{directory} holds another comparison: {_in_words(*gap)}; choose another directory")
        return replace(self, entries=self.entries | other.entries, seeds=tuple(sorted({*self.seeds, *other.seeds})))

    def _fixed(self, labels: Iterable[str]) -> dict[str, Any]:
        data = self.to_json()
        found = {name: data[name] for name in ("source", "model", "common", "fingerprint")}
        if self.source is None:  # data from Python have no other name
            found["dataset"] = self.dataset
        return {**found, "methods": {label: data["methods"][label] for label in labels}}

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON-ready data."""
        return {
            "version": __version__,
            "dataset": self.dataset,
            "source": self.source,
            "witness": self.witness,
            "fingerprint": self.fingerprint,
            "model": self.model,
            "common": self.common,
            "methods": {label: entry.to_json() for label, entry in self.entries.items()},
            "seeds": list(self.seeds),
            "repeats": self.repeats,
        }

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
            names = ("dataset", "source", "witness", "fingerprint", "model", "common")
            entries = {
                label: Entry(from_config(entry["method"]), entry["settings"])
                for label, entry in data["methods"].items()
            }
            plain = {name: data[name] for name in names}
            return cls(**plain, entries=entries, seeds=tuple(data["seeds"]), repeats=data.get("repeats", "seed"))
        except (KeyError, TypeError, AttributeError) as gap:
            raise FedfuseError(f"{directory / FILE} is not a comparison of fedfuse: {gap}") from None


def entries_of(
    methods: Methods, dataset: str, words: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> dict[str, Entry]:
    """Return the methods that are asked for, by name or as they are, with the settings of their runs.

    ``settings`` go to all; ``words`` are those of ``--set``, go to methods given by name, and count more.
    """
    chosen = _named(methods)
    names = [label for label, method in chosen.items() if method is None]
    if words and not names:
        raise FedfuseError("key=value words are for methods given by name; set the fields of the others themselves")
    options = options_by_method(words, names)
    entries = {}
    for label, method in chosen.items():
        if method is None:
            entries[label] = Entry(*build(dataset, label, options[label], settings=settings))
        else:
            entries[label] = Entry(method, {**preset(dataset, method.name).settings, **(settings or {})})
    return entries


def seeds_of(seeds: int | Iterable[int]) -> tuple[int, ...]:
    """Return seeds in order: so many from 0 on, or these."""
    numbers = list(range(int(seeds)) if isinstance(seeds, Integral) else seeds)  # type: ignore[arg-type]
    if not numbers or not all(isinstance(n, Integral) and n >= 0 for n in numbers):
        raise FedfuseError(f"seeds must be how many (at least 1) or a list of whole numbers from 0 on, got {seeds!r}")
    if len(set(numbers)) < len(numbers):
        raise FedfuseError(f"every seed may be named once, got {', '.join(map(str, numbers))}")
    return tuple(sorted(int(n) for n in numbers))


def _named(methods: Methods) -> dict[str, Method[Any] | None]:
    """Return methods by their names in the table; those given by name are still to be built."""
    if isinstance(methods, str):
        methods = list(compared_by_default()) if methods == "all" else [word.strip() for word in methods.split(",")]
    pairs: list[tuple[str, Method[Any] | None]]
    if isinstance(methods, Mapping):
        pairs = list(methods.items())
    else:
        pairs = [(m, None) if isinstance(m, str) else (m.name, m) for m in methods]
    if not pairs:
        raise FedfuseError("no method to compare; give names, or 'all'")
    for label, method in pairs:
        if method is None:
            method_called(label)
        elif not re.fullmatch(r"[\w.+=-]+", label):
            raise FedfuseError(f"{label!r} cannot name a directory: use letters, digits and . + = - _")
    labels = [label for label, _ in pairs]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice:
        raise FedfuseError(
            f"method {twice!r} is there twice; in Python, {{'a': FPFC(…), 'b': FPFC(…)}} tells them apart"
        )
    return dict(pairs)


def _difference(old: Any, new: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """Return where two pieces of JSON differ first, and how."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            gap = _difference(old.get(key), new.get(key), f"{name}.{key}" if name else key)
            if gap:
                return gap
        return None
    same = list(old) == list(new) if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) else old == new
    return None if same else (name, old, new)


def _in_words(name: str, was: Any, now: Any) -> str:
    if name == "fingerprint":
        return "its data are not these"
    before, after = ("not given" if value is None else value for value in (was, now))
    return f"{name.removeprefix('common.').removeprefix('source.')} was {before} and is now {after}"
