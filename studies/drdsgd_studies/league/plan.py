"""The experiments of the league.

All entrants have the same devices, model, batch size and rounds. On each graph each entrant is tuned over the same
number of trials, by the consensus model's worst accuracy, on validation data cut from the training set and with seeds
that are not reported. Then it runs with the reported seeds:

    at equal rounds   with the chosen settings
    at equal floats   over as many rounds as it takes to send what DSGD sends in T rounds, with the best of three step
                      sizes (pooled data, which are not sent, have as many rounds as our method)
    variants          our method with one change, also with the best of three step sizes

If a reported run fails, which shows without test data, all are run again with the best shorter step size that was
tried.

As in `drdsgd_studies.shared.plan` everything is a pure function of the settings and of the runs that are done.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drdsgd.experiments.registry import SERVERS
from drdsgd.report.headline import LEAST_WEIGHT
from drdsgd_studies.league.entrants import ENTRANTS, LIMIT, OURS, PLAIN, POOLED, Entrant
from drdsgd_studies.league.tuning import Point, Search, search
from drdsgd_studies.paper import fig4
from drdsgd_studies.paper.fair import VALIDATION
from drdsgd_studies.paper.pairs import FLOOR
from drdsgd_studies.shared.plan import DataName, Group, Settings, base, rounded, waiting
from drdsgd_studies.shared.store import Done, RunRecord, ends

__all__ = [
    "Again", "Arena", "Hardship", "Place", "arenas", "at_equal_floats", "at_equal_rounds", "attempts", "failed",
    "fresh", "groups", "hardships", "paper_runs", "place", "places", "reported", "sprint", "trial", "variants",
    "with_fresh_seeds",
]  # fmt: skip

K = 25
ROUNDS = 300
GRAPHS: dict[str, dict[str, Any]] = {
    "Erdős–Rényi, p = 0.3": {"graph": "erdos-renyi", "p": 0.3},
    "ring": {"graph": "ring"},
}
# trials of each entrant on each graph, and seeds of each trial
TRIALS: dict[DataName, int] = {"Fashion-MNIST": 12, "CIFAR-10": 6}
TUNING_SEEDS: dict[DataName, int] = {"Fashion-MNIST": 2, "CIFAR-10": 1}
# a run on CIFAR-10 takes as long as twelve on Fashion-MNIST: a handful of entrants, the first graph, three seeds
HANDFUL = ("DSGD", "AD-GDA", "QG-DSGDm, 4 bits", "QG-DSGDm, 4 bits, averaged twice", PLAIN, "DR-QGM", OURS, LIMIT)
HANDFUL_SEEDS = 3
# multiples of the step size at equal rounds, tried where something else is changed
AGAIN = (1.0, 0.5, 2.0)
# how often a shorter step may be taken because a reported run failed; and the part of its first loss below which a run
# must end, else it failed: one whose units are all dead ends at log 10, a little below its first loss
SHORTER, LEARNT = 3, 0.9
SOON = "rounds to 50 %"
# our method in few rounds, for the goal of rounds to 50 %: how many times fewer rounds, and the settings that were
# fastest on validation data with seeds that appear nowhere else
SPRINT, HURRIED = 5, {"mu": 1.0, "gossip_steps": 2}
# the nearest to our method at equal floats, compared again with seeds that chose nothing
NEAREST = ("QG-DSGDm, 4 bits", "QG-DSGDm, 4 bits, averaged twice", PLAIN, "DR-QGM")
# the graph on which goals are set
MAIN = "Erdős–Rényi, p = 0.3"
# hardships: their fields, and fields of the method, which the runs that it is compared with have, too; and of whom
FAILING, LABELS = "20 % of links fail", "one device has random labels"
TWICE, TWO = f"{FAILING}, averaged twice per round", {"gossip_steps": 2}
UNCAPPED = f"{LABELS}, weights not capped"
HARDSHIPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    FAILING: ({"link_failures": 0.2}, {}),
    TWICE: ({"link_failures": 0.2}, TWO),
    LABELS: ({"random_labels": 1}, {}),
    UNCAPPED: ({"random_labels": 1, "weight_cap": 1e6}, {}),
}
SUFFER = ("DSGD", "QG-DSGDm", "DR-QGM", OURS)
# our method with one change: what each part contributes, and what was tried in its place
VARIANTS: dict[str, dict[str, Any]] = {
    "all devices count alike": {"objective": "erm", "mu": None, "loss_smoothing": None},
    "loss not smoothed": {"loss_smoothing": 1.0},
    "weights not capped": {"weight_cap": 1e6},
    "mu falls from 1 to 0.1": {"mu": 1.0, "mu_schedule": "linear:0.1"},
    "averaged twice per round": TWO,
    "messages not compressed": {"compression": "none"},
    "gradients tracked, no Adam": {"optimizer": "gradient-tracking", "eta": None},
    "a KL ball, mu found on the way": {"objective": "kl-ball", "mu": None},
    "chi-square in place of KL": {"objective": "chi2-dro", "mu": 1.0},
    "q-FFL in place of KL": {"objective": "q-ffl", "mu": None},
    "dual ascent, as AD-GDA": {"objective": "ad-gda", "mu": None},
}
QUICK = ("DSGD", "AD-GDA", "gradient tracking", OURS, "FedAvg")


@dataclass(frozen=True)
class Arena:
    """A data set and a graph: where entrants meet."""

    data: DataName
    graph: str
    s: Settings
    entrants: tuple[Entrant, ...]

    def fields(self, entrant: Entrant) -> dict[str, Any]:
        """The fields of all runs of an entrant here."""
        here = {} if "graph" in entrant.fields else GRAPHS[self.graph]
        return {**base(self.s, self.data, K, ROUNDS, **here), "eta_schedule": "linear", **entrant.fields}

    @property
    def counted(self) -> bool:
        """Whether entrants are also compared at equal floats."""
        return self.data == "Fashion-MNIST"

    @property
    def main(self) -> bool:
        """Whether the goals are set here, and hardships tried."""
        return self.counted and self.graph == MAIN

    @property
    def trials(self) -> int:
        """The number of trials of each entrant."""
        return 3 if self.s.quick else TRIALS[self.data]


@dataclass(frozen=True)
class Place:
    """An entrant in an arena, as far as the finished runs determine it."""

    arena: Arena
    entrant: Entrant
    found: Search
    attempts: tuple[Point, ...]
    """The chosen settings, then with shorter steps as long as a reported run failed; the last counts."""

    @property
    def tuned(self) -> Point | None:
        """The settings that count; None while nothing is chosen, or if everything failed."""
        return self.attempts[-1] if self.attempts else None


def arenas(s: Settings) -> list[Arena]:
    """Fashion-MNIST on every graph, and CIFAR-10 on one with a handful; few entrants in a quick check."""
    entrants = tuple(one for one in ENTRANTS if not s.quick or one.name in QUICK or one.kind == "pooled")
    handful = tuple(one for one in entrants if one.name in HANDFUL)
    few = replace(s, seeds=s.seeds[:HANDFUL_SEEDS])
    return [
        *(Arena("Fashion-MNIST", graph, s, entrants) for graph in GRAPHS),
        Arena("CIFAR-10", MAIN, few, handful),
    ]


def trial(arena: Arena, entrant: Entrant, point: Point) -> Group:
    """The runs on validation data at a point."""
    seeds = arena.s.tuning_seeds(1 if arena.s.quick else TUNING_SEEDS[arena.data])
    fields = {**arena.fields(entrant), **point, "validation": VALIDATION}
    return Group.of(replace(arena.s, seeds=seeds), {**fields, "eval_every": fields["rounds"]})


def score(runs: Sequence[RunRecord], group: Group) -> float | None:
    """Mean worst accuracy, and a little of the average to tell equals apart; -inf where a run failed.

    Below the floor the worst accuracy is luck, and the average decides.
    """
    if len(runs) < len(group.experiments):
        return None
    if any(map(failed, runs)):
        return -math.inf
    worst, average = (ends(runs, "consensus", measure) for measure in ("worst", "average"))
    return max(FLOOR, statistics.fmean(worst.values())) + 1e-3 * statistics.fmean(average.values())


def place(arena: Arena, entrant: Entrant, done: Done) -> Place:
    """An entrant with the state of its tuning."""

    def known(point: Point) -> float | None:
        group = trial(arena, entrant, point)
        return score(group.runs(done), group)

    eta = Group.of(arena.s, arena.fields(entrant)).example.eta
    found = search({"eta": eta, **entrant.start}, entrant.all_axes, arena.trials, known)
    if found.wanted or found.best is None:
        return Place(arena, entrant, found, ())
    tried = _until_none_fails(found, lambda point: Group.of(arena.s, {**arena.fields(entrant), **point}), done)
    return Place(arena, entrant, found, tried)


def failed(run: RunRecord) -> bool:
    """Whether a run diverged, learned next to nothing, or stopped because no device has weight any more."""
    stopped = run.experiment.algorithm not in SERVERS and run.weight[-1] < LEAST_WEIGHT
    return run.status == "diverged" or stopped or not run.train_loss[-1] < LEARNT * run.train_loss[0]


def _until_none_fails(trials: Search, at: Callable[[Point], Group], done: Done) -> tuple[Point, ...]:
    """The best point; as long as a run failed, also the best with a shorter step, or half the step."""
    assert trials.best is not None
    found = [trials.best]
    while len(found) <= SHORTER and _complete(group := at(found[-1]), done) and any(map(failed, group.runs(done))):
        eta = found[-1]["eta"]
        shorter = Search([(point, score) for point, score in trials.tried if point["eta"] < eta]).best
        found.append(shorter or {**found[-1], "eta": rounded(eta / 2)})
    return tuple(found)


def attempts(one: Place) -> tuple[Group, ...]:
    """The runs at equal rounds, including those with longer steps of which some failed; the last group counts."""
    fields = one.arena.fields(one.entrant)
    tried = tuple(Group.of(one.arena.s, {**fields, **point}) for point in one.attempts)
    return tried or (at_equal_rounds(one),)


def at_equal_rounds(one: Place, **changes: Any) -> Group:
    """The reported runs, with changed fields if given."""
    arena, tuned = one.arena, one.tuned
    group = Group.of(arena.s, {**arena.fields(one.entrant), **(tuned or one.entrant.start), **changes})
    return group if tuned is not None else waiting(group)


def floats_per_round(group: Group, done: Done) -> float | None:
    """The floats that the network sends in a round, mean over seeds; None while no run is done."""
    sent = [run.floats_sent / run.rounds[-1] for run in group.runs(done) if run.rounds[-1]]
    return statistics.fmean(sent) if sent else None


def equal_rounds(one: Place, here: Mapping[str, Place], done: Done) -> int | None:
    """The number of rounds in which an entrant sends what DSGD sends in T rounds; None while that is not known.

    Nothing is sent of pooled data: they have as many rounds as our method.
    """
    one, dsgd = here[OURS] if one.entrant.kind == "pooled" else one, here["DSGD"]
    sent = [floats_per_round(at_equal_rounds(each), done) for each in (one, dsgd)]
    if sent[0] is None or sent[1] is None or not all(_complete(at_equal_rounds(each), done) for each in (one, dsgd)):
        return None
    usual: int = one.arena.fields(one.entrant)["rounds"]
    return max(1, round(usual * sent[1] / sent[0]))


@dataclass(frozen=True)
class Again:
    """An entrant with something changed: trials of its step size on validation data, and the reported runs."""

    trials: tuple[Group, ...]
    attempts: tuple[Group, ...]
    """With the best step size, then with shorter ones as long as a run failed; the last group counts."""

    @property
    def reported(self) -> Group:
        """The runs that count."""
        return self.attempts[-1]


def again(one: Place, tuned: Point, done: Done, **changes: Any) -> Again:
    """The chosen settings with these changes, and the best of three step sizes."""
    arena, changed = one.arena, {**tuned, **changes}
    if changed["eta"] is None:  # another method: begin at its own default
        changed["eta"] = Group.of(arena.s, {**arena.fields(one.entrant), **changed}).example.eta
    points = [{**changed, "eta": rounded(m * changed["eta"])} for m in AGAIN]
    trials = tuple(trial(arena, one.entrant, point) for point in points)
    scores = [score(group.runs(done), group) for group in trials]

    def at(point: Point) -> Group:
        fields = {**arena.fields(one.entrant), **point}
        return Group.of(arena.s, {**fields, "eval_every": changes.get("eval_every", max(1, fields["rounds"] // 30))})

    found = Search([(point, value) for point, value in zip(points, scores, strict=True) if value is not None])
    if len(found.tried) < len(points):
        return Again(trials, (waiting(at(points[0])),))
    if found.best is None:  # all failed: from the shortest step on
        found = Search([(min(points, key=lambda point: point["eta"]), 0.0)])
    return Again(trials, tuple(map(at, _until_none_fails(found, at, done))))


def at_equal_floats(one: Place, here: Mapping[str, Place], done: Done) -> Again | None:
    """An entrant at equal floats; None while that is not known, or if its rounds differ by less than 2 %."""
    rounds, tuned = equal_rounds(one, here, done), one.tuned
    usual = one.arena.fields(one.entrant)["rounds"]
    if rounds is None or tuned is None or abs(rounds / usual - 1) < 0.02:
        return None
    # the batch size is that of the usual rounds
    return again(one, tuned, done, rounds=rounds, batch_size=at_equal_rounds(one).example.batch_size)


def sprint(one: Place, done: Done) -> Again | None:
    """Our method in few rounds, with step sizes that decay to zero in fewer rounds; None before it is tuned."""
    if one.tuned is None:
        return None
    usual = at_equal_rounds(one).example  # evaluated as often, because that decides which round is the first
    changes = {**HURRIED, "rounds": max(1, usual.rounds // SPRINT), "batch_size": usual.batch_size}
    return again(one, one.tuned, done, eval_every=min(usual.eval_every, changes["rounds"]), **changes)


def variants(one: Place, done: Done) -> dict[str, Again]:
    """Variants of our method at equal rounds; none before it is tuned."""
    return {} if one.tuned is None else {name: again(one, one.tuned, done, **how) for name, how in VARIANTS.items()}


def reported(one: Place, here: Mapping[str, Place], done: Done) -> tuple[Group, ...]:
    """The attempts at equal floats; those at equal rounds if the two are the same."""
    if equal_rounds(one, here, done) is None:
        return (waiting(at_equal_rounds(one)),)
    at_floats = at_equal_floats(one, here, done)
    return attempts(one) if at_floats is None else at_floats.attempts


def paper_runs(s: Settings, data: DataName) -> dict[str, Group]:
    """DSGD and DR-DSGD at the paper's settings, as in fig4: K = 25, p = 0.3, mu = 6."""
    first = next(iter(fig4.cases(s, data).values()))
    return replace(first, fields=base(s, data, K, ROUNDS, **GRAPHS[MAIN])).pair(s)


