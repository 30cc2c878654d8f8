from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfuse.utils import threads as _threads


@given(st.lists(st.floats(0, 1e6), max_size=40), st.integers(1, 8))
def test_bins_hold_every_position_once_and_none_has_much_of_what_is_left(cost, threads):
    cost = np.array(cost)
    bins = _threads.bins(cost, threads)
    order = [k for b in bins for k in b]
    assert sorted(order) == list(range(cost.size))
    assert (np.diff(cost[order]) <= 0).all()
    left = cost.sum()
    for b in bins:
        assert len(b) == 1 or cost[b].sum() <= _threads.BIN_RATIO / threads * left + 1e-9 * cost.sum()
        left -= cost[b].sum()


def test_many_small_jobs_are_few_bins_and_the_last_are_single():
    sizes = [len(b) for b in _threads.bins(np.ones(10_000), 2)]
    assert len(sizes) < 100
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1


def test_every_position_is_run_once(monkeypatch):
    monkeypatch.setattr(_threads, "MIN_PARALLEL_WORK", 0)
    seen = np.zeros(50, int)
    _threads.spread(lambda jobs: np.add.at(seen, jobs, 1), np.ones(50))
    assert (seen == 1).all()


def test_little_work_stays_in_the_calling_thread():
    threads = []
    _threads.spread(lambda jobs: threads.append(threading.current_thread()), np.ones(50))
    assert threads == [threading.current_thread()]


def test_an_error_in_a_thread_is_not_lost(monkeypatch):
    monkeypatch.setattr(_threads, "MIN_PARALLEL_WORK", 0)

    def run(jobs):
        if 3 in jobs:
            raise ZeroDivisionError

    for cost in (np.ones(4), np.arange(4.0)):
        with pytest.raises(ZeroDivisionError):
            _threads.spread(run, cost)


def test_work_inside_work_comes_to_an_end(monkeypatch):
    monkeypatch.setattr(_threads, "MIN_PARALLEL_WORK", 0)
    seen = np.zeros((20, 20), int)

    def outer(jobs):
        for i in jobs:
            _threads.spread(lambda inner, row=seen[i]: np.add.at(row, inner, 1), np.ones(20))

    _threads.spread(outer, np.ones(20))
    assert (seen == 1).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(_threads, "MIN_PARALLEL_WORK", 0)
    seen = np.zeros(50, int)
    _threads.spread(lambda jobs: np.add.at(seen, jobs, 1), np.ones(50))
    child = os.fork()
    if not child:
        _threads.spread(lambda jobs: np.add.at(seen, jobs, 1), np.ones(50))
        os._exit(0 if (seen == 2).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
