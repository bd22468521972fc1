"""A graph of your own: named sites with the links that they have. How much does one more link help?"""

import networkx as nx
import torch

import drdsgd

NORTH, SOUTH = ["Oulu", "Luleå", "Tromsø", "Umeå", "Bodø"], ["Lund", "Kiel", "Aarhus", "Rostock", "Malmö"]
sites = nx.Graph([("Umeå", "Lund")])  # the only way from north to south
for towns in (NORTH, SOUTH):
    sites.add_edges_from(zip(towns, [*towns[1:], towns[0]], strict=True))
wider = sites.copy()
wider.add_edge("Tromsø", "Rostock")

names = list(sites)
digits = drdsgd.datasets.digits()
labels = digits.y_train.numpy()
parts = drdsgd.partition.shards(labels, K=len(names), shards=2, seed=1)
devices = drdsgd.data.deal(digits, parts, drdsgd.partition.match(parts, labels, digits.y_test.numpy()))

print("                    rho  average    worst")
worst = {}
for graph_name, graph in (("one link", sites), ("two links", wider)):
    # devices are the nodes 0, 1, ... in this order
    numbered = nx.relabel_nodes(graph, {name: i for i, name in enumerate(names)})
    rho = drdsgd.mixing.rho(drdsgd.mixing.metropolis_matrix(numbered))
    for algorithm in (drdsgd.dsgd(eta=0.3), drdsgd.dr_dsgd(eta=0.3, mu=0.5, weights="normalized")):
        torch.manual_seed(0)
        model = drdsgd.models.mlp(devices.shape, devices.classes, hidden=[32])
        final = drdsgd.train(model, devices, numbered, algorithm, rounds=100).final.consensus
        method = algorithm.name.split()[0]
        worst[graph_name, method] = final.worst, names[final.per_device.index(final.worst)]
        print(f"{graph_name:10s} {method:8s} {rho:.3f} {final.average:6.1f} % {final.worst:6.1f} %")

(before, site), (after, _) = worst["one link", "DR-DSGD"], worst["two links", "DR-DSGD"]
print(
    f"{site} is the worst-off of {len(names)} devices with one link between north and south; a second one takes the "
    f"worst-off from {before:.1f} to {after:.1f} %, and DR-DSGD instead of DSGD took it there from "
    f"{worst['one link', 'DSGD'][0]:.1f} %."
)
