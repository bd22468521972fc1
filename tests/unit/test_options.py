"""Options: checked by type and bounds, found in signatures; old names of parameters warn and work."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch

import drdsgd
from drdsgd import objectives, optimizers, servers
from drdsgd.core import compression
from drdsgd.core.schedules import Schedule, schedule_of
from drdsgd.errors import InputError
from drdsgd.options import (
    Eta,
    GossipSteps,
    Momentum,
    Mu,
    Option,
    Parameter,
    Weights,
    checked,
    paper_step,
    parameters,
    renamed,
)
from tests.support.refusing import message

# ----------------------------------------------------------------------- check

BOUNDS: list[tuple[dict[str, Any], list[float], list[float], str]] = [
    ({"above": 0}, [1e-300, 1, 1e300], [0, -1], "greater than 0"),
    ({"least": 0}, [0, 1], [-1e-300, -1], "greater than or equal to 0"),
    ({"below": 1}, [0.999, -5], [1, 2], "less than 1"),
    ({"most": 1}, [1, -5], [1.001, 2], "less than or equal to 1"),
    ({"above": 0, "most": 1}, [0.5, 1], [1.5], "less than or equal to 1"),
]


@pytest.mark.parametrize(("bounds", "good", "bad", "says"), BOUNDS)
def test_bounds(bounds: dict[str, Any], good: list[float], bad: list[float], says: str) -> None:
    one = Parameter(Option("how much")._replace(**bounds), float, 1.0)
    for value in good:
        one.check("part", value)
    for value in bad:
        assert message(lambda v=value: one.check("part", v)) == f"part={value!r}: input should be {says} (how much)"  # type: ignore[misc]  # mypy can't type its default


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (int, [0, -3, 10**30, np.int64(3), np.uint8(3)], [2.0, "2", None, True, np.float64(2), [2]]),
        (float, [0, 0.5, np.float32(0.5), np.int64(3), 10**30], ["1", None, False, np.bool_(True), 1j, [1.0]]),
        (str, ["", "x"], [3, None, b"x"]),
        (bool, [True, False], [1, 0, "true", None]),
        (("one", "two"), ["one", "two"], ["three", "", 1, None, True]),
    ],
)
def test_types(kind: Any, good: list[Any], bad: list[Any]) -> None:
    """True and False are no numbers, and a whole number counts as a number; numpy's numbers are numbers."""
    one = Parameter(Option(""), kind, None)
    for value in good:
        one.check("x", value)
    for value in bad:
        with pytest.raises(InputError, match=r"^x(=.*)?: input should be "):
            one.check("x", value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_numbers_are_finite(value: float) -> None:
    message(lambda: Parameter(Option(""), float, 1.0).check("x", value), "input should be a finite number")


def test_a_whole_number_beyond_all_floats_is_no_number() -> None:
    one = Parameter(Option("", above=0), float, 1.0)
    one.check("mu", 10**300)
    message(lambda: one.check("mu", 10**400), "input should be a finite number")
    message(lambda: drdsgd.dr_dsgd(mu=10**400), "input should be a finite number")
    message(lambda: drdsgd.servers.ditto(pull=-(10**400)), "input should be a finite number")


def test_a_huge_whole_number_is_compared_exactly() -> None:
    rounds = Parameter(Option("", below=2**32), int, 1)
    rounds.check("rounds", 2**32 - 1)
    message(lambda: rounds.check("rounds", 2**32), "less than 4294967296")
    message(lambda: rounds.check("rounds", 10**400), "less than 4294967296")


def test_a_choice_lists_the_others() -> None:
    one = Parameter(Option(""), ("a", "b", "c"), "a")
    assert message(lambda: one.check("x", "d")) == "x='d': input should be 'a', 'b' or 'c'"


# ------------------------------------------------------------------ signatures


def mixed(
    theta: torch.Tensor,
    eta: Eta | Schedule = 0.1,
    mu: Mu = 2.0,
    weights: Weights = "normalized",
    steps: GossipSteps | None = None,
    plain: float = 3.0,
) -> None:
    """Options, and parameters that are none."""


def test_annotated_parameters_are_options() -> None:
    found = parameters(mixed)
    assert list(found) == ["eta", "mu", "weights", "steps"]
    assert {name: one.kind for name, one in found.items()} == {
        "eta": float, "mu": float, "weights": ("as-written", "without-mu", "normalized"), "steps": int,
    }  # fmt: skip
    assert {name: one.default for name, one in found.items()} == {
        "eta": 0.1, "mu": 2.0, "weights": "normalized", "steps": None,
    }  # fmt: skip
    assert {name for name, one in found.items() if one.schedule} == {"eta"}
    assert found["mu"].option.above == 0 and "robustness" in found["mu"].option.help


def own(
    level: Annotated[float, "the loss that counts"] = 1.0,
    part: Annotated[float, Option("a part", above=0, most=1)] = 0.5,
    steps: int = 2,
    even: bool = False,
    name: str = "x",
    kind: Literal["one", "two"] = "one",
    cap: float | None = None,
) -> None:
    """A function as a user may write it."""


def test_every_parameter_of_a_function_from_outside_is_an_option() -> None:
    found = parameters(own, foreign="my:own")
    kinds = [one.kind for one in found.values()]
    assert kinds == [float, float, int, bool, str, ("one", "two"), float]
    assert [one.default for one in found.values()] == [1.0, 0.5, 2, False, "x", "one", None]
    assert found["level"].option.help == "the loss that counts" and found["steps"].option.help == ""
    assert (found["part"].option.above, found["part"].option.most) == (0, 1)


def no_default(level: float) -> None: ...


def of_no_type(level=1.0) -> None: ...  # type: ignore[no-untyped-def]  # as users write


def a_list(level: list[float] = []) -> None: ...  # noqa: B006  # as users write


def a_schedule(level: Schedule = abs) -> None: ...


def a_number_of_a_few(level: Literal[1, 2] = 1) -> None: ...


def a_described_number_of_a_few(level: Annotated[Literal[1, 2], "one or two"] = 1) -> None: ...


def many(*level: float) -> None: ...


def any_name(**level: float) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (no_default, "has no default"),
        (of_no_type, "has no type"),
        (a_list, "has a type that no option can have (list[float])"),
        (a_schedule, "has a type that no option can have ("),
        (a_number_of_a_few, "has a type that no option can have ("),
        (a_described_number_of_a_few, "has a type that no option can have ("),
        (many, "has no default"),
        (any_name, "has no default"),
    ],
)
def test_a_parameter_that_cannot_be_an_option_is_refused(function: Callable[..., Any], says: str) -> None:
    text = message(lambda: parameters(function, foreign="my:own"))
    assert text.startswith(f"my:own: the parameter level {says}") and "; write level: float = 1.0 (or int, " in text
    assert parameters(function) == {}  # in the library they are no options


