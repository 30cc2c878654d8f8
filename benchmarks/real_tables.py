"""Real tables: what fedfuse predicts with, against simple models that are tuned.

What: eleven targets in the tables of $FEDFUSE_DATA/real, seeds 0, 1, 2. `ff.fit(federation)` with nothing set, and the
same training and test rows for
    alone          a ridge (or logistic regression) for each site, in columns that it standardises; one strength for all
                   sites, by leave-one-out (by 5 folds)
    one model      the same for all rows together
    random slopes  one ridge (or logistic regression) on columns and site x columns, its strength by leave-one-out
                   (by 5 folds)
The score is the mean over sites of the RMSE, or of the accuracy, on test rows.
Command: python benchmarks/real_tables.py [--tables a,b] [--into docs/real-tables.md]
How long: about 6 minutes on two cores.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from regrets import TABLES, read_site_table
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

import fedfuse as ff

SEEDS = range(3)
STRENGTHS = 10.0 ** np.arange(-5, 3.1, 0.5)
PENALTIES = 10.0 ** np.arange(-2, 1.1, 0.75)  # scikit-learn's C
COLUMNS = ("table", "sites", "verdict", "fedfuse", "by groups", "alone", "one model", "random slopes", "from the best")
Parts = dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]


def standardised(federation: ff.Federation) -> tuple[Parts, float]:
    """Return rows, targets and sites of the parts, and the unit of the target."""
    parts: Parts = {}
    for name in ("train+validation", "test"):
        rows = federation.rows(name)
        use = np.concatenate([np.arange(a, b) for a, b in zip(rows.start, rows.stop, strict=True)])
        parts[name] = (rows.X[use], rows.y[use], np.repeat(np.arange(federation.m), rows.counts))
    X, y, _ = parts["train+validation"]
    mean, scale = X.mean(axis=0), np.where(X.std(axis=0) > 1e-9, X.std(axis=0), 1.0)
    shift, unit = (y.mean(), y.std()) if federation.goal == "regression" else (0, 1.0)
    return {k: ((X - mean) / scale, (y - shift) / unit if unit != 1 else y, g) for k, (X, y, g) in parts.items()}, unit


def ridge(Z: np.ndarray, T: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return leave-one-out errors and predictions of test rows, for every strength (rows x strengths)."""
    n, mean = len(y), Z.mean(axis=0)
    Z, T = Z - mean, T - mean
    squares, V = np.linalg.eigh(Z.T @ Z if Z.shape[1] <= n else Z @ Z.T)
    use = squares > 1e-10 * squares[-1]
    squares, V = squares[use], V[:, use]
    U = Z @ V / np.sqrt(squares) if Z.shape[1] <= n else V
    along = T @ V if Z.shape[1] <= n else T @ (Z.T @ V) / np.sqrt(squares)
    q, errors, predicted = U.T @ (y - y.mean()), [], []
    for strength in STRENGTHS:
        shrink = squares / (squares + n * strength)
        leverage = np.square(U) @ shrink + 1 / n
        errors.append((y - y.mean() - U @ (shrink * q)) / np.maximum(1 - leverage, 1e-6))
        predicted.append(along @ (shrink / np.sqrt(squares) * q) + y.mean())
    return np.array(errors).T, np.array(predicted).T


def linear(parts: Parts) -> dict[str, np.ndarray]:
    """Return predictions of test rows."""
    (X, y, g), (T, _, h) = parts["train+validation"], parts["test"]
    own, m = {}, int(g.max()) + 1
    for s in range(m):
        mean, scale = X[g == s].mean(axis=0), X[g == s].std(axis=0)
        own[s] = ridge(
            *((part - mean) / np.where(scale > 1e-9, scale, 1.0) for part in (X[g == s], T[h == s])), y[g == s]
        )
    best = np.mean([np.sqrt(np.square(errors).mean(axis=0)) for errors, _ in own.values()], axis=0).argmin()
    found = {"alone": np.zeros(len(h))}
    for s, (_, predicted) in own.items():
        found["alone"][h == s] = predicted[:, best]

    def slopes(X: np.ndarray, g: np.ndarray) -> np.ndarray:
        site = (g[:, None] == np.arange(m)).astype(float)
        return np.hstack([X, site, *(site * X[:, [j]] for j in range(X.shape[1]))])

    for name, designs in (("one model", (X, T)), ("random slopes", (slopes(X, g), slopes(T, h)))):
        errors, predicted = ridge(*designs, y)
        found[name] = predicted[:, np.square(errors).mean(axis=0).argmin()]
    return found


