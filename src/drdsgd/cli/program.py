"""The program `drdsgd` as typer sees it: the application that command modules add their commands to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from drdsgd import __version__

if TYPE_CHECKING:
    from drdsgd.engines.distributed import World

__all__ = ["WORLD", "app", "data_app", "network_app"]

app = typer.Typer(
    name="drdsgd",
    help="Train one model over a graph of devices, without a server, good for the worst-off device.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Which data sets are here, and how to get the others.", invoke_without_command=True)
app.add_typer(data_app, name="data")
network_app = typer.Typer(help="Real devices: a network of peers, over mutual TLS.", no_args_is_help=True)
app.add_typer(network_app, name="network")

# the connection to the other ranks, if this process is one of several
WORLD: list[World] = []


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