def a_text(level: float = "x") -> None: ...  # type: ignore[assignment]  # as users write


def a_fraction(level: int = 1.5) -> None: ...  # type: ignore[assignment]  # as users write


def another_choice(level: Literal["a", "b"] = "c") -> None: ...  # type: ignore[assignment]  # as users write


def too_large(level: Annotated[float, Option("a part", most=1)] = 2.0) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (a_text, "'x', and should be a valid number"),
        (a_fraction, "1.5, and should be a valid integer"),
        (another_choice, "'c', and should be 'a' or 'b'"),
        (too_large, "2.0, and should be less than or equal to 1"),
    ],
)
def test_a_wrong_default_is_the_functions_mistake(function: Callable[..., Any], says: str) -> None:
    text = message(lambda: parameters(function, foreign="my:own"))
    assert text == f"my:own: the default of the parameter level is {says}"


# --------------------------------------------------------------------- checked


@checked
def weighted(mu: Mu | Schedule = 6.0, weights: Weights = "as-written", momentum: Momentum | None = None) -> str:
    """A checked function."""
    return f"{mu} {weights} {momentum}"


def test_a_checked_function_does_what_it_did() -> None:
    assert weighted() == "6.0 as-written None"
    assert weighted(3.0, "normalized", momentum=0.5) == "3.0 normalized 0.5"
    assert weighted(momentum=None) == weighted()
    assert weighted.__name__ == "weighted" and parameters(weighted)["mu"].default == 6.0
    rule, schedule = paper_step, schedule_of("mu", 2.0)
    assert weighted(rule).startswith("sqrt(K / T)") and "function" in weighted(schedule)  # not numbers to check


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: weighted(0.0), "mu=0.0: input should be greater than 0"),
        (lambda: weighted(mu=np.float64(-1)), "mu=-1.0: input should be greater than 0"),
        (lambda: weighted(mu=np.float32(-1)), "mu=-1.0: input should be greater than 0"),  # type: ignore[arg-type]
        (lambda: weighted(mu=np.int64(-1)), "mu=-1: input should be greater than 0"),  # type: ignore[arg-type]
        (lambda: weighted(mu=True), "mu=True: input should be a valid number"),
        (lambda: weighted(mu="6"), "mu='6': input should be a valid number"),  # type: ignore[arg-type]
        (lambda: weighted(weights="foo"), "weights='foo': input should be 'as-written', "),  # type: ignore[arg-type]
        (lambda: weighted(weights=None), "weights: input should be 'as-written', "),  # type: ignore[arg-type]
        (lambda: weighted(momentum=1), "momentum=1: input should be less than 1"),
    ],
)
def test_a_checked_function_refuses_what_its_options_refuse(call: Callable[[], Any], says: str) -> None:
    assert message(call).startswith(says)


