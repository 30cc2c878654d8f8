"""Template of a Flower app: what ``fedfuse flower new`` writes, in the layout of ``flwr new``."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template

from fedfuse.errors import FedfuseError

# To be set before the first flwr command: the SuperLink that it starts in the background keeps its environment.
INSTALL_NOTHING = "export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"
_TEMPLATES = Path(__file__).with_name("template")
_SUFFIX = ".template"  # Not .py: tools would take templates for modules.


def write_app(directory: Path) -> list[Path]:
    """Write a small Flower app into a new directory, and return its files."""
    name = directory.resolve().name
    package = re.sub(r"\W+", "_", name.lower()).strip("_")
    if not package.isidentifier() or keyword.iskeyword(package):
        raise FedfuseError(f"{name!r} is not a valid app name: use a letter, then letters or digits")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FedfuseError(f"{directory} already exists and is not empty: choose another directory")
    (directory / package).mkdir(parents=True)
    words = {"name": package.replace("_", "-"), "package": package, "install_nothing": INSTALL_NOTHING}
    files = []
    for template in sorted(_TEMPLATES.rglob(f"*{_SUFFIX}")):
        *folders, file = template.relative_to(_TEMPLATES).parts
        path = directory.joinpath(*(package for _ in folders), file.removesuffix(_SUFFIX))
        path.write_text(Template(template.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
        files.append(path)
    return files
