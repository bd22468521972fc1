"""How messages travel: zenoh between peers, over mutual TLS, to and from neighbours only.

The messages from one device to another have their own key, `deployment/sender/receiver/...`. Only neighbours have
access, by the name in their certificate, and each may write only the key from itself to this device. Devices do not
search for each other: the addresses are given.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import zenoh

from drdsgd.errors import InputError, one_line
from drdsgd.network.deployment import Device, Neighbour
from drdsgd.network.links import Links, Log
from drdsgd.network.messages import HEADER_BYTES

__all__ = ["Transport", "configuration", "why_silent"]

# what zenoh adds to a message
MARGIN_BYTES = 4096
# the most messages of a neighbour that wait to be read; the oldest are lost first
UNREAD = 16


class Transport:
    """The connections of a device; `send` works at once, and messages come in after `attach`."""

    def __init__(self, device: Device, folder: Path, most_bytes: int, log: Log) -> None:
        self._log, self._names = log, {n.name for n in device.neighbours}
        try:
            config = zenoh.Config.from_json5(json.dumps(configuration(device, folder, most_bytes)))
            self._session: Any = zenoh.open(config)
        except zenoh.ZError as error:
            said = re.sub(r"\s+at /\S+", "", one_line(error))  # without the file names of zenoh's source
            raise InputError(
                f"{device.name} can't listen at {device.listen or device.address}: {said}; "
                "is the address this host's, and free?"
            ) from error
        self._device, self._prefix, block = device, device.deployment, zenoh.CongestionControl.BLOCK
        self._publishers = {
            n.number: self._session.declare_publisher(
                f"{self._prefix}/{device.name}/{n.name}/message", congestion_control=block, express=True
            )
            for n in device.neighbours
        }
        self._listener = self._session.info.declare_link_events_listener(self._connection, history=True)
        self._subscribers, self._readers = list[Any](), list[threading.Thread]()

    def send(self, j: int, header: bytes, payload: bytes | bytearray) -> None:
        """Send to the neighbour j; a message that cannot be sent is lost."""
        with suppress(zenoh.ZError):
            self._publishers[j].put(payload, attachment=header)

    def attach(self, links: Links) -> None:
        """Give incoming messages to `links`, and let neighbours see that this device is there."""
        session, me = self._session, self._device.name
        for n in self._device.neighbours:
            subscriber = session.declare_subscriber(
                f"{self._prefix}/{n.name}/{me}/message", zenoh.handlers.RingChannel(UNREAD)
            )
            reader = threading.Thread(target=_read, args=(subscriber, links, n.number, self._log), daemon=True)
            reader.start()
            self._readers.append(reader)
            alive = session.liveliness().declare_subscriber(
                f"{self._prefix}/{n.name}/{me}/alive", partial(_watch, links, n.number), history=True
            )
            self._subscribers += [subscriber, alive]
        # only now: neighbours must not send before this device can receive
        self._tokens = [
            session.liveliness().declare_token(f"{self._prefix}/{me}/{n.name}/alive") for n in self._device.neighbours
        ]

    def close(self) -> None:
        """Close all connections."""
        with suppress(zenoh.ZError):  # raised when a neighbour does not answer
            self._session.close()
        for reader in self._readers:  # none may run while the process is taken down
            reader.join(timeout=5)

    def _connection(self, event: Any) -> None:
        """Log the connection of a device of this deployment that is not a neighbour."""
        name = event.link.auth_identifier or ""
        if name not in self._names and event.kind == zenoh.SampleKind.PUT:
            address, why = str(event.link.dst), "not a neighbour's certificate"
            self._log("stranger may do nothing", name=name, address=address, why=why)


def why_silent(address: str, seconds: float = 2.0) -> str:
    """What happens when a device connects to the address of a neighbour that does not answer.

    >>> why_silent("127.0.0.1:1")
    'Connection refused'
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds):
            return "something listens there; its log says why it is not a neighbour"
    except OSError as error:
        return error.strerror or one_line(error)