def test_a_wrong_call_is_pythons_error() -> None:
    with pytest.raises(TypeError, match="nu"):
        weighted(nu=3.0)  # type: ignore[call-arg]


# --------------------------------------------------------------------- renamed


@renamed(lam="pull")
@checked
def pulled(pull: Mu = 1.0) -> float:
    """A function whose parameter had another name."""
    return pull


def test_an_old_name_is_checked_as_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match=r"^pulled\(lam=\.\.\.\) is now pulled\(pull=\.\.\.\); "):
        assert pulled(lam=3.0) == 3.0  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning), pytest.raises(InputError, match=r"^pull=-1\.0: "):
        pulled(lam=-1.0)  # type: ignore[call-arg]
    assert pulled(pull=3.0) == pulled(3.0) == 3.0  # without a warning, which would be an error
    assert list(parameters(pulled)) == ["pull"]


@pytest.mark.parametrize(
    ("function", "old", "new"),
    [
        (servers.ditto, {"lam": 0.5}, {"pull": 0.5}),
        (servers.fed_term, {"t": 2.0}, {"tilt": 2.0}),
        (objectives.term, {"t": 2.0}, {"tilt": 2.0}),
        (partial(objectives.smoothed, objectives.erm()), {"beta": 0.2}, {"loss_smoothing": 0.2}),
        (optimizers.momentum, {"beta": 0.5}, {"momentum": 0.5}),
        (optimizers.quasi_global_momentum, {"beta": 0.5}, {"momentum": 0.5}),
        (optimizers.gt_adam, {"beta": 0.5, "beta2": 0.6}, {"momentum": 0.5, "second_momentum": 0.6}),
    ],
    ids=lambda one: "" if isinstance(one, dict) else getattr(one, "__name__", "smoothed"),
)
def test_old_names_warn_and_mean_the_same(
    function: Callable[..., Any], old: dict[str, float], new: dict[str, float]
) -> None:
    with pytest.warns(DeprecationWarning) as told:
        made = function(**old)
    for (before, now), warning in zip(zip(old, new, strict=True), told, strict=True):
        assert f"({before}=...) is now " in str(warning.message) and f"({now}=...)" in str(warning.message)
        assert warning.filename == __file__  # it names the user's line
    assert type(made) is type(function(**new))
    with pytest.warns(DeprecationWarning), pytest.raises(InputError, match=f"^{[*new][-1]}=-1.0: "):
        function(**{name: -1.0 if name == [*old][-1] else value for name, value in old.items()})


