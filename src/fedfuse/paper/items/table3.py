"""Table 3: newcomers on three data sets, and ranks."""

from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import IMAGES, NEWCOMERS, SYNTHETIC
from fedfuse.paper.newcomers import NewcomersTable

PRINTED = """
method,syn_acc,syn_sd,mnist_acc,mnist_sd,fmnist_acc,fmnist_sd,rank
LOCAL,79.00,0.08,90.81,0.06,75.29,0.06,4.67
FedAvg,38.73,0.29,73.67,0.04,66.26,0.06,8.67
LG,66.22,0.11,95.71,0.03,80.25,0.07,3.33
Per-FedAvg,43.26,0.26,96.62,0.01,77.94,0.06,3.67
IFCA,33.57,0.28,96.65,0.01,73.93,0.10,5.33
CFL,69.43,0.33,95.46,0.02,70.66,0.07,5.00
PACFL,71.88,0.30,74.45,0.05,66.42,0.06,6.33
FPFC-l1,67.72,0.10,92.73,0.05,75.54,0.08,5.00
FPFC,79.31,0.08,93.51,0.06,75.73,0.07,3.00
"""

ITEM = Item(
    name="table3",
    title="newcomers: a fifth of the devices joins after training",
    where="Table 3",
    experiment=NewcomersTable((("synthetic:S1", "syn_"), ("mnist", "mnist_"), ("fashion-mnist", "fmnist_")), PRINTED),
    why=(NEWCOMERS, SYNTHETIC, IMAGES),
)
