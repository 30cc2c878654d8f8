"""Asynchronous training on real processes: whoever is fast does not wait for whoever is slow."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.models.linear import LinearRegression
from fedfuse.protocol.local_work import Work
from fedfuse.training.fit import fit, resume
from fedfuse.training.loop import Callback
from support.common_checks import StopAt
from support.planted import Keep, planted

FPFC = ff.FPFC(lam=0.3, refit=False, work=Work(steps=3, lr=0.1))
ON_TWO = {"engine": "workers", "workers": 2, "tol": 0}
NAP = 0.3  # seconds; far more than what is computed takes


@dataclass(frozen=True)
class Sleepy(LinearRegression):
    """Every fourth device naps whenever it trains."""

    def train(self, data, devices, *rest):
        for i in devices:
            time.sleep(NAP if i % 4 == 0 else 0.0)
        return super().train(data, devices, *rest)


class Span(Callback):
    """Seconds from some round on: to start processes is another matter."""

    def __init__(self, first):
        self.first = first

    def on_round(self, run, row):
        if run.k == self.first:
            self.began = time.monotonic()
        self.ended = time.monotonic()


def check_counts(orders):
    assert orders["sent"] == orders["used"] + orders["refused"] + orders["unanswered"]


def test_every_reply_is_a_round():
    federation, keep = planted("classification", m=6), Keep()
    method = ff.FPFC(lam=0.6, refit=True, work=Work(steps=3, lr=0.1))
    result = fit(federation, method, rounds=60, mode="async", callbacks=[keep], **ON_TWO)
    first = result.history["stage"] == "fpfc"  # the refit after it is synchronous
    assert first.sum() == 40
    assert (result.history.loc[first, "active"] == 1).all()
    assert result.history.loc[first, "staleness"].max() >= 3
    assert (result.history["time"] == result.history["seconds"]).all()
    check_counts(result.orders)
    assert result.orders["refused"] == 5  # under way when FPFC's own part was over


def test_an_interrupted_run_asks_again(tmp_path):
    """What was under way in processes that are gone is unanswered; training goes on."""
    federation = planted()
    with pytest.raises(KeyboardInterrupt):
        fit(federation, FPFC, rounds=40, mode="async", out=tmp_path / "run", callbacks=[StopAt(17)], **ON_TWO)
    result = resume(tmp_path / "run", federation)
    assert result.rounds == 40
    assert result.history["replies"].sum() == 40
    check_counts(result.orders)
    assert result.orders["unanswered"] >= 5
    assert np.isfinite(result.models).all()


def test_a_deadline_on_the_clock_of_the_wall():
    """Who naps is not waited for, nor asked again before it is free; nothing is lost count of."""
    federation = planted(m=8)
    result = fit(federation, FPFC, Sleepy(), rounds=12, deadline=0.1, late="use", **ON_TWO)
    assert result.rounds == 12
    assert result.history["active"].min() < 8
    check_counts(result.orders)


@pytest.mark.slow
def test_the_fast_do_not_wait_for_the_slow():
    """The same forty device updates, two devices at a time against whoever is free: nearly twice as fast."""
    spans = []
    for settings, first in (
        ({"rounds": 22, "participation": lambda k, m: [2 * k % m, 2 * k % m + 1]}, 2),
        ({"rounds": 44, "mode": "async"}, 4),
    ):
        span = Span(first)
        fit(planted(m=8), FPFC, Sleepy(), callbacks=[span], evaluate_every=10**6, **settings, **ON_TWO)
        spans.append(span.ended - span.began)
    print(f"synchronous {spans[0]:.2f} s, asynchronous {spans[1]:.2f} s, ratio {spans[0] / spans[1]:.2f}")
    assert spans[0] > 1.5 * spans[1]
