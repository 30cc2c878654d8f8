"""Your own network on tabular data: groups of devices, and one trained module per group."""

import numpy as np
import torch
from torch import nn

import fedfuse as ff

rng = np.random.default_rng(0)
X = rng.normal(size=(8, 200, 4))  # 8 devices; the last four behave differently
y = [np.sin(2 * x[:, 0]) + x[:, 1] * (1 if i < 4 else -1) > 0 for i, x in enumerate(X)]
fed = ff.Federation.from_arrays(list(zip(X, y, strict=True)), truth=[0] * 4 + [1] * 4)

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
work = ff.Work(steps=2, lr=0.1, batch=20, momentum=0.9)
res = ff.fit(fed, ff.FusionTree(work=work), ff.TorchModel(net, fused="all"), rounds=30)

print(res)
print(res.devices())
print(res.module(cluster=0))  # a copy of net with the weights of the first group
