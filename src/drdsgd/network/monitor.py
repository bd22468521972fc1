"""What can be seen of a device: its log, its status, its metrics for Prometheus.

run/log.jsonl       one line of JSON per event, appended
run/status.json     the current state, for `drdsgd network status`
http://.../metrics  the same for Prometheus, on this host only unless device.toml says otherwise
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from drdsgd.errors import InputError
from drdsgd.files import write_text
from drdsgd.network.deployment import Device
from drdsgd.network.links import Links
from drdsgd.training.loop import Progress
from drdsgd.training.metrics import Metrics

__all__ = ["Journal", "Status", "serve"]

# Somebody who knocks for ever must neither fill the disk nor crowd out other events: lines per second on average and at
# once, for strangers' attempts and for all other events separately; the longest value; the largest file, in bytes.
RATE, BURST, LONGEST, LARGEST = 5.0, 100.0, 200, 10_000_000
OF_STRANGERS = ("connection refused", "write refused", "stranger may do nothing", "carrier")
STATUS_EVERY = 1.0


class _RateLimit(logging.Filter):
    """A token bucket, for strangers' attempts or for all other events."""

    def __init__(self, of_strangers: bool) -> None:
        super().__init__()
        self._of_strangers, self._lock = of_strangers, threading.Lock()
        self._left, self._then, self._left_out = BURST, time.monotonic(), 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether there is room for the line, which then tells how many were left out before it."""
        if (record.msg in OF_STRANGERS) != self._of_strangers:
            return True
        with self._lock:
            now = time.monotonic()
            self._left = min(BURST, self._left + RATE * (now - self._then))
            self._then = now
            if self._left < 1:
                self._left_out += 1
                return False
            self._left -= 1
            if self._left_out:
                record.__dict__["about"]["lines_left_out_before"] = self._left_out
                self._left_out = 0
            return True


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """The line of an event."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        about = {name: it[:LONGEST] if isinstance(it, str) else it for name, it in record.__dict__["about"].items()}
        return json.dumps({"time": when, "device": record.name, "event": record.msg} | about)


class _Forgiving(logging.Handler):
    """A full disk or a closed stream must not end the run: the device continues without its log."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore it."""


class _File(_Forgiving, RotatingFileHandler): ...


class _Stream(_Forgiving, logging.StreamHandler[TextIO]): ...


class Journal(logging.Logger):
    """A device's log, as JSON lines in a file and, if given, on a stream.

    It belongs to no hierarchy of loggers: several devices in one process share nothing, and nothing reaches the root.
    """

    def __init__(self, path: Path, device: str, stream: TextIO | None = None) -> None:
        super().__init__(device)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.addHandler(_File(path, maxBytes=LARGEST, backupCount=1, encoding="utf-8"))
        if stream is not None:
            self.addHandler(_Stream(stream))
        for handler in self.handlers:
            handler.setFormatter(_JsonLine())
        for of_strangers in (False, True):
            self.addFilter(_RateLimit(of_strangers))

    def __call__(self, event: str, /, **about: Any) -> None:
        """Write a line."""
        self.info(event, extra={"about": about})

    def close(self) -> None:
        """Write no more."""
        self.disabled = True
        for handler in self.handlers:
            with suppress(OSError):
                handler.close()


@dataclass(eq=False)  # a registry keeps collectors by identity
class Status(Collector):
    """The current state of a device."""

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
        """Write status.json, at most once a second unless `now`."""
        if now or time.monotonic() - self._written > STATUS_EVERY:
            write_text(self.path, json.dumps(self.to_json(), indent=1))
            self._written = time.monotonic()

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "time": time.time(),
            "name": self.device.name,
            "state": self.state,
            "round": self.round,
            "rounds": self.rounds,
            "accuracy": self.metrics.consensus.average if self.metrics else None,
            "certificate_expires": self.expires.timestamp(),
            "neighbours": {
                box.name: {
                    "connected": box.reachable,
                    "cut_off": box.cut,
                    "round": box.round if box.round >= 0 else None,
                    "lag": self.round - box.round if box.round >= 0 else None,
                    "missed": box.missed,
                    "dropped": dict(box.dropped),
                }
                for box in self.links.boxes.values()
            },
        }

    def collect(self) -> Iterator[Metric]:
        """The metrics for Prometheus."""
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        yield gauge("drdsgd_round", "Rounds done.", self.round)
        yield gauge("drdsgd_rounds", "Rounds of the experiment.", self.rounds)
        yield gauge(
            "drdsgd_certificate_expires_timestamp_seconds", "When the certificate expires.", self.expires.timestamp()
        )
        if (metrics := self.metrics) is not None:
            yield gauge("drdsgd_accuracy_percent", "Accuracy on the device's own test data.", metrics.consensus.average)
            yield gauge("drdsgd_train_loss", "Loss of the last mini-batch.", metrics.train_loss)
            yield gauge("drdsgd_weight", "Weight of the last gradient.", metrics.weights[0])
        if (progress := self.progress) is not None:
            yield counter("drdsgd_bytes_sent_total", "Bytes sent to neighbours.", progress.bytes_sent)
            yield counter("drdsgd_round_seconds_total", "Time in rounds.", progress.seconds)
            yield counter(
                "drdsgd_exchange_seconds_total", "Time in exchanges, waiting included.", progress.exchange_seconds
            )
        by = ["neighbour"]
        connected = gauge("drdsgd_neighbour_connected", "Whether the neighbour is connected.", labels=by)
        cut_off = gauge("drdsgd_neighbour_cut_off", "Whether it sent too many bad messages.", labels=by)
        newest = gauge("drdsgd_neighbour_round", "Its newest known round.", labels=by)
        missed = counter("drdsgd_neighbour_missed_total", "Exchanges in which the link did not count.", labels=by)
        dropped = counter("drdsgd_messages_dropped_total", "Messages that were not used.", labels=[*by, "reason"])
        for box in self.links.boxes.values():
            connected.add_metric([box.name], box.reachable)
            cut_off.add_metric([box.name], box.cut)
            newest.add_metric([box.name], box.round)
            missed.add_metric([box.name], box.missed)
            for why, count in sorted(box.dropped.items()):
                dropped.add_metric([box.name, why], count)
        yield from (connected, cut_off, newest, missed, dropped)


@contextmanager
def serve(address: str, collector: Collector) -> Iterator[None]:
    """While the block runs, serve the collector's metrics at `http://address/metrics`."""
    registry = CollectorRegistry()  # the default one would add metrics of the process, and is shared
    registry.register(collector)
    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host, registry)
    except OSError as error:
        raise InputError(f"metrics at {address}: {error}; change `metrics` in device.toml, or leave it out") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
