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
kinds = [((y == i) | (y == (i + 1) % 10)).nonzero()[i % 2 :: 2, 0] for i in range(10)]
devices = [(x[rows], y[rows]) for rows in kinds]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


plain = drdsgd.train(model(), devices, nx.petersen_graph(), drdsgd.dsgd(eta=0.3))
robust = drdsgd.train(model(), devices, nx.petersen_graph(), drdsgd.dr_dsgd(eta=0.3, mu=1.0, weights="normalized"))

for name, result in (("DSGD", plain), ("DR-DSGD", robust)):
    c = result.final.consensus
    print(f"{name}: average {c.average:.1f} %, worst {c.worst:.1f} %, of {len(c.per_device)} devices")
gain = robust.final.consensus.worst - plain.final.consensus.worst
print(f"DR-DSGD {'helps' if gain > 0 else 'does not help'} the worst-off device here: {gain:+.1f} points.")

# the model is an ordinary nn.Module; saved with safetensors, and with a card that has every device's accuracy
folder = robust.save("digits-model")
again = model()
load_model(again, folder / "model.safetensors")
same = torch.equal(again(x), robust.model(x))
print(f"Saved in {folder}/; read back it is {'the same' if same else 'another'} model.")
