"""test score against the most local epochs of a device."""

from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import READ_OFF
from fedfuse.paper.sweeps import SettingSweep

VALUES = {
    "synthetic": (1, 2, 5, 10, 15, 20),
    "housing-bodyfat": (1, 2, 5, 10, 20, 30),
    "images": (1, 2, 5, 10, 15),
}
QUICK = {"synthetic": (1, 5, 10, 20), "housing-bodyfat": (1, 5, 10, 20, 30), "images": (1, 2, 4)}

ITEM = Item(
    name="epochs",
    title="test score against the most local epochs of a device",
    where="Figure of appendix E.2",
    experiment=SettingSweep("epochs", VALUES, QUICK),
    why=(READ_OFF,),
)
