"""The command line. It parses, calls the library, and prints; what it says of mistakes is one line, exit status 2."""

from __future__ import annotations

import functools
import inspect
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drdsgd import __version__
from drdsgd.errors import Died, Diverged, InputError, Interrupted, out_of_memory
from drdsgd.options import ENVIRONMENT, OPTIONS, parse, spelling, unknown

if TYPE_CHECKING:
    from rich.console import Console

    from drdsgd.engines.distributed import World
    from drdsgd.experiment import Experiment
    from drdsgd.paper.claims import Claim
    from drdsgd.records import Record
    from drdsgd.study import Study

__all__ = ["app", "main"]

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

Out = Annotated[Path | None, typer.Option("--out", help="folder for what comes out")]
# the demo: the paper's eta and B; with mu = 1 a device that is served well takes DSGD's own step, and the clip keeps
# that of the worst-off below e = 2.7 times it
DEMO = {"devices": 10, "rounds": 100, "p": 0.5, "model": "mlp:32", "mu": 1.0, "loss_clip": 1.0, "eval_every": 5}
# what the command `graph` shows the graph and its mixing of
OF_A_GRAPH = (
    "devices", "graph", "p", "seed", "rounds", "mixing", "gossip_steps", "local_steps", "link_failures", "dropouts",
)  # fmt: skip
Resume = Annotated[bool, typer.Option("--resume", help="continue what is in --out, exactly")]
Log = Annotated[
    list[str] | None,
    typer.Option("--log", metavar="NAME", help="copy metrics to tensorboard or mlflow; repeat for both"),
]


def main(arguments: Sequence[str] | None = None) -> None:
    """The program `drdsgd`."""
    # before torch is loaded: threads that wait for others sleep instead of spinning, else a second process on the
    # machine makes a round many times slower
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    status = _status(arguments)
    if _WORLD:
        _WORLD.pop().leave()
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
    if _WORLD:  # of several processes one says what ends them all
        if not _WORLD[0].speaks():
            return status
        who = f"rank {_WORLD[0].rank}: "
    elif os.environ.get("LOCAL_RANK", "0") != "0":  # before they met, one on each machine
        return status
    print(f"drdsgd: {who}{' '.join(message.splitlines())}", file=sys.stderr)
    return status


# the connection to the other processes, if this is one of several
_WORLD: list[World] = []


@contextmanager
def _continued_with(command: str, out: Path, begun: Path, launcher: str = "") -> Iterator[None]:
    """What ends it within says how to go on, if the file `begun` is there to go on from."""
    try:
        yield
    except (KeyboardInterrupt, Died) as stopped:
        if not begun.exists():
            raise
        said = str(stopped) or "stopped"
        kind = Died if isinstance(stopped, Died) else Interrupted
        raise kind(f"{said}; continue with: {launcher}drdsgd {command} --out {shlex.quote(str(out))}") from None


_METAVAR = {int: "INTEGER", float: "NUMBER", str: "TEXT"}


def _experiment_options(without: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command every option of an experiment; those that a user sets arrive as the dictionary `given`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_options(*arguments: Any, **values: Any) -> Any:
            texts = {name: values.pop(name) for name in OPTIONS if name in values and name not in without}
            given = {name: parse(name, text) for name, text in texts.items() if text is not None}
            return command(*arguments, **values, given=given)

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[
                    # as text: `parse` says more of a wrong number than typer does
                    str | None,
                    typer.Option(
                        spelling(name), metavar=_METAVAR[option.type], help=option.help, rich_help_panel=option.group
                    ),
                ],
            )
            for name, option in OPTIONS.items()
            if name not in without
        ]
        with_options.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]  # inspect and typer read it; functions do not declare it
        with_options.__annotations__ = {p.name: p.annotation for p in [*own, *options]}
        return with_options

    return decorate


def _version(asked: bool) -> None:
    if asked:
        print(f"drdsgd {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="say which it is")
    ] = False,
) -> None:
    """Train one model over a graph of devices, without a server, good for the worst-off device."""


