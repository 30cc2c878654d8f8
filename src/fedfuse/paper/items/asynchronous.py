"""Synchronous against asynchronous FPFC on nodes with random delays."""

from fedfuse.paper.courses import Asynchronous, ComputingNodes
from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import DELAYS, READ_OFF

ITEM = Item(
    name="async",
    title="synchronous against asynchronous FPFC with random delays",
    where="Figure of section 6.4.3",
    experiment=Asynchronous((
        ComputingNodes("synthetic:5,5,5,5", 20, 5, "uniform(0,20)", rounds=400, quick=100),
        ComputingNodes("housing-bodyfat", 8, 3, "uniform(0,20)", rounds=200, quick=60),
        ComputingNodes("mnist", 20, 5, "uniform(0,800)", rounds=80, quick=12),
        ComputingNodes("fashion-mnist", 20, 5, "uniform(0,800)", rounds=80, quick=12),
    )),
    why=(DELAYS, READ_OFF),
)  # fmt: skip
