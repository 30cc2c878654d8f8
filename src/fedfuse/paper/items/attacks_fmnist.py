"""three attacks on Fashion-MNIST, up to 80 % liars."""

from fedfuse.paper.attacks import Attacks
from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import ATTACKS, IMAGES

ITEM = Item(
    name="attacks-fmnist",
    title="three attacks on Fashion-MNIST, up to 80 % liars",
    where="Figure of section 6.4.1",
    experiment=Attacks("fashion-mnist"),
    why=(
        ATTACKS,
        IMAGES,
    ),
)
