"""The paper's numbers are what they were printed as, and what follows from them follows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedfuse.paper import claims, reproduction_page, runner
from fedfuse.paper.items import items
from fedfuse.paper.paper_tables import ranks, standing
from fedfuse.paper.setup import PAPER, PRINTED, SCALES, PaperSetup
from fedfuse.studies.comparison import NOTHING
from fedfuse.studies.jobs import Watcher

ROOT = Path(__file__).parents[2]
# sums over the columns of each table: a digit that was mistyped shows
SUMS: dict[str, dict[str, float]] = {
    "table1": {
        "syn_acc": 649.95, "syn_num": 86.0, "syn_ari": 2.81, "hbf_rmse": 42.83, "hbf_num": 8.66, "hbf_ari": 2.97,
    },
    "tableE1": {
        "acc": 679.14, "acc_sd": 0.45, "num": 67.34, "num_sd": 25.4, "ari": 3.27, "ari_sd": 0.65,
    },
    "tableE2": {
        "acc": 705.27, "acc_sd": 0.38, "num": 17.0, "num_sd": 2.52, "ari": 3.85, "ari_sd": 0.57,
    },
    "tableE3": {
        "acc": 818.46, "acc_sd": 0.23, "num": 5.0, "num_sd": 0.0, "ari": 5.0, "ari_sd": 0.0,
    },
    "tableE4": {
        "acc": 552.58, "acc_sd": 0.22, "num": 216.0, "num_sd": 3.3, "ari": 3.0, "ari_sd": 0.0,
    },
    "table3": {
        "syn_acc": 549.12, "mnist_acc": 809.61, "fmnist_acc": 662.02, "syn_sd": 1.83, "rank": 45.0,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_columns_add_up(name):
    table = items()[name].experiment.printed()
    assert list(table.index) == [PRINTED[label] for label in PAPER]
    for column, total in SUMS[name].items():
        assert table[column].sum() == pytest.approx(total, abs=1e-6), column


def test_printed_ranks_follow_from_the_accuracies():
    table = items()["table3"].experiment.printed()
    again = ranks(table[["syn_acc", "mnist_acc", "fmnist_acc"]])
    np.testing.assert_allclose(again, table["rank"], atol=0.0051)


# m, active, rounds, d of the two data sets; IFCA and CFL have rounds of their own
COSTS = {
    "syn": {"m": 100, "a": 30, "K": 2000, "d": 610, "L": 4, "ifca": 20000, "cfl": 2000, "once": 174_540},
    "hbf": {"m": 8, "a": 2, "K": 200, "d": 15, "L": 2, "ifca": 3000, "cfl": 1000, "once": 8 * 14 * 3},
}


@pytest.mark.parametrize("data", COSTS)
def test_printed_costs_follow_from_formulas(data):
    c = COSTS[data]
    printed = items()["table1"].experiment.printed()[f"{data}_cost"]
    plain = c["m"] * c["d"] + c["K"] * c["a"] * 2 * c["d"]
    formulas = dict.fromkeys(("FedAvg", "LG", "Per-FedAvg", "FPFC-l1", "FPFC"), plain)
    formulas["LOCAL"] = 0
    formulas["IFCA"] = c["ifca"] * c["a"] * (c["L"] * c["d"] + c["d"] + c["L"])
    formulas["CFL"] = c["m"] * c["d"] + c["cfl"] * (c["a"] * c["d"] + c["m"] * c["d"])
    formulas["PACFL"] = c["once"] + c["K"] * c["a"] * 2 * c["d"]
    for name, floats in formulas.items():
        assert printed[name] == pytest.approx(floats, rel=0.004), name


@pytest.mark.parametrize(("data", "rounds"), [("syn", "synthetic:S1"), ("hbf", "housing-bodyfat")])
def test_the_full_size_is_the_papers(data, rounds, tmp_path):
    c, full = COSTS[data], PaperSetup("full", tmp_path)
    assert SCALES["full"].seeds == (0, 1, 2)
    for label in PAPER:
        method, settings = full.entry(rounds, label)
        if label == "local":
            continue
        assert settings["rounds"] == c.get(label, c["K"]), label
        assert settings["participation"] == 0.3
        assert settings["tol"] == 0
        assert (method.work.steps, method.work.lr) == ((10, 0.1) if data == "syn" else (20, 0.01))
        assert method.start == "normal"
    assert full.entry(rounds, "fpfc")[0].lam == (0.6 if data == "syn" else 4.0)
    assert full.entry(rounds, "fusion-tree")[0].name == "fusion-tree"


def test_every_reason_is_named_by_an_item():
    named = {heading for item in items().values() for heading in item.why}
    assert named == set(reproduction_page.reasons())
    assert all(text.endswith(".") for text in reproduction_page.reasons().values())


def test_notes_say_who_is_best():
    paper = items()["tableE2"].experiment.printed_measures("synthetic:S3")
    ours = paper[["printed_test"]].rename(columns={"printed_test": "test"})
    ours.loc["fusion-tree", "test"], ours.loc["oracle", "test"], ours["ari"] = 0.92, 0.93, 1.0
    first = standing(ours, paper, "accuracy")
    assert first == "fusion-tree: 92.00, the best of all that do not know the groups; ARI 1.00"
    ours.loc["fusion-tree", "test"] = 0.91
    assert "0.64 points behind PACFL" in standing(ours, paper, "accuracy")


def test_variants_stand_beside_the_printed_row_of_their_method(quick):
    """Fields that differ from the tables', printed scores of LG and FPFC on S4, and the lambda that was chosen."""
    item, titles = items()["tableE3"], ("LG, own last models, 200 rounds", "FPFC")
    runs = item.experiment.runs(quick, "synthetic:S4")
    lg, fpfc, auto = (runs[title, 0].method for title in (titles[0], "fpfc", "FPFC without a lambda"))
    assert (lg.evaluate, fpfc.lam, fpfc.nu, auto.lam) == ("local", "separate", None, "auto")
    assert runner.run([item], quick, Watcher(), jobs=1) == {}
    table = item.experiment.findings(quick).tables[quick.words("synthetic:S4")].set_index("method")
    assert table.loc[list(titles), "printed"].tolist() == ["87.90 ± 4.00", "90.99 ± 2.00"]
    assert table.loc[titles[0], ["lambda", "gap in theta"]].tolist() == [NOTHING, NOTHING]
    assert float(table.loc["FPFC", "lambda"]) == runs["fpfc", 0].result().lam


