"""From the words of the command line to a method and settings: presets, and ``--set key=value``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Literal

from fedfuse.errors import FedfuseError
from fedfuse.methods import Method, method_called
from fedfuse.schedules import parse
from fedfuse.tasks import Work


@dataclass(frozen=True)
class Preset:
    """What the paper uses on a data set, or what suits a table."""

    work: Work
    settings: dict[str, Any] = field(default_factory=dict)


def preset(dataset: str) -> Preset:
    """Return the defaults for a data set."""
    if dataset.startswith("synthetic:"):
        return Preset(Work(steps=10, lr=0.1), {"participation": 0.3, "rounds": 2000})
    if dataset == "housing-bodyfat":
        return Preset(Work(steps=20, lr=0.01), {"participation": 0.3, "rounds": 200})
    return Preset(Work(solver="exact"))


def _rows_per_batch(text: str) -> int | None:
    return None if text in ("none", "all") else int(text)


def _yes_or_no(text: str) -> bool:
    return {"yes": True, "true": True, "no": False, "false": False}[text.lower()]


@dataclass(frozen=True)
class Key:
    """What ``--set`` knows of a key: where it goes, how its text is read, and what that is called."""

    room: str
    read: Callable[[str], Any]
    takes: str


_NUMBER, _WHOLE = "a number", "a whole number"
KEYS: dict[str, Key] = {
    "steps": Key("work", parse, _NUMBER),
    "lr": Key("work", parse, _NUMBER),
    "batch": Key("work", _rows_per_batch, "a whole number or 'all'"),
    "solver": Key("work", str, "'gd' or 'exact'"),
    "momentum": Key("work", float, _NUMBER),
    "decay": Key("work", float, _NUMBER),
    "unit": Key("work", str, "'epochs' or 'batches'"),
    "start": Key("method", str, "'auto', 'zero' or 'normal'"),
    "rho": Key("method", float, _NUMBER),
    "a": Key("method", float, _NUMBER),
    "xi": Key("method", float, _NUMBER),
    "nu": Key("method", float, _NUMBER),
    "refit": Key("method", _yes_or_no, "yes or no"),
    "robust": Key("method", str, "'screen', 'median', 'trimmed', 'krum' or 'none'"),
    "rows": Key("method", str, "'train' or 'train+validation'"),
    "participation": Key("settings", float, "a share above 0 and at most 1"),
    "tol": Key("settings", float, _NUMBER),
    "evaluate_every": Key("settings", int, _WHOLE),
    "checkpoint_every": Key("settings", int, _WHOLE),
    "dtype": Key("settings", str, "'float32' or 'float64'"),
    "attack": Key("settings", str, "the name of an attack"),
    "liars": Key("settings", float, "a share from 0 to 1"),
    "lies": Key("settings", str, "'all' or 'models'"),
    "scope": Key("settings", str, "'all' or 'fused'"),
    "screen": Key("settings", _yes_or_no, "yes or no"),
}


@dataclass
class Options:
    """The parsed ``--set`` options, by where they go."""

    work: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


def parse_options(pairs: Sequence[str]) -> Options:
    """Read ``key=value`` words.

    >>> parse_options(["steps=grow(20)", "start=zero", "participation=0.5"]).work
    {'steps': Grow(every=20.0)}
    """
    options = Options()
    for pair in pairs:
        word, sign, text = (part.strip() for part in pair.partition("="))
        if not sign:
            raise FedfuseError(f"--set takes key=value, got {pair!r}")
        if word not in KEYS:
            near = get_close_matches(word, KEYS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise FedfuseError(f"--set knows no {word!r}; {hint}known: {', '.join(KEYS)}")
        key = KEYS[word]
        try:
            getattr(options, key.room)[word] = key.read(text)
        except FedfuseError as problem:
            raise FedfuseError(f"--set {word}: {problem}") from None
        except (ValueError, KeyError):
            raise FedfuseError(f"--set {word} takes {key.takes}, got {text!r}") from None
    return options


def read_lambda(text: str) -> float | Literal["auto"]:
    """Read what ``--lam`` takes: a number, or auto."""
    if text == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError:
        raise FedfuseError(f"--lam takes a number or auto, got {text!r}") from None


def read_grid(text: str) -> list[float]:
    """Read what ``--grid`` takes: numbers with commas between them.

    >>> read_grid("0, 0.5,1")
    [0.0, 0.5, 1.0]
    """
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise FedfuseError(f"--grid takes increasing numbers with commas between them, got {text!r}") from None


def build_method(name: str, lam: float | Literal["auto"] | None, work: Work, options: Options) -> Method[Any]:
    """Build the method that the command line asks for; a setting that it does not have is an error."""
    kind = method_called(name)
    given = dict(options.method)
    if lam is not None:
        given["lam"] = lam
    known = {f.name for f in fields(kind)}
    for key in given:
        if key not in known:
            raise FedfuseError(f"method {name!r} has no setting {key!r}; it has {', '.join(sorted(known))}")
    changed = {f.name: getattr(work, f.name) for f in fields(Work)} | options.work
    return kind(work=Work(**changed), **given)