def places(arena: Arena, done: Done) -> dict[str, Place]:
    """All entrants of an arena, by name."""
    return {entrant.name: place(arena, entrant, done) for entrant in arena.entrants}


def fresh(group: Group) -> Group:
    """The same group with as many other seeds, which follow the largest."""
    seeds = [e.seed for e in group.experiments]
    other = range(max(seeds) + 1, max(seeds) + 1 + len(seeds))
    return Group(
        tuple(e.model_copy(update={"seed": n}) for e, n in zip(group.experiments, other, strict=True)), group.ready
    )


def with_fresh_seeds(here: Mapping[str, Place], s: Settings, done: Done) -> dict[str, tuple[Group, Group]]:
    """Pairs of our method and what it is compared with, with fresh seeds.

    These are pooled data, the paper's settings, the nearest at equal floats, our method without the hardship, and for
    speed DSGD at the paper's settings.
    """
    ours, counted = at_equal_rounds(here[OURS]), reported(here[OURS], here, done)[-1]
    pairs = {name: (ours, at_equal_rounds(here[name])) for name in (LIMIT, POOLED)}
    pairs |= {f"{name}, the paper's eta": (ours, group) for name, group in paper_runs(s, "Fashion-MNIST").items()}
    pairs |= {name: (counted, reported(here[name], here, done)[-1]) for name in NEAREST if name in here}
    hard, sprinted = hardships(here[OURS]), sprint(here[OURS], done)
    pairs |= {name: (hard[name].group, hard[name].usual) for name in (FAILING, TWICE, LABELS) if name in hard}
    if sprinted:
        pairs[SOON] = (sprinted.reported, paper_runs(s, "Fashion-MNIST")["DSGD"])
    return {name: (fresh(one), fresh(other)) for name, (one, other) in pairs.items()}


