"""The fair comparison: what is chosen, on which data, and what follows from what."""

from __future__ import annotations

from typing import Literal

import pytest

from drdsgd.experiments.config import Experiment
from drdsgd_studies.paper import fair
from drdsgd_studies.paper.parts import PARTS
from drdsgd_studies.shared.plan import Group, Settings
from drdsgd_studies.shared.store import RunRecord
from tests.support.made import run_record

S = Settings(seeds=(0, 1))
(C,) = PARTS["fig2"].comparisons(S)
# worst and average on validation data, by multiple; None if all diverged
Scores = dict[float, tuple[float, float] | None]


def ending(group: Group, worst: float, average: float = 60.0) -> dict[Experiment, RunRecord]:
    """All runs of a group, one device at `worst`, all together at `average`."""
    return {
        e: run_record(e, [worst, *[(e.devices * average - worst) / (e.devices - 1)] * (e.devices - 1)])
        for e in group.experiments
    }


def tried(scores: Scores, algorithm: Literal["dsgd", "dr-dsgd"] = "dsgd") -> dict[Experiment, RunRecord]:
    """Validation runs with a constant step, by multiple; None for one that diverged."""
    done: dict[Experiment, RunRecord] = {}
    for multiple, score in scores.items():
        group = fair.trial(C, S, algorithm, "constant", multiple)
        if score is None:
            done |= {e: run_record(e, [50.0] * e.devices, "diverged") for e in group.experiments}
        else:
            done |= ending(group, *score)
    return done


MIDDLE: Scores = {0.5: (1.0, 60.0), 1.0: (2.0, 60.0), 2.0: (3.0, 60.0), 4.0: None}


def test_the_best_step_serves_the_worst_off_device_best() -> None:
    scores: Scores = {0.5: (20.0, 80.0), 1.0: (30.0, 60.0), 2.0: (25.0, 90.0), 4.0: None}
    assert fair.best(C, S, "dsgd", "constant", tried(scores)) == 1.0
    equal: Scores = {0.5: (0.0, 20.0), 1.0: (0.0, 30.0), 2.0: (0.0, 25.0), 4.0: None}
    assert fair.best(C, S, "dsgd", "constant", tried(equal)) == 1.0  # the average decides between equals
    assert fair.best(C, S, "dsgd", "constant", tried(dict.fromkeys(scores))) is None
    assert fair.best(C, S, "dsgd", "constant", {}) is None


def test_the_grid_is_one_and_grows_where_the_best_of_either_lies_at_its_end() -> None:
    assert fair.grid(C, S, "constant", {}) == [0.5, 1.0, 2.0, 4.0]
    done = tried(MIDDLE) | tried(MIDDLE, "dr-dsgd")
    assert fair.grid(C, S, "constant", done) == [0.5, 1.0, 2.0, 4.0]
    rising: Scores = {0.5: (1.0, 60.0), 1.0: (2.0, 60.0), 2.0: (3.0, 60.0), 4.0: (4.0, 60.0)}
    done = tried(MIDDLE) | tried(rising, "dr-dsgd")
    assert fair.grid(C, S, "constant", done) == [0.5, 1.0, 2.0, 4.0, 8.0]  # for both
    waiting = fair.variants(C, S, done)
    assert not waiting["DSGD, best eta"].ready and not waiting["DR-DSGD, best eta"].ready
    done |= tried({8.0: None}) | tried({8.0: (5.0, 60.0)}, "dr-dsgd")
    assert fair.grid(C, S, "constant", done)[-1] == 16.0
    done |= tried({16.0: None}) | tried({16.0: None}, "dr-dsgd")
    assert fair.best(C, S, "dr-dsgd", "constant", done) == 8.0
    falling: Scores = {0.5: (3.0, 60.0), 1.0: (2.0, 60.0), 2.0: (1.0, 60.0), 4.0: None}
    assert fair.grid(C, S, "constant", tried(falling) | tried(MIDDLE, "dr-dsgd"))[0] == 0.25