@app.command()
@_experiment_options()
def train(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE.toml]", help="an experiment; options override it")
    ] = None,
    out: Out = None,
    resume: Resume = False,
    log: Log = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            help="local (one process) or distributed (this is one of several); default distributed under torchrun",
            rich_help_panel="Several processes",
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend", help="gloo, nccl or mpi; default gloo, on GPUs nccl", rich_help_panel="Several processes"
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            help="seconds after which a process that does not answer is lost",
            rich_help_panel="Several processes",
        ),
    ] = 300.0,
    regroup: Annotated[
        bool,
        typer.Option(
            "--regroup",
            help="with --resume: continue on another number of processes",
            rich_help_panel="Several processes",
        ),
    ] = False,
    *,
    given: dict[str, Any],
) -> None:
    """One run into a folder; --resume continues it. Under torchrun, in several processes."""
    from drdsgd import experiment, loggers, records, report, runs
    from drdsgd.progress import view
    from drdsgd.training import Progress

    copy = loggers.of(log or ())
    if engine not in (None, "local", "distributed"):
        raise InputError(f"--engine {engine}: {unknown(str(engine), ('local', 'distributed'))}")
    fields = {**(experiment.load(file) if file else {}), **given}
    world = None
    if engine == "distributed" or (engine is None and all(name in os.environ for name in ENVIRONMENT)):
        from drdsgd.engines.distributed import join

        if out is None:
            raise InputError("--out: say which folder, so that a process that is started again finds the run")
        config = records.Folder(out).config
        stored = records.read_config(config).model_dump() if resume and config.exists() else {}
        world = join(backend, str({**stored, **fields}.get("device", "cpu")), timeout)
        _WORLD.append(world)
        if len({*world.texts(f"{resume} {regroup}")}) > 1:
            raise InputError("--resume, --regroup: some ranks have them and some do not; give all the same")
    first = world is None or world.rank == 0
    if resume:
        if out is None:
            raise InputError("--resume: say which run with --out DIR")
        stored = {}
        if first:
            if not records.Folder(out).config.exists():
                raise InputError(f"--resume: there is no run in {out}; it has no config.toml")
            runs.check_unchanged(records.Folder(out), fields)
            stored = records.read_config(records.Folder(out).config).model_dump()
        if world is not None:  # the others may be on machines that do not see it
            stored = json.loads(world.texts(json.dumps(stored))[0])
        fields = {**stored, **fields}
    e = experiment.Experiment(**fields)
    folder = out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{e.algorithm}-{Path(e.dataset).name}"

    over = resume and not log and records.Folder(folder).status == "finished"
    begun = [e]

    def watch(progress: Progress) -> None:
        _warn(begun)
        show(progress.state.t, progress.metrics)

    launcher = "" if world is None else "torchrun ... -m "
    with _continued_with(f"train --resume{_logs(log)}", folder, records.Folder(folder).config, launcher):
        if world is not None and not first:
            runs.run_together(e, folder, world, resume=resume, regroup=regroup)
            return
        what = f"{e.algorithm}, {e.dataset}, K={e.devices}, eta={e.eta:.3g}, B={e.batch_size}"
        try:
            with view(_console(stderr=True), what, e.rounds) as show:
                if world is None:
                    record = runs.run(e, folder, resume=resume, regroup=regroup, watch=watch, log=copy)
                else:
                    together = runs.run_together(
                        e, folder, world, resume=resume, regroup=regroup, watch=watch, log=copy
                    )
                    assert together is not None
                    record = together
        except Diverged:
            if records.Folder(folder).status == "diverged":  # what it did until then can be looked at
                print(f"report: {report.write([folder], folder / 'report.html')}")
            raise
        _show([record])
        print(f"report: {report.write([folder], folder / 'report.html')}")
    if over:
        print(f"{folder} had finished its {e.rounds} rounds before: nothing was left to do", file=sys.stderr)
    if record.status == "diverged":  # before, and now shown again
        raise typer.Exit(1)


