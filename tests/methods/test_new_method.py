"""To add a method is one file with four hooks, and one line in the registry."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.methods.registry import METHODS
from support import fedmedian
from support.common_checks import CHECKS, Case, StopAt, assert_same
from support.fedmedian import FedMedian
from support.planted import planted

WORK = ff.Work(steps=5, lr=0.05)


@pytest.fixture(autouse=True)
def registered():
    METHODS.add(FedMedian)
    yield
    del METHODS["fedmedian"]


def test_it_is_short():
    source = inspect.getsource(fedmedian)
    code = source[source.index("@dataclass") :]
    assert len(code.splitlines()) <= 40
    hooks = [name for name in vars(FedMedian) if callable(vars(FedMedian)[name]) and not name.startswith("__")]
    assert sorted(hooks) == ["init", "outcome", "tasks", "update"]


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_it_holds_to_what_all_methods_do(check):
    check(Case(FedMedian, "classification", "sgd", "float32"))


def test_of_one_device_it_is_fedavg():
    federation = planted("classification", m=1, groups=1)
    plain, median = (ff.fit(federation, m, rounds=8) for m in (ff.FedAvg(work=WORK), FedMedian(work=WORK)))
    np.testing.assert_allclose(median.models, plain.models, atol=1e-6)
    slow = ff.fit(federation, FedMedian(share=0.1, work=WORK), rounds=8)
    assert np.linalg.norm(slow.models) < np.linalg.norm(plain.models)


def test_it_is_found_by_name_and_compared():
    federation = planted()
    assert ff.fit(federation, "fedmedian", rounds=3).method["method"] == "fedmedian"
    found = ff.compare(
        federation, {"fedmedian": FedMedian(work=WORK), "fedavg": ff.FedAvg(work=WORK)}, seeds=2, rounds=5
    )
    assert list(found.table.index) == ["fedmedian", "fedavg"]
    assert np.isfinite(found.table["test"]).all()


def test_it_is_resumed_and_runs_in_workers(tmp_path):
    federation, options = planted(), {"rounds": 12, "participation": 0.5, "tol": 0, "checkpoint_every": 5}
    whole = ff.fit(federation, FedMedian(work=WORK), **options)
    with pytest.raises(KeyboardInterrupt):
        ff.fit(federation, FedMedian(work=WORK), out=tmp_path / "cut", callbacks=[StopAt(8)], **options)
    assert_same(whole, ff.resume(tmp_path / "cut", federation))
    assert_same(whole, ff.fit(federation, FedMedian(work=WORK), engine="workers", workers=2, **options))
