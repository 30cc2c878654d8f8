"""Table 1: all methods on synthetic data (S1) and on housing and body fat."""

from fedfuse.paper.experiment import Item
from fedfuse.paper.items.reasons import BASELINES, CLUSTERS, COUNTS, IFCA, LG, SEEDS, SYNTHETIC, TABLES
from fedfuse.paper.methods_table import MethodsTable, Part

PRINTED = """
method,syn_acc,syn_acc_sd,syn_num,syn_num_sd,syn_ari,syn_ari_sd,syn_cost,hbf_rmse,hbf_rmse_sd,hbf_num,hbf_num_sd,hbf_ari,hbf_ari_sd,hbf_cost
LOCAL,84.97,0.06,x,x,x,x,0,4.89,0.19,x,x,x,x,0
FedAvg,30.35,0.05,x,x,x,x,7.33e7,6.00,0.36,x,x,x,x,12120
LG,69.72,0.06,x,x,x,x,7.33e7,4.52,0.39,x,x,x,x,12120
Per-FedAvg,56.28,0.06,x,x,x,x,7.33e7,5.29,0.27,x,x,x,x,12120
IFCA,60.42,0.17,2.33,0.94,0.47,0.33,1.83e9,5.08,0.21,1.00,0.00,0.00,0.00,282000
CFL,86.60,0.05,42.0,4.55,0.28,0.11,1.59e8,4.68,0.41,1.33,0.47,0.15,0.22,150120
PACFL,88.30,0.06,32.0,37.53,0.43,0.37,7.34e7,4.08,0.29,2.33,0.47,0.82,0.25,12336
FPFC-l1,83.85,0.06,5.67,2.87,0.63,0.21,7.33e7,4.20,0.23,2.00,0.00,1.00,0.00,12120
FPFC,89.46,0.04,4.00,0.00,1.00,0.00,7.33e7,4.09,0.24,2.00,0.00,1.00,0.00,12120
"""

ITEM = Item(
    name="table1",
    title="all methods on S1 and on housing and body fat",
    where="Table 1",
    experiment=MethodsTable(
        parts=(Part("synthetic:S1", "syn_"), Part("housing-bodyfat", "hbf_", "rmse")), numbers=PRINTED
    ),
    why=(SYNTHETIC, SEEDS, CLUSTERS, LG, IFCA, BASELINES, TABLES, COUNTS),
)
