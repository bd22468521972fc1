"""What one can see of a device: its log, its status, its metrics for Prometheus.

run/log.jsonl     one line of JSON per event, appended
run/status.json   where it is now, for `drdsgd network status`
http://.../metrics  the same for Prometheus, on this host only unless device.toml says otherwise
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TextIO

from drdsgd.errors import InputError
from drdsgd.files import write_text
from drdsgd.network.deployment import Device
from drdsgd.network.links import Links, Log
from drdsgd.training.loop import Progress
from drdsgd.training.metrics import Metrics

__all__ = ["CarrierLines", "Journal", "Status", "carrier_log", "serve"]

# Lines in a second, on average and at once, of a device's own events, and apart from them of strangers' attempts; the
# longest value, and the size at which a log is set aside for a new one: who knocks for ever must not fill the disk.
RATE, BURST, LONGEST, LARGEST = 5.0, 100.0, 200, 10_000_000
OF_STRANGERS = ("connection refused", "write refused", "stranger may do nothing", "carrier")
STATUS_EVERY = 1.0


class _Budget:
    """So many lines, and more as time goes by."""

    def __init__(self, now: float) -> None:
        self._left, self._then, self._left_out = BURST, now, 0

    def spent(self, now: float) -> int | None:
        """Whether there is a line left: how many before it there was none for; None if there is none."""
        self._left = min(BURST, self._left + RATE * (now - self._then))
        self._then = now
        if self._left < 1:
            self._left_out += 1
            return None
        self._left -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out


class Journal:
    """A log of JSON lines, in a file and, if asked for, also on a stream."""

    def __init__(self, path: Path, device: str, stream: TextIO | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._file = path, path.open("a", encoding="utf-8")
        self._device, self._stream, self._lock = device, stream, threading.Lock()
        now = time.monotonic()
        self._budgets = {strange: _Budget(now) for strange in (False, True)}

    def __call__(self, event: str, /, **about: Any) -> None:
        with self._lock:
            left_out = self._budgets[event in OF_STRANGERS].spent(time.monotonic())
            if left_out is None or self._file.closed:
                return
            about = {name: value[:LONGEST] if isinstance(value, str) else value for name, value in about.items()}
            if left_out:
                about["lines_left_out_before"] = left_out
            line = json.dumps(
                {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "device": self._device, "event": event}
                | about
            )
            with suppress(OSError):  # a full disk must not end what is told of: a device goes on without its log
                if self._file.tell() > LARGEST:
                    self._file.close()
                    self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                    self._file = self._path.open("a", encoding="utf-8")
                print(line, file=self._file, flush=True)
            with suppress(OSError, ValueError):  # nobody reads it any more
                if self._stream is not None:
                    print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Write no more."""
        with self._lock, suppress(OSError):
            self._file.close()


# so much of zenoh's own log as tells of those who were kept out
CARRIER_LEVELS = "error,zenoh_link_tls=warn,zenoh::net::routing::interceptor::access_control=trace"
_LINE = re.compile(r"^\S+\s+([A-Z]+)\s+(?:\S+ )?(ThreadId\(\d+\)) (zenoh[\w:]*): +(.*)$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DENIED = re.compile(r"(\S+) (?:on .*CertCommonName\((.*?)\).* )?is unauthorized to (\w+) \(ingress\) on (\S+)")


class CarrierLines:
    """What zenoh's own log means for a device's.

    Zenoh says of a denied message what it also says when it works out, for a key that it hears of, what each neighbour
    may do with it: then it speaks of `Reply` before it speaks of `Put`.

    >>> line = "2026-01-01T00:00:00Z {} ThreadId(10) zenoh::net::routing::interceptor::access_control: {}"
    >>> denied = "1f on Interface(lo)+CertCommonName(b)+1f is unauthorized to {} (ingress) on net/*/a/message"
    >>> lines = CarrierLines()
    >>> lines.meaning(line.format("TRACE  rx-0", denied.format("Put")))
    ('write refused', {'name': 'b', 'key': 'net/*/a/message'})
    >>> [lines.meaning(line.format("TRACE  rx-0", denied.format(what))) for what in ("Reply", "Put")]
    [None, None]
    """

    def __init__(self) -> None:
        self._before: dict[str, tuple[str, str]] = {}

    def meaning(self, line: str) -> tuple[str, dict[str, str]] | None:
        """The event that a line tells of, and what is to be said of it; most tell of none."""
        if " is authorized to " in line:  # one for every message
            return None
        found = _LINE.match(_COLOUR.sub("", line.strip()))
        if not found:
            return None
        level, thread, module, said = found.groups()
        if denied := _DENIED.search(said):
            zid, name, what, key = denied.groups()
            before, self._before[thread] = self._before.get(thread), (what, key)
            if what == "Put" and before != ("Reply", key):
                return "write refused", {"name": name or zid, "key": key}
            return None
        if level not in ("ERROR", "WARN"):
            return None
        said = said.removesuffix(" Hint: increase the system open file limit.")  # it says so of everything
        return ("connection refused" if module.startswith("zenoh_link") else "carrier"), {"why": said}


@contextmanager
def carrier_log(log: Log) -> Iterator[None]:
    """Within it, what zenoh writes to the standard output comes into the log instead."""
    import zenoh

    sys.stdout.flush()
    kept = os.dup(1)
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)
    # what Python prints goes where it went before
    before, sys.stdout = sys.stdout, os.fdopen(os.dup(kept), "w", buffering=1)

    def drain() -> None:
        meaning = CarrierLines().meaning
        with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if (found := meaning(line)) is not None:
                    log(found[0], **found[1])

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    try:
        zenoh.init_log_from_env_or(CARRIER_LEVELS)
        yield
    finally:
        sys.stdout.close()
        sys.stdout = before
        os.dup2(kept, 1)  # the pipe's last end: the thread comes to the end of what there was
        os.close(kept)
        thread.join(timeout=5)


