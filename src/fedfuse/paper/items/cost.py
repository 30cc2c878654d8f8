"""floats sent on MNIST and Fashion-MNIST."""

from fedfuse.paper.courses import Curves
from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import IMAGES, READ_OFF

ITEM = Item(
    name="cost",
    title="floats sent on MNIST and Fashion-MNIST",
    where="Figure of section 6.2 (cost)",
    experiment=Curves(("mnist", "fashion-mnist"), "cost"),
    why=(
        IMAGES,
        READ_OFF,
    ),
)
