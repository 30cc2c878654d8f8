"""``key=value`` words: the fields of a method, its work and the settings of a run, as ``--set`` takes them.

What a key takes comes from the annotation of the field it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from fedfuse.engines.factory import EngineSpec
from fedfuse.errors import FedfuseError, guess
from fedfuse.methods.method import Method
from fedfuse.methods.registry import METHODS, method_called
from fedfuse.protocol.local_work import Grow, Work, parse
from fedfuse.training.presets import Style, preset
from fedfuse.training.settings import Settings

# Work that an exact solver has no use for.
STEPPING = frozenset({"steps", "lr", "batch", "momentum"})
# Looked for in --set, but options of their own.
OPTIONS = (
    "seed", "seeds", "engine", "model", "method", "methods", "features", "device", "target", "task", "test",
    "validation", "out",
)  # fmt: skip


class Key(NamedTuple):
    """A key of ``--set``: the part of `Options` it goes to, how its text is read, and what it takes in words."""

    part: str
    read: Callable[[str], Any]
    takes: str


@dataclass
class Options:
    """The values of ``--set``, by what they belong to."""

    work: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    preset: dict[str, Style] = field(default_factory=dict)


def _rows_per_batch(text: str) -> int | None:
    return None if text in ("none", "all") else int(text)


def _yes_or_no(text: str) -> bool:
    return {"yes": True, "true": True, "no": False, "false": False}[text.lower()]


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split(","))


def _participation(text: str) -> float | str | list[float]:
    """Read a share, ``sizes(share)``, or one probability per device, separated by commas."""
    if text.startswith("sizes"):
        return text
    numbers = list(_numbers(text))
    return numbers[0] if len(numbers) == 1 else numbers


READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    bool: (_yes_or_no, "yes or no"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    str: (str, "text"),
    Grow: (parse, "a number or a schedule"),
}
# Fields whose annotation does not say how they are written.
WRITTEN: dict[str, tuple[Callable[[str], Any], str]] = {
    "batch": (_rows_per_batch, "a whole number or 'all'"),
    "rows": (str, "'train' or 'train+validation'"),
    "grid": (_numbers, "numbers separated by commas"),
    "graph": (str, "'knn:k'"),
    "participation": (_participation, "a share above 0 and at most 1, or sizes(share)"),
    "metric": (str, "the name of a metric"),
    "class_weight": (str, "balanced, or weights by class, as a=1,b=5"),
    "delay": (str, "a distribution of seconds"),
    "compute": (str, "a distribution of seconds"),
    "lossy": (str, "lost:0.3,late:0.2,…"),
}


def common_keys() -> dict[str, Key]:
    """Return the keys that all methods have."""
    style = {"preset": Key("preset", str, _either(map(repr, get_args(Style))))}
    return _keys("work", Work) | _keys("settings", Settings) | _keys("engine", EngineSpec) | style


def keys(*methods: str) -> dict[str, Key]:
    """Return what ``--set`` takes for these methods; without a name, for any.

    >>> keys("cfl")["eps1"].takes, keys("fedavg").get("eps1")
    ('a number or auto', None)
    """
    own = _keys("method", *map(method_called, methods or METHODS))
    return _keys("work", Work) | own | common_keys()


def _keys(part: str, *kinds: type[Any]) -> dict[str, Key]:
    allowed: dict[str, dict[Any, None]] = {}
    for kind in kinds:
        hints = get_type_hints(kind)
        for f in fields(kind):
            allowed.setdefault(f.name, {}).update(dict.fromkeys(_alternatives(hints[f.name])))
    read = {name: WRITTEN.get(name) or _reader(list(options)) for name, options in allowed.items()}
    return {name: Key(part, *how) for name, how in read.items() if how and name not in (*OPTIONS, "name")}


def _alternatives(hint: Any) -> list[Any]:
    """Return the types and words that an annotation allows, besides None.

    >>> _alternatives(float | Literal["auto"] | None)
    [<class 'float'>, 'auto']
    """
    if get_origin(hint) in (Union, UnionType):
        return [each for part in get_args(hint) for each in _alternatives(part)]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [] if hint is type(None) else [hint]


def _reader(allowed: Sequence[Any]) -> tuple[Callable[[str], Any], str] | None:
    """Return how text becomes one of the types or words, and what they are called; None for what has no text."""
    words = [option for option in allowed if isinstance(option, str)]
    kinds = [READERS[kind] for kind in (Grow, *READERS) if kind in allowed]
    if not kinds:
        return (str, _either(map(repr, words))) if words else None  # the class checks its words itself
    read, takes = kinds[0]
    return (lambda text: text if text in words else read(text)), _either([takes, *words])


def _either(words: Iterable[str]) -> str:
    """Join with commas and a final "or".

    >>> _either(["a number", "auto", "warmup"])
    'a number, auto or warmup'
    """
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def parse_options(pairs: Iterable[str], method: str | None = None) -> Options:
    """Read ``key=value`` words for a method; without a name, those of any.

    >>> parse_options(["steps=grow(20)", "start=zero", "participation=0.5"]).work
    {'steps': Grow(every=20.0)}
    """
    return _read(_words(pairs), method)


def options_by_method(pairs: Iterable[str], names: Sequence[str]) -> dict[str, Options]:
    """Read ``key=value`` words for several methods, one set of options for each.

    A key goes to all methods that have it, and it is an error if none has; ``method.key=value`` goes to one method
    and overrides a word to all.

    >>> found = options_by_method(["fpfc.xi=0.01", "xi=0.1", "tol=0"], ["fpfc", "fpfc-l1"])
    >>> found["fpfc"].method, found["fpfc-l1"].method, found["fpfc-l1"].settings
    ({'xi': 0.01}, {}, {'tol': 0.0})
    """
    words: dict[str, dict[str, str]] = {name: {} for name in names}
    for word, text in sorted(_words(pairs).items(), key=lambda item: "." in item[0]):  # words to one method win
        for name in _meant(word, names):
            words[name][word.rpartition(".")[2]] = text
    return {name: _read(chosen, name) for name, chosen in words.items()}


def common_words(pairs: Iterable[str]) -> dict[str, str]:
    """Return what ``key=value`` words ask of every method alike."""
    known = common_keys()
    return {word: text for word, text in _words(pairs).items() if word in known}


def _words(pairs: Iterable[str]) -> dict[str, str]:
    words: dict[str, str] = {}
    for pair in pairs:
        word, sign, text = (part.strip() for part in pair.partition("="))
        if not sign:
            raise FedfuseError(f"--set takes key=value, got {pair!r}")
        if word in words:
            raise FedfuseError(f"{word} is given twice, as {words[word]} and as {text}: leave one out")
        words[word] = text
    return words


def _read(words: Mapping[str, str], method: str | None) -> Options:
    options, known = Options(), keys(*([method] if method else []))
    for word, text in words.items():
        if word not in known:
            raise FedfuseError(_unknown(word, method))
        part, read, takes = known[word]
        try:
            getattr(options, part)[word] = read(text)
        except FedfuseError as problem:
            raise FedfuseError(f"{word}: {problem}") from None
        except (ValueError, KeyError, OverflowError):  # inf is a number, but no whole one
            raise FedfuseError(f"{word} takes {takes}, got {text!r}") from None
    return options


def _meant(word: str, names: Sequence[str]) -> list[str]:
    """Return the methods that a word is for."""
    target, _, key = word.rpartition(".")
    if target and target not in names:
        raise FedfuseError(f"{word}: {target!r} is not one of the methods compared ({', '.join(names)})")
    having = [target] if target else [name for name in names if key in keys(name)]
    if not having and key in keys():
        raise FedfuseError(f"none of the methods compared ({', '.join(names)}) has a setting {key!r}")
    if not having:
        raise FedfuseError(_unknown(key))
    return having


def _unknown(word: str, method: str | None = None) -> str:
    known = keys()
    if word in OPTIONS:
        return f"{word!r} is not a key of --set: it is an option of its own, --{word}"
    if method and word in known:
        others = ", ".join(name for name in METHODS if word in setting_names(name))
        own = ", ".join(sorted(setting_names(method)))
        return f"method {method!r} has no setting {word!r}; it belongs to {others}. Settings of {method!r}: {own}"
    return f"there is no setting {word!r}; {guess(word, known)}known: {', '.join(known)}"


def setting_names(method: str) -> set[str]:
    """Return the settings that a method has."""
    return {f.name for f in fields(method_called(method))}


def build_method(name: str, work: Work, options: Options) -> Method[Any]:
    """Build a method from options."""
    if options.work.keys() & STEPPING and "solver" not in options.work:  # steps are for gradient descent
        work = replace(work, solver=Work.solver)
    return method_called(name)(work=replace(work, **options.work), **options.method)


def build(
    dataset: str, name: str, options: Options, settings: Mapping[str, Any] | None = None, *, network: bool = False
) -> tuple[Method[Any], dict[str, Any]]:
    """Return a method and the settings of its run: the preset's, then ``settings``, then the options override."""
    style, lam = options.preset.get("preset", "usual"), options.method.get("lam")
    defaults = preset(dataset, name, style, network=network, lam=lam)
    having = {key: value for key, value in defaults.method.items() if key in setting_names(name)}
    method = build_method(name, defaults.work, replace(options, method=having | options.method))
    return method, {**defaults.settings, **(settings or {}), **options.settings}