@app.command()
@_experiment_options(without=["algorithm", "seed", "threads"])
def compare(
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm", help="repeat for each; own settings as dr-dsgd:mu=3,eta=0.1; default dsgd, dr-dsgd"
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="how many, or which as 0,3,7; default 3")] = None,
    threads: Annotated[
        str | None,
        typer.Option(
            "--threads",
            metavar="INTEGER",
            help="compute threads of all runs together, several of which go at once; default all cores",
        ),
    ] = None,
    out: Out = None,
    resume: Resume = False,
    log: Log = None,
    *,
    given: dict[str, Any],
) -> None:
    """Several algorithms, paired seeds, one table and one report."""
    from drdsgd import loggers, study

    loggers.of(log or ())  # refused now, before anything is made
    if resume:
        if out is None:
            raise InputError("--resume: say which comparison with --out DIR")
        stored = study.load(out / "study.toml")
        plan = study.extended(stored, algorithm or (), _seeds(seeds) if seeds else (), given)
    else:
        plan = study.Study(tuple(algorithm or ("dsgd", "dr-dsgd")), _seeds(seeds or "3"), given)
    folder = out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-compare"
    budget = None if threads is None else int(parse("threads", threads))
    _compare(plan, folder, resume, f"compare --resume{_logs(log)}", budget, log or ())


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="folder for what comes out")] = Path("runs/demo"),
    seeds: Annotated[str, typer.Option("--seeds", help="how many, or which as 0,3,7")] = "5",
) -> None:
    """The main job on the embedded data: DR-DSGD against DSGD, a table and a report."""
    from drdsgd import study

    plan, begun = study.Study(("dsgd", "dr-dsgd"), _seeds(seeds), dict(DEMO)), (out / "study.toml").exists()
    if begun:  # a second `demo` shows the first one's runs again, and one that was stopped goes on
        stored = study.load(out / "study.toml")
        if stored.algorithms != plan.algorithms or {**stored.options, **DEMO} != stored.options:
            raise InputError(f"{out} holds another comparison; use another --out")
        plan = study.extended(stored, (), plan.seeds, {})
    # one by one: its runs are so short that all are done before a second process has loaded torch
    _compare(plan, out, begun, f"demo --seeds {shlex.quote(seeds)}", threads=1)


@app.command()
def reproduce(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help="fig1, fig2, fig3, fig4, fig5, table1, theory, league or all")
    ],
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="how many, or which as 0,3,7; default 5, with --quick 2")
    ] = None,
    rounds: Annotated[
        str | None, typer.Option("--rounds", metavar="INTEGER", help="rounds of every run, in place of the paper's T")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="folder for what comes out; default docs/results, with --quick runs/quick"),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(
            "--records", help="folder with records of finished runs, taken where they fit; default docs/results/runs"
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="a check of the whole pipeline on the embedded data, in a minute or two")
    ] = False,
    only_known: Annotated[
        bool, typer.Option("--only-known", help="run nothing: draw and judge what is done so far")
    ] = False,
    threads: Annotated[
        str | None, typer.Option("--threads", metavar="INTEGER", help="runs that go at once; default all cores")
    ] = None,
) -> None:
    """The paper: its figures, table and theory, and what came of each claim; or the league of methods beyond it."""
    from drdsgd.experiment import default_threads
    from drdsgd.paper import reports
    from drdsgd.paper import reproduce as paper
    from drdsgd.paper.plan import Settings
    from drdsgd.progress import bar

    if what not in paper.NAMES:
        raise InputError(f"reproduce {what}: unknown; choose {', '.join(paper.NAMES[:-1])} or {paper.NAMES[-1]}")
    if known is not None and not known.is_dir():
        raise InputError(f"--records {known}: there is no such folder")
    T, at_once = (_count(name, text) for name, text in (("rounds", rounds), ("threads", threads)))
    settings = Settings(_seeds(("2" if quick else "5") if seeds is None else seeds), T, quick)
    folder = out or Path("runs/quick" if quick else "docs/results")
    given = {"--seeds": seeds, "--rounds": rounds, "--threads": threads, "--records": known}
    words = [word for option, value in given.items() if value is not None for word in (option, str(value))]
    again = shlex.join(["reproduce", what, *(["--quick"] if quick else []), *words])
    with _continued_with(again, folder, begun=folder / "settings.json"):
        with bar(_console(stderr=True), f"reproducing {what}", None) as advance:
            claims = paper.reproduce(
                [what], settings, folder, known or Path("docs/results/runs"),
                at_once=at_once or default_threads(),
                only_known=only_known,
                watch=lambda done, total, note: advance(done, note, total),
                say=lambda line: print(f"drdsgd: {line}", file=sys.stderr),
            )  # fmt: skip
        _show_claims(claims)
        print(f"results: {folder}")
        for report in (folder / name / reports.NAME for name in claims):
            if report.exists():  # not of theory, nor before a run is done
                print(f"report: {report}")


