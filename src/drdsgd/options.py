"""Options: what a user can set, each declared once.

An option is a parameter of the function that uses it. Its annotation is one of the types below, which carry type,
bounds and one line of help. Its default stands in the function's signature: a value, or a `Rule` that derives it from
other options. The fields of an `Experiment`, `--help`, TOML files, `drdsgd algorithms` and the reference pages are made
from these signatures. This module imports nothing heavy.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from numbers import Integral, Number, Real
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar

from drdsgd.errors import InputError, named

__all__ = [
    "GROUPS", "IN_PYTHON", "LIMIT", "Option", "Parameter", "Rule", "adam_step", "all_cores", "by_compression",
    "checked", "defaults", "either", "evaluations", "gamma_of", "local_evaluations", "paper_batch", "paper_step",
    "parameters", "renamed",
]  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")

# numbers that are multiplied with parameters and with each other in float32 stay below
MOST = 1e6
# the counters of the batch generator have 32 bits
LIMIT = 2**32


# --------------------------------------------------------------------- what an option is


class Option(NamedTuple):
    """One line of help, the group in which --help shows it, and bounds: above < value < below, least <= value <= most.

    `unset` says what happens if there is no value.
    """

    help: str
    group: str = ""
    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    unset: str = "none"


class Parameter(NamedTuple):
    """An option as a function declares it. `kind` is a type, or the allowed texts; `schedule`: may vary over rounds."""

    option: Option
    kind: type[Any] | tuple[str, ...]
    default: Any
    schedule: bool = False

    def check(self, name: str, value: object) -> None:
        """Refuse a value of another type or outside the bounds.

        >>> parameters(example)["mu"].check("mu", -1)
        Traceback (most recent call last):
        drdsgd.errors.InputError: mu=-1: input should be greater than 0 (robustness, ...)
        """
        if (wrong := self._wrong(value)) is not None:
            about = f" ({self.option.help})" if self.option.help else ""
            raise InputError(f"{named(name, value)}: input should be {wrong}{about}")

    @property
    def annotation(self) -> Any:
        """The type of its values, for a signature."""
        return Literal[self.kind] if isinstance(self.kind, tuple) else self.kind

    def of(self, value: Any) -> Any:
        """A checked value as a plain int or float, if it is a number."""
        return int(value) if self.kind is int else float(value) if self.kind is float else value

    def is_plain(self, value: object) -> bool:
        """Whether `check` can judge a value: a number or a text, not a schedule, a compressor or None."""
        off = value is None and self.default is None
        return isinstance(value, str | Number) or (isinstance(self.kind, tuple) and not off)

    def _wrong(self, value: object) -> str | None:
        """What a value should be, if it is not that."""
        if isinstance(self.kind, tuple):
            return None if value in self.kind else either([repr(choice) for choice in self.kind])
        if self.kind in (str, bool):
            word = {str: "string", bool: "boolean"}[self.kind]
            return None if isinstance(value, self.kind) else f"a valid {word}"
        if isinstance(value, bool) or not isinstance(value, Integral if self.kind is int else Real):
            return "a valid integer" if self.kind is int else "a valid number"
        if self.kind is float and not _is_finite(value):
            return "a finite number"
        o, number = self.option, typing.cast(Any, value)  # not as a float: an integer may be too large for it
        for bound, fits, words in (
            (o.above, operator.gt, "greater than"), (o.least, operator.ge, "greater than or equal to"),
            (o.below, operator.lt, "less than"), (o.most, operator.le, "less than or equal to"),
        ):  # fmt: skip
            if bound is not None and not fits(number, bound):
                return f"{words} {bound:.15g}" if isinstance(bound, float) else f"{words} {bound}"
        return None


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def either(choices: list[str]) -> str:
    """Texts in a row: a, b or c."""
    return f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else choices[0]


class Rule(NamedTuple):
    """A default that depends on other options: its words, and the function of all options that computes it.

    >>> paper_step, paper_step.of({"devices": 10, "rounds": 40})
    (sqrt(K / T), 0.5)
    """

    words: str
    of: Callable[[Mapping[str, Any]], Any]

    def __repr__(self) -> str:
        return self.words

    def __call__(self, t: int) -> float:
        """As a schedule, before the options are known that it depends on."""
        raise InputError(f"the default {self.words} is known in drdsgd.train only: give a number instead")


# typed Any, so that the type of an option says what users give
paper_step: Any = Rule("sqrt(K / T)", lambda e: math.sqrt(e["devices"] / e["rounds"]))
paper_batch: Any = Rule("sqrt(K T)", lambda e: round(math.sqrt(e["devices"] * e["rounds"])))
# with Adam's steps of 0.005 and 0.01 all units of the CNN were dead at the end on CIFAR-10; others may be as deep
adam_step: Any = Rule(
    "0.01, or 0.0025 if the model is not mlp or logistic",
    lambda e: 0.01 if str(e["model"]).partition(":")[0] in ("mlp", "logistic") else 0.0025,
)
# evaluating the CNN's local models and their mean took 60 % of a default run on CIFAR-10
evaluations: Any = Rule(
    "10, or 25 if the model is not mlp or logistic",
    lambda e: 10 if str(e["model"]).partition(":")[0] in ("mlp", "logistic") else 25,
)
local_evaluations: Any = Rule(
    "1, or 5 if the model is not mlp or logistic",
    lambda e: 1 if str(e["model"]).partition(":")[0] in ("mlp", "logistic") else 5,
)
by_compression: Any = Rule(
    "0.8, less for 2 bits, top and random", lambda e: gamma_of(str(e.get("compression") or "none"))
)


def gamma_of(compression: str) -> float:
    """The default step towards the neighbours' compressed models: the stronger the compression, the smaller.

    With a larger gamma gossip alone diverges on a ring and on random graphs. Without compression any gamma works.

    >>> [gamma_of(spelled) for spelled in ("none", "quantize:4", "quantize:2", "top:0.1", "random:0.1")]
    [1.0, 0.8, 0.4, 0.2, 0.1]
    """
    kind, _, number = compression.partition(":")
    if kind == "none":
        return 1.0
    with suppress(ValueError):
        value = float(number)
        if kind == "quantize" and value == 2:
            return 0.4
        if kind in ("top", "random") and 0 < value <= 1:
            return min(0.8, 2 * value if kind == "top" else value)
    return 0.8


def _cores() -> int:
    """The number of cores for this process; processes that torchrun started on this machine share the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


