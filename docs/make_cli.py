"""Write the reference of the command line, from the code: ``python docs/make_cli.py [another file]``.

Commands and options are those of `fedfuse.cli`. The keys of ``--set`` are fields of classes (`training.options.keys`),
whose docstrings say what each means.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer.main

from fedfuse import Settings, Work
from fedfuse.cli import app
from fedfuse.engines import latency
from fedfuse.engines.attacks import Attack
from fedfuse.engines.factory import EngineSpec
from fedfuse.methods.registry import METHODS
from fedfuse.protocol.local_work import SCHEDULES
from fedfuse.training.options import keys, setting_names

PAGE = Path(__file__).parent / "cli.md"
KEYS = keys()
# The one key that is not a field of a class.
PRESET = "Defaults of the data set: ``usual``, or ``paper`` for those of the paper's tables."
HEAD = """\
# Command line

All commands with their options, and all keys of `--set`. `fedfuse COMMAND --help` shows the same in the terminal. This
page is generated from the code by `python docs/make_cli.py`.
"""
KEYS_HEAD = """\
## Keys of `--set`

For example `fedfuse run synthetic:S1 --set participation=0.5 --set steps=5`. In `compare` a key goes to all
methods that have it, and `--set fpfc.lam=0.6` to one. The defaults below are those of the classes. Data sets with a
name have some of their own (such as participation, rounds and steps); on tables, devices solve their problem exactly
(`solver=exact`) unless steps, lr, batch or momentum is given.

| key | meaning | default | methods |
| --- | --- | --- | --- |
"""


def page() -> str:
    """Return the whole page."""
    group: Any = typer.main.get_command(app)
    commands = "\n".join(text for words, command in _commands("fedfuse", group) for text in _command(words, command))
    rows = [_keys(list(names)) for _, names in groupby(KEYS, key=lambda name: (meaning(name), _methods(name)))]
    return f"{HEAD}\n{commands}\n{KEYS_HEAD}" + "\n".join(rows) + "\n\n" + _values()


def _values() -> str:
    """Write what may stand for a number, a distribution of seconds and an attack."""
    seconds = _plain((latency.__doc__ or "").rpartition("\n\n")[2])
    schedules = [f"| `{_call(kind)}` | {_plain(_first_line(kind))} |" for kind in SCHEDULES]
    attacks = ", ".join(f"`{name}`" for name in get_args(Attack))
    return (
        "### Schedules\n\nThey may stand for the number in `steps`, the first two also in `lr`.\n\n"
        "| schedule | meaning |\n| --- | --- |\n" + "\n".join(schedules) + "\n\n"
        f"### Distributions of seconds\n\nFor `delay` and `compute`: {seconds}\n\n"
        f"### Attacks\n\n{attacks}.\n"
    )


def _call(kind: Any) -> str:
    return f"{kind.word}({', '.join(f.name for f in fields(kind))})"


def _first_line(kind: Any) -> str:
    return inspect.cleandoc(kind.__doc__).partition("\n\n")[0]


def meaning(key: str) -> str:
    """Return what a key means: the words of the classes that have it, with the methods' names if these differ."""
    if key == "preset":
        return PRESET
    found: dict[str, list[str]] = {}
    for whose, kind in _owners(key).items():
        if words := _words(kind, key):
            found.setdefault(words, []).append(whose)
    # "see Refit" is of no use beside what Refit says
    full = {words: whose for words, whose in found.items() if "see `grouping." not in words} or found
    if len(full) == 1:
        return next(iter(full))
    return " ".join(f"{', '.join(whose)}: {words}" for words, whose in full.items())


def _owners(key: str) -> dict[str, Any]:
    owners = {"work": {"": Work}, "settings": {"": Settings}, "engine": {"": EngineSpec}}
    return owners.get(KEYS[key].part) or {name: kind for name, kind in METHODS.items() if key in setting_names(name)}


@cache
def _words(kind: Any, name: str) -> str:
    """Return what the docstring of a class, or of one that it is made from, says of a field."""
    for each in kind.__mro__:
        for names, words in _parameters(inspect.cleandoc(each.__dict__.get("__doc__") or "")):
            if name in names:
                return words
    return ""


