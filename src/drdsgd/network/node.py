"""One device: the same rounds as everywhere, on its own data, with neighbours that may be late, gone or hostile."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch

from drdsgd.core.flat import Flat
from drdsgd.data.devices import Devices
from drdsgd.data.files import from_folder
from drdsgd.errors import Diverged, InputError, Interrupted
from drdsgd.experiments.build import gossip_of, make_algorithm, make_data, make_graph, make_mixing, make_model
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import Folder, Status
from drdsgd.experiments.run import OF_A_MACHINE, check_device, check_unchanged, settings_of, stop_requests
from drdsgd.files import write_text
from drdsgd.network import certificates, monitor, zenoh_log
from drdsgd.network.deployment import Device, experiment_of, file_of, load
from drdsgd.network.engine import NetworkEngine, OneDevice
from drdsgd.network.joined import About, read_about
from drdsgd.network.links import BEHIND, Links
from drdsgd.network.transport import Transport, why_silent
from drdsgd.topology.mixing import Mixing
from drdsgd.training import checkpoint
from drdsgd.training.loop import Progress, steps
from drdsgd.training.preparation import prepare

__all__ = ["Outcome", "run"]

SOON = timedelta(days=14)
# seconds to meet neighbours if some are already at work, and to let them receive the last messages before stopping
MOMENT, LEAVING = 2.0, 2.0
Watch = Callable[[Progress, list[str]], None]


class Outcome(NamedTuple):
    """How a device's run ended."""

    status: Status
    folder: Path
    progress: Progress | None
    missed: Mapping[str, int] = MappingProxyType({})
    """for each neighbour: exchanges in which its link did not count, since this process began"""


def run(
    path: Path,
    *,
    threads: int | None = None,
    watch: Watch = lambda progress, missing: None,
    waiting: Callable[[list[str]], None] = lambda missing: None,
    stop: Callable[[], bool] = lambda: False,
    speak: bool = False,
    in_own_process: bool = True,
    carrier: type[Transport] = Transport,
) -> Outcome:
    """Run the device of a device.toml to the end of its experiment; a device that has run before continues.

    `watch` is called after every round, with the names of neighbours that are away; `waiting` before the first round,
    with the names of those that are not there yet. With `speak` the log also goes to standard error. With
    `in_own_process` zenoh's log is read from standard output; a process that has several devices, or uses its standard
    output otherwise, must turn it off. `carrier` sends and receives the messages.
    """
    path = file_of(path)
    device, folder = load(path), path.parent
    e = experiment_of(device, folder, threads)
    record = Folder(folder / device.out)
    with ExitStack() as stack:
        stack.enter_context(record.lock())
        if record.config.exists():
            check_unchanged(record, {k: v for k, v in e.model_dump().items() if k not in ("dataset", "graph")})
        if record.status != "unfinished":
            return Outcome(record.status, record.path, None)
        expires = _check_certificate(device, folder)
        log = monitor.Journal(record.path / "log.jsonl", device.name, sys.stderr if speak else None)
        stack.callback(log.close)
        data, mean = _data(device, e, folder)
        data = data.to(check_device(e.device))
        if in_own_process:
            stack.enter_context(zenoh_log.reading(log))
        model = make_model(e, data)
        flat, graph = Flat(model), make_graph(e)
        most = max(flat.d, e.devices)
        asked = stack.enter_context(stop_requests())

        def stopping() -> bool:
            return asked() or stop()

        transport = carrier(device, folder, most * flat.dtype.itemsize, log)
        stack.callback(transport.close)
        links = Links(
            device.number, {n.number: n.name for n in device.neighbours},
            send=transport.send, digest=_digest(device, e, flat), dtype=flat.dtype, size=flat.d, most=most,
            rounds=e.rounds, deadline=device.deadline, patience=device.patience, staleness=device.staleness,
            repeats=gossip_of(e, graph).repeats, log=log, stopping=stopping,
        )  # fmt: skip
        status = monitor.Status(device, e.rounds, links, record.path / "status.json", expires)
        if device.metrics is not None:
            stack.enter_context(monitor.serve(device.metrics, status))
        member = Member(device, e, record, data, mean, model, make_mixing(e, graph), links, status, log)
        progress = member.begin()
        transport.attach(links)  # only now: the device knows its round, which it tells its neighbours
        return member.go(progress, watch, waiting, stopping)


