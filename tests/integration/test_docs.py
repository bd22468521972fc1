"""What the documents show runs as written: every Python block, every `drdsgd` command, in the order of the page.

What follows a command in a block is what it says: `...` stands for anything, and a number with a decimal point may be
a little off, as last digits depend on the processor. Where a line of that begins with `drdsgd: ` the command must fail
so; if it is the first, what else the command printed is left out. A block of Python may be followed by a block of
`text`, which is what it prints.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from drdsgd_benchmarks import cluster, network, page, ranks, speed
from drdsgd_benchmarks.results import Result
from tests.support.program import Said, drdsgd
from tests.support.together import programs

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# the README's commands on Fashion-MNIST need a download and minutes; here they run on data that need neither, and where
# a page does not show what comes of it, for fewer rounds
STANDS_FOR = {
    "--dataset fashion-mnist": "--dataset synthetic",
    "--rounds 300": "--rounds 30",
    "--rounds 200 --eta 0.5": "--rounds 20 --eta 0.5",
    "--rounds 100 --p 0.5": "--rounds 20 --p 0.5",
    "--rounds 100 --batch-size 20": "--rounds 20 --batch-size 20",
    "--rounds 60 --seeds 3": "--rounds 20 --seeds 3",
    "--rounds 40": "--rounds 10",
    ":mu=6 --seeds 5": ":mu=6 --rounds 30 --seeds 2",
    "--seeds 5": "--seeds 2",
    "--seeds 10": "--seeds 1",
    "--devices 1000": "--devices 100",
    "drdsgd data get fashion-mnist": "drdsgd data",
    "drdsgd bench start": "drdsgd bench start --repeats 1",
    "reproduce fig1 --quick --out": "reproduce fig1 --quick --rounds 10 --out",
}
TORCHRUN = re.compile(r"torchrun --standalone --nproc-per-node=(\d+) -m drdsgd (.*)")


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def run_shell(line: str, folder: Path) -> Said:
    for documented, quick in STANDS_FOR.items():
        line = line.replace(documented, quick)
    # most of the time of a process of its own goes into loading torch
    if line.startswith("drdsgd ") and not re.search(r"[$|&<>*]", re.sub(r"\$\(.*?\)", "", line)):
        words = subprocess.run(
            f"printf '%s\\0' {line}", shell=True, cwd=folder, capture_output=True, text=True, check=True
        )
        return drdsgd(*words.stdout.split("\0")[1:-1])
    if torchrun := TORCHRUN.fullmatch(line):  # tests/integration/test_distributed.py has the real one
        ranks = programs(folder / "ranks", *[shlex.split(torchrun[2])] * int(torchrun[1])).end()
        return Said(max(abs(status or 0) for status in ranks.status), "".join(ranks.text), "")
    program = f"{shlex.quote(sys.executable)} -m drdsgd"
    line = re.sub(r"(^|=\. )drdsgd ", rf"\1{program} ", line)
    done = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


NUMBER = r"\d+\.\d+"


def agree(said: str, shown: str) -> bool:
    """Whether a page shows what was said; numbers of 1 or more (accuracies in percent) to 3, smaller ones to 0.02."""
    said, shown = (" ".join(text.split()) for text in (said, shown))
    pattern = re.escape(re.sub(NUMBER, "NUMBER", shown)).replace(r"\.\.\.", ".*").replace("NUMBER", f"({NUMBER})")
    found = re.fullmatch(pattern, said)
    return found is not None and all(
        abs(float(a) - float(b)) <= (3 if float(b) >= 1 else 0.02)
        for a, b in zip(found.groups(), re.findall(NUMBER, shown), strict=True)
    )


def test_agreement_is_no_formality() -> None:
    assert agree("worst 83.4\u00b11.7  on 5", "worst 84.1\u00b11.7 on 5")
    assert agree("rho = 0.61", "rho = 0.60") and not agree("rho = 0.64", "rho = 0.60")
    assert agree("drdsgd: a long line", "drdsgd: ... line")
    for other in ("worst 86.5", "best 83.4", "worst 83.4 of 5", "worst 83", ""):
        assert not agree("worst 83.4", other)


PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
RUN = [page for page in PAGES if any(language in ("python", "console") for language, _ in blocks(page))]


@pytest.mark.parametrize("page", RUN)
def test_the_page_runs_as_written(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed: str | None = None
    for language, text in blocks(page):
        if language == "text" and printed is not None:
            assert agree(printed, text), f"{page} shows\n{text}\nbut it is\n{printed}"
        printed = None
        if language == "python":
            exec(compile(text, page, "exec"), {"__name__": "__main__"})  # noqa: S102 (our own page)
            printed = capsys.readouterr().out
        elif language == "toml":
            name = re.match(r"# (\S+\.toml)\n", text)
            assert name, f"say in a first comment how the file is called: {text}"
            Path(name[1]).write_text(text)
        elif language == "console":
            assert text.startswith("$ "), text
            for command in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                line, _, shown = command.partition("\n")
                if line.startswith(("make ", "git ", "cd ", "pip ")):  # CI does those
                    continue
                said = run_shell(line, tmp_path)
                fails = re.search(r"^drdsgd: ", shown, re.MULTILINE) is not None
                both = said.out + said.err if fails and not shown.startswith("drdsgd: ") else said.err
                assert (said.status != 0) == fails, f"{line}\n{said.out}\n{said.err}"
                assert not shown or agree(both if fails else said.out, shown), f"{line}\n{said.out}\n{said.err}"


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_is_no_program(page: str) -> None:
    # sh and yaml need other machines, services or more time than a test has; the pages say so
    others = {"docs/cluster.md": {"sh"}, "docs/network.md": {"sh", "yaml", "toml"}}
    known = {"python", "console", "toml", "text"} | others.get(page, set())
    text = (ROOT / page).read_text(encoding="utf-8")
    assert set(re.findall(r"^ *```(\w*)", text, re.MULTILINE)) - {""} <= known
    fences = re.findall(r"^ *```(\w*)", text, re.MULTILINE)
    assert all(fences[::2]) and not any(fences[1::2]), "a block that does not say its language"


def test_the_readmes_python_example_has_ten_lines() -> None:
    example = next(text for language, text in blocks("README.md") if language == "python")
    assert len([line for line in example.splitlines() if line.strip()]) == 10


def test_pages_say_of_speed_what_was_measured() -> None:
    measured = json.loads((ROOT / "docs/performance.json").read_text(encoding="utf-8"))
    assert {one["case"] for one in measured["results"]} == set(speed.CASES)
    for one in measured["results"]:
        assert Result.from_json(one).reached == one["reached"]
    today = page.blocks(ROOT)
    for name in page.PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "<!-- measured: " in text and text == page.filled(text, today)


def test_the_page_on_clusters_says_what_was_measured() -> None:
    page = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
    costs, speed = (json.loads((ROOT / f"docs/{name}.json").read_text()) for name in ("cluster", "ranks"))
    for line in [*cluster.tables(costs), *map(ranks.said, speed)]:
        assert line in page, line
    assert cluster.EXAMPLE in page


def test_the_page_on_networks_says_what_was_measured() -> None:
    page = (ROOT / "docs/network.md").read_text(encoding="utf-8")
    for name, row in json.loads((ROOT / "docs/network.json").read_text()).items():
        assert network.said(name, row) in page
