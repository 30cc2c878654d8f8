"""Table E.3: all methods on S4."""

from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import ALIKE, BASELINES, SEEDS, SYNTHETIC
from fedfuse.paper.methods_table import MethodsTable, Part

PRINTED = """
method,acc,acc_sd,num,num_sd,ari,ari_sd
LOCAL,87.02,0.04,x,x,x,x
FedAvg,91.96,0.02,x,x,x,x
LG,87.90,0.04,x,x,x,x
Per-FedAvg,91.99,0.02,x,x,x,x
IFCA,91.90,0.02,1.00,0.00,1.00,0.00
CFL,93.00,0.03,1.00,0.00,1.00,0.00
PACFL,92.71,0.02,1.00,0.00,1.00,0.00
FPFC-l1,90.99,0.02,1.00,0.00,1.00,0.00
FPFC,90.99,0.02,1.00,0.00,1.00,0.00
"""

ITEM = Item(
    name="tableE3",
    title="all methods on S4: 50 devices, all alike",
    where="Table E.3",
    experiment=MethodsTable(parts=(Part("synthetic:S4"),), numbers=PRINTED, lam={"synthetic:S4": 1.0}),
    why=(
        ALIKE,
        BASELINES,
        SEEDS,
        SYNTHETIC,
    ),
)
