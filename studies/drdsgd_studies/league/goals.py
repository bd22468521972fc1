"""Goals for a server-free method, and whether ours reaches them: judged by rules, as the paper's claims are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping

from drdsgd.report.statistics import Estimate, Measure
from drdsgd_studies.league.entrants import LIMIT, OURS, POOLED
from drdsgd_studies.league.plan import (
    FAILING,
    HARDSHIPS,
    LABELS,
    SOON,
    TWICE,
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
    with_fresh_seeds,
)
from drdsgd_studies.paper.pairs import FLOOR, first_rounds, points
from drdsgd_studies.shared.claims import (
    NOT_RUN,
    Claim,
    Finding,
    Verdict,
    both,
    despite,
    more,
    no_price,
    paired,
    together,
)
from drdsgd_studies.shared.plan import Group, Settings
from drdsgd_studies.shared.store import Done, diverged, ends

__all__ = ["goals", "limit"]

# the targets, in percentage points, times, and percent
NEAR, FAR, AHEAD, ALIKE, FASTER, ENOUGH, COSTS = 5.0, 25.0, 5.0, 1.0, 5.0, 50.0, 2.0
# how our method runs where links fail
WHOLE = {FAILING: "messages not compressed", TWICE: "not compressed, averaged twice per round"}


def limit(here: Mapping[str, Place]) -> Group:
    """The limit: all data in one place, and the worst mixture of devices minimised."""
    return at_equal_rounds(here[LIMIT])


def goals(s: Settings, done: Done) -> list[Claim]:
    """The goals on Fashion-MNIST, Erdős–Rényi p = 0.3, and then on CIFAR-10, with their verdicts."""
    arena = next(arena for arena in arenas(s) if arena.main)
    cifar = next(arena for arena in arenas(s) if arena.data == "CIFAR-10")
    here = places(arena, done)
    ours = at_equal_rounds(here[OURS])
    return [
        _near_the_limit(here, ours, s, done),
        _beats_the_paper(ours, s, done),
        _beats_the_others(here, s, done),
        _faster(here, s, done),
        *_hardship_goals(here[OURS], s, done),
        _with_fresh_seeds(here, s, done),
        _same_direction(cifar, done),
    ]


def reached(difference: Estimate, target: float) -> Verdict:
    """For "at least the target": `more`, but a difference clearly below the target does not hold, not even in part.

    >>> reached(Estimate(6.0, 1.0, 5), 5.0), reached(Estimate(4.0, 1.0, 5), 5.0), reached(Estimate(1.5, 0.5, 5), 5.0)
    ('holds', 'holds in part', 'does not hold')
    """
    return "does not hold" if difference.interval[1] < target else more(difference, target)


def _rivals(here: Mapping[str, Place]) -> dict[str, Place]:
    """All other server-free entrants, including our own older one."""
    return {
        name: one for name, one in here.items() if one.entrant.kind in ("without a server", "ours") and name != OURS
    }


def _difference(a: Group, b: Group, done: Done, measure: Measure) -> Estimate:
    return paired(*(ends(group.runs(done), "consensus", measure) for group in (a, b)))


def _same_direction(arena: Arena, done: Done) -> Claim:
    here, s = places(arena, done), arena.s
    ours = at_equal_rounds(here[OURS])
    others = {f"{name}, the paper's eta": group for name, group in paper_runs(s, arena.data).items()}
    others |= {name: at_equal_rounds(one) for name, one in _rivals(here).items()}

    def low(group: Group) -> bool:
        return statistics.fmean(ends(group.runs(done), "consensus", "worst").values() or [0.0]) < FLOOR

    def find(group: Group) -> Finding:
        luck = low(ours) and low(group)
        return _lead(ours, group, s, done, lambda worst, _: "cannot be told" if luck else more(worst))

    return Claim(
        f"{arena.data}: worst accuracy above the others' at equal rounds, too",
        "above each",
        f"for each: holds if the 95 % interval of the paired difference over {len(s.seeds)} seeds is above zero; it "
        f"cannot be told where both are below {FLOOR:g} % on average",
        {name: find(group) for name, group in others.items()},
    )


def _lead(
    ours: Group, other: Group, s: Settings, done: Done, judge: Callable[[Estimate, Estimate], Verdict]
) -> Finding:
    """The lead of our method in worst and average accuracy, judged by both."""
    worst, average = (_difference(ours, other, done, measure) for measure in ("worst", "average"))
    return _finding(worst, ours, other, s, done, judge(worst, average), f"average {average.format('+')}")


def _finding(
    d: Estimate, ours: Group, other: Group, s: Settings, done: Done, verdict: Verdict, note: str = ""
) -> Finding:
    """A finding on our runs against others; if some of ours diverged it holds in part at most."""
    runs = ours.runs(done)
    if not runs or not other.runs(done):
        return NOT_RUN
    return Finding(points(d, s, note), despite(diverged(runs), len(runs), verdict))


def _near_the_limit(here: Mapping[str, Place], ours: Group, s: Settings, done: Done) -> Claim:
    def below(name: str) -> Finding:
        group = at_equal_rounds(here[name])
        d = _difference(ours, group, done, "worst")
        return _finding(d, ours, group, s, done, no_price(d, NEAR))

    return Claim(
        f"worst accuracy within {NEAR:g} points of what pooled data allow",
        f"at most {NEAR:g} points below",
        f"holds if the 95 % interval of the paired difference is above -{NEAR:g}, in part if its mean is",
        {name: below(name) for name in (LIMIT, POOLED)},
    )


def _far(worst: Estimate, average: Estimate) -> Verdict:
    return both(reached(worst, FAR), no_price(average, 0.0))


def _ahead(worst: Estimate, average: Estimate) -> Verdict:
    return both(reached(worst, AHEAD), no_price(average, ALIKE))


def _beats_the_paper(ours: Group, s: Settings, done: Done) -> Claim:
    return Claim(
        f"{FAR:g} points of worst accuracy above DSGD and DR-DSGD at the paper's settings, average not lower",
        f"+{FAR:g} points",
        "holds if the 95 % intervals of both paired differences are above zero and the worst's mean is at least "
        f"{FAR:g}, in part if that mean is less, or the average's is above zero but not its interval; does not if all "
        "of the worst's interval is below",
        {name: _lead(ours, group, s, done, _far) for name, group in paper_runs(s, "Fashion-MNIST").items()},
    )


def _beats_the_others(here: Mapping[str, Place], s: Settings, done: Done) -> Claim:
    ours = reported(here[OURS], here, done)[-1]
    findings = {
        name: _lead(ours, reported(one, here, done)[-1], s, done, _ahead) for name, one in _rivals(here).items()
    }
    leads = {
        name: d
        for name in findings
        if (d := _difference(ours, reported(here[name], here, done)[-1], done, "worst")).n > 1
    }
    verdicts = [finding.verdict for finding in findings.values() if finding.verdict != "not run yet"]
    held = f"{verdicts.count('holds')} of {len(findings)} hold"
    if leads:
        nearest = min(leads, key=lambda name: leads[name].mean)
        held += f"; the least lead is {leads[nearest].format('+')} points, over {nearest}"
    if not verdicts:
        all_of = NOT_RUN
    elif len(verdicts) < len(findings):
        all_of = Finding(f"{held}; not run yet: {len(findings) - len(verdicts)}", "cannot be told")
    else:
        all_of = Finding(held, together(verdicts))
    return Claim(
        f"{AHEAD:g} points of worst accuracy above every other method without a server, at equal floats sent, average "
        f"within {ALIKE:g} point",
        f"+{AHEAD:g} points over each",
        f"for each: holds if the 95 % interval of the worst's paired difference is above zero with a mean of at least "
        f"{AHEAD:g}, and that of the average's above -{ALIKE:g}; in part if the worst's mean is less, or only the "
        f"average's mean is above; does not if all of the worst's interval is below {AHEAD:g}; for all, in part if it "
        "holds at least in part for some",
        {"all": all_of, **findings},
    )


def _faster(here: Mapping[str, Place], s: Settings, done: Done) -> Claim:
    sprinted, usual = sprint(here[OURS], done), at_equal_rounds(here[OURS])
    ours, dsgd = usual if sprinted is None else sprinted.reported, paper_runs(s, "Fashion-MNIST")["DSGD"]
    pooled = _fewer(at_equal_rounds(here[plain := "pooled data, average risk"]), dsgd, done)
    return Claim(
        f"{FASTER:g} times fewer rounds to {ENOUGH:g} % worst accuracy than DSGD at the paper's settings",
        f"{FASTER:g} times",
        f"of DSGD's rounds over ours, seed by seed (looked at every {ours.example.eval_every} rounds; one that never "
        "gets there counts with all of DSGD's): of the geometric mean's 95 % interval, does not hold if all is "
        f"below {FASTER:g}, holds if all is above 1 and the mean at least {FASTER:g}, in part if only the first is so",
        {
            "in a hurry": _soon(ours, dsgd, done, f"; {plain}: {math.exp(pooled.mean):.1f} times" if pooled.n else ""),
            "as it is": _soon(usual, dsgd, done),
        },
    )


def _fewer(ours: Group, dsgd: Group, done: Done) -> Estimate:
    """The log of DSGD's rounds over ours, paired by seed."""
    us, them = (first_rounds(group.runs(done), "consensus", ENOUGH) for group in (ours, dsgd))
    T = dsgd.example.rounds
    seeds = sorted(us.keys() & them.keys())
    return Estimate.over([math.log((them[seed] or T) / (us[seed] or T)) for seed in seeds])


