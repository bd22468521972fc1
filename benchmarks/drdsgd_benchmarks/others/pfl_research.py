"""pfl-research's side of FLUTE's benchmark; it runs in an environment of its own, without drdsgd.

python pfl_research.py FOLDER '{"rounds": 100, ...}'
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Train, and print the seconds of the rounds and the accuracy at the end as JSON."""
    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    folder, of = Path(sys.argv[1]), json.loads(sys.argv[2])

    class Logistic(torch.nn.Module):
        """Logistic regression, with the two functions that pfl-research asks for."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(28 * 28, 10)

        def loss(self, x: Any, y: Any, eval: bool = False) -> Any:
            return torch.nn.functional.cross_entropy(self.layer(x), y)

        def metrics(self, x: Any, y: Any, eval: bool = False) -> dict[str, Any]:
            with torch.no_grad():
                return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}

    users, tests = {}, []
    for i, path in enumerate(sorted(folder.glob("*.npz"))):
        with np.load(path) as file:
            pairs = [(file["x"], file["y"]), (file["x_test"], file["y_test"])]
        own, test = (
            (torch.from_numpy(x).flatten(1), torch.from_numpy(y).long()) for x, y in pairs
        )  # in memory beforehand: the rounds don't read
        users[i] = PyTorchTensorDataset(own, user_id=str(i))
        tests.append(test)
    torch.manual_seed(0)
    np.random.seed(0)
    module = Logistic()
    data = FederatedDataset(users.__getitem__, get_user_sampler("random", list(users)))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])
    how = NNAlgorithmParams(
        central_num_iterations=of["rounds"],
        evaluation_frequency=of["rounds"] + 1,  # once, in the first round: it can't be switched off
        train_cohort_size=of["clients"],
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(local_batch_size=of["batch_size"], local_num_epochs=1, local_learning_rate=of["eta"])
    begun = time.perf_counter()
    FederatedAveraging().run(how, backend, model, local, NNEvalHyperParams(local_batch_size=None))
    seconds = time.perf_counter() - begun
    x, y = (torch.cat(parts) for parts in zip(*tests, strict=True))
    with torch.no_grad():
        accuracy = float((module.layer(x).argmax(1) == y).float().mean())
    print(json.dumps({"rounds": seconds, "accuracy": 100 * accuracy}))


if __name__ == "__main__":
    main()
