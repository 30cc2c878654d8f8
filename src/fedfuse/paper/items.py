"""Every table and figure of the paper: one declaration each, with data, settings, printed numbers and reasons."""

from __future__ import annotations

from fedfuse import FedfuseError, Grow
from fedfuse.errors import guess
from fedfuse.paper.curves import Asynchronous, Curves, SlowNodes, Snapshots, SolutionPaths, StepBudget, Strategies
from fedfuse.paper.experiment import Item
from fedfuse.paper.paper_tables import MethodsTable, NewcomersTable, TuningTable, Variant
from fedfuse.paper.sensitivity import AttackExperiment, SettingSweep, Starts
from fedfuse.paper.setup import OURS, PAPER

S1, HOUSING, MNIST, FASHION = "synthetic:S1", "housing-bodyfat", "mnist", "fashion-mnist"
ALL_DATA = (S1, HOUSING, MNIST, FASHION)
TENTHS, HALVES = tuple(k / 10 for k in range(11)), tuple(k / 2 for k in range(11))
# A lambda on images takes minutes. The printed ones are among these.
IMAGE_LAMBDAS = (0.0, 0.1, 0.2, 0.4, 0.6, 1.0)
POWERS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
CONSTANT_STEPS = {"T = 5": 5, "T = 10": 10}
IMAGE_STEPS = StepBudget(1000, {**CONSTANT_STEPS, "growing": Grow(2)}, compare_after=62)
IMAGE_NODES = SlowNodes(20, 5, "uniform(0,800)", rounds=80)

# Rows of the methods' tables. FPFC and FPFC-l1 are tuned as the text says, lambda on validation rows and nu by the gap;
# LG can be scored by the models that devices trained last.
TUNED = {"lam": "separate", "nu": None}
WARM, GAP = {"lam": "warmup", "nu": None}, {"nu": None}
COMMON_ROWS = {label: Variant(label) for label in PAPER if not label.startswith("fpfc")} | {
    "fpfc-l1": Variant("fpfc-l1", TUNED),
    "fpfc": Variant("fpfc", TUNED),
    **{label: Variant(label) for label in OURS},
    "FPFC without a lambda": Variant("fpfc", {"lam": "auto", "nu": None}),
    "FPFC, lambda on validation (warm-up)": Variant("fpfc", WARM),
    "FPFC, lambda of the paper": Variant("fpfc", GAP),
    "FPFC, lambda of the paper, nu 0.1": Variant("fpfc"),
    "FPFC-l1, lambda 0.2, nu 0.1": Variant("fpfc-l1"),
    "LG, own last models": Variant("lg-fedavg", {"evaluate": "local"}),
}
SYNTHETIC_ROWS = COMMON_ROWS | {
    "LG, own last models, 200 rounds": Variant("lg-fedavg", {"evaluate": "local"}, rounds=200)
}
BEST_OF_TEN = {"IFCA, best of 10 starts": Variant("ifca", {"restarts": 10})}
ROWS: dict[str, dict[str, Variant]] = {f"synthetic:S{k}": SYNTHETIC_ROWS for k in range(2, 6)} | {
    S1: SYNTHETIC_ROWS | BEST_OF_TEN | {"LOCAL, all rounds": Variant("local", rounds=2000)},
    HOUSING: COMMON_ROWS | BEST_OF_TEN | {
        "FPFC, lambda of the paper, the authors' nu": Variant("fpfc", {"nu": 3.0}),
        "FPFC, lambda on validation (separate), the authors' nu": Variant("fpfc", {**TUNED, "nu": 3.0}),
        "FPFC-l1, lambda on validation (separate), the authors' nu": Variant("fpfc-l1", {**TUNED, "nu": 4.0}),
        "FPFC-l1, lambda on validation (warm-up)": Variant("fpfc-l1", WARM),
        "LG, own last models, equal weights": Variant("lg-fedavg", {"evaluate": "local", "weights": "equal"}),
        "Per-FedAvg, equal weights": Variant("per-fedavg", {"weights": "equal"}),
        "LOCAL, all rounds": Variant("local", rounds=200),
    },
}  # fmt: skip
# The lambda of tables E.3 and E.4, where all devices are alike or all different.
EXTREME_LAMBDAS = {"synthetic:S4": 1.0, "synthetic:S5": 0.0}
TABLES: tuple[str, ...] = ("Choice of lambda", "Choice of groups", "Unpublished steps", "Local work", "IFCA", "LG")
TABLES += ("Seeds", "Synthetic data")

