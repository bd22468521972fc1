"""Numbers instead of classes: diabetes data, devices are age groups, with a loss and a metric of your own."""

import networkx as nx
import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import drdsgd
from drdsgd.training.metrics import Metric

table = load_diabetes(scaled=False)
x = (table.data - table.data.mean(axis=0)) / table.data.std(axis=0)
centre, spread = table.target.mean(), table.target.std()
y = ((table.target - centre) / spread)[:, None]  # floats [n, 1]: numbers to predict

age = table.data[:, list(table.feature_names).index("age")]
decade = np.clip(age // 10, 2, 7).astype(int)
decades = sorted(set(decade.tolist()))
devices = [(x[decade == d], y[decade == d]) for d in decades]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squares for small errors, absolute values for large ones; the mean over the batch."""
    return nn.functional.huber_loss(outputs, targets, delta=1.5)


def score(outputs: Tensor, targets: Tensor) -> Tensor:
    """One number per sample, in the units of the table."""
    return (outputs - targets).abs().squeeze(1) * float(spread)


def train(algorithm: drdsgd.Algorithm) -> drdsgd.Result:
    torch.manual_seed(0)
    metric = Metric("absolute error", score, "points", higher_is_better=False)
    graph = nx.path_graph(len(devices))
    return drdsgd.train(nn.Linear(10, 1), devices, graph, algorithm, rounds=200, loss=loss, metric=metric)


plain = train(drdsgd.dsgd(eta=0.05))
robust = train(drdsgd.dr_dsgd(eta=0.05, mu=0.1, weights="normalized"))

print("error in points    DSGD  DR-DSGD   patients")
for i, d in enumerate(decades):
    a, b = (result.final.consensus.per_device[i] for result in (plain, robust))
    print(f"aged {10 * d} to {10 * d + 9} {a:9.1f} {b:8.1f} {len(devices[i][1]):10d}")
for name, result in (("DSGD", plain), ("DR-DSGD", robust)):
    c = result.final.consensus
    print(f"{name}: average {c.average:.1f}, worst {c.worst:.1f} points, of {len(c.per_device)} devices")
gain = plain.final.consensus.worst - robust.final.consensus.worst
print(
    f"The worst-off age group's error is {abs(gain):.1f} points {'smaller' if gain > 0 else 'greater'} with DR-DSGD, "
    f"where guessing the mean is wrong by {np.abs(table.target - centre).mean():.1f}."
)