all_cores: Any = Rule("all cores", lambda e: _cores())


# --------------------------------------------------------------------- the options of functions


def parameters(function: Callable[..., Any], foreign: str = "") -> dict[str, Parameter]:
    """The options among a function's parameters, by name: those whose annotation holds an `Option`.

    With `foreign`, the name of a user-defined function, every parameter must be an option: of type float, int, bool,
    str or Literal of texts, with a default. Its help may be a text, `Annotated[float, "the level that counts"]`.

    >>> parameters(example)["mu"].default, parameters(example)["mu"].option.above
    (6.0, 0)
    """
    found = {}
    for name, kind, default in _signature(function):
        option, types_, schedule = _taken_apart(kind)
        if option is None and not foreign:
            continue
        if foreign and (default is inspect.Parameter.empty or types_ is None):
            why = "has no default" if types_ is not None else f"has a type that no option can have ({_word(kind)})"
            why = "has no type" if kind is None else why
            raise InputError(
                f"{foreign}: the parameter {name} {why}; write {name}: float = 1.0 (or int, bool, str, Literal)"
            )
        found[name] = Parameter(option or Option(""), types_ or str, default, schedule)
        if foreign and default is not None and not callable(default) and (wrong := found[name]._wrong(default)):
            raise InputError(f"{foreign}: the default of the parameter {name} is {default!r}, and should be {wrong}")
    return found


