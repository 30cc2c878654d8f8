"""The figure of the two tuning strategies: validation by round, seconds for each lambda. The runs of Table 2."""

from dataclasses import replace

from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import MACHINE, WARMUP
from fedfuse.paper.items.table2 import GRIDS, PRINTED, QUICK
from fedfuse.paper.lambdas import TuningTable

ITEM = Item(
    name="tuning",
    title="how warm-up goes through its lambdas, and seconds for each",
    where="Figure of section 6.3",
    experiment=replace(TuningTable(GRIDS, QUICK, PRINTED), show_as="figure"),
    why=(MACHINE, WARMUP),
)
