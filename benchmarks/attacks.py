"""Devices that lie: accuracy of the honest ones, for FPFC and the methods that it is compared with.

What: the paper's figures on robustness (section 6.4.1), on S1 (uniform features) and on digits with softmax regression.
Three attacks, shares of liars from 0 to 0.8; the metric is the mean test accuracy of honest devices. FPFC is as it is
by default (no lambda given), and is lied to in every answer; "fpfc 0.6" is the paper's own loop, lambda = 0.6 with no
refit. Settings that other methods leave open are chosen on validation rows without an attack, and then kept.
"honest only" is FPFC on a federation without the liars: nobody who is not helped by liars can do better.
Command: python benchmarks/attacks.py [--data synthetic:S1] [--rounds 100] [--seed 0] [--out attacks]
Writes a table (.csv) and a picture (.png), and prints precision and recall of FPFC's suspects.
How long, and what was seen: see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

import fedfuse as ff
from fedfuse.data.sources import load
from fedfuse.fleet.byzantine import draw_liars

ATTACKS = ("same-value", "sign-flip", "gaussian")
TODAY = ("label-flip", "little", "inner-product", "replacement")
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)
WORK = ff.Work(steps=10, lr=0.1)


def contestants(n_models: int) -> dict[str, Any]:
    """Return the methods by name."""
    return {
        "fpfc": ff.FPFC(),
        "fpfc 0.6": ff.FPFC(lam=0.6, refit=False, work=WORK),
        "local": ff.Local(work=WORK),
        "fedavg": ff.FedAvg(work=WORK),
        "lg-fedavg": ff.LGFedAvg(work=WORK),
        "per-fedavg": ff.PerFedAvg(work=WORK),
        "ifca": ff.IFCA(work=WORK, n_models=n_models),
        "cfl": ff.CFL(work=WORK, eps1="auto", eps2="auto"),
        "pacfl": ff.PACFL(work=WORK),
    }


def one(federation: ff.Federation, method: Any, rounds: int, seed: int, **attack: Any) -> ff.Result:
    model, auto = ff.SoftmaxRegression(), method == ff.FPFC()
    share, rounds = (1.0, 500) if auto else (0.3, rounds)  # it ends by itself
    return ff.fit(federation, method, model, rounds=rounds, participation=share, seed=seed, tol=0, **attack)


def settled(federation: ff.Federation, method: Any, rounds: int, seed: int) -> tuple[Any, ff.Result]:
    """Return the method with what it chose without an attack, and that run."""
    result = one(federation, method, rounds, seed)
    return replace(method, **result.chosen), result


def row(name: str, attack: str, share: float, result: ff.Result, began: float) -> dict[str, Any]:
    summary = result.summary()
    found = {key: summary.get(key) for key in ("precision", "recall")}
    line = {"method": name, "attack": attack, "liars": share, "test": summary["test"], "ari": summary["ari"], **found}
    print({k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}, f"{time.time() - began:.1f} s")
    return line


def spared(result: ff.Result, attack: str, share: float) -> dict[str, Any]:
    who = draw_liars(len(result.labels), share, result.seed)
    test = float(np.delete(result.scores["test"], who).mean())
    return {"method": "local", "attack": attack, "liars": share, "test": test}


def measured(federation: ff.Federation, rounds: int, seed: int, attacks: tuple[str, ...], names: list[str]) -> Any:
    rows, groups = [], int(federation.truth.max()) + 1 if federation.truth is not None else 4
    for name, method in contestants(groups).items():
        if name not in names:
            continue
        began = time.time()
        method, plain = settled(federation, method, rounds, seed)
        rows += [row(name, attack, 0.0, plain, began) for attack in attacks]
        if name == "local":  # nothing is sent, so nobody is lied to
            rows += [spared(plain, attack, share) for attack in attacks for share in SHARES[1:]]
            continue
        for attack, share in ((a, s) for a in attacks for s in SHARES[1:]):
            began = time.time()
            result = one(federation, method, rounds, seed, attack=attack, liars=share)
            rows.append(row(name, attack, share, result, began))
    if "fpfc" in names:
        for share in SHARES:
            began = time.time()
            honest = np.setdiff1d(np.arange(federation.m), draw_liars(federation.m, share, seed))
            result = one(federation.only(honest), ff.FPFC(), rounds, seed)
            rows += [row("honest only", attack, share, result, began) for attack in attacks]
    return pd.DataFrame(rows)


def picture(table: Any, path: str, title: str) -> None:
    from matplotlib import pyplot as plt

    attacks = table["attack"].unique()
    figure, axes = plt.subplots(1, len(attacks), figsize=(4.2 * len(attacks), 3.8), sharey=True, squeeze=False)
    colours = dict(zip(table["method"].unique(), plt.get_cmap("tab10").colors, strict=False))
    for ax, attack in zip(axes[0], attacks, strict=True):
        for name, lines in table[table["attack"] == attack].groupby("method", sort=False):
            style = {"lw": 3} if name == "fpfc" else {"lw": 1.2, "ls": ":" if name == "honest only" else "-"}
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
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attacks", default=",".join(ATTACKS), help=f"also: {', '.join(TODAY)}")
    parser.add_argument("--methods", default=",".join(contestants(4)))
    parser.add_argument("--out", default="attacks")
    options = parser.parse_args()
    federation = load(options.data, seed=options.seed)
    attacks, names = tuple(options.attacks.split(",")), options.methods.split(",")
    table = measured(federation, options.rounds, options.seed, attacks, names)
    table.to_csv(f"{options.out}.csv", index=False)
    print(
        table.pivot_table(index="method", columns=["attack", "liars"], values="test", sort=False).round(3).to_string()
    )
    exposed = table[(table["method"] == "fpfc") & (table["liars"] > 0)]
    print(exposed[["attack", "liars", "precision", "recall", "ari"]].to_string(index=False))
    picture(table, f"{options.out}.png", f"{options.data}, {options.rounds} rounds, seed {options.seed}")


if __name__ == "__main__":
    main()
