"""The connections and writes that zenoh refused, as zenoh's own log reports them.

zenoh 1.10.2 reports them nowhere else, so a device that has a process of its own reads zenoh's log from file
descriptor 1. What was looked at:

- A TLS handshake that fails makes no link: the listeners for link and transport events do not see it, the lists of
  `session.info` and the admin space do not have it (github.com/eclipse-zenoh/zenoh, issues 2712 and 2720, both open).
- Access control drops a message with a line in the log, without an event or a reply.
- `try_init_log_from_env` and `init_log_from_env_or` are all that the Python package has for logging, and both print to
  standard output. zenoh's `init_log_with_callback`, which its C library offers, is not in it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout

import zenoh

from drdsgd.network.links import Log

__all__ = ["events", "reading"]

# the parts of zenoh's log that tell who was kept out
LEVELS = "error,zenoh_link_tls=warn,zenoh::net::routing::interceptor::access_control=trace"
_LINE = re.compile(r"^\S+\s+([A-Z]+)\s+(?:\S+ )?(ThreadId\(\d+\)) (zenoh[\w:]*): +(.*)$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DENIED = re.compile(r"(\S+) (?:on .*CertCommonName\((.*?)\).* )?is unauthorized to (\w+) \(ingress\) on (\S+)")


def events(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The events that lines of zenoh's log report, each with its details; most lines report none.

    When zenoh works out what each neighbour may do with a new key, it prints the same line as for a denied message, but
    after one about `Reply`.

    >>> line = "2026-01-01T00:00:00Z TRACE  rx-0 ThreadId(10) zenoh::net::routing::interceptor::access_control: "
    >>> denied = line + "1f on Interface(lo)+CertCommonName(b)+1f is unauthorized to {} (ingress) on net/*/a/message"
    >>> list(events([denied.format("Put")]))
    [('write refused', {'name': 'b', 'key': 'net/*/a/message'})]
    >>> list(events([denied.format("Reply"), denied.format("Put")]))
    []
    """
    last: dict[str, tuple[str, str]] = {}  # what each thread denied last
    for line in lines:
        if " is authorized to " in line:  # one for every message
            continue
        if not (found := _LINE.match(_COLOUR.sub("", line.strip()))):
            continue
        level, thread, module, said = found.groups()
        if denied := _DENIED.search(said):
            zid, name, action, key = denied.groups()
            before, last[thread] = last.get(thread), (action, key)
            if action == "Put" and before != ("Reply", key):
                yield "write refused", {"name": name or zid, "key": key}
        elif level in ("ERROR", "WARN"):
            said = said.removesuffix(" Hint: increase the system open file limit.")  # a hint at the end of every error
            yield ("connection refused" if module.startswith("zenoh_link") else "carrier"), {"why": said}


@contextmanager
def reading(log: Log) -> Iterator[None]:
    """While the block runs, write the events of zenoh's log to `log`; what Python prints goes where it went before."""

    def read(source: int) -> None:
        with os.fdopen(source, encoding="utf-8", errors="replace") as lines:
            for event, about in events(lines):
                log(event, **about)

    sys.stdout.flush()
    source, target = os.pipe()
    with os.fdopen(os.dup(1), "w", buffering=1) as stdout, redirect_stdout(stdout):
        os.dup2(target, 1)
        os.close(target)
        thread = threading.Thread(target=read, args=(source,), daemon=True)
        thread.start()
        try:
            os.environ.pop("RUST_LOG", None)  # else it would count instead of LEVELS, and hide who was kept out
            zenoh.init_log_from_env_or(LEVELS)
            yield
        finally:
            os.dup2(stdout.fileno(), 1)  # closes the last writing end of the pipe, so the thread ends
            thread.join(timeout=5)
