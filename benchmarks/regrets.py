"""Table of regrets: which method should be the default, by what it loses, what it sends and what it admits.

What: random federations with known groups (`random_federations.py`), S1 to S5 with uniform and normal features, housing
and body fat, digits, eleven targets in the tables of $FEDFUSE_DATA/real, and with --images MNIST and Fashion-MNIST
within 800 device-epochs. Every method runs as users get it, by its name alone; "both" runs two methods, and takes the
one with the better validation score.
Regret is what a method loses on test rows: points of accuracy, or per cent of RMSE. Where the groups are known it is
against the oracle, which fits one model to each true group; elsewhere against the best of all methods, each device
alone and one model for all. These two are the oracle told that all devices differ, or that none does, so that their
ridges are tuned like those of any group. A grouping is wrong if its ARI is below 0.9, and flagged if
`Result.uncertain`. Where rows are too few to tell groups apart, no method can be right, and one model for all may beat
the oracle: a wrong grouping counts as costly only with a regret above 1.
Commands: python benchmarks/regrets.py run DIR [--seeds 30-99] [--methods a,b] [--families random,tables] [--images]
          python benchmarks/regrets.py table DIR [--into benchmarks/README.md docs/algorithm.md]
Runs are rows of DIR/runs.csv. Those that are there are not run again: delete a method's rows when it has changed. Seeds
0 to 29 of the random federations are for looking at, 30 to 99 for the table. How long: see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from random_federations import draw

import fedfuse as ff
from fedfuse.core.partitions import adjusted_rand
from fedfuse.data.catalog import load
from fedfuse.training.options import build, parse_options

WORDS = {"fusion-tree": [], "fpfc": ["lam=auto"]}  # --set, of each method alone
METHODS = (*WORDS, "both")
REFERENCES = ("oracle", "alone", "one model")
TABLES = {  # device, target, columns left out
    "sleepstudy": ("Subject", "Reaction", ()),
    "oxboys": ("Subject", "height", ("Occasion",)),
    "nl_chickweight": ("Chick", "weight", ("Diet",)),
    "gasoline": ("country", "lgaspcar", ()),
    "cigar": ("state", "sales", ()),
    "exam": ("school", "normexam", ("student",)),
    "mathachieve": ("School", "MathAch", ()),
    "males": ("nr", "wage", ()),
    "mr_contraception": ("district", "use", ("woman",)),
    "verbagg": ("item", "r2", ("id", "resp", "btype", "situ", "mode")),
    "males:union": ("nr", "union", ("industry", "occupation")),
}
MIN_SITE_ROWS = 5
WRONG_ARI, COSTLY_REGRET = 0.9, 1.0
FAMILIES = ("random", "tables", "housing-bodyfat", "digits", "synthetic", "images")
FIELDS = (
    *("family", "case", "seed", "method", "goal", "what", "m", "d", "true_groups", "groups", "ari", "test"),
    *("floats", "rounds", "uncertain", "stability", "unsure", "seconds", "error"),
)
COLUMNS = (
    *("data", "method", "runs", "regret: mean", "median", "90 %", "worst", "ARI: mean", "exact", "wrong"),
    *("wrong, not flagged", "of these costly", "right, flagged", "floats per device and parameter", "seconds"),
)
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A federation: its family in the table, its name, and what the presets of runs call it."""

    family: str
    name: str
    seed: int
    dataset: str
    load: Callable[[], tuple[ff.Federation, str]]


def read_site_table(name: str, seed: int) -> tuple[ff.Federation, str]:
    """Read a table of real sites, without those that have too few rows."""
    device, target, left_out = TABLES[name]
    path = Path(os.environ["FEDFUSE_DATA"], "real", f"{name.partition(':')[0]}.csv")
    frame = pd.read_csv(path).drop(columns=list(left_out))
    frame = frame[frame.groupby(device)[device].transform("size") >= MIN_SITE_ROWS]
    return ff.Federation.from_frame(frame, device=device, target=target, seed=seed), f"{device}, {target}"


