"""Constructors: every algorithm has one, with the options and defaults that the command line has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import pytest
import torch

import drdsgd
from drdsgd import objectives, optimizers, schedules
from drdsgd.baselines import SERVERS
from drdsgd.core.algorithms import ALGORITHMS, Algorithm
from drdsgd.core.composition import Constructor, Options, Setting, scheduled
from drdsgd.core.schedules import Schedule
from drdsgd.errors import InputError
from drdsgd.experiments import registry
from drdsgd.experiments.build import make_algorithm, make_data, make_graph, make_mixing, make_model
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.run import run
from drdsgd.options import IN_PYTHON, Rule, paper_step, parameters
from drdsgd.training.algorithms import constructor
from drdsgd.training.loop import Result
from tests.support.program import saved
from tests.support.refusing import message

CONSTRUCTORS: dict[str, Constructor[Any]] = {**ALGORITHMS, **SERVERS}
TINY: dict[str, Any] = {
    "dataset": "synthetic", "devices": 4, "rounds": 8, "graph": "complete", "seed": 3, "threads": 1, "eval_every": 8,
}  # fmt: skip


def function_of(name: str) -> Callable[..., Any]:
    """The public constructor of an algorithm."""
    return getattr(drdsgd, name.replace("-", "_"))  # type: ignore[no-any-return]


def trained(algorithm: Any, e: Experiment) -> Result:
    """The data, graph and model of an experiment, trained in Python; batch size and eta have their defaults."""
    data = make_data(e)
    mixing = make_mixing(e, make_graph(e))
    return drdsgd.train(
        make_model(e, data), data, mixing, algorithm, rounds=e.rounds, seed=e.seed, eval_every=e.eval_every, threads=1
    )


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()


# --------------------------------------------------------------- one description


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_python_and_the_command_line_have_the_same_options_and_defaults(name: str) -> None:
    known = registry.own_options(name, None, None)
    made = constructor(name)
    only_here = {key for key, one in made.parameters.items() if one.option.group == IN_PYTHON}
    assert {key: value for key, value in made.options.items() if key not in only_here} == known
    assert only_here == ({"iterations", "nu"} if name == "rfa" else set())
    signature = inspect.signature(function_of(name)).parameters
    assert {key: one.default for key, one in signature.items()} == made.options
    assert function_of(name).__name__ == name.replace("-", "_") and function_of(name).__doc__


def test_type_checkers_know_the_options_as_they_are_declared() -> None:
    """`Options` has every option, and with the type, the bounds and the help of its declaration."""
    hints = get_type_hints(Options, include_extras=True)

    def typed() -> None:
        """A function with these parameters."""

    typed.__annotations__ = hints
    shown = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in hints.items()]
    typed.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # inspect reads it
    known = parameters(typed)
    declared = {key: one for made in CONSTRUCTORS.values() for key, one in made.parameters.items()}
    assert hints.keys() == declared.keys()
    for made in CONSTRUCTORS.values():
        for key, one in made.parameters.items():
            if one.option.group == IN_PYTHON:
                assert hints[key] is one.kind
            else:
                assert known[key][:2] == one[:2] and known[key].schedule >= one.schedule, key
                assert one.default is not None or NoneType in get_args(hints[key])


def test_signatures_have_the_types_of_values() -> None:
    shown = inspect.signature(drdsgd.dr_dsgd).parameters
    assert shown["loss_clip"].annotation == float | None and shown["mu"].annotation == float | Schedule
    assert shown["weights"].annotation == Literal["as-written", "without-mu", "normalized"]
    assert inspect.signature(drdsgd.fedavg).parameters["clients"].annotation == int | None


@pytest.mark.parametrize("objective", registry.OBJECTIVES)
@pytest.mark.parametrize("optimizer", registry.OPTIMIZERS)
@pytest.mark.parametrize("name", ["dsgd", "dr-qgm"])
def test_so_have_other_parts(name: str, objective: str, optimizer: str) -> None:
    """An algorithm's own defaults stay for the options that are left."""
    assert constructor(name, objective, optimizer).options == registry.own_options(name, objective, optimizer)


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in CONSTRUCTORS),
    ("dr-dsgd", {"mu": 2, "weights": "normalized", "eta_schedule": "cosine:0.1", "mu_schedule": "linear:0.5"}),
    ("dr-dsgd", {"eta": 0.2, "weight_decay": 0.01, "local_steps": 2, "gossip_steps": 2, "loss_clip": 1.0}),
    ("dr-qgm", {"compression": "random:0.2"}),  # its gamma follows from it, its entries from the seed
    ("dr-qgm", {"compression": "top:0.2", "gamma": 0.1}),
    ("dr-gt-adam", {"compression": "none", "momentum": 0.5}),
    ("dsgd", {"objective": "kl-ball", "optimizer": "gt-adam"}),
    ("dr-qgm", {"objective": "q-ffl"}),
    ("drfa", {"local_steps": 3, "clients": 2, "eta_schedule": "linear"}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=lambda one: one if isinstance(one, str) else "-".join(one))
