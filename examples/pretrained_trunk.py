"""A pretrained network whose trunk stays as it is: only the head is trained, sent and fused."""

import numpy as np
import torch
from torch import nn

import fedfuse as ff

torch.manual_seed(0)
trunk = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.Tanh()).requires_grad_(False)  # yours, pretrained
net = nn.Sequential(trunk, nn.Linear(64, 3))

rng = np.random.default_rng(0)
X = rng.normal(size=(10, 150, 20))
true = rng.normal(size=(2, 20, 3))
fed = ff.Federation.from_arrays([(x, (x @ true[i % 2]).argmax(axis=1)) for i, x in enumerate(X)])

work = ff.Work(steps=10, lr=0.5)
res = ff.fit(fed, ff.FPFC(lam=0.6, work=work), ff.TorchModel(net), rounds=50)
print(res.labels, f"{res.models.shape[1]} parameters sent, test accuracy {res.score('test'):.2f}")
