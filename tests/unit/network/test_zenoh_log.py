"""What zenoh refused, read from its log."""

from __future__ import annotations

import os

import pytest

from drdsgd.network.zenoh_log import events, reading

START = "2026-01-01T00:00:00Z"


def test_what_zenoh_prints_comes_into_the_log_and_what_python_prints_does_not(
    capfd: pytest.CaptureFixture[str],
) -> None:
    said: list[tuple[str, dict[str, object]]] = []
    with reading(lambda event, /, **about: said.append((event, about))):
        os.write(1, b"2026-01-01T00:00:00Z  WARN acc-0 ThreadId(05) zenoh_link_tls::unicast: peer sent no \xff.\n")
        os.write(1, b"something else\n")
        print("for the user")
    assert said == [("connection refused", {"why": "peer sent no \ufffd."})]
    print("and after")
    assert capfd.readouterr().out == "for the user\nand after\n"


@pytest.mark.parametrize(
    "line",
    [
        "",
        f"{START}  INFO ThreadId(01) zenoh::net::runtime: Using ZID: 1f",
        f"{START} TRACE rx-0 ThreadId(10) zenoh::acl: Using cached result: 1f is authorized to Put on a",
    ],
)
def test_lines_that_report_nothing(line: str) -> None:
    assert list(events([line])) == []


def test_lines_that_report_something() -> None:
    cached = (
        f"{START} TRACE rx-0 ThreadId(10) zenoh::acl: Using cached result: 1f is unauthorized to Put (ingress) on a/b"
    )
    assert list(events([cached])) == [("write refused", {"name": "1f", "key": "a/b"})]
    coloured = f"\x1b[2m{START}\x1b[0m \x1b[31mERROR\x1b[0m ThreadId(01) \x1b[2mzenoh::x\x1b[0m\x1b[2m:\x1b[0m no"
    assert list(events([coloured])) == [("carrier", {"why": "no"})]
