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

worst = {}
for graph_name, graph in (("one link", sites), ("two links", wider)):
    # devices are the nodes 0, 1, ... in this order
    numbered = nx.relabel_nodes(graph, {name: i for i, name in enumerate(names)})
    rho = drdsgd.mixing.rho(drdsgd.mixing.metropolis_matrix(numbered))
    for algorithm in (drdsgd.dsgd(eta=0.3), drdsgd.dr_dsgd(eta=0.3, mu=1.0, weights="normalized")):
        torch.manual_seed(0)
        model = drdsgd.models.mlp(devices.shape, devices.classes, hidden=[32])
        final = drdsgd.train(model, devices, numbered, algorithm, rounds=100).final.consensus
        method = algorithm.name.split()[0]
        worst[graph_name, method] = final.worst, names[final.per_device.index(final.worst)]
        about = f"average {final.average:.1f} %, worst {final.worst:.1f} %, of {len(names)} devices"
        print(f"{graph_name}, rho {rho:.3f}, {method}: {about}")

(before, site), (after, _) = worst["one link", "DR-DSGD"], worst["two links", "DR-DSGD"]
print(
    f"With one link between north and south {site} is worst off, at {before:.1f} % with DR-DSGD; with two the worst is "
    f"{after:.1f} %. DSGD gives the worst-off {worst['one link', 'DSGD'][0]:.1f} and "
    f"{worst['two links', 'DSGD'][0]:.1f} %."
)
