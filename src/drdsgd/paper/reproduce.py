"""`drdsgd reproduce`: from names of figures to files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from drdsgd import records
from drdsgd.errors import InputError, one_line
from drdsgd.files import write_text
from drdsgd.paper import draw, fair, job, pages, results, theory
from drdsgd.paper.claims import Claim
from drdsgd.paper.pages import Block, Heading, Picture, Text
from drdsgd.paper.parts import PARTS, Part
from drdsgd.paper.plan import Group, Settings
from drdsgd.paper.store import Done, Kept, Store, same_versions
from drdsgd.records import Folder

__all__ = ["NAMES", "reproduce"]

NAMES = (*PARTS, "theory", "all")
TITLE = "DR-DSGD, reproduced"
# about how many it takes on one core
THEORY_SECONDS = 240.0


def reproduce(
    names: Sequence[str],
    s: Settings,
    out: Path,
    known: Path,
    *,
    at_once: int,
    only_known: bool = False,
    watch: job.Watch = lambda done, total, note: None,
    say: Callable[[str], None] = lambda line: None,
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
    with Folder(out).lock():  # two commands would do the same runs
        job.check_folder(out, s)
        store = Store(*dict.fromkeys((out / "runs", known)))
        if store.outdated:
            say(f"{store.outdated} records of runs were made with other versions than are installed, and are not taken")
        measured = _known_theory(out / "theory") if "theory" in chosen else None
        # the bar is for all of it
        later = THEORY_SECONDS if "theory" in chosen and measured is None and not only_known else 0.0
        runs = 0.0

        def see(done: float, total: float, note: str) -> None:
            nonlocal runs
            runs = total
            watch(done, total + later, note)

        if parts and not only_known:
            job.do(plan, store, out / "unfinished", at_once, see)
        if later:
            measured = _theory(s, out / "theory", lambda part: watch(runs + part * later, runs + later, "theory"))
        return _write(names, parts, s, out, store, plan, measured)


def _write(
    names: Sequence[str],
    parts: Mapping[str, Part],
    s: Settings,
    out: Path,
    store: Store,
    plan: job.Plan,
    measured: theory.Results | None,
) -> dict[str, list[Claim]]:
    """Write what came out."""
    planned = dict.fromkeys(e for group in plan(store.runs) for e in group.experiments)
    runs = store.gather(planned)
    claims = {name: part.claims(s, store.runs) for name, part in parts.items()}
    sections: list[Block] = []
    for name, part in parts.items():
        sections += results.write(part, claims[name], s, store.runs, out / name)
    if measured is not None:
        claims["theory"] = theory.claims(measured)
        sections += _theory_section(measured, claims["theory"], out / "theory")
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
        return theory.from_json(stored["results"]) if same_versions(stored["versions"]) else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is corrupt ({one_line(error)}); remove it, and it is measured again") from None


def _theory(s: Settings, folder: Path, watch: Callable[[float], None]) -> theory.Results:
    """The measurements on a problem with known constants."""
    found = theory.measure(s.quick, s.seeds, watch)
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
            f"At the same eta the two algorithms take different steps: DR-DSGD's gradients are weighed by h / mu, here "
            f"by {_weights(s, done)} on average. So beside each comparison of the paper stand DSGD at eta times that "
            "mean weight (what it gains over DSGD is step size; the rest is robustness, and that the weights change "
            "over rounds), and both algorithms at the step of one grid that serves the worst-off device best on "
            "validation data, constant or falling to zero. Points of worst accuracy, paired by seed."
        ),
        results.gain_table(compared, s, done),
        Picture(stem.with_name(f"{stem.name}.png"), "The gains of the consensus model, with their standard errors."),
    ]


def _weights(s: Settings, done: Done) -> str:
    """The range of DR-DSGD's mean weights over all comparisons, in words."""
    steps = [
        step / c.pair(s)["DSGD"].example.eta
        for part in PARTS.values()
        for c in part.comparisons(s)
        if (step := fair.matched(c, s, done)) is not None
    ]
    return f"{min(steps):.2f} to {max(steps):.2f}" if steps else "what no finished run says"


def _first(s: Settings, claims: Mapping[str, Sequence[Claim]], done: int, planned: int) -> list[Block]:
    """What stands above all sections: the verdicts."""
    missing = [Text(f"**Not complete: {done} of {planned} runs are done so far.**")] if done < planned else []
    about = (
        "A quick check of the whole pipeline on the embedded digits, with few rounds: no reproduction of anything."
        if s.quick
        else f"Every experiment of the paper on the real data, {len(s.seeds)} seeds"
        + (f", {s.rounds} rounds in place of the paper's" if s.rounds else "")
        + ", mean ± one standard error. Both algorithms of a pair have the same seeds, so the same graph, data, first "
        "model and batches. Verdicts are computed by the rule that stands beside each claim below."
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
        Text(f"{len(runs)} runs, of which {lost} diverged, took {hours:.1f} hours in rounds, evaluations not counted, "
             f"each on one core while others shared the machine. Made with {made_with}."),
    ]  # fmt: skip
