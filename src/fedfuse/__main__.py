"""`python -m fedfuse` is `fedfuse`, for those whose PATH does not know the command."""

from fedfuse.cli import main

main()
