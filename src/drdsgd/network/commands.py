"""The functions behind `drdsgd network init`, `join`, `sign` and `status`."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from drdsgd.errors import InputError, flag, named, one_line
from drdsgd.experiments.config import Experiment
from drdsgd.network import deployment
from drdsgd.network.deployment import Place

__all__ = ["init", "join", "seen", "sign", "status"]


def init(
    given: dict[str, Any], out: Path, hosts: Path | None, port: int, *, own_data: bool, **settings: Any
) -> list[Place]:
    """Make a deployment of the experiment with these fields; returns its devices."""
    for name in () if own_data else ("classes", "mean_samples"):
        if settings.get(name) is not None:
            raise InputError(
                f"{named(name, settings[name])} does nothing here: it needs {flag('own_data')}; leave it out"
            )
    where = deployment.places(hosts) if hosts is not None else None
    if where is not None:
        given = {"devices": len(where), **given}
    with tempfile.TemporaryDirectory() as nothing:
        if own_data:
            if "dataset" in given:
                raise InputError(
                    f"{named('dataset', given['dataset'])}: leave it out: with {flag('own_data')} a device has its own "
                    "folder"
                )
            given = {"reference": "uniform", **given, "dataset": nothing}
            if settings.get("classes") is None:
                raise InputError(
                    f"{named('classes')}: {flag('own_data')} needs the number of classes in all devices' data together"
                )
            if given["reference"] == "samples" and settings.get("mean_samples") is None:
                raise InputError(
                    f"{named('mean_samples')}: {named('reference', 'samples')} needs the samples of the average device"
                )
        e = Experiment(**given)
        if where is None:
            if not 0 < port <= 65536 - e.devices:
                raise InputError(
                    f"{named('port', port)}: the devices need this port and the {e.devices - 1} after it, up to 65535"
                )
            where = [Place(f"device-{i}", f"127.0.0.1:{port + i}") for i in range(e.devices)]
        deployment.make(e, out, where, own_data=own_data, **settings)
    return where


def join(path: Path) -> Path:
    """Make a key for a device, which stays here, and a signing request; returns the request's path."""
    from drdsgd.network import certificates

    path = deployment.file_of(path)
    device, folder = deployment.load(path), path.parent
    if (folder / device.key).exists():
        raise InputError(f"{folder / device.key} exists; remove it and its certificate to make a new one")
    key = certificates.make_key()
    asked = folder / f"{device.name}.csr"
    certificates.write(asked, certificates.request(device.name, Place(device.name, device.address).host, key))
    certificates.write(folder / device.key, key)
    return asked


def sign(folder: Path, files: list[Path], days: float) -> list[Path]:
    """Sign requests, or renew certificates, of a deployment's devices; returns the new certificates' paths.

    If a device has made its own key, an older key in its folder here is removed: it is no longer used.
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    from drdsgd.network import certificates

    deployment.check_days(days)
    authority = certificates.open_authority(folder / "ca.key", folder / "ca.pem")
    devices = [(deployment.load(path), path.parent) for path in deployment.devices(folder)]
    known = {device.name: (device, where) for device, where in devices}
    checked = []
    for file in files:
        if file.suffix == ".csr":
            request = certificates.read_request(file)
            name, public = certificates.name_of(request), request.public_key()
        else:
            old = certificates.read_certificate(file)
            if not certificates.was_signed(old, authority.certificate):
                raise InputError(f"{file} was not signed by the authority of {folder}")
            name, public = certificates.name_of(old), old.public_key()
        if name not in known:
            raise InputError(f"{file} names {name!r}, which is not a device of {folder}")
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise InputError(f"{file} has another kind of key; make one with drdsgd network join")
        checked.append((name, public))
    written = []
    for name, public in checked:  # only after all checks: all or none
        device, where = known[name]
        signed = authority.sign(name, Place(name, device.address).host, public, days)
        if (where / device.key).exists() and not certificates.fits(where / device.key, signed):
            (where / device.key).unlink()
        certificates.write(where / device.certificate, signed)
        written.append(where / device.certificate)
    return written


def status(path: Path) -> list[dict[str, Any]]:
    """State, round, neighbours and certificate of a deployment's devices, or of one device."""
    files = deployment.devices(path) if path.is_dir() and not (path / deployment.FILE).exists() else None
    return [_of_one(file) for file in files or [deployment.file_of(path)]]


def _of_one(file: Path) -> dict[str, Any]:
    from drdsgd.network import certificates

    device, folder = deployment.load(file), file.parent
    state = "no status here" if (folder / device.out / "config.toml").exists() else "not started"
    found: dict[str, Any] = {"name": device.name, "state": state, "round": None, "neighbours": {}}
    try:
        said = json.loads((folder / device.out / "status.json").read_bytes())
        found |= {name: said[name] for name in ("state", "round", "rounds", "neighbours", "time")}
        if found["state"] in ("running", "waiting for neighbours"):
            if not _at_work(folder / device.out):
                found["state"] = "not running"
            elif (silent := time.time() - found["time"]) > 60:
                found["state"] += f", silent for {silent:.0f} s"
    except FileNotFoundError:
        pass
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{folder / device.out / 'status.json'} is corrupt: {one_line(error)}") from None
    certificate = folder / device.certificate
    if not certificate.exists():
        return found | {"certificate": "none"}
    until = certificates.read_certificate(certificate).not_valid_after_utc
    days = (until - datetime.now(UTC)) / timedelta(days=1)
    when = f"in {days:.0f} days" if days >= 1 else f"in {24 * days:.0f} hours" if days > 0 else "expired"
    return found | {"certificate": f"{until:%Y-%m-%d}, {when}"}


def seen(about: Mapping[str, Any]) -> str:
    """A neighbour in a few words: how many rounds it is behind, or why that is not known."""
    if about["cut_off"]:
        return "cut off"
    if about["connected"]:
        return str(about["lag"])
    return "runs something else" if about["dropped"].get("runs something else") else "away"


def _at_work(folder: Path) -> bool:
    """Whether a process is working in the folder of a run."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
