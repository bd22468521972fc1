"""What all engines must agree on: every objective, optimizer and mixing, with more devices than processes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drdsgd import data, models
from drdsgd.core import compression, optimizers
from drdsgd.core.algorithms import Algorithm, dr_dsgd
from drdsgd.core.objectives import capped, kl_dro, smoothed
from drdsgd.core.round import State
from drdsgd.engines import post
from drdsgd.engines.distributed import Members, World
from drdsgd.engines.placement import crossing, place
from drdsgd.errors import Diverged, InputError
from drdsgd.topology import graphs, mixing
from drdsgd.topology.mixing import Mixing
from drdsgd.training.loop import Progress, trajectory
from drdsgd.training.metrics import Metric, Metrics
from tests.laws.objectives import WITH_EVERY_OPTIMIZER
from tests.laws.optimizers import OPTIMIZERS

K = 7
GRAPH = graphs.erdos_renyi(K, 0.4, seed=3)
DIRECTED = graphs.directed_erdos_renyi(K, 0.4, seed=3)
W = mixing.metropolis(GRAPH)
MIXINGS: dict[str, Mixing] = {
    "metropolis": W,
    "ring": mixing.metropolis(graphs.ring(K)),
    "complete": mixing.metropolis(graphs.complete(K)),
    "star": mixing.metropolis(graphs.star(K)),
    "link failures": mixing.link_failures(W, 0.4, seed=1),
    "dropouts": mixing.dropouts(W, 0.4, seed=1),
    "matchings": mixing.matchings(GRAPH, seed=1),
    "matcha": mixing.matcha(GRAPH, 0.5, seed=1),
    "one-peer exponential": mixing.one_peer_exponential(K),
    "local steps": mixing.local_steps(W, 2),
    "repeated": mixing.repeated(W, 3),
    "all of it": mixing.local_steps(mixing.repeated(mixing.link_failures(W, 0.4, seed=1), 2), 2),
}
DIRECTED_MIXINGS = {
    "push-sum": mixing.push_sum(DIRECTED),
    "failing push-sum": mixing.link_failures(mixing.push_sum(DIRECTED), 0.3),
}
ROBUST = smoothed(capped(kl_dro(0.8, weights="normalized"), 3.0), 0.3)


class Case(NamedTuple):
    mixing: Mixing
    algorithm: Algorithm


def cases() -> Iterator[tuple[str, Case]]:
    for name, objective in WITH_EVERY_OPTIMIZER.items():
        yield name, Case(W, Algorithm(objective, optimizers.dsgd(0.2)))
    for name, row in OPTIMIZERS.items():
        yield name, Case(W, Algorithm(ROBUST, row.make(0.1), weight_decay=0.01))
    short = optimizers.compressed(compression.quantized(4), gamma=1.0)
    for name, quantized in {
        "DR-QGM": optimizers.quasi_global_momentum(0.1, 0.9, short),
        "DR-GTAdam": optimizers.gt_adam(0.1, compression=short),
    }.items():
        yield name, Case(W, Algorithm(ROBUST, quantized))
        yield f"{name}, gossiping twice", Case(mixing.repeated(W, 2), Algorithm(ROBUST, quantized))
        # on a star some processes receive one message only
        yield f"{name} on a star", Case(mixing.metropolis(graphs.star(K)), Algorithm(ROBUST, quantized))
    for name, changing in MIXINGS.items():
        yield f"{name}, tracking", Case(changing, Algorithm(ROBUST, optimizers.gradient_tracking(0.1)))
    for name, changing in (MIXINGS | DIRECTED_MIXINGS).items():
        yield f"{name}, push", Case(changing, Algorithm(kl_dro(2.0), optimizers.push(0.1)))


def devices() -> data.Devices:
    """Unequal numbers of samples, so that reference weights are unequal too."""
    generator = torch.Generator().manual_seed(1)
    pairs = [
        (torch.randn(4 + 3 * i, 5, generator=generator), torch.randint(3, (4 + 3 * i,), generator=generator))
        for i in range(K)
    ]
    return data.from_pairs(pairs, pairs, classes=3)


def model(dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(0)
    # with this number of parameters a packed message does not fill whole words
    return models.mlp((5,), 3, hidden=(11,)).to(dtype)


FIELDS: dict[str, Any] = {"rounds": 4, "batch_size": 3, "eval_every": 2, "threads": 1}


def in_one_process(case: Case, dtype: torch.dtype, **options: Any) -> list[Progress]:
    """The run in this process alone; copied, because rounds work in place."""
    whole = trajectory(model(dtype), devices(), case.mixing, case.algorithm, **{**FIELDS, **options})
    return [copied(one) for one in whole]


def shared(case: Case, members: Members, dtype: torch.dtype, **options: Any) -> list[Progress]:
    """This process's part of the shared run."""
    mine, fields = devices().of(members.rows.tolist()), {**FIELDS, **options}
    part = trajectory(model(dtype), mine, case.mixing, case.algorithm, ranks=members, **fields)
    return [copied(one) for one in part]


