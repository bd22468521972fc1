"""Labels say how groups of runs differ, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drdsgd.errors import InputError
from drdsgd.experiments.records import find_runs
from drdsgd.report.groups import groups
from tests.support.made import record
from tests.support.made import study as study  # a fixture


def labels(*fields: dict[str, Any]) -> list[str]:
    return list(groups([record([50, 60], **each) for each in fields]))


def test_labels_say_what_differs_and_no_more() -> None:
    assert labels({"algorithm": "dr-dsgd"}, {"algorithm": "dsgd"}) == ["dsgd", "dr-dsgd"]
    assert labels({"mu": 3.0}, {"mu": 6.0}, {"algorithm": "dsgd"}) == ["dsgd", "dr-dsgd mu=3", "dr-dsgd mu=6"]
    assert labels({"eta": 0.25}, {"eta": 0.5, "algorithm": "dsgd"}) == ["dsgd eta=0.5", "dr-dsgd eta=0.25"]
    # one group has it and the other does not
    assert labels({}, {"loss_clip": 5.0}) == ["dr-dsgd", "dr-dsgd loss_clip=5"]
    # with another objective or optimizer it is another method
    assert labels({"algorithm": "dsgd"}, {"objective": "q-ffl", "optimizer": "d2"}) == ["dsgd", "q-ffl + d2"]
    assert labels({"objective": "q-ffl", "q": 1.0}, {"objective": "q-ffl", "q": 2.0}) == [
        "q-ffl + dsgd q=1", "q-ffl + dsgd q=2"
    ]  # fmt: skip
    assert labels({"optimizer": "d2"}, {"algorithm": "dsgd", "objective": "kl-dro", "optimizer": "d2"}) == [
        "dsgd objective=kl-dro optimizer=d2", "dr-dsgd optimizer=d2"
    ]  # fmt: skip
    # the name of a method implies its defaults: dr-qgm has another mu, step size, momentum and smoothing
    assert labels({"algorithm": "dr-qgm"}, {"algorithm": "dr-gt-adam"}, {}) == ["dr-dsgd", "dr-qgm", "dr-gt-adam"]
    assert labels({"algorithm": "dr-qgm", "mu": 2.0}, {"algorithm": "dr-gt-adam"}) == ["dr-qgm mu=2", "dr-gt-adam"]
    assert labels({"algorithm": "gt-adam"}, {"algorithm": "gt-adam", "eta": 0.02}, {"algorithm": "dsgd"}) == [
        "dsgd", "gt-adam eta=0.01", "gt-adam eta=0.02",
    ]  # fmt: skip
    assert labels({"algorithm": "choco-sgd"}, {"algorithm": "dr-gt-adam"}) == ["choco-sgd", "dr-gt-adam"]
    # but a name that lists the parts does not
    plain, exchanged = labels({}, {"algorithm": "dr-qgm", "optimizer": "dsgd"})
    assert plain == "dr-dsgd" and exchanged.startswith("kl-dro + dsgd") and "weights=normalized" in exchanged
    # where they were run does not matter
    assert labels({"threads": 1}, {"threads": 2, "seed": 1}) == ["dr-dsgd"]
    assert labels({"eta": 0.123456}, {"eta": 0.123457}) == ["dr-dsgd eta=0.123456", "dr-dsgd eta=0.123457"]
    assert labels({"graph": "some/where/a.csv"}, {"graph": "b.csv"}) == ["dr-dsgd graph=a.csv", "dr-dsgd graph=b.csv"]
    assert labels({"graph": "x/a.csv"}, {"graph": "y/a.csv"}) == ["dr-dsgd graph=x/a.csv", "dr-dsgd graph=y/a.csv"]
    assert groups([]) == {}


def test_a_group_is_sorted_by_seed_and_has_a_seed_once(study: Path) -> None:
    found = groups(reversed(find_runs([study])))
    assert list(found) == ["dsgd", "dr-dsgd"]
    assert [r.experiment.seed for r in found["dsgd"]] == [0, 1]
    with pytest.raises(InputError, match="same experiment"):
        groups([record([50, 60]), record([50, 70])])
