"""`drdsgd reproduce`: from names of figures to files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from drdsgd.errors import InputError
from drdsgd.experiments.config import PACKED
from drdsgd.experiments.records import Folder
from drdsgd.files import write_text
from drdsgd.versions import versions
from drdsgd_studies import league
from drdsgd_studies.paper import draw, fair, results
from drdsgd_studies.paper.parts import PARTS, Part
from drdsgd_studies.shared import job, pages
from drdsgd_studies.shared.claims import Claim
from drdsgd_studies.shared.corrupt import validated
from drdsgd_studies.shared.pages import Block, Heading, Picture, Text
from drdsgd_studies.shared.plan import Comparison, Group, Settings
from drdsgd_studies.shared.store import Done, RunRecord, Store, differences
from drdsgd_studies.theory import measurements, picture, verdicts
from drdsgd_studies.theory.measurements import MadeWith, Results, Stored

__all__ = ["NAMES", "reproduce"]

NAMES = (*PARTS, "theory", "league", "all")
TITLE = "DR-DSGD, reproduced"
# approximate duration on one core
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
    """Do the missing runs of these figures and tables, write the results, and return the claims of each.

    `known` is a folder with records, which are taken where they fit. With `only_known` nothing is run, and the results
    are those of the known runs. Every part that consists of runs has a `report.html`. All parts together also become a
    page, `README.md`, and the league has its own page.
    """
    chosen = [name for name in (*PARTS, "theory") if name in names or "all" in names]
    parts = {name: PARTS[name] for name in chosen if name in PARTS}

    def plan(done: Done) -> list[Group]:
        found = [group for part in parts.values() for group in part.groups(s, done)]
        return found + league.groups(s, done) if "league" in names else found

    with Folder(out).lock():  # two commands would do the same runs
        store = Store(out, known)
        if not only_known:
            job.check_data(plan(store.runs), store.runs)
        job.check_folder(out, s)
        path = out / "theory" / "results.json"
        measured = _known_theory(path, say) if "theory" in chosen else None
        if s.quick:
            say("--quick: a check of the whole way on the embedded digits; its verdicts say nothing of the paper")
        if store.outdated:
            say(f"records of other versions or numerics, not taken: {store.outdated} ({'; '.join(store.differing)})")
        if only_known and plan({}):
            say(_how_much_is_known(plan(store.runs), store, known))
        if only_known and "theory" in chosen and measured is None:
            say(f"theory is not measured yet: there is no {path} that can be taken")
        # the bar covers runs and theory
        later = THEORY_SECONDS if "theory" in chosen and measured is None and not only_known else 0.0
        runs = 0.0

        def see(done: float, total: float, note: str) -> None:
            nonlocal runs
            runs = total
            watch(done, total + later, note)

        if plan({}) and not only_known:
            job.do(plan, store, out / "unfinished", at_once, see)
        if later:
            measured = _theory(s, path, lambda part: watch(runs + part * later, runs + later, "theory"))
        return _write(names, parts, s, out, store, plan, measured, say)


def _how_much_is_known(plan: Sequence[Group], store: Store, known: Path) -> str:
    planned = {e for group in plan for e in group.experiments}
    places = dict.fromkeys((store.out, known))
    where = " and ".join(map(str, store.sources)) or f"nowhere: no records in {' or '.join(map(str, places))}"
    return f"{sum(e in store.runs for e in planned)} of {len(planned)} runs are known, from {where}"


def _write(
    names: Sequence[str],
    parts: Mapping[str, Part],
    s: Settings,
    out: Path,
    store: Store,
    plan: job.Plan,
    measured: Results | None,
    say: Callable[[str], None],
) -> dict[str, list[Claim]]:
    """Write the results."""
    groups = plan(store.runs)
    planned = dict.fromkeys(e for group in groups for e in group.experiments)
    runs = [store.runs[e] for e in planned if e in store.runs]
    if all(group.ready for group in groups) and len(runs) == len(planned):
        _pack(runs, s, store)
    else:
        store.gather(runs)
    claims = {name: part.claims(s, store.runs) for name, part in parts.items()}
    sections: list[Block] = []
    for name, part in parts.items():
        sections += results.write(part, claims[name], s, store.runs, out / name)
    if measured is not None:
        claims["theory"] = verdicts.claims(measured)
        sections += _theory_section(measured, claims["theory"], out / "theory")
    if "league" in names:
        claims["league"] = league.write(s, store.runs, out / "league")
    page = out / "README.md"
    if "all" in names:
        blocks = _first(s, claims, len(runs), len(planned)) + _fair_section(s, store.runs, out / "fair")
        blocks += sections + _last(s, runs, out)
        write_text(page, pages.markdown(blocks, out))
    elif sections and page.exists() and pages.markdown(sections, out) not in page.read_text("utf-8"):
        say(f"{page} is out of date: {_command(s, out)} --only-known renews it")
    return claims


def _pack(runs: Sequence[RunRecord], s: Settings, store: Store) -> None:
    """Pack the records of finished studies; a run that both studies use is one of the paper's."""
    groups = [group for part in PARTS.values() for group in part.groups(s, store.runs)]
    paper = {e for group in groups if group.ready for e in group.experiments}
    for study, own in (("paper", True), ("league", False)):
        if some := [run for run in runs if (run.experiment in paper) == own]:
            store.pack(study, some)


