"""Your own tensors: one pair (x, y) per device, any connected graph, any module. Saves the model with its card."""

import networkx as nx
import torch
from safetensors.torch import load_model
from sklearn.datasets import load_digits
from torch import nn

import drdsgd

digits = load_digits()
x, y = torch.tensor(digits.images / 16, dtype=torch.float32).flatten(1), torch.tensor(digits.target)
# ten devices, each with two kinds of digits; every fifth sample of a device is held out as its test set
devices = [(x[rows], y[rows]) for i in range(10) if len(rows := ((y == i) | (y == (i + 1) % 10)).nonzero()[i % 2 :: 2, 0])]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


results = {
    "DSGD": drdsgd.train(model(), devices, nx.petersen_graph(), drdsgd.dsgd(eta=0.3)),
    "DR-DSGD": drdsgd.train(model(), devices, nx.petersen_graph(), drdsgd.dr_dsgd(eta=0.3, mu=0.5, weights="normalized")),
}

print(f"{len(devices)} devices   average    worst")
for name, result in results.items():
    print(f"{name:10s} {result.final.consensus.average:7.1f} % {result.final.consensus.worst:6.1f} %")
plain, robust = (result.final.consensus.worst for result in results.values())
print(
    f"With DR-DSGD the worst-off device has {robust:.1f} % of its digits right, with DSGD {plain:.1f} %: "
    f"{'better' if robust > plain else 'worse' if robust < plain else 'the same'}, in one run each."
)

# the model is an ordinary nn.Module; saved with safetensors, and with a card that has every device's accuracy
folder = results["DR-DSGD"].save("digits-model")
again = model()
load_model(again, folder / "model.safetensors")
same = torch.equal(again(x), results["DR-DSGD"].model(x))
print(f"Saved in {folder}/; read back it is {'the same' if same else 'another'} model.")
