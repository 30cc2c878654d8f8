"""Table E.4: all methods on S5."""

from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import BASELINES, DIFFERENT, IFCA, LG, SEEDS, SYNTHETIC
from fedfuse.paper.methods_table import MethodsTable, Part

PRINTED = """
method,acc,acc_sd,num,num_sd,ari,ari_sd
LOCAL,81.83,0.02,x,x,x,x
FedAvg,9.44,0.01,x,x,x,x
LG,63.41,0.01,x,x,x,x
Per-FedAvg,30.56,0.07,x,x,x,x
IFCA,60.17,0.03,28.33,2.05,0.00,0.00
CFL,65.47,0.02,37.67,1.25,0.00,0.00
PACFL,81.16,0.02,50.00,0.00,1.00,0.00
FPFC-l1,80.27,0.02,50.00,0.00,1.00,0.00
FPFC,80.27,0.02,50.00,0.00,1.00,0.00
"""

ITEM = Item(
    name="tableE4",
    title="all methods on S5: 50 devices, all different",
    where="Table E.4",
    experiment=MethodsTable(parts=(Part("synthetic:S5"),), numbers=PRINTED, lam={"synthetic:S5": 0.0}),
    why=(
        BASELINES,
        DIFFERENT,
        IFCA,
        LG,
        SEEDS,
        SYNTHETIC,
    ),
)
