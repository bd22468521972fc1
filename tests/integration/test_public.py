"""The public interface: names, commands and their options. A change here affects every user."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest
import typer

import drdsgd
from drdsgd.cli import app
from tests.support.contract import COMMANDS, NAMES
from tests.support.program import drdsgd as program


def test_public_names() -> None:
    assert drdsgd.__all__ == NAMES
    assert dir(drdsgd) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(drdsgd, name)
    home = value.__name__ if inspect.ismodule(value) else value.__module__
    assert home.startswith("drdsgd.")


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'drdsgd' has no attribute 'trian'"):
        getattr(drdsgd, "trian")  # noqa: B009 (mypy knows that it is wrong)


def test_no_module_hides_a_public_name() -> None:
    """Importing a module sets its name in the package, so no module may have the name of a function or class there."""
    modules = {module.name for module in pkgutil.iter_modules(drdsgd.__path__)}
    functions = {name for name in NAMES if not inspect.ismodule(getattr(drdsgd, name))}
    assert not modules & functions
    for module in modules - {"__main__"}:
        importlib.import_module(f"drdsgd.{module}")
    assert inspect.isfunction(drdsgd.train) and inspect.isfunction(drdsgd.run)


def test_every_module_says_what_is_public_in_it() -> None:
    for found in pkgutil.walk_packages(drdsgd.__path__, "drdsgd."):
        if not found.name.endswith("__main__"):
            module = importlib.import_module(found.name)
            assert module.__doc__
            assert set(module.__all__) <= set(vars(module)), found.name


def test_the_version_is_the_packages() -> None:
    assert drdsgd.__version__ == version("drdsgd")


def commands(command: Any, name: str = "") -> dict[str, list[str]]:
    """Every typer command and subcommand with its arguments and options."""
    found: dict[str, list[str]] = {}
    if name:
        parameters = [p for p in command.params if p.name != "help"]
        found[name] = [p.opts[0] for p in parameters]
    for below, other in getattr(command, "commands", {}).items():
        found |= commands(other, f"{name} {below}".strip())
    return found


def test_commands_and_options() -> None:
    found = commands(typer.main.get_command(app))
    assert list(found) == [
        "train",
        "compare",
        "demo",
        "reproduce",
        "graph",
        "algorithms",
        "report",
        "node",
        "bench",
        "data",
        "data get",
        "network",
        "network init",
        "network join",
        "network sign",
        "network run",
        "network status",
    ]
    assert {name: sorted(options) for name, options in found.items()} == {
        name: sorted(options) for name, options in COMMANDS.items()
    }


@pytest.mark.parametrize("command", [[], *([*name.split()] for name in COMMANDS)])
def test_every_command_has_help_that_names_its_options(command: list[str]) -> None:
    said = program(*command, "--help")
    assert said.status == 0 and said.err == ""
    for option in COMMANDS.get(" ".join(command), []):
        assert (
            option in said.out
            or option.upper() in said.out
            or {
                "runs": "DIR...",
                "cases": "CASE",
                "files": "FILE...",
                "folder": "DIR",
                "path": "DIR|DEVICE",
                "file": "DEVICE.toml",
            }.get(option, "?")
            in said.out
        )


WITHOUT_TORCH = """
import sys
sys.argv = ["drdsgd", *sys.argv[1:]]
try:
    {}
except SystemExit as end:
    assert not end.code, end.code
heavy = {{"torch", "numpy", "networkx", "sklearn", "matplotlib", "tensorboard", "mlflow"}}
if len(sys.argv) < 3:  # typer itself loads these for the options of a command
    heavy |= {{"pydantic", "importlib.metadata"}}
heavy &= set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize("arguments", [None, ["--help"], ["train", "--help"], ["compare", "--help"]])
def test_help_does_not_wait_for_torch(arguments: list[str] | None) -> None:
    code = "import drdsgd" if arguments is None else "from drdsgd.cli import main; main()"
    command = [sys.executable, "-c", WITHOUT_TORCH.format(code), *(arguments or [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_is_the_program() -> None:
    done = subprocess.run([sys.executable, "-m", "drdsgd", "frain"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "drdsgd: No such command 'frain'. Did you mean 'train'?\n")