def cases(random_seeds: range) -> Iterator[Case]:
    """Return all federations, those that take least time first."""
    for seed in random_seeds:
        yield Case("random", str(seed), seed, "arrays", lambda seed=seed: draw(seed))
    for name in TABLES:
        for seed in range(3):
            yield Case("tables", name, seed, "arrays", lambda n=name, s=seed: read_site_table(n, s))
    named = [("housing-bodyfat", "housing-bodyfat", {}), ("digits", "digits", {})]
    named += [("synthetic", f"synthetic:S{i}", {"features": f}) for f in ("uniform", "normal") for i in range(1, 6)]
    for family, data, options in named:
        for seed in range(3):
            name = " ".join([data, *options.values()])
            yield Case(family, name, seed, data, lambda d=data, o=options, s=seed: (load(d, seed=s, **o), ""))
    for data in ("mnist", "fashion-mnist"):
        yield Case("images", data, 0, data, lambda d=data: (load(d, seed=0), ""))


@lru_cache(1)
def loaded(case: Case) -> tuple[ff.Federation, str]:
    """Load a federation, which all methods have in turn."""
    return case.load()


def told(federation: ff.Federation, method: str) -> ff.Federation:
    """Return the federation as a reference sees it: with the true groups, or with false ones."""
    truth = {"alone": np.arange(federation.m), "one model": np.zeros(federation.m, int)}
    return replace(federation, truth=truth.get(method, federation.truth))


def fitted(case: Case, method: str) -> tuple[ff.Result, int, bool | None]:
    """Return what a method has found, the floats that it sent, and whether it says that the groups are uncertain.

    Both methods together: the one with the better validation score; uncertain also where their groups differ.
    """
    federation, name = loaded(case)[0], method if method in WORDS else "oracle"
    if method == "both":
        (one, floats, doubt), (other, more, other_doubt) = (fitted(case, each) for each in WORDS)
        sign = 1 if federation.goal == "classification" else -1
        first = not sign * other.score("validation") > sign * one.score("validation")
        same = (adjusted_rand(one.labels, other.labels) or 0.0) >= WRONG_ARI
        return one if first else other, floats + more, bool(doubt if first else other_doubt) or not same
    rule, settings = build(case.dataset, name, parse_options(WORDS.get(name, []), name), {"evaluate_every": 10**6})
    result = ff.fit(told(federation, method), rule, seed=case.seed, **settings)
    return result, result.cost_floats, result.uncertain


def measured(case: Case, method: str) -> Row:
    """Run one method once; an error is a result too."""
    federation, what = loaded(case)
    row: Row = {"family": case.family, "case": case.name, "seed": case.seed, "method": method, "what": what}
    row |= {"goal": federation.goal, "m": federation.m}
    row["true_groups"] = "" if federation.truth is None else len(np.unique(federation.truth))
    clock = time.perf_counter()
    try:
        result, floats, uncertain = fitted(case, method)
    except Exception as problem:  # One failure must not end hours of runs; the table counts it.
        return row | {"error": f"{type(problem).__name__}: {problem}", "seconds": time.perf_counter() - clock}
    row |= {"d": result.models.shape[1], "groups": result.n_clusters, "test": result.score("test")}
    row |= {"floats": floats, "rounds": result.rounds, "seconds": time.perf_counter() - clock}
    if method in METHODS:
        row |= {"ari": result.ari, "uncertain": uncertain, "stability": result.stability}
        row["unsure"] = len(result.unsure)
    return row


