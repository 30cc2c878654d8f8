"""Numbers, dates and durations as people write them."""

from __future__ import annotations

import logging
from datetime import time

import numpy as np
import pandas as pd
import pytest

from fedfuse.data import federation_from_frame, read_table
from fedfuse.data.text_values import plain_table
from fedfuse.errors import FedfuseError
from support.tables import build, frame_with


def read(values, **options):
    frame = pd.DataFrame({"a": values}, dtype=object)
    found = plain_table(frame, **options)["a"]
    assert frame["a"].tolist() == list(values)
    return found


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (["1,176.38", "950.10"], [1176.38, 950.1]),
        (["100,050", "950"], [100050, 950]),
        (["1.176,38", "2,5"], [1176.38, 2.5]),
        (["51,300", "60,1"], [51.3, 60.1]),
        (["1.234.567", "950"], [1234567, 950]),
        (["1 234", "12\u00a0345\u00a0678", "5"], None),  # Two marks in one column, but both are spaces.
        (["12'345", "5"], [12345, 5]),
        (["$1,176.38", "-$3.10", "$-4"], [1176.38, -3.1, -4]),
        (["12,5 €", "1.000,00 €"], [12.5, 1000]),
        (["950 €", "1.250 €"], [950, 1250]),
        (["EUR 5", "EUR 6.5"], [5, 6.5]),
        (["(1,200)", "50.5"], [-1200, 50.5]),
        (["\u22123,5", "2,0"], [-3.5, 2]),
        (["31.2%", "2 %"], [31.2, 2]),
        (["12.345%", "1.5%"], [12.345, 1.5]),
        (["51.3 kg", "60 kg", ""], [51.3, 60, np.nan]),
        (["5mg", "10mg", "unknown", None], [5, 10, np.nan, np.nan]),
        (["1e5", "2,5"], [1e5, 2.5]),
    ],
)
def test_numbers_with_marks(text, numbers):
    numbers = [1234, 12345678, 5] if numbers is None else numbers
    np.testing.assert_array_equal(read(text).astype(float), numbers)


@pytest.mark.parametrize(
    "text",
    [
        ["12", "13"],  # made text on purpose
        ["1.5", "unknown"],
        ["12A", "13A"],
        ["1st", "2nd"],
        ["1.2.3", "1.2.4"],
        ["5 mg", "5 kg"],
        ["10-20", "20-30"],
        ["1,5", "2.5"],
        ["+49 30 123", "+49 40 456"],
        ["1,5", ">90"],
        ["?", "-"],
        ["1/5/2024", "2/6/2024"],  # May or January?
        ["31.2.2024"],
        ["13/1/2024", "1/13/2024"],
        [("1,5",), ("2,5",)],
    ],
)
def test_what_stays_text(text):
    assert read(text).tolist() == text


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        (["31.12.2024", "1.2.2024 14:30"], ["2024-12-31", "2024-02-01 14:30"]),
        (["1.5.2024", "2.6.2024"], ["2024-05-01", "2024-06-02"]),
        (["12/31/2024", "1/5/2024 2:30 PM"], ["2024-12-31", "2024-01-05 14:30"]),
        (["31/12/2024", "1-5-2024"], ["2024-12-31", "2024-05-01"]),
        (["13 Jan 2020", "2 February 2021"], ["2020-01-13", "2021-02-02"]),
        (["Jan 3, 2020", "unknown"], ["2020-01-03", "NaT"]),
        (["2020/1/3"], ["2020-01-03"]),
    ],
)
def test_dates(text, dates):
    assert read(text).tolist() == [pd.Timestamp(date) for date in dates]


def test_durations():
    hours = [4, 76.5, 0.25]
    assert read(["4:00", "3 days 04:30:00", "0:15:00"]).tolist() == [pd.Timedelta(hours=h) for h in hours]
    assert read([time(4), time(0, 15), None])[:2].tolist() == [pd.Timedelta(hours=h) for h in (4, 0.25)]


def test_numbers_of_a_file_beside_words_for_gaps(tmp_path, caplog):
    (tmp_path / "t.csv").write_text("a,b\n1.5,x\n?,unknown\nunknown,y\n2,z\n")
    frame = read_table(tmp_path / "t.csv")
    np.testing.assert_array_equal(frame["a"], [1.5, np.nan, np.nan, 2])
    assert frame["b"].tolist() == ["x", "unknown", "y", "z"]
    assert "column 'a': '?' in 2 rows is taken as missing" in caplog.text


def test_readings_are_said(caplog):
    read(["950", "1,250.5"])
    read(["31.12.2024"])
    read(["3 Jan 2024", "1/5/2024", "2/6/2024"])
    assert caplog.messages == [
        "column 'a': '1,250.5' is read as the number 1250.5",
        "column 'a': '1/5/2024' is ambiguous (day or month first?); write such dates as 2024-03-31",
    ]


def test_a_frame_with_such_columns(caplog):
    n = 120
    money = pd.Series(np.arange(n) % 40 * 100)
    frame = frame_with(
        price=money.map("${:,}".format), share=money.map("{} %".format), site=["5 km", "10 km"] * (n // 2)
    )
    with caplog.at_level(logging.WARNING):
        fed = build(frame)
    assert fed.names == ("5 km", "10 km")
    assert fed.features == ("x", "price", "share")
    as_numbers = build(frame.assign(price=money, share=money))
    np.testing.assert_array_equal(fed.X, as_numbers.X)
    one = fed.encoder.transform(frame[:1].assign(price="1,100"))
    np.testing.assert_array_equal(one, as_numbers.encoder.transform(frame[:1].assign(price=1100, share=money[0])))


def test_levels_stay_as_they_were_learned():
    frame = frame_with(dose=pd.Categorical(["5 mg", "10 mg", "20 mg"] * 40))
    encoder = build(frame).encoder
    assert encoder.features[1:] == ("dose=5 mg", "dose=10 mg", "dose=20 mg")
    np.testing.assert_array_equal(encoder.transform(frame.astype({"dose": object})), encoder.transform(frame))


def test_a_word_among_numbers_is_no_category():
    numbers = pd.Series(np.arange(120) % 50).astype(object)
    numbers[3] = ">90"
    with pytest.raises(FedfuseError, match="'age' looks like numbers but holds text such as '>90'"):
        federation_from_frame(frame_with(age=numbers), device="site", target="y")
    codes = numbers.where(numbers.index % 5 > 0, "A12")
    assert build(frame_with(age=codes)).features == ("x", "age=other")