def _count(name: str, text: str | None) -> int | None:
    """A number of something, at least one, if it is given."""
    if text is None:
        return None
    number = int(parse(name, text))
    if number < 1:
        raise InputError(f"{spelling(name)} {number}: at least 1")
    return number


def _show_claims(claims: Mapping[str, Sequence[Claim]]) -> None:
    """What came of each claim, on the terminal."""
    console = _console()
    for name, some in claims.items():
        for claim in some:
            who = "wanted" if name == "league" else "the paper"
            console.print(f"\n{name}: {claim.text} ({who}: {claim.paper})", highlight=False, markup=False)
            for of, finding in claim.findings.items():
                console.print(f"  {finding.verdict:<14}  {of}: {finding.ours}", highlight=False, markup=False)
    print()


@app.command()
@_experiment_options(without=[name for name in OPTIONS if name not in OF_A_GRAPH])
def graph(
    out: Annotated[Path, typer.Option("--out", help="the picture: .png, .svg or .pdf")] = Path("graph.png"),
    *,
    given: dict[str, Any],
) -> None:
    """A graph: picture, degrees, rho, and what the theory says of eta."""
    from drdsgd import experiment, plots
    from drdsgd.mixing import rho_over_time
    from drdsgd.paper.theory import graph_factor

    e = experiment.Experiment(**given)
    g = experiment.make_graph(e)
    degrees = sorted(degree for _, degree in g.degree)
    mixing = experiment.make_mixing(e, g)
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
        else "says nothing of directed graphs",
        f"eta = sqrt(K / T), T = {T}": f"{(K / T) ** 0.5:.4f}",
        f"B = sqrt(K T), T = {T}": f"{(K * T) ** 0.5:.1f}",
        "picture": str(plots.network(g, out)),
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")


