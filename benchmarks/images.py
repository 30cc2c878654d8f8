"""Images: the fusion tree against LOCAL and FedAvg, within the same number of device-epochs.

What: MNIST and Fashion-MNIST with swapped labels, MNIST rotated; 20 devices in 4 groups, the paper's CNN, seed 0. One
device-epoch is one pass of one device over its rows; every method has 800 of them (40 rounds of 10 devices and 2
epochs; LOCAL: 20 rounds of 20 devices), the fusion tree's search for the groups included.
Command: python benchmarks/images.py [mnist fashion-mnist mnist:rotated] [--out runs/images] [--page docs/images.md]
Runs that are there are not run again. How long, and what was seen: see the page.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import matplotlib.pyplot as plt

from fedfuse import Result
from fedfuse.data.catalog import load
from fedfuse.grouping.network_tree import CheckNetworks, CutNetworkTree
from fedfuse.training.fit import fit, resume
from fedfuse.training.options import build, parse_options

METHODS = ("fusion-tree", "local", "fedavg")
DATA = {"mnist": METHODS, "fashion-mnist": METHODS, "mnist:rotated": ("fusion-tree",)}
ROUNDS = {"fusion-tree": 40, "fedavg": 40, "local": 20}
EVERY = 5
SOURCE = {"features": "uniform", "device": None, "target": None, "goal": None, "data_dir": None}


def one(data: str, method: str, seed: int, out: Path) -> Result:
    """Run one method, go on with it, or read what it came to."""
    directory = out / f"{data.replace(':', '-')}-{method}"
    if (directory / "config.json").exists():
        return resume(directory)
    chosen, settings = build(data, method, parse_options([]))
    settings |= {"rounds": ROUNDS[method], "seed": seed, "evaluate_every": EVERY, "checkpoint_every": 2}
    source = {"dataset": data, "seed": seed, **SOURCE}
    return fit(load(**source), chosen, out=directory, dataset=data, source=source, **settings)


def device_epochs(result: Result) -> int:
    """Return how many passes of a device over its rows the run took; judging is none."""
    steps = result.method["work"]["steps"]
    history = result.history
    trained = ~history["stage"].isin([CutNetworkTree.name, CheckNetworks.name])
    return int(history["active"][trained].sum() * int(steps))


def draw(results: dict[tuple[str, str], Result], path: Path) -> None:
    """Draw test accuracy by device-epochs, one panel per data set."""
    names = list(dict.fromkeys(data for data, _ in results))
    _, axes = plt.subplots(1, len(names), figsize=(4 * len(names), 3.2), layout="constrained", squeeze=False)
    for ax, data in zip(axes[0], names, strict=True):
        for method in METHODS:
            if (data, method) not in results:
                continue
            history = results[data, method].history.dropna(subset="test")
            spent = results[data, method].history["active"].cumsum() * int(
                results[data, method].method["work"]["steps"]
            )
            ax.plot(spent[history.index], history["test"], marker=".", label=method)
        ax.set(title=data, xlabel="device-epochs", ylabel="test accuracy", ylim=(0, 1))
        ax.grid(alpha=0.3)
    axes[0, 0].legend()
    plt.savefig(path)


def page(results: dict[tuple[str, str], Result], picture: str) -> str:
    """Return the page with the table."""
    lines = [
        "# Images", "",
        "Does fedfuse find groups of devices with image data? 20 devices in 4 groups train the paper's CNN, with",
        "seed 0. Every method has a budget of at most 800 device-epochs; one device-epoch is one pass of one device",
        "over its rows. For fusion-tree, this includes the search for groups.", "",
        "| data | method | test accuracy | groups | ARI | device-epochs | floats sent | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for (data, method), r in results.items():
        found = f"{r.n_clusters} | {r.ari:.3f}" if method == "fusion-tree" else "— | —"
        cost = f"{device_epochs(r)} | {r.cost_floats:,} | {r.seconds:.0f}"
        lines.append(f"| {data} | {method} | {r.score('test'):.4f} | {found} | {cost} |")
    lines += ["", f"![test accuracy by device-epochs]({picture})", ""]
    lines += ["Made by `python benchmarks/images.py`.", ""]
    return "\n".join(lines)


def main() -> None:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="*", default=list(DATA))
    parser.add_argument("--methods", default="", help="names with commas between them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/images"))
    parser.add_argument("--page", type=Path, default=Path("docs/images.md"))
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    results = {}
    for data in asked.data:
        for method in asked.methods.split(",") if asked.methods else DATA.get(data, METHODS):
            results[data, method] = one(data, method, asked.seed, asked.out)
            print(data, method, results[data, method], flush=True)
    picture = asked.page.with_suffix(".svg")
    draw(results, picture)
    asked.page.write_text(page(results, picture.name))


if __name__ == "__main__":
    main()
