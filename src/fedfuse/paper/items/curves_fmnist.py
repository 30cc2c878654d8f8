"""training loss, training and test accuracy on Fashion-MNIST."""

from fedfuse.paper.courses import Curves
from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import IMAGES, READ_OFF

ITEM = Item(
    name="fmnist",
    title="training loss, training and test accuracy on Fashion-MNIST",
    where="Figure of section 6.2 (FMNIST)",
    experiment=Curves(("fashion-mnist",)),
    why=(
        IMAGES,
        READ_OFF,
    ),
)
