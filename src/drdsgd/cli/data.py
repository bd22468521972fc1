"""Commands on data sets: `data` and `data get`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drdsgd.cli.output import console

__all__ = ["app", "data", "get"]

app = typer.Typer(help="List the data sets that are here, and fetch others.", invoke_without_command=True)


@app.callback()
def data(context: typer.Context) -> None:
    """List the data sets that are here, with sizes and checksums, and fetch others."""
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table

    from drdsgd.data.sources import available

    table = Table("data set", "train", "test", "size", "checksums")
    table.add_column("where", overflow="fold")
    for one in available():
        size = f"{one.bytes / 1e6:.1f} MB" if one.bytes else "-"
        where = str(one.where or ("scikit-learn" if one.state == "embedded" else f"drdsgd data get {one.name}"))
        table.add_row(one.name, f"{one.train}", f"{one.test}", size, one.state, where)
    table.add_row("synthetic", "any", "any", "-", "made from the seed", "--dataset synthetic")
    table.add_row("your own", "any", "any", "-", "-", "--dataset FOLDER, with one .npz file per device")
    console().print(table)


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="name of the data set, as drdsgd data lists it")],
    to: Annotated[
        Path | None, typer.Option("--data-dir", help="folder to put it into; default the user's cache")
    ] = None,
) -> None:
    """Fetch a data set, check it, and put it where it will be found."""
    from drdsgd.cli.progress import bar
    from drdsgd.data import download

    with bar(console(stderr=True), f"fetching {name}", None) as advance:
        folder = download.get(name, to, progress=lambda label, done, total: advance(done, label, total))
    print(f"{name} is in {folder}, checksums right")