def logistic(parts: Parts) -> dict[str, np.ndarray]:
    """Return predicted classes of test rows."""
    (X, y, g), (T, _, h) = parts["train+validation"], parts["test"]
    m = int(max(g.max(), h.max())) + 1

    def design(X: np.ndarray, g: np.ndarray, slopes: bool) -> sp.csr_matrix:
        site = sp.csr_matrix((np.ones(len(g)), (np.arange(len(g)), g)), shape=(len(g), m))
        own = [site, *(site.multiply(X[:, [j]]) for j in range(X.shape[1]))] if slopes else []
        return sp.hstack([sp.csr_matrix(X), *own]).tocsr()

    def of_sites(X: np.ndarray, y: np.ndarray, g: np.ndarray, T: np.ndarray, h: np.ndarray, C: float) -> np.ndarray:
        outputs = np.zeros((len(h), int(y.max()) + 1))
        for s in np.unique(h):
            known = np.unique(y[g == s])
            if len(known) < 2:
                outputs[np.ix_(h == s, known.astype(int))] = 1 - 1e-3
                continue
            model = LogisticRegression(C=C, solver="liblinear").fit(X[g == s], y[g == s])
            outputs[np.ix_(h == s, model.classes_.astype(int))] = model.predict_proba(T[h == s])
        return outputs

    def loss(outputs: np.ndarray, y: np.ndarray) -> float:
        return float(-np.log(np.maximum(outputs[np.arange(len(y)), y.astype(int)], 1e-3)).mean())

    def all_rows(X: np.ndarray, y: np.ndarray, g: np.ndarray, T: np.ndarray, h: np.ndarray, C: float, slopes: bool):
        model = LogisticRegression(C=C, max_iter=500).fit(design(X, g, slopes), y)
        return model.predict_proba(design(T, h, slopes))

    ways = {
        "alone": of_sites,
        "one model": lambda *a: all_rows(*a, False),
        "random slopes": lambda *a: all_rows(*a, True),
    }
    folds = list(StratifiedKFold(5, shuffle=True, random_state=0).split(X, y))
    found = {}
    for name, way in ways.items():
        losses = [np.mean([loss(way(X[a], y[a], g[a], X[b], g[b], C), y[b]) for a, b in folds]) for C in PENALTIES]
        found[name] = way(X, y, g, T, h, PENALTIES[int(np.argmin(losses))]).argmax(axis=1)
    return found


def scores(name: str, seed: int) -> dict[str, float | str]:
    """Return the scores of all on one table."""
    federation, _ = read_site_table(name, seed)
    result = ff.fit(federation, seed=seed)
    parts, unit = standardised(federation)
    regression = federation.goal == "regression"
    found: dict[str, float | str] = {"sites": federation.m, "verdict": str(result.verdict)}
    found |= {"fedfuse": result.score("test"), "by groups": result.comparison()["groups"] or np.nan}
    _, y, h = parts["test"]
    for way, predicted in (linear if regression else logistic)(parts).items():
        each = [
            unit * np.sqrt(np.square(predicted[h == s] - y[h == s]).mean())
            if regression
            else (predicted[h == s] == y[h == s]).mean()
            for s in np.unique(h)
        ]
        found[way] = float(np.mean(each))
    return found


def row(name: str) -> tuple[list[str], float]:
    """Return a line of the table, and how much worse than the best simple model fedfuse is, in per cent."""
    clock = time.perf_counter()
    runs = [scores(name, seed) for seed in SEEDS]
    means = {key: float(np.mean([run[key] for run in runs])) for key in runs[0] if key not in ("verdict", "sites")}
    others = [means[key] for key in ("alone", "one model", "random slopes")]
    accuracy = TABLES[name][1] in ("use", "r2", "union")
    best = max(others) if accuracy else min(others)
    worse = 100 * (1 - means["fedfuse"] / best) if accuracy else 100 * (means["fedfuse"] / best - 1)
    verdicts = ", ".join(sorted({str(run["verdict"]) for run in runs}))
    numbers = [f"{means[key]:.4g}" for key in ("fedfuse", "by groups", "alone", "one model", "random slopes")]
    print(f"{name}: {worse:+.1f} % {means} ({time.perf_counter() - clock:.0f} s)", flush=True)
    shown = f"{name}: {TABLES[name][1]}{', accuracy' if accuracy else ''}"
    from_best = f"{abs(worse):.1f} % {'worse' if worse > 0 else 'better'}"
    return [shown, str(runs[0]["sites"]), verdicts, *numbers, from_best], worse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--into", type=Path)
    asked = parser.parse_args()
    rows, worse = zip(*(row(name) for name in asked.tables.split(",")), strict=True)
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    within = sum(w <= 1 for w in worse)
    told = f"Within 1 % of the best simple model: {within} of {len(worse)}. At worst: {max(worse):.1f} %."
    print(f"\n{table}\n\n{told}")
    if asked.into:
        page = asked.into.read_text(encoding="utf-8")
        first, last = "<!-- table -->\n", "<!-- end of table -->"
        page = re.sub(f"{first}.*{last}", lambda _: f"{first}{table}\n\n{told}\n{last}", page, flags=re.S)
        asked.into.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
