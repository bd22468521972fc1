"""One device: the same rounds as everywhere, with its own data, and neighbours that may be late, gone or hostile."""

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

from drdsgd.core.algorithms import Algorithm
from drdsgd.core.flat import Flat
from drdsgd.core.objectives import LocalDevices
from drdsgd.core.round import init
from drdsgd.data.devices import Devices
from drdsgd.data.files import from_folder
from drdsgd.errors import Diverged, InputError, Interrupted
from drdsgd.experiments.build import make_algorithm, make_data, make_graph, make_mixing, make_model
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import Folder, Status
from drdsgd.experiments.run import OF_A_MACHINE, check_device, check_unchanged, stop_requests
from drdsgd.files import write_text
from drdsgd.network import certificates, monitor
from drdsgd.network.deployment import Device, experiment_of, file_of, load
from drdsgd.network.engine import NetworkEngine, OneDevice
from drdsgd.network.joined import About, read_about
from drdsgd.network.links import BEHIND, Links
from drdsgd.network.transport import Transport, why_silent
from drdsgd.topology.mixing import Mixing
from drdsgd.training import checkpoint
from drdsgd.training.loop import Progress, trajectory
from drdsgd.training.metrics import Metrics

__all__ = ["Outcome", "run"]

CPU = torch.device("cpu")
SOON = timedelta(days=14)
# seconds to meet neighbours where some are at work already, and to let them have what was sent before one stops
MOMENT, LEAVING = 2.0, 2.0
Watch = Callable[[Progress, list[str]], None]


class Outcome(NamedTuple):
    """How a device's run ended."""

    status: Status
    folder: Path
    progress: Progress | None
    missed: Mapping[str, int] = MappingProxyType({})
    """exchanges in which a neighbour's link did not count, since this process began"""


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
    """Run the device of a device.toml to the end of its experiment, or go on where it was.

    `watch` sees every round, with the names of neighbours that are away; `waiting` the names of those that are not yet
    there before the first. With `speak` the log goes to the standard error output as well. A process
    that has several devices, or other uses for its output, is not the device's own. `carrier` takes the messages to
    neighbours.
    """
    path = file_of(path)
    device, folder = load(path), path.parent
    e = experiment_of(device, folder, threads)
    record = Folder(folder / device.out)
    with ExitStack() as stack:
        stack.enter_context(record.lock())
        if record.config.exists():
            _check_same(record, e)
        if record.status != "unfinished":
            return Outcome(record.status, record.path, None)
        expires = _check_certificate(device, folder)
        log = monitor.Journal(record.path / "log.jsonl", device.name, sys.stderr if speak else None)
        stack.callback(log.close)
        data, mean = _data(device, e, folder)
        data = data.to(check_device(e.device))
        if in_own_process:
            stack.enter_context(monitor.carrier_log(log))
        model = make_model(e, data)
        flat = Flat(model)
        mixing = make_mixing(e, make_graph(e))
        most = max(flat.d, e.devices)
        asked = stack.enter_context(stop_requests())
        transport = carrier(device, folder, most * flat.dtype.itemsize, log)
        stack.callback(transport.close)
        links = Links(
            device.number, {n.number: n.name for n in device.neighbours},
            send=transport.send, digest=_digest(device, e, flat), dtype=flat.dtype, size=flat.d, most=most,
            rounds=e.rounds, deadline=device.deadline, patience=device.patience, staleness=device.staleness,
            repeats=mixing.repeats, log=log, stopping=lambda: asked() or stop(),
        )  # fmt: skip
        status = monitor.Status(device, e.rounds, links, record.path / "status.json", expires)
        if device.metrics is not None:
            stack.enter_context(monitor.serve(device.metrics, status.to_prometheus))
        member = Member(device, e, record, data, mean, model, mixing, links, status, log)
        progress = member.begin()
        transport.attach(links)  # now that it knows its round, of which it tells its neighbours
        return member.go(progress, watch, waiting, lambda: asked() or stop())


