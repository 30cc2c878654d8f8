from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfuse.models import _threads


@given(st.lists(st.floats(0, 1e6), max_size=40), st.integers(1, 8))
def test_bins_hold_every_position_once_and_are_balanced(cost, n):
    cost = np.array(cost)
    bins = _threads.bins(cost, n)
    assert sorted(np.concatenate(bins)) == list(range(cost.size))
    load = [cost[b].sum() for b in bins]
    assert max(load) - min(load) <= cost.max(initial=0) * (1 + 1e-9)


def test_every_position_is_run_once(monkeypatch):
    monkeypatch.setattr(_threads, "SMALL", 0)
    seen = np.zeros(50, int)
    _threads.spread(lambda jobs: np.add.at(seen, jobs, 1), np.ones(50))
    assert (seen == 1).all()


def test_little_work_stays_in_the_calling_thread():
    threads = []
    _threads.spread(lambda jobs: threads.append(threading.current_thread()), np.ones(50))
    assert threads == [threading.current_thread()]


def test_an_error_in_a_thread_is_not_lost(monkeypatch):
    monkeypatch.setattr(_threads, "SMALL", 0)

    def run(jobs):
        if 3 in jobs:
            raise ZeroDivisionError

    for cost in (np.ones(4), np.arange(4.0)):
        with pytest.raises(ZeroDivisionError):
            _threads.spread(run, cost)
