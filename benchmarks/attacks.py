"""Devices that lie: accuracy of the honest ones, for the fusion tree, FPFC and other methods.

What: the paper's figures on robustness (section 6.4.1). S1 (uniform features) and digits with softmax regression, or
MNIST and Fashion-MNIST with the paper's CNN. Three attacks, shares of liars from 0 to 0.8; the metric is the mean test
accuracy of honest devices. The fusion tree is lied to in every answer; "fpfc" is the paper's algorithm with the paper's
lambda, 0.6, and 0.4 on images. Settings that other methods leave open are chosen on validation rows without an attack,
and then kept. "honest only" is the fusion tree on a federation without the liars, a bound on what can be had. Rounds
are 100, of the CNN 40 (800 device-epochs); the fusion tree on tables ends by itself. Liars lie about whole models, or
with --scope fused about the last layer of a network alone, as in the paper.
Command: python benchmarks/attacks.py [--data synthetic:S1 | digits | mnist | fashion-mnist] [--scope all | fused]
         [--methods fpfc,…] [--shares 0.2,…] [--rounds N] [--seed 0] [--out attacks]
Writes a table (.csv) and a picture (.png), and prints each method's fall: its accuracy without an attack on the devices
that are honest at a share, less that under attack; and precision and recall of its suspects. Runs that are done are
kept in OUT.jsonl and not done again.
How long, and what was seen: see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

import fedfuse as ff
from fedfuse.data.catalog import load
from fedfuse.engines.attacks import Scope, draw_liars
from fedfuse.training.presets import preset

ATTACKS = ("same-value", "sign-flip", "gaussian")
TODAY = ("label-flip", "little", "inner-product", "replacement")
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)
NAMES = ("fusion-tree", "honest only", "fpfc", "local", "ifca", "cfl", "pacfl", "fedavg", "lg-fedavg", "per-fedavg")
ALONE = ("local", "honest only")  # nothing is sent, or not by liars: one attack is like the other
Row = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """The data, and what methods do on them."""

    data: str
    seed: int
    rounds: int | None
    scope: Scope

    @property
    def images(self) -> bool:
        return self.data in ("mnist", "fashion-mnist")

    @cached_property
    def federation(self) -> ff.Federation:
        return load(self.data, seed=self.seed)

    @property
    def model(self) -> Any:
        return ff.CNN() if self.images else ff.SoftmaxRegression()

    @property
    def work(self) -> ff.Work:
        return preset(self.data).work if self.images else ff.Work(steps=10, lr=0.1)

    def method(self, name: str) -> Any:
        groups = int(self.federation.truth.max()) + 1
        if name in ("fusion-tree", "honest only"):
            return ff.FusionTree(work=self.work) if self.images else ff.FusionTree()
        makers: dict[str, Callable[[], Any]] = {
            "fpfc": lambda: ff.FPFC(work=self.work, **({"lam": 0.4, "nu": 0.1} if self.images else {"lam": 0.6})),
            "local": lambda: ff.Local(work=self.work),
            "fedavg": lambda: ff.FedAvg(work=self.work),
            "lg-fedavg": lambda: ff.LGFedAvg(work=self.work),
            "per-fedavg": lambda: ff.PerFedAvg(work=self.work, adapt_lr=0.01 if self.images else None),
            "ifca": lambda: ff.IFCA(work=self.work, n_models=groups),
            "cfl": lambda: ff.CFL(work=self.work, **({"eps1": 0.05, "eps2": 0.1} if self.images else {})),
            "pacfl": lambda: ff.PACFL(work=self.work, **({"threshold": 2.0} if self.images else {})),
        }
        return makers[name]()

    def run(self, name: str, method: Any, federation: ff.Federation | None = None, **attack: Any) -> ff.Result:
        share, rounds = (0.5, self.rounds or 40) if self.images else (0.3, self.rounds or 100)
        if name in ("fusion-tree", "honest only") and not self.images:
            share, rounds = 1.0, 500  # it ends by itself
        if name == "local":
            share, rounds = 1.0, max(1, round(share * rounds))  # as many updates as the others have
        options = {"rounds": rounds, "participation": share, "seed": self.seed, "tol": 0, "evaluate_every": 10**6}
        lies = {**attack, "scope": self.scope} if attack else {}
        return ff.fit(federation or self.federation, method, self.model, **options, **lies)

    def liars(self, share: float) -> Any:
        return draw_liars(self.federation.m, share, self.seed)


class Done:
    """Rows that were measured before, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows: list[Row] = [json.loads(line) for line in lines]

    def get(self, name: str, attack: str, share: float) -> Row | None:
        key = (name, attack, share)
        return next((row for row in self.rows if (row["method"], row["attack"], row["liars"]) == key), None)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)