@dataclasses.dataclass
class Member:
    """A device that is connected, with all that it needs."""

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

    def begin(self) -> Progress | None:
        """Where it was, if it has run before."""
        e, links, status = self.e, self.links, self.status
        looked_at = max(200, 2 * (e.local_steps or 1))
        stride = NetworkEngine(self.mixing, self.device.number, links, CPU).stride(looked_at)
        links.behind = max(BEHIND * stride, BEHIND + self.device.staleness)
        progress = checkpoint.load(self.record.checkpoint, OneDevice(self.device.number, links), e.device)
        t = 0 if progress is None else progress.state.t
        links.begin(t)
        status.round = t
        status.write(now=True)
        self.log("started", round=t, rounds=e.rounds)
        if status.expires - datetime.now(UTC) < SOON:
            self.log("certificate expires soon", when=status.expires.isoformat())
        return progress

    def go(
        self,
        progress: Progress | None,
        watch: Watch,
        waiting: Callable[[list[str]], None],
        stop: Callable[[], bool],
    ) -> Outcome:
        """From the start, or from where it was, to the end."""
        e, links, status = self.e, self.links, self.status
        ranks = OneDevice(self.device.number, links)
        missing = self._meet(waiting, stop)
        if missing and not stop():
            self.log("goes on without", neighbours=missing)
            for n in self.device.neighbours:
                # the others call this device
                if n.name in missing and n.number < self.device.number:
                    self.log("called in vain", neighbour=n.name, address=n.address, why=why_silent(n.address))
        progress = self._caught_up(progress)
        self._begin_record(progress)
        status.state, links.running = "running", True
        try:
            while (progress is None or progress.state.t < e.rounds) and not stop():
                progress = self._rounds(ranks, progress, watch, stop)
        except Diverged as error:
            self.record.finish("diverged", str(error))
            self._end("diverged", why=str(error))
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
        """Wait for all neighbours before the first round; where others are at work already, only a moment."""
        begun = time.monotonic()
        while True:
            missing = self.links.meet(1.0)
            self.status.write()
            patience = MOMENT if self.links.left_behind() else self.device.patience
            if not missing or time.monotonic() - begun >= patience or stop():
                return missing
            waiting(missing)

    def _caught_up(self, progress: Progress | None) -> Progress | None:
        """Where neighbours have gone on without it, a device that comes back takes the newest model and round."""
        t = self.status.round
        if (there := self.links.furthest(sure=True)) <= t + self.links.behind:
            return progress
        # before its model a neighbour exchanges what its objective has, and may wait for others each time
        newest = self.links.newest_model(there, 4 * self.mixing.repeats * self.device.deadline)
        if newest is None:
            self.log("found no newer model", round=t, furthest=there)
            return progress
        round, theta = newest
        self.links.leap(round)
        algorithm = make_algorithm(self.e)
        assert isinstance(algorithm, Algorithm)  # `deployment.check` has refused the others
        theta = theta.to(self.e.device)
        sizes = self.data.train.sizes.double() / self.mean if self.e.reference == "samples" else torch.ones(1)
        hosted = LocalDevices(sizes.to(theta), torch.tensor([self.device.number], device=theta.device), self.e.devices)
        state = init(algorithm, theta[None].clone(), hosted)._replace(t=round)
        self.log("took a neighbour's model", round=round, before=t)
        before = progress or Progress(state, 0, 0.0, None)
        return before._replace(state=state, metrics=None)

    def _rounds(self, ranks: OneDevice, progress: Progress | None, watch: Watch, stop: Callable[[], bool]) -> Progress:
        """Rounds, to the end or until it is to stop or has fallen behind; then it goes on at its neighbours' round."""
        e, links, status = self.e, self.links, self.status
        steps = trajectory(
            self.model, self.data, self.mixing, make_algorithm(e),
            rounds=e.rounds, batch_size=e.batch_size, seed=e.seed, eval_every=e.eval_every,
            reference="uniform" if e.reference == "uniform" else self.mean,
            execution=e.execution, threads=e.threads, start=progress, ranks=ranks,
        )  # fmt: skip
        for progress in steps:
            t = progress.state.t
            links.begin(t)
            if progress.metrics is not None:
                status.metrics = self._seen(progress.metrics, ranks)
                self.record.append(status.metrics)
            status.round, status.progress = t, progress
            status.write()
            watch(progress if progress.metrics is None else progress._replace(metrics=status.metrics), self._missing())
            stopping = stop()
            leaping = t < e.rounds and (there := links.furthest()) > t + links.behind
            # only after the metrics: a checkpoint promises that all lines up to its round are there
            if stopping or leaping or t % e.checkpoint_every == 0 or t == e.rounds:
                checkpoint.save(self.record.checkpoint, progress, ranks)
            if stopping:
                break
            if leaping:
                self.log("fell behind and goes on at its neighbours' round", round=there, before=t)
                links.leap(there)
                return progress._replace(state=progress.state._replace(t=there))
        assert progress is not None
        return progress

    def _seen(self, metrics: Metrics, ranks: OneDevice) -> Metrics:
        """The metrics, with how far this device's model was from its neighbours' as the distance that it can see."""
        last = ranks.made.last if ranks.made is not None else None
        return dataclasses.replace(metrics, consensus_distance=0.0 if last is None else last.disagreement)

    def _missing(self) -> list[str]:
        return [box.name for box in self.links.boxes.values() if not (box.alive and box.introduced) or box.cut]

    def _begin_record(self, progress: Progress | None) -> None:
        record, device = self.record, self.device
        counts = torch.bincount(self.data.train.y.cpu(), minlength=self.data.classes).tolist()
        checksum = hashlib.sha256(self.data.checksums().numpy().tobytes()).hexdigest()
        about = About(device.deployment, device.number, device.name, counts, checksum)
        path = record.path / "device.json"
        if record.config.exists():
            if read_about(path) != about:
                raise InputError(f"the data changed since {path} was written; begin again without {record.path}")
        else:
            write_text(path, json.dumps(dataclasses.asdict(about), indent=1))
            write_text(record.config, self.e.to_toml())
        record.rewind(-1 if progress is None else progress.state.t, self.e, gaps=True)

    def _end(self, state: str, **about: object) -> None:
        self.status.state = state
        self.status.write(now=True)
        self.log(state, round=self.status.round, **about)


