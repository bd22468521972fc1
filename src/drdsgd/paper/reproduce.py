"""`drdsgd reproduce`: from names of figures to files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from drdsgd import records
from drdsgd.errors import InputError, one_line
from drdsgd.files import write_text
from drdsgd.paper import draw, job, pages, results, theory
from drdsgd.paper.claims import Claim
from drdsgd.paper.pages import Block, Heading, Picture, Text
from drdsgd.paper.parts import PARTS
from drdsgd.paper.plan import Group, Settings
from drdsgd.paper.store import Done, Kept, Store

__all__ = ["NAMES", "reproduce"]

NAMES = (*PARTS, "theory", "all")
TITLE = "DR-DSGD, reproduced"


def reproduce(
    names: Sequence[str],
    s: Settings,
    out: Path,
    known: Path,
    *,
    at_once: int,
    only_known: bool = False,
    watch: job.Watch = lambda done, total, note: None,
) -> dict[str, list[Claim]]:
    """Do what these figures and tables need and is not done yet, write what came out, and give the claims of each.

    `known` is a folder of records that are taken where they fit; with `only_known` nothing else is done, and what came
    out is that of the runs that are there. All parts together also become a page, as `README.md` and `report.html`.
    """
    chosen = [name for name in (*PARTS, "theory") if name in names or "all" in names]
    parts = {name: PARTS[name] for name in chosen if name in PARTS}

    def plan(done: Done) -> list[Group]:
        return [group for part in parts.values() for group in part.groups(s, done)]

    if not only_known:
        job.check_data(plan({}))
    job.check_folder(out, s)
    store = Store(*dict.fromkeys((out / "runs", known)))
    if parts and not only_known:
        job.do(plan, store, out / "unfinished", at_once, watch)
    planned = dict.fromkeys(e for group in plan(store.runs) for e in group.experiments)
    runs = store.gather(planned)
    claims: dict[str, list[Claim]] = {}
    sections: list[Block] = []
    for name, part in parts.items():
        claims[name] = part.claims(s, store.runs)
        sections += results.write(part, claims[name], s, store.runs, out / name)
    if "theory" in chosen:
        found = _known_theory(out / "theory")
        if found is None and not only_known:
            found = _theory(s, out / "theory", watch)
        if found is not None:
            claims["theory"] = theory.claims(found)
            sections += _theory_section(found, claims["theory"], out / "theory")
    if "all" in names:
        page = _first(s, claims, len(runs), len(planned)) + _fair_section(s, store.runs, out / "fair")
        page += sections + _last(s, runs)
        write_text(out / "README.md", pages.markdown(page, out))
        write_text(out / "report.html", pages.html(page, TITLE))
    return claims


def _known_theory(folder: Path) -> theory.Results | None:
    """The measurements on a problem with known constants that are there, if they are of the same versions."""
    path = folder / "results.json"
    try:
        stored = json.loads(path.read_bytes())
        return theory.from_json(stored["results"]) if stored["versions"] == records.versions() else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is corrupt ({one_line(error)}); remove it, and it is measured again") from None


def _theory(s: Settings, folder: Path, watch: job.Watch) -> theory.Results:
    """The measurements on a problem with known constants."""
    found = theory.measure(s.quick, s.seeds, lambda done: watch(done, 1.0, "theory"))
    stored = {"versions": records.versions(), "results": theory.to_json(found)}
    write_text(folder / "results.json", json.dumps(stored, allow_nan=False) + "\n")
    return found


def _theory_section(found: theory.Results, claims: Sequence[Claim], folder: Path) -> list[Block]:
    results.write_csv(folder / "measurements.csv", theory.rows(found))
    results.write_verdicts(folder, claims)
    for kind in ("pdf", "png"):
        theory.draw(found, folder / f"rates.{kind}")
    return [
        Heading("Theory: Lemmas 1 and 2, Theorem 1, Corollary 1"),
        Picture(folder / "rates.png", "Mean squared gradient norm against T, and consensus distance against its bound"),
        results.verdict_table(claims),
    ]


def _fair_section(s: Settings, done: Done, stem: Path) -> list[Block]:
    """How much of every gain is step size, and how much robustness."""
    compared = [c for part in PARTS.values() for c in part.comparisons(s)]
    draw.gains(compared, s, done, stem)
    return [
        Heading("Step size or robustness?"),
        Text(
            "At the same eta, DR-DSGD's steps are shorter than DSGD's: its gradients are weighed by h / mu. So beside "
            "each comparison of the paper stand DSGD with a step as long as DR-DSGD's on average (what it gains is "
            "step size, the rest is robustness), and both at the step of one grid that serves the worst-off device "
            "best on validation data, constant or falling to zero. Points of worst accuracy, paired by seed."
        ),
        results.gain_table(compared, s, done),
        Picture(stem.with_name(f"{stem.name}.png"), "The gains of the consensus model, with their standard errors."),
    ]


def _first(s: Settings, claims: Mapping[str, Sequence[Claim]], done: int, planned: int) -> list[Block]:
    """What stands above all sections: the verdicts."""
    missing = [Text(f"**Not complete: {done} of {planned} runs are done so far.**")] if done < planned else []
    about = (
        "A quick check of the whole pipeline on the embedded digits, with few rounds: no reproduction of anything."
        if s.quick
        else f"Every experiment of the paper on the real data, {len(s.seeds)} seeds, mean ± one standard error. "
        "Both algorithms of a pair have the same seeds, so the same graph, data, first model and batches. "
        "Verdicts are computed by the rule that stands beside each claim below."
    )
    return [
        Heading(TITLE, 1),
        *missing,
        Text(about),
        *results.overview(claims),
        Text(
            "Two models are scored on each device's own test samples: the consensus model, which is the mean of all "
            "devices' models and the headline; and each device's local model after mixing. A local model that is "
            "scored on its own few classes rewards bad consensus."
        ),
    ]


def _last(s: Settings, runs: Sequence[Kept]) -> list[Block]:
    """What stands below: how to repeat it, what it took, which versions."""
    made_with = ", ".join(f"{name} {version}" for name, version in records.versions().items())
    hours = sum(run.seconds for run in runs) / 3600
    lost = sum(run.status == "diverged" for run in runs)
    chosen = f" --seeds {','.join(map(str, s.seeds))}" + (f" --rounds {s.rounds}" if s.rounds else "")
    return [
        Heading("How to repeat it"),
        Text(f"`drdsgd reproduce all{chosen}{' --quick' if s.quick else ''}` makes this page. Runs whose record in "
             "`runs/` has the same config and versions are taken from there; `drdsgd train runs/NAME.json` does one "
             "again. Every row of the CSV files names its runs."),
        Text(f"{len(runs)} runs, of which {lost} diverged, took {hours:.1f} hours of one core in rounds, evaluations "
             f"not counted. Made with {made_with}."),
    ]  # fmt: skip