def test_multiple_one_is_the_papers_eta_and_the_others_can_be_typed() -> None:
    eta = C.pair(S)["DSGD"].example.eta
    assert [fair.trial(C, S, "dsgd", "constant", m).example.eta for m in (0.5, 1.0, 2.0)] == [0.0913, eta, 0.365]
    best: Scores = {0.5: (1.0, 60.0), 1.0: (3.0, 60.0), 2.0: (2.0, 60.0), 4.0: None}
    sides = fair.sides(C, S, tried(best) | tried(MIDDLE, "dr-dsgd"))
    assert sides["DSGD, best eta"] == sides["DSGD"]  # the same runs, so the same numbers
    assert sides["DR-DSGD, best eta"].example.eta == 0.365


def test_a_side_waits_for_what_it_depends_on() -> None:
    waiting = fair.variants(C, S, {})
    assert len(waiting) == 5 and not any(group.ready for group in waiting.values())
    chosen = fair.variants(C, S, tried(MIDDLE) | tried(dict.fromkeys(MIDDLE), "dr-dsgd"))
    assert [label for label, group in chosen.items() if group.ready] == ["DSGD, best eta"]
    assert "DR-DSGD, best eta" not in chosen  # every step diverged
    eta = C.pair(S)["DSGD"].example.eta
    assert chosen["DSGD, best eta"].example.eta == pytest.approx(2 * eta, rel=0.01)


def test_without_a_run_of_dr_dsgd_that_finished_there_is_no_matched_step() -> None:
    done = {e: run_record(e, [50.0] * e.devices, "diverged") for e in C.pair(S)["DR-DSGD"].experiments}
    assert fair.matched(C, S, done) is None and fair.MATCHED not in fair.variants(C, S, done)


def test_test_data_choose_nothing() -> None:
    for settings in (S, Settings(seeds=(100, 101))):
        for group in fair.trials(C, settings, {}):
            assert all(e.validation and e.seed not in settings.seeds for e in group.experiments)
        for group in fair.variants(C, settings, {}).values():
            assert all(e.validation is None and e.seed in settings.seeds for e in group.experiments)


def test_the_matched_step_is_that_of_dr_dsgd() -> None:
    runs = ending(C.pair(S)["DR-DSGD"], 40.0)
    done = {e: RunRecord(**{**run.__dict__, "weight": [0.1, 0.2, 0.3]}) for e, run in runs.items()}
    eta = C.pair(S)["DSGD"].example.eta
    assert fair.matched(C, S, done) == pytest.approx(0.2 * eta, rel=0.01)
    assert fair.variants(C, S, done)[fair.MATCHED].ready


def test_gains_add_up() -> None:
    done = ending(C.pair(S)["DSGD"], 40.0) | ending(C.pair(S)["DR-DSGD"], 50.0)
    done |= ending(fair.variants(C, S, done)[fair.MATCHED], 47.0)
    gain = fair.gain(fair.sides(C, S, done), done, "consensus", "worst")
    assert gain.same_eta.mean == pytest.approx(10.0)
    assert gain.step.mean == pytest.approx(7.0) and gain.rest.mean == pytest.approx(3.0)
    assert gain.best.n == gain.falling.n == 0  # nothing was tuned yet
    sides = fair.sides(C, S, done)
    lost = sides[fair.MATCHED].experiments[0]
    some = {e: run for e, run in done.items() if e != lost}
    gain = fair.gain(sides, some, "consensus", "worst")
    assert gain.same_eta.n == gain.step.n == gain.rest.n == 1  # over the same seeds, so that they add up
    runs = {name: [(a.experiment, b.experiment) for a, b in p] for name, p in fair.paired_runs(sides, some).items()}
    dsgd, dr_dsgd, matched = (sides[label].experiments[1] for label in ("DSGD", "DR-DSGD", fair.MATCHED))
    expected = {"same_eta": [(dr_dsgd, dsgd)], "step": [(matched, dsgd)], "rest": [(dr_dsgd, matched)]}
    assert runs == {**expected, "best": [], "falling": []}


def test_how_far_apart_seeds_end() -> None:
    dsgd, dr_dsgd = C.pair(S).values()
    assert fair.swing([C], S, {}) is fair.swing([C], S, ending(Group(dsgd.experiments[:1]), 40.0)) is None
    done = {e: run_record(e, [5.0 + 30 * e.seed, *[80.0] * (e.devices - 1)]) for e in dr_dsgd.experiments}
    assert fair.swing([C], S, done | ending(dsgd, 40.0)) == (5.0, 35.0)