def run(directory: Path, methods: list[str], chosen: list[Case]) -> None:
    """Run what is not done yet, and append it to the file."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "runs.csv"
    known = set()
    if path.exists():
        known = {(r["case"], r["seed"], r["method"]) for r in pd.read_csv(path, dtype={"case": str}).to_dict("records")}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if not known:
            writer.writeheader()
        for case in chosen:
            for method in methods:
                if (case.name, case.seed, method) in known or (method == "oracle" and case.family == "tables"):
                    continue
                row = measured(case, method)
                writer.writerow(row)
                file.flush()
                print(*(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)


def with_regrets(runs: pd.DataFrame) -> pd.DataFrame:
    """Add what each run loses against the oracle or, without one, against the best."""
    scores = runs.pivot_table(index=["case", "seed"], columns="method", values="test")
    sign = np.where(runs.groupby(["case", "seed"])["goal"].first() == "classification", 1.0, -1.0)
    best = scores["oracle"].fillna(scores.mul(sign, axis=0).max(axis=1) * sign)
    runs = runs.join(best.rename("best"), on=["case", "seed"])
    classes, flagged = runs["goal"] == "classification", runs["uncertain"].astype(str) == "True"
    regret = 100 * (runs["best"] - runs["test"]).where(classes, runs["test"] / runs["best"] - 1)
    wrong = runs["ari"] < WRONG_ARI
    return runs.assign(
        regret=regret,
        models_sent=runs["floats"] / (runs["m"] * runs["d"]),
        right_flagged=(runs["ari"] >= WRONG_ARI) & flagged,
        wrong=wrong,
        silent=wrong & ~flagged,
        costly=wrong & ~flagged & (regret > COSTLY_REGRET),
        part=runs["family"].where(
            runs["family"] != "random", "random, " + classes.map({False: "linear", True: "softmax"})
        ),
    )


def line(part: str, method: str, runs: pd.DataFrame) -> str:
    """Return a row of the table."""
    regret, ari = runs["regret"].dropna(), runs["ari"].dropna()
    cells = [part, method, f"{len(regret)}" + f" and {len(runs) - len(regret)} failed" * (len(regret) < len(runs))]
    cells += [f"{number:.2f}" for number in (regret.mean(), *regret.quantile([0.5, 0.9]), regret.max())]
    if len(ari):
        cells += [f"{ari.mean():.3f}", f"{(ari > 1 - 1e-9).sum()}"]
        counts = runs[["wrong", "silent", "costly", "right_flagged"]].sum()
        cells += [f"{n} ({n / len(ari):.0%})" if n else "0" for n in counts]
    else:
        cells += [""] * 6
    cells += [f"{runs['models_sent'].mean():.0f}", f"{runs['seconds'].median():.1f}"] if method in METHODS else ["", ""]
    return f"| {' | '.join(cells)} |"


def table(directory: Path) -> str:
    """Return the table in Markdown, of the federations on which all methods have run."""
    runs = with_regrets(pd.read_csv(directory / "runs.csv", dtype={"case": str}))
    runs = runs[runs["method"] != "oracle"]
    methods = [method for method in (*METHODS, *REFERENCES) if method in set(runs["method"])]
    tried = runs[runs["method"].isin(METHODS)].groupby(["case", "seed"])["method"].nunique()
    runs = runs[runs.set_index(["case", "seed"]).index.map(tried) == len(set(methods) & set(METHODS))]
    lines = [f"| {' | '.join(COLUMNS)} |", "| --- " * len(COLUMNS) + "|"]
    for part in (*sorted(set(runs["part"])), "all"):
        for method in methods:
            chosen = runs[(runs["method"] == method) & ((runs["part"] == part) | (part == "all"))]
            if len(chosen):
                lines.append(line(part, method, chosen))
    return "\n".join(lines)


def put(text: str, page: Path) -> None:
    """Replace what stands between the marks of a page."""
    old = page.read_text()
    begin, end = "<!-- regrets: begin -->\n", "\n<!-- regrets: end -->"
    new, n = re.subn(f"(?s)(?<={re.escape(begin)}).*?(?={re.escape(end)})", lambda _: text, old)
    if n != 1:
        raise SystemExit(f"{page} must have the marks {begin.strip()} and {end.strip()} once, around the table")
    page.write_text(new)


def main() -> None:
    """Run, or make the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seeds", default="30-99", help="of random federations, first to last")
    parser.add_argument("--methods", default=",".join((*REFERENCES, *METHODS)))
    parser.add_argument("--families", default=",".join(FAMILIES[:-1]))
    parser.add_argument("--images", action="store_true", help="MNIST and Fashion-MNIST too")
    parser.add_argument("--into", type=Path, nargs="*", default=[], help="pages with marks to put the table between")
    asked = parser.parse_args()
    if asked.what == "table":
        text = table(asked.directory)
        print(text)
        for page in asked.into:
            put(text, page)
        return
    first, last = (int(n) for n in asked.seeds.split("-"))
    families = asked.families.split(",") + ["images"] * asked.images
    chosen = [case for case in cases(range(first, last + 1)) if case.family in families]
    run(asked.directory, asked.methods.split(","), chosen)


if __name__ == "__main__":
    main()