@dataclass(frozen=True)
class Hardship:
    """An entrant's reported runs under a hardship, and the runs without it that they are compared with."""

    group: Group
    usual: Group


def hardships(one: Place) -> dict[str, Hardship]:
    """The hardships of an entrant, with the settings chosen at equal rounds; those without effect are left out.

    Compressed messages need the same W in every round. So where links fail they are not compressed, nor are they in the
    runs for comparison.
    """
    usual = at_equal_rounds(one).example
    whole = {"compression": "none"} if usual.compression else {}

    def bearing(happens: Mapping[str, Any], beside: Mapping[str, Any]) -> Hardship:
        both = {**beside, **(whole if "link_failures" in happens else {})}
        return Hardship(at_equal_rounds(one, **both, **happens), at_equal_rounds(one, **both))

    def does_something(happens: Mapping[str, Any], beside: Mapping[str, Any]) -> bool:
        had = beside and all(getattr(usual, name) == value for name, value in beside.items())
        return not had and (usual.weight_cap is not None or "weight_cap" not in happens)

    return {
        name: bearing(*fields)
        for name, fields in HARDSHIPS.items()
        if one.entrant.name in SUFFER and does_something(*fields)
    }


def groups(s: Settings, done: Done) -> list[Group]:
    """All runs of the league, as far as the finished runs determine them."""
    found: list[Group] = []
    for arena in arenas(s):
        here = places(arena, done)
        found += paper_runs(arena.s, arena.data).values()
        for one in here.values():
            found += [trial(arena, one.entrant, point) for point, _ in one.found.tried]
            found += [trial(arena, one.entrant, point) for point in one.found.wanted]
            found += attempts(one)
            for hard in hardships(one).values() if arena.main else ():
                found += [hard.usual, hard.group]
            at_floats = at_equal_floats(one, here, done) if arena.counted else None
            found += [] if at_floats is None else [*at_floats.trials, *at_floats.attempts]
        if arena.main:
            sprinted = sprint(here[OURS], done)
            found += [] if sprinted is None else [*sprinted.trials, *sprinted.attempts]
            found += itertools.chain.from_iterable(with_fresh_seeds(here, arena.s, done).values())
            for other in variants(here[OURS], done).values():
                found += [*other.trials, *other.attempts]
    return found


def _complete(group: Group, done: Done) -> bool:
    return group.ready and all(e in done for e in group.experiments)
