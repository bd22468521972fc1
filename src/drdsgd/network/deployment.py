"""A deployment: a folder with the authority and, for every device, a folder to be copied to its host.

DIR/ca.pem, DIR/ca.key           the authority; its key stays with the operator of the deployment
DIR/NAME/device.toml             the device's name and address, its neighbours, the experiment
DIR/NAME/device.key, device.pem  its key and certificate
DIR/NAME/ca.pem                  the authority whose certificates it trusts
DIR/NAME/data/                   its data, if it has its own
DIR/NAME/run/                    the output of `drdsgd node`
"""

from __future__ import annotations

import re
import secrets
import shutil
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from drdsgd.core.optimizers import COPIES
from drdsgd.errors import InputError, flag, named, one_line, unknown
from drdsgd.experiments.build import gossip_of, make_algorithm, make_graph
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.registry import DATASETS, GRAPHS
from drdsgd.files import write_text

__all__ = ["Device", "Neighbour", "Place", "check", "devices", "experiment_of", "load", "make", "places"]

FILE, JOINED = "device.toml", "joined"
# certificates can be renewed as long as their authority is valid
AUTHORITY_DAYS = 36525.0
# no dots: zenoh also trusts the public authorities of the web, which do not sign names without a dot
_NAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_PORT = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_ADDRESS = rf"([A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\]):{_PORT}"
Name = Annotated[str, Field(pattern=f"^{_NAME}$")]
Address = Annotated[str, Field(pattern=f"^{_ADDRESS}$")]
# never outside the device's folder: `sign` writes to it, and may remove a key from it
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
Seconds = Annotated[float, Field(gt=0, le=86400)]


class Neighbour(BaseModel):
    """A device at the other end of a link: its number in the graph, the name in its certificate, its address."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    number: Annotated[int, Field(ge=0)]
    name: Name
    address: Address


class Device(BaseModel):
    """The content of a device.toml; the files that it names are in the same folder."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    deployment: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    number: Annotated[int, Field(ge=0)]
    name: Name
    address: Address
    """where neighbours reach it"""
    listen: Address | None = None
    """where it listens, if not at `address`, as behind a gateway"""
    ca: FileName = "ca.pem"
    certificate: FileName = "device.pem"
    key: FileName = "device.key"
    out: FileName = "run"
    deadline: Seconds = 30.0
    """seconds to wait for a neighbour in an exchange"""
    patience: Seconds = 60.0
    """seconds to wait for all neighbours before the first round"""
    staleness: Annotated[int, Field(ge=0)] = 0
    """the largest age of a neighbour's model, in rounds; 0: every round waits for all"""
    metrics: Annotated[str, Field(pattern=f"^[A-Za-z0-9.-]+:{_PORT}$")] | None = None
    """where it serves its metrics for Prometheus"""
    scouting: bool = False
    """whether to search for others, and be found, on the local network"""
    own_data: bool = False
    """whether the experiment's data set is a folder with one file, this device's"""
    classes: Annotated[int, Field(ge=2)] | None = None
    """the number of classes in all devices' own data together"""
    mean_samples: Annotated[float, Field(gt=0)] | None = None
    """training samples of the average device, if devices count by their samples"""
    neighbours: list[Neighbour]
    experiment: dict[str, Any]


class Place(NamedTuple):
    """A device's name and address."""

    name: str
    address: str

    @property
    def host(self) -> str:
        """The address without the port.

        >>> Place("a", "[::1]:7447").host
        '::1'
        """
        return self.address.rpartition(":")[0].strip("[]")