def _soon(ours: Group, dsgd: Group, done: Done, beside: str = "") -> Finding:
    ratios = _fewer(ours, dsgd, done)
    if ratios.n < 2:
        return NOT_RUN
    low, high = (f"{math.exp(end):.1f}" for end in ratios.interval)
    firsts_of = {
        name: first_rounds(group.runs(done), "consensus", ENOUGH) for name, group in ((OURS, ours), ("DSGD", dsgd))
    }
    there = ", ".join(
        f"{name} in {sum(at is not None for at in firsts.values())} of {len(firsts)} seeds"
        for name, firsts in firsts_of.items()
    )
    times = f"{math.exp(ratios.mean):.1f} times fewer"
    words = f"{times} (95 %: {low} to {high}; {there} within {dsgd.example.rounds}{beside})"
    return Finding(words, reached(ratios, math.log(FASTER)))


def _with_fresh_seeds(here: Mapping[str, Place], s: Settings, done: Done) -> Claim:
    pairs = with_fresh_seeds(here, s, done)
    ours, _ = pairs[LIMIT]

    def find(name: str) -> Finding:
        one, other = pairs[name]
        if name == SOON:
            return _soon(one, other, done)
        if name in HARDSHIPS:
            return _cost(name, one, other, s, done)
        if name in (LIMIT, POOLED):
            return _lead(one, other, s, done, lambda worst, _: no_price(worst, NEAR))
        return _lead(one, other, s, done, _ahead if name in here else _far)

    return Claim(
        "the same with other seeds, with which nothing was chosen",
        "as above",
        f"seeds {ours.experiments[0].seed} to {ours.experiments[-1].seed}, nothing tuned anew, the rules of above; of "
        "the others at equal floats the nearest",
        {name: find(name) for name in pairs},
    )


