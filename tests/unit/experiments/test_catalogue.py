"""catalogue.json holds what the library's functions declare."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from drdsgd.baselines import SERVERS
from drdsgd.core.algorithms import ALGORITHMS
from drdsgd.core.objectives import OBJECTIVES
from drdsgd.core.optimizers import OPTIMIZERS
from drdsgd.data.partition import PARTITIONS
from drdsgd.experiments import catalogue, registry
from drdsgd.experiments.fields import FIELDS
from drdsgd.options import IN_PYTHON, Parameter, Rule
from drdsgd.topology.graphs import GRAPHS
from drdsgd.training.algorithms import constructor


def test_the_catalogue_is_fresh() -> None:
    written = catalogue.FILE.read_text(encoding="utf-8")
    assert written == catalogue.text(), "run: python -m drdsgd.experiments.catalogue"
    assert catalogue.FILE == registry.FILE


def test_the_command_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "FILE", tmp_path / "catalogue.json")
    catalogue.main()
    assert (tmp_path / "catalogue.json").read_text(encoding="utf-8") == catalogue.text()


def test_every_method_is_in_it() -> None:
    assert [*registry.ALGORITHMS] == [*ALGORITHMS] and [*registry.SERVERS] == [*SERVERS]
    assert [*registry.OBJECTIVES] == [*OBJECTIVES] and [*registry.OPTIMIZERS] == [*OPTIMIZERS]
    assert [*registry.GRAPHS] == [*GRAPHS] and [*registry.PARTITIONS] == [*PARTITIONS]


@pytest.mark.parametrize("name", [*ALGORITHMS, *SERVERS])
def test_every_option_of_every_method_is_an_option_as_its_function_declares_it(name: str) -> None:
    for key, declared in constructor(name).parameters.items():
        if declared.option.group != IN_PYTHON:
            assert _bounds(registry.OPTIONS[key]) == _bounds(declared)
            assert declared.option.help in registry.OPTIONS[key].option.help


def _bounds(one: Parameter) -> tuple[object, ...]:
    o = one.option
    return one.kind, o.group, o.above, o.least, o.below, o.most


def test_every_option_of_graphs_data_sets_and_runs_is_an_option() -> None:
    tables = [*registry.GRAPHS.values(), *registry.DATASETS.values(), *registry.PARTITIONS.values()]
    for options in (*tables, registry.SHARED, registry.GOSSIP, registry.TRAINING):
        assert options.keys() <= registry.OPTIONS.keys()


def test_every_option_belongs_to_something() -> None:
    """No option is left that no function declares."""
    methods = [one.options for table in (registry.OBJECTIVES, registry.OPTIMIZERS) for one in table.values()]
    tables = [*registry.GRAPHS.values(), *registry.DATASETS.values(), *registry.PARTITIONS.values(), *methods]
    servers = [one.options for one in registry.SERVERS.values()]
    known = {*FIELDS}.union(registry.SHARED, registry.GOSSIP, registry.TRAINING, *tables, *servers)
    assert known == registry.OPTIONS.keys()


def test_rules_are_known_by_their_words() -> None:
    """Every rule in the file is a `Rule` again when it is read."""
    written = json.loads(catalogue.text())
    tables = {"objectives": registry.OBJECTIVES, "optimizers": registry.OPTIMIZERS, "servers": registry.SERVERS}
    for kind, table in tables.items():
        for name, one in written[kind].items():
            for key, value in one["options"].items():
                read = table[name].options[key]
                assert isinstance(read, Rule) == isinstance(value, dict)
                assert (read.words if isinstance(read, Rule) else read) == (
                    value["rule"] if isinstance(value, dict) else value
                )


def test_help_has_no_places_left_to_fill_in() -> None:
    for name, one in registry.OPTIONS.items():
        assert one.option.help and "{" not in one.option.help, name
        assert not one.option.help.endswith("."), name


def test_texts_name_no_argument_of_python() -> None:
    """The command line has dashes, and Python has not."""
    texts = [one.option.help for one in registry.OPTIONS.values()]
    for table in (registry.OBJECTIVES, registry.OPTIMIZERS, registry.SERVERS):
        texts += [one.sends for one in table.values()]
    names = {name for name in registry.OPTIONS if "_" in name}
    assert [text for text in texts if "--" in text or names & {*re.findall(r"\w+", text)}] == []
