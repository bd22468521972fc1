"""`drdsgd reproduce`: from names of figures to files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from drdsgd.errors import InputError
from drdsgd.experiments.records import Folder
from drdsgd.files import write_text
from drdsgd.versions import versions
from drdsgd_studies import league
from drdsgd_studies.paper import draw, fair, results
from drdsgd_studies.paper.parts import PARTS, Part
from drdsgd_studies.shared import job, pages, spoilt
from drdsgd_studies.shared.claims import Claim
from drdsgd_studies.shared.pages import Block, Heading, Picture, Text
from drdsgd_studies.shared.plan import Comparison, Group, Settings
from drdsgd_studies.shared.store import Done, RunRecord, Store, other_versions
from drdsgd_studies.theory import theory

__all__ = ["NAMES", "reproduce"]

NAMES = (*PARTS, "theory", "league", "all")
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
    out is that of the runs that are there. What is made of runs has a `report.html`; all parts together also become a
    page, `README.md`, and the league has one of its own.
    """
    chosen = [name for name in (*PARTS, "theory") if name in names or "all" in names]
    parts = {name: PARTS[name] for name in chosen if name in PARTS}

    def plan(done: Done) -> list[Group]:
        found = [group for part in parts.values() for group in part.groups(s, done)]
        return found + league.groups(s, done) if "league" in names else found

    with Folder(out).lock():  # two commands would do the same runs
        store = Store(*(folders := dict.fromkeys((out / "runs", known))))
        if not only_known:
            job.check_data(plan(store.runs), store.runs)
        job.check_folder(out, s)
        measured = _known_theory(out / "theory", say) if "theory" in chosen else None
        if s.quick:
            say("--quick: a check of the whole way on the embedded digits; its verdicts say nothing of the paper")
        if store.outdated:
            say(f"records of other versions, not taken: {store.outdated} ({'; '.join(store.differing)})")
        if only_known and plan({}):
            say(_how_much_is_known(plan(store.runs), store.runs, folders))
        if only_known and "theory" in chosen and measured is None:
            say(f"theory is not measured yet: there is no {out / 'theory' / 'results.json'} that can be taken")
        # the bar is for all of it
        later = THEORY_SECONDS if "theory" in chosen and measured is None and not only_known else 0.0
        runs = 0.0

        def see(done: float, total: float, note: str) -> None:
            nonlocal runs
            runs = total
            watch(done, total + later, note)

        if plan({}) and not only_known:
            job.do(plan, store, out / "unfinished", at_once, see)
        if later:
            measured = _theory(s, out / "theory", lambda part: watch(runs + part * later, runs + later, "theory"))
        return _write(names, parts, s, out, store, plan, measured, say)


def _how_much_is_known(plan: Sequence[Group], done: Done, folders: Iterable[Path]) -> str:
    planned = {e for group in plan for e in group.experiments}
    there = " and ".join(str(folder) for folder in folders if folder.is_dir())
    where = there or f"nowhere: there is no folder {' or '.join(map(str, folders))}"
    return f"{sum(e in done for e in planned)} of {len(planned)} runs are known, from {where}"


