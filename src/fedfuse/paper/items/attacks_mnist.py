"""three attacks on MNIST, up to 80 % liars."""

from fedfuse.paper.attacks import Attacks
from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import ATTACKS, IMAGES

ITEM = Item(
    name="attacks-mnist",
    title="three attacks on MNIST, up to 80 % liars",
    where="Figure of appendix E (MNIST)",
    experiment=Attacks("mnist"),
    why=(
        ATTACKS,
        IMAGES,
    ),
)
