"""All methods on the paper's synthetic scenarios, three seeds each, as a page of tables.

    python benchmarks/scenarios.py [S1,S2,S3,S4,S5] [0,1,2]

Writes docs/scenarios.md. Runs that are done are kept in runs/scenarios.jsonl and not done again: delete it to begin
anew.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fedfuse as ff
from fedfuse.data import load
from fedfuse.data.synthetic import SCENARIOS
from fedfuse.grouping.refit import Oracle
from fedfuse.methods.method import Method

ROUNDS = 200
WORK = ff.Work(steps=10, lr=0.1)
ROOT = Path(__file__).parents[1]
DONE, PAGE = ROOT / "runs" / "scenarios.jsonl", ROOT / "docs" / "scenarios.md"
TEXT = f"""# All methods on the synthetic scenarios

Mean test accuracy over devices, mean and population standard deviation over seeds; the seed changes data, split
and algorithm. Features are uniform on [0, 1). Written by

```
python benchmarks/scenarios.py {{scenarios}} {{seeds}}
```

Every method has {ROUNDS} rounds with 30 % of the devices, ten gradient steps of size 0.1 each, on training and
validation rows; LOCAL trains all devices in each round. What a method must be told is chosen on validation rows
before, at its own cost, which is counted: CFL's eps1 and eps2, PACFL's threshold. IFCA is told the true number of
groups, as in the paper, and FPFC-l1 its lambda, 0.2; its groups are refitted. fusion-tree and the oracle,
which knows the groups and shows what can be had, end by themselves. Devices start at zero (IFCA: at draws of N(0,
1)), not at one draw for all, as in the paper. Gradient steps have not converged then, and the methods that take them
still gain with more rounds. Rounds include those of choosing and refitting, floats are those sent in both directions.
The best mean of a method that does not know the groups is bold. Test rows are used for scoring only.
"""


@lru_cache(1)
def loaded(scenario: str, seed: int) -> ff.Federation:
    """Return the data, which all methods have in turn."""
    return load(f"synthetic:{scenario}", seed=seed)


def entries(groups: int) -> dict[str, Method[Any]]:
    """Return the methods of the table."""
    return {
        "fusion-tree": ff.FusionTree(work=WORK),
        "fpfc-l1": ff.FPFCL1(work=WORK, refit=True),
        "local": ff.Local(work=WORK),
        "fedavg": ff.FedAvg(work=WORK),
        "lg-fedavg": ff.LGFedAvg(work=WORK),
        "per-fedavg": ff.PerFedAvg(work=WORK),
        "ifca": ff.IFCA(n_models=groups, work=WORK),
        "cfl": ff.CFL(work=WORK),
        "pacfl": ff.PACFL(work=WORK),
        "oracle": Oracle(),
    }


def measured(scenario: str, name: str, seed: int) -> dict[str, Any]:
    """Run one method once."""
    federation = loaded(scenario, seed)
    method = entries(len(SCENARIOS[scenario]))[name]
    options: dict[str, Any] = {"seed": seed, "participation": 0.3, "tol": 0, "evaluate_every": 10**6}
    result = ff.fit(federation, method, rounds=2000 if name in ("fusion-tree", "oracle") else ROUNDS, **options)
    row = {"scenario": scenario, "method": name, "seed": seed, "test": result.score("test")}
    row["rounds"] = result.rounds
    if method.finds_groups:
        row |= {"groups": result.n_clusters, "ari": result.ari}
    return {**row, "floats": result.cost_floats, "seconds": round(result.seconds, 1), **result.chosen}


def all_rows(scenarios: list[str], seeds: list[int]) -> pd.DataFrame:
    """Run what is not done yet."""
    DONE.parent.mkdir(exist_ok=True)
    rows = [json.loads(line) for line in DONE.read_text().splitlines()] if DONE.exists() else []
    known = {(row["scenario"], row["method"], row["seed"]) for row in rows}
    for scenario in scenarios:
        for seed in seeds:
            for name in entries(1):
                if (scenario, name, seed) not in known:
                    rows.append(measured(scenario, name, seed))
                    print(rows[-1], flush=True)
                    with DONE.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    table: pd.DataFrame = pd.DataFrame(rows)
    return table[table["scenario"].isin(scenarios) & table["seed"].isin(seeds)]


def tables(rows: pd.DataFrame) -> str:
    """Return one table per scenario."""
    pages = []
    for scenario, some in rows.groupby("scenario", sort=True):
        means = some.groupby("method")[["test", "groups", "ari", "rounds", "floats"]].mean()
        spreads = some.groupby("method")["test"].std(ddof=0)
        best = means["test"].drop("oracle").idxmax()
        lines = ["| method | accuracy | groups | ARI | rounds | floats |", "| --- | --- | --- | --- | --- | --- |"]
        for name in means.sort_values("test", ascending=False).index:
            test, groups, ari, rounds, floats = means.loc[name]
            score = f"{100 * test:.2f} ± {100 * spreads[name]:.2f}"
            score = f"**{score}**" if name == best else score
            found = ("", "") if np.isnan(groups) else (f"{groups:.1f}", f"{ari:.2f}")
            lines.append(f"| {name} | {score} | {found[0]} | {found[1]} | {rounds:.0f} | {floats:.2e} |")
        pages.append(f"\n## {scenario}\n\n" + "\n".join(lines) + "\n")
    return "".join(pages)


def main(scenarios: str = "S1,S2,S3,S4,S5", seeds: str = "0,1,2") -> None:
    """Run, and write the page."""
    rows = all_rows(scenarios.split(","), [int(s) for s in seeds.split(",")])
    PAGE.write_text(TEXT.format(scenarios=scenarios, seeds=seeds) + tables(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