def _write(
    names: Sequence[str],
    parts: Mapping[str, Part],
    s: Settings,
    out: Path,
    store: Store,
    plan: job.Plan,
    measured: theory.Results | None,
    say: Callable[[str], None],
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
    if "league" in names:
        claims["league"] = league.write(s, store.runs, out / "league")
    page = out / "README.md"
    if "all" in names:
        blocks = _first(s, claims, len(runs), len(planned)) + _fair_section(s, store.runs, out / "fair")
        blocks += sections + _last(s, runs, out)
        write_text(page, pages.markdown(blocks, out))
    elif sections and page.exists() and pages.markdown(sections, out) not in page.read_text("utf-8"):
        say(f"{page} is of before: {_command(s, out)} --only-known brings it up to date")
    return claims


def _known_theory(folder: Path, say: Callable[[str], None]) -> theory.Results | None:
    """The measurements on a problem with known constants that are there, if they are of the same versions."""
    path = folder / "results.json"
    try:
        stored = spoilt.parsed(path.read_bytes())
        spoilt.lacking(stored, "versions", "results")
        if others := other_versions(spoilt.validated(TypeAdapter(dict[str, str]), stored["versions"])):
            say(f"{path} was made with other versions ({'; '.join(others)}): not taken")
            return None
        return theory.from_json(stored["results"])
    except FileNotFoundError:
        return None
    except InputError as error:
        raise InputError(f"{path} is corrupt: {error}; remove it, and it is measured again") from None


def _theory(s: Settings, folder: Path, watch: Callable[[float], None]) -> theory.Results:
    """The measurements on a problem with known constants."""
    found = theory.measure(s.quick, s.seeds, watch)
    stored = {"versions": versions(), "results": theory.to_json(found)}
    write_text(folder / "results.json", json.dumps(stored, allow_nan=False) + "\n")
    return found


def _theory_section(found: theory.Results, claims: Sequence[Claim], folder: Path) -> list[Block]:
    results.write_csv(folder / "measurements.csv", theory.rows(found))
    results.write_verdicts(folder, claims)
    for kind in ("pdf", "png"):
        theory.draw(found, folder / f"rates.{kind}")
    return [
        Heading("Theory: Lemmas 1 and 2, Theorem 1, Corollary 1"),
        Picture(folder / "rates.png", theory.SHOWN),
        results.verdict_table(claims),
    ]


def _fair_section(s: Settings, done: Done, stem: Path) -> list[Block]:
    """How much of every gain is step size, and how much robustness."""
    compared = [c for part in PARTS.values() for c in part.comparisons(s)]
    tuned = [c for c in compared if c.tuned]
    draw.gains(compared, s, done, stem)
    return [
        Heading("Step size or robustness?"),
        Text(
            f"At the same eta the two algorithms take different steps: DR-DSGD's gradients are weighed by h / mu, here "
            f"by {_weights(s, done)} on average. So beside each comparison of the paper stand DSGD at eta times that "
            "mean weight (what it gains over DSGD is step size; the rest is robustness, and that the weights change "
            "over rounds), and both algorithms at the step of one grid that serves the worst-off device best on "
            "validation data, constant or falling to zero. Points of worst accuracy, paired by seed; where some runs "
            "diverged or are not done, how many pairs there are of how many seeds."
        ),
        Text(f"{_sensitive(compared, s, done)} {results.noisy_choice(tuned, s)}"),
        results.gain_table(compared, s, done),
        Picture(
            stem.with_name(f"{stem.name}.png"),
            "The gains of the consensus model, with their standard errors. Open symbols are not of all seeds: runs "
            "diverged, or are not done.",
        ),
    ]


def _sensitive(compared: Sequence[Comparison], s: Settings, done: Done) -> str:
    """What a single end of a run with a constant step is worth."""
    found = fair.swing(compared, s, done)
    ends = "" if found is None else f"{found[0]:.1f} and {found[1]:.1f} %"
    seeds = f"seeds of one setting end between {ends} at the paper's eta, and " if ends else ""
    return (
        f"With a constant step the worst accuracy of the last round is largely luck: {seeds}a change of eta by a "
        "thousandth can move a single run by tens of points. Read differences with their errors."
    )


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


def _command(s: Settings, out: Path) -> str:
    """What makes the page in a folder."""
    quick, rounds = ["--quick"] if s.quick else [], ["--rounds", str(s.rounds)] if s.rounds else []
    words = ["drdsgd", "reproduce", "all", *quick, "--seeds", ",".join(map(str, s.seeds)), *rounds, "--out", str(out)]
    return shlex.join(words)


def _last(s: Settings, runs: Sequence[RunRecord], out: Path) -> list[Block]:
    """What stands below: how to repeat it, what it took, which versions."""
    made_with = ", ".join(f"{name} {version}" for name, version in versions().items())
    hours = sum(run.seconds for run in runs) / 3600
    lost = sum(run.status == "diverged" for run in runs)
    return [
        Heading("How to repeat it"),
        Text(f"`{_command(s, out)}` makes this page. Runs whose record in `runs/` has the same config and versions are "
             f"taken from there; `{shlex.join(['drdsgd', 'train', f'{out}/runs/NAME.json', '--out', 'runs/again'])}` "
             "does one again. Every row of the CSV files of figures and table names its runs, and every row of "
             "`theory/measurements.csv` the whole setting that `drdsgd reproduce theory` measures."),
        Text(f"{len(runs)} runs, of which {lost} diverged, took {hours:.1f} hours in rounds, evaluations not counted, "
             f"each on one core while others shared the machine. Made with {made_with}."),
    ]  # fmt: skip
