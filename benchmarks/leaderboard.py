"""Leaderboard: every method on every kind of data, ranked, with tests of whether the ranks differ.

What: all methods of `fedfuse compare --methods all`, by their names alone (the usual presets; settings that are left
open are chosen on validation rows within the same rounds), on the data sets of `CASES`. Runs are stored, one comparison
for each data set below --out, and not done again; whatever is there is on the page.
Commands: python benchmarks/leaderboard.py run [--out runs/leaderboard] [--cases a,b] [--minutes 60]
          python benchmarks/leaderboard.py page [--out runs/leaderboard] [--into docs/leaderboard.md]
How long: see the page; the seconds there are those of the processor. `run` may be stopped and started at any time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from regrets import read_site_table
from scipy.stats import friedmanchisquare, rankdata, studentized_range

import fedfuse as ff
from fedfuse.core.metrics import METRICS
from fedfuse.methods.registry import methods_of
from fedfuse.studies.comparison import NOTHING, Comparison, holm, wilcoxon_p
from fedfuse.studies.jobs import DONE, FAILED, Job, Watcher

LEVEL = 0.05
MIN_ERROR = 0.005  # shares of wrong labels below this count as this: nobody's rank hangs on a row or two
MAX_ERROR = 1e6  # an RMSE above it is a divergence
COLOURS = {"one model": "#b35806", "groups": "#1b6ca8", "personal": "#3a7d2c"}
MARKERS = {"one model": "s", "groups": "o", "personal": "^"}


def continuous(seed: int) -> ff.Federation:
    """Draw a federation whose devices differ by degrees: models around a centre, without groups.

    Even seeds are linear, odd ones softmax regression. Devices, columns, rows, noise and how much devices differ, from
    a fifth of what they have in common to as much, are drawn.
    """
    rng = np.random.default_rng([20261119, seed])
    m, p, classes = int(rng.integers(12, 41)), int(rng.integers(2, 11)), int(rng.integers(2, 4))
    outputs = 1 if seed % 2 == 0 else classes
    spread, noise = float(np.exp(rng.uniform(np.log(0.2), 0))), float(rng.uniform(0.5, 2))
    models = rng.normal(size=(outputs, p + 1)) + spread * rng.normal(size=(m, outputs, p + 1))
    data = []
    for w in models:
        X = rng.normal(size=(int(rng.integers(60, 400)) * (1 if outputs == 1 else 2), p))
        scores = X @ w[:, :-1].T + w[:, -1]
        if outputs == 1:
            data.append((X, scores[:, 0] + noise * rng.normal(size=len(X))))
        else:
            data.append((X, (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)))
    goal = "regression" if outputs == 1 else "classification"
    return ff.Federation.from_arrays(data, goal=goal, test=0.5, seed=seed)


@dataclass(frozen=True)
class Case:
    """A data set: its seeds, and how many rounds methods have; LOCAL, which trains everybody, may have fewer.

    ``make`` builds the federation of a seed where data have no name; these have no groups that are known.
    """

    seeds: tuple[int, ...]
    rounds: int
    make: Callable[[int], ff.Federation] | None = None
    words: tuple[str, ...] = ()  # of --set
    what: str = ""
    network: bool = False

    @property
    def methods(self) -> list[str]:
        """All methods that the data are for: FedPer and FedRep share a base of layers, MOCHA is for convex models."""
        left_out = {"oracle" if self.make else "", *(("mocha",) if self.network else ("fedper", "fedrep"))}
        return [name for name in methods_of("all") if name not in left_out]


def _table(name: str) -> Case:
    return Case((0, 1, 2), 400, lambda seed: read_site_table(name, seed)[0], what="a table of real sites")


def _scenario(*seeds: int) -> Case:
    return Case(seeds, 200, words=("local.rounds=60",), what="30 % of the devices in a round, ten steps each")


IMAGES = Case(
    (0,), 40, words=("steps=1", "local.rounds=20"), what="the paper's CNN, one epoch of 10 of 20 devices", network=True
)
CASES = {
    "continuous-linear": Case((0, 2, 4), 400, continuous, what="random devices that differ by degrees"),
    "continuous-softmax": Case((1, 3, 5), 400, continuous, what="random devices that differ by degrees"),
    **{name: _table(name) for name in ("sleepstudy", "gasoline", "exam", "mr_contraception")},
    "housing-bodyfat": Case((0, 1, 2), 600, words=("local.rounds=180",), what="two groups, 2 of 8 devices in a round"),
    "digits": Case((0, 1, 2), 100, what="a small network, all devices in every round", network=True),
    "synthetic:S1": _scenario(0, 1, 2),
    **{f"synthetic:S{i}": _scenario(0) for i in range(2, 6)},
    "fashion-mnist": IMAGES,
    "mnist": IMAGES,
}


def family_of(method: str) -> str:
    """Return what a method gives devices: one model, one for each group, or one each."""
    for family in ("clustered", "personal"):
        if method in methods_of(family):
            return "groups" if family == "clustered" else family
    return "one model"


# -- runs


class Stopwatch(Watcher):
    """Processor seconds of every run, kept beside them; of one that was interrupted, those of both parts."""

    def __init__(self, path: Path, until: float) -> None:
        self.path, self.until = path, until
        self.spent: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        self.names: list[str] = []
        self.running: str | None = None
        self.clock = time.process_time()

    def begin(self, jobs: Sequence[Job]) -> None:
        self.names, self.clock = [f"{job.label}-seed{job.seed}" for job in jobs], time.process_time()
        self.running = self.names[0] if jobs else None

    def look(self, shares: Sequence[float]) -> None:
        """Charge the time since the last look to the run that is at work: the first that has not ended, or had not."""
        now = time.process_time()
        if self.running:
            self.spent[self.running] = self.spent.get(self.running, 0.0) + now - self.clock
        self.clock = now
        left = [name for name, share in zip(self.names, shares, strict=True) if share not in (DONE, FAILED)]
        if left[:1] != [self.running]:
            self.path.write_text(json.dumps(self.spent, indent=0))
            if left:
                print(f"{now:7.0f} s {self.path.parent} {left[0]}", flush=True)
        self.running = left[0] if left else None
        if now > self.until:
            raise KeyboardInterrupt

    def close(self) -> None:
        self.path.write_text(json.dumps(self.spent, indent=0))


def places(out: Path, name: str) -> list[tuple[Path, tuple[int, ...]]]:
    """Return the directories of a data set, and the seeds in each: a federation without a name has one of its own."""
    case, folder = CASES[name], out / name.replace(":", "-")
    return [(folder / f"draw{seed}", (seed,)) for seed in case.seeds] if case.make else [(folder, case.seeds)]


def run(out: Path, names: list[str], minutes: float) -> None:
    """Run what is missing, the first seed of all data sets first, for at most so many minutes of the processor."""
    for turn in range(max(len(CASES[name].seeds) for name in names)):
        for name in (name for name in names if turn < len(CASES[name].seeds)):
            case, seed = CASES[name], CASES[name].seeds[turn]
            directory = places(out, name)[turn if case.make else 0][0]
            directory.mkdir(parents=True, exist_ok=True)
            ff.compare(
                case.make(seed) if case.make else name, case.methods, (seed,), rounds=case.rounds, words=case.words,
                evaluate_every=10**6, out=directory, watcher=Stopwatch(directory / "processor.json", 60 * minutes),
            )  # fmt: skip


# -- the page


def stored(out: Path) -> pd.DataFrame:
    """Return one row for every run that is there: its numbers, family, processor seconds and error."""
    rows = []
    for name in CASES:
        for directory, _ in places(out, name):
            if not (directory / "table.csv").exists():
                continue
            found, clock = Comparison.load(directory), directory / "processor.json"
            spent = json.loads(clock.read_text()) if clock.exists() else {}  # not there where `compare` was run
            profile = next(iter(found.results.values())).profile
            for row in found.runs[found.runs["method"].isin(CASES[name].methods)].to_dict("records"):
                key = (row["method"], row["seed"])
                d = found.results[key].models.shape[1] if key in found.results else np.nan
                better = METRICS[found.metric].greater_is_better
                rows.append(
                    row
                    | {"data": name, "metric": found.metric, "m": len(profile.names), "d": d, "better": better}
                    | {"worth": row["cost_floats"] / (len(profile.names) * d), "family": family_of(row["method"])}
                    | {"cpu": spent.get(f"{row['method']}-seed{row['seed']}", np.nan)}
                )
    table: pd.DataFrame = pd.DataFrame(rows)
    return table


@dataclass(frozen=True)
class Ranking:
    """Mean ranks over data sets, and what can be said of their differences."""

    ranks: pd.DataFrame  # methods x data sets: 1 is best, ties share, means over seeds
    friedman: float
    critical: float  # the difference of two mean ranks that Nemenyi's test calls significant
    p: pd.Series[float]  # Wilcoxon's signed ranks against the best, Holm's correction

    @classmethod
    def of(cls, runs: pd.DataFrame) -> Ranking:
        """Rank the methods that are not told the groups and have a score on every data set."""
        runs = runs[runs["method"] != "oracle"]
        loss = np.where(runs["better"], 1 - runs["test"], runs["test"])
        runs = runs.assign(loss=np.maximum(loss, np.where(runs["better"], MIN_ERROR, 0)))
        losses = runs.pivot_table(index="method", columns=["data", "seed"], values="loss", sort=False)
        ranks = losses.rank(axis=0).T.groupby("data", sort=False).mean().T
        order = pd.DataFrame({"gaps": ranks.isna().any(axis=1), "mean": ranks.mean(axis=1)}).sort_values(
            ["gaps", "mean"]
        )
        ranks = ranks.loc[order.index]  # those without a score on every data set last
        whole = ranks.dropna()
        again = whole.apply(rankdata, axis=0)
        k, n = whole.shape
        logs = np.log(losses).T.groupby("data", sort=False).mean().T
        best = whole.index[0]
        p = [
            wilcoxon_p((logs.loc[m] - logs.loc[best]).dropna().to_numpy()) if m != best else np.nan for m in ranks.index
        ]
        critical = studentized_range.ppf(1 - LEVEL, k, np.inf) / np.sqrt(2) * np.sqrt(k * (k + 1) / (6 * n))
        return cls(
            ranks, float(friedmanchisquare(*again.to_numpy()).pvalue), float(critical),
            pd.Series(holm(np.array(p)), index=ranks.index),
        )  # fmt: skip


def draw(ranking: Ranking, path: Path) -> None:
    """Draw mean ranks, best on top; those within the critical difference of the best on a grey ground."""
    ranks, mean = ranking.ranks, ranking.ranks.mean(axis=1)
    _, ax = plt.subplots(figsize=(7.5, 0.26 * len(ranks) + 1.1), layout="constrained")
    ax.axvspan(mean.iloc[0], min(mean.iloc[0] + ranking.critical, len(ranks)), color="#e8e8e8", lw=0)
    for place, method in enumerate(ranks.index):
        family = family_of(method)
        each = ranks.loc[method].dropna()
        ax.plot(each, np.full(len(each), place), "|", color=COLOURS[family], alpha=0.6, ms=7)
        ax.plot(mean[method], place, MARKERS[family], color=COLOURS[family], ms=6)
    for family, colour in COLOURS.items():
        ax.plot([], [], MARKERS[family], color=colour, label=family)
    ax.set(yticks=range(len(ranks)), yticklabels=ranks.index, ylim=(len(ranks) - 0.4, -0.6))
    ax.set(xlabel=f"rank: mean (marks), each data set (strokes); grey: critical difference, {ranking.critical:.1f}")
    ax.grid(axis="x", alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(COLOURS), frameon=False)  # hides no mark
    plt.savefig(path, metadata={"Date": None})
    plt.close()


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def matrix(runs: pd.DataFrame, order: Sequence[str], value: str, show: Callable[[pd.DataFrame], str]) -> str:
    """Return a table of methods and data sets; ``show`` makes a cell of the runs of one method on one data set."""
    names = [name for name in CASES if runs.loc[runs["data"] == name, value].notna().any()]
    rows = []
    for method in order:
        some = runs[(runs["method"] == method) & runs[value].notna()]
        cells = [some[some["data"] == name] for name in names]
        if any(map(len, cells)):
            rows.append([method, *(show(cell) if len(cell) else NOTHING for cell in cells)])
    return markdown(["method", *(name.replace("synthetic:", "") for name in names)], rows)


def score(runs: pd.DataFrame) -> str:
    """Return the mean test score of the runs, and its spread."""
    scale, mean = 100 if runs["better"].iloc[0] else 1, float(runs["test"].mean())
    if not mean < MAX_ERROR:
        return "diverged"
    places = 1 if scale == 100 else max(0, 2 - int(np.floor(np.log10(mean))))
    text = f"{scale * mean:.{places}f}"
    return f"{text} ± {scale * runs['test'].std(ddof=0):.{places}f}" if len(runs) > 1 else text


def page(out: Path, into: Path) -> str:
    """Return the page, and draw its picture."""
    runs = stored(out)
    ranking, picture = Ranking.of(runs), into.with_suffix(".svg")
    draw(ranking, picture)
    mean, counted = ranking.ranks.mean(axis=1), ranking.ranks.notna().sum(axis=1)
    order = [*ranking.ranks.index, "oracle"]
    rows = []
    for method in ranking.ranks.index:
        mine = runs[runs["method"] == method]
        p, ari = ranking.p[method], mine["ari"].dropna()
        rows.append([
            f"`{method}`", family_of(method), f"{mean[method]:.1f}", str(counted[method]),
            NOTHING if np.isnan(p) else f"{p:.3f}" if p >= 0.001 else "< 0.001",
            f"{ari.mean():.2f}" if len(ari) else NOTHING, f"{mine['worth'].median():.0f}", f"{mine['cpu'].sum():.0f}",
        ])  # fmt: skip
    heads = ("method", "models", "mean rank", "data sets", "p", "ARI", "sent", "processor s")
    used = runs.groupby("data", sort=False)
    about = [
        [f"`{name}`", CASES[name].what, str(some["m"].iloc[0]), f"{len(some['seed'].unique())}",
         str(CASES[name].rounds), METRICS[some["metric"].iloc[0]].label]
        for name, some in used
    ]  # fmt: skip
    missing = [name for name in CASES if name not in set(runs["data"])]
    failed = runs[runs["error"].notna()].groupby(["method", "error"], sort=False)["data"].unique()
    notes = [f"- `{method}` failed on {', '.join(names)}: {error}" for (method, error), names in failed.items()]
    if missing:
        notes.append(f"- Not run yet: {', '.join(missing)}.")
    n, tests = ranking.ranks.shape[1], len(ranking.ranks) - 1
    few = f" With {n} data sets and {tests} tests no p can be below {LEVEL}." if tests * 2.0 ** (1 - n) >= LEVEL else ""
    return TEXT.format(
        level=LEVEL, n=n, few=few, friedman=f"{ranking.friedman:.1g}",
        critical=f"{ranking.critical:.1f}", picture=picture.name, best=ranking.ranks.index[0],
        minutes=f"{runs['cpu'].sum() / 60:.0f}", ranks=markdown(heads, rows),
        data=markdown(("data", "what", "devices", "seeds", "rounds", "score"), about),
        notes="".join(f"{note}\n" for note in notes) + "\n" * bool(notes),
        scores=matrix(runs, order, "test", score),
        ari=matrix(runs, order, "ari", lambda cell: f"{cell['ari'].mean():.2f}"),
        sent=matrix(runs, order, "worth", lambda cell: f"{cell['worth'].mean():.0f}"),
        seconds=matrix(runs, order, "cpu", lambda cell: f"{cell['cpu'].mean():.1f}"),
    )  # fmt: skip


TEXT = """# Leaderboard