def test_python_and_an_experiment_train_the_same_models(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Bit by bit: step size, batch size, gamma, schedules and the seed of compressors are the same."""
    e = Experiment(**TINY, algorithm=name, **options)
    record = run(e, tmp_path / "run")
    result = trained(drdsgd.algorithm(name, **options), e)
    assert same_bits(result.theta, saved(tmp_path / "run").state.theta)
    assert result.final.floats_sent == record.final.floats_sent
    assert result.final.losses == record.final.losses
    made = make_algorithm(e)
    assert (result.training.algorithm, result.training.eta) == (made.name, made.eta)


@pytest.mark.parametrize(
    ("made", "title"),
    [
        (lambda: drdsgd.dr_gt_adam(compression="none"), "DR-GTAdam with mu = 0.3, no compression"),
        (lambda: drdsgd.dr_dsgd(mu=schedules.linear(1.0, 10, 0.1)), "DR-DSGD with mu = 1 (linear to 0.1 in 10 rounds)"),
        (lambda: drdsgd.dr_dsgd(mu=lambda t: 1 / (t + 1)), "DR-DSGD with mu = 1 at first (then your own schedule)"),
        (lambda: drdsgd.algorithm("dsgd", objective=flagged, flagy=False), "flagged + dsgd with flagy = false"),
    ],
)
def test_titles_are_english(made: Callable[[], Any], title: str) -> None:
    assert made().name == title


def flagged(flagy: bool = True) -> objectives.Objective:
    """An objective with a flag."""
    return objectives.erm()


def test_two_kinds_of_options_train_different_models() -> None:
    """So the comparison above can fail."""
    e = Experiment(**TINY)
    first = trained(drdsgd.dr_dsgd(), e).theta
    for other in (drdsgd.dr_dsgd(mu=6.5), drdsgd.dr_dsgd(eta=0.7), drdsgd.dr_dsgd(eta_schedule="linear:0.99")):
        assert not same_bits(trained(other, e).theta, first)


def test_train_takes_a_value_or_a_name() -> None:
    e = Experiment(**TINY)
    thetas = [trained(one, e).theta for one in ("dr-qgm", drdsgd.dr_qgm(), drdsgd.algorithm("dr-qgm"))]
    assert same_bits(thetas[0], thetas[1]) and same_bits(thetas[0], thetas[2])
    message(lambda: trained("dr-qgn", e), "algorithm='dr-qgn': unknown, did you mean dr-qgm?")
    message(lambda: trained(drdsgd.dr_qgm, e), "give a value such as drdsgd.dr_dsgd(")
    assert thetas[0].isfinite().all()


def test_one_value_trains_in_two_settings() -> None:
    """Its defaults are worked out for each setting anew."""
    algorithm = drdsgd.dsgd()
    etas = [
        trained(algorithm, Experiment(**{**TINY, "devices": K, "rounds": T})).training.eta
        for K, T in ((4, 16), (4, 64))
    ]
    assert etas == ["0.5", "0.25"] and algorithm.eta == "sqrt(K / T)"


def test_dr_qgm_gossips_twice_in_a_round() -> None:
    e = Experiment(**TINY)
    twice, once = (trained(made, e) for made in (drdsgd.dr_qgm(), drdsgd.dr_qgm(gossip_steps=1)))
    assert twice.final.floats_sent == 2 * once.final.floats_sent > 0
    assert not same_bits(twice.theta, once.theta)


def test_local_steps_send_less() -> None:
    e = Experiment(**TINY)
    often, seldom = (trained(drdsgd.dsgd(local_steps=steps), e).final.floats_sent for steps in (None, 4))
    assert often == 4 * seldom > 0


def test_parts_of_your_own_in_python() -> None:
    """A function's parameters are options; so are those of the objectives and optimizers that have names."""
    e = Experiment(**TINY)

    def sharper(power: float = 2.0) -> objectives.Objective:
        """Weights from losses to a power."""
        return objectives.q_ffl(power)

    theta = trained(drdsgd.algorithm("dsgd", objective=sharper, power=3.0), e).theta
    assert same_bits(theta, trained(drdsgd.algorithm("dsgd", objective="q-ffl", q=3.0), e).theta)
    assert same_bits(theta, trained(drdsgd.algorithm("dsgd", objective=objectives.q_ffl, q=3.0), e).theta)
    assert not same_bits(theta, trained(drdsgd.algorithm("dsgd", objective=sharper), e).theta)
    assert drdsgd.algorithm("dsgd", objective=sharper, power=3.0).name == "sharper + dsgd with power = 3"
    message(lambda: drdsgd.algorithm("dsgd", objective=sharper, power="3"), "power='3': input should be a valid number")
    message(lambda: drdsgd.algorithm("dsgd", objective=sharper, powr=3.0), "unknown, did you mean power?")


def test_an_optimizer_of_your_own_needs_no_eta_in_python() -> None:
    def still(part: float = 0.1) -> optimizers.GossipOptimizer:
        return optimizers.dsgd(part)

    e = Experiment(**TINY)
    made = drdsgd.algorithm("dsgd", optimizer=still, part=0.3)
    assert same_bits(trained(made, e).theta, trained(drdsgd.dsgd(eta=0.3), e).theta)


# --------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: drdsgd.dr_dsgd(nu=3.0), "dr_dsgd(..., nu=...): unknown, did you mean mu?"),
        (lambda: drdsgd.dsgd(mu=3.0), "dsgd(..., mu=...): unknown; known are eta, eta_schedule, weight_decay, "),
        (lambda: drdsgd.q_fedavg(local_step=3), "q_fedavg(..., local_step=...): unknown, did you mean local_steps?"),  # type: ignore[call-arg]
        (lambda: drdsgd.algorithm("dr-dsdg"), "algorithm='dr-dsdg': unknown, did you mean dr-dsgd?"),
        (lambda: drdsgd.algorithm("dsgd", objective="kldro"), "objective='kldro': unknown, did you mean kl-dro?"),
        (lambda: drdsgd.algorithm("dsgd", optimizer="adam"), "optimizer='adam': unknown, did you mean gt-adam?"),
        (lambda: drdsgd.algorithm("dsgd", objective=3), "objective is 3: give a name, or a function"),  # type: ignore[arg-type]
        (lambda: drdsgd.algorithm("fedavg", objective="erm"), "objective: fedavg has a server, and no objective"),
        (lambda: drdsgd.algorithm("rfa", optimizer="d2"), "optimizer: rfa has a server, and no optimizer"),
        (lambda: drdsgd.dr_dsgd(mu=-1.0), "mu=-1.0: input should be greater than 0"),
        (lambda: drdsgd.dr_dsgd(mu="6"), "mu='6': input should be a valid number"),  # type: ignore[arg-type]
        (lambda: drdsgd.dr_dsgd(mu=np.float32(-1)), "mu=-1.0: input should be greater than 0"),  # type: ignore[arg-type]
        (lambda: drdsgd.dr_dsgd(eta=True), "eta=True: input should be a valid number"),
        (lambda: drdsgd.dr_dsgd(local_steps=2.0), "local_steps=2.0: input should be a valid integer"),  # type: ignore[arg-type]
        (lambda: drdsgd.dr_dsgd(weights="foo"), "weights='foo': input should be 'as-written', "),  # type: ignore[arg-type]
        (lambda: drdsgd.dr_qgm(compression="zip"), "compression='zip': unknown"),
        (lambda: drdsgd.dr_qgm(gamma=1.5), "gamma=1.5: input should be less than or equal to 1"),
        (lambda: drdsgd.dsgd(eta_schedule="liner"), "eta_schedule='liner': unknown, did you mean linear?"),
        (lambda: drdsgd.dr_dsgd(mu_schedule="linear"), "mu_schedule='linear': mu must stay above zero"),
        (lambda: drdsgd.dsgd(eta=0.5, weight_decay=2.0), "weight_decay=2.0: times eta 0.5 it must be below 1"),
    ],
)
def test_what_is_wrong_is_refused_at_once_and_in_one_line(call: Callable[[], Any], says: str) -> None:
    assert message(call).startswith(says)


