"""A deployment's folder: its content, that it fits the graph, and the errors if it does not."""

from __future__ import annotations

import os
import shutil
import stat
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given, settings
from hypothesis import strategies as st

from drdsgd.errors import InputError
from drdsgd.experiments import registry
from drdsgd.experiments.build import make_data, make_graph
from drdsgd.experiments.config import Experiment
from drdsgd.network import certificates, deployment
from drdsgd.network.deployment import Device, Neighbour, Place, experiment_of, load, places
from tests.support.program import contents
from tests.support.refusing import message

FIELDS: dict[str, Any] = {
    "dataset": "synthetic", "devices": 5, "graph": "ring", "rounds": 20, "eval_every": 10, "checkpoint_every": 10,
    "threads": 1,
}  # fmt: skip
Spoil = Callable[[dict[str, Any]], object]


def small(**fields: Any) -> Experiment:
    """A small experiment."""
    return Experiment(**(FIELDS | fields))


def somewhere(K: int) -> list[Place]:
    """Devices on this machine. Nobody listens in these tests."""
    return [Place(f"device-{i}", f"127.0.0.1:{7450 + i}") for i in range(K)]


def make(out: Path, e: Experiment | None = None, where: list[Place] | None = None, **settings: Any) -> list[Path]:
    """Make a deployment; the folders of its devices."""
    e = e or small()
    deployment.make(e, out, where or somewhere(e.devices), **({"days": 1.0} | settings))
    return [path.parent for path in deployment.devices(out)]


def graph_of(folders: list[Path]) -> dict[int, list[int]]:
    """The links in all device.toml files."""
    found = [load(folder) for folder in folders]
    return {device.number: [n.number for n in device.neighbours] for device in found}


def neighbours_in(graph: nx.Graph) -> dict[int, list[int]]:
    """The links of a graph."""
    return {i: sorted(graph.neighbors(i)) for i in graph}


@pytest.mark.parametrize("keeps", ["", "its memory"])
def test_a_network_asks_an_algorithm_by_the_protocol_only(keeps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have no optimizer: what a lost message would destroy, a `Method` itself says."""
    made = SimpleNamespace(name="own", has_server=False, keeps=keeps, check=lambda mixing, processes=1: None)
    monkeypatch.setattr(deployment, "make_algorithm", lambda e: made)
    if keeps:
        message(lambda: deployment.check(small()), "a lost message would spoil its memory for good")
    else:
        deployment.check(small())


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment of five devices. Nobody changes it."""
    out = tmp_path_factory.mktemp("five") / "out"
    make(out)
    return out


@pytest.fixture
def spoilt(five: Path, tmp_path: Path) -> Callable[[Spoil], Path]:
    """The device.toml of a device, with a mistake."""

    def spoil(change: Spoil) -> Path:
        folder = Path(shutil.copytree(five / "device-0", tmp_path / "device-0"))
        fields = tomllib.loads((folder / "device.toml").read_text())
        change(fields)
        (folder / "device.toml").write_text(tomli_w.dumps(fields))
        return folder / "device.toml"

    return spoil


# ------------------------------------------------------------------------- make


def test_a_deployment_has_the_files_that_are_described(five: Path) -> None:
    devices = [f"device-{i}" for i in range(5)]
    files = ("device.toml", "device.key", "device.pem", "ca.pem")
    assert contents(five).keys() == {"ca.pem", "ca.key"} | {f"{name}/{file}" for name in devices for file in files}
    assert {path.name for path in five.iterdir()} == {"ca.pem", "ca.key", *devices}
    for name in devices:
        assert {path.name for path in (five / name).iterdir()} == set(files)
        assert (five / name / "ca.pem").read_bytes() == (five / "ca.pem").read_bytes()


def test_without_keys_every_device_has_to_ask_for_its_own(tmp_path: Path) -> None:
    for folder in make(tmp_path / "out", keys=False):
        assert contents(folder).keys() == {"device.toml", "ca.pem"}
    assert (tmp_path / "out" / "ca.key").exists()


def test_all_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make(tmp_path / "out")
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in files}
    secrets = [path for path in files if b"PRIVATE" in path.read_bytes()]
    assert len(secrets) == 6
    assert modes == {path: 0o600 if path in secrets else 0o666 for path in files}


