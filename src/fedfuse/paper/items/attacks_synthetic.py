"""three attacks on S1, up to 80 % liars."""

from fedfuse.paper.attacks import Attacks
from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import ATTACKS

ITEM = Item(
    name="attacks-synthetic",
    title="three attacks on S1, up to 80 % liars",
    where="Figure of appendix E (synthetic)",
    experiment=Attacks("synthetic:S1"),
    why=(ATTACKS,),
)