@app.command()
def algorithms(
    name: Annotated[str | None, typer.Argument(help="only this one, with all its own defaults")] = None,
) -> None:
    """Every method, or one: its problem, its cost, its options, its source."""
    from drdsgd import experiment, methods

    console = _console()
    known = [*methods.ALGORITHMS, *methods.SERVERS, *methods.OBJECTIVES, *methods.OPTIMIZERS]
    if name is not None and name not in known:
        raise InputError(f"{name}: {unknown(name, known)}")

    def show(title: str, rows: Mapping[str, Sequence[str]]) -> None:
        rows = {one: row for one, row in rows.items() if name in (None, one)}
        if not rows:
            return
        console.print(f"\n[bold]{title}[/bold]", highlight=False, soft_wrap=True)
        for one, (first, *others) in rows.items():
            console.print(f"  [bold]{one:<22}[/bold] {first}", highlight=False, soft_wrap=True)
            for line in filter(None, others):
                console.print(f"{'':<25}{line}", style="dim", highlight=False, markup=False, soft_wrap=True)

    def own_step(optimizer: str) -> dict[str, str]:
        plain, deep = (methods.default_eta("dsgd", None, optimizer, model) for model in ("mlp", "cnn"))
        return {"eta": f"{plain:g} (for mlp and logistic, else {deep:g})"} if plain else {}

    def about(one: str, rule: methods.Rule, sent: str) -> list[str]:
        options = dict(rule.options) | (own_step(one) if one in methods.OPTIMIZERS else {})
        if one in methods.SERVERS and experiment.has("local_steps", {"algorithm": one}):
            options["local_steps"] = 1
        return [rule.what, f"{sent} {rule.sends or 'nothing'}", _defaults(options), rule.source]

    def defaults_of(one: str, made: methods.Named) -> Mapping[str, Any]:
        # in the list where they are others than its parts', which stand below
        return made.options if name is None else {**methods.own_options(one, None, None), **own_step(made.optimizer)}

    per_link = "numbers per link and round:"
    named = {
        one: [
            f"{made.objective} with {made.optimizer}: {methods.OBJECTIVES[made.objective].what}",
            f"{per_link} {methods.sent_by(one)}", _defaults(defaults_of(one, made)), made.source,
        ]
        for one, made in methods.ALGORITHMS.items()
    }  # fmt: skip
    show("--algorithm NAME: an objective with an optimizer, each of which can be exchanged", named)
    for title, rules, sent in (
        (
            "--algorithm NAME: with a server, as baselines; --graph and --p only count the devices",
            methods.SERVERS, "numbers per client and round:",
        ),
        ("--objective NAME: what is minimised", methods.OBJECTIVES, "numbers per link and round, beside the model:"),
        ("--optimizer NAME: how", methods.OPTIMIZERS, per_link),
    ):  # fmt: skip
        show(title, {one: about(one, rule, sent) for one, rule in rules.items()})
    print("\nd: parameters of the model; K: devices; p_i: a device's share of the data, or 1 / K (--reference)")
    print("compressed d: quantize:B (B + 1) / 32 d, top:PART 2 PART d, random:PART PART d")
    print(
        "--gamma by default: 0.8 for 4 and 8 bits (1 works with these, too, and dr-qgm and dr-gt-adam have it), 0.4 for"
    )
    print("2 bits, 2 PART for top and PART for random, but 0.8 at most: with a larger one gossip may diverge")
    print("--gossip-steps N averages N times in a round, of compressed models too: N times the numbers per link")


def _defaults(options: Mapping[str, Any]) -> str:
    """Options as a user writes them; one that is off by default has no value."""
    from drdsgd.methods import gamma_of

    def shown(name: str, value: object) -> str:
        if name == "gamma" and value is None:
            compression = options.get("compression")
            return "--gamma (with --compression)" if compression is None else f"--gamma {gamma_of(compression)}"
        return spelling(name) if value is None else f"{spelling(name)} {value}"

    return " ".join(shown(name, value) for name, value in options.items())


@data_app.callback()
def data(context: typer.Context) -> None:
    """Which data sets are here, with sizes and checksums."""
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table

    from drdsgd.datasets import available

    table = Table("data set", "train", "test", "size", "checksums")
    table.add_column("where", overflow="fold")
    for one in available():
        size = f"{one.bytes / 1e6:.1f} MB" if one.bytes else "-"
        where = str(one.where or ("scikit-learn" if one.state == "embedded" else f"drdsgd data get {one.name}"))
        table.add_row(one.name, f"{one.train}", f"{one.test}", size, one.state, where)
    table.add_row("synthetic", "any", "any", "-", "made from the seed", "--dataset synthetic")
    table.add_row("your own", "any", "any", "-", "-", "--dataset FOLDER, with one .npz file per device")
    _console().print(table)