def test_values_by_position_are_those_of_the_signature() -> None:
    assert drdsgd.dr_dsgd(0.1, 3.0).name == drdsgd.dr_dsgd(eta=0.1, mu=3.0).name == "DR-DSGD with mu = 3"
    with pytest.raises(TypeError, match=r"^dsgd\(eta, eta_schedule, .*two values for one option"):
        drdsgd.dsgd(0.1, eta=0.2)
    with pytest.raises(TypeError, match="too many values"):
        drdsgd.fedavg(0.1, None, None, "constant", 5)


@pytest.mark.parametrize("name", ["dsgd", "fedavg"])
def test_a_step_size_is_a_schedule_once(name: str) -> None:
    falling = schedules.linear(0.4, T=8)
    message(
        lambda: function_of(name)(eta=falling, eta_schedule="linear"),
        "eta_schedule='linear': eta is a schedule already; give one of them",
    )
    assert function_of(name)(eta=falling).eta == "0.4, linear to 0 in 8 rounds"
    assert function_of(name)(eta=falling, eta_schedule="constant").eta == "0.4, linear to 0 in 8 rounds"
    message(lambda: drdsgd.dr_dsgd(mu=falling, mu_schedule="linear:0.1"), "mu is a schedule already")


def test_a_schedule_as_a_value_or_in_words_is_the_same() -> None:
    e = Experiment(**TINY)
    value = trained(drdsgd.dsgd(eta=schedules.linear(0.4, T=8, end=0.1)), e)
    words = trained(drdsgd.dsgd(eta=0.4, eta_schedule="linear:0.1"), e)
    assert same_bits(value.theta, words.theta) and value.training.eta == words.training.eta


