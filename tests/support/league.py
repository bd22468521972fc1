"""A finished league: invented results for all runs of its tuning."""

from __future__ import annotations

from dataclasses import replace

from drdsgd.experiments.config import Experiment
from drdsgd_studies.league import plan
from drdsgd_studies.league.entrants import ENTRANTS
from drdsgd_studies.league.plan import Arena
from drdsgd_studies.shared.plan import Group, Settings
from drdsgd_studies.shared.store import RunRecord
from tests.support.made import run_record

S = Settings(seeds=(0, 1))
ARENA = plan.arenas(S)[0]
BY_NAME = {entrant.name: entrant for entrant in ENTRANTS}


def finished(group: Group, worst: float, floats: int = 1000) -> dict[Experiment, RunRecord]:
    """All runs of a group, with one device at `worst` and the others at 80 %."""
    runs = {e: run_record(e, [80.0, worst, *[80.0] * (e.devices - 2)]) for e in group.experiments}
    return {e: replace(run, floats_sent=floats * e.rounds) for e, run in runs.items()}


def tuned(names: list[str], worst: dict[str, float], arena: Arena = ARENA) -> dict[Experiment, RunRecord]:
    """All runs of the tuning of these entrants; a larger eta is better, up to 0.4."""
    done: dict[Experiment, RunRecord] = {}
    for name in names:
        while (one := plan.place(arena, BY_NAME[name], done)).found.wanted:
            for point in one.found.wanted:
                done |= finished(plan.trial(arena, one.entrant, point), min(point["eta"], 0.8 - point["eta"]) * 50)
        done |= finished(plan.at_equal_rounds(one), worst.get(name, 50.0))
    return done