@pytest.mark.parametrize(
    "call",
    [
        lambda: optimizers.gt_adam(0.1, momentum=0.9, beta=0.5),  # type: ignore[call-arg]
        lambda: servers.ditto(0.1, pull=1.0, lam=2.0),  # type: ignore[call-arg]  # a wrong call
        lambda: objectives.term(tilt=1.0, t=2.0),  # type: ignore[call-arg]
    ],
)
def test_an_old_and_a_new_name_together_are_pythons_error(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"two values for (momentum|pull|tilt)$"):
        call()


def test_old_ways_warn_at_the_users_line() -> None:
    """A loss clip inside kl-dro, and an exchange inside dsgd: by name and by position."""
    clip, compressed = objectives.clipped, optimizers.compressed(compression.top_k(0.1), 0.5)
    with pytest.warns(DeprecationWarning, match=r"^kl_dro\(loss_clip=\.\.\.\) is now clipped\(") as told:
        old = objectives.kl_dro(2.0, loss_clip=1.0)
    loss, hosted = torch.tensor([0.5, 9.0]), objectives.LocalDevices.all_of(torch.ones(2))
    new = clip(objectives.kl_dro(2.0), 1.0)
    assert torch.equal(old.weigh(loss, old.init(hosted), 0), new.weigh(loss, new.init(hosted), 0))
    ways: list[Callable[[], Any]] = [
        lambda: optimizers.dsgd(0.1, compressed),
        lambda: optimizers.dsgd(0.1, exchange=compressed),
    ]
    for make in ways:
        with pytest.warns(DeprecationWarning, match=r"^dsgd\(eta, exchange\) is now choco\(eta, exchange\); ") as more:
            made = make()
        assert [one.filename for one in (*told, *more)] == [__file__] * 2
        assert sorted(made.init(torch.zeros(2, 3))) == ["hat", "mixed_hat"]


def test_positions_of_old_keep_their_meaning() -> None:
    """servers.rfa(eta, iterations, nu, ...): a number of iterations would do as a number of local steps."""
    assert list(inspect.signature(servers.rfa).parameters)[:5] == ["eta", "iterations", "nu", "local_steps", "clients"]


def test_an_old_name_has_the_effect_of_the_new_one() -> None:
    """Momentum 0.5 moves a model by half of its last step."""

    class Once:
        def add_to(self, x: torch.Tensor, scale: float) -> None:
            x.add_(torch.ones_like(x), alpha=scale)

    def moved(optimizer: Any) -> float:
        theta = torch.zeros(1, 1)
        state = optimizer.init(theta)
        for t in range(2):
            optimizer.local(theta, Once(), state, t)
        return float(theta)

    with pytest.warns(DeprecationWarning):
        old = optimizers.momentum(0.1, beta=0.5)  # type: ignore[call-arg]
    assert moved(old) == moved(optimizers.momentum(0.1, momentum=0.5)) == pytest.approx(-0.25)
    assert moved(optimizers.momentum(0.1)) == pytest.approx(-0.29)


@pytest.mark.parametrize(
    ("old", "new"), [("fed_avg", "fedavg"), ("q_fed_avg", "q_fedavg"), ("fed_robust", "fedrobust")]
)
def test_old_names_of_servers_warn_and_mean_the_same(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"^servers.{old} is now servers.{new}; ") as told:
        assert getattr(servers, old) is getattr(servers, new)
    assert told[0].filename == __file__


def test_a_name_that_no_server_ever_had_is_not_there() -> None:
    assert not hasattr(servers, "fed_avgg")


def test_names_for_type_checkers_only_do_not_hide_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "for_checkers.py").write_text(
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING, Annotated\n"
        "if TYPE_CHECKING:\n"
        "    from nowhere import Nothing\n"
        "def made(level: Annotated[float, 'a level'] = 2.0, more: int = 3) -> Nothing: ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    function = importlib.import_module("for_checkers").made
    found = parameters(function, foreign="for_checkers:made")
    assert {name: (one.kind, one.default) for name, one in found.items()} == {"level": (float, 2.0), "more": (int, 3)}
    assert found["level"].option.help == "a level"
