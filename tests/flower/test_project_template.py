"""What ``fedfuse flower new`` writes and says."""

from pathlib import Path

from fedfuse.flower.project_template import INSTALL_NOTHING

ROOT = Path(__file__).parents[2]


def test_nobody_is_led_into_exit_code_608(fedfuse, here):
    """The line that keeps Flower from installing dependencies stands before the first command of flwr, everywhere."""
    _, said, _ = fedfuse("flower", "new", "hospitals")
    texts = [said, Path("hospitals/README.md").read_text()]
    texts += [(ROOT / name).read_text() for name in ("docs/flower.md", "docs/flower-tutorial.md")]
    for text in texts:
        assert 0 <= text.find(INSTALL_NOTHING) < text.find("flwr run")


def test_an_app_has_all_its_words(fedfuse, here):
    _, said, _ = fedfuse("flower", "new", "two-hospitals")
    for path in Path("two-hospitals").rglob("*.*"):
        assert str(path) in said
        for word in ("$name", "package}", "$install_nothing"):
            assert word not in path.read_text()