def _others_average(group: Group, done: Done) -> dict[int, float]:
    """The mean accuracy of all devices except the first, which has the random labels."""
    return {
        run.experiment.seed: statistics.fmean(run.per_device["consensus"][1:])
        for run in group.runs(done)
        if run.status == "finished"
    }


def _cost(name: str, hard: Group, usual: Group, s: Settings, done: Done) -> Finding:
    """The cost of a hardship: failing links in worst accuracy, random labels in the other devices' average."""
    if name in WHOLE:
        d = _difference(hard, usual, done, "worst")
    else:
        d = paired(_others_average(hard, done), _others_average(usual, done))
    return _finding(d, hard, usual, s, done, no_price(d, COSTS))


def _hardship_goals(one: Place, s: Settings, done: Done) -> list[Claim]:
    found = {name: _cost(name, hard.group, hard.usual, s, done) for name, hard in hardships(one).items()}
    rule = f"holds if the 95 % interval of the paired difference is above -{COSTS:g}, in part if its mean is"
    return [
        Claim(
            f"20 % of links failing cost at most {COSTS:g} points of worst accuracy", f"at most {COSTS:g} points", rule,
            {of: found[name] for name, of in WHOLE.items() if name in found},
        ),
        Claim(
            f"one device with random labels costs the others at most {COSTS:g} points of average accuracy",
            f"at most {COSTS:g} points", rule,
            {"with the weight cap": found[LABELS], "without": found[UNCAPPED]},
        ),
    ]  # fmt: skip