All methods, by their names alone, on {n} data sets. [Which method?](methods.md) says what each is for. Written by

```
python benchmarks/leaderboard.py run
python benchmarks/leaderboard.py page
```

On a data set all methods have the same rounds (LOCAL, which trains everybody, as many device-rounds as the others), and
a search for settings that are left open takes its share of them. Rounds are few: what takes gradient steps still gains
with more. The runs that were timed took {minutes} minutes of one core; the first command may be stopped, and goes on
where it was.

![Mean ranks of the methods]({picture})

Rank 1 is the best test score on a data set; ties share, seeds are averaged; methods without a score on every data set
come last. That all methods are alike: p = {friedman}
(Friedman). Mean ranks that differ by {critical} or more differ at {level} (Nemenyi). The column p compares with
`{best}`: Wilcoxon's signed ranks of log error (RMSE; share of wrong labels), with Holm's correction.{few}

ARI is the mean over data with known groups ([why some methods miss them](methods.md#where-groups-are-missed)). Sent:
floats per device and parameter, the median over runs, so 1 is one model one way. The last column sums up processor
seconds of all runs, where they were taken. Test rows are used for scoring only.

{ranks}

## Data

{data}

`continuous-…` have no groups: the coefficients of devices vary around a centre. Real tables are described
[here](real-tables.md). MNIST, Fashion-MNIST and digits have four groups of devices with swapped labels. FedPer and
FedRep share the layers below the last, so they run on networks alone: linear and softmax regression have none. MOCHA is
for these two. Each case is a comparison like any other. The column S1 is that of
`fedfuse compare synthetic:S1 --methods all --seeds 3 --rounds 200 --set local.rounds=60`.

{notes}## Scores

Accuracy in %, or RMSE; mean and population standard deviation where there are several seeds. `oracle` is told the true
groups and has no rank.

{scores}

## Agreement with the true groups

Adjusted Rand index.

{ari}

## Sent

Floats per device and parameter, both directions, searches included.

{sent}

## Time

Processor seconds of a run.

{seconds}
"""


def main() -> None:
    """Run, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--out", type=Path, default=Path("runs/leaderboard"))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--minutes", type=float, default=60, help="of the processor, at the most")
    parser.add_argument("--into", type=Path, default=Path("docs/leaderboard.md"))
    asked = parser.parse_args()
    if asked.what == "page":
        asked.into.write_text(page(asked.out, asked.into))
        return
    try:
        run(asked.out, asked.cases.split(","), asked.minutes)
    except KeyboardInterrupt:
        print("stopped; the same command goes on")


if __name__ == "__main__":
    main()
