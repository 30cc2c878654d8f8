"""Devices that lie: the accuracy of honest ones under three attacks, by the share of liars (section 6.4.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from fedfuse.engines.attacks import draw_liars
from fedfuse.methods.method import Method, Searchable
from fedfuse.paper import figures
from fedfuse.paper.experiment import Experiment, Shown, both
from fedfuse.paper.setup import AUTO, PAPER, PRINTED, PaperSetup
from fedfuse.paper.trial import Trial
from fedfuse.results.result import mean_score
from fedfuse.tuning.grid_search import GridSearch

ATTACKS = ("same-value", "sign-flip", "gaussian")
FEW = (AUTO, "fpfc", "local", "fedavg", "ifca")


@dataclass(frozen=True)
class Attacks(Experiment):
    """Methods under attack.

    Settings that a method leaves open are chosen without an attack, and then kept. Of a network, its fused part is
    lied about, as the paper speaks of its personalisation layers; `benchmarks/attacks.py` lies about all of it.
    """

    name: str

    @property
    def data(self) -> tuple[str, ...]:
        return (self.name,)

    def _methods(self, setup: PaperSetup) -> tuple[str, ...]:
        images = setup.recipe(self.name).kind == "images"
        return FEW if setup.scale.few and images else (AUTO, *reversed(PAPER))

    def trials(self, setup: PaperSetup) -> list[Trial]:
        found = []
        for label in self._methods(setup):
            calm = self._calm(setup, label)
            found.append(calm)
            if label != "local" and (calm.done or not _open(calm.method)):
                method = _settled(calm)
                found += [
                    self._attacked(setup, label, method, calm, attack, share)
                    for attack in ATTACKS
                    for share in setup.scale.shares
                ]
        return found

    def _calm(self, setup: PaperSetup, label: str) -> Trial:
        method, settings = setup.entry(self.name, label, figure=True)
        return setup.trial(self.name, label, method, settings)

    def _attacked(
        self, setup: PaperSetup, label: str, method: Method[Any], calm: Trial, attack: str, share: float
    ) -> Trial:
        scope = "fused" if setup.recipe(self.name).kind == "images" else "all"
        lies = {"attack": attack, "liars": share, "scope": scope}
        return setup.trial(self.name, label, method, {**calm.settings, **lies})

    def show(self, setup: PaperSetup) -> Shown:
        rows: list[dict[str, Any]] = []
        for label in self._methods(setup):
            calm = self._calm(setup, label)
            plain = calm.result()
            for attack in ATTACKS:
                rows.append({"method": label, "attack": attack, "liars": 0.0, "test": plain.score("test")})
                for share in setup.scale.shares:
                    row: dict[str, Any] = {"method": label, "attack": attack, "liars": share}
                    if label == "local":  # nothing is sent, so nobody is lied to
                        who = draw_liars(len(plain.labels), share, calm.seed)
                        row["test"] = mean_score(np.delete(plain.scores["test"], who))
                    else:
                        found = self._attacked(setup, label, _settled(calm), calm, attack, share).result()
                        summary = found.summary()
                        row |= {"test": found.score("test"), "ari": found.ari}
                        row |= {name: summary.get(name) for name in ("precision", "recall")}
                    rows.append(row)
        table = pd.DataFrame(rows)
        data = setup.words(self.name)
        shown = Shown(numbers={"attacks.csv": table}, notes=_notes(table))
        shown.tables[f"{data}: test accuracy of honest devices, %"] = _readable(table)
        shown.draw = lambda: figures.attacks(table, data)
        return shown


def _open(method: Method[Any]) -> bool:
    return isinstance(method, GridSearch) or (isinstance(method, Searchable) and method.has_open_settings)


def _settled(calm: Trial) -> Method[Any]:
    """Return the method with what it chose where nobody lied."""
    if not _open(calm.method):
        return calm.method
    inner = calm.method.inner if isinstance(calm.method, GridSearch) else calm.method
    return replace(inner, **calm.result().chosen)


def _readable(table: pd.DataFrame) -> pd.DataFrame:
    wide = table.pivot_table(index="method", columns=["attack", "liars"], values="test", sort=False)
    lines = []
    for label, row in wide.iterrows():
        cells = {f"{attack} {liars:g}": both(100 * row[attack, liars], places=1) for attack, liars in wide.columns}
        lines.append({"method": PRINTED[str(label)], **cells})
    frame: pd.DataFrame = pd.DataFrame(lines)
    return frame


def _notes(table: pd.DataFrame) -> list[str]:
    """Say how far each method falls, and how well the liars are found."""
    falls = {}
    for label, some in table.groupby("method", sort=False):
        honest = some.loc[some["liars"] == 0, "test"].iloc[0]
        falls[PRINTED[str(label)]] = 100 * (honest - some["test"].min())
    words = ", ".join(f"{name} {fall:.1f}" for name, fall in sorted(falls.items(), key=lambda pair: pair[1]))
    notes = [f"largest fall of honest devices' accuracy under any attack, in points: {words}"]
    ours = table[(table["method"] == AUTO) & (table["liars"] > 0)]
    if ours["recall"].notna().any():
        recall, precision = (100 * ours[name].astype(float).mean() for name in ("recall", "precision"))
        notes.append(f"FPFC auto finds {recall:.0f} % of the liars; {precision:.0f} % of its suspects are liars")
    return notes