# Name, title, place in the paper, experiment, headings of reasons.md; in the order of the paper.
ITEMS = (
    Item("table1", "all methods on S1 and on housing and body fat", "Table 1",
         MethodsTable(data=(S1, HOUSING), numbers="table1.csv", rows=ROWS),
         (*TABLES, "Housing and body fat", "Floats")),
    Item("table2", "lambda and time by warm-up and by separate tuning", "Table 2 and figure of section 6.3",
         TuningTable(
             data=ALL_DATA, numbers="table2.csv",
             grids={S1: HALVES[:8], HOUSING: HALVES, MNIST: IMAGE_LAMBDAS, FASHION: IMAGE_LAMBDAS}),
         ("Time", "End of a lambda", "Choice of lambda", "Images")),
    Item("table3", "newcomers: a fifth of the devices joins after training", "Table 3",
         NewcomersTable(data=(S1, MNIST, FASHION), numbers="table3.csv"),
         ("Newcomers", "Synthetic data", "Images")),
    *(Item(f"tableE{k}", f"all methods on S{k + 1}: {groups}", f"Table E.{k}",
           MethodsTable(data=(f"synthetic:S{k + 1}",), numbers=f"tableE{k}.csv", rows=ROWS, lam=EXTREME_LAMBDAS),
           (*TABLES, *more))
      for k, groups, more in (
          (1, "groups of 10, 40, 10 and 40 devices", ()), (2, "two groups of 50 devices", ()),
          (3, "50 devices, all alike", ("All devices alike",)),
          (4, "50 devices, all different", ("All devices different",)))),
    Item("figure1", "solution paths of the toy example under four penalties", "Figure 1", SolutionPaths(),
         ("Toy example",)),
    Item("distances", "distances between devices' models, and their t-SNE, after 0, 5, 50 and 600 rounds",
         "Figures of section 6.2", Snapshots(data=(S1,)), ("Choice of lambda",)),
    Item("mnist", "training loss, training and test accuracy on MNIST", "Figure of section 6.2 (MNIST)",
         Curves(data=(MNIST,)), ("Images", "Local work")),
    Item("fmnist", "training loss, training and test accuracy on Fashion-MNIST", "Figure of section 6.2 (FMNIST)",
         Curves(data=(FASHION,)), ("Images", "Local work")),
    Item("cost", "floats sent on MNIST and Fashion-MNIST", "Figure of section 6.2 (cost)",
         Curves(data=(MNIST, FASHION), show_as="cost"), ("Images", "Local work")),
    Item("attacks-synthetic", "three attacks on S1, up to 80 % liars", "Figure of appendix E (synthetic)",
         AttackExperiment(data=(S1,)), ("Attacks", "Synthetic data")),
    Item("attacks-mnist", "three attacks on MNIST, up to 80 % liars", "Figure of appendix E (MNIST)",
         AttackExperiment(data=(MNIST,)), ("Attacks", "Images")),
    Item("attacks-fmnist", "three attacks on Fashion-MNIST, up to 80 % liars", "Figure of section 6.4.1",
         AttackExperiment(data=(FASHION,)), ("Attacks", "Images")),
    Item("async", "synchronous against asynchronous FPFC with random delays", "Figure of section 6.4.3",
         Asynchronous(data=("synthetic:5,5,5,5", HOUSING, MNIST, FASHION), nodes={
             "synthetic:5,5,5,5": SlowNodes(20, 5, "uniform(0,20)", rounds=400),
             HOUSING: SlowNodes(8, 3, "uniform(0,20)", rounds=200),
             MNIST: IMAGE_NODES, FASHION: IMAGE_NODES,
         }),
         ("Delays", "Images")),
    Item("strategies", "communication strategies: constant and growing local steps", "Figure of section 6.4.4",
         Strategies(data=ALL_DATA, numbers="strategies.csv", budgets={
             S1: StepBudget(10_000, {**CONSTANT_STEPS, "growing": Grow(20)}),
             HOUSING: StepBudget(800, {**CONSTANT_STEPS, "growing": Grow(1)}),
             MNIST: IMAGE_STEPS, FASHION: IMAGE_STEPS,
         }),
         ("Local steps", "Images")),
    Item("starts", "50 random initial values, FPFC against IFCA, S1 and S3", "Figure of appendix E.2",
         Starts(data=(S1, "synthetic:S3")), ("Random starts", "Synthetic data")),
    Item("lambda", "test score against lambda", "Figure of appendix E.2",
         SettingSweep(
             data=ALL_DATA, key="lam", values={"synthetic": TENTHS, HOUSING: HALVES, "images": IMAGE_LAMBDAS}),
         ("Settings of figures", "Choice of groups", "Images")),
    Item("epochs", "test score against the most local epochs of a device", "Figure of appendix E.2",
         SettingSweep(
             data=ALL_DATA, key="epochs",
             values={"synthetic": (1, 2, 5, 10, 15, 20), HOUSING: (1, 2, 5, 10, 20, 30), "images": (1, 2, 4, 8)}),
         ("Settings of figures", "Choice of groups", "Images")),
    Item("xi", "test score against xi, the width of smoothing", "Figure of appendix E.2",
         SettingSweep(
             data=ALL_DATA, key="xi", values={"synthetic": POWERS, HOUSING: POWERS, "images": POWERS[::2]}),
         ("Settings of figures", "Choice of groups", "Images")),
)  # fmt: skip


def items() -> dict[str, Item]:
    """Return all items by name, in the order of the paper."""
    return {item.name: item for item in ITEMS}


def chosen(names: list[str]) -> list[Item]:
    """Return the items of these names, in capitals or not; ``all`` are all."""
    known = items()
    if names == ["all"]:
        return list(known.values())
    names = [next((own for own in known if own.lower() == name.lower()), name) for name in names]
    for name in names:
        if name not in known:
            words = f"{guess(name, known)}known: {', '.join(known)}, or all, list, page"
            raise FedfuseError(f"the paper has no {name!r}; {words}")
    return [known[name] for name in dict.fromkeys(names)]
