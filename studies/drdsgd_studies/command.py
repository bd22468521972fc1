"""The command `drdsgd reproduce`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from drdsgd.cli.options import count, seeds_of
from drdsgd.cli.output import console, continued_with
from drdsgd.cli.progress import bar
from drdsgd.errors import InputError, named
from drdsgd.experiments.config import default_threads
from drdsgd_studies import reproduce as studies
from drdsgd_studies.shared import reports
from drdsgd_studies.shared.claims import Claim
from drdsgd_studies.shared.plan import Settings

__all__ = ["reproduce"]


def reproduce(
    what: str,
    seeds: str | None,
    rounds: str | None,
    out: Path | None,
    known: Path | None,
    quick: bool,
    only_known: bool,
    threads: str | None,
) -> None:
    """Do the missing runs, write pages, pictures and tables, and print the verdict on each claim."""
    if what not in studies.NAMES:
        raise InputError(f"reproduce {what}: unknown; choose {', '.join(studies.NAMES[:-1])} or {studies.NAMES[-1]}")
    if known is not None and not known.is_dir():
        raise InputError(f"{named('records', known)}: there is no such folder")
    T, at_once = (count(name, text) for name, text in (("rounds", rounds), ("threads", threads)))
    settings = Settings(seeds_of(("2" if quick else "5") if seeds is None else seeds), T, quick)
    folder = out or Path("runs/quick" if quick else "docs/results")
    given = {"--seeds": seeds, "--rounds": rounds, "--threads": threads, "--records": known}
    words = [word for option, value in given.items() if value is not None for word in (option, str(value))]
    again = shlex.join(["reproduce", what, *(["--quick"] if quick else []), *words])
    with continued_with(again, folder, begun=folder / "settings.json"):
        with bar(console(stderr=True), f"reproducing {what}", None) as advance:
            claims = studies.reproduce(
                [what], settings, folder, known or Path("docs/results"),
                at_once=at_once or default_threads(),
                only_known=only_known,
                watch=lambda done, total, note: advance(done, note, total),
                say=lambda line: print(f"drdsgd: {line}", file=sys.stderr),
            )  # fmt: skip
        _show_claims(claims)
        print(f"results: {folder}")
        for report in (folder / name / reports.NAME for name in claims):
            if report.exists():  # theory has none, nor has a part without finished runs
                print(f"report: {report}")


def _show_claims(claims: Mapping[str, Sequence[Claim]]) -> None:
    """Print the verdict on each claim."""
    screen = console()
    for name, some in claims.items():
        for claim in some:
            who = "wanted" if name == "league" else "the paper"
            screen.print(f"\n{name}: {claim.text} ({who}: {claim.paper})", highlight=False, markup=False)
            for of, finding in claim.findings.items():
                screen.print(f"  {finding.verdict:<14}  {of}: {finding.ours}", highlight=False, markup=False)
    print()
