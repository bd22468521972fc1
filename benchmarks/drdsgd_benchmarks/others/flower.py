"""The side of Flower's simulation in FLUTE's benchmark; it runs in an environment of its own, without drdsgd.

    python flower.py FOLDER '{"rounds": 100, ...}'

As its simulation is made to be used: a process of Ray per core, and a client app that gets the model in a message,
trains it on its own samples and sends it back.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

KEPT: dict[Path, Any] = {}  # the clients that a worker has read


def samples(path: Path) -> Any:
    """A client's samples and its test samples; read once in each worker."""
    import numpy as np
    import torch

    if path not in KEPT:
        with np.load(path) as file:
            pairs = [(file["x"], file["y"]), (file["x_test"], file["y_test"])]
        KEPT[path] = [(torch.from_numpy(x).flatten(1), torch.from_numpy(y).long()) for x, y in pairs]
    return KEPT[path]


def main() -> None:
    """Train, and print the seconds of the rounds and the accuracy at the end as JSON."""
    import torch
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    folder, of = Path(sys.argv[1]), json.loads(sys.argv[2])
    files = sorted(folder.glob("*.npz"))
    client, server = ClientApp(), ServerApp()
    found: dict[str, float] = {}

    def train(message: Any, context: Any) -> Any:
        torch.set_num_threads(1)  # one core per client
        model = torch.nn.Linear(28 * 28, 10)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=message.content["config"]["eta"])
        x, y = samples(files[context.node_config["partition-id"]])[0]
        for some in torch.randperm(len(y)).split(message.content["config"]["batch_size"]):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x[some]), y[some])
            loss.backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(y), "loss": loss.item()})
        back = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=back, reply_to=message)

    def serve(grid: Any, context: Any) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(28 * 28, 10)
        strategy = FedAvg(
            fraction_train=of["clients"] / len(files), fraction_evaluate=0.0, min_available_nodes=len(files)
        )
        settings = ConfigRecord({"eta": of["eta"], "batch_size": of["batch_size"]})
        begun = time.perf_counter()
        result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=of["rounds"], train_config=settings)
        found["rounds"] = time.perf_counter() - begun
        model.load_state_dict(result.arrays.to_torch_state_dict())
        x, y = (torch.cat(parts) for parts in zip(*(samples(path)[1] for path in files), strict=True))
        with torch.no_grad():
            found["accuracy"] = 100 * float((model(x).argmax(1) == y).float().mean())

    # Flower looks at the types of what it calls, and does not know them as texts
    train.__annotations__ = {"message": Message, "context": Context, "return": Message}
    serve.__annotations__ = {"grid": Grid, "context": Context, "return": None}
    client.train()(train)
    server.main()(serve)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"logging_level": "ERROR"}}
    run_simulation(server, client, num_supernodes=len(files), backend_config=resources)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
