"""Table files: what is told from the file, and what is refused."""

from __future__ import annotations

import gzip
import logging
import sys

import numpy as np
import pandas as pd
import pytest

from fedfuse.data import read_table
from fedfuse.data.readers import find_delimiter
from fedfuse.errors import FedfuseError
from support.tables import frame_with

GERMAN = "Straße;Größe;Umsatz;Plz;Datum\nNord;1,5;1.234,50;01067;31.12.2024\nSüd;2;-3,25;80331;01.01.2025\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16"])
@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_delimiter_decimal_comma_and_encoding_are_told_from_the_file(tmp_path, encoding, delimiter):
    (tmp_path / "t.csv").write_bytes(GERMAN.replace(";", delimiter).encode(encoding))
    frame = read_table(tmp_path / "t.csv")
    assert list(frame.columns) == ["Straße", "Größe", "Umsatz", "Plz", "Datum"]
    assert list(frame["Straße"]) == ["Nord", "Süd"]
    np.testing.assert_array_equal(frame[["Größe", "Umsatz"]], [[1.5, 1234.5], [2, -3.25]])
    assert frame["Datum"].tolist() == [pd.Timestamp("2024-12-31"), pd.Timestamp("2025-01-01")]


def test_an_encoding_that_was_assumed_is_said(tmp_path, caplog):
    (tmp_path / "t.csv").write_bytes("a,b\nü,1\n".encode("latin-1"))
    (tmp_path / "rare.csv").write_bytes(b"a,b\n\x81,1\n")  # A byte that cp1252 leaves undefined.
    assert read_table(tmp_path / "t.csv")["a"].tolist() == ["ü"]
    assert "t.csv is not UTF-8 text: read as cp1252" in caplog.text
    assert read_table(tmp_path / "rare.csv")["a"].tolist() == ["\x81"]


def test_commas_and_points(tmp_path, caplog):
    def read(text):
        (tmp_path / "t.csv").write_text(text)
        return read_table(tmp_path / "t.csv")

    assert read('a,b\n"1,234",1.5\n')["a"].tolist() == [1234]  # Between commas it is a thousand,
    assert read('a,b\n"1,234",1\n"2,5",3\n')["a"].tolist() == [1.234, 2.5]  # unless others tell.
    caplog.clear()
    assert read("a\tb\n1.5\tx, y\n2.5\tz\n")["a"].tolist() == [1.5, 2.5]
    # One value that is no number stays, for the error that names it.
    assert read("a;b\n1,5;1\n2,5;2\n>9;3\n").loc[:, "a"].tolist() == ["1,5", "2,5", ">9"]
    assert read("a;b\n1,5;1\n;2\n")["a"].isna().tolist() == [False, True]
    assert not caplog.text
    assert read("a;b\n1,5;2.5\n").to_numpy().tolist() == [[1.5, 2.5]]
    assert "numbers with commas and with points: both are taken as decimals" in caplog.text


def test_dates_of_a_file(tmp_path):
    (tmp_path / "t.csv").write_text("when,x\n2.1.2024,1\n,2\n31.12.2024 14:30,3\n")
    when = read_table(tmp_path / "t.csv")["when"]
    assert when[0] == pd.Timestamp("2024-01-02")
    assert when.isna().tolist() == [False, True, False]


def test_the_delimiter_is_the_one_that_fits_most_rows():
    assert find_delimiter("age, years;weight, kg;height, cm\n50;70,5;1,80\n") == (";", 0)
    assert find_delimiter('a,b\n"x;y\nz;w",1\n') == (",", 0)
    assert find_delimiter("a;b\n1;2\n3;", whole=False) == (";", 0)
    assert find_delimiter("") == (",", 0)
    assert find_delimiter('x,y\n"1",5,6\n"2",7,8\n') == (",", 0)  # R writes row names without a name.


