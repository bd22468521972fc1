"""User-defined functions: one function adds an objective or an optimizer, and its parameters are options everywhere."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import drdsgd as library
from drdsgd.cli import app
from drdsgd.cli.options import declare
from drdsgd.errors import InputError
from drdsgd.experiments import records, registry
from drdsgd.experiments.build import make_data, make_graph, make_model
from drdsgd.experiments.compare import Study, compare
from drdsgd.experiments.config import Experiment, load
from drdsgd.experiments.run import run
from drdsgd.report.groups import groups
from tests.support.program import FIELDS, SMALL, Said, assert_same_run, begun, drdsgd, one_line, refused, saved, small
from tests.support.refusing import message

MINE = '''
"""An objective and an optimizer, as a user writes them."""

from typing import Annotated, Literal

from torch import nn

from drdsgd import objectives, optimizers
from drdsgd.options import Eta, Mu, Option

NUMBER = 3


def above(level: Annotated[float, "the loss that counts"] = 1.0) -> objectives.Objective:
    """Devices whose loss is above a level count twice.

    More about it.
    """
    def weigh(loss, state, t):
        return state["share"] * (1 + (loss > level))

    return objectives.Objective(lambda hosted: {"share": hosted.share}, weigh)


def part_of(
    eta: Eta = 0.2, part: Annotated[float, Option("part of the step", above=0, most=1)] = 0.5
) -> optimizers.GossipOptimizer:
    """DSGD with shorter steps."""
    return optimizers.dsgd(eta * part)


def of_all_kinds(
    steps: int = 2, even: bool = True, name: str = "x", kind: Literal["one", "two"] = "one", cap: float | None = None,
    mu: Mu = 3.0,
) -> objectives.Objective:
    return objectives.kl_dro(mu)


def net(shape, classes):
    return nn.Linear(shape[0], classes)


# what cannot be used
def without_default(level: float): ...
def of_a_list(level: list = []): ...
def without_type(level=1.0): ...
def of_numbers(k: Literal[1, 2] = 1): ...
def with_text(level: float = "x"): ...
def unreadable(level: "float[" = 1.0): ...
def with_rounds(rounds: int = 3, eta: float = 0.1): ...
def with_out(out: str = "x"): ...
def with_eta(eta: float = 3.0): ...
def with_gamma(gamma: float = 3.0): ...
def with_clip(loss_clip: float = 3.0): ...
def with_deadline(deadline: float = 1.0): ...
def with_port(port: int = 1): ...
def with_patience(patience: float = 1.0): ...
def with_copy(copy: float = 1.0) -> objectives.Objective: return objectives.erm()
def with_replace(replace: float = 1.0) -> objectives.Objective: return objectives.erm()
def with_to_toml(to_toml: float = 1.0) -> objectives.Objective: return objectives.erm()
def with_line(_level: float = 1.0) -> objectives.Objective: return objectives.erm()
def with_rho(rho: float = 1.0) -> objectives.Objective: return objectives.erm()
def step_with_rho(eta: float = 0.1, rho: float = 0.5) -> optimizers.GossipOptimizer: return optimizers.dsgd(eta)
def a_number(level: float = 1.0): return 3
def an_optimizer(level: float = 1.0): return optimizers.dsgd(0.1)
def raising(level: float = 1.0): raise KeyError("level")
def without_eta(part: float = 0.1): return optimizers.dsgd(part)
def step(eta: float = 0.1): return optimizers.dsgd(eta)
def an_objective(eta: float = 0.1): return objectives.erm()
'''
OWN = ("--objective", "mine:above")
BROKEN = "import not_installed_anywhere\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the user's module in it; no other folder has it."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    (folder / "broken.py").write_text(BROKEN)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    importlib.invalidate_caches()
    registry._part.cache_clear()
    return folder


def train(out: str | Path, *options: str) -> Path:
    """The folder of a small run, by the command line."""
    said = drdsgd("train", *SMALL, "--algorithm", "dsgd", *options, "--out", out)
    assert said.status == 0, said.err
    return Path(out)


def theta(path: Path) -> bytes:
    """The models at the end of a run."""
    return saved(path).state.theta.numpy().tobytes()


def weights(path: Path) -> list[float]:
    return records.read(path).final.weights


# ---------------------------------------------------------------- an objective


def test_the_option_has_its_effect(here: Path) -> None:
    """Above all losses nothing counts twice, so it is average risk; below all losses every device does."""
    average = train("average")
    high, low = train("high", *OWN, "--level", "1e9"), train("low", *OWN, "--level", "-1")
    assert theta(high) == theta(average) and weights(high) == weights(average)
    assert weights(low) == pytest.approx([2 * weight for weight in weights(average)])
    assert theta(low) != theta(average)
    default, one = train("default", *OWN), train("one", *OWN, "--level", "1")
    assert_same_run(default, one)


def test_config_states_it_and_starts_the_same_run(here: Path) -> None:
    first = train("first", *OWN, "--level", "2")
    written = load(first / "config.toml")
    assert (written["objective"], written["level"]) == ("mine:above", 2.0)
    assert load(train("default", *OWN) / "config.toml")["level"] == 1.0
    again = drdsgd("train", first / "config.toml", "--out", "again")
    assert again.status == 0, again.err
    assert_same_run(first, here / "again")
    other = drdsgd("train", first / "config.toml", "--level", "-1", "--out", "other")
    assert other.status == 0 and weights(here / "other") != weights(first)


def test_a_toml_file_has_it(here: Path) -> None:
    (here / "run.toml").write_text('algorithm = "dsgd"\nobjective = "mine:above"\nlevel = -1.0\n')
    assert drdsgd("train", "run.toml", *SMALL, "--out", "run").status == 0
    assert theta(here / "run") == theta(train("same", *OWN, "--level", "-1"))
    (here / "run.toml").write_text('objective = "mine:above"\nlevle = 2.0\n')
    assert refused("train", "run.toml") == "the key 'levle' is unknown, did you mean level?"


def test_a_report_needs_no_code_of_the_user(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = here / train("run", *OWN, "--level", "2")
    (here / "mine.py").unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(here)])
    monkeypatch.delitem(sys.modules, "mine")
    registry._part.cache_clear()
    said = drdsgd("report", path)
    assert said.status == 0 and "mine:above + dsgd" in said.out, said.err
    assert records.read(path).experiment.level == 2.0
    assert "No module named 'mine'" in refused("train", "--resume", "--out", begun_again(path))


def begun_again(path: Path) -> Path:
    """The run without its end."""
    (path / "summary.json").unlink()
    return path


def test_a_run_is_continued(here: Path) -> None:
    fields: dict[str, Any] = {"algorithm": "dsgd", "objective": "mine:above", "level": -1.0}
    path = begun(here / "run", **fields)
    assert refused("train", "--resume", "--level", "3", "--out", path).startswith("--level 3.0: the run in ")
    said = drdsgd("train", "--resume", "--out", path)
    assert said.status == 0, said.err
    run(small(**fields), here / "whole")
    assert_same_run(path, here / "whole")


def test_help_shows_it_only_with_its_function() -> None:
    said = drdsgd("train", *OWN, "--help")
    line = next(line for line in said.out.splitlines() if "--level" in line)
    assert said.status == 0 and "NUMBER" in line and "mine:above: the loss that counts; default 1.0" in line
    compared = drdsgd("compare", "--algorithm", "dsgd:objective=mine:above", "--help")
    assert compared.status == 0 and "--level" in compared.out
    assert "--level" not in drdsgd("train", "--help").out
    assert refused("train", "--level", "2").startswith("No such option: --level")


def test_the_command_algorithms_describes_it() -> None:
    said = drdsgd("algorithms", "mine:above")
    assert said.status == 0 and "Devices whose loss is above a level count twice." in said.out
    assert "--level 1.0" in said.out and "More about it" not in said.out
    said = drdsgd("algorithms", "mine:part_of")
    assert said.status == 0 and "--eta 0.2 --part 0.5" in said.out and "loss-clip" not in said.out


def test_the_command_algorithms_needs_no_annotation_and_names_no_option() -> None:
    said = drdsgd("algorithms", "mine:step")
    assert said.status == 0 and "--eta 0.1" in said.out, said.err
    assert refused("algorithms", "mine:nothing").startswith("mine:nothing: AttributeError: ")
    assert refused("algorithms", "mine:with_gamma").startswith("mine:with_gamma: the parameter gamma has the name of")


def test_help_lists_the_choices_of_a_literal() -> None:
    said = drdsgd("train", "--objective", "mine:of_all_kinds", "--help")
    line = next(line for line in said.out.splitlines() if "--kind" in line)
    assert "option of mine:of_all_kinds (one or two); default one" in line


def test_a_comparison_has_it(here: Path) -> None:
    specs = ["--algorithm", "dsgd", "--algorithm", "dsgd:objective=mine:above,level=-1"]
    said = drdsgd("compare", *SMALL, *specs, "--seeds", "1", "--out", "both")
    assert said.status == 0, said.err
    with_it, without = (here / "both" / name / "seed-0" for name in ("dsgd-objective=mine-above-level=-1", "dsgd"))
    assert load(with_it / "config.toml")["level"] == -1.0 and "level" not in load(without / "config.toml")
    assert weights(with_it) == pytest.approx([2 * weight for weight in weights(without)])
    more = drdsgd("compare", "--resume", "--seeds", "2", "--out", "both")
    assert more.status == 0, more.err
    assert records.read(with_it.with_name("seed-1")).status == "finished"


@pytest.mark.parametrize("specs", [
    ("dsgd", "dsgd:objective=mine:above,level=.5"),
    ("dsgd:objective=mine:above,level=.5", "dsgd"),
    ("dsgd", "dsgd:objective=mine:above,level=.5", "dsgd:objective=mine:above,level=.2"),
    ("dsgd:objective=mine:above,level=.5", "dsgd:objective=mine:above,level=.2", "dsgd"),
])  # fmt: skip
def test_a_table_has_a_row_for_each_algorithm_of_a_comparison(specs: tuple[str, ...]) -> None:
    """Whichever comes first: only some of the runs have the options of the user's function."""
    options = {**FIELDS, "rounds": 1, "devices": 4}
    rows = groups(compare(Study(specs, (0, 1), options), Path("out")))
    both = ["mine:above + dsgd level=0.2", "mine:above + dsgd level=0.5"]
    assert sorted(rows) == ["dsgd", *(both if len(specs) == 3 else ["mine:above + dsgd level=0.5"])]
    assert [len(runs) for runs in rows.values()] == [2] * len(specs)


