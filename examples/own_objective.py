"""An objective of your own, in a few lines: every device is promised a loss, and counts by how far it is above it."""

import torch
from torch import Tensor

import drdsgd
from drdsgd.core import optimizers
from drdsgd.core.objectives import LocalDevices, Objective, ObjectiveState


def promise(loss: float) -> Objective:
    """`min_theta sum_i p_i max(f_i - promised, 0)^2 / 2`, so `weight_i = K p_i max(f_i - promised, 0)`."""

    def init(hosted: LocalDevices) -> ObjectiveState:
        return {"share": hosted.share}  # K p_i, one row per device

    def weigh(losses: Tensor, state: ObjectiveState, t: int) -> Tensor:
        return state["share"] * (losses - loss).clamp(min=0)

    return Objective(init, weigh)


K = 12
devices = drdsgd.data.synthetic(K, heterogeneity=0.5)
algorithms = {
    "DSGD": drdsgd.dsgd(eta=0.2),
    "DR-DSGD": drdsgd.dr_dsgd(eta=0.2, mu=0.5, weights="normalized"),
    "a promise": drdsgd.Algorithm(promise(loss=0.5), optimizers.dsgd(0.2), "a promise"),
}
worst = {}
print("and how many had a last batch with a loss above 0.5:")
for name, algorithm in algorithms.items():
    torch.manual_seed(0)
    model = drdsgd.models.logistic(devices.shape, devices.classes)
    final = drdsgd.train(model, devices, drdsgd.graphs.torus(K), algorithm, rounds=300).final
    worst[name] = final.consensus.worst
    above = sum(loss > 0.5 for loss in final.losses or [])
    c = final.consensus
    print(f"{name}: average {c.average:.1f} %, worst {c.worst:.1f} %, of {K} devices; {above} above")
best = max(worst, key=lambda name: worst[name])
print(f"Here {best} serves the worst-off device best, with {worst[best]:.1f} %; DSGD gives it {worst['DSGD']:.1f} %.")
