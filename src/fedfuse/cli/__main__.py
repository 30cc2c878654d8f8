"""``python -m fedfuse.cli``."""

from fedfuse.cli import main

main()
