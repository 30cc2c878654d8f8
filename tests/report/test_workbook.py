"""The Excel workbook has the report's tables, as numbers, and no formulas."""

import shutil

import numpy as np
import pandas as pd
import pytest

from fedfuse.results.result import Result


def test_sheets_have_the_tables_of_the_report(table_run, fedfuse, tmp_path):
    pytest.importorskip("openpyxl")
    path, file = table_run[0], tmp_path / "tables.xlsx"
    status, out, _ = fedfuse("export", path, "--to", file)
    assert (status, out.strip()) == (0, str(file))
    sheets, result = pd.read_excel(file, sheet_name=None), Result.load(path)
    assert list(sheets) == ["findings", "groups", "devices", "contrasts", "coefficients", "intervals", "history"]
    assert sheets["groups"]["group"].tolist() == [1, 2]
    assert sheets["groups"]["devices"].tolist() == [6, 4]
    alone = result.compared["alone"]
    np.testing.assert_allclose(sheets["devices"]["alone"], alone)
    np.testing.assert_allclose(sheets["groups"]["alone"][0], alone[result.group_numbers == 1].mean())
    np.testing.assert_allclose(sheets["intervals"]["low"], result.intervals["low"])
    assert "2 groups" in sheets["findings"]["findings"][0]


def test_names_are_no_formulas(table_run, fedfuse, tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    shutil.copytree(table_run[0], tmp_path / "run")
    profile = tmp_path / "run" / "profile.json"
    profile.write_text(profile.read_text().replace("site 7", "=1+1"))
    assert fedfuse("export", tmp_path / "run", "--to", tmp_path / "tables.xlsx")[0] == 0
    cells = [cell for row in openpyxl.load_workbook(tmp_path / "tables.xlsx")["devices"].iter_rows() for cell in row]
    assert [cell.data_type for cell in cells if cell.value == "=1+1"] == ["s"]


def test_without_the_extra_it_says_what_to_install(table_run, fedfuse, tmp_path, monkeypatch):
    monkeypatch.setattr("fedfuse.report.workbook.find_spec", lambda name: None)
    status, _, err = fedfuse("export", table_run[0], "--to", tmp_path / "tables.xlsx")
    assert status == 2
    assert "pip install 'fedfuse[excel]'" in err