# -- claims

HEAD = "| method | accuracy % | printed | clusters | printed | ARI | printed |\n" + "| --- " * 7 + "|"


def _claimed(method, *rows):
    """What the claim about a row of table E.2 comes to, where the table has these rows."""
    tables = claims.read_tables("\n".join(["synthetic:S3:", "", HEAD, *rows]))
    (claim,) = (c for c in claims.claims() if c.place == "Table E.2, synthetic:S3" and c.words.startswith(f"{method}:"))
    assert claim.line({})["here"] == "not run yet"
    return claim.line({"tableE2": ("full", tables)})


@pytest.mark.parametrize(
    ("ours", "holds"),
    [
        ("88.07 ± 9.00 | 90.06 ± 1.00 | 2 | 2 | 1.00 ± 0.00", True),
        ("88.05 ± 1.00 | 90.06 ± 1.00 | 2 | 2 | 1.00 ± 0.00", False),  # more than two printed deviations
        ("90.06 ± 1.00 | 90.06 ± 1.00 | 2.33 ± 0.47 | 2 | 1.00 ± 0.00", False),
        ("90.06 ± 1.00 | 90.06 ± 1.00 | 2 | 2 | 1.00 ± 0.01", False),
    ],
)
def test_a_row_is_as_printed_or_not(ours, holds):
    line = _claimed("FPFC", f"| FPFC | {ours} | 1.00 ± 0.00 |")
    assert line["the paper"] == "FPFC: 90.06 ± 1.00, clusters 2, ARI 1.00 ± 0.00"
    assert line["holds"].partition(":")[0] == ("yes" if holds else "no")
    other = _claimed(
        "FPFC", "| FPFC | 1 | 90.06 ± 1.00 | 9 | 2 | 0 | 1.00 ± 0.00 |", f"| FPFC, x | {ours} | 1.00 ± 0.00 |"
    )
    assert other["holds"].startswith("yes, with x" if holds else "no")


def test_every_claim_can_be_read_off_the_page():
    """None of what is on the page of the docs raises, and quick items are said to be quick."""
    path = ROOT / "docs" / "reproduction.md"
    seen = {name: (size, claims.read_tables(text)) for name, (size, text) in reproduction_page.written(path).items()}
    lines = [claim.line(seen) for claim in claims.claims()]
    assert len(lines) > 30
    for claim, line in zip(claims.claims(), lines, strict=True):
        assert line["holds"]
        assert ("quick" in line["here"]) == any(seen[item][0] == "quick" for item in claim.items)
    assert claims.claims_table(seen) in path.read_text(encoding="utf-8")
