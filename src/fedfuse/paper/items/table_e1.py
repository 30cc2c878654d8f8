"""Table E.1: all methods on S2."""

from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import BASELINES, CLUSTERS, IFCA, LG, SEEDS, SYNTHETIC
from fedfuse.paper.methods_table import MethodsTable, Part

PRINTED = """
method,acc,acc_sd,num,num_sd,ari,ari_sd
LOCAL,85.49,0.03,x,x,x,x
FedAvg,40.63,0.01,x,x,x,x
LG,73.25,0.05,x,x,x,x
Per-FedAvg,65.67,0.06,x,x,x,x
IFCA,58.30,0.18,2.00,0.82,0.39,0.41
CFL,89.31,0.03,36.00,6.48,0.19,0.02
PACFL,91.36,0.02,8.00,5.10,0.78,0.15
FPFC-l1,84.91,0.04,9.67,4.19,0.94,0.04
FPFC,90.22,0.03,11.67,8.81,0.97,0.03
"""

ITEM = Item(
    name="tableE1",
    title="all methods on S2: groups of 10, 40, 10 and 40 devices",
    where="Table E.1",
    experiment=MethodsTable(parts=(Part("synthetic:S2"),), numbers=PRINTED),
    why=(
        BASELINES,
        CLUSTERS,
        IFCA,
        LG,
        SEEDS,
        SYNTHETIC,
    ),
)
