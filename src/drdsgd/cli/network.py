"""Commands for real devices: `network …` and `node`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from drdsgd.cli.options import count, experiment_options
from drdsgd.cli.output import console, show_table
from drdsgd.errors import InputError

__all__ = ["app", "network_init", "network_join", "network_run", "network_sign", "network_status", "node"]

app = typer.Typer(help="Real devices: a network of peers, over mutual TLS.", no_args_is_help=True)


@app.command("init")
@experiment_options(without=["data_dir", "device", "local_every", "matmul", "threads"])
def network_init(
    out: Annotated[Path, typer.Option("--out", help="output folder of the deployment")],
    hosts: Annotated[
        Path | None, typer.Option("--hosts", help="file with a line NAME HOST:PORT per device; default this machine")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", help="without --hosts: port of the first device; the others follow it")
    ] = 7450,
    days: Annotated[float, typer.Option("--days", help="days until certificates expire")] = 365.0,
    keys: Annotated[
        bool,
        typer.Option(
            "--keys/--no-keys", help="make the devices' keys here, or let each device make its own with `join`"
        ),
    ] = True,
    own_data: Annotated[
        bool, typer.Option("--own-data", help="every device has its own data, in its folder data/")
    ] = False,
    classes: Annotated[
        int | None, typer.Option("--classes", help="with --own-data: number of classes of all devices together")
    ] = None,
    mean_samples: Annotated[
        float | None,
        typer.Option(
            "--mean-samples", help="with --own-data --reference samples: training samples of the average device"
        ),
    ] = None,
    deadline: Annotated[float, typer.Option("--deadline", help="seconds to wait for a neighbour in a round")] = 30.0,
    patience: Annotated[
        float, typer.Option("--patience", help="seconds to wait for all neighbours before the first round")
    ] = 60.0,
    staleness: Annotated[
        int, typer.Option("--staleness", help="rounds by which a neighbour's model may lag; 0 waits for all")
    ] = 0,
    metrics_port: Annotated[
        int, typer.Option("--metrics-port", help="port for Prometheus on each host; 0 for none")
    ] = 9450,
    *,
    given: dict[str, Any],
) -> None:
    """Make a deployment: an authority, and a folder with key, certificate and device.toml for every device."""
    commands = _network()
    where = commands.init(
        given, out, hosts, port, days=days, keys=keys, own_data=own_data, classes=classes, mean_samples=mean_samples,
        deadline=deadline, patience=patience, staleness=staleness, metrics_port=metrics_port or None,
    )  # fmt: skip
    here = hosts is None and keys and not own_data
    try_it = f"; try them all on this machine with: drdsgd network run {out}" if here else ""
    print(f"{len(where)} devices in {out}{try_it}")
    if not here:
        first = "" if keys else "drdsgd network join device.toml, then "
        print(f"take each device's folder to its host; there: {first}drdsgd node device.toml")


@app.command("join")
def network_join(
    file: Annotated[Path, typer.Argument(metavar="DEVICE.toml", help="the device.toml of this host's device")],
) -> None:
    """Make a key that never leaves this host, and a request to sign it."""
    commands = _network()
    from drdsgd.network.certificates import checksum

    asked = commands.join(file)
    print(f"signing request: {asked}, SHA-256 {checksum(asked)}")
    print(f"the holder of the authority's key signs it with: drdsgd network sign DIR {asked.name}")


@app.command("sign")
def network_sign(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder of the deployment, with the authority's key")],
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="signing requests (.csr), or certificates to renew")
    ],
    days: Annotated[float, typer.Option("--days", help="days until they expire")] = 365.0,
) -> None:
    """Sign the certificates of devices, or renew them."""
    commands = _network()
    from drdsgd.network.certificates import checksum

    sums = [checksum(file) if file.is_file() else "" for file in files]
    for path, file, checked in zip(commands.sign(folder, files, days), files, sums, strict=True):
        print(f"certificate: {path}; take it to the device's host, beside its device.toml")
        print(f"  for {file}, SHA-256 {checked}: the host that asked must have the same")


@app.command("run")
def network_run(folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder of a deployment")]) -> None:
    """Run all devices of a deployment on this machine, one process each."""
    _network()
    from drdsgd import report
    from drdsgd.cli.progress import bar
    from drdsgd.experiments.records import find_runs
    from drdsgd.network import deployment, joined, together

    paths = deployment.devices(folder)
    devices = [deployment.experiment_of(deployment.load(path), path.parent) for path in paths]
    total = sum(e.rounds for e in devices)
    with bar(console(stderr=True), f"{len(devices)} devices", total) as advance:
        together.run(folder, advance)
    path = joined.join(folder)
    show_table(find_runs([path]))
    print(f"report: {report.write([path], folder / 'report.html')}")


@app.command("status")
def network_status(
    path: Annotated[
        Path, typer.Argument(metavar="DIR|DEVICE.toml", help="folder of a deployment, or the device.toml of this host")
    ],
) -> None:
    """Show which devices are connected, at which round, with what lag, and when certificates expire."""
    from rich.table import Table

    table = Table("device", "state", "round", "neighbours (their lag in rounds)", "certificate expires")
    commands = _network()
    for one in commands.status(path):
        said = ", ".join(f"{name} ({commands.seen(about)})" for name, about in one["neighbours"].items())
        at = "-" if one["round"] is None else f"{one['round']} of {one['rounds']}"
        table.add_row(one["name"], one["state"], at, said or "-", one["certificate"])
    console().print(table)


def node(
    file: Annotated[Path, typer.Argument(metavar="DEVICE.toml", help="description of this device and its deployment")],
    threads: Annotated[
        str | None, typer.Option("--threads", metavar="INTEGER", help="number of compute threads; default all cores")
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="also write the log as JSON lines to the standard error")] = False,
) -> None:
    """Run one real device: it trains on its own data and talks to its neighbours."""
    _network()
    from drdsgd.cli.progress import of_one, view
    from drdsgd.network import deployment
    from drdsgd.network import node as nodes
    from drdsgd.training.loop import Progress

    device = deployment.load(file)
    note = ""

    def watch(progress: Progress, missing: list[str]) -> None:
        nonlocal note
        if progress.metrics is not None:
            note = f"own accuracy {progress.metrics.consensus.average:.1f} %"
        show(progress.state.t, progress.metrics, f"without {' '.join(missing)}" if missing else "")

    rounds = device.experiment.get("rounds")
    with view(console(stderr=True), device.name, rounds if isinstance(rounds, int) else None, of_one) as show:
        outcome = nodes.run(
            file, threads=count("threads", threads), watch=watch, speak=log,
            waiting=lambda missing: show(None, note=f"waiting for {' '.join(missing)}"),
        )  # fmt: skip
    missed = ", ".join(f"{count} with {name}" for name, count in outcome.missed.items())
    said = [outcome.status, note, f"exchanges missed: {missed}" if missed else ""]
    print(f"{device.name}: {', '.join(filter(None, said))}; its record is in {outcome.folder}")
    if outcome.status == "diverged":
        raise typer.Exit(1)


def _network() -> Any:
    """The network's commands, which need additional packages."""
    try:
        import cryptography
        import prometheus_client
        import zenoh

        assert cryptography and prometheus_client and zenoh
    except ImportError as error:
        raise InputError(f"{error.name} is not installed: pip install 'drdsgd[network]'") from None
    from drdsgd.network import commands

    return commands
