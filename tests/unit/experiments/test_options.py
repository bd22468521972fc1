"""The table of options agrees with the experiment."""

from __future__ import annotations

import re
from typing import Any

import pytest

from drdsgd.errors import InputError, unknown
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.options import ALGORITHMS, DATASETS, GRAPHS, MIXINGS, OPTIONS, SCHEDULES, parse, spelling
from drdsgd.experiments.registry import OBJECTIVES, OPTIMIZERS, SERVERS


def test_options_and_fields_are_the_same_in_the_same_order() -> None:
    assert list(OPTIONS) == list(Experiment.model_fields)


def test_an_options_type_is_its_fields() -> None:
    """A value of the option's type is never refused because of its type, and one of another type is."""
    for name, option in OPTIONS.items():
        other = {str: 3, int: 2.5, float: "x"}[option.type]
        with pytest.raises(InputError, match=f"^{spelling(name)} {re.escape(str(other))}: "):
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


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if "; default" in option.help])
def test_the_help_says_the_true_default(name: str) -> None:
    said, _, exceptions = OPTIONS[name].help.rpartition("; default ")[2].partition(" (")
    default = getattr(Experiment(**relevant(name)), name)
    special: dict[str, Any] = {
        "none": None, "all cores": default, "sqrt(K T)": 55, "sqrt(K / T)": (10 / 300) ** 0.5, "all": None,
        "metropolis": None,
    }  # fmt: skip
    if name in ("local_steps", "gossip_steps", "mu_schedule"):
        special |= {"1": None, "constant": None}  # not set, so that the experiment has one description
    assert default == (special[said] if said in special else parse(name, said))
    for exception in filter(None, exceptions.removesuffix(")").split("; ")):
        methods, _, value = exception.partition(": ")
        if name not in ("gamma", "devices") or "dr-qgm" in methods:  # in words: smaller, its size
            for method in methods.split(", "):
                assert getattr(Experiment(**named(method)), name) == parse(name, value.partition(",")[0])


def named(method: str) -> dict[str, Any]:
    """The field that has this name as a value."""
    tables = {"algorithm": ALGORITHMS, "objective": OBJECTIVES, "optimizer": OPTIMIZERS, "dataset": DATASETS}
    return {next(field for field, known in tables.items() if method in known): method}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("rounds", "12", 12), ("eta", "1e-3", 0.001), ("mu", "3", 3.0), ("graph", "3", "3"), ("seed", "0", 0)],
)
def test_a_text_becomes_a_value_of_the_options_type(name: str, text: str, value: object) -> None:
    assert parse(name, text) == value
    assert type(parse(name, text)) is OPTIONS[name].type


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [("rounds", "2.5", "a whole number"), ("rounds", "", "a whole number"), ("mu", "six", "a number")],
)
def test_a_text_that_is_no_number_is_told_with_its_option(name: str, text: str, kind: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(name, text)
    assert str(caught.value) == f"{spelling(name)} {text}: not {kind} ({OPTIONS[name].help})"


@pytest.mark.parametrize("known", [ALGORITHMS, DATASETS, GRAPHS, MIXINGS, SCHEDULES, tuple(OPTIONS)])
def test_a_typing_error_is_answered_with_the_right_name(known: tuple[str, ...]) -> None:
    for name in known:
        if len(name) > 3 and not any(name[1:] in other for other in known if other != name):
            assert unknown(name[1:], known) == f"unknown, did you mean {name}?"
    assert unknown("???", known) == f"unknown; known are {', '.join(known)}"


def test_spelling() -> None:
    assert spelling("eval_every") == "--eval-every"
