"""Sweeps: the runs that one would do by hand, in one table and one picture."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

import fedfuse as ff
from fedfuse.errors import FedfuseError
from fedfuse.protocol.local_work import Work
from fedfuse.studies.sweep import Over, sweep
from support.planted import planted

mpl.use("Agg")
EXACT = ["refit=no", "solver=exact"]


def test_each_value_is_the_run_that_it_says(tmp_path):
    federation = planted()
    found = sweep(federation, "lam=0.1,0.4", seeds=2, rounds=20, words=EXACT, out=tmp_path / "sweep")
    assert len(found.table) == 4
    for row in found.table.itertuples():
        method = ff.FPFC(lam=float(row.value), refit=False, work=Work(solver="exact"))
        by_hand = ff.fit(federation, method, rounds=20, seed=row.seed)
        assert row.test == pytest.approx(by_hand.score(), rel=1e-9)
        assert row.n_clusters == by_hand.n_clusters
    assert found.summary["value"].tolist() == ["0.1", "0.4"]
    assert found.numbers == [0.1, 0.4]
    saved = pd.read_csv(tmp_path / "sweep/sweep.csv")
    np.testing.assert_allclose(saved["test"], found.table["test"])
    axes = np.ravel(found.plot())
    assert [ax.get_ylabel() for ax in axes] == ["test rmse", "ARI"]
    np.testing.assert_allclose(axes[0].lines[0].get_ydata(), found.summary["test"])


def test_random_starts_are_on_the_same_data():
    """FPFC's convex problem has one answer; IFCA's depends on where it starts."""
    federation = planted("classification", m=6)
    words = ["fpfc.lam=0.6", "fpfc.refit=no", "n_models=2", "steps=3"]
    found = sweep(federation, "start=4", "fpfc,ifca", rounds=30, words=words)
    assert found.table.groupby("method")["seed"].apply(list).to_dict() == {"fpfc": [0, 1, 2, 3], "ifca": [0, 1, 2, 3]}
    starts = {r.models.tobytes() for (name, _), r in found.comparison.results.items() if name == "fpfc"}
    assert len(starts) == 4
    assert found.plot()[0][0].get_xlabel() == "4 random starts"


def test_words_with_commas_of_their_own():
    assert Over.read("steps=10,uneven(10),decay(9,0.9,5)").values == ("10", "uneven(10)", "decay(9,0.9,5)")
    found = sweep(planted(), "steps=2,uneven(4)", rounds=3, words=["lam=0.3", "refit=no"])
    assert found.numbers is None
    assert [label.get_text() for label in np.ravel(found.plot())[0].get_xticklabels()] == ["2", "uneven(4)"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lam", "--over takes key=value"),
        ("lam=", "--over takes key=value"),
        ("lam=0.1,,0.2", "--over takes key=value"),
        ("colour=red,blue", "--over takes a setting of the method"),
        ("lamda=1,2", "got 'lamda'; did you mean 'lam'?"),
        ("tol=0,1", "--over takes a setting of the method"),
        ("lam=0.1,0.1", "every value may be named once"),
        ("start=1", "the number of random starts"),
        ("start=zero,normal", "the number of random starts"),
        ("lam=0.1,x", "takes a number"),
        ("eps1=1,2", "eps1"),
        ("xi=1e-4,1e-3", "xi does not matter with lam=auto"),
        ("start=5", "start does not matter with lam=auto"),
    ],
)
def test_what_cannot_be_swept_over(text, words):
    with pytest.raises(FedfuseError, match=words):
        sweep(planted(), text)


def test_on_the_command_line(fedfuse):
    status, out, err = fedfuse(
        "sweep", "synthetic:3,3", "--over", "lam=0.1,0.6", "--set", "refit=no", "--rounds", "5", "--jobs", "1",
        "--out", "found", "--plot", "found.png",
    )  # fmt: skip
    assert status == 0, err
    assert "fpfc-lam=0.6" in out.replace("…", "") or "fpfc-lam" in out
    table = pd.read_csv("found/sweep.csv")
    assert table["value"].tolist() == [0.1, 0.6]


def test_random_starts_are_called_so(fedfuse):
    words = ["--over", "start=2", "--set", "lam=0.6", "--set", "refit=no", "--rounds", "5", "--out", "found"]
    out = fedfuse("sweep", "synthetic:3,3", *words)[1]
    assert "synthetic:3,3, mean ± population sd over 2 random starts" in out
    assert "arrays" not in out
    page = Path("found/report.html").read_text()
    assert "synthetic:3,3 · 2 random starts · comparison" in page
    assert "standard deviations over random starts" in page
    assert fedfuse("sweep", "synthetic:3,3", *words)[1] == out  # the same again is found again


def test_bad_sweeps_write_nothing(refused):
    assert "--over takes key=value" in refused("sweep", "synthetic:S1", "--over", "lam")
    assert "a picture must end in" in refused("sweep", "synthetic:S1", "--over", "lam=1,2", "--plot", "x.doc")
