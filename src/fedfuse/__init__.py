"""fedfuse: which devices of a federation share a model, and one good model per group."""

import re
from pathlib import Path

from fedfuse._version import __version__
from fedfuse.utils.lazy import lazy_names

# Names are imported when first asked for: what computes, draws or reads tables takes a second and more, and a device's
# process on Flower, which lives for one message, needs little of it. The stub beside this file has them all.
_places = dict[str, str]()
_stub = Path(f"{__file__}i").read_text(encoding="utf-8")
for _module, _name in re.findall(r"^from fedfuse\.?(\S*) import (\w+)", _stub, re.MULTILINE):
    _places[_module] = f"{_places.get(_module, '')} {_name}"
__all__ = ["__version__", *(name for place, names in _places.items() if place for name in names.split())]
__getattr__ = lazy_names(__name__, _places)


def __dir__() -> list[str]:
    return sorted(__all__)