def test_lines_before_the_table_are_left_out(tmp_path, caplog):
    table = "site , x\n a,1\nb ,2\n"
    (tmp_path / "t.csv").write_text("# made on Monday\n\n" + table)
    frame = read_table(tmp_path / "t.csv")
    assert frame.to_dict("list") == {"site": ["a", "b"], "x": [1, 2]}
    assert "t.csv: the table begins on line 3; the lines before it are skipped" in caplog.text
    pytest.importorskip("openpyxl")
    with pd.ExcelWriter(tmp_path / "t.xlsx") as book:
        pd.DataFrame({"note": ["read me"]}).to_excel(book, sheet_name="about", index=False)
        pd.DataFrame([["Report"]]).to_excel(book, sheet_name="data", index=False, header=False)
        frame_with().to_excel(book, sheet_name="data", index=False, startrow=2)
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.xlsx"), frame_with(), check_dtype=False)
    assert "sheet 'data' is read, the longest of 2" in caplog.text


def test_a_workbook(tmp_path, caplog):
    pytest.importorskip("openpyxl")
    frame = frame_with(when=pd.Timestamp("2024-03-31"), word="ü")
    with pd.ExcelWriter(tmp_path / "t.xlsx") as book:
        frame.to_excel(book, sheet_name="data", index=False)
        frame[:3].to_excel(book, sheet_name="more", index=False)
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.xlsx"), frame, check_dtype=False)
    assert "sheet 'data' is read, the longest of 2" in caplog.text
    pd.DataFrame([[1, 2]], columns=["a", "a"]).to_excel(tmp_path / "twice.xlsx", index=False)
    with pytest.raises(FedfuseError, match="are called 'a': rename or remove one"):
        read_table(tmp_path / "twice.xlsx")
    (tmp_path / "none.xlsx").write_bytes(b"nonsense")
    with pytest.raises(FedfuseError, match=r"cannot read .*none\.xlsx"):
        read_table(tmp_path / "none.xlsx")


@pytest.mark.parametrize(
    ("suffix", "package", "extra"), [("parquet", "pyarrow", "parquet"), ("xlsx", "openpyxl", "excel")]
)
def test_an_extra_that_is_missing_is_named(tmp_path, monkeypatch, suffix, package, extra):
    (tmp_path / f"t.{suffix}").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(FedfuseError, match=rf'needs {package}: pip install "fedfuse\[{extra}\]"'):
        read_table(tmp_path / f"t.{suffix}")


def test_files_that_cannot_be_read(tmp_path):
    def refused(name, content, words):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(FedfuseError, match=words) as caught:
            read_table(path)
        assert "\n" not in str(caught.value)

    refused("empty.csv", b"", "is empty")
    refused("blank.csv", b"\n\n", "is empty")
    refused("header.csv", b"a,b\n", "holds no rows")
    refused("ragged.csv", b"a,b\n1,2\n1,2,3\n", "cannot read .*ragged.csv': Expected 2 fields in line 3")
    refused("plain.csv.gz", b"a,b\n1,2\n", "cannot read .*plain.csv.gz")
    refused("cut.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 9999)[:-20], "cannot read .*cut.csv.gz")
    refused("zeros.csv", b"a,b\n1,\0\n", "is not text: it holds zero bytes")
    refused("table.ods", b"a,b\n1,2\n", r"must end in \.csv")
    with pytest.raises(FedfuseError, match="there is no file"):
        read_table(tmp_path / "nowhere.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(FedfuseError, match="is a directory; give a file"):
        read_table(tmp_path / "folder.csv")


def test_a_parquet_file_that_is_none(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(FedfuseError, match=r"cannot read .*t\.parquet"):
        read_table(tmp_path / "t.parquet")


def test_what_spreadsheets_and_pandas_add_is_taken_off(tmp_path, caplog):
    (tmp_path / "excel.csv").write_bytes("\ufeffsite,x\na,1\n".encode())
    assert list(read_table(tmp_path / "excel.csv").columns) == ["site", "x"]
    frame_with().to_csv(tmp_path / "index.csv")
    with caplog.at_level(logging.WARNING, "fedfuse"):
        assert list(read_table(tmp_path / "index.csv").columns) == ["site", "x", "y"]
    assert "numbers the rows: it is dropped" in caplog.text
