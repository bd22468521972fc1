"""What the documents show runs as written: every Python block, every `drdsgd` command, in the order of the page."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import cluster, network, ranks

from drdsgd import bench
from tests.program import drdsgd

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# the README's commands on Fashion-MNIST need a download and minutes; here they run on data that need neither
STANDS_FOR = {
    "--dataset fashion-mnist": "--dataset synthetic",
    "--rounds 300": "--rounds 30",
    "--seeds 5": "--seeds 2",
    "--devices 1000": "--devices 100",
    "--rounds 100 --batch-size 20": "--rounds 20 --batch-size 20",
    "drdsgd data get fashion-mnist": "drdsgd data",
    "drdsgd bench start": "drdsgd bench start --repeats 1",
}


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def run_shell(line: str, folder: Path) -> None:
    for documented, quick in STANDS_FOR.items():
        line = line.replace(documented, quick)
    if line.startswith("drdsgd ") and not re.search(r"[$|&<>*]", line):
        # most of the time of a process of its own goes into loading torch
        said = drdsgd(*shlex.split(line, comments=True)[1:])
        assert said.status == 0, f"{line}\n{said.out}\n{said.err}"
        return
    program = f"{shlex.quote(sys.executable)} -m drdsgd"
    line = re.sub(r"(^|=\. )drdsgd ", rf"\1{program} ", line)
    line = re.sub(r"^torchrun ", f"{shlex.quote(sys.executable)} -m torch.distributed.run ", line)
    done = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md", "docs/cluster.md", "docs/network.md"])
def test_the_page_runs_as_written(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = 0
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text, page, "exec"), {"__name__": "__main__"})  # noqa: S102 (our own page)
            ran += 1
        elif language == "toml":
            name = re.match(r"# (\S+\.toml)\n", text)
            assert name, f"say in a first comment how the file is called: {text}"
            Path(name[1]).write_text(text)
        elif language == "console":
            for line in text.splitlines():
                assert line.startswith("$ "), line
                if not line.startswith("$ make "):  # CI runs those
                    run_shell(line[2:], tmp_path)
                    ran += 1
    assert ran >= 4


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readmes_python_example_has_ten_lines() -> None:
    example = next(text for language, text in blocks("README.md") if language == "python")
    assert len([line for line in example.splitlines() if line.strip()]) == 10


def test_the_page_on_speed_says_what_was_measured() -> None:
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    results = json.loads((ROOT / "docs/performance.json").read_text(encoding="utf-8"))["results"]
    assert {r["case"] for r in results} == set(bench.CASES)
    for r in results:
        spread = f"{r['low']:.2f} to {r['high']:.2f}"
        assert f"| {r['what']} | {r['against']} | {r['median']:.2f} {r['unit']} | {spread} |" in page
        assert (
            bench.Result(**{key: r[key] for key in (field.name for field in dataclasses.fields(bench.Result))}).reached
            == r["reached"]
        )


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
