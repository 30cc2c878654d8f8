"""test score against lambda."""

from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import READ_OFF
from fedfuse.paper.sweeps import SettingSweep

VALUES = {
    "synthetic": tuple(k / 10 for k in range(11)),
    "housing-bodyfat": tuple(k / 2 for k in range(11)),
    "images": tuple(k / 10 for k in range(11)),
}
QUICK = {
    "synthetic": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    "housing-bodyfat": (0.0, 1.0, 2.0, 3.0, 4.0, 5.0),
    "images": (0.0, 0.2, 0.6),
}

ITEM = Item(
    name="lambda",
    title="test score against lambda",
    where="Figure of appendix E.2",
    experiment=SettingSweep("lam", VALUES, QUICK),
    why=(READ_OFF,),
)