def test_every_device_has_its_own_key_and_a_certificate_that_fits(tmp_path: Path) -> None:
    where = [Place("a", "10.0.0.5:7447"), Place("b-c", "[2001:db8::5]:7447"), Place("d-e", "clinic.example.org:7447")]
    folders = make(tmp_path / "out", small(devices=3), where)
    authority = certificates.open_authority(tmp_path / "out" / "ca.key", tmp_path / "out" / "ca.pem")
    keys = set()
    for folder, place in zip(folders, where, strict=True):
        assert folder.name == place.name
        certificate = certificates.read_certificate(folder / "device.pem")
        assert (
            certificates.was_signed(certificate, authority.certificate)
            and certificates.name_of(certificate) == place.name
        )
        [host] = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert str(host.value) == place.host
        key = serialization.load_pem_private_key((folder / "device.key").read_bytes(), password=None)
        assert key.public_key() == certificate.public_key()
        keys.add((folder / "device.key").read_bytes())
    assert len(keys) == 3
    assert [place.host for place in where] == ["10.0.0.5", "2001:db8::5", "clinic.example.org"]


@pytest.mark.parametrize(
    "fields",
    [
        {"graph": "ring"}, {"graph": "star"}, {"graph": "complete", "devices": 3}, {"graph": "grid", "devices": 6},
        {"graph": "erdos-renyi", "p": 0.5, "seed": 3, "devices": 6}, {"graph": "geometric", "seed": 1},
    ],
)  # fmt: skip
def test_neighbours_are_those_of_the_graph_and_each_others(tmp_path: Path, fields: dict[str, Any]) -> None:
    e = small(**fields)
    folders = make(tmp_path / "out", e, keys=False)
    found = graph_of(folders)
    assert found == neighbours_in(make_graph(e))
    assert all(i in found[j] for i in found for j in found[i])
    devices = {device.number: device for device in map(load, folders)}
    assert sorted(devices) == list(range(e.devices))
    for device in devices.values():  # each has its own name and address
        for n in device.neighbours:
            assert (n.name, n.address) == (devices[n.number].name, devices[n.number].address)


@settings(max_examples=5)
@given(K=st.integers(2, 5), seed=st.integers(0, 100))
def test_neighbours_of_any_random_graph(tmp_path_factory: pytest.TempPathFactory, K: int, seed: int) -> None:
    e = small(devices=K, graph="erdos-renyi", p=0.6, seed=seed)
    assert graph_of(make(tmp_path_factory.mktemp("any") / "out", e, keys=False)) == neighbours_in(make_graph(e))


def test_devices_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folders = make(tmp_path / "out", small(devices=11), keys=False)
    assert [folder.name for folder in folders] == [f"device-{i}" for i in range(11)]


def test_a_deployment_has_a_name_that_no_other_has(five: Path, tmp_path: Path) -> None:
    one = {load(path).deployment for path in deployment.devices(five)}
    other = {load(folder).deployment for folder in make(tmp_path / "out", keys=False)}
    assert len(one) == len(other) == 1 and one != other


def test_every_device_has_the_whole_experiment(five: Path) -> None:
    for path in deployment.devices(five):
        device = load(path)
        assert experiment_of(device, path.parent, threads=1) == small()
        assert experiment_of(device, path.parent, threads=3) == small(threads=3)
        assert "threads" not in device.experiment, "that is each host's own"


def test_what_is_set_is_set_on_all(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"deadline": 3.5, "patience": 7.0, "staleness": 2}
    for folder in make(tmp_path / "out", keys=False, **chosen):
        device = load(folder)
        assert {name: getattr(device, name) for name in chosen} == chosen
        assert not device.scouting and device.listen is None


def metrics_of(out: Path, hosts: list[str], port: int | None) -> list[str | None]:
    """The `metrics` addresses of devices on these hosts."""
    where = [Place(f"device-{i}", f"{host}:{7450 + i}") for i, host in enumerate(hosts)]
    folders = make(out, small(devices=len(hosts)), where, keys=False, metrics_port=port)
    return [load(folder).metrics for folder in folders]