def _check_same(record: Folder, e: Experiment) -> None:
    check_unchanged(record, {name: value for name, value in e.model_dump().items() if name not in ("dataset", "graph")})


def _check_certificate(device: Device, folder: Path) -> datetime:
    """When the device's certificate expires; refuses one that does not fit, and says what to do."""
    certificate = certificates.read_certificate(folder / device.certificate)
    since, until = certificate.not_valid_before_utc, certificates.expires(certificate)
    authority = certificates.read_certificate(folder / device.ca)
    if (name := certificates.name_of(certificate)) != device.name:
        raise InputError(f"{folder / device.certificate} is the certificate of {name}, not of {device.name}")
    if not certificates.was_signed(certificate, authority):
        raise InputError(f"{folder / device.certificate} was not signed by the authority of {folder / device.ca}")
    certificates.check_secret(folder / device.key)
    if not certificates.fits(folder / device.key, certificate):
        raise InputError(f"{folder / device.key} is not the key of {folder / device.certificate}")
    if since > datetime.now(UTC):
        raise InputError(
            f"the certificate {folder / device.certificate} is valid from {since:%Y-%m-%d %H:%M} UTC on; "
            "is the clock of this host right?"
        )
    if until <= datetime.now(UTC):
        raise InputError(
            f"the certificate {folder / device.certificate} expired on {until:%Y-%m-%d %H:%M} UTC; "
            "whoever has the authority's key renews it with drdsgd network sign"
        )
    return until


def _data(device: Device, e: Experiment, folder: Path) -> tuple[Devices, float]:
    """The device's data, and the training samples of the average device."""
    if not device.own_data:
        everybody = make_data(e)  # for trying it out: everybody could see all
        return everybody.of([device.number]), float(everybody.train.sizes.double().mean())
    where = Path(e.dataset)
    files = list(where.glob("*.npz"))
    if len(files) != 1:
        raise InputError(f"{where} has {len(files)} .npz files; put the one of this device there")
    data = from_folder(where)
    if device.classes is None:
        raise InputError(f"{folder / 'device.toml'}: classes: say how many classes all devices' data have together")
    if data.classes > device.classes:
        raise InputError(f"{files[0]} has a label {data.classes - 1}, but classes is {device.classes} in device.toml")
    if e.reference == "samples" and device.mean_samples is None:
        raise InputError(
            f"{folder / 'device.toml'}: mean_samples: devices count by their samples, so say how many the average "
            'device has, the same on all; or set reference = "uniform" in [experiment]'
        )
    return dataclasses.replace(data, classes=device.classes), device.mean_samples or 1.0


def _digest(device: Device, e: Experiment, flat: Flat) -> bytes:
    """What all devices of a run have in common: the deployment, the experiment, the graph, the first model."""
    own = (*OF_A_MACHINE, "dataset", "device", "execution")
    said = {name: value for name, value in device.experiment.items() if name not in own}
    edges = sorted(sorted(map(int, edge)) for edge in make_graph(e).edges)
    alike = [device.deployment, device.staleness, device.own_data, device.classes, device.mean_samples, edges, said]
    digest = hashlib.sha256(json.dumps(alike, sort_keys=True).encode())
    digest.update(flat.row().cpu().numpy().tobytes())
    return digest.digest()