def row(name: str, attack: str, share: float, result: ff.Result, began: float) -> Row:
    summary = result.summary()
    found = {key: summary.get(key) for key in ("test", "ari", "precision", "recall")}
    chosen = {key: value for key, value in result.chosen.items() if isinstance(value, (int, float))}
    line = {"method": name, "attack": attack, "liars": share, **found, "chosen": chosen, "seconds": time.time() - began}
    return line if share else {**line, "devices": [float(score) for score in result.scores["test"]]}


def measure(stage: Stage, name: str, attacks: tuple[str, ...], shares: list[float], done: Done) -> None:
    if name == "local":
        measure_local(stage, shares, done)
        return
    method, attacks = stage.method(name), ("any",) if name in ALONE else attacks
    for share in (0.0, *shares):
        for attack in attacks if share else ("none",):
            if done.get(name, attack, share):
                continue
            began = time.time()
            if name == "honest only":
                honest = np.setdiff1d(np.arange(stage.federation.m), stage.liars(share))
                done.add(row(name, attack, share, stage.run(name, method, stage.federation.only(honest)), began))
            elif share:
                settled = replace(method, **(done.get(name, "none", 0.0) or {})["chosen"])
                done.add(row(name, attack, share, stage.run(name, settled, attack=attack, liars=share), began))
            else:
                done.add(row(name, attack, share, stage.run(name, method), began))


def measure_local(stage: Stage, shares: list[float], done: Done) -> None:
    """Nobody hears from anybody: one run, of which only honest devices count."""
    missing = [share for share in (0.0, *shares) if not done.get("local", "any", share)]
    scores = stage.run("local", stage.method("local")).scores["test"] if missing else []
    for share in missing:
        test = float(np.delete(scores, stage.liars(share)).mean())
        done.add({"method": "local", "attack": "any", "liars": share, "test": test})


def falls(stage: Stage, done: Done) -> Any:
    """Return by how much attacks lower what a method has without one on the same, honest devices, in points."""
    rows = []
    for line in done.rows:
        free = done.get(line["method"], "none", 0.0)
        if free and line["liars"]:
            same = np.delete(free["devices"], stage.liars(line["liars"])).mean()
            rows.append({**line, "unattacked": 100 * same, "fall": 100 * (same - line["test"])})
    columns = ["method", "attack", "liars", "unattacked", "fall", "precision", "recall", "ari"]
    return pd.DataFrame(rows, columns=columns)


def spread(rows: list[Row], attacks: tuple[str, ...]) -> Any:
    """Return a table in which runs that are the same for all attacks are there for each."""
    lines = [
        {**row, "attack": attack} for row in rows for attack in attacks if row["attack"] in ("none", "any", attack)
    ]
    return pd.DataFrame(lines).sort_values("liars", kind="stable")


def picture(table: Any, path: str, title: str) -> None:
    from matplotlib import pyplot as plt

    attacks = table["attack"].unique()
    figure, axes = plt.subplots(1, len(attacks), figsize=(4.2 * len(attacks), 3.8), sharey=True, squeeze=False)
    colours = dict(zip(table["method"].unique(), plt.get_cmap("tab10").colors, strict=False))
    for ax, attack in zip(axes[0], attacks, strict=True):
        for name, lines in table[table["attack"] == attack].groupby("method", sort=False):
            style = {"lw": 3} if name == "fusion-tree" else {"lw": 1.2, "ls": ":" if name == "honest only" else "-"}
            ax.plot(lines["liars"], lines["test"], marker="o", ms=4, color=colours[name], label=name, **style)
        ax.set(title=attack, xlabel="share of liars", xticks=SHARES)
        ax.grid(alpha=0.3)
    axes[0, 0].set_ylabel("test accuracy of honest devices")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=130, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="synthetic:S1")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attacks", default=",".join(ATTACKS), help=f"also: {', '.join(TODAY)}")
    parser.add_argument("--methods", default=",".join(NAMES))
    parser.add_argument("--scope", default="all", choices=get_args(Scope))
    parser.add_argument("--shares", default=",".join(map(str, SHARES[1:])))
    parser.add_argument("--out", default="attacks")
    options = parser.parse_args()
    stage, done = Stage(options.data, options.seed, options.rounds, options.scope), Done(Path(f"{options.out}.jsonl"))
    attacks, shares = tuple(options.attacks.split(",")), [float(word) for word in options.shares.split(",")]
    for name in options.methods.split(","):
        measure(stage, name, attacks, shares, done)
    table = spread(done.rows, attacks)
    table.drop(columns=["chosen", "devices"], errors="ignore").to_csv(f"{options.out}.csv", index=False)
    wide = table.pivot_table(index="method", columns=["attack", "liars"], values="test", sort=False)
    print(wide.round(3).to_string())
    print(falls(stage, done).round(2).to_string(index=False))
    picture(table, f"{options.out}.png", f"{options.data}, seed {options.seed}")


if __name__ == "__main__":
    main()
