"""Table E.2: all methods on S3."""

from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import BASELINES, CLUSTERS, IFCA, LG, SEEDS, SYNTHETIC
from fedfuse.paper.methods_table import MethodsTable, Part

PRINTED = """
method,acc,acc_sd,num,num_sd,ari,ari_sd
LOCAL,85.60,0.01,x,x,x,x
FedAvg,50.74,0.03,x,x,x,x
LG,77.62,0.08,x,x,x,x
Per-FedAvg,67.86,0.02,x,x,x,x
IFCA,64.11,0.19,1.33,0.47,0.33,0.47
CFL,90.52,0.01,9.67,2.05,0.52,0.10
PACFL,91.64,0.01,2.00,0.00,1.00,0.00
FPFC-l1,87.12,0.02,2.00,0.00,1.00,0.00
FPFC,90.06,0.01,2.00,0.00,1.00,0.00
"""

ITEM = Item(
    name="tableE2",
    title="all methods on S3: two groups of 50 devices",
    where="Table E.2",
    experiment=MethodsTable(parts=(Part("synthetic:S3"),), numbers=PRINTED),
    why=(
        BASELINES,
        CLUSTERS,
        IFCA,
        LG,
        SEEDS,
        SYNTHETIC,
    ),
)
