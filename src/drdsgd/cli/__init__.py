"""The command line. It parses, calls the library and prints. A user's mistake gets one line and exit status 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from drdsgd import __version__
from drdsgd.cli import data, explore, extras, network, runs
from drdsgd.cli.options import declare
from drdsgd.cli.runs import WORLD
from drdsgd.environment import for_torch
from drdsgd.errors import Died, Diverged, InputError, Interrupted, out_of_memory

__all__ = ["app", "main"]

app = typer.Typer(
    name="drdsgd",
    help="Train one model over a graph of devices, without a server, good for the worst-off device.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# in the order in which --help lists them
for command in (
    runs.train, runs.compare, runs.demo, extras.reproduce, explore.graph, explore.algorithms, explore.report,
    network.node, extras.bench,
):  # fmt: skip
    app.command()(command)
app.add_typer(data.app, name="data")
app.add_typer(network.app, name="network")


def _show_version(asked: bool) -> None:
    if asked:
        print(f"drdsgd {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="show the version and exit")
    ] = False,
) -> None:
    """Train one model over a graph of devices, without a server, good for the worst-off device."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The program `drdsgd`."""
    for name, value in for_torch().items():  # before torch is loaded
        os.environ.setdefault(name, value)
    status = _status(arguments)
    if WORLD:
        WORLD.pop().leave()
    sys.exit(status)


def _status(arguments: Sequence[str] | None) -> int:
    """Run a command and return its exit status; everything but a bug ends in one line."""
    try:
        # not app(...), which would swallow an interruption and its message
        words = sys.argv[1:] if arguments is None else list(arguments)
        declare(words)
        command = typer.main.get_command(app)
        with command.make_context("drdsgd", words) as context:
            command.invoke(context)
        return 0
    except typer.Exit as done:
        return done.exit_code
    except typer.TyperException as error:
        # typer's own error report has many lines; its message is empty where it has already shown the help
        return _say(2, error.format_message())
    except InputError as error:
        return _say(2, error.on_command_line)
    except (Diverged, Died) as error:
        return _say(1, error.on_command_line)
    except (Interrupted, KeyboardInterrupt, typer.Abort) as error:
        return _say(130, str(error) or "interrupted")
    except BrokenPipeError:  # the reader of the output has closed it, as in `drdsgd graph | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _say(2, f"{where}{error.strerror or error}; check the path, its permissions and the space on the disk")
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        why = f" ({error})" if str(error) else ""
        return _say(2, f"not enough memory{why}; use fewer --devices, or a smaller --batch-size or --model")


def _say(status: int, message: str) -> int:
    if not message:
        return status
    who = ""
    if WORLD:  # one of several processes reports what ends them all
        if not WORLD[0].speaks():
            return status
        who = f"rank {WORLD[0].rank}: "
    elif os.environ.get("LOCAL_RANK", "0") != "0":  # before they are connected, one on each machine reports
        return status
    print(f"drdsgd: {who}{' '.join(message.splitlines())}", file=sys.stderr)
    return status