def _read(subscriber: Any, links: Links, j: int, log: Log) -> None:
    """Give the messages of the neighbour j to the links, until the session ends."""
    with suppress(zenoh.ZError):
        for sample in subscriber:
            header, payload = sample.attachment, sample.payload
            known = header is not None and len(header) == HEADER_BYTES  # checked before anything is copied
            try:
                links.receive(j, header.to_bytes() if known else b"", payload.to_bytes, len(payload))
            except Exception as error:  # any error costs one message, not all that follow
                log("message lost", neighbour=links.boxes[j].name, why=f"{type(error).__name__}: {one_line(error)}")


def _watch(links: Links, j: int, sample: zenoh.Sample) -> None:
    """The neighbour j has come or gone."""
    (links.here if sample.kind == zenoh.SampleKind.PUT else links.gone)(j)


def configuration(device: Device, folder: Path, most_bytes: int) -> dict[str, Any]:
    """zenoh's configuration: where to listen, whom to call, whom to trust, how large a message may be."""
    rules = {n.name: _rules(device, n) for n in device.neighbours}
    lease = int(1000 * min(10.0, max(1.0, device.deadline / 2)))
    return {
        "mode": "peer",
        "listen": {"endpoints": [f"tls/{device.listen or device.address}"], "exit_on_failure": True},
        "connect": {
            # only one end of a link calls, so that there is one connection
            "endpoints": [f"tls/{n.address}" for n in device.neighbours if n.number < device.number],
            "timeout_ms": -1,
            "exit_on_failure": False,
            "retry": {"period_init_ms": 100, "period_max_ms": 4000, "period_increase_factor": 2},
        },
        "open": {"return_conditions": {"connect_scouted": False, "declares": False}},
        "scouting": {way: {"enabled": device.scouting} for way in ("multicast", "gossip")},
        "transport": {
            "unicast": {
                "open_timeout": max(2000, lease),
                "accept_timeout": max(2000, lease),
                # each may hold partly received messages
                "max_sessions": 2 * len(device.neighbours) + 16,
                "qos": {"enabled": False},
            },
            "link": {
                "protocols": ["tls"],
                "tx": {"lease": lease, "queue": {"congestion_control": {"block": {"wait_before_close": 1000 * lease}}}},
                "rx": {"max_message_size": most_bytes + MARGIN_BYTES},
                "tls": {
                    "root_ca_certificate": str(folder / device.ca),
                    "enable_mtls": True,
                    "verify_name_on_connect": True,
                    "close_link_on_expiration": True,
                    **{f"{end}_private_key": str(folder / device.key) for end in ("listen", "connect")},
                    **{f"{end}_certificate": str(folder / device.certificate) for end in ("listen", "connect")},
                },
            },
            "shared_memory": {"enabled": False},
        },
        "access_control": {
            "enabled": True,
            "default_permission": "deny",
            "rules": [rule for some in rules.values() for rule in some],
            "subjects": [{"id": name, "cert_common_names": [name]} for name in rules],
            "policies": [{"rules": [rule["id"] for rule in some], "subjects": [name]} for name, some in rules.items()],
        },
        "adminspace": {"enabled": False},
    }


def _rules(device: Device, neighbour: Neighbour) -> list[dict[str, Any]]:
    """What a neighbour may send to this device, and hear from it."""
    me, other = device.name, neighbour.name
    allowed = [
        (flow, messages, f"{device.deployment}/{way}/{end}")
        for sending, hearing, way in (("ingress", "egress", f"{other}/{me}"), ("egress", "ingress", f"{me}/{other}"))
        for flow, messages, end in (
            (sending, ["put"], "message"),
            (sending, ["liveliness_token"], "alive"),
            (hearing, ["declare_subscriber"], "message"),
            (hearing, ["declare_liveliness_subscriber", "liveliness_query"], "alive"),
        )
    ]
    return [
        {"id": f"{other} {i}", "permission": "allow", "flows": [flow], "messages": messages, "key_exprs": [key]}
        for i, (flow, messages, key) in enumerate(allowed)
    ]
