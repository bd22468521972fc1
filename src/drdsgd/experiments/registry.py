"""Every method and every option by name, as the command line needs them: without torch.

The functions of the library declare their options (`drdsgd.options`). `catalogue.json` holds what they declare;
`python -m drdsgd.experiments.catalogue` writes it, and a test fails if it is out of date. A user-defined objective or
optimizer, `package.module:function`, is described when it is used.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from drdsgd.core.kernels import fastest_matmul
from drdsgd.errors import InputError, named, option, unknown
from drdsgd.options import (
    Option,
    Parameter,
    Rule,
    adam_step,
    all_cores,
    by_compression,
    either,
    evaluations,
    local_evaluations,
    paper_batch,
    paper_step,
)

if TYPE_CHECKING:
    from drdsgd.core.parts import Part

__all__ = [
    "ALGORITHMS", "DATASETS", "FILE", "GOSSIP", "GRAPHS", "METHODS", "OBJECTIVES", "OF_COMMANDS", "OPTIMIZERS",
    "OPTIONS", "PARTITIONS", "SERVERS", "TRAINING", "Entry", "Named", "compressed_size", "entry", "known", "name_of",
    "needed_by", "own_entry", "own_options", "parse", "parts_of", "sent_by", "spelled",
]  # fmt: skip

FILE = Path(__file__).with_name("catalogue.json")
RULES = {
    rule.words: rule
    for rule in (
        paper_step,
        paper_batch,
        adam_step,
        evaluations,
        local_evaluations,
        by_compression,
        all_cores,
        fastest_matmul,
    )
}
KINDS: dict[str, type[Any]] = {"float": float, "int": int, "str": str, "bool": bool}
Options = Mapping[str, Any]


class Entry(NamedTuple):
    """An objective, an optimizer or an algorithm with a server; `options` are all its options, with their defaults.

    `sends` is the message size in numbers per link and round (with a server: per client and round); an objective's is
    in addition to the model's d. `averaged`: the server's common model is the mean of its models over rounds.
    """

    what: str
    sends: str
    source: str
    options: Options = MappingProxyType({})
    averaged: bool = False


class Named(NamedTuple):
    """An objective with an optimizer, under its usual name; `options` are its own defaults."""

    title: str
    objective: str
    optimizer: str
    source: str
    options: Options = MappingProxyType({})


def _parameter(written: Mapping[str, Any]) -> Parameter:
    kind = written["kind"]
    return Parameter(
        Option(**{name: value for name, value in written.items() if name != "kind"}),
        KINDS[kind] if isinstance(kind, str) else tuple(kind),
        None,
    )


def _defaults(written: Options) -> Options:
    return {name: RULES[value["rule"]] if isinstance(value, dict) else value for name, value in written.items()}


def _entries(table: Mapping[str, Any]) -> dict[str, Entry]:
    return {name: Entry(**{**one, "options": _defaults(one["options"])}) for name, one in table.items()}


_CATALOGUE = json.loads(FILE.read_text(encoding="utf-8"))
# all options that are known without user-defined functions, in the order in which --help shows them
OPTIONS = {name: _parameter(written) for name, written in _CATALOGUE["options"].items()}
ALGORITHMS = {name: Named(**one) for name, one in _CATALOGUE["algorithms"].items()}
OBJECTIVES, OPTIMIZERS, SERVERS = (_entries(_CATALOGUE[kind]) for kind in ("objectives", "optimizers", "servers"))
METHODS = (*ALGORITHMS, *SERVERS)
# options of all algorithms without a server, of the network that these use, and of all runs
SHARED, GOSSIP, TRAINING = (_defaults(_CATALOGUE[kind]) for kind in ("shared", "gossip", "training"))
GRAPHS, DATASETS, PARTITIONS = (
    {name: _defaults(options) for name, options in _CATALOGUE[kind].items()}
    for kind in ("graphs", "datasets", "partitions")
)
_TABLES = {"objective": OBJECTIVES, "optimizer": OPTIMIZERS}


def entry(kind: str, name: str) -> Entry:
    """The objective or optimizer with this name, which may be `package.module:function`."""
    known = _TABLES[kind]
    if name in known:
        return known[name]
    if ":" not in str(name):
        raise InputError(
            f"{named(kind, name)}: {unknown(str(name), tuple(known))} (your own is package.module:function)"
        )
    options = {key: parameter.default for key, parameter in outside(kind, name).items()}
    part = _part(kind, name)
    return Entry(part.what, part.sends, part.source, options)


def own_entry(name: str) -> Entry:
    """The description of a user-defined objective or optimizer."""
    from drdsgd.training.outside import kind_of

    kind = "objective"
    try:
        kind = kind_of(name)
        return entry(kind, name)
    except InputError as error:  # `drdsgd algorithms NAME` takes the name alone, without an option
        raise InputError(error.marked.replace(named(kind, name), name)) from error


@functools.cache
def _part(kind: str, name: str) -> Part:
    from drdsgd.training.outside import part

    return part(kind, name)


def outside(kind: str, name: object) -> dict[str, Parameter]:
    """The options of an objective or optimizer, if it is a user-defined function; else none."""
    if ":" not in str(name) or name in _TABLES[kind]:
        return {}
    from drdsgd.core.algorithms import of_objective, of_optimizer
    from drdsgd.experiments.config import Experiment
    from drdsgd.training.algorithms import check_names

    part = _part(kind, str(name))
    check_names(**{kind: part}, taken={*OPTIONS, *OF_COMMANDS, *dir(Experiment)})
    found = (of_objective if kind == "objective" else of_optimizer)(part)
    return {
        key: one._replace(option=_shown(kind, str(name), one) if key in part.parameters else OPTIONS[key].option)
        for key, one in found.items()
    }


def known(objective: object = None, optimizer: object = None) -> dict[str, Parameter]:
    """All options, with those of a user-defined objective and optimizer."""
    weighs, steps = outside("objective", objective), outside("optimizer", optimizer)
    if weighs and steps:
        from drdsgd.training.algorithms import check_names

        check_names(_part("objective", str(objective)), _part("optimizer", str(optimizer)))
    return {**OPTIONS, **weighs, **steps}


# options of commands that are no options of an experiment; a test holds them to the commands
OF_COMMANDS = frozenset({
    "backend", "classes", "days", "deadline", "engine", "file", "help", "hosts", "keys", "log", "mean_samples",
    "metrics_port", "no_keys", "out", "own_data", "patience", "port", "regroup", "resume", "seeds", "staleness",
    "timeout",
})  # fmt: skip


def _shown(kind: str, name: str, one: Parameter) -> Option:
    """An option of a user-defined function as --help shows it."""
    default = one.default.words if isinstance(one.default, Rule) else one.default
    about = f"{name}: {one.option.help}" if one.option.help else f"option of {name}"
    about += f" ({either([*one.kind])})" if isinstance(one.kind, tuple) and not one.option.group else ""
    group = one.option.group or kind.capitalize()
    return one.option._replace(help=about if default is None else f"{about}; default {default}", group=group)


def parse(name: str, text: str, known: Mapping[str, Parameter] = OPTIONS) -> str | int | float | bool:
    """The value of an option, from its text on the command line.

    >>> parse("mu", "six")
    Traceback (most recent call last):
    drdsgd.errors.InputError: mu='six': not a number (kl-dro, chi2-dro: robustness, ...)
    """
    kind = known[name].kind
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return text if isinstance(kind, tuple) else kind(text)
    except (ValueError, KeyError):
        words = {int: "a whole number", bool: "true or false"}.get(kind, "a number")  # type: ignore[arg-type]  # a tuple gives a text
        raise InputError(f"{named(name, text)}: not {words} ({known[name].option.help})") from None


def parts_of(algorithm: str, objective: str | None, optimizer: str | None) -> tuple[str, str]:
    """The objective and the optimizer of an algorithm, after overriding either of them.

    >>> parts_of("dr-dsgd", None, "d2")
    ('kl-dro', 'd2')
    """
    known = ALGORITHMS[algorithm]
    return objective or known.objective, optimizer or known.optimizer


def name_of(algorithm: str, objective: str | None, optimizer: str | None) -> str:
    """The name of a method: the algorithm's, or the names of its parts if one is overridden.

    >>> name_of("dr-dsgd", None, None), name_of("dr-dsgd", "q-ffl", None)
    ('dr-dsgd', 'q-ffl + dsgd')
    """
    return " + ".join(parts_of(algorithm, objective, optimizer)) if objective or optimizer else algorithm


def own_options(algorithm: str, objective: str | None, optimizer: str | None) -> dict[str, Any]:
    """The options of an algorithm, its objective and its optimizer, with their defaults.

    >>> own_options("qg-dsgdm", None, None)["momentum"]
    0.9
    """
    if algorithm in SERVERS:
        return dict(SERVERS[algorithm].options)
    loss, step = parts_of(algorithm, objective, optimizer)
    options = {**entry("objective", loss).options, **entry("optimizer", step).options, **SHARED}
    return options | {name: value for name, value in ALGORITHMS[algorithm].options.items() if name in options}


def needed_by(name: str, algorithm: str) -> str:
    """The settings in which an option has an effect.

    >>> from drdsgd.errors import InputError
    >>> InputError(needed_by("q", "dsgd")).on_command_line
    '--objective q-ffl or --algorithm q-fedavg'
    """
    if name in GOSSIP:
        return "an algorithm without a server"
    tables: dict[str, Mapping[str, Options]] = {
        **{kind: {key: one.options for key, one in table.items()} for kind, table in _TABLES.items()},
        "algorithm": {key: one.options for key, one in SERVERS.items()},
        "graph": GRAPHS, "dataset": DATASETS, "partition": PARTITIONS,
    }  # fmt: skip
    having = {kind: [key for key, options in table.items() if name in options] for kind, table in tables.items()}
    needs = {kind: f"{named(kind)} {either(some)}" for kind, some in having.items() if some}
    if name in SHARED:
        needs = {"algorithm": needs["algorithm"]} if "algorithm" in needs else {}
        return " or ".join(["an algorithm without a server", *needs.values()])
    if algorithm in SERVERS and (needs.keys() & _TABLES.keys()):  # it has no parts to choose
        return needs.get("algorithm", f"a method without a server, with {' or '.join(needs.values())}")
    return " or ".join(needs.values())


def sent_by(algorithm: str) -> str:
    """The message size of an algorithm in numbers per link and round, with its default options.

    >>> sent_by("dr-dsgd"), sent_by("dr-qgm"), sent_by("ad-gda")
    ('d', '2 (5/32 d + 1)', '5/32 d + K')
    >>> sent_by("gt-adam"), sent_by("dr-gt-adam")
    ('2 d', '10/32 d + 1')
    """
    loss, step = parts_of(algorithm, None, None)
    options, beside = own_options(algorithm, None, None), OBJECTIVES[loss].sends
    if beside.endswith(" if normalized"):
        beside = beside.removesuffix(" if normalized") if options["weights"] == "normalized" else ""
    compression = options.get("compression")
    model = OPTIMIZERS[step].sends.partition(",")[0]
    if compression is not None:
        model = compressed_size(compression, 2 if model == "2 d" else 1)
    once, steps = f"{model} + {beside}" if beside else model, options["gossip_steps"]
    return once if steps is None else f"{steps} ({once})"


def compressed_size(compression: str, messages: int = 1) -> str:
    """The size of one or several compressed messages of d parameters, in numbers of 32 bits, up to the last block.

    >>> compressed_size("quantize:4"), compressed_size("top:0.1"), compressed_size("random:0.1", messages=2)
    ('5/32 d', '0.2 d', '0.2 d')
    """
    kind, _, number = compression.partition(":")
    if kind == "quantize":
        return f"{messages * (int(number) + 1)}/32 d"  # a scale per 32 entries is one more bit per entry
    part = messages * {"top": 2 * float(number or 0), "random": float(number or 0)}.get(kind, 1.0)
    return "d" if part == 1 else f"{part:g} d"


def spelled(options: Options) -> str:
    """Options as a user writes them; one that is off by default has no value.

    >>> spelled({"mu": 6.0, "loss_clip": None, "eta": paper_step})
    '--eta (sqrt(K / T)) --mu 6.0 --loss-clip'
    """
    order = {name: place for place, name in enumerate(OPTIONS)}

    def shown(name: str, value: Any) -> str:
        if value is None and name in OPTIONS and OPTIONS[name].option.unset.isdecimal():
            value = OPTIONS[name].option.unset
        text = f"({value})" if isinstance(value, Rule) else str(value)
        return option(name) if value is None else f"{option(name)} {text}"

    return " ".join(shown(*one) for one in sorted(options.items(), key=lambda one: order.get(one[0], len(order))))
