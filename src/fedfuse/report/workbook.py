"""Excel workbook of the tables of a run: what the report shows, a sheet each."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO
from os import PathLike
from pathlib import Path

import pandas as pd

from fedfuse.errors import FedfuseError
from fedfuse.report.explanations import SHORT, headline, supporting
from fedfuse.report.run_page import device_scores
from fedfuse.results.result import Result
from fedfuse.training.evaluation import Baselines
from fedfuse.utils.files import atomic_write, read_csv


def write_workbook(directory: str | PathLike[str], path: str | PathLike[str]) -> Path:
    """Write the tables of a finished run to an ``.xlsx`` file."""
    if find_spec("openpyxl") is None:
        raise FedfuseError("workbooks need the package openpyxl: pip install 'fedfuse[excel]'")
    file, whole = Path(path), BytesIO()
    with pd.ExcelWriter(whole, engine="openpyxl") as book:
        for name, table in tables(Path(directory)).items():
            table.to_excel(book, sheet_name=name, index=False, freeze_panes=(1, 0))
            for cell in (cell for row in book.sheets[name].iter_rows() for cell in row if cell.data_type == "f"):
                cell.data_type = "s"  # A name that begins with "=" is text, and no formula.
    with atomic_write(file) as out:
        out.write(whole.getvalue())
    return file


def tables(directory: Path) -> dict[str, pd.DataFrame]:
    """Return the findings in words, the groups, the devices, and the tables of the run's directory."""
    result, baselines = Result.load(directory), Baselines.load(directory)
    known = baselines.scores if baselines else {}
    scores = {SHORT[kind]: values for kind, values in device_scores(result, known).items() if kind != "groups"}
    devices = result.devices().assign(**scores)
    means = devices.groupby("group")[["test", *scores]].mean()
    sizes = devices.groupby("group").agg(devices=("device", "size"), rows=("rows", "sum"))
    files = {name: directory / f"{name}.csv" for name in ("contrasts", "coefficients", "intervals", "history")}
    found = {
        "findings": pd.DataFrame({"findings": [headline(result), *supporting(result, known)]}),
        "groups": sizes.join(means).reset_index(),
        "devices": devices,
        **{name: read_csv(file) for name, file in files.items() if file.exists()},
    }
    for table in found.values():
        if "cluster" in table:  # One number for a group: that of the report.
            numbers = table.pop("cluster").map(result.cluster_numbers)
            if "group" not in table:
                table.insert(0, "group", numbers)
    return found
