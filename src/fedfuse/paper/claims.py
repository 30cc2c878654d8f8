"""What the paper claims, a line for each: whether it holds here, by the tables that stand on the page.

The sections of the page are read, not the runs: so those that others have run count too, and no number is typed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from fedfuse.paper.experiment import both, count, markdown
from fedfuse.paper.items import FASHION, HOUSING, ITEMS, MNIST, S1
from fedfuse.paper.paper_tables import MethodsTable
from fedfuse.paper.setup import PAPER, PRINTED

Tables: TypeAlias = dict[str, pd.DataFrame]  # of texts, by title
DEVIATIONS = 2.0  # Printed standard deviations within which a score is as printed.
CLOSE_POINTS = 1.0  # Accuracies that differ by no more are about the same.
PEAK_MARGIN = 0.101  # From the printed lambda of the best score.
PAPERS = [PRINTED[label] for label in PAPER]
OTHERS = [name for name in PAPERS if not name.startswith("FPFC")]


class Answer(NamedTuple):
    """What is seen here, and whether that is what the paper says; a text says more than yes and no."""

    here: str
    holds: bool | str


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    ``check`` gets a table of each item: that of the data set, or the only one. ``why`` stands where it does not hold.
    """

    place: str
    words: str
    items: tuple[str, ...]
    check: Callable[..., Answer]
    why: str = ""
    data: str = ""

    def line(self, sections: Mapping[str, tuple[str, Tables]]) -> dict[str, str]:
        """Return the claim as a row; ``sections`` has size and tables of the items that are on the page."""
        try:
            here, holds = self.check(*(self._table(sections[item][1]) for item in self.items))
        except LookupError:  # An item is not on the page, or was run without these data.
            here, holds = "not run yet", "—"
        else:
            small = sorted({sections[item][0] for item in self.items} - {"full"})
            here += f" ({', '.join(small)})" if small else ""
        if not isinstance(holds, str):
            holds = "yes" if holds else f"no: {self.why}" if self.why else "no"
        return {"place": self.place, "the paper": self.words, "here": here, "holds": holds}

    def _table(self, tables: Tables) -> pd.DataFrame:
        found = [
            table for title, table in tables.items() if re.match(rf"{self.data}($|, )" if self.data else "", title)
        ]
        table: pd.DataFrame = found[0].set_index(found[0].columns[0])
        return table


def claims_table(sections: Mapping[str, tuple[str, Tables]]) -> str:
    """Return all claims in Markdown."""
    return markdown(pd.DataFrame([claim.line(sections) for claim in claims()]), left=True)


def read_tables(section: str) -> Tables:
    r"""Return the tables of a section by title; headings that occur again have spaces after them.

    >>> read_tables("S1:\n\n| a | b | b |\n| --- | ---: | ---: |\n| x | 1 | 2 |\n")["S1"].to_dict("list")
    {'a': ['x'], 'b': ['1'], 'b ': ['2']}
    """
    found = {}
    for title, head, body in re.findall(r"^(.*):\n\n\|(.*)\|\n\|[-:| ]+\|\n((?:\|.*\|\n?)+)", section, re.M):
        names = list[str]()
        for name in map(str.strip, head.split("|")):
            names.append(name + " " * sum(other.strip() == name for other in names))
        rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in body.splitlines()]
        found[title] = pd.DataFrame(rows, columns=names)
    return found


def claims() -> Iterator[Claim]:
    """Yield the claims: rows of tables, then what the text says."""
    for item in ITEMS:
        if isinstance(item.experiment, MethodsTable):
            for name in item.experiment.data:
                yield from _claims_of_table(item.where, item.name, name, item.experiment.printed_measures(name))
    yield from TEXT


def number(cell: str) -> float:
    """Return the number that a cell begins with; nan where it has none."""
    found = re.match(r"-?[\d.,]+(e\d+)?", cell)
    return float(found[0].replace(",", "")) if found else np.nan


def spread(cell: str) -> float:
    """Return what stands behind ±; 0 where nothing does."""
    return number(cell.partition("± ")[2]) if "±" in cell else 0.0


# -- rows of tables