@data_app.command()
def get(
    name: Annotated[str, typer.Argument(help="fashion-mnist or cifar10")],
    to: Annotated[Path | None, typer.Option("--data-dir", help="folder to put it in; default the user's cache")] = None,
) -> None:
    """Fetch a data set, check it, and put it where it is looked for."""
    from drdsgd import fetch
    from drdsgd.progress import bar

    with bar(_console(stderr=True), f"fetching {name}", None) as advance:
        folder = fetch.get(name, to, progress=lambda label, done, total: advance(done, label, total))
    print(f"{name} is in {folder}, checksums right")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR...", help="folders of runs or comparisons")],
    out: Annotated[
        Path | None, typer.Option("--out", help="the page; default DIR/report.html, of several DIRs report.html here")
    ] = None,
) -> None:
    """A self-contained HTML page of runs."""
    from drdsgd import report as reports
    from drdsgd import summary
    from drdsgd.network import joined

    default = runs[0] / "report.html" if len(runs) == 1 else Path("report.html")
    runs = [joined.join(path) if joined.is_deployment(path) else path for path in runs]
    _show(summary.find_runs(runs))
    print(f"report: {reports.write(runs, out or default)}")


@network_app.command("init")
@_experiment_options(without=["data_dir", "device", "threads"])
def network_init(
    out: Annotated[Path, typer.Option("--out", help="folder for the deployment")],
    hosts: Annotated[
        Path | None, typer.Option("--hosts", help="file with a line NAME HOST:PORT per device; default this machine")
    ] = None,
    port: Annotated[int, typer.Option("--port", help="without --hosts: of the first device, others after it")] = 7450,
    days: Annotated[float, typer.Option("--days", help="until certificates expire")] = 365.0,
    keys: Annotated[
        bool, typer.Option("--keys/--no-keys", help="make the devices' keys here, or let each `join` with its own")
    ] = True,
    own_data: Annotated[
        bool, typer.Option("--own-data", help="every device has data of its own, in its folder data/")
    ] = False,
    classes: Annotated[int | None, typer.Option("--classes", help="with --own-data: of all devices together")] = None,
    mean_samples: Annotated[
        float | None,
        typer.Option("--mean-samples", help="with --own-data --reference samples: of the average device"),
    ] = None,
    deadline: Annotated[float, typer.Option("--deadline", help="seconds to wait for a neighbour in a round")] = 30.0,
    patience: Annotated[
        float, typer.Option("--patience", help="seconds to wait for all neighbours before the first round")
    ] = 60.0,
    staleness: Annotated[
        int, typer.Option("--staleness", help="rounds that a neighbour's model may be old; 0 waits for all")
    ] = 0,
    metrics_port: Annotated[
        int, typer.Option("--metrics-port", help="for Prometheus, on each host itself; 0 for none")
    ] = 9450,
    *,
    given: dict[str, Any],
) -> None:
    """A deployment: an authority, and a folder with key, certificate and device.toml for every device."""
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


@network_app.command("join")
def network_join(
    file: Annotated[Path, typer.Argument(metavar="DEVICE.toml", help="of the device that this host is")],
) -> None:
    """A key that never leaves this host, and a request to sign it."""
    commands = _network()
    from drdsgd.network.certificates import checksum

    asked = commands.join(file)
    print(f"signing request: {asked}, SHA-256 {checksum(asked)}")
    print(f"whoever has the authority's key signs it with: drdsgd network sign DIR {asked.name}")


@network_app.command("sign")
def network_sign(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="of the deployment, with the authority's key")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="requests (.csr), or certificates to renew")],
    days: Annotated[float, typer.Option("--days", help="until they expire")] = 365.0,
) -> None:
    """Certificates for devices that ask for them, or renewed ones."""
    commands = _network()
    from drdsgd.network.certificates import checksum

    sums = [checksum(file) if file.is_file() else "" for file in files]
    for path, file, checked in zip(commands.sign(folder, files, days), files, sums, strict=True):
        print(f"certificate: {path}; take it to the device's host, beside its device.toml")
        print(f"  for {file}, SHA-256 {checked}: the host that asked must have the same")


