"""50 random initial values, FPFC against IFCA, S1 and S3."""

from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import IFCA, READ_OFF
from fedfuse.paper.sweeps import Starts

ITEM = Item(
    name="starts",
    title="50 random initial values, FPFC against IFCA, S1 and S3",
    where="Figure of appendix E.2",
    experiment=Starts(),
    why=(
        IFCA,
        READ_OFF,
    ),
)
