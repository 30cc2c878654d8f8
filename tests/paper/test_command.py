"""``fedfuse paper`` as a person uses it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from fedfuse.paper import reproduction_page, runner, setup
from fedfuse.paper.items import chosen, items
from fedfuse.paper.setup import PaperSetup

NAMES = (
    "table1 table2 table3 tableE1 tableE2 tableE3 tableE4 figure1 distances mnist fmnist cost "
    "attacks-synthetic attacks-mnist attacks-fmnist async strategies starts lambda epochs xi"
)


def test_the_list_has_everything_with_a_time(fedfuse):
    assert list(items()) == NAMES.split()
    status, out, err = fedfuse("paper", "list")
    assert (status, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert set(items()) <= set(lines)
    assert not Path("runs").exists()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_list_can_be_read_in_a_terminal(fedfuse, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = fedfuse("paper", "list")[1].splitlines()
    assert max(map(len, lines[:20])) <= columns
    assert "Table 1: all methods on S1 and on" in lines[1]
    assert "…" not in "".join(lines)


def test_capitals_do_not_matter_and_nothing_is_done_twice():
    assert [item.name for item in chosen(["tablee1", "TABLE1", "tableE1"])] == ["tableE1", "table1"]


def test_to_choose_among_more_models_takes_longer(tmp_path):
    place = PaperSetup("full", tmp_path)
    one, fifty = (place.trial(name, "ifca", *place.entry(name, "ifca")) for name in ("synthetic:S4", "synthetic:S5"))
    assert runner.effort(fifty) > 5 * runner.effort(one)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table9"], "the paper has no 'table9'; did you mean 'table"),
        (["all", "table1"], "all cannot be combined with other names, got all table1"),
        (["list", "table1"], "list cannot be combined"),
        (["table1", "--quick", "--middle"], "--quick and --middle exclude each other"),
        (["table1", "--jobs", "0"], "Invalid value for '--jobs': 0 is not in the range x>=1"),
        ([], "Missing argument"),
    ],
)
def test_bad_words(refused, words, said):
    assert said in refused("paper", *words)


def test_missing_files_are_told_before_anything_is_run(refused, monkeypatch, here):
    monkeypatch.setenv("FEDFUSE_DATA", str(here / "nowhere"))
    assert "mnist needs the file" in refused("paper", "mnist")
    assert "housing-bodyfat needs the file" in refused("paper", "table1", "--middle")


def test_a_table(fedfuse, tiny, monkeypatch):
    monkeypatch.setattr(setup, "missing_files", lambda name, data_dir: [f"{name}.csv"] if name[0] == "h" else [])
    status, out, err = fedfuse("paper", "table1", "--quick", "--jobs", "1", "--out", "p")
    assert status == 0, err
    assert "the files of housing-bodyfat are not here (housing-bodyfat.csv, …): it is left out" in " ".join(err.split())
    rows = [line.split()[0] for line in out.splitlines() if line.startswith(("LOCAL", "IFCA", "CFL", "FPFC", "fusion"))]
    assert rows[:5] == ["LOCAL", "IFCA", "CFL", "FPFC-l1", "FPFC"]
    assert out.count("\nfusion-tree ") == 1
    assert "89.46 ± 4.00" in out  # the printed one
    assert out.endswith("files: p/quick/table1\n\n")
    numbers = pd.read_csv("p/quick/table1/synthetic-S1.csv").set_index("method")
    assert numbers.loc["fpfc", "printed_test"] == pytest.approx(0.8946)
    assert "left out" in Path("p/quick/table1/table1.md").read_text()
    again = fedfuse("paper", "table1", "--quick", "--jobs", "1", "--out", "p")
    assert (again[0], again[1]) == (0, out)


def test_the_page(fedfuse, tiny, monkeypatch):
    monkeypatch.setattr(setup, "missing_files", lambda name, data_dir: [name] if name[0] != "s" else [])
    monkeypatch.setattr(PaperSetup, "substitutes", lambda self, name: False)
    assert fedfuse("paper", "tableE4", "figure1", "--quick", "--jobs", "1")[0] == 0
    status, out, _ = fedfuse("paper", "page")
    assert status == 0
    assert out.startswith("page: docs/reproduction.md\nnot run yet: table1, ")
    page = Path("docs/reproduction.md").read_text()
    assert "## Table E.4: all methods on S5" in page
    rows = items()["tableE4"].experiment.rows["synthetic:S5"]
    assert f"`fedfuse paper tableE4 --quick`, {len(rows) - 1} runs, " in page  # two differ by rounds in full size only
    claims = page.partition("## Claims")[2].partition("## Items")[0]
    # the tiny data have another name
    assert "| Table E.4, synthetic:S5 | FPFC: 80.27 ± 2.00, clusters 50, ARI 1.00 ± 0.00 | not run yet | — |" in claims
    assert (
        "| Figure 1 | SCAD has the two groups from lambda 0.4 on, l1 has one group at 0.08 | SCAD has two groups at"
        in claims
    )
    assert "| Table 1, housing-bodyfat | best score: PACFL | not run yet | — |" in claims
    assert "81.83 ± 2.00" in page
    assert "![solution paths" in page
    assert Path("docs/reproduction/figure1.svg").stat().st_size > 10_000
    assert "\nfedfuse paper table1\n" in page.partition("## Not run yet")[2]
    before, picture = page, Path("docs/reproduction/figure1.svg").read_bytes()
    fedfuse("paper", "page")
    assert Path("docs/reproduction.md").read_text() == before
    assert Path("docs/reproduction/figure1.svg").read_bytes() == picture


def test_the_page_keeps_what_others_have_run(fedfuse, tiny, monkeypatch):
    """On a machine without those runs; and a smaller size does not take the place of a larger one."""
    assert fedfuse("paper", "tableE4", "--quick", "--jobs", "1")[0] == 0
    fedfuse("paper", "page")
    path = Path("docs/reproduction.md")
    quick = path.read_text()
    shutil.move("runs", "elsewhere")
    fedfuse("paper", "page")
    assert path.read_text() == quick
    larger = quick.replace("Size: quick.", "Size: middle.").replace("81.83", "99.99")
    path.write_text(larger)
    shutil.move("elsewhere", "runs")
    fedfuse("paper", "page")
    assert "99.99" in path.read_text()
    path.write_text(quick.replace("81.83", "99.99"))  # as large: the newer one
    fedfuse("paper", "page")
    assert "99.99" not in path.read_text()


def test_what_is_kept_has_the_reasons_of_today(here):
    """Of a page without its runs: links to its reasons, and a list with links."""
    item = items()["tableE2"]
    row = "| FPFC | 89.64 ± 1.83 | 90.06 ± 1.00 | 3 | 2 | 0.90 ± 0.00 | 1.00 ± 0.00 | 7e7 | 2,000 | 41.5 |"
    head = "| method | accuracy % | printed | clusters | printed | ARI | printed | floats sent | rounds | seconds |"
    table = f"{head}\n| --- |{' ---: |' * 9}\n{row}\n"
    old = "- synthetic:S3: FPFC auto: 91.82\n\nWhy ours may differ: [An old reason](#an-old-reason).\n"
    title = f"## {item.where}: {item.title}"
    path = here / "page.md"
    end = "`fedfuse paper tableE2`, 33 runs. Size: full.\n"
    path.write_text(f"# Page\n\n{title}\n\nsynthetic:S3:\n\n{table}\n{old}\n{end}")
    for _ in range(2):  # the second time nothing is left to do
        reproduction_page.write_page(path, here / "none")
        text = path.read_text()
        assert row in text
        assert "old reason" not in text
        assert text.count("Why ours may differ: [Choice of lambda](#choice-of-lambda), ") == 1
        assert text.count("\n### Choice of lambda\n") == 1
        assert f"| [Table E.2](#table-e2-all-methods-on-s3-two-groups-of-50-devices): {item.title} | full |" in text
        assert text.index("| item | size |") < text.index(title)


def test_rows_that_are_done_take_their_place_in_a_table_of_others(fedfuse, tiny):
    assert fedfuse("paper", "tableE4", "--quick", "--jobs", "1")[0] == 0
    fedfuse("paper", "page")
    path, place = Path("docs/reproduction.md"), PaperSetup("quick", runner.cache(Path("runs/paper")))
    whole = path.read_text()
    (row,) = (line for line in whole.splitlines() if line.startswith("| FedAvg |"))
    path.write_text(whole.replace(row + "\n", "").replace("| LOCAL |", "| LOCAL | x", 1))
    shutil.rmtree(items()["tableE4"].experiment.runs(place, "synthetic:S5")["oracle", 0].place)
    fedfuse("paper", "page")
    # A note that compares rows goes: it may not hold beside new ones.
    notes = re.compile(r"^- synthetic:1,1,1,1.*: .*\n\n", re.MULTILINE)
    assert notes.search(whole)
    assert path.read_text() == notes.sub("", whole)


def test_how_long_is_left(quick, monkeypatch, capsys):
    from rich.console import Console

    from fedfuse.report import terminal
    from fedfuse.studies.jobs import DONE

    trials = items()["tableE4"].experiment.trials(quick)[:4]
    clock = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    watcher = terminal.ComparisonBars(Console(stderr=True), lambda trial: 10.0)
    watcher.begin(trials)
    clock[0] = 90.0
    watcher.look([DONE, 0.5, 0.0, 0.0])  # 1.5 of 4 in 90 seconds: 150 more
    watcher.close()
    assert capsys.readouterr().err == "runs: 1 of 4, about 2 min left\n"