def test_metrics_are_at_the_same_port_on_every_host_and_at_others_on_one(tmp_path: Path) -> None:
    assert metrics_of(tmp_path / "one", ["10.0.0.1"] * 3, 9450) == [f"127.0.0.1:{9450 + i}" for i in range(3)]
    assert metrics_of(tmp_path / "each", ["10.0.0.1", "10.0.0.2"], 9450) == ["127.0.0.1:9450"] * 2
    assert metrics_of(tmp_path / "none", ["10.0.0.1"] * 2, None) == [None] * 2


def test_no_two_devices_on_a_host_have_their_metrics_at_the_same_port(tmp_path: Path) -> None:
    first, second, _ = metrics_of(tmp_path / "out", ["10.0.0.1", "10.0.0.1", "10.0.0.2"], 9450)
    assert first != second


def test_an_empty_folder_can_be_used(tmp_path: Path) -> None:
    assert len(make(tmp_path, keys=False)) == 5


def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path: Path, five: Path) -> None:
    out = Path(shutil.copytree(five, tmp_path / "out"))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / ".hidden").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = contents(tmp_path)
    for path in (out, tmp_path / "one", tmp_path / "file"):
        message(partial(make, path), f"out='{path}'", "not empty", "use another")
    assert contents(tmp_path) == before


def test_as_many_addresses_as_devices(tmp_path: Path) -> None:
    for K in (4, 6):
        message(partial(make, tmp_path / "out", where=somewhere(K)), "devices=5", f"for {K}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("field, what", [("name", "the name device-0"), ("address", "the address 127.0.0.1:7450")])
def test_no_two_devices_are_the_same(tmp_path: Path, field: str, what: str) -> None:
    where = somewhere(5)
    where[3] = where[3]._replace(**{field: getattr(where[0], field)})
    message(lambda: make(tmp_path / "out", where=where), what, "each needs its own")
    assert not (tmp_path / "out").exists()


def test_an_experiment_that_is_no_network_leaves_nothing_behind(tmp_path: Path) -> None:
    message(lambda: make(tmp_path / "out", small(algorithm="fedavg")), "server")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "Device", "../a"])
def test_a_device_whose_name_is_none_is_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    where = somewhere(5)
    where[3] = where[3]._replace(name=name)
    message(lambda: make(tmp_path / "out", where=where, keys=False), name)
    assert not (tmp_path / "out").exists()


# -------------------------------------------------------------------- own files


def test_with_data_of_its_own_every_device_has_a_folder_for_it(tmp_path: Path) -> None:
    for name in ("devices", "nothing"):
        (tmp_path / name).mkdir()
    e = small(dataset=str(tmp_path / "nothing"), reference="uniform")
    folders = make(tmp_path / "devices", e, own_data=True, classes=3)
    (tmp_path / "nothing").rmdir()
    for folder in folders:
        device = load(folder)
        assert (folder / "data").is_dir() and not any((folder / "data").iterdir())
        assert device.own_data and device.classes == 3 and device.experiment["dataset"] == "data"
        moved = Path(shutil.copytree(folder, tmp_path / "elsewhere" / folder.name))
        assert experiment_of(device, moved).dataset == str(moved / "data")


def test_a_device_without_its_data_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    e = small(dataset=str(tmp_path / "nothing"))
    folder = make(tmp_path / "out", e, keys=False, own_data=True, classes=3)[0]
    device = load(folder)
    assert experiment_of(device, folder).dataset == str(folder / "data")
    (folder / "data").rmdir()
    message(lambda: make_data(experiment_of(device, folder)), str(folder / "data"), "no such folder")


GRAPH = nx.Graph([(0, 1), (1, 2), (2, 3), (3, 4), (1, 3)])


def write_edges(path: Path) -> None:
    path.write_text("".join(f"{i} {j}\n" for i, j in GRAPH.edges))