@dataclasses.dataclass
class Member:
    """A connected device."""

    device: Device
    e: Experiment
    record: Folder
    data: Devices
    mean: float
    model: torch.nn.Module
    mixing: Mixing
    links: Links
    status: monitor.Status
    log: monitor.Journal

    def __post_init__(self) -> None:
        self.ranks = OneDevice(self.device.number, self.links)
        settings = settings_of(self.e, self.mean)
        self.prepared = prepare(self.model, self.data, self.mixing, make_algorithm(self.e), settings, self.ranks)

    def begin(self) -> Progress | None:
        """Load the checkpoint, if there is one, and log the start."""
        e, links, status = self.e, self.links, self.status
        looked_at = max(200, 2 * (e.local_steps or 1))
        stride = NetworkEngine(self.prepared.mixing, self.device.number, links, torch.device("cpu")).stride(looked_at)
        links.behind = max(BEHIND * stride, BEHIND + self.device.staleness)
        progress = checkpoint.load(self.record.checkpoint, self.ranks, e.device)
        t = 0 if progress is None else progress.state.t
        links.begin(t)
        status.round = t
        status.write(now=True)
        self.log("started", round=t, rounds=e.rounds)
        if status.expires - datetime.now(UTC) < SOON:
            self.log("certificate expires soon", when=status.expires.isoformat())
        return progress

    def go(
        self, progress: Progress | None, watch: Watch, waiting: Callable[[list[str]], None], stop: Callable[[], bool]
    ) -> Outcome:
        """Run the rounds that remain."""
        e, links, status = self.e, self.links, self.status
        missing = self._meet(waiting, stop)
        if missing and not stop():
            self.log("goes on without", neighbours=missing)
            for n in self.device.neighbours:
                # a neighbour with a higher number calls this device
                if n.name in missing and n.number < self.device.number:
                    self.log("called in vain", neighbour=n.name, address=n.address, why=why_silent(n.address))
        progress = self._caught_up(progress)
        self._begin_record(progress)
        status.state, links.running = "running", True
        try:
            while (progress is None or progress.state.t < e.rounds) and not stop():
                progress = self._rounds(progress, watch, stop)
        except Diverged as error:
            self.record.finish("diverged", error.on_command_line)
            self._end("diverged", why=error.on_command_line)
            raise
        if progress is None or progress.state.t < e.rounds:
            links.leave(status.round, LEAVING)
            self._end("stopped")
            raise Interrupted(f"stopped after round {status.round} of {e.rounds}")
        self.record.finish("finished", "")
        links.leave(e.rounds, min(LEAVING * 5, self.device.deadline))
        missed = {box.name: box.missed for box in links.boxes.values() if box.missed}
        self._end("finished", missed=missed)
        return Outcome("finished", self.record.path, progress, missed)

    def _meet(self, waiting: Callable[[list[str]], None], stop: Callable[[], bool]) -> list[str]:
        """Wait for all neighbours before the first round, but only a moment if some are already at work."""
        begun = time.monotonic()
        while True:
            missing = self.links.meet(1.0)
            self.status.write()
            patience = MOMENT if self.links.left_behind() else self.device.patience
            if not missing or time.monotonic() - begun >= patience or stop():
                return missing
            waiting(missing)

    def _caught_up(self, progress: Progress | None) -> Progress | None:
        """A device that comes back takes the newest model and round of its neighbours, if they are far ahead."""
        t = self.status.round
        if (there := self.links.furthest(sure=True)) <= t + self.links.behind:
            return progress
        # before its model, a neighbour exchanges the values of its objective, and may wait for others each time
        newest = self.links.newest_model(there, 4 * self.prepared.mixing.repeats * self.device.deadline)
        if newest is None:
            self.log("found no newer model", round=t, furthest=there)
            return progress
        round, theta = newest
        self.links.leap(round)
        state = self.prepared.play.begin(theta.to(self.e.device)[None].clone())._replace(t=round)
        self.log("took a neighbour's model", round=round, before=t)
        before = progress or Progress(state, 0, 0.0, None)
        return before._replace(state=state, metrics=None)

    def _rounds(self, progress: Progress | None, watch: Watch, stop: Callable[[], bool]) -> Progress:
        """Run rounds to the end, or until the device is to stop, or leaps to its neighbours' round."""
        e, links, status = self.e, self.links, self.status
        rounds = steps(self.prepared, progress)
        for progress in rounds:
            t = progress.state.t
            links.begin(t)
            if progress.metrics is not None:
                # the distance to the neighbours' models is all that a device can see of the consensus distance
                status.metrics = dataclasses.replace(progress.metrics, consensus_distance=self.ranks.disagreement)
                self.record.append(status.metrics)
            status.round, status.progress = t, progress
            status.write()
            missing = [box.name for box in links.boxes.values() if not box.reachable]
            watch(progress if progress.metrics is None else progress._replace(metrics=status.metrics), missing)
            stopping = stop()
            leaping = t < e.rounds and (there := links.furthest()) > t + links.behind
            # only after the metrics: a checkpoint promises that all lines up to its round are written
            if stopping or leaping or t % e.checkpoint_every == 0 or t == e.rounds:
                checkpoint.save(self.record.checkpoint, progress, self.ranks)
            if stopping:
                break
            if leaping:
                self.log("fell behind and goes on at its neighbours' round", round=there, before=t)
                links.leap(there)
                return progress._replace(state=progress.state._replace(t=there))
        assert progress is not None
        return progress

    def _begin_record(self, progress: Progress | None) -> None:
        record, device = self.record, self.device
        counts = torch.bincount(self.data.train.y.cpu(), minlength=self.data.classes).tolist()
        checksum = hashlib.sha256(self.data.checksums().numpy().tobytes()).hexdigest()
        about = About(device.deployment, device.number, device.name, counts, checksum)
        path = record.path / "device.json"
        if record.config.exists():
            if read_about(path) != about:
                raise InputError(f"the data changed since {path} was written; remove {record.path} to begin again")
        else:
            write_text(path, json.dumps(dataclasses.asdict(about), indent=1))
            write_text(record.config, self.e.to_toml())
        record.rewind(-1 if progress is None else progress.state.t, self.e, gaps=True)

    def _end(self, state: str, **about: object) -> None:
        self.status.state = state
        self.status.write(now=True)
        self.log(state, round=self.status.round, **about)


