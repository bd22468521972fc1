"""The picture on the first page: one graph of devices, served by plain averaging and by DR-DSGD, with a run's numbers.

    python -m docsite.picture runs/first-page

of the comparison in section 6 of docs/tutorial.md writes docs/picture.json (the numbers, from the run's folders) and
docs/picture.svg (drawn from them). Its colours follow the reader's light or dark screen, on a ground of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from drdsgd.files import write_text

__all__ = ["drawn", "main", "measured"]

DOCS = Path(__file__).parent.parent / "docs"
SIDES = (("dsgd", "plain averaging (DSGD)"), ("dr-dsgd", "robust averaging (DR-DSGD)"))
WIDTH, HEIGHT, SIZE = 460, 420, 26  # of one side, and a device's radius
STYLE = """
  svg { font-family: system-ui, sans-serif; --ground: #f8fafc; --ink: #1e293b; --faint: #94a3b8; --good: #bfdbfe; }
  @media (prefers-color-scheme: dark) {
    svg { --ground: #1e293b; --ink: #e2e8f0; --faint: #64748b; --good: #1d4ed8; }
  }
  .ground { fill: var(--ground); } text { fill: var(--ink); text-anchor: middle; }
  .title { font-size: 19px; font-weight: 600; } .said { font-size: 15px; } .note { font-size: 13px; }
  .link { stroke: var(--faint); stroke-width: 1.5; } .number { font-size: 15px; font-weight: 600; }
  .device { fill: var(--good); stroke: var(--faint); } .worst { stroke: #ef4444; stroke-width: 4; }
"""


def measured(folder: Path) -> dict[str, Any]:
    """The numbers of a comparison of both methods: of its first seed in full, of all seeds the means."""
    finals = {
        name: {
            path.parent.name: json.loads(path.read_text())["final"]["consensus"]
            for path in sorted((folder / name).glob("seed-*/summary.json"))
        }
        for name, _ in SIDES
    }
    first = min(finals["dsgd"], key=lambda seed: int(seed.removeprefix("seed-")))
    network = json.loads((folder / "dsgd" / first / "network.json").read_text())
    gains = [finals["dr-dsgd"][seed]["worst"] - final["worst"] for seed, final in finals["dsgd"].items()]
    return {
        "edges": network["edges"],
        "positions": [[round(x, 3), round(y, 3)] for x, y in network["positions"]],
        "accuracy": {name: [round(a, 1) for a in finals[name][first]["per_device"]] for name, _ in SIDES},
        "seeds": len(gains),
        "gain": [round(mean(gains), 1), round(stdev(gains) / len(gains) ** 0.5, 1)],
        "worst": {name: round(mean(final["worst"] for final in finals[name].values()), 1) for name, _ in SIDES},
        "average": {name: round(mean(final["average"] for final in finals[name].values()), 1) for name, _ in SIDES},
    }


def drawn(numbers: dict[str, Any]) -> str:
    """The picture as SVG."""
    low, high = ([f(p[axis] for p in numbers["positions"]) for axis in (0, 1)] for f in (min, max))

    def place(position: list[float], left: int) -> tuple[float, float]:
        x, y = ((p - a) / (b - a) for p, a, b in zip(position, low, high, strict=True))
        return round(left + 50 + x * (WIDTH - 100), 1), round(90 + y * (HEIGHT - 190), 1)

    lines = []
    for side, (name, title) in enumerate(SIDES):
        left, accuracy = side * WIDTH, numbers["accuracy"][name]
        middle, places = left + WIDTH // 2, [place(p, side * WIDTH) for p in numbers["positions"]]
        lines.append(f'<text class="title" x="{middle}" y="34">{title}</text>')
        for i, j in numbers["edges"]:
            (x, y), (u, v) = places[i], places[j]
            lines.append(f'<line class="link" x1="{x}" y1="{y}" x2="{u}" y2="{v}"/>')
        # the device that plain averaging serves worst, on both sides
        worst = min(range(len(accuracy)), key=numbers["accuracy"]["dsgd"].__getitem__)
        for i, (x, y) in enumerate(places):
            kind = "device worst" if i == worst else "device"
            lines.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="{SIZE}"/>')
            lines.append(f'<text class="number" x="{x}" y="{y + 5}">{accuracy[i]:g}</text>')
        said = f"worst device {numbers['worst'][name]:.1f} %, average {numbers['average'][name]:.1f} %"
        lines.append(f'<text class="said" x="{middle}" y="{HEIGHT - 58}">{numbers["seeds"]} seeds: {said}</text>')
    gain, error = numbers["gain"]
    said = f"the worst device gains {gain:+.1f} ± {error:.1f} points, in pairs of the same seed"
    lines.append(f'<text class="said" x="{WIDTH}" y="{HEIGHT - 34}">{said}</text>')
    note = "a circle is a device with its accuracy in % in one run; red is the one that plain averaging serves worst"
    lines.append(f'<text class="note" x="{WIDTH}" y="{HEIGHT - 14}">{note}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT}" role="img">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect class="ground" width="{2 * WIDTH}" height="{HEIGHT}" rx="14"/>\n' + "\n".join(lines) + "\n</svg>\n"
    )


def main(folder: Path) -> None:
    numbers = measured(folder)
    write_text(DOCS / "picture.json", json.dumps(numbers) + "\n")
    write_text(DOCS / "picture.svg", drawn(numbers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