# ----------------------------------------------------------------------- resolve


class Slope:
    """A gradient of ones."""

    def add_to(self, x: torch.Tensor, scale: float) -> None:
        x.add_(torch.ones_like(x), alpha=scale)


@pytest.mark.parametrize("made", [drdsgd.dsgd(), drdsgd.dsgd(eta=0.1, eta_schedule="linear")])
def test_a_rule_that_is_not_worked_out_raises_a_clear_error(made: Algorithm) -> None:
    """An algorithm whose step size depends on the setting cannot step before it knows the setting."""
    theta = torch.zeros(2, 3)
    gradient: Any = Slope()
    message(
        lambda: made.optimizer.local(theta, gradient, made.optimizer.init(theta), 0),
        "is known in drdsgd.train only: give a number instead",
    )
    assert made.resolve is not None
    ready = made.resolve(Setting(devices=4, rounds=16))
    ready.optimizer.local(theta, gradient, ready.optimizer.init(theta), 0)
    assert ready.resolve is None and theta.tolist()[0][0] == pytest.approx(-0.5 if made.eta == "sqrt(K / T)" else -0.1)


def test_a_rule_is_worked_out_from_the_setting() -> None:
    chosen = {"eta": paper_step, "compression": "quantize:4"}
    before, after = scheduled(chosen, None), scheduled(chosen, Setting(devices=4, rounds=16))
    assert isinstance(before["eta"], Rule) and after["eta"] == 0.5
    assert before["compression"].spelled == after["compression"].spelled == "quantize:4"
    half = scheduled(chosen, Setting(devices=4, rounds=16), eta_schedule="linear")
    assert (half["eta"](0), half["eta"](8), half["eta"](16)) == (0.5, 0.25, 0.0)


def test_random_compression_follows_the_seed() -> None:
    x = torch.arange(100.0)[None]

    def sent(seed: int) -> list[float]:
        Q = scheduled({"compression": "random:0.2"}, Setting(devices=4, rounds=16, seed=seed))["compression"]
        return Q.encode(x, 0)[0][0].tolist()  # type: ignore[no-any-return]  # of a compressor

    assert sent(3) == sent(3) != sent(4)


def test_a_step_size_of_adam_follows_the_model() -> None:
    made = drdsgd.gt_adam()
    assert made.resolve is not None
    etas = [made.resolve(Setting(4, 16, 0, model)).eta for model in ("mlp:8", "logistic", "cnn", "my:net")]
    assert etas == ["0.01", "0.01", "0.0025", "0.0025"]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine:0.1", "exponential:0.5", "warmup"])
@pytest.mark.parametrize(
    ("name", "option", "says"),
    [("dsgd", "weight_decay", "or a step erases the model"), ("ditto", "pull", "or personal models diverge")],
)
def test_a_schedule_hides_no_step_that_is_too_long(name: str, option: str, says: str, schedule: str) -> None:
    """Its largest step counts. It is known with the setting, and for a schedule in Python at once."""
    setting = Setting(devices=4, rounds=40)
    make = function_of(name)

    def ready(value: float) -> Any:
        return make(eta=0.1, eta_schedule=schedule, **{option: value}).resolve(setting)

    message(lambda: ready(30.0), f"{option}=30.0: times eta 0.1 it must be below ")
    assert says in message(lambda: ready(30.0))
    ready(9.0)
    for eta in (schedules.spelled("eta", 0.1, schedule, 40), lambda t: 0.1 / (t + 1)):
        assert says in message(partial(make, eta=eta, **{option: 30.0}))
        make(eta=eta, **{option: 9.0})


def test_an_algorithm_is_checked_when_its_setting_is_known() -> None:
    """With eta = sqrt(4 / 1) = 2 a weight decay of 0.6 would erase the model."""
    made = drdsgd.dsgd(weight_decay=0.6)
    assert made.resolve is not None
    assert made.resolve(Setting(devices=4, rounds=16)).name == "DSGD"
    with pytest.raises(InputError, match=r"^weight_decay=0\.6: times eta 2 "):
        made.resolve(Setting(devices=4, rounds=1))