WRITERS: dict[str, Callable[[Path], object]] = {
    "my.edgelist": write_edges,
    "edges": write_edges,
    "my.graphml": lambda path: nx.write_graphml(GRAPH, path),
    "my.npy": lambda path: np.save(path, nx.to_numpy_array(GRAPH, nodelist=range(5))),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_graph_file_goes_with_every_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    WRITERS[name](Path(name))
    original = Path(name).read_bytes()
    e = small(graph=name)
    folders = make(tmp_path / "out", e, keys=False)
    assert graph_of(folders) == neighbours_in(GRAPH)
    Path(name).unlink()
    for folder in folders:
        device = load(folder)
        moved = Path(shutil.move(folder, tmp_path / "elsewhere" / folder.name))
        copy = moved / device.experiment["graph"]
        assert copy.parent == moved and copy.suffix == Path(name).suffix and copy.read_bytes() == original
        assert nx.utils.graphs_equal(nx.Graph(make_graph(experiment_of(device, moved)).edges), nx.Graph(GRAPH.edges))


def test_a_data_folder_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sites").mkdir()
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    folder = make(tmp_path / "out", small(dataset="sites"), keys=False)[0]
    monkeypatch.chdir(tmp_path / "sub")
    assert experiment_of(load(folder), folder).dataset == str(tmp_path / "sites")


def test_a_folder_of_a_data_sets_files_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make(tmp_path / "out", small(dataset="fashion-mnist", data_dir="files"), keys=False)[0]
    assert experiment_of(load(folder), folder).data_dir == str(tmp_path / "files")


def test_paths_in_the_experiment_are_those_of_files_beside_it(spoilt: Callable[[Spoil], Path]) -> None:
    def change(fields: dict[str, Any]) -> None:
        for name in ("heterogeneity", "dataset"):
            del fields["experiment"][name]
        fields["experiment"] |= {"dataset": "fashion-mnist", "data_dir": "files", "graph": "my.edgelist"}

    path = spoilt(change)
    (path.parent / "my.edgelist").write_text("0 1\n1 2\n2 3\n3 4\n4 0\n")
    e = experiment_of(load(path), path.parent)
    assert (e.dataset, e.data_dir, e.graph) == (
        "fashion-mnist", str(path.parent / "files"), str(path.parent / "my.edgelist")
    )  # fmt: skip


# ------------------------------------------------------------------------- load


def test_a_device_is_read_by_its_file_or_its_folder(five: Path) -> None:
    device = load(five / "device-2" / "device.toml")
    assert device == load(five / "device-2")
    assert isinstance(device, Device) and (device.number, device.name) == (2, "device-2")
    assert device.neighbours == [
        Neighbour(number=1, name="device-1", address="127.0.0.1:7451"),
        Neighbour(number=3, name="device-3", address="127.0.0.1:7453"),
    ]


@pytest.mark.parametrize(
    "changes, key",
    [
        ({"colour": "red"}, "colour"),
        ({"number": "three"}, "number"), ({"number": -1}, "number"), ({"number": 1.5}, "number"),
        ({"deployment": "mine"}, "deployment"), ({"deployment": "0" * 17}, "deployment"),
        ({"name": "Device 0"}, "name"), ({"name": ""}, "name"), ({"name": "a/b"}, "name"), ({"name": ".."}, "name"),
        ({"name": "a" * 64}, "name"), ({"name": "a\n"}, "name"), ({"name": "a.b"}, "name"), ({"name": 3}, "name"),
        ({"address": "nowhere"}, "address"), ({"address": "a b:7447"}, "address"), ({"address": ":7447"}, "address"),
        ({"address": "::1:7447"}, "address"), ({"address": "10.0.0.5:port"}, "address"),
        ({"address": "10.0.0.5:123456"}, "address"), ({"address": "10.0.0.5:7447\n"}, "address"),
        ({"key": "../ca.key"}, "key"), ({"ca": "/etc/ca"}, "ca"), ({"out": ".."}, "out"),
        ({"certificate": ""}, "certificate"), ({"metrics": "[::1]:9450"}, "metrics"),
        ({"listen": "nowhere"}, "listen"), ({"metrics": "nowhere"}, "metrics"), ({"metrics": 9450}, "metrics"),
        ({"deadline": 0}, "deadline"), ({"deadline": -1.0}, "deadline"), ({"deadline": float("nan")}, "deadline"),
        ({"deadline": float("inf")}, "deadline"), ({"deadline": "soon"}, "deadline"), ({"patience": 0}, "patience"),
        ({"staleness": -1}, "staleness"), ({"staleness": True}, "staleness"), ({"scouting": 1}, "scouting"),
        ({"own_data": "no"}, "own_data"), ({"classes": 1}, "classes"), ({"mean_samples": 0}, "mean_samples"),
        ({"neighbours": 3}, "neighbours"), ({"neighbours": [3]}, "neighbours.0"),
        ({"neighbours": [{"number": 1, "name": "b"}]}, "neighbours.0.address"),
        ({"neighbours": [{"number": 1, "name": "b", "address": "b"}]}, "neighbours.0.address"),
        ({"neighbours": [{"number": 1, "name": "b", "address": "b:1", "colour": 1}]}, "neighbours.0.colour"),
        ({"experiment": 3}, "experiment"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_with_file_and_key(
    spoilt: Callable[[Spoil], Path], changes: dict[str, Any], key: str
) -> None:
    path = spoilt(lambda fields: fields.update(changes))
    for where in (path, path.parent):
        message(partial(load, where), f"{path}: {key}: ")


@pytest.mark.parametrize("address", ["10.0.0.5:0", "10.0.0.5:65536", "10.0.0.5:99999", "10.0.0.5:٧٤٤٧"])
def test_a_port_that_there_is_not_is_told_with_file_and_key(spoilt: Callable[[Spoil], Path], address: str) -> None:
    path = spoilt(lambda fields: fields.update(address=address))
    message(lambda: load(path), f"{path}: address: ")


@pytest.mark.parametrize("key", ["deployment", "number", "name", "address", "neighbours", "experiment"])
def test_a_missing_key_is_told_by_its_name(spoilt: Callable[[Spoil], Path], key: str) -> None:
    path = spoilt(lambda fields: fields.pop(key))
    message(lambda: load(path), f"{path}: {key}: ", "missing")


def test_a_missing_file_is_told_and_how_to_make_one(tmp_path: Path) -> None:
    for path, said in ((tmp_path, tmp_path / "device.toml"), (tmp_path / "a.toml", tmp_path / "a.toml")):
        message(partial(load, path), f"no file {said}", "drdsgd network init")


@pytest.mark.parametrize(
    "content",
    [
        b"name =", b"= 3", b"a = 1\na = 2\n", b"[", b"\x00", b"\xff\xfe",
        pytest.param(b"number = " + b"1" * 5000, id="a number too long for Python"),
    ],
)  # fmt: skip
def test_what_is_not_toml_is_told_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "device.toml"
    path.write_bytes(content)
    message(lambda: load(path), f"{path} is not TOML: ")


@given(k=st.integers(0, 5000), byte=st.integers(0, 255))
def test_any_other_byte_is_a_device_or_one_line(
    five: Path, tmp_path_factory: pytest.TempPathFactory, k: int, byte: int
) -> None:
    data = bytearray((five / "device-0" / "device.toml").read_bytes())
    data[k % len(data)] = byte
    path = tmp_path_factory.mktemp("byte") / "device.toml"
    path.write_bytes(data)
    try:
        experiment_of(load(path), path.parent, threads=1)
    except InputError as error:
        assert str(path) in str(error) and "\n" not in str(error)


def test_a_folder_that_is_no_deployment_is_told_so(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        message(partial(deployment.devices, path), str(path), "not a deployment", "drdsgd network init")


# ----------------------------------------------------------------------- places


def test_a_file_of_hosts_is_read_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(
        "# clinics\n\nclinic-b 10.0.0.6:7447\n  clinic-a\t10.0.0.5:7448   # the first\nc-d [2001:db8::5]:1\n"
        "9 clinic.example.org:65535"
    )
    assert places(path) == [
        Place("clinic-b", "10.0.0.6:7447"), Place("clinic-a", "10.0.0.5:7448"), Place("c-d", "[2001:db8::5]:1"),
        Place("9", "clinic.example.org:65535"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "clinic-a", "10.0.0.5:7447", "clinic-a 10.0.0.5", "clinic-a 10.0.0.5:", "clinic-a 10.0.0.5:x",
        "clinic-a 10.0.0.5 7447", "Clinic 10.0.0.5:7447", "clinic_a 10.0.0.5:7447", "../a 10.0.0.5:7447",
        "-a 10.0.0.5:7447", "a- 10.0.0.5:7447", "a.b 10.0.0.5:7447", ". 10.0.0.5:7447", "a/b 10.0.0.5:7447",
        "a* 10.0.0.5:7447", "clinic-a ::1:7447", "clinic-a http://10.0.0.5:7447", "clinic-a 10.0.0.5:123456",
        f"{'a' * 64} 10.0.0.5:7447", "ä 10.0.0.5:7447", "clinic-a 10.0.0.5:7447 extra",
    ],
)  # fmt: skip
def test_a_line_that_is_no_device_is_told_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"# first\nother 10.0.0.9:7447\n\n{line}\nclinic-z 10.0.0.8:7447\n")
    message(lambda: places(path), f"hosts='{path}' line 4: ", "HOST:PORT")


@pytest.mark.parametrize("address", ["10.0.0.5:0", "10.0.0.5:65536", "10.0.0.5:99999", "10.0.0.5:٧٤٤٧"])
def test_a_port_that_there_is_not_is_told_by_the_number_of_its_line(tmp_path: Path, address: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"other 10.0.0.9:7447\nclinic-a {address}\n")
    message(lambda: places(path), f"hosts='{path}' line 2: ")


@pytest.mark.parametrize(
    "lines, what",
    [
        ("a 10.0.0.5:1\nb 10.0.0.5:2\na 10.0.0.5:3\n", "the name a"),
        ("a 10.0.0.5:1\nb 10.0.0.5:2\nc 10.0.0.5:1\n", "the address 10.0.0.5:1"),
    ],
)
def test_a_device_that_is_there_twice_is_told(tmp_path: Path, lines: str, what: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(lines)
    message(lambda: places(path), f"hosts='{path}'", what, "each needs its own")


def test_a_file_of_hosts_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name in ("nowhere", "bytes", "."):
        path = tmp_path / name
        message(partial(places, path), f"hosts='{path}': ")


@given(st.text(max_size=40))
def test_any_text_is_places_or_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("text") / "hosts"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        found = places(path)
    except InputError as error:
        assert str(error).startswith(f"hosts='{path}'") and "\n" not in str(error)
    else:
        assert len({place.name for place in found}) == len(found)


# ------------------------------------------------------------------------ check


@pytest.mark.parametrize("algorithm", registry.SERVERS)
def test_a_server_is_refused(algorithm: str) -> None:
    message(lambda: deployment.check(small(algorithm=algorithm)), f"algorithm='{algorithm}'", "needs a server")


@pytest.mark.parametrize("graph", ["directed-ring", "directed-erdos-renyi"])
@pytest.mark.parametrize("algorithm", ["dsgd", "sgp"])
def test_a_directed_graph_is_refused(graph: str, algorithm: str) -> None:
    e = small(algorithm=algorithm, graph=graph)
    message(lambda: deployment.check(e), f"graph='{graph}'", "both ways", "undirected")


KEEPING = [
    ({"optimizer": "gradient-tracking"}, "gradient-tracking", "the sum of what devices track"),
    ({"optimizer": "gt-adam"}, "gt-adam", "the sum of what devices track"),
    ({"algorithm": "dr-gt-adam"}, "gt-adam", "the sum of what devices track"),
    ({"optimizer": "d2"}, "d2", "the correction"),
    ({"optimizer": "exact-diffusion"}, "exact-diffusion", "the correction"),
    ({"optimizer": "push"}, "push", "the mass of all devices"),
    ({"algorithm": "gradient-tracking"}, "gradient-tracking", "the sum of what devices track"),
    ({"algorithm": "sgp"}, "push", "the mass of all devices"),
]


@pytest.mark.parametrize("fields, name, kept", KEEPING)
def test_what_a_lost_message_would_spoil_is_refused(fields: dict[str, Any], name: str, kept: str) -> None:
    said = message(lambda: deployment.check(small(**fields)), f"{name} over a network", "lost message", kept)
    assert "optimizer='dsgd', momentum or quasi-global-momentum" in said or "compression='none'" in said
    # dr-gt-adam compresses messages to 4 bits by default
    if fields.get("algorithm") == "dr-gt-adam":
        deployment.check(small(**{**fields, "optimizer": "quasi-global-momentum", "compression": "none"}))


@pytest.mark.parametrize("compression", ["top:0.1", "random:0.1", "quantize:4"])
@pytest.mark.parametrize("optimizer", ["choco", "momentum", "quasi-global-momentum"])
def test_compression_is_refused_and_the_cure_works(optimizer: str, compression: str) -> None:
    e = small(optimizer=optimizer, compression=compression)
    message(
        lambda: deployment.check(e), f"{optimizer} over a network", "copies that neighbours have", "compression='none'"
    )
    deployment.check(small(optimizer=optimizer, compression="none"))


@pytest.mark.parametrize("algorithm", ["choco-sgd", "ad-gda", "dr-qgm"])
def test_an_algorithm_that_compresses_is_refused_and_the_cure_works(algorithm: str) -> None:
    message(lambda: deployment.check(small(algorithm=algorithm)), "copies that neighbours have", "compression='none'")
    deployment.check(small(algorithm=algorithm, compression="none"))


def test_the_cure_is_not_what_was_already_done() -> None:
    """Without compression, gamma needs the copies."""
    e = small(optimizer="momentum", compression="none", gamma=0.5)
    said = message(lambda: deployment.check(e), "copies that neighbours have")
    assert "gamma=1" in said and "use compression='none'" not in said


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": "d2", "devices": 4},
        {"optimizer": "d2", "mixing": "matchings"},
        {"optimizer": "choco", "mixing": "matchings"},
    ],
)
def test_nobody_is_sent_to_a_method_that_is_refused_next(fields: dict[str, Any]) -> None:
    said = message(lambda: deployment.check(small(**fields)), "lost message")
    assert "use exact-diffusion" not in said and "use gradient-tracking" not in said


@pytest.mark.parametrize("objective", registry.OBJECTIVES)
@pytest.mark.parametrize("optimizer", ["dsgd", "momentum", "quasi-global-momentum"])
def test_every_objective_can_go_over_a_network(objective: str, optimizer: str) -> None:
    e = small(objective=objective, optimizer=optimizer)
    deployment.check(e)
    assert registry.parts_of(e.algorithm, e.objective, e.optimizer) == (objective, optimizer)


@pytest.mark.parametrize(
    "fields",
    [
        {"mixing": "matcha:0.5"}, {"mixing": "matchings"}, {"gossip_steps": 2}, {"local_steps": 3},
        {"link_failures": 0.1}, {"dropouts": 0.1},
    ],
)  # fmt: skip
def test_every_mixing_with_links_both_ways_can_go_over_a_network(fields: dict[str, Any]) -> None:
    deployment.check(small(**fields))


def test_a_mixing_with_links_one_way_is_refused() -> None:
    e = small(mixing="one-peer-exponential", graph="complete")
    message(lambda: deployment.check(e), "mixing='one-peer-exponential'", "both ways")


# ---------------------------------------------------------------- experiment_of


def without_one(fields: dict[str, Any]) -> None:
    fields["neighbours"].pop()


def with_another(fields: dict[str, Any]) -> None:
    fields["neighbours"].append({"number": 2, "name": "device-2", "address": "127.0.0.1:7452"})


def with_one_twice(fields: dict[str, Any]) -> None:
    fields["neighbours"].append(fields["neighbours"][0])


def as_another(fields: dict[str, Any]) -> None:
    fields["number"] = 2


def beyond_the_last(fields: dict[str, Any]) -> None:
    fields["number"] = 5


def in_another_graph(fields: dict[str, Any]) -> None:
    fields["experiment"]["graph"] = "complete"


@pytest.mark.parametrize(
    "change", [without_one, with_another, with_one_twice, as_another, beyond_the_last, in_another_graph]
)
def test_neighbours_that_are_not_the_graphs_are_refused(spoilt: Callable[[Spoil], Path], change: Spoil) -> None:
    path = spoilt(change)
    device = load(path)
    message(lambda: experiment_of(device, path.parent), f"{path}: ", f"neighbours of device {device.number}", "graph")


@pytest.mark.parametrize(
    "change, word",
    [
        ({"rounds": 0}, "rounds=0: "), ({"colour": "red"}, "colour"), ({"algorithm": "nix"}, "algorithm='nix': "),
        ({"optimizer": "push"}, "lost message"), ({"graph": "nowhere"}, "nowhere"),
        ({"graph": "directed-ring"}, "both ways"), ({"rounds": "many"}, "rounds='many': "), ({"graph": 3}, "graph=3: "),
        ({"dataset": "nowhere"}, "nowhere"),
    ],
)  # fmt: skip
def test_a_wrong_experiment_is_told_with_its_file(
    spoilt: Callable[[Spoil], Path], change: dict[str, Any], word: str
) -> None:
    path = spoilt(lambda fields: fields["experiment"].update(change))
    message(lambda: experiment_of(load(path), path.parent), f"{path}: ", word)
