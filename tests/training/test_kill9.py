"""kill -9 and resume, a few times; `python tests/support/kill9.py` does it twenty times."""

from __future__ import annotations

import pytest

from support.kill9 import kill_and_compare


@pytest.mark.slow
def test_killed_runs_end_like_the_others(tmp_path):
    good, kills = kill_and_compare(3, tmp_path, seed=1)
    assert good == 3
    assert kills > 0