def _word(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _signature(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Name, annotation and default of every parameter."""
    hints = _hints(function)
    return [(p.name, hints.get(p.name), p.default) for p in inspect.signature(function).parameters.values()]


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = inspect.unwrap(function)
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError:  # a name that is imported for type checkers only: it belongs to no option
        there = inspect.signature(target).parameters
        found: dict[str, Any] = {}
        for name, parameter in there.items():
            with suppress(NameError):
                one = types.SimpleNamespace(__annotations__={name: parameter.annotation})
                found |= typing.get_type_hints(one, vars(inspect.getmodule(target)), include_extras=True)
        return found


def _taken_apart(kind: Any) -> tuple[Option | None, type[Any] | tuple[str, ...] | None, bool]:
    """The option in an annotation, the type of its values (None if it is no type of options), and if it may vary."""
    option, schedule, strange = None, False, False
    found: list[type[Any] | tuple[str, ...]] = []
    waiting = [kind]
    while waiting:
        one = waiting.pop()
        origin = typing.get_origin(one)
        if origin is Annotated:
            for about in one.__metadata__:
                option = about if isinstance(about, Option) else Option(about) if isinstance(about, str) else option
            waiting.append(one.__origin__)
        elif origin in (typing.Union, types.UnionType):
            waiting += typing.get_args(one)
        elif origin is Literal:
            choices = tuple(choice for choice in typing.get_args(one) if choice is not None)
            texts = all(isinstance(choice, str) for choice in choices)
            found += [choices] if texts else []
            strange = strange or not texts
        elif one in (float, int, str, bool):
            found.append(one)
        elif one not in (None, type(None)):
            schedule, strange = schedule or "Callable" in str(one), True
    if not found or (strange and option is None):
        return None, None, False
    literals = [one for one in found if isinstance(one, tuple)]
    return option, literals[0] if literals else float if float in found else found[0], schedule


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function; its options are checked before it runs.

    >>> checked(example)(mu=0.0)
    Traceback (most recent call last):
    drdsgd.errors.InputError: mu=0.0: input should be greater than 0 (robustness, ...)
    """
    known = functools.cache(lambda: (inspect.signature(function), parameters(function)))

    @functools.wraps(function)
    def with_checks(*positional: P.args, **keywords: P.kwargs) -> R:
        signature, options = known()
        for name, value in signature.bind(*positional, **keywords).arguments.items():
            if name in options and options[name].is_plain(value):
                options[name].check(name, value)
        return function(*positional, **keywords)

    return with_checks


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept old names of parameters, with a warning: `@renamed(lam="pull")`, the first of a function's decorators."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def with_old_names(*positional: P.args, **keywords: P.kwargs) -> R:
            for old, new in names.items():
                if old in keywords:
                    if new in keywords:
                        raise TypeError(f"{function.__name__}({old}=..., {new}=...): two values for {new}")
                    warnings.warn(
                        f"{function.__name__}({old}=...) is now {function.__name__}({new}=...); the old name will be "
                        "removed in the next release",
                        DeprecationWarning,
                        stacklevel=2,
                    )
                    keywords[new] = keywords.pop(old)
            return function(*positional, **keywords)

        return with_old_names

    return decorate


def defaults(options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults among `options`, for what is given: an algorithm's own gamma belongs to its own compression."""
    found = dict(options)
    if "compression" in given and given["compression"] != options.get("compression"):
        found["gamma"] = by_compression
    return found


# --------------------------------------------------------------------- the options, group by group

_ALGORITHM, _OBJECTIVE, _OPTIMIZER = "Algorithm", "Objective", "Optimizer"
_SERVER, _NETWORK, _DATA, _RUN = "Server (baselines)", "Network", "Data and model", "Run"
# options of this group can be set in Python, and not on the command line
IN_PYTHON = "Python"
GROUPS = (_ALGORITHM, _OBJECTIVE, _OPTIMIZER, _SERVER, _NETWORK, _DATA, _RUN)

ObjectiveName = Annotated[str, Option(
    "override the algorithm's objective ({objectives}, or your own as package.module:function)", _ALGORITHM, unset=""
)]  # fmt: skip
OptimizerName = Annotated[str, Option(
    "override the algorithm's optimizer ({optimizers}, or your own as package.module:function)", _ALGORITHM, unset=""
)]  # fmt: skip
Rounds = Annotated[int, Option("communication rounds T", _ALGORITHM, least=1, below=LIMIT)]
BatchSize = Annotated[int, Option("batch size B: samples per device and round", _ALGORITHM, least=1, below=LIMIT)]
Eta = Annotated[float, Option("step size", _ALGORITHM, above=0, most=MOST)]
EtaSchedule = Annotated[str, Option(
    "step size over rounds: constant, linear[:END], cosine[:END], exponential:DECAY or warmup[:PART]; END is a "
    "fraction of eta, PART of the rounds", _ALGORITHM
)]  # fmt: skip
WeightDecay = Annotated[float, Option("L2 penalty added to the gradient", _ALGORITHM, above=0)]
LocalSteps = Annotated[int, Option(
    "rounds between two exchanges (with a server: local steps per round)",
    _ALGORITHM, least=1, below=LIMIT, unset="1"
)]  # fmt: skip

Mu = Annotated[float, Option("robustness, small is worst case, large is average", _OBJECTIVE, above=0)]
MuSchedule = Annotated[str, Option(
    "mu over rounds, written like a schedule of eta; linear:0.1 ends at a tenth of mu", _OBJECTIVE, unset="constant"
)]  # fmt: skip
Weights = Annotated[Literal["as-written", "without-mu", "normalized"], Option(
    "weights as-written (h / mu), without-mu (h) or normalized (h / mean h, by gossip)", _OBJECTIVE
)]  # fmt: skip
Radius = Annotated[float, Option("bound on the divergence of the devices' weights", _OBJECTIVE, above=0)]
Tilt = Annotated[float, Option("the tilt t = 1 / mu", _OBJECTIVE, above=0, most=MOST)]
Q = Annotated[float, Option("0 is average, large is worst case", _OBJECTIVE, least=0, most=MOST)]
DualEta = Annotated[float, Option("step size of the devices' weights", _OBJECTIVE, above=0)]
DualPenalty = Annotated[float, Option("penalty that keeps the weights near the reference", _OBJECTIVE, least=0)]
LossClip = Annotated[float, Option("upper bound on the loss that enters a weight", _OBJECTIVE, above=0, most=MOST)]
LossSmoothing = Annotated[float, Option(
    "compute weights from a moving average of losses, in which the newest counts this much, in (0, 1]",
    _OBJECTIVE, above=0, most=1
)]  # fmt: skip
WeightCap = Annotated[
    float, Option("upper bound on a device's weight, relative to the mean weight", _OBJECTIVE, above=0)
]

Momentum = Annotated[float, Option("momentum coefficient, in [0, 1)", _OPTIMIZER, least=0, below=1)]
SecondMomentum = Annotated[float, Option("decay of the mean squared gradient, in [0, 1)", _OPTIMIZER, least=0, below=1)]
Compression = Annotated[str, Option("compress messages: none, top:PART, random:PART or quantize:BITS", _OPTIMIZER)]
Gamma = Annotated[float, Option(
    "with compressed messages: step towards the neighbours' models, in (0, 1]", _OPTIMIZER, above=0, most=1
)]  # fmt: skip

Clients = Annotated[
    int, Option("number of devices drawn at random for each round", _SERVER, least=1, below=LIMIT, unset="all")
]
Pull = Annotated[float, Option("penalty that keeps personal models near the common one", _SERVER, least=0, most=MOST)]
ShiftPenalty = Annotated[float, Option("penalty on the shift of inputs", _SERVER, above=0)]
ShiftEta = Annotated[float, Option("step size of the shift", _SERVER, above=0)]
Shift = Annotated[Literal["matrix", "diagonal"], Option("matrix, or diagonal for large inputs", _SERVER)]

EdgeProbability = Annotated[float, Option("edge probability, in (0, 1]", _NETWORK, above=0, most=1)]
MixingKind = Annotated[str, Option(
    "averaging with neighbours: metropolis, matcha[:BUDGET] (0.5 if left out), matchings or one-peer-exponential",
    _NETWORK, unset="metropolis"
)]  # fmt: skip
GossipSteps = Annotated[int, Option(
    "averagings with neighbours per round, each with its own messages",
    _NETWORK, least=1, below=LIMIT, unset="1"
)]  # fmt: skip
LinkFailures = Annotated[
    float, Option("probability that a link fails in a round, in (0, 1)", _NETWORK, above=0, below=1)
]
Dropouts = Annotated[
    float, Option("probability that a device is absent in a round, in (0, 1)", _NETWORK, above=0, below=1)
]

DataDir = Annotated[
    str, Option("folder with the data set's files, if they are not where drdsgd data looks", _DATA, unset="")
]
PartitionKind = Annotated[
    Literal["shards", "dirichlet", "iid"], Option("how samples are dealt to devices: shards, dirichlet or iid", _DATA)
]
Shards = Annotated[int, Option("number of shards per device", _DATA, least=1, below=LIMIT)]
Alpha = Annotated[float, Option("concentration, small is uneven", _DATA, above=0)]
Heterogeneity = Annotated[
    float, Option("how much the devices of the synthetic data differ; 0 is IID", _DATA, least=0, most=MOST)
]
Scaling = Annotated[Literal["unit", "standard"], Option(
    "scaling of features: unit (in [0, 1]) or standard (mean 0, deviation 1)", _DATA
)]  # fmt: skip
Validation = Annotated[float, Option(
    "fraction of each device's training samples, in (0, 1), to evaluate on instead of test samples",
    _DATA, above=0, below=1
)]  # fmt: skip
Reference = Annotated[
    Literal["samples", "uniform"], Option("reference weight of a device: samples (n_i / n) or uniform (1 / K)", _DATA)
]

Seed = Annotated[int, Option("seed of graph, partition, initial model and batches", _RUN, least=0, below=2**63)]
EvalEvery = Annotated[int, Option("rounds between evaluations", _RUN, least=1, below=LIMIT)]
LocalEvery = Annotated[int, Option(
    "local models are evaluated in every n-th evaluation, and after the last round", _RUN, least=1, below=LIMIT
)]  # fmt: skip
Execution = Annotated[
    Literal["auto", "batched", "loop"], Option("how one process runs its devices: auto, batched or loop", _RUN)
]
Matmul = Annotated[Literal["mkl", "onednn"], Option("library of float32 matrix products on a CPU: mkl or onednn", _RUN)]
Precision = Annotated[Literal["float32", "bfloat16"], Option(
    "factors of products: float32, or bfloat16 with float32 models (faster where the processor has AVX512-BF16)", _RUN
)]  # fmt: skip
Threads = Annotated[int, Option("number of compute threads", _RUN, least=1, below=LIMIT)]


def example(mu: Mu = 6.0) -> float:
    """A function with an option, for the examples above."""
    return mu