def places(path: Path) -> list[Place]:
    """The devices in a file with one line `NAME HOST:PORT` per device, in the order of the graph's nodes."""
    try:
        lines = [line.split("#")[0].split() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{named('hosts', path)}: {one_line(error)}") from None
    found = []
    for number, words in enumerate(lines, start=1):
        if not words:
            continue
        if len(words) != 2 or not re.fullmatch(_NAME, words[0]) or not re.fullmatch(_ADDRESS, words[1]):
            raise InputError(
                f"{named('hosts', path)} line {number}: write a name (a-z, 0-9 and -) and HOST:PORT, such as "
                "clinic-a 10.0.0.5:7447"
            )
        found.append(Place(*words))
    _check_distinct(found, named("hosts", path))
    return found


def _check_distinct(found: Sequence[Place], where: str) -> None:
    for what, all_ in (("name", [p.name for p in found]), ("address", [p.address for p in found])):
        twice = [one for one in all_ if all_.count(one) > 1]
        if twice:
            raise InputError(f"{where}: two devices have the {what} {twice[0]}; each needs its own")


def check(e: Experiment) -> None:
    """Refuse an experiment that does not tolerate lost messages."""
    from drdsgd.experiments import registry

    algorithm = make_algorithm(e)
    if algorithm.has_server:
        raise InputError(f"{named('algorithm', e.algorithm)}: it needs a server, and a network has none; use another")
    graph = make_graph(e)
    if graph.is_directed():
        raise InputError(f"{named('graph', e.graph)}: links of a network go both ways; use an undirected graph")
    mixing = gossip_of(e, graph)
    if not mixing.symmetric:
        raise InputError(
            f"{named('mixing', e.mixing)}: links of a network go both ways, its W is not symmetric; use another"
        )
    if algorithm.keeps:
        name = registry.parts_of(e.algorithm, e.objective, e.optimizer)[1]
        uncompressed = named("compression", "none")
        fix = f"{named('optimizer', 'dsgd')}, momentum or quasi-global-momentum"
        if e.compression is not None:
            fix = f"{named('optimizer', 'quasi-global-momentum')} with {uncompressed}"
        if algorithm.keeps == COPIES:
            fix = named("gamma", 1) if e.compression == "none" else uncompressed
        raise InputError(f"{name} over a network: a lost message would spoil {algorithm.keeps} for good; use {fix}")
    algorithm.check(mixing)


def make(
    e: Experiment,
    out: Path,
    where: Sequence[Place],
    *,
    days: float,
    keys: bool = True,
    own_data: bool = False,
    metrics_port: int | None = 9450,
    **settings: Any,
) -> None:
    """Write the folder of a deployment; `settings` are further fields of `Device`, equal for all devices.

    Without `keys` every device makes its own key and requests a certificate (`join`).
    """
    from drdsgd.network import certificates

    check(e)
    if own_data and e.random_labels is not None:
        raise InputError(
            f"{named('random_labels', e.random_labels)}: does not work with {flag('own_data')}; leave it out"
        )
    check_days(days)
    _check_distinct(where, "the devices")
    for place in where:
        if place.name == JOINED:
            raise InputError(f"a device cannot be called {JOINED}, the folder for the records of all; rename it")
        if not re.fullmatch(_NAME, place.name) or not re.fullmatch(_ADDRESS, place.address):
            raise InputError(f"{place.name} at {place.address}: write a name (a-z, 0-9 and -) and HOST:PORT")
    if len(where) != e.devices:
        raise InputError(f"{named('devices', e.devices)}: there are addresses for {len(where)} devices")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{named('out', out)}: the folder is not empty; use another")
    more = max(Counter(place.host for place in where).values()) - 1
    if metrics_port is not None and not 0 < metrics_port <= 65535 - more:
        raise InputError(
            f"{named('metrics_port', metrics_port)}: devices need this port and the {more} after it, up to 65535"
        )
    graph, deployment = make_graph(e), secrets.token_hex(8)
    authority = certificates.make_authority(deployment, AUTHORITY_DAYS + 1)
    fields = e.model_dump(exclude_none=True, exclude={"threads", "matmul"})
    if own_data:
        fields["dataset"] = "data"
    elif e.dataset not in DATASETS:
        fields["dataset"] = str(Path(e.dataset).resolve())
    if e.data_dir is not None:
        fields["data_dir"] = str(Path(e.data_dir).resolve())
    graph_file = None if e.graph in GRAPHS else Path(e.graph)
    if graph_file is not None:
        fields["graph"] = f"graph{graph_file.suffix}"
    for number, place in enumerate(where):
        beside = sum(other.host == place.host for other in where[:number])
        metrics = None if metrics_port is None else f"127.0.0.1:{metrics_port + beside}"
        neighbours = [Neighbour(number=j, **where[j]._asdict()) for j in sorted(graph.neighbors(number))]
        given = {"deployment": deployment, "number": number, **place._asdict(), "metrics": metrics, **settings}
        device = _device({**given, "own_data": own_data, "neighbours": neighbours, "experiment": fields})
        folder = out / place.name
        folder.mkdir(mode=0o700, parents=True)  # for keys, data and models
        if own_data:
            (folder / "data").mkdir()
        if graph_file is not None:
            shutil.copyfile(graph_file, folder / fields["graph"])
        certificates.write(folder / device.ca, authority.certificate)
        if keys:
            key = certificates.make_key()
            certificates.write(folder / device.key, key)
            signed = authority.sign(place.name, place.host, key.public_key(), days)
            certificates.write(folder / device.certificate, signed)
        write_text(folder / FILE, tomli_w.dumps(device.model_dump(exclude_none=True)))
    certificates.write(out / "ca.key", authority.key)
    certificates.write(out / "ca.pem", authority.certificate)


def check_days(days: float) -> None:
    """Refuse a number of days for which no certificate can be valid."""
    if not 0 < days <= AUTHORITY_DAYS:
        given = int(days) if float(days).is_integer() else days
        raise InputError(f"{named('days', given)}: use more than 0 and at most {AUTHORITY_DAYS:g}, a hundred years")


def _device(fields: dict[str, Any], place: Callable[[str], str] = named) -> Device:
    try:
        return Device(**fields)
    except ValidationError as error:
        where, said = _first(error)
        raise InputError(f"{place(where)}: {said}") from None


def _first(error: ValidationError) -> tuple[str, str]:
    """The place of the first mistake, and the message."""
    first = error.errors()[0]
    where, last = ".".join(map(str, first["loc"])) or "the file", str(first["loc"][-1]) if first["loc"] else ""
    if first["type"] == "missing":
        return where, "is missing; add it"
    if first["type"] == "extra_forbidden":
        return where, unknown(last, list(Neighbour.model_fields if len(first["loc"]) > 1 else Device.model_fields))
    if first["type"] == "string_pattern_mismatch" and last in _WRITE:
        return where, f"write {_WRITE[last]}, not {first['input']!r}"
    return where, f"{first['msg'][0].lower()}{first['msg'][1:]}, not {first['input']!r}"


_WRITE = {
    **dict.fromkeys(("address", "listen", "metrics"), "HOST:PORT, such as 10.0.0.5:7447"),
    **dict.fromkeys(("ca", "certificate", "key", "out"), "the name of a file in this folder"),
    "name": "a name with a-z, 0-9 and -",
    "deployment": "the 16 digits (0-9 and a-f) in the operator's file",
}


def load(path: Path) -> Device:
    """The device in a device.toml, which may be given by its folder."""
    path = file_of(path)
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}; drdsgd network init makes one for every device") from None
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {one_line(error)}") from None
    return _device(fields, lambda where: f"{path}: {where}")