def _known_theory(path: Path, say: Callable[[str], None]) -> Results | None:
    """The stored measurements on a problem with known constants, if versions and numerics are the same."""
    try:
        text = path.read_bytes()
        made = validated(TypeAdapter(MadeWith), text)
        if others := differences(made.versions, made.numerics, measurements.HERE):
            say(f"{path} was made with other versions or numerics ({'; '.join(others)}): not taken")
            return None
        # Lemma 3 had the number 2 in files of before
        return validated(TypeAdapter(Stored), text.replace(b'"lemma 2"', b'"lemma 3"')).results
    except FileNotFoundError:
        return None
    except InputError as error:
        raise InputError(f"{path} is corrupt: {error.marked}; remove it to measure again") from None


def _theory(s: Settings, path: Path, watch: Callable[[float], None]) -> Results:
    """The measurements on a problem with known constants."""
    found = measurements.measure(s.quick, s.seeds, watch)
    stored = {**asdict(MadeWith(versions(), measurements.HERE)), **asdict(Stored(found))}
    write_text(path, json.dumps(stored, allow_nan=False) + "\n")
    return found


def _theory_section(found: Results, claims: Sequence[Claim], folder: Path) -> list[Block]:
    results.write_csv(folder / "measurements.csv", measurements.rows(found))
    results.write_verdicts(folder, claims)
    for kind in ("pdf", "png"):
        picture.draw(found, folder / f"rates.{kind}")
    return [
        Heading("Theory: Lemmas 1 and 3, Theorem 1, Corollary 1"),
        Picture(folder / "rates.png", picture.SHOWN),
        results.verdict_table(claims),
    ]


def _fair_section(s: Settings, done: Done, stem: Path) -> list[Block]:
    """How much of every gain is due to the step size, and how much to robustness."""
    compared = [c for part in PARTS.values() for c in part.comparisons(s)]
    tuned = [c for c in compared if c.tuned]
    draw.write(stem, draw.gains, compared, s, done)
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
    """How far single runs with a constant step size can be trusted."""
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
    """The top of the page: the verdicts."""
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
    """The command that makes the page in a folder."""
    quick, rounds = ["--quick"] if s.quick else [], ["--rounds", str(s.rounds)] if s.rounds else []
    words = ["drdsgd", "reproduce", "all", *quick, "--seeds", ",".join(map(str, s.seeds)), *rounds, "--out", str(out)]
    return shlex.join(words)


def _last(s: Settings, runs: Sequence[RunRecord], out: Path) -> list[Block]:
    """The end of the page: how to repeat it, how long it took, which versions."""
    made_with = ", ".join(f"{name} {version}" for name, version in versions().items())
    hours = sum(run.seconds for run in runs) / 3600
    lost = sum(run.status == "diverged" for run in runs)
    packed = f"paper{PACKED}"
    again = shlex.join(["drdsgd", "train", f"{out}/{packed}:NAME", "--out", "runs/again"])
    return [
        Heading("How to repeat it"),
        Text(f"`{_command(s, out)}` makes this page. Runs whose record in `{packed}` has the same config, versions and "
             f"numerics are taken from there; `{again}` "
             "does one again. Every row of the CSV files of figures and table names its runs, and every row of "
             "`theory/measurements.csv` the whole setting that `drdsgd reproduce theory` measures."),
        Text(f"{len(runs)} runs, of which {lost} diverged, took {hours:.1f} hours in rounds, evaluations not counted, "
             f"each on one core while others shared the machine. Made with {made_with}."),
    ]  # fmt: skip
