"""Figures of sensitivity: to settings and initial values (appendix E), and to attacks (section 6.4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd

from fedfuse import Uneven, Work
from fedfuse.engines.attacks import draw_liars
from fedfuse.methods.method import Method
from fedfuse.paper import figures
from fedfuse.paper.experiment import Experiment, Findings, both, readable
from fedfuse.paper.setup import DEFAULT, PAPER, PRINTED, PaperSetup
from fedfuse.paper.trials import Trial
from fedfuse.results.result import mean_score
from fedfuse.studies.comparison import mean_and_sd

# From random starts: what is changed of methods and settings. FPFC rests when no residual is larger than tol, relative
# to the length of its models, for two turns of every device.
STARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fpfc": ({"lam": 0.85, "nu": None, "work": Work(solver="exact")}, {"tol": 3e-3, "rounds": 2000}),
    "ifca": ({"average": "model"}, {"rounds": 100}),
}
ATTACKS = ("same-value", "sign-flip", "gaussian")
SOME_METHODS = (DEFAULT, "fpfc", "local", "fedavg", "ifca")


@dataclass(frozen=True, kw_only=True)
class SettingSweep(Experiment):
    """The paper's loop with each value of a setting.

    ``key`` is ``lam`` or ``xi`` of the penalty, or ``epochs``: the most local epochs, of which every device and round
    draws its own number. ``values`` are by kind of data; a quick look has every other one.
    """

    key: Literal["lam", "xi", "epochs"]
    values: Mapping[str, tuple[float, ...]]

    keys: ClassVar[tuple[str, ...]] = ("setting",)

    def runs(self, setup: PaperSetup, name: str) -> dict[float, Trial]:
        method, settings = setup.entry(name, "fpfc", {"nu": None}, figure=True)
        values = self.values[setup.recipe(name).kind][:: 2 if setup.scale.few else 1]
        return {value: setup.trial(name, "fpfc", self._with(method, value), settings) for value in values}

    def _with(self, method: Method[Any], value: float) -> Method[Any]:
        if self.key == "epochs":
            return replace(method, work=replace(method.work, steps=Uneven(value)))
        changed: dict[str, Any] = {self.key: value}
        return replace(method, **changed)

    def findings(self, setup: PaperSetup) -> Findings:
        table = self.tables(setup)[0].rename(columns={"setting": self.key})
        found = Findings(numbers={f"{self.key}.csv": table}, draw=lambda: figures.sweep(table, self.key))
        for data, some in table.groupby("data", sort=False):
            accuracy = some["metric"].iloc[0] == "accuracy"
            best = some.loc[some["test"].idxmax() if accuracy else some["test"].idxmin()]
            spread = f"{(100 if accuracy else 1) * np.ptp(some['test']):.2f} {'points' if accuracy else 'RMSE'}"
            words = f"best at {self.key} {best[self.key]:g} ({best['test']:.4f}); from worst to best {spread}"
            if spread.startswith("0.00 "):
                words = f"{best['test']:.4f} at every {self.key}"
            found.notes.append(f"{data}: {words}")
            found.tables[str(data)] = readable(some, self.key, "num", "ari")
        return found


@dataclass(frozen=True, kw_only=True)
class Starts(Experiment):
    """FPFC and IFCA from many random initial values on the same data, FPFC until it rests.

    FPFC solves local problems exactly, which takes fewer rounds. IFCA averages models: with one gradient step per round
    it would need ten times the rounds. Its groups are chosen in the first ones.
    """

    keys: ClassVar[tuple[str, ...]] = ("method", "start")

    def runs(self, setup: PaperSetup, name: str) -> dict[tuple[str, int], Trial]:
        found = {}
        for label, (changes, to_rest) in STARTS.items():
            method, settings = setup.entry(name, label, figure=True)
            method, settings = replace(method, start="normal", **changes), settings | to_rest
            if setup.scale.length < 1:
                settings["rounds"] = setup.scale.figure_rounds["synthetic"]
            for start in range(setup.scale.starts):
                found[label, start] = setup.trial(name, label, method, settings, start, data_seed=0)
        return found

    def findings(self, setup: PaperSetup) -> Findings:
        table, _ = self.tables(setup)
        lines = [
            {"data": row["data"], "method": PRINTED[row["method"]],
             "accuracy %": both(100 * row["test"], 100 * row["test_sd"]), "ARI": both(row["ari"], row["ari_sd"]),
             "starts": str(setup.scale.starts)}
            for _, row in mean_and_sd(table, ["data", "method"], ("test", "ari")).reset_index().iterrows()
        ]  # fmt: skip
        title = "mean and population standard deviation over random initial values"
        return Findings({title: pd.DataFrame(lines)}, {"starts.csv": table}, lambda: figures.starts(table))


@dataclass(frozen=True, kw_only=True)
class AttackExperiment(Experiment):
    """Methods under three attacks: accuracy of honest devices by the share of liars.

    Settings that a method leaves open are chosen without an attack, and then kept. Of a network, its fused part is
    lied about, as the paper speaks of its personalisation layers; `benchmarks/attacks.py` lies about all of it.
    """

    def runs(self, setup: PaperSetup, name: str) -> dict[tuple[str, str, float], Trial]:
        """Return the runs by method, attack and share of liars; those without an attack have the attack ``""``."""
        images = setup.recipe(name).kind == "images"
        found = {}
        for label in SOME_METHODS if setup.scale.few and images else (DEFAULT, *reversed(PAPER)):
            method, settings = setup.entry(name, label, figure=True)
            found[label, "", 0.0] = setup.trial(name, label, method, settings)
            for attack in ATTACKS if label != "local" else ():
                for share in setup.scale.shares:
                    lies = {"attack": attack, "liars": share, "scope": "fused" if images else "all"}
                    found[label, attack, share] = setup.trial(name, label, method, settings | lies)
        return found

    def findings(self, setup: PaperSetup) -> Findings:
        (name,), rows = self.datasets(setup), list[dict[str, Any]]()
        runs = self.runs(setup, name)
        for label in dict.fromkeys(label for label, _, _ in runs):
            calm = runs[label, "", 0.0]
            unattacked = calm.result()
            for attack, share in product(ATTACKS, (0.0, *setup.scale.shares)):
                liars = draw_liars(len(unattacked.labels), share, calm.seed)
                same_devices = mean_score(np.delete(unattacked.scores["test"], liars))
                row = {"method": label, "attack": attack, "liars": share}
                if share and label != "local":
                    summary = runs[label, attack, share].result().summary()
                    row |= {key: summary.get(key) for key in ("test", "ari", "precision", "recall")}
                else:  # Nothing is sent by LOCAL, so there is nobody to lie to.
                    row["test"] = same_devices
                rows.append(row)
        table, data = pd.DataFrame(rows), setup.words(name)
        wide = table.pivot_table(index="method", columns=["attack", "liars"], values="test", sort=False)
        readable = wide.map(lambda test: both(100 * test, places=1)).set_axis(
            [f"{attack} {liars:g}" for attack, liars in wide.columns], axis=1
        )
        readable.insert(0, "method", [PRINTED[str(label)] for label in wide.index])
        title = f"{data}: test accuracy of honest devices, %"
        draw = lambda: figures.attacks(table, data)  # noqa: E731
        return Findings({title: readable}, {"attacks.csv": table}, draw, _attack_notes(table))


def _attack_notes(table: pd.DataFrame) -> list[str]:
    """Say how well the liars are found."""
    ours = table[(table["method"] == DEFAULT) & (table["liars"] > 0)]
    if not ours["recall"].notna().any():
        return []
    recall, precision = (100 * ours[name].astype(float).mean() for name in ("recall", "precision"))
    return [f"{PRINTED[DEFAULT]} finds {recall:.0f} % of the liars; {precision:.0f} % of its suspects are liars"]
