r"""The first picture: how well 25 devices are served, round by round, by plain averaging and by this project's method.

    drdsgd compare --dataset fashion-mnist --devices 25 --seeds 1 --out runs/lift --algorithm dsgd \
        --algorithm dr-gt-adam:eta_schedule=linear \
        --algorithm dsgd:eta_schedule=linear --algorithm dr-gt-adam:objective=erm,eta_schedule=linear
    python -m docsite.lift runs/lift

take some minutes, and write docs/lift.json (the numbers, from the runs' folders) and docs/lift.svg (drawn from them).
It moves by CSS alone, so also where a page shows it as an image. It begins and ends with the last round, and that is
how it stands still: after two times, for those who want less motion, in programs that do not animate, and printed by
itself (of an image that moves, browsers print the moment). Its colours follow the reader's light or dark screen, on a
ground of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from drdsgd.experiments.records import read
from drdsgd.files import write_text

__all__ = ["alt", "caption", "drawn", "main", "measured"]

DOCS = Path(__file__).parent.parent / "docs"
SIDES = {
    "dsgd": ("DSGD", "plain averaging", "the worst device is left behind"),
    "dr-gt-adam-eta_schedule=linear": ("DR-GTAdam", "our method", "the worst device comes along"),
}
# how much of it is not robustness
WITHOUT_WEIGHTS = ("dsgd-eta_schedule=linear", "dr-gt-adam-objective=erm-eta_schedule=linear")

WIDTH, HEIGHT = 430, 400  # of one side
LEFT, TOP, PITCH, BAR, TALL = 24, 90, 11.6, 9, 224  # its bars: where they are, how far apart, how wide, what 100 % is
ROW = 40  # of a strip of texts, of which one is seen
SECONDS, TIMES = 12, 2
HELD, BEGUN, OVER = 14.0, 18.0, 78.0  # percent of these seconds: the last round stands, falls to the first, and is back
# without variables, which not all programs that draw SVG know
STYLE = f"""
  text {{ font-family: system-ui, sans-serif; fill: #1e293b; }} .ground {{ fill: #f8fafc; }} .track {{ fill: #e2e8f0; }}
  .bar {{ fill: #7cb0f5; }} .worst {{ fill: #c2410c; }} .note {{ font-size: 18px; fill: #64748b; }}
  .title {{ font-size: 26px; font-weight: 700; }} .word {{ font-size: 19px; }}
  .number {{ font-size: 28px; font-weight: 700; }}
  .level {{ stroke: #c2410c; stroke-width: 2.5; stroke-dasharray: 7 5; }}
  @media (prefers-color-scheme: dark) {{
    text {{ fill: #e2e8f0; }} .ground {{ fill: #1e293b; }} .track {{ fill: #334155; }} .bar {{ fill: #3b76d1; }}
    .worst {{ fill: #fb923c; }} .note {{ fill: #94a3b8; }} .level {{ stroke: #fb923c; }}
  }}
  @media screen and (prefers-reduced-motion: no-preference) {{
    .moves {{ animation: {SECONDS}s linear {TIMES}; }} .jumps {{ animation: {SECONDS}s step-end {TIMES}; }}
  }}
"""


def measured(folder: Path) -> dict[str, Any]:
    """What was set; of each run what it sent, and how well the consensus model serves, [evaluation][device]."""
    runs = {name: read(folder / name / "seed-0") for name in (*SIDES, *WITHOUT_WEIGHTS)}
    set_to = runs["dsgd"].experiment
    return {
        "setting": {name: getattr(set_to, name) for name in ("devices", "shards", "p", "seed")},
        "rounds": [metrics.round for metrics in runs["dsgd"].metrics],
        "floats_sent": {name: run.final.floats_sent for name, run in runs.items()},
        "accuracy": {name: [m.consensus.per_device for m in run.metrics] for name, run in runs.items()},
    }


def alt(numbers: dict[str, Any]) -> str:
    """What the picture shows, in words."""
    last = {title: numbers["accuracy"][name][-1] for name, (title, *_) in SIDES.items()}
    said = (
        f"with {title} the worst ends at {min(a):.0f} %, the average at {fmean(a):.0f} %" for title, a in last.items()
    )
    return f"{numbers['setting']['devices']} devices as bars that grow with their accuracy: {'; '.join(said)}."


def caption(numbers: dict[str, Any]) -> str:
    """What it is, and what it is not: the words below the picture."""
    of, sent, accuracy = numbers["setting"], numbers["floats_sent"], numbers["accuracy"]
    dsgd, ours = SIDES
    steps, alike = (min(accuracy[name][-1]) for name in WITHOUT_WEIGHTS)
    part = "All" if alike >= min(accuracy[ours][-1]) else "Most"
    late = [min(a) for t, a in zip(numbers["rounds"], accuracy[dsgd], strict=True) if t > numbers["rounds"][-1] - 100]
    return (
        f"One run each (seed {of['seed']}) on Fashion-MNIST: {of['devices']} devices with {of['shards']} shards each, "
        f"a random graph (p = {of['p']}), {numbers['rounds'][-1]} rounds; the mean of all models, on each device's own "
        f"test samples. DSGD has the paper's step, and its worst device goes up and down: {min(late):.0f} to "
        f"{max(late):.0f} % in the last 100 rounds. With another library for the same products, a run with such "
        f"long steps ends elsewhere. DR-GTAdam (`dr-gt-adam`, with steps that fall to zero) sends "
        f"{sent[dsgd] / sent[ours]:.1f} times less. {part} of the lift in this run is optimisation: such steps "
        f"alone bring the worst device of DSGD to {steps:.1f} %, and DR-GTAdam with uniform weights brings "
        f"it to {alike:.1f} %, against {min(accuracy[ours][-1]):.1f} % with the robust weights."
    )


def drawn(numbers: dict[str, Any]) -> str:
    """The picture as SVG."""
    rounds: list[int] = numbers["rounds"]
    # devices stand in the same order on both sides: that in which plain averaging serves them at the end
    last = numbers["accuracy"]["dsgd"][-1]
    order = sorted(range(len(last)), key=last.__getitem__)
    rules = [_keyframes("rows", [f"transform:translate(0px,{-ROW * k}px)" for k in range(len(rounds))], jumps=True)]
    shapes = list[str]()
    for side, (name, (title, what, said)) in enumerate(SIDES.items()):
        frames = [[frame[i] for i in order] for frame in numbers["accuracy"][name]]
        shapes += [
            f'<g transform="translate({side * WIDTH + LEFT} 0)">',
            f'<text class="title" y="40">{title}, {what}</text><text class="word" y="68">{said}</text>',
            *_side("ab"[side], frames, rules),
            "</g>",
        ]
    note = f"{len(order)} devices: accuracy in % on the samples of each"
    shapes.append(f'<text class="note" x="{LEFT}" y="{HEIGHT - 24}">{note}</text>')
    shapes.append(_strip([f"round {t}" for t in rounds], 2 * WIDTH - LEFT - 162, HEIGHT - 52, 170, "number"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT}" role="img">\n'
        f"<title>{alt(numbers)}</title>\n<style>{STYLE}{''.join(rules)}</style>\n"
        f'<rect class="ground" width="{2 * WIDTH}" height="{HEIGHT}" rx="14"/>\n' + "\n".join(shapes) + "\n</svg>\n"
    )


def _side(side: str, frames: Sequence[Sequence[float]], rules: list[str]) -> list[str]:
    """The bars of one side, the line at the worst of them, and both numbers; their motion goes to `rules`."""
    K = len(frames[0])
    wide = K * PITCH
    worst = [min(range(K), key=frame.__getitem__) for frame in frames]
    lines = [f'<svg y="{TOP}" width="{wide:g}" height="{TALL}">']
    for i in range(K):
        shape = f'x="{i * PITCH:g}" width="{BAR}" height="{TALL + BAR}" rx="{BAR / 2}"/>'
        bar = f'<rect class="bar" {shape}'
        if i in worst:
            rules.append(_keyframes(f"{side}{i}w", [f"opacity:{w == i:d}" for w in worst], jumps=True))
            marked = f'style="animation-name:{side}{i}w" opacity="{worst[-1] == i:d}"'
            bar += f'<rect class="worst jumps" {marked} {shape}'
        motion = _motion(f"{side}{i}", [(0, _down(frame[i])) for frame in frames], rules)
        lines.append(f'<rect class="track" {shape}<g class="moves" {motion}>{bar}</g>')
    low = [TOP + _down(min(frame)) for frame in frames]
    # the words of the average keep clear of the worst's
    high = [min(TOP + _down(fmean(frame)), y - 54) for frame, y in zip(frames, low, strict=True)]
    motion = _motion(f"{side}average", [(0, y) for y in high], rules)
    said = _said("average", map(fmean, frames), wide, "")
    lines += ["</svg>", f'<g class="moves" {motion}>{said}</g>']
    motion = _motion(f"{side}peak", [(w * PITCH + BAR / 2, 0) for w in worst], rules, jumps=True)
    peak = f'<path class="worst jumps" {motion} d="M-8 -19h16l-8 14z"/>'
    motion = _motion(f"{side}level", [(0, y) for y in low], rules)
    level = f'<line class="level" x1="-6" x2="{wide + 8:g}"/>' + _said("worst", map(min, frames), wide, " worst")
    lines.append(f'<g class="moves" {motion}>{level}{peak}</g>')
    return lines


def _motion(name: str, places: Sequence[tuple[float, float]], rules: list[str], jumps: bool = False) -> str:
    """The attributes of what goes through these places, and without motion is at the last."""
    rules.append(_keyframes(name, [f"transform:translate({x:g}px,{y:g}px)" for x, y in places], jumps))
    return f'style="animation-name:{name}" transform="translate({places[-1][0]:g} {places[-1][1]:g})"'


def _said(word: str, values: Iterable[float], x: float, kind: str) -> str:
    """A word and a number that changes."""
    number = _strip([f"{value:.0f} %" for value in values], x + 14, -4, 90, f"number{kind}")
    return f'<text class="word{kind}" x="{x + 14:g}" y="-5">{word}</text>{number}'


def _strip(texts: Sequence[str], x: float, y: float, width: int, kind: str) -> str:
    """A window on one of these texts, without motion on the last."""
    rows = "".join(f'<text class="{kind}" y="{ROW * k + 28}">{text}</text>' for k, text in enumerate(texts))
    return (
        f'<svg x="{x:g}" y="{y:g}" width="{width}" height="{ROW}">'
        f'<g class="jumps" style="animation-name:rows" transform="translate(0 {-ROW * (len(texts) - 1)})">{rows}</g>'
        "</svg>"
    )


def _keyframes(name: str, states: Sequence[str], jumps: bool = False) -> str:
    """The last state, then all in turn, and the last once more; what jumps does so half-way."""
    step = (OVER - BEGUN) / (len(states) - 1)
    stops = [f"0%,{HELD:g}%{{{states[-1]}}}"]
    stops += [f"{BEGUN + step * (k - jumps / 2):.4g}%{{{state}}}" for k, state in enumerate(states[:-1])]
    return f"@keyframes {name}{{{''.join(stops)}{OVER - step * jumps / 2:.4g}%,to{{{states[-1]}}}}}\n"


def _down(accuracy: float) -> float:
    """How far below 100 % that is in the picture."""
    return round(TALL * (1 - accuracy / 100), 1)


def main(folder: Path) -> None:
    numbers = measured(folder)
    write_text(DOCS / "lift.json", json.dumps(numbers) + "\n")
    write_text(DOCS / "lift.svg", drawn(numbers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
