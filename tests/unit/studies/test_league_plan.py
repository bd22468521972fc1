"""The league's runs: the same budget for all, no test data in tuning, equal floats by what was counted."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from drdsgd.core.algorithms import Algorithm
from drdsgd.experiments.build import make_algorithm, make_graph, make_mixing
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.registry import SERVERS
from drdsgd_studies.league import goals, plan
from drdsgd_studies.league.entrants import ENTRANTS, LIMIT, OURS, POOLED, Entrant
from drdsgd_studies.league.plan import Place
from drdsgd_studies.shared.claims import Finding
from drdsgd_studies.shared.plan import Group, Settings
from drdsgd_studies.shared.store import Done, RunRecord
from tests.support.league import ARENA, BY_NAME, S, finished, tuned
from tests.support.made import run_record

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("entrant", ENTRANTS, ids=lambda entrant: entrant.name)
def test_every_entrant_is_an_experiment_that_can_be(entrant: Entrant) -> None:
    for arena in plan.arenas(S):
        if entrant not in arena.entrants:
            assert arena.data == "CIFAR-10" and entrant.name not in plan.HANDFUL
            continue
        e = Group.of(S, {**arena.fields(entrant), **entrant.start}).example
        algorithm, mixing = make_algorithm(e), make_mixing(e, make_graph(e))
        assert isinstance(algorithm, Algorithm) == (e.algorithm not in SERVERS)
        if isinstance(algorithm, Algorithm):
            algorithm.check(mixing)
        assert (e.devices, e.rounds, e.batch_size, e.shards) == (25, 300, 87, 2)


def test_entrants_differ() -> None:
    assert len(BY_NAME) == len(ENTRANTS)
    assert len({Group.of(S, {**ARENA.fields(one), **one.start}).example for one in ENTRANTS}) == len(ENTRANTS)


def test_all_have_the_same_trials_and_none_sees_test_data_or_a_reported_seed() -> None:
    names = ["DSGD", "AD-GDA", OURS, "FedAvg"]
    done = tuned(names, {})
    for name in names:
        one = plan.place(ARENA, BY_NAME[name], done)
        assert len(one.found.tried) == ARENA.trials and one.tuned is not None
        for point, _ in one.found.tried:
            for e in plan.trial(ARENA, one.entrant, point).experiments:
                assert e.validation is not None and e.seed not in S.seeds
        for e in plan.at_equal_rounds(one).experiments:
            assert e.validation is None and e.seed in S.seeds
            assert e.eta == one.tuned["eta"]


def test_before_it_is_tuned_an_entrant_has_no_reported_runs() -> None:
    one = plan.place(ARENA, BY_NAME["DSGD"], {})
    assert one.tuned is None and not plan.at_equal_rounds(one).ready
    assert all(not group.runs({}) for group in plan.groups(S, {}))


def sending(name: str, floats: int, done: Done) -> tuple[Place, dict[str, Place], dict[Experiment, RunRecord]]:
    """An entrant that sends so much per round, beside DSGD, which sends 1000; and all places."""
    here = plan.places(ARENA, done)
    return here[name], here, {**done, **finished(plan.at_equal_rounds(here[name]), 50.0, floats)}


def test_equal_floats_are_more_rounds_where_less_is_sent() -> None:
    done = tuned(["DSGD", "CHOCO-SGD, 4 bits", "gradient tracking", "QG-DSGDm"], {})
    for name, floats, rounds in (("CHOCO-SGD, 4 bits", 125, 2400), ("gradient tracking", 2000, 150)):
        one, here, known = sending(name, floats, done)
        at_floats = plan.at_equal_floats(one, here, known)
        assert at_floats is not None and at_floats.reported.example.rounds == rounds
        assert not at_floats.reported.ready and len(at_floats.trials) == 3
        etas = [group.example.eta for group in at_floats.trials]
        for group, worst in zip(at_floats.trials, (10.0, 30.0, 20.0), strict=True):
            known |= finished(group, worst)
        (chosen,) = plan.reported(one, here, known)
        assert chosen.ready and chosen.example.eta == etas[1]
        assert (chosen.example.rounds, chosen.example.batch_size) == (rounds, 87)
    one, here, known = sending("QG-DSGDm", 1001, done)
    assert plan.at_equal_floats(one, here, known) is None
    assert plan.reported(one, here, known) == (plan.at_equal_rounds(one),)


def test_pooled_data_have_as_many_rounds_as_ours_at_equal_floats() -> None:
    done = tuned(["DSGD", OURS, LIMIT], {})
    _, here, known = sending(OURS, 250, done)
    again = plan.at_equal_floats(here[LIMIT], here, known)
    assert again is not None and again.reported.example.rounds == 1200
    assert again.reported.example.graph == "complete"


def test_where_a_run_fails_all_are_run_again_with_shorter_steps() -> None:
    done = tuned(["DSGD"], {})
    eta = plan.at_equal_rounds(plan.place(ARENA, BY_NAME["DSGD"], done)).example.eta
    known = {point["eta"]: score for point, score in plan.place(ARENA, BY_NAME["DSGD"], done).found.tried}
    for times in range(1, 6):
        group = plan.at_equal_rounds(plan.place(ARENA, BY_NAME["DSGD"], done))
        first, second = (run_record(e, [80.0] * e.devices) for e in group.experiments)
        # one whose units are all dead ends a little below where it began
        dead = [*second.train_loss[:-1], 0.95 * second.train_loss[0]]
        fails = replace(second, status="diverged") if times % 2 else replace(second, train_loss=dead)
        assert plan.failed(fails) and not plan.failed(first)
        assert plan.failed(replace(first, weight=[*first.weight[:-1], 0.05]))  # nobody takes a step any more
        done |= {first.experiment: first, second.experiment: fails}
        one = plan.place(ARENA, BY_NAME["DSGD"], done)
        tried = plan.attempts(one)
        assert len(tried) == 1 + min(times, plan.SHORTER)  # then it counts as it is
        assert plan.at_equal_rounds(one) == tried[-1] and set(tried) <= set(plan.groups(S, done))
        for longer, shorter in itertools.pairwise(group.example.eta for group in tried):
            below = {eta: score for eta, score in known.items() if eta < longer}
            assert shorter == max(below, key=below.__getitem__) if below else shorter == pytest.approx(longer / 2)
    assert tried[0].example.eta == eta and tried[1].example.eta > 0.6 * eta


def test_with_other_rounds_a_shorter_step_is_taken_too_where_a_run_fails() -> None:
    done = tuned(["DSGD", "gradient tracking"], {})
    one, here, known = sending("gradient tracking", 2000, done)
    first = plan.at_equal_floats(one, here, known)
    assert first is not None
    for group, worst in zip(first.trials, (30.0, 20.0, 10.0), strict=True):
        known |= finished(group, worst)
    for n in (0, 1, 2):  # that of equal rounds, half of it, which was tried, and half of that, which was not
        tried = plan.reported(one, here, known)
        assert len(tried) == n + 1
        assert tried[-1].example.eta == pytest.approx(first.trials[0].example.eta / 2**n, rel=0.02)
        known |= {e: replace(run_record(e, [80.0] * e.devices), status="diverged") for e in tried[-1].experiments}


def test_a_trial_that_learns_nothing_is_not_chosen_and_leads_to_shorter_steps() -> None:
    entrant, known = BY_NAME["DSGD"], dict[Experiment, RunRecord]()
    for _ in range(2):  # whatever accuracy it has by luck
        for point in plan.place(ARENA, entrant, known).found.wanted:
            for e in plan.trial(ARENA, entrant, point).experiments:
                run = run_record(e, [80.0] * e.devices)
                known[e] = replace(run, train_loss=[*run.train_loss[:-1], 0.95 * run.train_loss[0]])
    found = plan.place(ARENA, entrant, known).found
    assert found.best is None and len(found.tried) == 5
    assert [point["eta"] for point in found.wanted] < [min(point["eta"] for point, _ in found.tried)]


def test_where_every_trial_diverges_the_shortest_step_is_run() -> None:
    done = tuned(["DSGD", "gradient tracking"], {})
    one, here, known = sending("gradient tracking", 2000, done)
    first = plan.at_equal_floats(one, here, known)
    assert first is not None
    for group in first.trials:
        known |= {e: replace(run_record(e, [80.0] * e.devices), status="diverged") for e in group.experiments}
    (only,) = plan.reported(one, here, known)
    assert only.ready and only.example.eta == min(group.example.eta for group in first.trials)


@pytest.mark.parametrize("name", plan.VARIANTS)
def test_a_variant_is_ours_with_one_thing_in_another_way_and_a_step_of_its_own(name: str) -> None:
    one = plan.place(ARENA, BY_NAME[OURS], tuned([OURS], {}))
    usual, variant = plan.at_equal_rounds(one).example, plan.variants(one, {})[name]
    assert not variant.reported.ready
    done: dict[Experiment, RunRecord] = {}
    for group, worst in zip(variant.trials, (10.0, 30.0, 20.0), strict=True):
        assert all(e.validation is not None and e.seed not in S.seeds for e in group.experiments)
        done |= finished(group, worst)
    chosen = plan.variants(one, done)[name].reported
    assert chosen.ready and chosen.example.eta == variant.trials[1].example.eta
    changed = {key for key, value in chosen.example if value != getattr(usual, key)} - {"eta"}
    assert {*plan.VARIANTS[name]} - {"eta"} <= changed and chosen.example.rounds == usual.rounds
    algorithm = make_algorithm(chosen.example)
    assert isinstance(algorithm, Algorithm)
    algorithm.check(make_mixing(chosen.example, make_graph(chosen.example)))


def test_before_ours_is_tuned_it_has_no_variants() -> None:
    assert plan.variants(plan.place(ARENA, BY_NAME[OURS], {}), {}) == {}


def test_hardships_are_of_the_tuned_method() -> None:
    done = tuned([OURS, "DSGD"], {})
    hard = plan.hardships(plan.place(ARENA, BY_NAME[OURS], done))
    assert list(hard) == list(plan.HARDSHIPS)
    for one in hard.values():  # can be had together, and differs from what it is held against by the hardship alone
        e = one.group.example
        algorithm, mixing = make_algorithm(e), make_mixing(e, make_graph(e))
        assert isinstance(algorithm, Algorithm)
        algorithm.check(mixing)
        changed = {key for key, value in e if value != getattr(one.usual.example, key)}
        assert changed <= {"link_failures", "random_labels", "weight_cap"}
    assert hard[plan.FAILING].group.example.link_failures == 0.2
    assert hard[plan.UNCAPPED].group.example.weight_cap == 1e6
    assert hard[plan.TWICE].group.example.gossip_steps == hard[plan.TWICE].usual.example.gossip_steps == 2
    assert list(plan.hardships(plan.place(ARENA, BY_NAME["DSGD"], done))) == [plan.FAILING, plan.TWICE, plan.LABELS]
    # it averages twice anyway
    assert plan.TWICE not in plan.hardships(plan.place(ARENA, BY_NAME["DR-QGM"], done))
    assert plan.hardships(plan.place(ARENA, BY_NAME["FedAvg"], done)) == {}


# ---------------------------------------------------------------------------------------------- goals


def verdicts(done: Done) -> dict[str, str]:
    """The first finding of each goal."""
    return {claim.text[:12]: next(iter(claim.findings.values())).verdict for claim in goals.goals(S, done)}


def test_without_runs_no_goal_is_judged() -> None:
    assert set(verdicts({}).values()) == {"not run yet"}


def test_goals_that_are_reached_and_that_are_not() -> None:
    everybody = [one.name for one in ENTRANTS if one.kind in ("without a server", "ours", "pooled")]
    chosen = tuned(everybody, {})

    def ending(worst: dict[str, float]) -> dict[Experiment, RunRecord]:
        runs: dict[Experiment, RunRecord] = {}
        for name in everybody:
            runs |= finished(plan.at_equal_rounds(plan.place(ARENA, BY_NAME[name], chosen)), worst[name])
        return {**chosen, **runs}

    worst = {OURS: 70.0, LIMIT: 72.0, POOLED: 80.0}
    for lead, verdict in ((20.0, "holds"), (2.0, "does not hold"), (-5.0, "does not hold")):  # no seed differs
        done = ending({**dict.fromkeys(everybody, 70.0 - lead), **worst})
        for name, group in plan.paper_runs(S, "Fashion-MNIST").items():
            done |= finished(group, 30.0 if name == "DSGD" else 60.0)
        found = goals.goals(S, done)
        near, paper, others = (list(claim.findings.values()) for claim in found[:3])
        assert [finding.verdict for finding in near] == ["holds", "does not hold"]
        assert [finding.verdict for finding in paper] == ["holds", "does not hold"]
        assert others[0].verdict == verdict and len(others) == 25
    far = ending({**dict.fromkeys(everybody, 50.0), **worst, OURS: 40.0})
    assert goals.goals(S, far)[0].findings[LIMIT].verdict == "does not hold"


def test_random_labels_are_judged_by_the_other_devices() -> None:
    done = tuned([OURS], {OURS: 70.0})
    one = plan.place(ARENA, BY_NAME[OURS], done)
    hard = plan.hardships(one)
    usual = plan.at_equal_rounds(one)
    done |= {e: run_record(e, [80.0, 70.0, *[80.0] * 23]) for e in usual.experiments}
    done |= {e: run_record(e, [80.0, 60.0, *[80.0] * 23]) for e in hard[plan.FAILING].usual.experiments}
    done |= {e: run_record(e, [0.0, 70.0, *[79.0] * 23]) for e in hard[plan.LABELS].group.experiments}
    done |= {e: run_record(e, [0.0, 20.0, *[60.0] * 23]) for e in hard[plan.UNCAPPED].group.experiments}
    done |= {e: run_record(e, [80.0, 75.0, *[80.0] * 23]) for e in hard[plan.TWICE].usual.experiments}
    done |= {e: run_record(e, [80.0, 72.0, *[80.0] * 23]) for e in hard[plan.TWICE].group.experiments}
    for worst, verdict in ((55.0, "does not hold"), (59.0, "holds")):  # of 60, those not compressed, not 70
        done |= {e: run_record(e, [80.0, worst, *[80.0] * 23]) for e in hard[plan.FAILING].group.experiments}
        *_, failing, labels, _, _ = goals.goals(S, done)
        assert failing.findings["messages not compressed"].verdict == verdict
        assert failing.findings["not compressed, averaged twice per round"].verdict == "does not hold"  # of 75
    assert [finding.verdict for finding in labels.findings.values()] == ["holds", "does not hold"]


def claim_of(done: Done) -> Finding:
    """On how many rounds ours needs."""
    claim = goals.goals(S, done)[3]
    assert claim.paper == "5 times"
    return claim.findings["in a hurry"]


@pytest.mark.parametrize(
    ("ours", "dsgd", "verdict"), [(2, None, "holds"), (2, 5, "does not hold"), (None, 5, "does not hold")]
)
def test_rounds_to_fifty_percent(ours: int | None, dsgd: int | None, verdict: str) -> None:
    """A run that never gets there counts with all of its rounds."""
    done = tuned([OURS], {})

    def reaching(group: Group, at: int | None) -> dict[Experiment, RunRecord]:
        """Runs that are at 60 % from that evaluation on."""
        runs = {}
        for e in group.experiments:
            run = run_record(e, [60.0] * e.devices)
            worst = [0.0 if at is None or n < at else 60.0 for n in range(len(run.rounds))]
            run.curves["consensus"]["worst"] = worst
            runs[e] = run
        return runs

    one = plan.place(ARENA, BY_NAME[OURS], done)
    assert claim_of(done).verdict == "not run yet"
    for group in (sprinted := plan.sprint(one, done) or pytest.fail("it is tuned")).trials:
        assert group.example.rounds == 60 and group.example.batch_size == 87
        done |= finished(group, 50.0)
    done |= reaching((plan.sprint(one, done) or sprinted).reported, ours)
    done |= reaching(plan.paper_runs(S, "Fashion-MNIST")["DSGD"], dsgd)
    assert claim_of(done).verdict == verdict


def test_where_some_of_our_runs_diverge_a_goal_is_reached_in_part_at_most() -> None:
    done = tuned([OURS, LIMIT], {OURS: 70.0, LIMIT: 70.0})
    assert goals.goals(S, done)[0].findings[LIMIT].verdict == "holds"
    tried = 0
    while (group := plan.at_equal_rounds(plan.place(ARENA, BY_NAME[OURS], done))).experiments[
        0
    ] not in done or not tried:
        done |= finished(group, 70.0)
        e = group.experiments[1]
        done[e] = replace(done[e], status="diverged")
        tried += 1
    assert goals.goals(S, done)[0].findings[LIMIT].verdict != "holds"


def test_fresh_seeds_are_none_that_were_looked_at_and_nothing_else_differs() -> None:
    everybody = [one.name for one in ENTRANTS if one.kind in ("ours", "pooled") or one.name in ("DSGD", *plan.NEAREST)]
    done = tuned(everybody, {})
    here = plan.places(ARENA, done)
    for group in (plan.sprint(here[OURS], done) or pytest.fail("it is tuned")).trials:
        done |= finished(group, 50.0)
    pairs = plan.with_fresh_seeds(here, S, done)
    papers = [f"{name}, the paper's eta" for name in ("DSGD", "DR-DSGD")]
    assert list(pairs) == [LIMIT, POOLED, *papers, *plan.NEAREST, plan.FAILING, plan.TWICE, plan.LABELS, plan.SOON]
    for name, (one, other) in pairs.items():
        assert [e.seed for e in one.experiments] == [e.seed for e in other.experiments] == [2, 3]
        known = [group.example for group in plan.groups(S, done) if group.example.seed == 0]
        for group in (one, other):  # the same as with the seeds that are reported
            assert group.ready and group.example.model_copy(update={"seed": 0}) in known
            assert group in plan.groups(S, done), name
    for one, other in list(pairs.values())[:8]:
        done |= finished(one, 70.0) | finished(other, 60.0)
    for worst, name in ((69.0, plan.FAILING), (60.0, plan.TWICE), (20.0, plan.LABELS)):
        hard, usual = pairs[name]
        done |= finished(usual, 70.0) | finished(hard, worst)
    soon, dsgd = pairs[plan.SOON]
    done |= finished(soon, 60.0) | finished(dsgd, 60.0)
    claim = goals.goals(S, done)[-2]
    assert "seeds 2 to 3" in claim.rule
    # ours is over in a fifth of the rounds
    expected = (
        ["holds"] * 2 + ["does not hold"] * 2 + ["holds"] * 4 + ["holds", "does not hold", "does not hold", "holds"]
    )
    assert [finding.verdict for finding in claim.findings.values()] == expected


def test_cifar_goes_with_a_handful_and_fewer_seeds() -> None:
    *_, arena = plan.arenas(Settings())
    assert arena.data == "CIFAR-10" and arena.s.seeds == (0, 1, 2) and not arena.main
    assert {one.name for one in arena.entrants} == set(plan.HANDFUL)
    done = tuned(list(plan.HANDFUL), {OURS: 60.0}, arena)
    for name, group in plan.paper_runs(arena.s, arena.data).items():
        done |= finished(group, 70.0 if name == "DSGD" else 50.0)
    findings = goals.goals(Settings(), done)[-1].findings
    assert findings["DSGD, the paper's eta"].verdict == "does not hold"
    assert all(finding.verdict == "holds" for name, finding in findings.items() if name != "DSGD, the paper's eta")
    assert len(findings) == 8