def hosting(world: World) -> Members:
    """This process as one of those that share the devices."""
    return world.hosting(place(GRAPH, world.size))


def copied(progress: Progress) -> Progress:
    state = progress.state
    return progress._replace(
        state=State(
            state.t,
            state.theta.clone(),
            {name: value.clone() for name, value in state.objective.items()},
            {name: value.clone() for name, value in state.optimizer.items()},
        )
    )


def tensors(state: State) -> dict[str, Tensor]:
    return {"theta": state.theta} | state.objective | {f"optimizer {name}": x for name, x in state.optimizer.items()}


def assert_close(found: Metrics, expected: Metrics, rtol: float) -> None:
    for name in ("consensus_distance", "train_loss", "losses", "weights"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol, atol=1e-20, err_msg=name)
    for name in ("round", "consensus", "local", "per_class", "floats_sent"):
        assert getattr(found, name) == getattr(expected, name), name


def every_case(world: World, least_bytes: int) -> None:
    """All cases in float64, to 1e-10; messages of at least `least_bytes` go through shared memory.

    All processes report the same evaluations. The processes take turns to compute the expected run of a case.
    """
    post.LEAST_BYTES = least_bytes
    for n, (name, case) in enumerate(cases()):
        print(name, flush=True)
        members = hosting(world)
        part = shared(case, members, torch.float64)
        states = [{key: members.gather(x) for key, x in tensors(one.state).items()} for one in part]
        said = world.texts("\n".join(map(reported, part)))
        if n % world.size != world.rank:
            continue
        assert said == said[:1] * world.size
        for expected, found, state in zip(in_one_process(case, torch.float64), part, states, strict=True):
            assert found.floats_sent == expected.floats_sent
            assert state.keys() == tensors(expected.state).keys()
            for key, value in tensors(expected.state).items():
                torch.testing.assert_close(state[key], value, rtol=1e-10, atol=1e-13, equal_nan=True, msg=key)
            assert (found.metrics is None) == (expected.metrics is None)
            if found.metrics is not None and expected.metrics is not None:
                assert_close(found.metrics, expected.metrics, 1e-10)


def reported(progress: Progress) -> str:
    """What a process reports of a round, without the times."""
    metrics = progress.metrics and dataclasses.replace(progress.metrics, seconds=0.0, exchange_seconds=None)
    return f"{progress.state.t} {progress.floats_sent} {metrics}"


def in_float32(world: World) -> None:
    """Models agree to 2e-6 after 20 rounds: the sums are rounded in a different order."""
    rows = place(GRAPH, world.size)[world.rank]
    case = Case(W, dr_dsgd(0.1, mu=2.0))
    whole, part = in_one_process(case, torch.float32, rounds=20), shared(case, hosting(world), torch.float32, rounds=20)
    torch.testing.assert_close(part[-1].state.theta, whole[-1].state.theta[rows], rtol=2e-6, atol=2e-6)
    assert float((whole[-1].state.theta - whole[0].state.theta).abs().max()) > 0.05


def bytes_of_the_cut(world: World) -> None:
    """The bytes sent in a round follow from the cut of the graph: each row goes once to each process that needs it."""
    for name in ("metropolis", "ring", "complete", "star"):
        graph = {"metropolis": GRAPH, "ring": graphs.ring(K), "complete": graphs.complete(K), "star": graphs.star(K)}[
            name
        ]
        part = shared(Case(MIXINGS[name], dr_dsgd(0.1, mu=2.0)), hosting(world), torch.float64)
        d, metrics = part[-1].state.theta.shape[1], part[-1].metrics
        assert metrics is not None
        assert metrics.bytes_between_ranks == 4 * 8 * d * crossing(graph, place(GRAPH, world.size)), name
        assert metrics.exchange_seconds is not None and metrics.exchange_seconds > 0


