"""A table: breast cancer data, devices are clinics that see tumours of different size. What does the worst one get?"""

import networkx as nx
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

import drdsgd

table = load_breast_cancer()
x = (table.data - table.data.mean(axis=0)) / table.data.std(axis=0)
y = table.target  # 0: malignant, 1: benign
radius = table.data[:, list(table.feature_names).index("mean radius")]

# eight groups by size; in the outer ones nearly all tumours are of one kind, in the middle both kinds are there
edges = np.quantile(radius, np.arange(1, 8) / 8)
group = np.searchsorted(edges, radius)
devices = [(x[group == i], y[group == i]) for i in range(8)]


def train(algorithm: drdsgd.Algorithm) -> drdsgd.Result:
    torch.manual_seed(0)
    return drdsgd.train(nn.Linear(30, 2), devices, nx.cycle_graph(8), algorithm, rounds=150, batch_size=16)


plain = train(drdsgd.dsgd(eta=0.1))
robust = train(drdsgd.dr_dsgd(eta=0.1, mu=0.1, weights="normalized"))

print("mean radius     malignant   DSGD  DR-DSGD")
limits = [radius.min(), *edges, radius.max()]
for i, (a, b) in enumerate(zip(plain.final.consensus.per_device, robust.final.consensus.per_device, strict=True)):
    share = 100 * np.mean(y[group == i] == 0)
    print(f"{limits[i]:4.1f} to {limits[i + 1]:4.1f} mm {share:8.0f} % {a:6.1f} % {b:6.1f} %")
for name, result in (("DSGD", plain), ("DR-DSGD", robust)):
    c = result.final.consensus
    print(f"{name}: average {c.average:.1f} %, worst {c.worst:.1f} %, of {len(c.per_device)} devices")
gain = robust.final.consensus.worst - plain.final.consensus.worst
print(
    f"For the worst-off clinic DR-DSGD is {'no better' if gain <= 0 else 'better'} here ({gain:+.1f} points); "
    f"with about {min(map(len, (y for _, y in devices))) // 5} test samples per clinic, one patient is "
    f"{100 / (min(map(len, (y for _, y in devices))) // 5):.0f} points."
)
