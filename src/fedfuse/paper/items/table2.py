"""Table 2: lambda by warm-up and by separate tuning, and how long that takes."""

from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import LAMBDA, MACHINE, WARMUP
from fedfuse.paper.lambdas import TuningTable

PRINTED = """
strategy,data,lambda,time,unit
separate,synthetic:S1,0.5,4.02,h
separate,housing-bodyfat,4,39.41,s
separate,mnist,0.1,3.94,h
separate,fashion-mnist,0.1,2.80,h
warmup,synthetic:S1,3,0.46,h
warmup,housing-bodyfat,4,14.74,s
warmup,mnist,0.4,0.58,h
warmup,fashion-mnist,0.6,0.59,h
"""
IMAGES, FEW = tuple(k / 10 for k in range(11)), (0.0, 0.2, 0.6)
GRIDS = {
    "synthetic:S1": tuple(k / 2 for k in range(8)),
    "housing-bodyfat": tuple(k / 2 for k in range(11)),
    "mnist": IMAGES,
    "fashion-mnist": IMAGES,
}
QUICK = GRIDS | {"housing-bodyfat": (0.0, 1.0, 2.0, 3.0, 4.0, 5.0), "mnist": FEW, "fashion-mnist": FEW}

ITEM = Item(
    name="table2",
    title="lambda and time by warm-up and by separate tuning",
    where="Table 2",
    experiment=TuningTable(GRIDS, QUICK, PRINTED),
    why=(MACHINE, WARMUP, LAMBDA),
)
