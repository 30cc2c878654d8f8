"""Communication strategies: the same local steps in all, in rounds of 5, of 10, or of a growing number."""

from fedfuse.paper.courses import Plan, Strategies
from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import IMAGES, STEPS
from fedfuse.protocol.local_work import Grow

CONSTANT = {"T = 5": 5, "T = 10": 10}
PRINTED = """
data,strategy,acc
mnist,growing,86.62
mnist,T = 10,85.31
mnist,T = 5,77.05
fashion-mnist,growing,68.28
fashion-mnist,T = 10,65.62
fashion-mnist,T = 5,59.34
"""

ITEM = Item(
    name="strategies",
    title="communication strategies: constant and growing local steps",
    where="Figure of section 6.4.4",
    experiment=Strategies(
        plans=(
            Plan("synthetic:S1", 10_000, {**CONSTANT, "growing": Grow(20)}),
            Plan("housing-bodyfat", 800, {**CONSTANT, "growing": Grow(1)}),
            Plan("mnist", 1000, {**CONSTANT, "growing": Grow(2)}, after=62),
            Plan("fashion-mnist", 1000, {**CONSTANT, "growing": Grow(2)}, after=62),
        ),
        numbers=PRINTED,
    ),
    why=(STEPS, IMAGES),
)
