"""The command line. It parses, calls the library, and prints; a user's mistake is one line, with exit status 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from drdsgd.cli import data, explore, extras, network, runs
from drdsgd.cli.program import WORLD, app
from drdsgd.errors import Died, Diverged, InputError, Interrupted, out_of_memory

__all__ = ["app", "main"]

# as `--help` lists them; every module adds its commands to the application when it is imported
_MODULES = (runs, explore, network, extras, data)
_ORDER = ("train", "compare", "demo", "reproduce", "graph", "algorithms", "report", "node", "bench")
app.registered_commands.sort(key=lambda command: _ORDER.index(getattr(command.callback, "__name__", "")))


def main(arguments: Sequence[str] | None = None) -> None:
    """The program `drdsgd`."""
    # before torch is loaded: threads that wait for others sleep instead of spinning, else a second process on the
    # machine makes a round many times slower
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    status = _status(arguments)
    if WORLD:
        WORLD.pop().leave()
    sys.exit(status)


def _status(arguments: Sequence[str] | None) -> int:
    """Run a command; everything that is not a bug ends in one line and an exit status."""
    try:
        # not app(...): that would swallow an interruption and what it says
        command = typer.main.get_command(app)
        with command.make_context("drdsgd", sys.argv[1:] if arguments is None else list(arguments)) as context:
            command.invoke(context)
        return 0
    except typer.Exit as done:
        return done.exit_code
    except typer.TyperException as error:
        # typer's own explanation takes many lines; where it has shown the help, it has none
        return _say(2, error.format_message())
    except InputError as error:
        return _say(2, str(error))
    except (Diverged, Died) as error:
        return _say(1, str(error))
    except (Interrupted, KeyboardInterrupt, typer.Abort) as error:
        return _say(130, str(error) or "interrupted")
    except BrokenPipeError:  # the reader of our output went away, as in `drdsgd graph | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _say(2, f"{where}{error.strerror or error}; check the path, its permissions and the space on the disk")
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return _say(2, f"not enough memory ({error}); use a smaller --batch-size, --model or number of --devices")


def _say(status: int, message: str) -> int:
    if not message:
        return status
    who = ""
    if WORLD:  # of several processes one says what ends them all
        if not WORLD[0].speaks():
            return status
        who = f"rank {WORLD[0].rank}: "
    elif os.environ.get("LOCAL_RANK", "0") != "0":  # before they met, one on each machine
        return status
    print(f"drdsgd: {who}{' '.join(message.splitlines())}", file=sys.stderr)
    return status
