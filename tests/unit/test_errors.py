"""An error names arguments in Python, and options on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from drdsgd.errors import Died, Diverged, InputError, flag, named


@pytest.mark.parametrize(
    ("marked", "in_python", "on_command_line"),
    [
        (named("mu", 3), "mu=3", "--mu 3"),
        (named("batch_size", 0), "batch_size=0", "--batch-size 0"),
        (named("graph", "rign"), "graph='rign'", "--graph rign"),
        (named("graph", ""), "graph=''", "--graph "),
        (named("graph", r"C:\new"), r"graph='C:\\new'", r"--graph C:\new"),
        (named("graph", "it's"), 'graph="it\'s"', "--graph it's"),
        (named("out", Path("runs/first")), "out='runs/first'", "--out runs/first"),
        (named("loss_clip"), "loss_clip", "--loss-clip"),
        (named("rounds", True), "rounds=True", "--rounds True"),
        (flag("own_data"), "own_data=True", "--own-data"),
    ],
)
def test_an_argument_in_python_is_an_option_on_the_command_line(
    marked: str, in_python: str, on_command_line: str
) -> None:
    for error in (InputError(f"use {marked}; else"), Died(f"use {marked}; else")):
        assert (str(error), error.on_command_line) == (f"use {in_python}; else", f"use {on_command_line}; else")


def test_marks_are_not_shown() -> None:
    assert repr(InputError(f"leave out {named('mu')}")) == "InputError('leave out mu')"


def test_a_quoted_message_keeps_its_marks() -> None:
    inner = Diverged(f"try {named('weight_cap', 2)}", round=3, device=1)
    outer = InputError(f"runs/first: {inner.marked}")
    assert str(outer) == "runs/first: try weight_cap=2"
    assert outer.on_command_line == "runs/first: try --weight-cap 2"
