"""What a method without a server should reach, and whether ours does: judged by rules, as the paper's claims are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping

from drdsgd.league.entrants import OURS
from drdsgd.league.plan import (
    FAILING,
    LABELS,
    UNCAPPED,
    Arena,
    Place,
    arenas,
    at_equal_rounds,
    hardships,
    paper_runs,
    places,
    reported,
    sprint,
)
from drdsgd.paper.claims import NOT_RUN, Claim, Finding, Verdict, both, despite, more, no_price, paired, together
from drdsgd.paper.pairs import first_round, points
from drdsgd.paper.plan import Group, Settings
from drdsgd.paper.store import Done, diverged, ends
from drdsgd.summary import Estimate, Measure

__all__ = ["goals", "limit"]

LIMIT = "pooled data, group DRO"
# what is asked for, in percentage points, times, and percent
NEAR, FAR, AHEAD, ALIKE, FASTER, ENOUGH, COSTS = 5.0, 25.0, 5.0, 1.0, 5.0, 50.0, 2.0


def limit(here: Mapping[str, Place]) -> Group:
    """What is possible at all: all data in one place, and the worst mixture of devices minimised."""
    return at_equal_rounds(here[LIMIT])


def goals(s: Settings, done: Done) -> list[Claim]:
    """What was to be reached on Fashion-MNIST, Erdős–Rényi p = 0.3, and what came of it; and CIFAR-10 after it."""
    arena = next(arena for arena in arenas(s) if arena.main)
    cifar = next(arena for arena in arenas(s) if arena.data == "CIFAR-10")
    here = places(arena, done)
    ours = at_equal_rounds(here[OURS])
    return [
        _near_the_limit(here, ours, s, done),
        _beats_the_paper(ours, s, done),
        _beats_the_others(here, s, done),
        _faster(here[OURS], s, done),
        *_hardship_goals(here[OURS], s, done),
        _same_direction(cifar, done),
    ]


def _difference(a: Group, b: Group, done: Done, measure: Measure) -> Estimate:
    return paired(*(ends(group.runs(done), "consensus", measure) for group in (a, b)))


def _same_direction(arena: Arena, done: Done) -> Claim:
    here, s = places(arena, done), arena.s
    ours = at_equal_rounds(here[OURS])
    others = {f"{name}, the paper's eta": group for name, group in paper_runs(s, arena.data).items()}
    others |= {name: at_equal_rounds(one) for name, one in here.items() if one.entrant.kind == "without a server"}
    return Claim(
        f"{arena.data}: worst accuracy above the others' at equal rounds, too", "above each",
        f"for each: holds if the 95 % interval of the paired difference over {len(s.seeds)} seeds is above zero",
        {name: _lead(ours, group, s, done, lambda worst, _: more(worst)) for name, group in others.items()},
    )  # fmt: skip


def _lead(
    ours: Group, other: Group, s: Settings, done: Done, judge: Callable[[Estimate, Estimate], Verdict]
) -> Finding:
    """How far ours is ahead in worst accuracy, and in the average; judged by both."""
    worst, average = (_difference(ours, other, done, measure) for measure in ("worst", "average"))
    return _finding(worst, ours, other, s, done, judge(worst, average), f"average {average.format('+')}")


def _finding(
    d: Estimate, ours: Group, other: Group, s: Settings, done: Done, verdict: Verdict, note: str = ""
) -> Finding:
    """A finding on our runs against others'; where some of ours diverged it holds in part at most."""
    runs = ours.runs(done)
    if not runs or not other.runs(done):
        return NOT_RUN
    return Finding(points(d, s, note), despite(diverged(runs), len(runs), verdict))


def _near_the_limit(here: Mapping[str, Place], ours: Group, s: Settings, done: Done) -> Claim:
    d = _difference(ours, limit(here), done, "worst")
    return Claim(
        f"worst accuracy within {NEAR:g} points of what pooled data allow",
        f"at most {NEAR:g} points below",
        f"holds if the 95 % interval of the paired difference is above -{NEAR:g}, in part if its mean is",
        {"worst": _finding(d, ours, limit(here), s, done, no_price(d, NEAR))},
    )


def _beats_the_paper(ours: Group, s: Settings, done: Done) -> Claim:
    def judge(worst: Estimate, average: Estimate) -> Verdict:
        return both(more(worst, FAR), no_price(average, 0.0))

    return Claim(
        f"{FAR:g} points of worst accuracy above DSGD and DR-DSGD at the paper's settings, average not lower",
        f"+{FAR:g} points",
        "holds if the 95 % intervals of both paired differences are above zero and the worst's mean is at least "
        f"{FAR:g}, in part if that mean is less, or the average's is above zero but not its interval",
        {name: _lead(ours, group, s, done, judge) for name, group in paper_runs(s, "Fashion-MNIST").items()},
    )


