"""training loss, training and test accuracy on MNIST."""

from fedfuse.paper.courses import Curves
from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import IMAGES, READ_OFF

ITEM = Item(
    name="mnist",
    title="training loss, training and test accuracy on MNIST",
    where="Figure of section 6.2 (MNIST)",
    experiment=Curves(("mnist",)),
    why=(
        IMAGES,
        READ_OFF,
    ),
)