def _commands(words: str, group: Any) -> Iterator[tuple[str, Any]]:
    """Yield all commands with the words that call them, in the order of --help."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(f"{words} {name}", command)
        else:
            yield f"{words} {name}", command


def _command(words: str, command: Any) -> Iterator[str]:
    params = [p for p in command.params if p.name != "help"]
    given = [p for p in params if p.param_type_name == "argument"]
    usage = " ".join([words, *(_argument(p) for p in given)])
    yield f"## {words}\n\n{_plain(command.help)}\n\n```\n{usage} [OPTIONS]\n```\n"
    helps = _helps(command.callback)
    rows = [
        f"| {_names(p)} | {_plain(p.help or helps.get(p.name, ''))} | {_default(p.default, p.secondary_opts)} |"
        for p in sorted(params, key=lambda p: p.param_type_name)  # arguments first
    ]
    if rows:
        yield "| option | meaning | default |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"


def _helps(function: Any) -> dict[str, str]:
    """Return what a command says of its arguments, which some pairs of typer and click forget."""
    hints = get_type_hints(inspect.unwrap(function), include_extras=True)
    found = {name: getattr(hint, "__metadata__", (None,))[0] for name, hint in hints.items()}
    return {name: getattr(info, "help", None) or "" for name, info in found.items()}


def _argument(param: Any) -> str:
    word = param.name.upper() + ("…" if param.nargs == -1 else "")
    return word if param.required else f"[{word}]"


def _names(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{param.name.upper()}`"
    words = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    return f"{words} (required)" if param.required else words


def _keys(names: list[str]) -> str:
    """Write the row of keys that mean one thing together."""
    keys, takes = [f"`{name}`" for name in names], [_plain(KEYS[name].takes) for name in names]
    alike = len(set(takes)) == 1
    values = takes[0] if alike else "; ".join(f"{key}: {value}" for key, value in zip(keys, takes, strict=True))
    words = _plain(meaning(names[0])).replace("`None`", "`all`")
    defaults = [_default_of(name) for name in names]
    cells = [keys, [words, f"*Takes {values}.*"], defaults if any(defaults) else [], [_methods(names[0])]]
    return "| " + " | ".join("<br>".join(cell) for cell in cells) + " |"


def _methods(key: str) -> str:
    owners = _owners(key) if KEYS[key].part == "method" else METHODS
    return "all" if len(owners) == len(METHODS) else ", ".join(owners)


def _default_of(key: str) -> str:
    if key == "preset":
        return "`usual`"
    shown = {whose: _default(_field(kind, key)) for whose, kind in _owners(key).items()}
    kinds = list(shown.values())
    usual = max(kinds, key=kinds.count)
    return ", ".join([usual, *(f"{whose}: {default}" for whose, default in shown.items() if default != usual)])


def _field(kind: Any, name: str) -> Any:
    (found,) = [f for f in fields(kind) if f.name == name]
    return None if found.default is MISSING else found.default


def _default(given: Any, opposites: Any = True) -> str:
    """Write a default; nothing at all, and that of a switch that can only be turned on, are left out."""
    if isinstance(given, bool):
        return ("`yes`" if given else "`no`") if opposites else ""
    if not isinstance(given, (int, float, str, Path)) or given == "":
        return ""
    return f"`{given:g}`" if isinstance(given, float) else f"`{given}`"


def _parameters(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield names and meanings of a docstring's parameters."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[^\n]*\n-+\n|\Z)", text, re.MULTILINE | re.DOTALL)
    entries = section[1] + "\n" if section else ""
    for names, words in re.findall(r"^(\w[^\n]*)\n((?:[ \t]+[^\n]*\n?|\n)+)", entries, re.MULTILINE):
        yield names.split(", "), " ".join(words.split())


def _plain(text: str) -> str:
    """Write a docstring's words as a line of Markdown that may stand in a table."""
    words = re.sub(r'`"([^"`]*)"`', r"`\1`", text.replace("``", "`"))  # the command line has no quotes
    return " ".join(words.replace("||", "‖").replace("|", "\\|").split())


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE).write_text(page(), encoding="utf-8")
