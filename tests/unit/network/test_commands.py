"""`drdsgd network init`, `join`, `sign` and `status` as commands; every refusal is one line with status 2."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import ssl
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from drdsgd.experiments.records import Folder
from drdsgd.network import certificates, commands, deployment
from drdsgd.network.certificates import Authority
from tests.support import deployments as made
from tests.support.program import contents, drdsgd, refused

pytestmark = pytest.mark.slow

RING = ["--graph", "ring", "--rounds", "4"]
SMALL = ["--dataset", "synthetic", "--devices", "3", *RING]


def init(out: Path, *arguments: str | Path, options: list[str] = SMALL) -> str:
    """The output of `drdsgd network init`."""
    said = drdsgd("network", "init", "--out", out, *options, *arguments)
    assert (said.status, said.err) == (0, ""), said
    return said.out


def sign(out: Path, *arguments: str | Path) -> str:
    """The output of `drdsgd network sign`."""
    said = drdsgd("network", "sign", out, *arguments)
    assert (said.status, said.err) == (0, ""), said
    return said.out


def not_made(out: Path, *arguments: str | Path, options: list[str] = SMALL) -> str:
    """The message of a `drdsgd network init` that must fail; it has made nothing."""
    line = refused("network", "init", "--out", out, *options, *arguments)
    assert not out.exists()
    return line


def authority_of(out: Path) -> Authority:
    return certificates.open_authority(out / "ca.key", out / "ca.pem")


def certificate_in(folder: Path) -> x509.Certificate:
    return certificates.read_certificate(folder / "device.pem")


def fits(folder: Path, out: Path, name: str, host: str) -> bool:
    """Whether a device's key and certificate belong together, and the authority signed that name and host."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(folder / "device.pem", folder / "device.key")
    except ssl.SSLError:
        return False
    certificate = certificate_in(folder)
    [listens] = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return (
        certificates.was_signed(certificate, authority_of(out).certificate)
        and certificates.name_of(certificate) == name
        and str(listens.value) == host
    )


