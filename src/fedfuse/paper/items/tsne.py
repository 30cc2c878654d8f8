"""t-SNE of devices' models after 0, 5, 50 and 600 rounds."""

from fedfuse.paper.courses import Snapshots
from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import READ_OFF

ITEM = Item(
    name="tsne",
    title="t-SNE of devices' models after 0, 5, 50 and 600 rounds",
    where="Figure of section 6.2, below",
    experiment=Snapshots("tsne"),
    why=(READ_OFF,),
)
