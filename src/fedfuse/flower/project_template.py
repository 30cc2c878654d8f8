"""Template of a Flower app: what ``fedfuse flower new`` writes, in the layout of ``flwr new``."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from fedfuse.errors import FedfuseError

# To be set before the first flwr command: the SuperLink that it starts in the background keeps its environment.
INSTALL_NOTHING = "export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "A federation that finds its own groups"
license = "Apache-2.0"
dependencies = ["flwr[simulation]>=1.41.0", "fedfuse"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "local"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# Each of these can be given to `flwr run` too: --run-config "method='fedavg' seed=1"
[tool.flwr.app.config]
method = ""              # empty: fusion-tree; or fpfc, fpfc-l1, local, fedavg, lg-fedavg, per-fedavg, ifca, cfl, pacfl
lam = ""                 # strength of the penalty of fpfc and fpfc-l1
num-server-rounds = 0    # maximum of rounds; 0: what suits the method
seed = 0
set = ""                 # all that `fedfuse run --set` takes: "mode=async lam=0.5 steps=10 deadline=60"
goal = ""                # classification or regression; empty: inferred from the targets
num-devices = 0          # start with this many devices; 0: with those that are online
wait = 600.0             # seconds to wait for them
identities = "declared"  # registered: only nodes whose key is registered under a name take part
ttl = 600.0              # seconds after which an unanswered message expires
grace = 15.0             # seconds that a round waits for a device that is away
out = ""                 # absolute path of the run's directory; given again, the run is resumed
"""

_CLIENT = '''\
"""{package}: the app of a device."""

from fedfuse.flower import client_app

from {package}.task import load, model

app = client_app(load, model)
'''

_SERVER = '''\
"""{package}: the app of the server."""

from fedfuse.flower import server_app

from {package}.task import model

app = server_app(model)
'''

_TASK = '''\
"""{package}: your part: how a device loads its rows, and which model it has.

Import large packages inside the functions: a device has one process per message, and may not need them.
"""

import numpy as np


def load(device, config):
    """Return the rows (X, y) of a device; `config` has the configuration of its node and of the run."""
    if "data" in config:  # a real device: flower-supernode --node-config 'device="a" data="/path/to/rows.csv"'
        table = np.loadtxt(config["data"], delimiter=",", skiprows=1)
        return table[:, :-1], table[:, -1]
    # a simulated one: even and odd devices have different slopes
    rng = np.random.default_rng(1000 + int(device))
    X = rng.normal(size=(60, 3))
    slopes = [1.0, 2.0, -1.0] if int(device) % 2 == 0 else [-2.0, 0.5, 1.0]
    return X, X @ slopes + 0.1 * rng.normal(size=60)


def model():
    """Return the model: a torch module, "linear", "softmax", "mlp", or None for one that suits the targets."""
    return None
'''

_README = """\
# {name}

Simulation with eight devices, in the current Python environment:

    {nothing}  # before the first flwr command
    flwr run . --stream --federation-config "num-supernodes=8"

A federation of real hosts (a SuperLink, and a SuperNode on every device with `--node-config 'device="NAME" …'`):

    flwr run . NAME-OF-THE-SUPERLINK --stream --run-config "num-devices=8 out='/srv/runs/first'"

Without the first line Flower installs the dependencies again for every run, and the run ends with `Exit Code: 608` if
that fails. A SuperLink that was already running does not have it: end that process (`flower-superlink`), and run again.

`{package}/task.py` says how a device loads its rows and which model it has; `pyproject.toml` says how to train.
The run's directory has `summary.json`, `labels.csv`, `models.npz` and `history.csv`.
"""


def write_app(directory: Path) -> list[Path]:
    """Write a small Flower app into a new directory, and return its files."""
    name = directory.resolve().name
    package = re.sub(r"\W+", "_", name.lower()).strip("_")
    if not package.isidentifier() or keyword.iskeyword(package):
        raise FedfuseError(f"{name!r} cannot be the name of an app: start with a letter, then letters or digits")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FedfuseError(f"{directory} exists already and is not empty: choose another directory")
    words = {"name": package.replace("_", "-"), "package": package, "nothing": INSTALL_NOTHING}
    files = {
        "pyproject.toml": _PYPROJECT,
        "README.md": _README,
        f"{package}/__init__.py": '"""{package}: a federation that finds its own groups."""\n',
        f"{package}/client_app.py": _CLIENT,
        f"{package}/server_app.py": _SERVER,
        f"{package}/task.py": _TASK,
    }
    (directory / package).mkdir(parents=True)
    for path, text in files.items():
        (directory / path).write_text(_filled(text, words), encoding="utf-8")
    return [directory / path for path in files]


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace("{" + word + "}", value)
    return text