def public(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def taken(out: Path, name: str, host: Path) -> Path:
    """A device's folder on its own host: a copy of its folder in the deployment."""
    return Path(shutil.copytree(out / name, host / name))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment of three devices with keys. Nobody changes it."""
    out = tmp_path_factory.mktemp("three") / "out"
    init(out, "--days", "30")
    return out


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without keys."""
    out = tmp_path_factory.mktemp("keyless") / "out"
    init(out, "--no-keys", "--days", "30")
    return out


@pytest.fixture
def out(three: Path, tmp_path: Path) -> Path:
    """A copy of the deployment with keys."""
    return Path(shutil.copytree(three, tmp_path / "out"))


@pytest.fixture
def bare(keyless: Path, tmp_path: Path) -> Path:
    """A copy of the deployment without keys."""
    return Path(shutil.copytree(keyless, tmp_path / "out"))


@pytest.mark.parametrize("package", ["cryptography", "prometheus_client", "zenoh"])
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert f"{package} is not installed: pip install 'drdsgd[network]'" in not_made(tmp_path / "net")


# ------------------------------------------------------------- from init to sign


def test_every_device_joins_with_a_key_that_stays_with_it(tmp_path: Path) -> None:
    out, addresses = tmp_path / "out", {"clinic-a": "10.0.0.5", "clinic-b": "2001:db8::5", "clinic-c": "c.example.org"}
    (tmp_path / "hosts").write_text(
        "clinic-a 10.0.0.5:7447\nclinic-b [2001:db8::5]:7447\nclinic-c c.example.org:7447\n"
    )
    said = init(
        out, "--no-keys", "--hosts", tmp_path / "hosts", options=["--dataset", "synthetic", "--graph", "complete"]
    )
    assert "3 devices" in said and "drdsgd network join device.toml" in said
    for name, address in addresses.items():
        here = taken(out, name, tmp_path / "host")
        said = drdsgd("network", "join", here / "device.toml").out
        request = here / f"{name}.csr"
        assert f"signing request: {request}" in said and f"drdsgd network sign DIR {name}.csr" in said
        sent = Path(shutil.copy(request, tmp_path))
        assert f"certificate: {out / name / 'device.pem'}" in sign(out, sent)
        shutil.copy(out / name / "device.pem", here)
        assert fits(here, out, name, address)
        assert not fits(here, out, "clinic-z", address) and not fits(here, out, name, "10.0.0.9")
        assert not (out / name / "device.key").exists()
    secrets = [path for path in out.rglob("*") if path.is_file() and b"PRIVATE" in path.read_bytes()]
    assert secrets == [out / "ca.key"]


def test_a_device_joins_by_its_folder_too_and_its_key_is_its_owners_alone(bare: Path) -> None:
    assert drdsgd("network", "join", bare / "device-1").status == 0
    assert (bare / "device-1" / "device.key").stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in (bare / "device-1" / "device-1.csr").read_text()
    sign(bare, bare / "device-1" / "device-1.csr")
    assert fits(bare / "device-1", bare, "device-1", "127.0.0.1"), "the key beside the request is the one that is used"


def test_several_requests_are_signed_at_once(bare: Path) -> None:
    requests = []
    for name in ("device-0", "device-2"):
        drdsgd("network", "join", bare / name)
        requests.append(bare / name / f"{name}.csr")
    said = sign(bare, *requests, "--days", "7")
    assert said.count("certificate: ") == 2
    assert all(hashlib.sha256(request.read_bytes()).hexdigest() in said for request in requests)
    for name in ("device-0", "device-2"):
        assert fits(bare / name, bare, name, "127.0.0.1")
        left = certificate_in(bare / name).not_valid_after_utc - datetime.now(UTC)
        assert timedelta(days=6.9) < left < timedelta(days=7.1)
    assert not (bare / "device-1" / "device.pem").exists()


def test_with_keys_all_is_there_at_once(three: Path) -> None:
    for i in range(3):
        assert fits(three / f"device-{i}", three, f"device-{i}", "127.0.0.1")
        left = certificate_in(three / f"device-{i}").not_valid_after_utc - datetime.now(UTC)
        assert timedelta(days=29.9) < left < timedelta(days=30.1)


def test_join_never_replaces_a_key(out: Path) -> None:
    before = contents(out)
    line = refused("network", "join", out / "device-0" / "device.toml")
    assert str(out / "device-0" / "device.key") in line and "device.key exists" in line
    assert contents(out) == before


def test_who_has_joined_does_not_join_again(bare: Path) -> None:
    assert drdsgd("network", "join", bare / "device-0").status == 0
    before = contents(bare)
    assert "device.key exists" in refused("network", "join", bare / "device-0")
    assert contents(bare) == before


def test_join_needs_a_device(tmp_path: Path) -> None:
    assert str(tmp_path / "device.toml") in refused("network", "join", tmp_path)
    assert str(tmp_path / "a.toml") in refused("network", "join", tmp_path / "a.toml")
    (tmp_path / "a.toml").write_text("number =")
    assert "is not TOML" in refused("network", "join", tmp_path / "a.toml")
    assert not list(tmp_path.glob("*.csr")) and not list(tmp_path.glob("*.key"))


# --------------------------------------------------------------------------- sign


def test_a_renewed_certificate_is_valid_longer_for_the_same_key(out: Path) -> None:
    folder = out / "device-0"
    before, key = certificate_in(folder), (folder / "device.key").read_bytes()
    sign(out, folder / "device.pem", "--days", "300")
    after = certificate_in(folder)
    assert after.not_valid_after_utc - before.not_valid_after_utc > timedelta(days=269)
    assert public(after) == public(before) and after.serial_number != before.serial_number
    assert (folder / "device.key").read_bytes() == key
    assert fits(folder, out, "device-0", "127.0.0.1")


def test_no_certificate_outlives_its_authority(out: Path) -> None:
    """A certificate is worthless once its authority's has expired."""
    sign(out, out / "device-0" / "device.pem", "--days", "300")
    authority = certificates.read_certificate(out / "ca.pem")
    assert certificate_in(out / "device-0").not_valid_after_utc <= authority.not_valid_after_utc


def test_a_renewed_certificate_is_for_where_the_device_listens_now(out: Path) -> None:
    path = out / "device-0" / "device.toml"
    path.write_text(path.read_text().replace('address = "127.0.0.1:7450"', 'address = "10.0.0.5:7450"'))
    sign(out, out / "device-0" / "device.pem")
    assert fits(out / "device-0", out, "device-0", "10.0.0.5")


def test_an_expired_certificate_is_renewed(out: Path) -> None:
    sign(out, out / "device-0" / "device.pem", "--days", "1e-9")
    assert certificate_in(out / "device-0").not_valid_after_utc <= datetime.now(UTC)
    sign(out, out / "device-0" / "device.pem", "--days", "7")
    assert certificate_in(out / "device-0").not_valid_after_utc > datetime.now(UTC) + timedelta(days=6)


def test_a_key_that_the_device_does_not_use_any_more_is_removed(out: Path, tmp_path: Path) -> None:
    here = taken(out, "device-0", tmp_path / "host")
    (here / "device.key").unlink()
    assert drdsgd("network", "join", here).status == 0
    sign(out, here / "device-0.csr")
    assert not (out / "device-0" / "device.key").exists()
    assert (out / "device-1" / "device.key").exists() and (here / "device.key").exists()
    shutil.copy(out / "device-0" / "device.pem", here)
    assert fits(here, out, "device-0", "127.0.0.1")


def test_so_it_is_where_the_request_was_put_beside_it(out: Path, tmp_path: Path) -> None:
    here = taken(out, "device-0", tmp_path / "host")
    (here / "device.key").unlink()
    assert drdsgd("network", "join", here).status == 0
    sign(out, shutil.copy(here / "device-0.csr", out / "device-0"))
    assert not (out / "device-0" / "device.key").exists()


def test_a_renewal_removes_no_key(out: Path, tmp_path: Path) -> None:
    here = taken(out, "device-0", tmp_path / "host")
    sign(out, here / "device.pem")
    assert (out / "device-0" / "device.key").exists()
    assert fits(out / "device-0", out, "device-0", "127.0.0.1")


def test_nobody_else_gets_a_certificate(out: Path, tmp_path: Path) -> None:
    init(tmp_path / "other", "--no-keys", "--devices", "4")
    assert drdsgd("network", "join", tmp_path / "other" / "device-3").status == 0
    request, before = tmp_path / "other" / "device-3" / "device-3.csr", contents(out)
    line = refused("network", "sign", out, request)
    assert str(request) in line and "'device-3'" in line and f"not a device of {out}" in line
    assert contents(out) == before


def test_a_certificate_of_another_deployment_is_not_renewed(out: Path, tmp_path: Path) -> None:
    init(tmp_path / "other")
    foreign, before = tmp_path / "other" / "device-0" / "device.pem", contents(out)
    line = refused("network", "sign", out, foreign)
    assert str(foreign) in line and f"not signed by the authority of {out}" in line
    assert contents(out) == before


def test_the_authoritys_own_certificate_is_no_devices(out: Path) -> None:
    assert "not a device" in refused("network", "sign", out, out / "ca.pem")


def test_a_request_that_was_changed_is_not_signed(bare: Path) -> None:
    drdsgd("network", "join", bare / "device-0")
    path = bare / "device-0" / "device-0.csr"
    request = certificates.read_request(path).public_bytes(serialization.Encoding.DER)
    forged = base64.encodebytes(request.replace(b"device-0", b"device-1")).decode()
    path.write_text(f"-----BEGIN CERTIFICATE REQUEST-----\n{forged}-----END CERTIFICATE REQUEST-----\n")
    assert "not signed with the key that it names" in refused("network", "sign", bare, path)
    assert not list(bare.glob("*/device.pem"))


def test_only_who_has_the_authoritys_key_can_sign(out: Path) -> None:
    (out / "ca.key").unlink()
    before = contents(out)
    line = refused("network", "sign", out, out / "device-0" / "device.pem")
    assert str(out / "ca.key") in line and "authority's key" in line
    assert contents(out) == before


@pytest.mark.parametrize("name", ["a.csr", "a.pem"])
def test_what_is_to_be_signed_must_be_there_and_be_one(out: Path, name: str) -> None:
    path, before = out / name, contents(out)
    assert str(path) in refused("network", "sign", out, path)
    path.write_text("garbage")
    assert str(path) in refused("network", "sign", out, path)
    path.unlink()
    assert "FILE" in refused("network", "sign", out)
    assert contents(out) == before


def test_a_request_is_known_by_its_ending(bare: Path) -> None:
    drdsgd("network", "join", bare / "device-0")
    path = Path(shutil.copy(bare / "device-0" / "device-0.csr", bare / "request.pem"))
    assert f"{path} is not a certificate" in refused("network", "sign", bare, path)


def test_where_one_is_refused_none_is_signed(out: Path) -> None:
    (out / "a.csr").write_text("garbage")
    before = contents(out)
    assert "a.csr" in refused("network", "sign", out, out / "device-0" / "device.pem", out / "a.csr")
    assert contents(out) == before


def test_sign_needs_a_deployment(tmp_path: Path, three: Path) -> None:
    assert str(tmp_path) in refused("network", "sign", tmp_path, three / "device-0" / "device.pem")
    for name in ("ca.key", "ca.pem"):
        shutil.copy(three / name, tmp_path)
    assert "not a deployment" in refused("network", "sign", tmp_path, three / "device-0" / "device.pem")


# --------------------------------------------------------------------------- init


def test_what_init_says_can_be_done_next(three: Path, tmp_path: Path) -> None:
    run, join, node = (
        f"drdsgd network run {tmp_path / 'a'}",
        "drdsgd network join device.toml",
        "drdsgd node device.toml",
    )
    said = init(tmp_path / "a")
    assert f"3 devices in {tmp_path / 'a'}" in said and run in said and join not in said
    (tmp_path / "hosts").write_text("a 10.0.0.5:7447\nb 10.0.0.6:7447\nc 10.0.0.7:7447\n")
    elsewhere: list[list[str | Path]] = [["--no-keys"], ["--hosts", tmp_path / "hosts"]]
    for k, arguments in enumerate(elsewhere):
        said = init(tmp_path / str(k), *arguments)
        assert "network run" not in said and node in said and (join in said) == (k == 0)
    assert [path.parent.name for path in deployment.devices(three)] == ["device-0", "device-1", "device-2"]
    assert deployment.load(three / "device-2").address == "127.0.0.1:7452"


def test_hosts_say_who_there_is_and_where(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("b 10.0.0.6:7447\na 10.0.0.5:7447 # first\n\nc 10.0.0.7:7447\n")
    out = tmp_path / "out"
    init(out, "--hosts", tmp_path / "hosts", "--no-keys", options=["--dataset", "synthetic", *RING])
    found = [deployment.load(path) for path in deployment.devices(out)]
    assert [(d.name, d.address) for d in found] == [
        ("b", "10.0.0.6:7447"), ("a", "10.0.0.5:7447"), ("c", "10.0.0.7:7447")
    ]  # fmt: skip
    assert all(d.experiment["devices"] == 3 for d in found)


@pytest.mark.parametrize(
    "content, arguments, words",
    [
        ("a 10.0.0.5:7447\nb nowhere\n", [], ["line 2", "HOST:PORT"]),
        ("a 10.0.0.5:7447\na 10.0.0.6:7447\n", [], ["the name a"]),
        ("a 10.0.0.5:1\nb 10.0.0.5:2\nc 10.0.0.5:3\n", ["--devices", "4"], ["--devices 4", "3"]),
        ("a 10.0.0.5:7447\n", [], ["--devices 1"]),
        (None, [], ["hosts"]),
    ],
)
def test_hosts_that_are_not_in_order_are_refused(
    tmp_path: Path, content: str | None, arguments: list[str], words: list[str]
) -> None:
    if content is not None:
        (tmp_path / "hosts").write_text(content)
    options = ["--dataset", "synthetic", *RING]
    line = not_made(tmp_path / "out", "--hosts", tmp_path / "hosts", *arguments, options=options)
    assert all(word in line for word in words), line


@pytest.mark.parametrize("port", ["0", "65534", "1000000", "x"])
def test_a_port_that_there_is_not_is_refused(tmp_path: Path, port: str) -> None:
    assert "--port" in not_made(tmp_path / "out", "--port", port)


def test_the_last_ports_can_be_used(tmp_path: Path) -> None:
    init(tmp_path / "out", "--port", "65533", "--no-keys")
    assert deployment.load(tmp_path / "out" / "device-2").address == "127.0.0.1:65535"


@pytest.mark.parametrize("days", ["0", "-1", "nan", "inf", "1e7"])
def test_days_that_there_are_not_are_refused(tmp_path: Path, out: Path, days: str) -> None:
    assert "--days" in not_made(tmp_path / "new", "--days", days)
    before = contents(out)
    assert "--days" in refused("network", "sign", out, out / "device-0" / "device.pem", "--days", days)
    assert contents(out) == before


@pytest.mark.parametrize(
    "option, value",
    [
        ("--deadline", "0"), ("--deadline", "nan"), ("--deadline", "1e9"), ("--staleness", "-1"),
        ("--metrics-port", "-1"), ("--metrics-port", "65534"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(tmp_path: Path, option: str, value: str) -> None:
    assert option.strip("-").replace("-", "_") in not_made(tmp_path / "out", option, value).replace("-", "_")


def test_settings_are_those_of_every_device(tmp_path: Path) -> None:
    init(tmp_path / "out", "--no-keys", "--deadline", "2.5", "--staleness", "3", "--metrics-port", "0")
    for path in deployment.devices(tmp_path / "out"):
        device = deployment.load(path)
        assert (device.deadline, device.staleness, device.metrics) == (2.5, 3, None)


def test_own_data_needs_the_number_of_classes(tmp_path: Path) -> None:
    line = not_made(tmp_path / "out", "--own-data", options=["--devices", "3", *RING])
    assert "--classes" in line and "--own-data" in line


def test_own_data_is_no_data_set(tmp_path: Path) -> None:
    line = not_made(tmp_path / "out", "--own-data", "--classes", "3")
    assert "--dataset synthetic" in line and "--own-data" in line


@pytest.mark.parametrize("option, value", [("--classes", "1"), ("--mean-samples", "0"), ("--mean-samples", "-3")])
def test_own_data_that_cannot_be_is_refused(tmp_path: Path, option: str, value: str) -> None:
    line = not_made(tmp_path / "out", "--own-data", "--classes", "3", option, value, options=["--devices", "3", *RING])
    assert option.strip("-").replace("-", "_") in line.replace("-", "_")


def test_own_data_has_its_own_labels(tmp_path: Path) -> None:
    options = ["--own-data", "--classes", "3", "--devices", "3", *RING]
    line = not_made(tmp_path / "out", "--random-labels", "1", options=options)
    assert "--random-labels 1" in line and "--own-data" in line


@pytest.mark.parametrize("option", ["--classes", "--mean-samples"])
def test_what_is_for_own_data_only_is_refused_without(tmp_path: Path, option: str) -> None:
    line = not_made(tmp_path / "out", option, "3")
    assert option in line and "--own-data" in line


def test_own_data_has_a_folder_with_every_device(tmp_path: Path) -> None:
    out = tmp_path / "out"
    init(out, "--own-data", "--classes", "3", "--no-keys", options=["--devices", "3", *RING])
    for path in deployment.devices(out):
        device = deployment.load(path)
        assert device.own_data and device.classes == 3 and (path.parent / "data").is_dir()
        e = deployment.experiment_of(device, path.parent)
        assert (e.dataset, e.reference, e.devices) == (str(path.parent / "data"), "uniform", 3)


@pytest.mark.parametrize(
    "arguments, word",
    [
        (["--algorithm", "fedavg"], "server"), (["--graph", "directed-ring"], "both ways"),
        (["--optimizer", "push"], "lost message"), (["--algorithm", "choco-sgd"], "--compression none"),
        (["--graph", "nowhere"], "--graph nowhere"), (["--mu", "six"], "--mu six"),
    ],
)  # fmt: skip
def test_an_experiment_that_is_no_network_is_refused(tmp_path: Path, arguments: list[str], word: str) -> None:
    assert word in not_made(tmp_path / "out", *arguments)


def test_a_folder_that_is_taken_is_refused_and_left_alone(out: Path) -> None:
    before = contents(out)
    line = refused("network", "init", "--out", out, *SMALL)
    assert f"--out {out}" in line and "not empty" in line
    assert contents(out) == before
    assert "--out" in refused("network", "init", *SMALL)


# ------------------------------------------------------------------------- status


def status(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The rows of the table that `drdsgd network status` prints, by device."""
    monkeypatch.setenv("COLUMNS", "200")
    said = drdsgd("network", "status", path)
    assert (said.status, said.err) == (0, ""), said
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in said.out.splitlines() if "│" in line]
    return {name: others for name, *others in rows}


def test_before_it_has_started(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    until = certificate_in(out / "device-0").not_valid_after_utc
    row = ["not started", "-", "-", f"{until:%Y-%m-%d}, in 30 days"]
    assert status(out, monkeypatch) == {f"device-{i}": row for i in range(3)}
    for one in (out / "device-1", out / "device-1" / "device.toml"):
        assert status(one, monkeypatch) == {"device-1": row}


def test_before_it_has_a_certificate(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert status(bare, monkeypatch)["device-0"] == ["not started", "-", "-", "none"]
    drdsgd("network", "join", bare / "device-0")
    assert status(bare, monkeypatch)["device-0"][-1] == "none", "it has only been asked for"
    sign(bare, bare / "device-0" / "device-0.csr", "--days", "7")
    found = status(bare, monkeypatch)
    assert found["device-0"][-1].endswith("in 7 days") and found["device-1"][-1] == "none"


def test_with_a_certificate_that_has_expired(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sign(out, out / "device-1" / "device.pem", "--days", "1e-9")
    found = {name: row[-1] for name, row in status(out, monkeypatch).items()}
    assert found["device-1"].endswith(", expired")
    assert found["device-0"].endswith("in 30 days") and found["device-2"].endswith("in 30 days")


def test_with_a_certificate_that_expires_today(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sign(out, out / "device-1" / "device.pem", "--days", "0.2")
    said = status(out, monkeypatch)["device-1"][-1]
    assert "expired" not in said and "in 0 days" not in said


def test_with_a_certificate_that_is_spoilt(out: Path) -> None:
    (out / "device-1" / "device.pem").write_text("garbage")
    assert str(out / "device-1" / "device.pem") in refused("network", "status", out)


def test_of_what_is_no_deployment(tmp_path: Path) -> None:
    assert "not a deployment" in refused("network", "status", tmp_path)
    assert str(tmp_path / "nowhere") in refused("network", "status", tmp_path / "nowhere")
    (tmp_path / "device.toml").write_text("[")
    assert "is not TOML" in refused("network", "status", tmp_path)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[dict[str, Any]]]]:
    """A deployment whose two devices have run, and their status in some of their rounds."""
    out = tmp_path_factory.mktemp("played") / "out"
    made.deploy(out, devices=2, graph="complete", rounds=4, eval_every=2, checkpoint_every=2)
    seen = []
    made.play(out, lambda i, progress: seen.append(commands.status(out)) if i == 0 and progress.state.t > 0 else None)
    return out, seen


def test_while_it_runs(played: tuple[Path, list[list[dict[str, Any]]]]) -> None:
    _, seen = played
    assert len(seen) == 4
    for devices in seen:
        assert [one["name"] for one in devices] == ["device-0", "device-1"]
        assert devices[0]["state"] in ("running", "waiting for neighbours"), "its status is written once a second"


def test_after_it_has_run(played: tuple[Path, list[list[dict[str, Any]]]], monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = played
    found = status(out, monkeypatch)
    assert [row[:2] for row in found.values()] == [["finished", "4 of 4"]] * 2
    assert found["device-0"][2].startswith("device-1 (") and found["device-1"][2].startswith("device-0 (")
    assert all(", in " in row[-1] for row in found.values())


def changed_status(played: Path, to: Path, **changes: Any) -> Path:
    """A copy of a deployment that has run, with another status of device-0."""
    out = Path(shutil.copytree(played, to / "out"))
    path = out / "device-0" / "run" / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return out


@pytest.mark.parametrize("state", ["running", "waiting for neighbours"])
def test_after_it_was_killed(
    played: tuple[Path, list[list[dict[str, Any]]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    out = changed_status(played[0], tmp_path, state=state, round=3)
    assert status(out, monkeypatch)["device-0"][:2] == ["not running", "3 of 4"]
    with Folder(out / "device-0" / "run").lock():
        assert status(out, monkeypatch)["device-0"][:2] == [state, "3 of 4"]


def test_while_it_hangs(
    played: tuple[Path, list[list[dict[str, Any]]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = changed_status(played[0], tmp_path, state="running", time=time.time() - 100)
    with Folder(out / "device-0" / "run").lock():
        assert status(out, monkeypatch)["device-0"][0].startswith("running, silent for 10")


def test_neighbours_that_are_away_or_cut_off(
    played: tuple[Path, list[list[dict[str, Any]]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"connected": True, "cut_off": False, "round": 2, "lag": 1, "missed": 0, "dropped": {}}
    neighbours = {"a": one, "b": one | {"connected": False, "lag": None}, "c": one | {"cut_off": True}}
    out = changed_status(played[0], tmp_path, neighbours=neighbours)
    assert status(out, monkeypatch)["device-0"][2] == "a (1), b (away), c (cut off)"


@pytest.mark.parametrize("content", ["{", "3", "null", '{"state": "running", "round": 3}'])
def test_a_status_that_is_spoilt_is_no_traceback(out: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    (out / "device-0" / "run").mkdir()
    (out / "device-0" / "run" / "status.json").write_text(content)
    monkeypatch.setenv("COLUMNS", "200")
    said = drdsgd("network", "status", out)
    assert (said.status == 0 and "device-1" in said.out) or (said.status == 2 and "status.json" in said.err)
