"""Methods by name: every objective runs with every optimizer, and impossible settings are refused with the reason."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from drdsgd.core.algorithms import Algorithm
from drdsgd.core.flat import Flat
from drdsgd.core.schedules import spelled as scheduled
from drdsgd.errors import InputError, option
from drdsgd.experiments.build import make_algorithm, make_data, make_model
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.registry import (
    ALGORITHMS,
    OBJECTIVES,
    OPTIMIZERS,
    OPTIONS,
    SERVERS,
    compressed_size,
    own_options,
    sent_by,
)
from drdsgd.experiments.run import check, run
from drdsgd.options import Rule
from tests.support.program import drdsgd

SMALL: dict[str, Any] = {
    "dataset": "synthetic", "devices": 6, "rounds": 4, "batch_size": 5, "graph": "complete", "eta": 0.1, "threads": 1,
}  # fmt: skip


def numbers(said: str, d: int, K: int) -> int:
    """The value of a message size such as "2 d + 1", "5/32 d" or "2 (5/32 d + 1)", rounded up."""
    if often := re.fullmatch(r"(\d+) \((.*)\)", said):
        return int(often[1]) * numbers(often[2], d, K)
    total = Fraction(0)
    for term in said.split(" + "):
        factor, _, of = term.rpartition(" ")
        total += Fraction(factor or 1) * {"d": d, "K": K}[of] if of in "dK" else int(of)
    return math.ceil(total)


def sent(path: Path, **fields: Any) -> tuple[int, int]:
    """The numbers that a short run sends per round, and the parameters of its model."""
    e = Experiment(**SMALL, **fields)
    final = run(e, path).final
    assert final.round == 4
    return final.floats_sent // 4, Flat(make_model(e, make_data(e))).d


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_runs_and_sends_what_its_parts_say(name: str, tmp_path: Path) -> None:
    floats, d = sent(tmp_path / "run", algorithm=name)
    said = numbers(sent_by(name), d, 6)
    if "/" in sent_by(name):  # what is packed is a whole number of bytes and blocks
        assert said <= floats / 30 <= said + 4
    else:
        assert floats == 30 * said


@pytest.mark.parametrize("optimizer", ["choco", "momentum", "quasi-global-momentum", "gt-adam"])
@pytest.mark.parametrize("compression", ["none", "quantize:2", "quantize:4", "quantize:8", "top:0.1", "random:0.25"])
def test_compressed_models_are_as_small_as_is_said(compression: str, optimizer: str, tmp_path: Path) -> None:
    """Twice as much if a round gossips twice, or if gradients are sent as well."""
    messages = 2 if optimizer == "gt-adam" else 1
    for steps in (None, 2):
        fields = {"algorithm": "dsgd", "optimizer": optimizer, "compression": compression, "gossip_steps": steps}
        floats, d = sent(tmp_path / f"{steps}", **fields)
        said = (steps or 1) * numbers(compressed_size(compression, messages), d, 6)
        # bytes, blocks and entries are whole numbers
        assert said - 2 * messages <= floats / 30 <= said + 2 * messages * (steps or 1)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_sends_what_it_says(name: str, tmp_path: Path) -> None:
    weights = {"weights": "normalized"} if name == "kl-dro" else {}
    floats, d = sent(tmp_path / "run", algorithm="dsgd", objective=name, **weights)
    beside = OBJECTIVES[name].sends.removesuffix(" if normalized")
    assert floats == 30 * (d + (numbers(beside, d, 6) if beside else 0))


@pytest.mark.parametrize("name", SERVERS)
def test_every_server_runs_and_sends_what_it_says(name: str, tmp_path: Path) -> None:
    floats, d = sent(tmp_path / "run", algorithm=name)
    said = 6 * numbers(SERVERS[name].sends.partition(",")[0], d, 6)
    # a device that DRFA draws twice is sent the model once
    assert said - 6 * (2 * d + 1) < floats <= said if name == "drfa" else floats == said


def test_options_of_methods_are_options() -> None:
    for table in (OBJECTIVES, OPTIMIZERS, SERVERS):
        for rule in table.values():
            assert rule.options.keys() <= OPTIONS.keys()
    for name, one in ALGORITHMS.items():
        assert one.objective in OBJECTIVES and one.optimizer in OPTIMIZERS
        assert one.options.keys() <= own_options(name, None, None).keys()


def test_any_objective_goes_with_any_optimizer() -> None:
    for objective in OBJECTIVES:
        for optimizer in OPTIMIZERS:
            e = Experiment(**SMALL, algorithm="dsgd", objective=objective, optimizer=optimizer)
            made = make_algorithm(e)
            assert isinstance(made, Algorithm) and made.resolve is None
            itself = (objective, optimizer) == ("erm", "dsgd")
            assert made.name.partition(" with ")[0] == ("DSGD" if itself else f"{objective} + {optimizer}")
            for name in own_options("dsgd", objective, optimizer).keys() - {"eta", "eta_schedule", "gamma"}:
                assert (name.replace("_", " ") in made.name) == (getattr(e, name) is not None)


def test_a_title_says_mu_and_what_differs_from_the_defaults() -> None:
    def title(**fields: Any) -> str:
        return str(make_algorithm(Experiment(**fields)).name)

    assert title(algorithm="dr-dsgd", eta=0.3, weight_decay=0.01, local_steps=2) == "DR-DSGD with mu = 6"
    assert title(algorithm="dr-dsgd", mu=3) == "DR-DSGD with mu = 3"
    assert title(algorithm="dr-qgm", weight_cap=2.0) == "DR-QGM with mu = 1, weight cap = 2"
    assert title(algorithm="dsgd", objective="q-ffl", q=2) == "q-ffl + dsgd with q = 2"
    assert title(algorithm="fedavg", clients=3) == "FedAvg with 3 clients"
    # the default of gamma follows from the compression
    assert title(algorithm="choco-sgd") == "CHOCO-SGD"
    assert title(algorithm="choco-sgd", compression="top:0.1") == "CHOCO-SGD with top:0.1 compression"
    assert title(algorithm="choco-sgd", gamma=0.5) == "CHOCO-SGD with gamma = 0.5"


def test_adam_has_a_step_size_of_its_own() -> None:
    assert Experiment(algorithm="dr-gt-adam").eta == Experiment(optimizer="gt-adam").eta == 0.01
    assert Experiment(algorithm="dr-gt-adam", optimizer="dsgd", devices=4, rounds=16).eta == 0.5


def test_uncompressed_messages_are_averaged_as_they_are() -> None:
    assert Experiment(algorithm="choco-sgd", compression="none").gamma == 1
    assert Experiment(algorithm="choco-sgd").gamma == 0.8
    assert Experiment(algorithm="choco-sgd", compression="random:0.1").gamma == 0.1
    # an algorithm's default gamma is for its own compression
    assert Experiment(algorithm="dr-qgm").gamma == 1.0
    assert Experiment(algorithm="dr-qgm", compression="top:0.1").gamma == 0.2
    assert Experiment(algorithm="dr-qgm", compression="top:0.1", gamma=0.3).gamma == 0.3
    assert Experiment(algorithm="dr-qgm", compression="quantize:4").gamma == 1.0


def test_a_part_that_the_algorithm_has_anyway_is_no_other_experiment() -> None:
    assert Experiment(algorithm="dr-dsgd", objective="kl-dro", optimizer="dsgd") == Experiment(algorithm="dr-dsgd")
    assert Experiment(algorithm="dsgd", objective="kl-dro").objective == "kl-dro"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"optimizer": "d2", "graph": "ring"},
            "d2 needs a W whose smallest eigenvalue is above -1/3, and this graph's",
        ),
        ({"optimizer": "d2", "link_failures": 0.2}, "d2 needs the same W in every round"),
        ({"optimizer": "exact-diffusion", "local_steps": 2}, "exact-diffusion needs the same W in every round"),
        (
            {"optimizer": "choco", "dropouts": 0.1},
            "compression needs the same W in every round, because its state belongs to one W; use "
            "compression='none' with gamma 1 (its default), or a mixing that does not change",
        ),
        ({"algorithm": "dr-qgm", "link_failures": 0.2}, "compression needs the same W in every round"),
        (
            {"mixing": "one-peer-exponential", "link_failures": 0.2},
            "a W that is not symmetric (one-peer-exponential) and loses links is not doubly stochastic, and gossip "
            "would not keep the mean: use optimizer='push', or a symmetric one: mixing='matchings'",
        ),
        (
            {"mixing": "one-peer-exponential", "dropouts": 0.2, "optimizer": "push", "weights": "normalized"},
            "weights that need other devices' losses are gossiped, and a W that is not symmetric",
        ),
        ({"graph": "directed-ring"}, "a directed graph's W is not doubly stochastic"),
        ({"optimizer": "gradient-tracking", "graph": "directed-erdos-renyi"}, "a directed graph's W is not doubly"),
        (
            {"graph": "directed-ring", "mixing": "matcha", "optimizer": "push"},
            "mixing='matcha': does not work on a directed",
        ),
        (
            {"graph": "directed-ring", "algorithm": "sgp", "objective": "q-ffl"},
            "weights that need other devices' losses",
        ),
        (
            {"graph": "ring", "mixing": "one-peer-exponential"},
            "mixing='one-peer-exponential': needs links that this graph may lack; write graph='complete'",
        ),
        ({"mixing": "matsha"}, "mixing='matsha': unknown, did you mean matcha?"),
        ({"mixing": "matcha:x"}, "mixing='matcha:x': 'x' is not a number; write matcha:0.5"),
        (
            {"mixing": "matcha:2"},
            "mixing='matcha:2': the budget is a fraction of the matchings, in (0, 1]; write matcha:0.5",
        ),
        ({"mixing": "matcha:nan"}, "mixing='matcha:nan': the budget is a fraction of the matchings"),
        (
            {"algorithm": "fedrobust", "shift_eta": 1.0},
            "shift_eta=1.0: times shift_penalty=1.0 it must be below 1, or the shift diverges; 0.01 is usual",
        ),
        (
            {"algorithm": "ditto", "eta": 0.1, "pull": 20.0},
            "pull=20.0: times eta 0.1 it must be below 2, or personal models diverge; 0.1 to 2 are usual",
        ),
        (
            {"local_steps": 10, "rounds": 5},
            "local_steps=10: with 5 rounds, devices never exchange models; use more rounds",
        ),
        ({"optimizer": "choco", "compression": "none:abc"}, "compression='none:abc': none takes no number"),
        ({"optimizer": "choco", "compression": "none:"}, "compression='none:': none takes no number"),
        ({"mixing": "matchings:2"}, "mixing='matchings:2': matchings takes no number"),
        (
            {"mixing": "matchings", "gossip_steps": 2},
            "gossip_steps=2: after one averaging a pair of mixing='matchings' has equal",
        ),
        (
            {"weights": "normalized", "weight_cap": 1.0},
            "weight_cap=1.0: must be above 1; weights that are 1 on average",
        ),
        ({"optimizer": "choco", "compression": "zip"}, "compression='zip': unknown; known are none, top, random"),
        ({"optimizer": "choco", "compression": "top"}, "compression='top': write top:0.1, random:0.1 or quantize:4"),
        (
            {"optimizer": "choco", "compression": "top:2"},
            "compression='top:2': the part of the entries to send must be",
        ),
        ({"optimizer": "choco", "compression": "quantize:3"}, "compression='quantize:3': bits per number must be"),
        ({"mu_schedule": "linear"}, "mu_schedule='linear': mu must stay above zero; write linear:0.1"),
        ({"mu_schedule": "warmup"}, "mu_schedule='warmup': mu must stay above zero"),
        ({"algorithm": "fedavg", "clients": 7}, "clients=7: there are only 6 devices; leave it out"),
        ({"random_labels": 6}, "random_labels=6: must be below the number of devices, 6"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(says)}"):
        check(Experiment(**{**SMALL, **fields}))


@pytest.mark.parametrize(
    "fields",
    [
        {"graph": "directed-ring", "algorithm": "sgp"},
        {"graph": "directed-erdos-renyi", "p": 0.5, "optimizer": "push"},
        {"mixing": "matcha:0.5", "graph": "ring"},
        {"mixing": "matchings", "graph": "ring", "dropouts": 0.2},
        {"mixing": "one-peer-exponential", "optimizer": "gradient-tracking"},
        {"link_failures": 0.3, "local_steps": 2, "gossip_steps": 2},
        {"algorithm": "dr-qgm", "link_failures": 0.2, "compression": "none"},
        {"optimizer": "choco", "dropouts": 0.1, "compression": "none"},
        {"algorithm": "dr-qgm", "gossip_steps": 2},
        {"mixing": "one-peer-exponential", "link_failures": 0.2, "optimizer": "push"},
        {"random_labels": 1, "weight_cap": 2.0, "loss_smoothing": 0.1, "weights": "normalized"},
        {"mu_schedule": "cosine:0.1", "loss_clip": 1.0},
        {"weight_decay": 0.01, "eta_schedule": "warmup:0.2", "algorithm": "qg-dsgdm"},
        {"algorithm": "choco-sgd", "compression": "top:0.1", "gamma": 0.3, "graph": "ring"},
        {"algorithm": "qg-dsgdm", "compression": "quantize:8", "objective": "ad-gda"},
        {"algorithm": "drfa", "clients": 3, "local_steps": 2},
        # its last steps are below the smallest float
        {"algorithm": "qg-dsgdm", "eta_schedule": "exponential:1e-12", "rounds": 6},
        {"loss_clip": 1e6},
        {"algorithm": "ditto", "pull": 1e6, "eta": 1e-9},
        {"algorithm": "q-fedavg", "q": 1e6},
        {"algorithm": "fed-term", "tilt": 1e6},
    ],
)
def test_what_goes_together_runs(fields: dict[str, Any], tmp_path: Path) -> None:
    assert run(Experiment(**{**SMALL, **fields}), tmp_path / "run").status == "finished"


# The effect is clear here: on the complete graph weights are exact, and with IID data the other devices agree.
SPOILT: dict[str, Any] = {
    "dataset": "digits", "model": "logistic", "devices": 10, "graph": "complete", "partition": "iid", "rounds": 100,
    "batch_size": 32, "eta": 0.1, "mu": 0.1, "weights": "normalized", "loss_smoothing": 0.1, "threads": 1,
    "eval_every": 100,
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_weight_cap_protects_the_others_from_a_device_with_random_labels(seed: int, tmp_path: Path) -> None:
    """Its loss cannot fall, so a small mu gives it nearly all weight, and the other nine lose 10 to 24 points.

    The cap itself is not the reason: without such a device it changes almost nothing.
    """

    def others(name: str, **fields: Any) -> tuple[float, float]:
        """The others' average accuracy, and the first device's final weight."""
        final = run(Experiment(**SPOILT, seed=seed, **fields), tmp_path / name).final
        return sum(final.consensus.per_device[1:]) / 9, final.weights[0]

    free, heavy = others("free", random_labels=1)
    held, light = others("held", random_labels=1, weight_cap=1.5)
    assert heavy > 5 and light <= 1.6  # the share of device 0 is about 1
    assert held > free + 8
    assert abs(others("clean")[0] - others("clean and held", weight_cap=1.5)[0]) < 3


def test_the_command_lists_them_all() -> None:
    said = drdsgd("algorithms")
    assert said.status == 0
    for name in (*ALGORITHMS, *SERVERS, *OBJECTIVES, *OPTIMIZERS):
        assert f"  {name} " in said.out
    for rule in (*OBJECTIVES.values(), *OPTIMIZERS.values(), *SERVERS.values()):
        assert rule.what in said.out and rule.source in said.out
    lines = said.out.splitlines()
    for name in ALGORITHMS:  # its problem, and what it sends
        at = next(i for i, line in enumerate(lines) if line.startswith(f"  {name} "))
        assert OBJECTIVES[ALGORITHMS[name].objective].what in lines[at]
        assert lines[at + 1].strip() == f"numbers per link and round: {sent_by(name)}"
    assert lines.count(" " * 25 + "--momentum 0.9 --compression --gamma (0.8, less for 2 bits, top and random)") == 2
    assert " " * 25 + "--compression quantize:4 --gamma (0.8, less for 2 bits, top and random)" in lines
    servers = lines[: next(i for i, line in enumerate(lines) if line.startswith("--objective NAME"))]
    assert sum("--local-steps" in line for line in servers) == len(SERVERS) - 1  # not of afl
    assert "only the size of the graph matters" in said.out


def test_of_one_method_the_command_says_all_defaults() -> None:
    said = drdsgd("algorithms", "dr-gt-adam")
    assert said.status == 0 and "fedavg" not in said.out
    defaults = next(line for line in said.out.splitlines() if "--mu 0.3" in line)
    for name, value in own_options("dr-gt-adam", None, None).items():
        spelt = "" if value is None else f" ({value})" if isinstance(value, Rule) else f" {value}"
        assert f"{option(name)}{spelt} " in f"{defaults} "
    assert "--eta (0.01, or 0.0025 if the model is not mlp or logistic)" in defaults
    wrong = drdsgd("algorithms", "kl-dor")
    assert (wrong.status, wrong.err) == (
        2,
        "drdsgd: kl-dor: unknown, did you mean kl-dro?; your own is package.module:function\n",
    )


def test_a_cnn_has_shorter_steps_of_adam_by_default() -> None:
    etas = [Experiment(algorithm="gt-adam", model=model).eta for model in ("mlp:8", "logistic", "cnn", "my.own:model")]
    assert etas == [0.01, 0.01, 0.0025, 0.0025]
    assert Experiment(algorithm="gt-adam", dataset="cifar10").eta == 0.0025
    assert Experiment(algorithm="dsgd", model="cnn", devices=10, rounds=40).eta == 0.5


# ------------------------------------------------------------------- schedules


def eta(spelled: str, t: int) -> float:
    made = scheduled("eta", 0.5, spelled, 100)
    return made(t) if callable(made) else made


@pytest.mark.parametrize(
    ("spelling", "middle", "end"),
    [
        ("constant", 0.5, 0.5),
        ("linear", 0.25, 0.0),
        ("linear:0.1", 0.275, 0.05),
        ("linear:1", 0.5, 0.5),
        ("linear:0", 0.25, 0.0),
        ("cosine", 0.25, 0.0),
        ("cosine:0.2", 0.3, 0.1),
        ("exponential:0.99", 0.5 * 0.99**50, 0.5 * 0.99**100),
        ("exponential:1", 0.5, 0.5),
    ],
)
def test_schedules_by_name(spelling: str, middle: float, end: float) -> None:
    assert (eta(spelling, 0), eta(spelling, 50), eta(spelling, 100)) == pytest.approx((0.5, middle, end))


@pytest.mark.parametrize(
    ("spelling", "says"),
    [
        ("konstant", "eta_schedule='konstant': unknown, did you mean constant?"),
        ("constant:0.1", "eta_schedule='constant:0.1': constant takes no number; set eta"),
        ("linear:x", "eta_schedule='linear:x': 'x' is not a number; write linear:0.1"),
        ("linear:2", "eta_schedule='linear:2': end must be in [0, 1]: 2; it is a share of the start"),
        ("cosine:-0.1", "eta_schedule='cosine:-0.1': end must be in [0, 1]: -0.1"),
        ("cosine:nan", "eta_schedule='cosine:nan': end must be in [0, 1]: nan"),
        ("exponential", "eta_schedule='exponential': give the decay per round"),
        ("exponential:1.5", "eta_schedule='exponential:1.5': decay must be in (0, 1]: 1.5; 0.99 halves in 69 rounds"),
        ("exponential:0", "eta_schedule='exponential:0': decay must be in (0, 1]: 0"),
        ("exponential:nan", "eta_schedule='exponential:nan': decay must be in (0, 1]: nan"),
        ("", "eta_schedule='': unknown; known are"),
    ],
)
def test_schedules_that_are_none(spelling: str, says: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(says)}"):
        eta(spelling, 0)
