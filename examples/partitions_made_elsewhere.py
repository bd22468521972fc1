"""Partitions by others' tools: Hugging Face `datasets`, dealt to devices by Flower's `flwr-datasets`. All offline.

Needs: pip install 'drdsgd[examples]'
"""

import datasets
import networkx as nx
import torch
from flwr_datasets.partitioner import DirichletPartitioner
from sklearn.datasets import load_digits

import drdsgd

K = 10
digits = load_digits()
whole = datasets.Dataset.from_dict({"image": digits.images.astype("uint8"), "label": digits.target})

# unequal mixtures of the classes, and unequal numbers of samples
partitioner = DirichletPartitioner(num_partitions=K, partition_by="label", alpha=0.3, min_partition_size=30, seed=0)
partitioner.dataset = whole
parts = [partitioner.load_partition(i) for i in range(K)]

# any data set whose samples have numbers will do; of samples that are dicts, `columns` names x and y.
# Test samples of their own: (part["train"], part["test"]) of part.train_test_split(0.2); else every fifth is held out.
devices = drdsgd.data.from_pairs(
    [(split["train"], split["test"]) for split in (part.train_test_split(0.2, seed=0) for part in parts)],
    columns=("image", "label"),
    unit=16,  # bytes stay bytes; the model is fed x / 16
)


def train(algorithm: drdsgd.Algorithm) -> drdsgd.Result:
    torch.manual_seed(0)
    model = drdsgd.models.mlp(devices.shape, devices.classes, hidden=[32])
    return drdsgd.train(model, devices, nx.cycle_graph(K), algorithm, rounds=100)


plain = train(drdsgd.dsgd(eta=0.3))
robust = train(drdsgd.dr_dsgd(eta=0.3, mu=1.0, weights="normalized"))
print("device  samples    DSGD  DR-DSGD")
for i, (a, b) in enumerate(zip(plain.final.consensus.per_device, robust.final.consensus.per_device, strict=True)):
    print(f"{i:6d} {len(parts[i]):8d} {a:6.1f} % {b:6.1f} %")
for name, result in (("DSGD", plain), ("DR-DSGD", robust)):
    c = result.final.consensus
    print(f"{name}: average {c.average:.1f} %, worst {c.worst:.1f} %, of {len(c.per_device)} devices")
gain = robust.final.consensus.worst - plain.final.consensus.worst
print(f"DR-DSGD {'helps' if gain > 0 else 'does not help'} the worst-off device here: {gain:+.1f} points.")
