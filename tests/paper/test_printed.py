"""The paper's numbers are what they were printed as, and what follows from them follows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedfuse.paper import reasons as reasons_
from fedfuse.paper import runner
from fedfuse.paper.items import items
from fedfuse.paper.paper_tables import group_differences, ranks, score_differences, standing
from fedfuse.paper.setup import PAPER, PRINTED, SCALES, PaperSetup
from fedfuse.studies.comparison import NOTHING
from fedfuse.studies.jobs import Watcher

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


def test_other_clusters_than_printed_are_said():
    columns = ["num", "num_sd", "ari"]
    rows = {"lg-fedavg": [np.nan] * 3, "cfl": [6.667, 3.77, 0.953], "fpfc-l1": [2, 0, 1.0], "fusion-tree": [4, 0, 1.0]}
    paper = {"lg-fedavg": [np.nan] * 3, "cfl": [42, 4.55, 0.28], "fpfc-l1": [2, 0, 1.0]}
    ours = pd.DataFrame.from_dict(rows, "index", columns=columns)
    theirs = pd.DataFrame.from_dict(paper, "index", columns=[f"printed_{name}" for name in columns])
    said = group_differences(ours, theirs)
    assert said == ["clusters or ARI differ from print: CFL (6.67 clusters, printed 42.00; ARI 0.95, printed 0.28)"]
    assert group_differences(ours.drop(index="cfl"), theirs) == []


def test_reasons_are_in_whole_words():
    reasons = [text for name, text in vars(reasons_).items() if name.isupper()]
    assert reasons
    assert not [text for text in reasons if "- " in text.replace(" - ", "") or "  " in text]


def test_notes_say_who_is_best_and_what_is_better_than_printed():
    paper = items()["tableE2"].experiment.printed_measures("synthetic:S3")
    ours = paper[["printed_test"]].rename(columns={"printed_test": "test"})
    ours.loc["fusion-tree", "test"], ours.loc["oracle", "test"], ours["ari"] = 0.92, 0.93, 1.0
    ours.loc["fedavg", "test"] += 0.1
    first = standing(ours, paper, "accuracy")
    assert first == "fusion-tree: 92.00, the best of all that do not know the groups; ARI 1.00"
    assert score_differences(ours, paper, "accuracy") == ["better here than printed, in points: FedAvg (10.00)"]
    ours.loc["fusion-tree", "test"] = 0.91
    assert "0.64 points behind PACFL" in standing(ours, paper, "accuracy")


def test_variants_stand_beside_the_printed_row_of_their_method(quick):
    """Fields that differ from the tables', printed scores of LG and FPFC on S4, and the lambda that was chosen."""
    item, titles = (
        items()["tableE3-variants"],
        ("LG, own last models, 200 rounds", "FPFC, lambda on validation (separate)"),
    )
    runs = item.experiment.runs(quick, "synthetic:S4")
    lg, fpfc = (runs[title, 0].method for title in titles)
    assert (lg.evaluate, fpfc.lam, fpfc.nu) == ("local", "separate", None)
    assert runner.run([item], quick, Watcher(), jobs=1) == {}
    table = item.experiment.findings(quick).tables[quick.words("synthetic:S4")].set_index("method")
    assert table.loc[list(titles), "printed"].tolist() == ["87.90 ± 4.00", "90.99 ± 2.00"]
    assert table.loc[titles[0], ["lambda", "gap in theta"]].tolist() == [NOTHING, NOTHING]
    assert float(table.loc[titles[1], "lambda"]) == runs[titles[1], 0].result().lam