@network_app.command("run")
def network_run(folder: Annotated[Path, typer.Argument(metavar="DIR", help="of a deployment")]) -> None:
    """All devices of a deployment on this machine, a process each."""
    _network()
    from drdsgd import report, summary
    from drdsgd.network import deployment, joined, together
    from drdsgd.progress import bar

    paths = deployment.devices(folder)
    devices = [deployment.experiment_of(deployment.load(path), path.parent) for path in paths]
    total = sum(e.rounds for e in devices)
    with bar(_console(stderr=True), f"{len(devices)} devices", total) as advance:
        together.run(folder, advance)
    path = joined.join(folder)
    _show(summary.find_runs([path]))
    print(f"report: {report.write([path], folder / 'report.html')}")


@network_app.command("status")
def network_status(
    path: Annotated[Path, typer.Argument(metavar="DIR|DEVICE.toml", help="a deployment, or the device of this host")],
) -> None:
    """Who is connected, at which round, with what lag, and when certificates expire."""
    from rich.table import Table

    table = Table("device", "state", "round", "neighbours (their lag in rounds)", "certificate expires")
    commands = _network()
    for one in commands.status(path):
        said = ", ".join(f"{name} ({commands.seen(about)})" for name, about in one["neighbours"].items())
        at = "-" if one["round"] is None else f"{one['round']} of {one['rounds']}"
        table.add_row(one["name"], one["state"], at, said or "-", one["certificate"])
    _console().print(table)


@app.command()
def node(
    file: Annotated[Path, typer.Argument(metavar="DEVICE.toml", help="who this device is, and what it takes part in")],
    threads: Annotated[
        str | None, typer.Option("--threads", metavar="INTEGER", help="compute threads; default all cores")
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="the log also as lines of JSON on the standard error")] = False,
) -> None:
    """One real device: it trains on its own data and talks to its neighbours."""
    _network()
    from drdsgd.network import deployment
    from drdsgd.network import node as nodes
    from drdsgd.progress import of_one, view
    from drdsgd.training import Progress

    device = deployment.load(file)
    note = ""

    def watch(progress: Progress, missing: list[str]) -> None:
        nonlocal note
        if progress.metrics is not None:
            note = f"own accuracy {progress.metrics.local.average:.1f} %"
        show(progress.state.t, progress.metrics, f"without {' '.join(missing)}" if missing else "")

    rounds = device.experiment.get("rounds")
    with view(_console(stderr=True), device.name, rounds if isinstance(rounds, int) else None, of_one) as show:
        outcome = nodes.run(
            file, threads=_count("threads", threads), watch=watch, speak=log,
            waiting=lambda missing: show(None, note=f"waiting for {' '.join(missing)}"),
        )  # fmt: skip
    missed = ", ".join(f"{count} with {name}" for name, count in outcome.missed.items())
    said = [outcome.status, note, f"exchanges missed: {missed}" if missed else ""]
    print(f"{device.name}: {', '.join(filter(None, said))}; its record is in {outcome.folder}")
    if outcome.status == "diverged":
        raise typer.Exit(1)


def _network() -> Any:
    """The commands of the network, which need packages of their own."""
    try:
        import cryptography
        import zenoh

        assert cryptography and zenoh
    except ImportError as error:
        raise InputError(f"{error.name} is not installed: pip install 'drdsgd[network]'") from None
    from drdsgd.network import commands

    return commands


@app.command()
def bench(
    cases: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CASE]...", help="mlp, cnn, load, scale, evaluation, study, start; default all"),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="turns of every side")] = 7,
    out: Annotated[Path, typer.Option("--out", help="all numbers, as JSON")] = Path("bench.json"),
    plot: Annotated[
        Path | None, typer.Option("--plot", help="a picture of cost against K, from the case scale")
    ] = None,
) -> None:
    """Speed on this machine: ratios to a plain loop, to the bare arithmetic, and between sizes."""
    from drdsgd import bench as benchmarks
    from drdsgd import plots
    from drdsgd.progress import bar

    names = list(dict.fromkeys(cases or benchmarks.CASES))
    for name in names:
        if name not in benchmarks.CASES:
            raise InputError(f"bench {name}: {unknown(name, list(benchmarks.CASES))}")
    if plot is not None:
        plots.check_kind(plot)
        if "scale" not in names:
            raise InputError(f"--plot {plot}: the picture is made from the case scale; name it, too")
    for option, path in {"--out": out, "--plot": plot}.items():  # now, not after some minutes
        if path is not None and path.is_dir():
            raise InputError(f"{option} {path}: that is a folder; name a file in it")
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    results: list[benchmarks.Result] = []
    with bar(_console(stderr=True), "measuring", len(names)) as advance:
        for found in benchmarks.run(names, repeats, advance):
            results += found
            benchmarks.write(results, out)  # what was measured before a Ctrl-C is kept
    _console().print(benchmarks.table(results))
    print(f"numbers: {out}")
    if plot is not None:
        print(f"picture: {plots.cost(benchmarks.costs(results), plot)}")