def file_of(path: Path) -> Path:
    """The path of a device.toml, which may be given by its folder."""
    return path / FILE if path.is_dir() else path


def devices(folder: Path) -> list[Path]:
    """The device.toml files of a deployment, in the order of the devices' numbers."""
    found = [path for path in folder.glob(f"*/{FILE}") if path.is_file()]
    if not found:
        raise InputError(f"{folder} is not a deployment: it has no */{FILE}; make one with drdsgd network init")
    return sorted(found, key=lambda path: load(path).number)


def experiment_of(device: Device, folder: Path, threads: int | None = None) -> Experiment:
    """A device's experiment; the files that it names are in the device's folder."""
    fields = dict(device.experiment)
    for name, known in (("dataset", DATASETS), ("graph", GRAPHS), ("data_dir", ())):
        value = fields.get(name)
        if isinstance(value, str) and value not in known:
            fields[name] = str(folder / value)
    if threads is not None:
        fields["threads"] = threads
    try:
        e = Experiment(**fields)
        check(e)
    except InputError as error:
        raise InputError(f"{folder / FILE}: {error.marked}") from None
    graph = make_graph(e)
    said = sorted(n.number for n in device.neighbours)
    if device.number >= e.devices or said != sorted(graph.neighbors(device.number)):
        raise InputError(
            f"{folder / FILE}: the neighbours of device {device.number} are {said}, but not in the experiment's graph"
        )
    return e
