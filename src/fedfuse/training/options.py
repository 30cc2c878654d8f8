"""From the words of the command line to methods and settings: presets, and ``--set key=value``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from fedfuse.errors import FedfuseError, guess
from fedfuse.methods.method import Method
from fedfuse.methods.registry import method_called
from fedfuse.protocol.local_work import Decay, Work, parse

Style = Literal["usual", "paper"]
STEPPING = frozenset({"steps", "lr", "batch", "momentum"})  # what an exact solver has no use for


@dataclass(frozen=True)
class Preset:
    """Defaults: the work of a device, settings of the run, and fields of the method, where it has them."""

    work: Work
    settings: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)


# Per-FedAvg adapts networks by the paper's step: a first-order step forgets a Hessian that longer ones would need.
ADAPT = {"adapt_lr": 0.01}
PRESETS = {
    "synthetic": Preset(Work(steps=10, lr=0.1), {"participation": 0.3, "rounds": 2000}),
    "housing-bodyfat": Preset(Work(steps=20, lr=0.01), {"participation": 0.3, "rounds": 200}),
    "digits": Preset(Work(steps=5, lr=0.05, batch=10, momentum=0.9), {"rounds": 40}, ADAPT),
    "mnist": Preset(
        Work(steps=2, lr=Decay(0.05, 0.9, 2), batch=50, momentum=0.9), {"participation": 0.5, "rounds": 40}, ADAPT
    ),
}
PRESETS["fashion-mnist"] = PRESETS["mnist"]
# What the paper trains images with: for the others the usual work is the paper's.
PAPER_IMAGES = Preset(Work(steps=10, lr=Decay(0.01, 0.9, 5), batch=100), {"participation": 0.5, "rounds": 200})
# LOCAL trains all devices in every round: as many steps on each as 2000 rounds with 30 % of them have
ROUNDS = {("synthetic", "local"): 600, ("housing-bodyfat", "local"): 60}
ROUNDS |= {("mnist", "local"): 20, ("fashion-mnist", "local"): 20}
# IFCA is told how many groups there are, as in the paper.
GROUPS = {"synthetic:S1": 4, "synthetic:S2": 4, "synthetic:S3": 2, "synthetic:S4": 1, "synthetic:S5": 50}
GROUPS |= {"housing-bodyfat": 2, "digits": 4, "mnist": 4, "fashion-mnist": 4}
# Of the paper's tables: all devices start at one N(0, 1) draw, every round is run, no group is refitted.
PAPER = Preset(Work(), {"tol": 0.0}, {"start": "normal", "refit": False, "nu": 0.1})
# IFCA averages gradients, one step in each round, so its rounds are those of the others times their steps.
PAPER_ROUNDS = {
    ("synthetic", "ifca"): 20_000,
    ("housing-bodyfat", "ifca"): 3000,
    ("housing-bodyfat", "cfl"): 1000,
}
# The paper tunes lambda and does not print what it used for FPFC-l1 on housing and body fat.
PAPER_LAMBDAS = {
    ("synthetic", "fpfc"): 0.6,
    ("synthetic", "fpfc-l1"): 0.2,
    ("housing-bodyfat", "fpfc"): 4.0,
    ("mnist", "fpfc"): 0.4,
    ("mnist", "fpfc-l1"): 0.4,
    ("fashion-mnist", "fpfc"): 0.4,
    ("fashion-mnist", "fpfc-l1"): 0.4,
}


def preset(dataset: str, method: str = "fpfc", style: Style = "usual", *, network: bool = False) -> Preset:
    """Return the defaults for a method on a data set; with style ``"paper"``, what the paper's tables were made with.

    ``network`` says that devices train one, where the data do not.

    >>> preset("synthetic:S1", "ifca", "paper").settings
    {'participation': 0.3, 'rounds': 20000, 'tol': 0.0}
    """
    data = dataset.partition(":")[0]
    usual = PRESETS.get(data, PRESETS["digits"] if network else Preset(Work(solver="exact")))
    if (data, method) in ROUNDS:
        usual = replace(usual, settings=usual.settings | {"rounds": ROUNDS[data, method]})
    groups = GROUPS.get(dataset, GROUPS.get(data))
    if method == "ifca" and groups:
        usual = replace(usual, method=usual.method | {"n_models": groups})
    if style == "usual":
        return _able(usual, method)
    if data not in PRESETS:
        raise FedfuseError(f"preset=paper is for the paper's data sets ({', '.join(PRESETS)}), not for {dataset!r}")
    images = data in ("digits", "mnist", "fashion-mnist")
    if images:
        usual = replace(PAPER_IMAGES, method=usual.method | {"start": "auto"})
    settings, given = usual.settings | PAPER.settings, PAPER.method | usual.method
    if not images:
        given["average"] = "gradient"
    if data == "housing-bodyfat":
        given["p"] = 3
    if (data, method) in PAPER_ROUNDS:
        settings["rounds"] = PAPER_ROUNDS[data, method]
    if (data, method) in PAPER_LAMBDAS:
        given["lam"] = PAPER_LAMBDAS[data, method]
    return Preset(usual.work, settings, given)


def _able(preset: Preset, method: str) -> Preset:
    """Return work that the method can do: Per-FedAvg adapts by gradient steps, whatever suits a table otherwise."""
    if method == "per-fedavg" and preset.work.solver == "exact":
        return replace(preset, work=Work())
    return preset


def _rows_per_batch(text: str) -> int | None:
    return None if text in ("none", "all") else int(text)


def _bytes(text: str) -> int:
    """Read a number of bytes.

    >>> _bytes("4GB"), _bytes("1.5 MB"), _bytes("100")
    (4000000000, 1500000, 100)
    """
    number, unit = text.upper().removesuffix("B").strip(), 1
    for power, letter in enumerate("KMGT", 1):
        if number.endswith(letter):
            number, unit = number[:-1], 1000**power
    return int(float(number) * unit)


def _yes_or_no(text: str) -> bool:
    return {"yes": True, "true": True, "no": False, "false": False}[text.lower()]


def _number_or_auto(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: "auto" if text == "auto" else read(text)


def _style(text: str) -> Style:
    return {"usual": "usual", "paper": "paper"}[text]  # type: ignore[return-value]


def _lambda(text: str) -> float | Literal["auto"]:
    return "auto" if text == "auto" else float(text)


def read_lambda(text: str) -> float | Literal["auto"]:
    """Read what ``--lam`` takes: a number, or auto."""
    try:
        return _lambda(text)
    except ValueError:
        raise FedfuseError(f"--lam takes a number or auto, got {text!r}") from None


@dataclass(frozen=True)
class Key:
    """What ``--set`` knows of a key: where it goes, how its text is read, and what that is called."""

    room: str
    read: Callable[[str], Any]
    takes: str


def _participation(text: str) -> float | str | list[float]:
    """Read a share, ``sizes(share)``, or one probability for each device with commas between them."""
    if text.startswith("sizes"):
        return text
    numbers = [float(word) for word in text.split(",")]
    return numbers[0] if len(numbers) == 1 else numbers


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
    "lam": Key("method", _lambda, "a number or auto"),
    "rho": Key("method", float, _NUMBER),
    "a": Key("method", float, _NUMBER),
    "xi": Key("method", float, _NUMBER),
    "nu": Key("method", float, _NUMBER),
    "refit": Key("method", _yes_or_no, "yes or no"),
    "robust": Key("method", str, "'screen', 'median', 'trimmed', 'krum' or 'none'"),
    "memory": Key("method", _bytes, "a number of bytes, e.g. 4GB"),
    "spill": Key("method", str, "a directory"),
    "backend": Key("method", str, "'threads' or 'ray'"),
    "blocks": Key("method", int, _WHOLE),
    "collapse": Key("method", int, "a whole number of rounds"),
    "adapt_lr": Key("method", float, _NUMBER),
    "variant": Key("method", str, "'first-order' or 'hessian-free'"),
    "n_models": Key("method", _number_or_auto(int), "a whole number or auto"),
    "average": Key("method", str, "'gradient' or 'model'"),
    "temperature": Key("method", float, _NUMBER),
    "eps1": Key("method", _number_or_auto(float), "a number or auto"),
    "eps2": Key("method", _number_or_auto(float), "a number or auto"),
    "threshold": Key("method", _number_or_auto(float), "an angle in degrees or auto"),
    "p": Key("method", int, _WHOLE),
    "angle": Key("method", str, "'column' or 'principal'"),
    "linkage": Key("method", str, "'average', 'complete' or 'single'"),
    "evaluate": Key("method", str, "'local' or 'cluster'"),
    "rows": Key("method", str, "'train' or 'train+validation'"),
    "rounds": Key("settings", int, _WHOLE),
    "alpha": Key("method", float, _NUMBER),
    "power": Key("method", float, _NUMBER),
    "participation": Key("settings", _participation, "a share above 0 and at most 1, or sizes(share)"),
    "mode": Key("settings", str, "'sync' or 'async'"),
    "at_once": Key("settings", int, _WHOLE),
    "ahead": Key("settings", int, _WHOLE),
    "delay": Key("settings", str, "a law of time"),
    "compute": Key("settings", str, "a law of time"),
    "lossy": Key("settings", str, "lost:0.3,late:0.2,…"),
    "deadline": Key("settings", float, "a number of seconds"),
    "minimum": Key("settings", int, _WHOLE),
    "overselect": Key("settings", float, _NUMBER),
    "late": Key("settings", str, "'refuse' or 'use'"),
    "budget": Key("settings", int, _WHOLE),
    "tol": Key("settings", float, _NUMBER),
    "evaluate_every": Key("settings", int, _WHOLE),
    "checkpoint_every": Key("settings", int, _WHOLE),
    "dtype": Key("settings", str, "'float32' or 'float64'"),
    "attack": Key("settings", str, "the name of an attack"),
    "liars": Key("settings", float, "a share from 0 to 1"),
    "lies": Key("settings", str, "'all' or 'models'"),
    "scope": Key("settings", str, "'all' or 'fused'"),
    "screen": Key("settings", _yes_or_no, "yes or no"),
    "clip": Key("settings", float, _NUMBER),
    "epsilon": Key("settings", float, _NUMBER),
    "delta": Key("settings", float, _NUMBER),
    "workers": Key("engine", int, _WHOLE),
    "preset": Key("preset", _style, "'usual' or 'paper'"),
}


# what people look for in --set, and has an option of its own
OPTIONS = ("seed", "seeds", "engine", "model", "method", "methods", "features", "device", "target", "task", "out")


@dataclass
class Options:
    """The parsed ``--set`` options, by where they go."""

    work: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    preset: dict[str, Style] = field(default_factory=dict)


def parse_options(pairs: Sequence[str]) -> Options:
    """Read ``key=value`` words.

    >>> parse_options(["steps=grow(20)", "start=zero", "participation=0.5"]).work
    {'steps': Grow(every=20.0)}
    """
    options = Options()
    for pair in pairs:
        word, text = _key_and_text(pair)
        key = _known_key(word)
        try:
            getattr(options, key.room)[word] = key.read(text)
        except FedfuseError as problem:
            raise FedfuseError(f"--set {word}: {problem}") from None
        except (ValueError, KeyError, OverflowError):  # inf is a number, but no whole one
            raise FedfuseError(f"--set {word} takes {key.takes}, got {text!r}") from None
    return options


def options_by_method(pairs: Sequence[str], names: Sequence[str]) -> dict[str, Options]:
    """Read ``key=value`` words for many methods, one set of options for each.

    A key goes to all methods that have it, and one that none has is an error; ``method.key=value`` goes to one method
    and counts more than a word to all.

    >>> found = options_by_method(["fpfc.xi=0.01", "xi=0.1", "tol=0"], ["fpfc", "fpfc-l1"])
    >>> found["fpfc"].method, found["fpfc-l1"].method, found["fpfc-l1"].settings
    ({'xi': 0.01}, {}, {'tol': 0.0})
    """
    words: dict[str, list[str]] = {name: [] for name in names}
    for pair in sorted(pairs, key=_is_targeted):  # stable: words to all come first, so that the others win
        for name in _meant(pair, names):
            words[name].append(_without_target(pair))
    return {name: parse_options(chosen) for name, chosen in words.items()}


def common_words(pairs: Sequence[str]) -> dict[str, str]:
    """Return what ``key=value`` words ask of every method alike, whatever it is."""
    found = dict(_key_and_text(pair) for pair in pairs if not _is_targeted(pair))
    return {word: text for word, text in found.items() if _known_key(word).room != "method"}


def _meant(pair: str, names: Sequence[str]) -> list[str]:
    """Return the methods that a word is for."""
    word, _ = _key_and_text(pair)
    if _is_targeted(pair):
        target = word.rpartition(".")[0]
        if target not in names:
            raise FedfuseError(f"--set {pair}: {target!r} is not one of the methods compared ({', '.join(names)})")
        return [target]
    if _known_key(word).room != "method":
        return list(names)
    having = [name for name in names if word in setting_names(name)]
    if not having:
        raise FedfuseError(f"none of the methods compared ({', '.join(names)}) has a setting {word!r}")
    return having


def _is_targeted(pair: str) -> bool:
    return "." in _key_and_text(pair)[0]


def _without_target(pair: str) -> str:
    word, text = _key_and_text(pair)
    return f"{word.rpartition('.')[2]}={text}"


def _key_and_text(pair: str) -> tuple[str, str]:
    word, sign, text = (part.strip() for part in pair.partition("="))
    if not sign:
        raise FedfuseError(f"--set takes key=value, got {pair!r}")
    return word, text


def _known_key(word: str) -> Key:
    if word in OPTIONS:
        raise FedfuseError(f"--set knows no {word!r}, which is an option of its own: --{word}")
    if word not in KEYS:
        raise FedfuseError(f"--set knows no {word!r}; {guess(word, KEYS)}known: {', '.join(KEYS)}")
    return KEYS[word]


def read_grid(text: str) -> list[float]:
    """Read what ``--grid`` takes: numbers with commas between them.

    >>> read_grid("0, 0.5,1")
    [0.0, 0.5, 1.0]
    """
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise FedfuseError(f"--grid takes increasing numbers with commas between them, got {text!r}") from None


def read_seeds(text: str) -> list[int]:
    """Read what ``--seeds`` takes: how many, counted from 0, or which, with commas between them.

    >>> read_seeds("3"), read_seeds("0,5,7"), read_seeds("5,")
    ([0, 1, 2], [0, 5, 7], [5])
    """
    try:
        numbers = [int(word) for word in text.removesuffix(",").split(",")]
    except ValueError:
        words = "--seeds takes how many (3) or which (0,5,7; a single one: 5,)"
        raise FedfuseError(f"{words}, got {text!r}") from None
    if "," not in text and numbers[0] < 1:
        raise FedfuseError(f"--seeds takes how many (at least 1) or which (0,5,7; a single one: 5,), got {text!r}")
    return numbers if "," in text else list(range(numbers[0]))


def setting_names(method: str) -> set[str]:
    """Return the settings that a method has."""
    return {f.name for f in fields(method_called(method))}


def read_candidates(text: str) -> list[dict[str, Any]]:
    """Read what ``--grid`` takes for methods with other settings than lambda: candidates with semicolons between them.

    >>> read_candidates("eps1=0.1, eps2=0.2; eps1=0.5, eps2=1")
    [{'eps1': 0.1, 'eps2': 0.2}, {'eps1': 0.5, 'eps2': 1.0}]
    """
    words = [candidate.split(",") for candidate in text.split(";") if candidate.strip()]
    named = all("=" in word for candidate in words for word in candidate)
    try:
        candidates = [parse_options(candidate).method for candidate in words] if named else []
    except FedfuseError as problem:
        raise FedfuseError(str(problem).replace("--set", "--grid", 1)) from None
    if not candidates or not all(candidates):
        raise FedfuseError(f"--grid takes candidates such as eps1=0.1,eps2=0.2;eps1=0.5,eps2=1, got {text!r}")
    return candidates


def build_method(name: str, lam: float | Literal["auto"] | None, work: Work, options: Options) -> Method[Any]:
    """Build the method that the command line asks for; a setting that it does not have is an error."""
    kind, given = method_called(name), dict(options.method)
    if lam is not None:
        given["lam"] = lam
    known = setting_names(name)
    for key in given:
        if key not in known:
            raise FedfuseError(f"method {name!r} has no setting {key!r}; it has {', '.join(sorted(known))}")
    if options.work.keys() & STEPPING and "solver" not in options.work:  # who speaks of steps wants some
        work = replace(work, solver=Work.solver)
    changed = {f.name: getattr(work, f.name) for f in fields(Work)} | options.work
    return kind(work=Work(**changed), **given)


def build(
    dataset: str,
    name: str,
    options: Options,
    lam: float | Literal["auto"] | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    network: bool = False,
) -> tuple[Method[Any], dict[str, Any]]:
    """Return a method and the settings of its run: the preset's, ``settings``, the options; the last counts most."""
    if lam is not None and "lam" in options.method:
        raise FedfuseError("--set lam is one lambda too many: it is given by --lam, or looked for")
    defaults = preset(dataset, name, options.preset.get("preset", "usual"), network=network)
    having = {key: value for key, value in defaults.method.items() if key in setting_names(name)}
    method = build_method(name, lam, defaults.work, replace(options, method=having | options.method))
    return method, {**defaults.settings, **(settings or {}), **options.settings}