def all_diverge_alike(world: World) -> None:
    """All processes name the same device and round as a run in one process."""
    case = Case(mixing.metropolis(graphs.ring(K)), dr_dsgd(lambda t: 1e20, mu=2.0))
    found = []
    for alone in (True, False):
        placement = place(GRAPH, world.size)
        fields: dict[str, Any] = {"rounds": 9, "batch_size": 3, "eval_every": 3, "threads": 1}
        if not alone:
            fields["ranks"] = world.hosting(placement)
        mine = devices() if alone else devices().of(placement[world.rank].tolist())
        try:
            for _ in trajectory(model(torch.float32), mine, case.mixing, case.algorithm, **fields):
                pass
        except Diverged as error:
            found.append((error.round, error.device, str(error)))
    assert len(found) == 2 and found[0] == found[1], found


def all_refuse_alike(world: World) -> None:
    """If one device's metric or first loss is not finite, all processes refuse; none waits for the others."""
    members, case = hosting(world), Case(W, dr_dsgd(0.1, mu=2.0))
    own = devices()
    # only device 5 has such a large x
    own.test.x[int(own.test.starts[5])] = own.train.x[int(own.train.starts[5])] = 1e30

    def log(outputs: Tensor, y: Tensor) -> Tensor:
        return torch.where(outputs.abs().amax(dim=1) > 1e20, torch.nan, 1.0)

    def wrong(outputs: Tensor, y: Tensor) -> Tensor:
        return torch.where(outputs.abs().max() > 1e20, torch.nan, torch.nn.functional.cross_entropy(outputs, y))

    one_of_each = {"batch_size": 500, "ranks": members}
    for options, says in (
        ({"metric": Metric("log", log, "", True)}, "the metric log of device 5 is not finite after round 0"),
        ({"loss": wrong}, "the initial model's loss on device 5 is not finite"),
    ):
        mine = own.of(members.rows.tolist())
        try:
            trajectory(model(torch.float64), mine, W, case.algorithm, **{**FIELDS, **one_of_each, **options})
        except InputError as error:
            assert str(error).startswith(says), error
        else:
            raise AssertionError(says)
    # they are still in step
    assert world.total(torch.ones(1)).tolist() == [world.size]


def memory_that_is_shared(world: World) -> None:
    """Messages of all sizes, also larger than any before, and in one direction of a link only."""
    post.LEAST_BYTES = 0
    directed = mixing.push_sum(graphs.directed_ring(K))
    for W_t in (mixing.metropolis(graphs.complete(K)), directed):
        members = hosting(world)
        assert len(members.post._pids) == world.size - 1  # all are on this machine
        engine = members.engine(W_t, torch.float64, torch.device("cpu"), map)
        for t, size in enumerate((3, 1, 2000, 5, 30000, 7, 7, 7, 40000, 1)):
            x = torch.randn(K, size, dtype=torch.float64, generator=torch.Generator().manual_seed(t))
            expected = torch.from_numpy(W_t.at(t).toarray()) @ x
            found = engine.mix(t)(x[members.rows])
            torch.testing.assert_close(found, expected[members.rows], rtol=1e-12, atol=1e-12)
        members.post.close()  # else a process could end while another still reads its memory


def a_place_in_use_is_left_alone(world: World) -> None:
    """The first process keeps sending to the second, which reads slowly and sends nothing back."""
    post.LEAST_BYTES = 0
    members, every = hosting(world), torch.arange(5)
    for n in range(6):
        rows = torch.full((5, 30), float(n))
        if world.rank == 0:
            with members.post.exchange(rows, [(1, every)], []):
                pass
        elif world.rank == 1:
            with members.post.exchange(rows, [], [(0, 5)]) as (found,):
                time.sleep(0.1)
                assert torch.equal(found, rows)
    members.post.close()


def what_all_say(world: World) -> None:
    """Rows are in order of devices, texts in order of processes: long, short, empty, with any characters."""
    members = hosting(world)
    assert torch.equal(members.gather(members.rows.float()[:, None] * torch.ones(1, 2))[:, 1], torch.arange(float(K)))
    assert torch.equal(members.gather(members.rows), torch.arange(K))
    assert world.texts("ä" * world.rank) == ["ä" * rank for rank in range(world.size)]
    assert world.total(torch.tensor([1.0, 2.0])).tolist() == [world.size, 2.0 * world.size]
    speakers = world.total(torch.tensor([float(world.speaks())]))
    assert speakers.tolist() == [1.0]