def test_a_table_has_a_row_for_algorithms_without_the_shared_option() -> None:
    """The server of fedavg takes no objective."""
    options = {**FIELDS, "rounds": 1, "devices": 4, "objective": "mine:above", "level": 0.3}
    for specs in (("dsgd", "fedavg"), ("fedavg", "dsgd")):
        rows = groups(compare(Study(specs, (0,), options), Path("-".join(specs))))
        assert list(rows) == ["mine:above + dsgd", "fedavg"]


def test_algorithms_of_a_comparison_share_it(here: Path) -> None:
    """Only those that have the option get it."""
    specs = ("dsgd", "dr-dsgd", "fedavg", "dsgd:objective=mine:above,level=3")
    study = Study(specs, (0,), {"objective": "mine:above", "level": 2.0, "dataset": "synthetic"})
    fields = [cell.experiment.model_dump() for cell in Study(specs[2:], (0,), study.options).cells(here)]
    assert [one.get("level") for one in fields] == [None, 3.0]
    made = compare(Study(("dsgd", "fedavg"), (0,), {**study.options, "rounds": 1, "devices": 4}), here / "out")
    assert [record.experiment.model_dump().get("level") for record in made] == [2.0, None]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("dsgd:objective=mine:above,levle=2", "the key 'levle' is unknown, did you mean level?"),
        ("dsgd:objective=mine:above,level=x", "--level x: not a number (mine:above: the loss that counts"),
        ("dsgd:objective=mine:nothing", "module 'mine' has no attribute 'nothing'"),
        ("dsgd:level=2", "the key 'level' is unknown"),
    ],
)
def test_mistakes_in_a_comparison_are_one_line(spec: str, says: str) -> None:
    assert says in refused("compare", *SMALL, "--algorithm", "dsgd", "--algorithm", spec, "--out", "out")


