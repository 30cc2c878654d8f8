"""test score against xi, the width of smoothing."""

from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import READ_OFF
from fedfuse.paper.sweeps import SettingSweep

VALUES = dict.fromkeys(("synthetic", "housing-bodyfat", "images"), (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1))
QUICK = dict.fromkeys(("synthetic", "housing-bodyfat"), (1e-6, 1e-4, 1e-2, 1e-1)) | {"images": (1e-6, 1e-3, 1e-1)}

ITEM = Item(
    name="xi",
    title="test score against xi, the width of smoothing",
    where="Figure of appendix E.2",
    experiment=SettingSweep("xi", VALUES, QUICK),
    why=(READ_OFF,),
)