def _claims_of_table(where: str, item: str, name: str, printed: pd.DataFrame) -> Iterator[Claim]:
    less = name == HOUSING  # An error, in its own unit.
    claim = partial(Claim, f"{where}, {name}", items=(item,), data=name)
    for method in ("fpfc-l1", "fpfc"):
        row, scale = printed.loc[method].rename(lambda key: key.removeprefix("printed_")), 1 if less else 100
        words = f"{PRINTED[method]}: {both(scale * row['test'], scale * row['test_sd'])}, clusters "
        words += f"{count(row['num'], row['num_sd'])}, ARI {both(row['ari'], row['ari_sd'])}"
        yield claim(words, check=partial(_row, PRINTED[method]), why="the step that reads groups is not published")
    order = [PRINTED[str(label)] for label in printed["printed_test"].sort_values(ascending=less).index]
    why = _TUNING if name == S1 else _CLOSE
    for n in (1, len(order)) if name == S1 else (1,):
        words = "best score: " if n == 1 else "order of scores: "
        yield claim(words + " > ".join(order[:n]), check=partial(_order, order[:n], less), why=why)
    yield claim("the other methods' scores", check=_others, why=_NO_CODE if less else _LOCAL_WORK)
    if "printed_cost" in printed:
        yield claim("floats sent by every method", check=_cost)


def _settings(table: pd.DataFrame, method: str) -> list[str]:
    """Return the titles of a method's rows, first that of the paper's setting."""
    titles = [title for title in table.index if title == method or title.startswith(f"{method}, ")]
    return sorted(titles, key=lambda title: title != method)


def _near(row: pd.Series[str]) -> bool:
    return abs(number(row.iloc[0]) - number(row["printed"])) <= DEVIATIONS * spread(row["printed"])


def _as_printed(row: pd.Series[str]) -> bool:
    """Whether the score is near the printed one, and clusters and ARI are the printed ones if these have no spread."""
    pairs = ((row["clusters"], row["printed "]), (row["ARI"], row["printed  "]))
    fixed = [(ours, theirs) for ours, theirs in pairs if spread(theirs) == 0]
    return _near(row) and all(number(ours) == number(theirs) and spread(ours) == 0 for ours, theirs in fixed)


def _row(method: str, table: pd.DataFrame) -> Answer:
    """Compare the row of the paper's setting; if it is not as printed, name a setting that is."""
    titles = _settings(table, method)
    good = next((title for title in titles if _as_printed(table.loc[title])), titles[0])
    row = table.loc[good]
    here, holds = f"{row.iloc[0]}, clusters {row['clusters']}, ARI {row['ARI']}", _as_printed(row)
    return Answer(here, f"yes, with {good.removeprefix(f'{method}, ')}" if holds and good != method else holds)


def _order(printed: list[str], less: bool, table: pd.DataFrame) -> Answer:
    scores = pd.Series({name: number(table.loc[_settings(table, name)[0]].iloc[0]) for name in PAPERS})
    ours = list(scores.sort_values(ascending=less, kind="stable").index[: len(printed)])
    return Answer(" > ".join(map(str, ours)), ours == printed)


def _others(table: pd.DataFrame) -> Answer:
    """Compare the scores of the other methods; one that is not near may be so with another setting."""
    far = {name: [t for t in _settings(table, name)[1:] if _near(table.loc[t])] for name in OTHERS}
    far = {name: titles for name, titles in far.items() if not _near(table.loc[name])}
    here = f"{len(OTHERS) - len(far)} of {len(OTHERS)} within two printed deviations"
    here += f"; not {', '.join(far)}" if far else ""
    if far and all(far.values()):
        return Answer(here, f"yes, with {', '.join(titles[0] for titles in far.values())}")
    return Answer(here, not far)


def _cost(table: pd.DataFrame) -> Answer:
    ratio = table.loc[OTHERS, "floats sent"].map(number) / table.loc[OTHERS, "printed   "].map(number)
    far = (ratio - 1).abs().max()  # LOCAL sends nothing: nan.
    return Answer(f"at most {100 * far:.1f} % from the printed number", bool(far < 0.03))


# -- what the text says, and figures show