def test_python_has_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a value, and as a field of an experiment."""
    monkeypatch.syspath_prepend(str(here))
    above = importlib.import_module("mine").above
    e = small(algorithm="dsgd", objective="mine:above", level=-1)
    assert e.model_dump()["level"] == -1.0 and Experiment(**e.model_dump()) == e
    assert e.replace(level=2.0) != e
    run(e, here / "run")
    data = make_data(e)
    made = library.algorithm("dsgd", objective=above, level=-1.0)
    result = library.train(make_model(e, data), data, make_graph(e), made, rounds=e.rounds, threads=1)
    assert result.theta.numpy().tobytes() == theta(here / "run")
    assert made.name == "above + dsgd with level = -1"


# ---------------------------------------------------------------- an optimizer


def test_an_optimizer_has_options_with_bounds(here: Path) -> None:
    step = ("--optimizer", "mine:part_of")
    half = train("half", *step, "--eta", "0.2", "--part", "0.5")
    assert theta(half) == theta(train("default", *step)) == theta(train("plain", "--eta", "0.1"))
    assert theta(train("whole", *step, "--part", "1")) == theta(train("long", "--eta", "0.2"))
    says = "--part 2.0: input should be less than or equal to 1 (mine:part_of: part of the step; default 0.5)"
    assert refused("train", *SMALL, *step, "--part", "2", "--out", "out") == says
    assert refused("train", *SMALL, *step, "--eta", "-1", "--out", "out").startswith("--eta -1.0: input should be gre")
    assert not (here / "out").exists()
    message(lambda: small(optimizer="mine:part_of", part=0), "part=0: input should be greater than 0")


def test_an_objective_and_an_optimizer_together(here: Path) -> None:
    both = train("both", *OWN, "--level", "-1", "--optimizer", "mine:part_of", "--part", "1")
    assert theta(both) == theta(train("same", *OWN, "--level", "-1", "--eta", "0.2"))


def test_options_of_all_kinds(here: Path) -> None:
    given = ["--steps", "3", "--even", "false", "--name", "y", "--kind", "two", "--cap", "1.5", "--mu", "2"]
    path = train("run", "--objective", "mine:of_all_kinds", *given)
    written = load(path / "config.toml")
    names = ("steps", "even", "name", "kind", "cap", "mu")
    assert [written[name] for name in names] == [3, False, "y", "two", 1.5, 2.0]
    left = load(train("default", "--objective", "mine:of_all_kinds") / "config.toml")
    assert [left.get(name) for name in names] == [2, True, "x", "one", None, 3.0]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--steps", "1.5"], "--steps 1.5: not a whole number (option of mine:of_all_kinds; default 2)"),
        (["--even", "maybe"], "--even maybe: not true or false"),
        (["--kind", "three"], "--kind three: input should be 'one' or 'two'"),
        (["--cap", "nan"], "--cap nan: input should be a finite number"),
        (["--mu", "0"], "--mu 0.0: input should be greater than 0"),
        (["--level", "2"], "No such option: --level"),
    ],
)
def test_a_wrong_value_is_one_line(given: list[str], says: str, here: Path) -> None:
    line = refused("train", *SMALL, "--objective", "mine:of_all_kinds", *given, "--out", "out")
    assert line.startswith(says) and not (here / "out").exists()


# --------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere:f", "No module named 'nowhere'; the folder that holds it must be the current one, or in PYTHONPATH"),
        ("mine.deeper:f", "No module named 'mine.deeper'; 'mine' is not a package"),
        ("broken:f", "ModuleNotFoundError: No module named 'not_installed_anywhere'"),
        ("mine:nothing", "AttributeError: module 'mine' has no attribute 'nothing'"),
        ("mine:", "AttributeError: module 'mine' has no attribute ''"),
        (":above", "ValueError: Empty module name"),
        ("mine:NUMBER", "it is an int, not a function"),
        ("mine:without_default", "the parameter level has no default; write level: float = 1.0 (or int, bool, str, "),
        ("mine:of_a_list", "the parameter level has a type that no option can have (list); write level: float = 1.0"),
        ("mine:without_type", "the parameter level has no type; write level: float = 1.0"),
        (
            "mine:of_numbers",
            "the parameter k has a type that no option can have (typing.Literal[1, 2]); write ",
        ),
        ("mine:with_text", "the default of the parameter level is 'x', and should be a valid number"),
        ("mine:unreadable", "its parameters cannot be read: SyntaxError: "),
        ("builtins:min", "its parameters cannot be read: ValueError: no signature found"),
        ("mine:with_rounds", "the parameter rounds has the name of another option; rename it"),
        ("mine:with_out", "the parameter out has the name of another option; rename it"),
        *(
            (f"mine:with_{name}", f"the parameter {name} has the name of another option; rename it")
            for name in ("deadline", "port", "patience", "copy", "replace", "to_toml")
        ),
        ("mine:with_line", "the parameter _level has the name of another option; rename it"),
        ("mine:with_eta", "the parameter eta has the name of another option; rename it"),
        ("mine:with_gamma", "the parameter gamma has the name of another option; rename it"),
        ("mine:with_clip", "the parameter loss_clip has the name of another option; rename it"),
        ("mine:a_number", "it returned an int, and must return an Objective (drdsgd.objectives)"),
        ("mine:an_optimizer", "it returned a GossipOptimizer, and must return an Objective (drdsgd.objectives)"),
        ("mine:raising", "KeyError: 'level'"),
    ],
)
def test_an_objective_that_cannot_be_used_is_one_line(name: str, says: str, here: Path) -> None:
    line = refused("train", *SMALL, "--objective", name, "--out", "out")
    assert line.startswith(f"--objective {name}: {says}") and not (here / "out").exists()
    with pytest.raises(InputError) as caught:
        run(small(objective=name), here / "out")
    assert str(caught.value).startswith(f"objective='{name}': {says}")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mine:without_eta", "an optimizer needs a parameter eta; write eta: float = 0.1"),
        ("mine:above", "an optimizer needs a parameter eta"),
        ("mine:an_objective", "it returned an Objective, and must return a GossipOptimizer (drdsgd.optimizers)"),
        ("mine:with_rounds", "the parameter rounds has the name of another option; rename it"),
    ],
)
def test_an_optimizer_that_cannot_be_used_is_one_line(name: str, says: str, here: Path) -> None:
    line = refused("train", *SMALL, "--optimizer", name, "--out", "out")
    assert line.startswith(f"--optimizer {name}: {says}") and not (here / "out").exists()


def test_names_of_commands_options_are_those_of_the_commands() -> None:
    """A parameter with such a name would be declared twice."""

    def names(command: Any) -> set[str]:
        if hasattr(command, "commands"):
            return set[str]().union(*map(names, command.commands.values()))
        words = [word for one in command.params for word in (one.name or "", *one.opts, *one.secondary_opts)]
        return {word.lstrip("-").replace("-", "_") for word in words} if "--graph" in words else set()

    declare([])  # forget the options of functions that other tests in this process named
    assert names(typer.main.get_command(app)) | {"help"} == {*registry.OPTIONS, *registry.OF_COMMANDS}


def test_two_functions_have_no_parameter_in_common(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One value would go to both."""
    both = ("--objective", "mine:with_rho", "--optimizer", "mine:step_with_rho")
    says = "both have a parameter rho; rename one"
    for more in ((), ("--rho", "2")):
        line = refused("train", *SMALL, *both, *more, "--out", "out")
        assert line == f"--objective mine:with_rho, --optimizer mine:step_with_rho: {says}"
    spec = "dsgd:objective=mine:with_rho,optimizer=mine:step_with_rho"
    assert says in refused("compare", *SMALL, "--algorithm", spec, "--out", "out") and not (here / "out").exists()
    message(lambda: small(objective="mine:with_rho", optimizer="mine:step_with_rho"), says)
    monkeypatch.syspath_prepend(str(here))
    mine = importlib.import_module("mine")
    message(lambda: library.algorithm("dsgd", objective=mine.with_rho, optimizer=mine.step_with_rho), says)


