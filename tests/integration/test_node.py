"""Devices as real processes: undisturbed they equal the local run; disturbed they finish, nearly as accurate."""

from __future__ import annotations

import json
import random
import statistics
import time
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from drdsgd.engines.local import SingleProcess
from drdsgd.errors import Interrupted
from drdsgd.experiments import records, run
from drdsgd.experiments.build import make_data
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import Folder
from drdsgd.network import deployment, joined, node
from drdsgd.network.commands import init
from drdsgd.training import checkpoint
from drdsgd.training.loop import Progress
from tests.support.deployments import all_at_once, deploy, free_ports, models, one_of, play
from tests.support.killing import process, program
from tests.support.program import wait_for
from tests.support.refusing import message
from tests.support.scenarios import Faults, network

DIGITS = Experiment(
    dataset="digits", devices=10, p=0.5, model="mlp:32", mu=1.0, loss_clip=1.0, rounds=100, eval_every=5,
    checkpoint_every=10, threads=1, eta_schedule="linear:0.1", dtype="float64",
)  # fmt: skip
WITHIN = 3.0  # points of accuracy
# one after another: each has ten processes
pytestmark = pytest.mark.xdist_group("devices")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """The experiment with noisy copies of the test samples: 45 per device are too few to compare runs."""
    folder, draw = tmp_path_factory.mktemp("digits"), np.random.default_rng(0)
    data = make_data(DIGITS)
    for i in range(data.K):
        own = data.of([i])
        x, x_test = (samples.x.numpy() * np.float32(own.scale) for samples in (own.train, own.test))
        many = np.concatenate([x_test] * 10)
        noisy = (many + draw.normal(0, 0.1, many.shape)).astype(np.float32)
        np.savez(folder / f"{i}.npz", x=x, y=own.train.y, x_test=noisy, y_test=np.concatenate([own.test.y] * 10))
    return DIGITS.replace(dataset=str(folder), shards=None, partition=None, scaling=None)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, digits: Experiment) -> Path:
    """The folder of the same experiment in one process."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    run.run(digits, folder)
    return folder


def models_of(run: Path, K: int) -> Tensor:
    """The final models of a run in one process, [K, d]."""
    progress = checkpoint.load(run / "checkpoint", SingleProcess(K))
    assert progress is not None
    return progress.state.theta


def spread(theta: Tensor) -> float:
    """The consensus distance."""
    return float((theta - theta.mean(0)).square().sum(1).mean())


def worst(folder: Path, among: set[int]) -> float:
    """The lowest accuracy of these devices' own models, each the median of its last eight evaluations.

    A single evaluation may follow an exchange in which most links did not count; the next exchange repairs that.
    """
    last = [metrics.consensus.per_device for metrics in records.read(folder).metrics[-8:]]
    return min(float(statistics.median(values)) for i, values in enumerate(zip(*last, strict=True)) if i in among)


def test_ten_processes_end_with_the_models_of_one(tmp_path: Path, digits: Experiment) -> None:
    e = digits.replace(rounds=30)
    run.run(e, tmp_path / "local")
    with network(tmp_path / "net", e) as devices:
        devices.wait()
    assert torch.allclose(models(tmp_path / "net"), models_of(tmp_path / "local", 10), rtol=1e-9, atol=1e-11)
    final = records.read(joined.join(tmp_path / "net")).final
    undisturbed = records.read(tmp_path / "local").final
    assert final.local is not None and undisturbed.local is not None
    assert final.round == 30 and final.local.per_device == pytest.approx(undisturbed.local.per_device, abs=1e-9)
    assert final.floats_sent == undisturbed.floats_sent


def test_two_of_ten_are_killed_and_one_comes_back(tmp_path: Path, digits: Experiment, local: Path) -> None:
    draw = random.Random(7)
    first, second = draw.sample(range(10), 2)
    with network(tmp_path / "net", digits, Faults(slow=0.12)) as devices:
        moment = draw.randrange(10, 30)
        wait_for(lambda: devices.round(first) >= moment)
        devices.kill(first)
        wait_for(lambda: devices.round(second) >= 40)
        devices.kill(second)
        devices.start(first)
        devices.wait()
        assert "took a neighbour's model" in devices.log(first)
    assert Folder(devices.paths[second].parent / "run").status == "unfinished"
    finished = {*range(10)} - {second}
    assert all(Folder(devices.paths[i].parent / "run").status == "finished" for i in finished)
    assert worst(joined.join(tmp_path / "net"), finished) >= worst(local, finished) - WITHIN


def test_a_split_network_goes_on_and_is_one_again_when_healed(tmp_path: Path, digits: Experiment) -> None:
    # two rings of five, and five links between them
    links = [(i, j) for i in range(5) for j in ((i + 1) % 5, i + 5)] + [(5 + i, 5 + (i + 1) % 5) for i in range(5)]
    (tmp_path / "graph.txt").write_text("".join(f"{i} {j}\n" for i, j in links))
    e = digits.replace(rounds=200, graph=str(tmp_path / "graph.txt"), p=None)
    run.run(e, tmp_path / "local")
    cut = tmp_path / "cut"
    halves = [frozenset(range(5)), frozenset(range(5, 10))]
    with network(
        tmp_path / "net", e, [Faults(slow=0.04, cut=cut, beyond=halves[i < 5]) for i in range(10)], deadline=2.0
    ) as devices:
        wait_for(lambda: devices.round(0) >= 20)
        if devices.halves.there:
            devices.halves.cable("down")
        else:
            cut.touch()
        at = {half: devices.round(half) for half in (0, 5)}
        wait_for(lambda: all(devices.round(half) >= at[half] + 30 for half in at))
        split = spread(models(tmp_path / "net"))  # at similar rounds
        if devices.halves.there:
            devices.halves.cable("up")
        else:
            cut.unlink()
        devices.wait()
    assert all(Folder(path.parent / "run").status == "finished" for path in devices.paths)
    ended, whole = models(tmp_path / "net"), models_of(tmp_path / "local", 10)
    assert spread(ended) < 2 * spread(whole) < split
    everybody = {*range(10)}
    assert worst(joined.join(tmp_path / "net"), everybody) >= worst(tmp_path / "local", everybody) - WITHIN


def test_a_fifth_of_all_messages_is_lost_or_late(tmp_path: Path, digits: Experiment, local: Path) -> None:
    """Timing decides which messages are late, and moves the result by points: if one run misses the bound, the mean
    of three counts.
    """
    faults, everybody = Faults(lost=0.1, late=0.1, late_by=0.4), {*range(10)}

    def ended(name: str) -> float:
        with network(tmp_path / name, digits, faults, deadline=0.2) as devices:
            devices.wait()
        assert all(Folder(path.parent / "run").status == "finished" for path in devices.paths)
        return worst(joined.join(tmp_path / name), everybody)

    found, least = [ended("net")], worst(local, everybody) - WITHIN
    if found[0] < least:
        found += [ended("again"), ended("once more")]
    assert sum(found) / len(found) >= least, found


def test_ten_thousand_hostile_messages_from_a_neighbour(tmp_path: Path) -> None:
    """The others cut it off, and train as if it were absent, in hardly more memory."""
    e = DIGITS.replace(devices=4, graph="ring", p=None, rounds=40)
    d, ended, peaks = 64 * 32 + 32 + 32 * 10 + 10, [], []
    for what in (Faults(absent=True), Faults(hostile=10_000, size=d)):
        with network(tmp_path / f"{what.absent}", e, [Faults(slow=0.1)] * 3 + [what], patience=2.0) as devices:
            if what.hostile:
                wait_for(lambda: (devices.paths[3].parent / "sent").exists())
                assert all(devices.round(i) < e.rounds for i in range(3)), "they were not at work any more"
            wait_for(lambda: devices.round(0) >= e.rounds - 20)
            peaks.append(devices.peak_bytes(0))
            wait_for(lambda: all(Folder(path.parent / "run").status == "finished" for path in devices.paths[:3]))
            cut = [devices.log(i).count("neighbour is cut off") for i in range(3)]
            assert cut == ([1, 0, 1] if what.hostile else [0, 0, 0])
        ended.append(models(tmp_path / f"{what.absent}", 3))
    assert torch.allclose(ended[0], ended[1], rtol=1e-9, atol=1e-11)
    assert peaks[1] - peaks[0] < 50e6  # it sent four times as much


def test_a_stopped_network_goes_on_where_it_was(tmp_path: Path) -> None:
    deploy(tmp_path / "net", rounds=40)
    stopped = dict.fromkeys(range(5), False)

    def stop_at(i: int, progress: Progress) -> None:
        stopped[i] = progress.state.t >= 15

    paths = deployment.devices(tmp_path / "net")

    def one(i: int) -> str:
        try:
            return node.run(
                paths[i], threads=1, watch=lambda progress, _: stop_at(i, progress), stop=lambda: stopped[i],
                in_own_process=False,
            ).status  # fmt: skip
        except Interrupted as said:
            return str(said)

    assert all(said == "stopped after round 15 of 40" for said in all_at_once([partial(one, i) for i in range(5)]))
    assert all(outcome is not None and outcome.status == "finished" for outcome in play(tmp_path / "net"))
    e = Experiment(**deployment.load(paths[0]).experiment, threads=1)
    run.run(e, tmp_path / "local")
    assert torch.allclose(models(tmp_path / "net"), models_of(tmp_path / "local", 5), rtol=1e-9, atol=1e-11)
    # once more: nothing is left to do
    assert [outcome.progress for outcome in play(tmp_path / "net") if outcome] == [None] * 5


def test_a_terminated_process_finishes_its_round_and_goes_on_there(tmp_path: Path) -> None:
    deploy(tmp_path / "net", devices=2, graph="complete", rounds=100_000, eval_every=1000)
    paths = deployment.devices(tmp_path / "net")
    records_ = [Folder(path.parent / "run") for path in paths]

    logs = [path.with_name("log") for path in paths]

    def start() -> list[ForkServerProcess]:
        return [
            process(program, ["node", "--threads", "1", str(path)], log) for path, log in zip(paths, logs, strict=True)
        ]

    def rounds() -> list[int]:
        return [json.loads((record.path / "status.json").read_bytes())["round"] for record in records_]

    def terminated(before: list[int]) -> list[int]:
        """Run both beyond these rounds, and terminate them; returns their rounds."""
        processes = start()
        try:
            wait_for(lambda: all((record.path / "status.json").exists() for record in records_))
            wait_for(lambda: all(now > then for now, then in zip(rounds(), before, strict=True)))
            for one in processes:
                one.terminate()
            for one in processes:
                one.join(60)
        finally:
            for one in processes:
                one.kill()
        assert [one.exitcode for one in processes] == [130, 130]
        for record, log, i, t in zip(records_, logs, range(2), rounds(), strict=True):
            progress = checkpoint.load(record.checkpoint, one_of(i))
            assert progress is not None and progress.state.t == t > before[i]
            assert f"stopped after round {t} of 100000" in log.read_text()
        return rounds()

    terminated(terminated([0, 0]))


def test_stale_models_are_good_enough(tmp_path: Path) -> None:
    """One device is slow; the others use its models of up to two rounds ago."""
    e = deploy(tmp_path / "net", rounds=60, settings={"staleness": 2})
    outcomes = play(tmp_path / "net", watch=lambda i, progress: time.sleep(0.01 if i == 0 else 0.0))
    assert all(outcome is not None and outcome.status == "finished" for outcome in outcomes)
    run.run(e, tmp_path / "local")
    there, here = (spread(x) for x in (models(tmp_path / "net"), models_of(tmp_path / "local", 5)))
    assert there < 3 * here


def test_a_device_with_data_of_its_own(tmp_path: Path) -> None:
    ports = free_ports(3)
    (tmp_path / "hosts").write_text("".join(f"site-{i} 127.0.0.1:{port}\n" for i, port in enumerate(ports)))
    given = {"graph": "complete", "model": "logistic", "rounds": 10, "eta": 0.1, "batch_size": 4}
    init(
        given, tmp_path / "net", tmp_path / "hosts", 0, own_data=True, classes=3, days=1.0, metrics_port=None,
        mean_samples=None, deadline=20.0, staleness=0,
    )  # fmt: skip
    paths = deployment.devices(tmp_path / "net")
    message(lambda: node.run(paths[0]), "site-0", "0 .npz files")
    draw = np.random.default_rng(1)
    for i, path in enumerate(paths):
        x, y = draw.normal(size=(20 + i, 4)).astype(np.float32), draw.integers(0, 3, 20 + i)
        np.savez(path.parent / "data" / "mine.npz", x=x, y=y, x_test=x, y_test=y)
    assert all(outcome is not None and outcome.status == "finished" for outcome in play(tmp_path / "net"))
    record = records.read(joined.join(tmp_path / "net"))
    assert [sum(counts) for counts in record.network.label_counts] == [20, 21, 22]


def test_a_device_that_nobody_hears_says_so(tmp_path: Path) -> None:
    deploy(tmp_path / "net", devices=2, graph="complete", settings={"patience": 1.0})
    outcome = node.run(tmp_path / "net" / "device-1", threads=1, in_own_process=False)
    assert outcome.missed == {"device-0": 20}
    lines = map(json.loads, (outcome.folder / "log.jsonl").read_text().splitlines())
    said = {line["event"]: line for line in lines}
    assert said["called in vain"]["why"] == "Connection refused" and said["finished"]["missed"] == outcome.missed
    assert records.read_metrics(Folder(outcome.folder).metrics)[-1].floats_sent == 0


def test_what_a_device_refuses(tmp_path: Path) -> None:
    deploy(tmp_path / "net")
    folder = tmp_path / "net" / "device-0"
    key = (folder / "device.key").read_bytes()
    (folder / "device.key").unlink()
    message(lambda: node.run(folder), "there is no private key", "join")
    (folder / "device.key").write_bytes(key)
    own = (folder / "device.pem").read_bytes()
    (folder / "device.pem").write_bytes((tmp_path / "net" / "device-1" / "device.pem").read_bytes())
    message(lambda: node.run(folder), "belongs to device-1, not to device-0")
    (folder / "device.pem").write_bytes(own)
    message(lambda: node.run(folder), "others may read the key", "chmod 600")
    (folder / "device.key").chmod(0o600)
    (folder / "device.key").write_bytes((tmp_path / "net" / "device-1" / "device.key").read_bytes())
    message(lambda: node.run(folder), "device.key is not the key of")
    text = (folder / "device.toml").read_text()
    (folder / "device.toml").write_text(text.replace('"ring"', '"complete"'))
    message(lambda: node.run(folder), "device.toml", "the neighbours of device 0 are [1, 4]")
    assert not (folder / "run").exists()