@dataclass
class Status:
    """Where a device is."""

    device: Device
    rounds: int
    links: Links
    path: Path
    expires: datetime
    round: int = 0
    state: str = "waiting for neighbours"
    metrics: Metrics | None = None
    progress: Progress | None = None
    _written: float = 0.0

    def write(self, now: bool = False) -> None:
        """Write status.json, about once a second, or now."""
        if now or time.monotonic() - self._written > STATUS_EVERY:
            write_text(self.path, json.dumps(self.to_json(), indent=1))
            self._written = time.monotonic()

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        accuracy = self.metrics.local.average if self.metrics else None
        return {
            "time": time.time(),
            "name": self.device.name,
            "state": self.state,
            "round": self.round,
            "rounds": self.rounds,
            "accuracy": accuracy,
            "certificate_expires": self.expires.timestamp(),
            "neighbours": {
                box.name: {
                    "connected": box.alive and box.introduced and not box.cut,
                    "cut_off": box.cut,
                    "round": box.round if box.round >= 0 else None,
                    "lag": self.round - box.round if box.round >= 0 else None,
                    "missed": box.missed,
                    "dropped": dict(box.dropped),
                }
                for box in self.links.boxes.values()
            },
        }

    def to_prometheus(self) -> str:
        """In the text format that Prometheus reads."""
        lines: list[str] = []

        def put(name: str, kind: str, what: str, values: list[tuple[str, float]]) -> None:
            lines.extend([f"# HELP drdsgd_{name} {what}", f"# TYPE drdsgd_{name} {kind}"])
            lines.extend(f"drdsgd_{name}{labels} {value!r}" for labels, value in values)

        boxes = list(self.links.boxes.values())
        label = [f'{{neighbour="{box.name}"}}' for box in boxes]
        put("round", "gauge", "Rounds done.", [("", self.round)])
        put("rounds", "gauge", "Rounds of the experiment.", [("", self.rounds)])
        put("certificate_expires_timestamp_seconds", "gauge", "When the certificate expires.",
            [("", self.expires.timestamp())])  # fmt: skip
        if self.metrics is not None:
            put("accuracy_percent", "gauge", "Of the device's model on its own test data.",
                [("", self.metrics.local.average)])  # fmt: skip
            put("train_loss", "gauge", "Of the last mini-batch.", [("", self.metrics.train_loss)])
            put("weight", "gauge", "Of the last gradient.", [("", self.metrics.weights[0])])
        if self.progress is not None:
            put("bytes_sent_total", "counter", "To neighbours.", [("", self.progress.bytes_sent)])
            put("round_seconds_total", "counter", "In rounds.", [("", self.progress.seconds)])
            put("exchange_seconds_total", "counter", "In exchanges with neighbours, waiting included.",
                [("", self.progress.exchange_seconds)])  # fmt: skip
        put("neighbour_connected", "gauge", "Whether it is there.",
            [(a, int(box.alive and box.introduced and not box.cut))
             for a, box in zip(label, boxes, strict=True)])  # fmt: skip
        put("neighbour_cut_off", "gauge", "Whether it sent too many bad messages.",
            [(a, int(box.cut)) for a, box in zip(label, boxes, strict=True)])  # fmt: skip
        put("neighbour_round", "gauge", "The newest round that is known of it.",
            [(a, box.round) for a, box in zip(label, boxes, strict=True)])  # fmt: skip
        put("neighbour_missed_total", "counter", "Exchanges in which the link did not count.",
            [(a, box.missed) for a, box in zip(label, boxes, strict=True)])  # fmt: skip
        put("messages_dropped_total", "counter", "Messages that were not used.", [
            (f'{{neighbour="{box.name}",reason="{why}"}}', n) for box in boxes for why, n in sorted(box.dropped.items())
        ])  # fmt: skip
        return "\n".join(lines) + "\n"


@contextmanager
def serve(address: str, text: Callable[[], str]) -> Iterator[None]:
    """Within it, `http://address/metrics` is what `text` says."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/metrics"
            body = (text() if found else "see /metrics\n").encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Keep silent."""

    host, _, port = address.rpartition(":")
    try:
        server = ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
    except (OSError, OverflowError) as error:
        raise InputError(f"metrics at {address}: {error}; change `metrics` in device.toml, or leave it out") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
