"""The examples in deploy/ are what systemd and compose take, and say what the documentation says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_verify(unit, tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    # an instance of a template has a name
    path = tmp_path / unit.name.replace("@.", "@north.")
    shutil.copy(unit, path)
    words = ["systemd-analyze", "verify", "--man=no", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "fedfuse" in line]
    assert not ours, done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_may_do_little(unit, tmp_path):
    """Of systemd's scale of exposure, from 0 to 100, at most 20."""
    path = tmp_path / unit.name.replace("@.", "@north.")
    shutil.copy(unit, path)
    words = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(path)]
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "Overall exposure level" not in done.stdout:
        pytest.skip("needs systemd 250")
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_there_are_units():
    assert len(UNITS) == 3


@pytest.fixture(scope="module")
def compose():
    yaml = pytest.importorskip("yaml", reason="flwr brings it: pip install 'fedfuse[flower]'")
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


# the parts of the Compose specification that the file uses: https://compose-spec.io
SERVICE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["build", "command"],
    "properties": {
        "build": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"context": {"type": "string"}, "dockerfile_inline": {"type": "string"}},
        },
        "command": {"type": "string"},
        "depends_on": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "environment": {"type": "object", "additionalProperties": {"type": "string"}},
        "network_mode": {"type": "string", "pattern": r"^service:[a-z]+$"},
        "ports": {"type": "array", "items": {"type": "string", "pattern": r"^[\d.]+:\d+:\d+$"}},
        "stop_grace_period": {"type": "string", "pattern": r"^\d+s$"},
        "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
        "volumes": {"type": "array", "items": {"type": "string", "pattern": r"^[./a-z]+:/[./a-z]+(:ro)?$"}},
    },
}
SCHEMA = {
    "type": "object",
    "required": ["services"],
    "additionalProperties": False,
    "patternProperties": {"^x-": {}},
    "properties": {
        "name": {"type": "string"},
        "services": {"type": "object", "patternProperties": {"^[a-z]+$": SERVICE}, "additionalProperties": False},
        "volumes": {"type": "object"},
    },
}


def test_compose_is_valid(compose):
    jsonschema = pytest.importorskip("jsonschema", reason="ray brings it: pip install 'fedfuse[flower]'")
    jsonschema.validate(compose, SCHEMA)


def test_compose_names_what_it_uses(compose):
    services = compose["services"]
    named = {volume.split(":")[0] for s in services.values() for volume in s["volumes"] if volume[0] != "."}
    assert named == set(compose["volumes"])
    assert {name for s in services.values() for name in s.get("depends_on", [])} <= set(services)


def mounted(service):
    """Files of the host, by the name that they have in the container."""
    bound = [volume.split(":") for volume in service["volumes"] if volume[0] == "."]
    assert all(mode == ["ro"] for _, _, *mode in bound)
    return {inside: outside for outside, inside, *_ in bound}


def test_containers_get_the_files_that_they_name_and_no_others(compose):
    """So that no node can read another's key or rows."""
    for service in compose["services"].values():
        files = mounted(service)
        assert set(files) == set(
            re.findall(r"/(?:certificates/|data/|policies/|gate|supernode)[a-z.]+", service["command"])
        )
        assert all(outside == f".{inside}" for inside, outside in files.items())


def test_the_state_belongs_to_the_user_of_the_image(compose):
    """A new volume takes its owner from the image's directory."""
    recipe = compose["x-flower"]["build"]["dockerfile_inline"]
    owners = {place: user for user, place in re.findall(r"--owner=(\S+) .*(/[a-z]+)$", recipe, re.MULTILINE)}
    (user,) = re.findall(r"^USER (\S+)$", recipe, re.MULTILINE)
    assert re.search(rf"useradd .*\b{user}\b", recipe)
    for service in compose["services"].values():
        named = [volume.split(":")[1] for volume in service["volumes"] if volume[0] != "."]
        assert all(owners[place] == user for place in named)


def test_the_image_is_made_of_what_is_here(compose):
    build = compose["x-flower"]["build"]
    root = DEPLOY / build["context"]
    copied = re.findall(r"^COPY (.*) \S+$", build["dockerfile_inline"], re.MULTILINE)
    assert copied
    for name in " ".join(copied).split():
        assert (root / name).exists()
        assert not name.startswith("deploy")  # where keys are


def test_the_superlink_is_on_loopback_and_published_to_loopback(compose):
    """Nothing but the gate can be reached from elsewhere, and that only where somebody says so."""
    link, gate = compose["services"]["superlink"], compose["services"]["gate"]
    assert "--host 127.0.0.1 " in link["command"]
    assert gate["network_mode"] == "service:superlink"
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:8443:8443"]
    assert "--listen 0.0.0.0:8443 " in gate["command"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_run_as_an_unprivileged_user(unit):
    text = unit.read_text()
    assert "\nUser=fedfuse\n" in text
    assert "\nNoNewPrivileges=true\n" in text
    if "gate" not in unit.name:
        state = re.search(r"^StateDirectory=(\S+)$", text, re.MULTILINE)[1]
        assert f"\nWorkingDirectory=/var/lib/{state}\n" in text
        assert f"\nEnvironment=FLWR_HOME=/var/lib/{state}/flwr\n" in text
        assert f"\nCacheDirectory={state}\n" in text  # Without it every message of a softmax model compiles anew.
        assert f"\nEnvironment=XDG_CACHE_HOME=/var/cache/{state}\n" in text
    if "superlink" in unit.name:
        assert " --host 127.0.0.1 " in text


def test_the_example_of_a_policy_is_one():
    policy = pytest.importorskip("fedfuse.flower.policy", reason="pip install 'fedfuse[flower]'")
    assert not policy.Policy.read(DEPLOY / "policy.toml").second_moments


def test_nodes_say_who_they_are(compose):
    for name, service in compose["services"].items():
        if "/supernode.py" in service["command"]:
            assert f'device="{name}"' in service["command"]


def test_a_node_that_has_given_up_ends(tmp_path):
    """Flower's program returns, though other threads of it go on."""
    place = tmp_path / "flwr" / "supernode"
    place.mkdir(parents=True)
    for package in (place.parent, place):
        (package / "__init__.py").touch()
    stuck = (
        "from threading import Event, Thread\n\n\ndef flower_supernode():\n    Thread(target=Event().wait).start()\n"
    )
    (place / "cli.py").write_text(stuck)
    words, env = [sys.executable, str(DEPLOY / "supernode.py")], os.environ | {"PYTHONPATH": str(tmp_path)}
    assert subprocess.run(words, env=env, check=False, timeout=60).returncode == 1


@pytest.fixture(scope="module")
def options():
    """All options of Flower's two programs, which are renamed now and then."""
    pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")
    programs = [[str(Path(sys.executable).parent / name)] for name in ("flower-superlink", "flower-supernode")]
    programs.append([sys.executable, str(DEPLOY / "gate.py")])
    helps = [subprocess.run([*p, "--help"], capture_output=True, text=True, check=True).stdout for p in programs]
    return set(re.findall(r"--[a-z-]+", " ".join(helps)))


@pytest.mark.parametrize("file", ["deploy/compose.yaml", "docs/flower.md", *(f"deploy/{u.name}" for u in UNITS)])
def test_options_exist(file, options):
    text = (DEPLOY.parent / file).read_text().replace("\\\n", " ")
    lines = [line for line in text.split("\n") if re.match(r"\s*(ExecStart|flower-|python /|--[a-z-]+ /)", line)]
    used = set(re.findall(r"--[a-z-]+", " ".join(lines)))
    assert used
    assert used <= options
