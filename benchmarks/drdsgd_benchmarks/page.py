"""Fill in the numbers of docs/performance.md and README.md from what was measured: none is typed in by hand.

    python -m drdsgd_benchmarks.page               write both files anew

A text between `<!-- measured: NAME -->` and `<!-- end -->` is one of `blocks`, made from docs/performance.json
(`drdsgd bench`), docs/performance-others.json (`drdsgd_benchmarks.flute`) and docs/performance-time.json
(`drdsgd_benchmarks.where_time_goes`).
"""

from __future__ import annotations

import json
import re
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from drdsgd.files import write_text
from drdsgd_benchmarks.machine import caption
from drdsgd_benchmarks.results import Result

__all__ = ["blocks", "filled", "main"]

PAGES = ("README.md", "docs/performance.md")
BLOCK = re.compile(r"(?<=<!-- measured: )(\w+)( -->\n)(.*?)(?=^ *<!-- end -->)", re.DOTALL | re.MULTILINE)
# fewer repetitions than these are only to try whether everything runs
FEW = 3
# operations of torch that are named
SHOWN = 4


def blocks(root: Path) -> dict[str, str]:
    """All texts with numbers, by name."""
    speed, others, time = (
        json.loads((root / f"docs/performance{name}.json").read_text(encoding="utf-8"))
        for name in ("", "-others", "-time")
    )
    results = [Result.from_json(one) for one in speed["results"]]
    few = next(len(one.turns) for one in results if one.case == "mlp")
    return {
        "machine": _paragraph(f"Measured on {caption(speed['machine'])}." + _again(few)),
        "table": _table(["what", "against", "median", "low to high", "target", ""], [_bold(r.cells) for r in results]),
        "others": _others(others),
        "time": "\n" + "".join(f"- {_shares(what, shares)}\n" for what, shares in time["shares"].items()) + "\n",
        "sentence": _sentence(results, others),
    }


def filled(text: str, blocks: Mapping[str, str]) -> str:
    """A page with today's numbers.

    >>> filled("a\\n<!-- measured: b -->\\nold\\n<!-- end -->\\nc", {"b": "new\\n"})
    'a\\n<!-- measured: b -->\\nnew\\n<!-- end -->\\nc'
    """
    return BLOCK.sub(lambda found: found[1] + found[2] + blocks[found[1]], text)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n"


def _paragraph(text: str) -> str:
    return f"\n{textwrap.fill(text, 118)}\n\n"


def _again(turns: int) -> str:
    """A mark of numbers that only try whether everything runs.

    >>> _again(5), _again(1)
    ('', ' Turns of each: 1. These numbers are to be measured again.')
    """
    return "" if turns >= FEW else f" Turns of each: {turns}. These numbers are to be measured again."


def _bold(cells: Sequence[str]) -> list[str]:
    return ["**not reached**" if cell == "not reached" else cell for cell in cells]


def _others(measured: Mapping[str, Any]) -> str:
    """Each tool's seconds, and how much faster ours is; what could not be installed, in words."""
    tools = measured["tools"]
    faster = {(r["against"], r["what"]): Result.from_json(r) for r in measured["results"]}
    lines = []
    for name, runs in tools.items():
        line = [f"{name} {measured['versions'][name]}"]
        for key in ("rounds", "command"):
            line.append(f"{statistics.median(run[key] for run in runs):.2f} s")
            found = [r for (against, what), r in faster.items() if against == name and (key in what)]
            line.append(_faster(found[0]) if found else "")
        lines.append(line)
    missing = "".join(f"Not measured: {why}.\n\n" for why in measured["missing"].values())
    head = ["tool", "rounds", "drdsgd is", "whole command", "drdsgd is"]
    on = f"Measured on {caption(measured['machine'])}." + _again(min(map(len, tools.values())))
    return _table(head, lines) + missing + _paragraph(on).lstrip()


def _faster(result: Result) -> str:
    target = "" if result.target is None else f" ({', '.join(_bold(result.cells)[-2:])})"
    return f"{result.median:.1f} times faster{target}"


def _shares(what: str, shares: Mapping[str, float]) -> str:
    """The largest shares in words.

    >>> _shares("a round", {"aten::bmm": 71.2, "aten::add_": 8.6})
    'a round: `aten::bmm` 71 %, `aten::add_` 9 %'
    """
    return f"{what}: " + ", ".join(f"`{name}` {share:.0f} %" for name, share in list(shares.items())[:SHOWN])


def _sentence(results: Sequence[Result], others: Mapping[str, Any]) -> str:
    """What README says of speed."""
    found = {(r.case, r.what, r.against): r.median for r in results}
    plain = found[("mlp", "MLP round", "plain loop")]
    bare = found[("mlp", "MLP round", "bare matrix products")]
    # the largest of the case is measured where memory is enough
    cost = [(r.what.partition("K=")[2], r.median) for r in results if r.case == "scale" and r.unit == "times the time"]
    text = (
        f"A round of 25 devices is {plain:.1f} times as fast as a loop over 25 PyTorch modules, and takes {bare:.1f} "
        f"times as long as its bare matrix products. A device among {cost[-1][0]} costs {cost[-1][1]:.1f} times as "
        "much as one among 25."
    )
    rounds = [r for r in map(Result.from_json, others["results"]) if "rounds" in r.what]
    if rounds:
        than = " and ".join(f"{r.median:.1f} times as fast as {r.against}'s" for r in rounds)
        text += f" Rounds of FLUTE's benchmark are {than}."
    return textwrap.fill(text, 116, initial_indent="  ", subsequent_indent="  ") + "\n"


def main(root: Annotated[Path, typer.Option(help="the repository")] = Path()) -> None:
    """Write the pages anew."""
    today = blocks(root)
    for name in PAGES:
        text = (root / name).read_text(encoding="utf-8")
        write_text(root / name, filled(text, today))
        print(f"written: {name}")


if __name__ == "__main__":
    typer.run(main)