def _compare(
    plan: Study, out: Path, resume: bool, again: str, threads: int | None = None, log: Sequence[str] = ()
) -> None:
    """Run a study with one bar for all its runs; then the table, the picture and the report."""
    from drdsgd import checkpoint, plots, report, study, summary
    from drdsgd.progress import bar
    from drdsgd.records import Folder

    cells = plan.cells(out)
    begun = [cell.experiment for cell in cells]
    # rounds that each run has behind it; also those that a checkpoint has, as they take no more time
    saved = {c.path: checkpoint.parts(Folder(c.path).checkpoint) for c in cells}
    over = {c.path for c in cells if Folder(c.path).status != "unfinished"}
    reached = {c.path: saved[c.path][0].t for c in cells if saved[c.path]}
    reached |= {c.path: c.experiment.rounds for c in cells if c.path in over}
    with _continued_with(again, out, begun=out / "study.toml"):
        with bar(_console(stderr=True), "comparing", sum(cell.experiment.rounds for cell in cells)) as advance:

            def watch(cell: study.Cell, t: int) -> None:
                _warn(begun)
                reached[cell.path] = t
                if t == cell.experiment.rounds:
                    over.add(cell.path)
                note = f"{len(over)} of {len(cells)} runs done; {cell.label}, seed {cell.experiment.seed}"
                advance(sum(reached.values()), note)

            advance(sum(reached.values()), "")
            records = study.compare(plan, out, resume=resume, threads=threads, watch=watch, log=log)
        _show(records)
        print(f"picture: {plots.curves(summary.groups(records), out / 'curves.png')}")
        print(f"report: {report.write([out], out / 'report.html')}")


def _warn(begun: list[Experiment]) -> None:
    """A line about runs that will hardly learn, once: when the first round is there, as no refusal comes after it."""
    from drdsgd import experiment

    for line in dict.fromkeys(filter(None, map(experiment.warning, begun))):
        print(f"drdsgd: {line}", file=sys.stderr)
    begun.clear()


def _logs(names: Sequence[str] | None) -> str:
    """As they were given."""
    return "".join(f" --log {name}" for name in names or ())


def _show(records: Sequence[Record]) -> None:
    """The table of runs on the terminal, and what went wrong with those that diverged, or have all but stopped."""
    from drdsgd import summary

    rows = summary.table(summary.groups(records))
    _console().print(summary.rich_table(rows))
    for line in summary.vanished(rows):
        print(line)
    for record in records:
        if record.status == "diverged":
            print(f"{record.path}: {record.message}")


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    # FORCE_COLOR is for colours: what moves is for terminals only
    there = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, force_interactive=None if there else False)


def _seeds(text: str) -> tuple[int, ...]:
    """`3` is 0, 1, 2; `4,7` is just these."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds {text}: give how many, such as 3, or which, such as 0,3,7") from None
    if len(numbers) == 1 and numbers[0] > 10_000:
        raise InputError(f"--seeds {text}: that many runs? give how many, such as 3, or which, such as 0,3,7")
    chosen = tuple(range(numbers[0])) if len(numbers) == 1 else tuple(numbers)
    if not chosen or min(chosen) < 0 or len(set(chosen)) != len(chosen):
        raise InputError(f"--seeds {text}: give at least one, each once, none below 0")
    return chosen