def _told(table: pd.DataFrame, *columns: str) -> str:
    """Write these cells of every row, after the name of its data set without its size."""
    names = [re.sub(r", (at most )?[\d,]+ (rows|images)$", "", str(name)) for name in table.index]
    return ", ".join(" ".join([name, *cells]) for name, cells in zip(names, table[list(columns)].values, strict=True))


def _toy(table: pd.DataFrame) -> Answer:
    scad, l1 = str(table.loc["scad", "two clusters"]), str(table.loc["l1", "one cluster from"])
    holds = abs(number(scad) - 0.4) < 0.05 and abs(number(l1) - 0.08) < 0.01
    return Answer(f"SCAD has two groups at lambda {scad}, l1 one from {l1}", holds)


def _distances(table: pd.DataFrame) -> Answer:
    ends = table.groupby(level=0).last()
    parted = ends["smallest between"].map(number) > ends["largest within"].map(number)
    here = "; ".join(
        f"lambda {lam}: within groups at most {row['largest within']}, between at least {row['smallest between']}"
        for lam, row in ends.iterrows()
    )
    if parted.iloc[0] or not parted.any():
        return Answer(here, bool(parted.iloc[0]))
    return Answer(
        here, f"yes, with lambda {parted.idxmax()}: at {ends.index[0]} some devices leave the penalty's reach"
    )


def _lambdas(strategy: str, table: pd.DataFrame) -> Answer:
    table = table[table["strategy"] == strategy]
    same = (table["lambda"] == table["printed"]).sum()
    here = ", ".join(
        f"{_told(row, 'lambda')} ({row['printed'].iloc[0]})" for _, row in table.groupby(level=0, sort=False)
    )
    holds = f"on {same} of {len(table)}: {_MANY}" if 0 < same < len(table) else bool(same)
    return Answer(f"here (printed): {here}", holds)


def _times(table: pd.DataFrame) -> Answer:
    warm, separate = (table[table["strategy"] == way]["seconds"].map(number) for way in ("warmup", "separate"))
    ratio = (separate / warm).map("{:.1f}".format).to_frame("times")
    return Answer(f"times as long for separate tuning: {_told(ratio, 'times')}", bool((separate > warm).all()))


def _falls(*tables: pd.DataFrame) -> Answer:
    """Compare the largest falls of honest devices under attack, among the paper's methods that send something."""
    falls = pd.DataFrame()
    for scores in (table.map(number) for table in tables):
        for attack in ("same-value", "sign-flip", "gaussian"):
            some = scores.filter(regex=f"^{attack} ")
            falls = pd.concat([falls, some.iloc[:, 0] - some.min(axis=1)], axis=1)
    worst = falls.max(axis=1).reindex(PAPERS).drop("LOCAL").dropna().sort_values()
    here = ", ".join(f"{method} {fall:.1f}" for method, fall in worst.items())
    return Answer(f"largest fall in points: {here}", worst.index[0] == "FPFC")


def _newcomers(table: pd.DataFrame) -> Answer:
    ranks = table.loc[PAPERS, "rank"].map(number).sort_values()
    here = f"FPFC {ranks['FPFC']:.2f}, first of the paper's methods {ranks.index[0]} ({ranks.iloc[0]:.2f})"
    return Answer(here, bool(ranks["FPFC"] == ranks.min()))


def _asynchronous(table: pd.DataFrame) -> Answer:
    here = f"share of the synchronous time to 99 % of its score: {_told(table, 'share of time')}"
    return Answer(here, bool((table["share of time"].map(number) < 1).all()))


def _growing(table: pd.DataFrame) -> Answer:
    scores = table["after 62 rounds %"].map(number).dropna()
    if len(scores) < len(table):
        return Answer(f"shorter runs; at their end {_told(table, 'accuracy %')}", "—")
    growing, ten, five = scores[["growing", "T = 10", "T = 5"]]
    return Answer(_told(table, "after 62 rounds %"), bool(growing > ten > five))


def _starts(table: pd.DataFrame) -> Answer:
    spreads = table["ARI"].map(spread).groupby(table["method"])
    return Answer(f"ARI: {_told(table, 'method', 'ARI')}", bool(spreads.max()["FPFC"] < spreads.min()["IFCA"]))