def _check_certificate(device: Device, folder: Path) -> datetime:
    """Refuse a certificate that does not fit the device; returns when it expires."""
    path, key, ca = (folder / name for name in (device.certificate, device.key, device.ca))
    certificate, authority = certificates.read_certificate(path), certificates.read_certificate(ca)
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if (name := certificates.name_of(certificate)) != device.name:
        raise InputError(f"{path} belongs to {name}, not to {device.name}: copy its own")
    if not certificates.was_signed(certificate, authority):
        raise InputError(f"{path} was not signed by the authority of {ca}: copy both files of one deployment")
    certificates.check_secret(key)
    if not certificates.fits(key, certificate):
        raise InputError(f"{key} is not the key of {path}: sign the newest .csr")
    if since > datetime.now(UTC):
        raise InputError(f"{path} is not valid before {since:%Y-%m-%d %H:%M} UTC; check the clock of this host")
    if until <= datetime.now(UTC):
        raise InputError(
            f"{path} expired on {until:%Y-%m-%d %H:%M} UTC; the holder of the authority's key renews it with drdsgd "
            "network sign"
        )
    return until


def _data(device: Device, e: Experiment, folder: Path) -> tuple[Devices, float]:
    """The device's data, and the number of training samples of the average device."""
    if not device.own_data:
        everybody = make_data(e)  # for trials: every device could see all data
        return everybody.of([device.number]), float(everybody.train.sizes.double().mean())
    where, toml = Path(e.dataset), folder / "device.toml"
    files = list(where.glob("*.npz"))
    if len(files) != 1:
        raise InputError(f"{where} has {len(files)} .npz files; put the file of this device there, and no other")
    data = from_folder(where)
    if device.classes is None:
        raise InputError(f"{toml}: classes: set it to the number of classes in all devices' data together")
    if data.classes > device.classes:
        raise InputError(f"{files[0]} has a label {data.classes - 1}, but classes is {device.classes} in device.toml")
    if e.reference == "samples" and device.mean_samples is None:
        raise InputError(
            f"{toml}: mean_samples: set it to the samples of the average device, equal on all devices; or set "
            'reference = "uniform" in [experiment]'
        )
    return dataclasses.replace(data, classes=device.classes), device.mean_samples or 1.0


def _digest(device: Device, e: Experiment, flat: Flat) -> bytes:
    """A digest that is equal on all devices of a run: of the deployment, the experiment, the graph, the first model."""
    own = (*OF_A_MACHINE, "dataset", "device", "execution", "matmul")
    said = {name: value for name, value in device.experiment.items() if name not in own}
    edges = sorted(sorted(map(int, edge)) for edge in make_graph(e).edges)
    alike = [device.deployment, device.staleness, device.own_data, device.classes, device.mean_samples, edges, said]
    digest = hashlib.sha256(json.dumps(alike, sort_keys=True).encode())
    digest.update(flat.row().cpu().numpy().tobytes())
    return digest.digest()