def test_python_refuses_names_that_algorithms_have(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(here))
    mine = importlib.import_module("mine")
    for name in ("eta", "rounds", "gamma", "loss_clip"):
        function = getattr(mine, "with_clip" if name == "loss_clip" else f"with_{name}")
        text = message(lambda f=function: library.algorithm("dsgd", objective=f))  # type: ignore[misc]  # mypy can't type its default
        assert text.endswith(f": the parameter {name} has the name of another option; rename it")


def test_python_takes_the_name_of_a_function() -> None:
    made = library.algorithm("dsgd", objective="mine:above", optimizer="mine:part_of", level=2.0)
    assert made.name == "mine:above + mine:part_of with level = 2, part = 0.5"
    message(
        lambda: library.algorithm("dsgd", objective="mine:a_number"), "objective='mine:a_number': it returned an int"
    )
    message(lambda: library.algorithm("dsgd", objective="mine:nothing"), "has no attribute 'nothing'")


def test_a_server_has_no_parts_to_replace() -> None:
    line = refused("train", *SMALL, "--algorithm", "fedavg", *OWN)
    assert line.startswith("--objective mine:above does nothing here: it needs an algorithm without a server")


# ----------------------------------------------------------- the current folder


def program(*arguments: str, cwd: Path) -> Said:
    """`drdsgd ARGUMENTS` in a process of its own, as a user starts it: without PYTHONPATH."""
    command = [str(Path(sys.executable).with_name("drdsgd")), *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


def test_a_module_in_the_current_folder_is_found(here: Path, tmp_path: Path) -> None:
    given = ["--objective", "mine:above", "--level", "-1", "--model", "mine:net", "--algorithm", "dsgd"]
    said = program("train", *SMALL, *given, "--out", "run", cwd=here)
    assert said.status == 0, said.err
    assert theta(here / "run") == theta(train("same", *OWN, "--level", "-1", "--model", "mine:net"))
    line = one_line(program("train", *SMALL, *given, "--out", "run", cwd=tmp_path))
    assert line.startswith("--objective mine:above: No module named 'mine'; the folder that holds it must be the cur")


def test_the_processes_of_a_comparison_find_it(here: Path) -> None:
    specs = ["--algorithm", "dsgd", "--algorithm", "dsgd:objective=mine:above,level=-1"]
    options = [word for word in SMALL if word not in ("--threads", "1")]
    said = program("compare", *options, *specs, "--seeds", "1", "--threads", "2", "--out", "both", cwd=here)
    assert said.status == 0, said.err
    assert theta(here / "both" / "dsgd-objective=mine-above-level=-1" / "seed-0") == theta(
        train("same", *OWN, "--level", "-1")
    )


def test_the_current_folder_does_not_hide_installed_packages(here: Path) -> None:
    """A file there may have the name of a package that drdsgd loads later: tomli_w, to write config.toml."""
    (here / "tomli_w.py").write_text("1 / 0\n")
    said = program("train", *SMALL, *OWN, "--out", "run", cwd=here)
    assert said.status == 0, said.err