def _peak(table: pd.DataFrame) -> Answer:
    scores = table["accuracy %"].map(number)
    best, ends = str(scores.idxmax()), (table.index[0], table.index[-1])
    here = ", ".join(f"{scores[lam]:.2f} at {lam}" for lam in dict.fromkeys((ends[0], best, ends[1])))
    return Answer(here, best not in ends and abs(number(best) - 0.6) <= PEAK_MARGIN)


def _cheap(table: pd.DataFrame) -> Answer:
    """Compare accuracy and cost of the paper's methods on images."""
    scores = table.iloc[:, 0].map(number)[PAPERS].sort_values(ascending=False)
    sent = table.loc[PAPERS, "floats sent"].map(number)
    here = (
        f"FPFC {scores['FPFC']:.2f} %, best {scores.index[0]} {scores.iloc[0]:.2f} %; most is sent by {sent.idxmax()}"
    )
    return Answer(here, bool(scores["FPFC"] >= scores.iloc[0] - CLOSE_POINTS and sent.idxmax() == "IFCA"))


def _flat(first: float, last: float, table: pd.DataFrame) -> Answer:
    """Compare the scores from one value of a setting to another: they differ by a point at most."""
    scores = table["accuracy %"].map(number)
    some = scores[[first <= number(str(value)) <= last for value in scores.index]]
    here = ", ".join(f"{score:.2f} at {value}" for value, score in scores.items())
    return Answer(here, bool(some.max() - some.min() <= CLOSE_POINTS))


_TUNING = "CFL and PACFL, tuned on validation rows, score higher here than in the paper"
_CLOSE = "the best methods differ by less than a printed standard deviation"
_LOCAL_WORK = "LG depends on which model is scored, others on local work, which differs in the authors' code"
_NO_CODE = "there is no published code for these data"
_MANY = "many lambdas are equally good; ours are scored by their groups' models"
_ATTACKS = ("attacks-synthetic", "attacks-mnist", "attacks-fmnist")
TEXT = (
    Claim("Figure 1", "SCAD has the two groups from lambda 0.4 on, l1 has one group at 0.08", ("figure1",), _toy),
    Claim("Section 6.2", "after 600 rounds with lambda 0.6, the groups of S1 have separated", ("distances",),
          _distances),
    *(Claim(f"Section 6.2, {name}", "FPFC is about as accurate as the best method; IFCA sends the most", (item,),
            _cheap, "FPFC has not fused devices by then", name)
      for item, name in (("mnist", MNIST), ("fmnist", FASHION))),
    Claim("Table 2", "lambda by separate tuning", ("table2",), partial(_lambdas, "separate"), _MANY),
    Claim("Table 2", "lambda by warm-up", ("table2",), partial(_lambdas, "warmup"), _MANY),
    Claim("Section 6.3", "warm-up is faster than separate tuning (MNIST: 0.58 h, 3.94 h)", ("table2",), _times),
    Claim("Section 6.4.1", "FPFC is the most stable under all attacks", _ATTACKS, _falls),
    Claim("Section 6.4.2", "FPFC is best for newcomers, by mean rank (3.00)", ("table3",), _newcomers,
          "IFCA places newcomers better here than in the paper"),
    Claim("Section 6.4.3", "asynchronous FPFC reaches the same score in less time", ("async",), _asynchronous),
    *(Claim(f"Section 6.4.4, {name}", "after 62 rounds, growing T is ahead of T = 10, which is ahead of T = 5",
            ("strategies",), _growing, "", name) for name in (MNIST, FASHION)),
    Claim("Appendix E.2", "FPFC is stable over 50 initial values, IFCA is not", ("starts",), _starts),
    Claim("Appendix E.2, S1", "the score rises with lambda, peaks at about 0.6, and falls", ("lambda",), _peak,
          "before models have converged, fewer groups lose more than they gain", S1),
    Claim("Appendix E.2, S1", "uneven epochs do not matter, unless they are few", ("epochs",), partial(_flat, 5, 20),
          "with fewer steps, the same number of rounds gets less far", S1),
    Claim("Appendix E.2, S1", "xi does not matter if it is small", ("xi",), partial(_flat, 0, 1e-3), "", S1),
)  # fmt: skip
