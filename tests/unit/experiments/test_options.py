"""The table of options agrees with the experiment."""

from __future__ import annotations

from typing import Any

import pytest

from drdsgd.core.compression import COMPRESSIONS
from drdsgd.core.kernels import fastest_matmul
from drdsgd.core.schedules import SCHEDULES
from drdsgd.errors import InputError, option, unknown
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.fields import FIELDS
from drdsgd.experiments.registry import DATASETS, GRAPHS, METHODS, OBJECTIVES, OPTIMIZERS, OPTIONS, SERVERS, parse
from drdsgd.options import GROUPS
from drdsgd.topology.mixing import MIXINGS


def test_options_and_fields_are_the_same() -> None:
    assert OPTIONS.keys() == Experiment().model_dump().keys()
    assert FIELDS.keys() <= OPTIONS.keys()


def test_options_of_a_group_stand_together() -> None:
    groups = [one.option.group for one in OPTIONS.values()]
    assert groups == sorted(groups, key=GROUPS.index) and {*groups} == {*GROUPS}


def test_an_options_type_is_its_fields() -> None:
    """A value of the option's type is never refused because of its type, and one of another type is."""
    for name, one in OPTIONS.items():
        other = 3 if isinstance(one.kind, tuple) else {str: 3, int: 2.5, float: "x"}[one.kind]
        with pytest.raises(InputError, match=f"^{name}={other!r}: "):
            Experiment(**{**relevant(name), name: other})


def relevant(name: str) -> dict[str, Any]:
    """Fields of an experiment in which this field has an effect."""
    settings = {
        "alpha": {"partition": "dirichlet"},
        "heterogeneity": {"dataset": "synthetic"},
        "data_dir": {"dataset": "cifar10"},
    }
    for field, table in (("algorithm", SERVERS), ("optimizer", OPTIMIZERS), ("objective", OBJECTIVES)):
        settings |= {option: {field: rule} for rule, one in reversed(table.items()) for option in one.options}
    settings["gamma"] = {"optimizer": "choco"}  # on by default only there
    return settings.get(name, {})


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if "; default" in option.option.help])
def test_the_help_says_the_true_default(name: str) -> None:
    said, _, exceptions = OPTIONS[name].option.help.rpartition("; default ")[2].partition(" (")
    default = getattr(Experiment(**relevant(name)), name)
    special: dict[str, Any] = {
        "none": None, "all cores": default, "sqrt(K T)": 55, "sqrt(K / T)": (10 / 300) ** 0.5, "all": None,
        "onednn on AMD with AVX-512, else mkl": fastest_matmul.of({}), "metropolis": None,
        "10, or 25 if the model is not mlp or logistic": 10,
        "0.8, less for 2 bits, top and random": 0.8, "1, or 5 if the model is not mlp or logistic": 1,
    }  # fmt: skip
    if name in ("local_steps", "gossip_steps", "mu_schedule"):
        special |= {"1": None, "constant": None}  # not set, so that the experiment has one description
    assert default == (special[said] if said in special else parse(name, said))
    for exception in filter(None, exceptions.removesuffix(")").split("; ")):
        methods, _, value = exception.partition(": ")
        if name != "devices":  # in words: its size
            for method in methods.split(", "):
                assert getattr(Experiment(**named(method)), name) == parse(name, value.partition(",")[0])


def named(method: str) -> dict[str, Any]:
    """The field that has this name as a value."""
    tables = {"algorithm": METHODS, "objective": OBJECTIVES, "optimizer": OPTIMIZERS, "dataset": tuple(DATASETS)}
    return {next(field for field, known in tables.items() if method in known): method}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("rounds", "12", 12), ("eta", "1e-3", 0.001), ("mu", "3", 3.0), ("graph", "3", "3"), ("seed", "0", 0)],
)
def test_a_text_becomes_a_value_of_the_options_type(name: str, text: str, value: object) -> None:
    assert parse(name, text) == value
    assert type(parse(name, text)) is OPTIONS[name].kind


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [("rounds", "2.5", "a whole number"), ("rounds", "", "a whole number"), ("mu", "six", "a number")],
)
def test_a_text_that_is_no_number_is_told_with_its_option(name: str, text: str, kind: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(name, text)
    assert caught.value.on_command_line == f"{option(name)} {text}: not {kind} ({OPTIONS[name].option.help})"
    assert str(caught.value) == f"{name}={text!r}: not {kind} ({OPTIONS[name].option.help})"


@pytest.mark.parametrize("known", [METHODS, MIXINGS, SCHEDULES, COMPRESSIONS, (*DATASETS,), (*GRAPHS,), (*OPTIONS,)])
def test_a_typing_error_is_answered_with_the_right_name(known: tuple[str, ...]) -> None:
    for name in known:
        if len(name) > 3 and not any(name[1:] in other for other in known if other != name):
            assert unknown(name[1:], known) == f"unknown, did you mean {name}?"
    assert unknown("???", known) == f"unknown; known are {', '.join(known)}"


def test_spelling() -> None:
    assert option("eval_every") == "--eval-every"