def _beats_the_others(here: Mapping[str, Place], s: Settings, done: Done) -> Claim:
    ours = reported(here[OURS], here["DSGD"], done)[-1]

    def judge(worst: Estimate, average: Estimate) -> Verdict:
        return both(more(worst, AHEAD), no_price(average, ALIKE))

    findings = {
        name: _lead(ours, reported(one, here["DSGD"], done)[-1], s, done, judge)
        for name, one in here.items()
        if one.entrant.kind == "without a server"
    }
    verdicts = [finding.verdict for finding in findings.values() if finding.verdict != "not run yet"]
    held = f"{verdicts.count('holds')} of {len(findings)} hold"
    if not verdicts:
        all_of = NOT_RUN
    elif len(verdicts) < len(findings):
        all_of = Finding(f"{held}, {len(findings) - len(verdicts)} are not run yet", "cannot be told")
    else:
        all_of = Finding(held, together(verdicts))
    return Claim(
        f"{AHEAD:g} points of worst accuracy above every other method without a server, at equal floats sent, average "
        f"within {ALIKE:g} point",
        f"+{AHEAD:g} points over each",
        f"for each: holds if the 95 % interval of the worst's paired difference is above zero with a mean of at least "
        f"{AHEAD:g}, and that of the average's above -{ALIKE:g}; in part if the worst's mean is less, or only the "
        "average's mean is above; for all, in part if it holds at least in part for some",
        {"all": all_of, **findings},
    )


def _faster(one: Place, s: Settings, done: Done) -> Claim:
    sprinted = sprint(one, done)
    ours = at_equal_rounds(one) if sprinted is None else sprinted.reported
    dsgd = paper_runs(s, "Fashion-MNIST")["DSGD"]
    us, them = (
        {run.experiment.seed: first_round(run, "consensus", ENOUGH) for run in group.runs(done)}
        for group in (ours, dsgd)
    )
    seeds, T = sorted(us.keys() & them.keys()), dsgd.example.rounds
    ratios = Estimate.over([math.log((them[seed] or T) / (us[seed] or T)) for seed in seeds])
    low, high = (f"{math.exp(end):.1f}" for end in ratios.interval)
    there = ", ".join(f"{name} in {sum(found[seed] is not None for seed in seeds)} of {len(seeds)} seeds"
                      for name, found in ((OURS, us), ("DSGD", them)))  # fmt: skip
    words = f"{math.exp(ratios.mean):.1f} times fewer (95 %: {low} to {high}; {there} within {T})"
    return Claim(
        f"{FASTER:g} times fewer rounds to {ENOUGH:g} % worst accuracy than DSGD at the paper's settings",
        f"{FASTER:g} times",
        f"of DSGD's rounds over ours, which has {ours.example.rounds} and falling steps made for so many, seed by seed "
        "(a run that never gets there counts with all of DSGD's), by the 95 % "
        f"interval of the geometric mean: holds if it is above 1 and the mean at least {FASTER:g}, in part if only the "
        f"first is so, does not if it is below {FASTER:g}",
        {"worst": Finding(words, more(ratios, math.log(FASTER))) if ratios.n > 1 else NOT_RUN},
    )


def _hardship_goals(one: Place, s: Settings, done: Done) -> list[Claim]:
    hard = hardships(one)

    def others_average(group: Group) -> dict[int, float]:
        """The mean accuracy of all devices but the first, which has the random labels."""
        runs = group.runs(done)
        return {
            run.experiment.seed: statistics.fmean(run.per_device["consensus"][1:])
            for run in runs
            if run.status == "finished"
        }

    def cost(name: str, of: Callable[[Group], Mapping[int, float]]) -> Finding:
        if name not in hard:
            return NOT_RUN
        bearing = hard[name]
        d = paired(of(bearing.group), of(bearing.usual))
        return _finding(d, bearing.group, bearing.usual, s, done, no_price(d, COSTS))

    rule = f"holds if the 95 % interval of the paired difference is above -{COSTS:g}, in part if its mean is"
    return [
        Claim(
            f"20 % of links failing cost at most {COSTS:g} points of worst accuracy", f"at most {COSTS:g} points", rule,
            {"worst": cost(FAILING, lambda group: ends(group.runs(done), "consensus", "worst"))},
        ),
        Claim(
            f"one device with random labels costs the others at most {COSTS:g} points of average accuracy",
            f"at most {COSTS:g} points", rule,
            {"with the weight cap": cost(LABELS, others_average), "without": cost(UNCAPPED, others_average)},
        ),
    ]  # fmt: skip
