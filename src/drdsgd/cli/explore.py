"""Commands that explain: `graph`, `algorithms` and `report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drdsgd.cli.options import experiment_options
from drdsgd.cli.output import console, show_table
from drdsgd.errors import InputError, unknown
from drdsgd.experiments.registry import OPTIONS

if TYPE_CHECKING:
    from drdsgd.experiments.registry import Entry

__all__ = ["algorithms", "graph", "report"]

# the options that determine a graph and its mixing
OF_A_GRAPH = (
    "devices", "graph", "p", "seed", "rounds", "mixing", "gossip_steps", "local_steps", "link_failures", "dropouts",
)  # fmt: skip


@experiment_options(without=[name for name in OPTIONS if name not in OF_A_GRAPH])
def graph(
    out: Annotated[Path, typer.Option("--out", help="picture file: .png, .svg or .pdf")] = Path("graph.png"),
    *,
    given: dict[str, Any],
) -> None:
    """Show a graph: picture, degrees, rho, and the step sizes that the theory allows."""
    from drdsgd.experiments import build, config
    from drdsgd.report import plots
    from drdsgd.topology.spectrum import graph_factor, rho_over_time

    e = config.Experiment(**given, dataset="synthetic")  # which has data for any number of devices
    g = build.make_graph(e)
    degrees = sorted(degree for _, degree in g.degree)
    mixing = build.gossip_of(e, g)
    K, T, r, mu = e.devices, e.rounds, rho_over_time(mixing, e.rounds), 6.0  # the paper's mu
    limit = f"min({graph_factor(mu, r):.4g} / G, 1)" if r > 1e-12 else "1"
    rows = {
        "devices K": f"{K}",
        "edges": f"{g.number_of_edges()}",
        "degrees": f"{degrees[0]} to {degrees[-1]}, mean {sum(degrees) / K:.2f}",
        "rho": f"{r:.6f}" + ("" if mixing.static else f", mean over {T} rounds"),
        "spectral gap 1 - sqrt(rho)": f"{1 - r**0.5:.6f}",
        f"Theorem 1, mu = {mu:g}": f"eta below {limit} / L (L: bound on curvature, G: on gradients and exp(loss / mu))"
        if mixing.balanced
        else "does not cover directed graphs",
        f"eta = sqrt(K / T), T = {T}": f"{(K / T) ** 0.5:.4f}",
        f"B = sqrt(K T), T = {T}": f"{(K * T) ** 0.5:.1f}",
        "picture": str(plots.network(g, out)),
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")


def algorithms(
    name: Annotated[str | None, typer.Argument(help="show only this one, with all its defaults")] = None,
) -> None:
    """List every method, or one: its problem, its cost, its options, its source."""
    from drdsgd.experiments import registry

    known = [*registry.ALGORITHMS, *registry.SERVERS, *registry.OBJECTIVES, *registry.OPTIMIZERS]
    if name is not None and ":" in name:
        what, _, *others = _about(registry.own_entry(name), "")
        _show("your own, with its options", {name: [what, *others]})
        return
    if name is not None and name not in known:
        raise InputError(f"{name}: {unknown(name, known)}; your own is package.module:function")

    def chosen(rows: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
        return {one: row for one, row in rows.items() if name in (None, one)}

    per_link = "numbers per link and round:"
    named = {
        one: [
            f"{made.objective} with {made.optimizer}: {registry.OBJECTIVES[made.objective].what}",
            f"{per_link} {registry.sent_by(one)}",
            # the list shows only what differs from the defaults of the parts, which it lists below
            registry.spelled(made.options if name is None else registry.own_options(one, None, None)), made.source,
        ]
        for one, made in registry.ALGORITHMS.items()
    }  # fmt: skip
    _show("--algorithm NAME: an objective with an optimizer, each of which can be overridden", chosen(named))
    for title, entries, sent in (
        (
            "--algorithm NAME: baselines with a server; only the size of the graph matters",
            registry.SERVERS, "numbers per client and round:",
        ),
        (
            "--objective NAME: the function to minimise",
            registry.OBJECTIVES, "numbers per link and round, without the model:",
        ),
        ("--optimizer NAME: how it is minimised", registry.OPTIMIZERS, per_link),
    ):  # fmt: skip
        _show(title, chosen({one: _about(entry, sent) for one, entry in entries.items()}))
    print("\nd: parameters of the model; K: devices; p_i: a device's share of the data, or 1 / K (--reference)")
    print("compressed d: quantize:B (B + 1) / 32 d, top:PART 2 PART d, random:PART PART d")
    print("--gamma by default: 0.8 for 4 and 8 bits, 0.4 for 2 bits, 2 PART for top and PART for random, at most 0.8;")
    print("with a larger gamma gossip may diverge")
    print("--gossip-steps N averages N times in a round, so it sends N times the numbers per link")
    print(
        "--eta sqrt(K / T) and --weight-decay, --local-steps, --eta-schedule: for all methods; --help explains options"
    )


def _show(title: str, rows: Mapping[str, Sequence[str]]) -> None:
    screen = console()
    if not rows:
        return
    screen.print(f"\n[bold]{title}[/bold]", highlight=False, soft_wrap=True)
    for one, (first, *others) in rows.items():
        screen.print(f"  [bold]{one:<22}[/bold] {first}", highlight=False, soft_wrap=True)
        for line in filter(None, others):
            screen.print(f"{'':<25}{line}", style="dim", highlight=False, markup=False, soft_wrap=True)


def _about(entry: Entry, sent: str) -> list[str]:
    """What a list says about an objective, an optimizer or a server; it omits what all of them have."""
    from drdsgd.experiments import registry
    from drdsgd.options import paper_step

    common = {"eta_schedule": "constant", "eta": paper_step}
    own = {name: value for name, value in entry.options.items() if common.get(name) != value or name not in common}
    return [entry.what, f"{sent} {entry.sends or 'nothing'}", registry.spelled(own), entry.source]


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR...", help="folders of runs or comparisons")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="file for the page; default DIR/report.html (several DIRs: report.html)"),
    ] = None,
) -> None:
    """Write a self-contained HTML page about runs."""
    from drdsgd import report as reports
    from drdsgd.experiments.records import find_runs
    from drdsgd.network import joined

    default = runs[0] / "report.html" if len(runs) == 1 else Path("report.html")
    runs = [joined.join(path) if joined.is_deployment(path) else path for path in runs]
    show_table(find_runs(runs))
    print(f"report: {reports.write(runs, out or default)}")
