"""Constructors of algorithms: options, defaults, and how the algorithm is built.

A constructor is called with options. It fills in the defaults of the algorithm and of its parts, and builds. A default
that depends on the number of devices or rounds (a `Rule`), a schedule in words and the seed of a compressor are known
only when training begins. So an algorithm that was made by a constructor has a function `resolve`: the loop calls it
with the `Setting`, and gets the same algorithm with all defaults resolved.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, TypedDict, TypeVar, Unpack

from drdsgd import options
from drdsgd.core import schedules
from drdsgd.core.compression import compressor
from drdsgd.core.optimizers import Messages
from drdsgd.core.parts import Part
from drdsgd.core.schedules import Schedule
from drdsgd.errors import InputError, named, unknown
from drdsgd.options import EtaSchedule, MuSchedule, Parameter, Rule, defaults, parameters

__all__ = ["Constructor", "Make", "Options", "Setting", "scheduled", "title_of", "with_schedules"]

# options that all algorithms share, which are no part of a title
SHARED = ("eta", "eta_schedule", "weight_decay", "local_steps")


class Setting(NamedTuple):
    """What a run adds to an algorithm: the number of devices K and of rounds T, the seed, the kind of the model."""

    devices: int
    rounds: int
    seed: int = 0
    model: str = "mlp"


class Options(TypedDict, total=False):
    """The options of all algorithms, for type checkers; a test compares it with what the functions declare."""

    eta: options.Eta | Schedule
    eta_schedule: EtaSchedule
    weight_decay: options.WeightDecay | None
    local_steps: options.LocalSteps | None
    gossip_steps: options.GossipSteps | None
    mu: options.Mu | Schedule
    mu_schedule: MuSchedule | None
    weights: options.Weights
    dual_eta: options.DualEta | Schedule
    dual_penalty: options.DualPenalty
    tilt: options.Tilt
    q: options.Q
    loss_clip: options.LossClip | None
    loss_smoothing: options.LossSmoothing | None
    weight_cap: options.WeightCap | None
    momentum: options.Momentum
    second_momentum: options.SecondMomentum
    compression: Messages
    gamma: options.Gamma
    clients: options.Clients | None
    pull: options.Pull
    shift: options.Shift
    shift_eta: options.ShiftEta
    shift_penalty: options.ShiftPenalty
    iterations: int
    nu: float


# what a constructor makes: a frozen dataclass with the fields name, eta and resolve
A = TypeVar("A")
Made = TypeVar("Made", covariant=True)


class Make(Protocol[Made]):
    """A constructor as a function, for type checkers: by position its values are those of its signature."""

    def __call__(self, *positional: Any, **given: Unpack[Options]) -> Made: ...


def scheduled(
    chosen: Mapping[str, Any],
    setting: Setting | None,
    eta_schedule: EtaSchedule = "constant",
    mu_schedule: MuSchedule | None = None,
) -> dict[str, Any]:
    """The options with their rules, schedules and compressors worked out, as far as the setting is known."""
    found = {name: value for name, value in chosen.items() if name not in ("eta_schedule", "mu_schedule")}
    fields = {**chosen, **({} if setting is None else setting._asdict())}
    if isinstance(found.get("compression"), str):
        found["compression"] = compressor(found["compression"], 0 if setting is None else setting.seed)
    for name, spelled in (("eta", eta_schedule), ("mu", mu_schedule)):
        if name not in found or (callable(found[name]) and not isinstance(found[name], Rule)):
            if spelled not in ("constant", None):
                raise InputError(
                    f"{named(f'{name}_schedule', spelled)}: {name} is a schedule already; give one of them"
                )
            continue
        if setting is not None:
            start = found[name].of(fields) if isinstance(found[name], Rule) else found[name]
            found[name] = schedules.spelled(name, start, spelled or "constant", setting.rounds)
        elif spelled not in ("constant", None):
            schedules.spelled(name, 1.0, spelled, 1)  # refuses what is wrong at once
            found[name] = Rule(f"{found[name]}, {spelled}", lambda e: None)
    return found


SCHEDULED = {"eta": "eta_schedule", "mu": "mu_schedule"}
_OF_SCHEDULES = parameters(scheduled)


def with_schedules(own: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The options and, after them, `eta_schedule` if `eta` may vary, and `mu_schedule` if `mu` may."""
    more = {SCHEDULED[name]: _OF_SCHEDULES[SCHEDULED[name]] for name in own if own[name].schedule and name in SCHEDULED}
    return {**own, **more}


def title_of(title: str, chosen: Mapping[str, Any], default: Mapping[str, Any], *, all_in_title: bool = False) -> str:
    """A title with the options that differ from their defaults; mu always, and others too if `all_in_title`.

    >>> title_of("DR-DSGD", {"mu": 6.0, "weights": "normalized"}, {"mu": 6.0, "weights": "as-written"})
    'DR-DSGD with mu = 6, normalized weights'
    """
    parts = []
    for name, value in chosen.items():
        if name in SHARED or value is None or isinstance(value, Rule):
            continue
        if name == "gamma" and isinstance(default[name], Rule) and value == default[name].of(chosen):
            continue
        if name == "mu" or all_in_title or value != default[name]:
            parts.append(_in_words(name.replace("_", " "), getattr(value, "spelled", value)))
    return title + (f" with {', '.join(parts)}" if parts else "")


def _in_words(name: str, value: Any) -> str:
    """An option with its value, in a title.

    >>> _in_words("mu", 6.0), _in_words("weights", "normalized"), _in_words("compression", "none")
    ('mu = 6', 'normalized weights', 'no compression')
    """
    if isinstance(value, bool):
        return f"{name} = {str(value).lower()}"
    if isinstance(value, float):
        return f"{name} = {value:g}"
    if callable(value):
        start, _, way = schedules.said(value).partition(", ")
        return f"{name} = {start} ({way})"
    return f"no {name}" if value == "none" else f"{value} {name}"


@dataclass(frozen=True)
class Constructor(Generic[A]):
    """An algorithm by name. Called with options, it gives the algorithm.

    `parts` are its objective and its optimizer, or the rule of a server. `build` takes all options, worked out.
    `parameters` are the options as the parts declare them, and `own` are the algorithm's defaults where they differ.
    """

    name: str
    title: str
    source: str
    parts: tuple[Part, ...]
    build: Callable[[Mapping[str, Any]], A]
    parameters: Mapping[str, Parameter]
    own: Mapping[str, Any] = field(default_factory=dict)
    all_in_title: bool = False

    @cached_property
    def options(self) -> dict[str, Any]:
        """All options with their defaults."""
        return {name: self.own.get(name, parameter.default) for name, parameter in self.parameters.items()}

    def __call__(self, *positional: Any, **given: Any) -> A:
        what = self.name.replace("-", "_")
        first = dict(zip(self.parameters, positional, strict=False))
        if len(first) < len(positional) or first.keys() & given.keys():
            raise TypeError(f"{what}({', '.join(self.parameters)}): too many values, or two values for one option")
        given |= first
        known = defaults(self.options, given)
        for name in given:
            if name not in known:
                raise InputError(f"{what}(..., {name}=...): {unknown(name, tuple(known))}")
        chosen = {**known, **given}
        for name, value in given.items():
            if self.parameters[name].is_plain(value) or (value is None and self.parameters[name].default is not None):
                self.parameters[name].check(name, value)
                chosen[name] = self.parameters[name].of(value)
        name = title_of(self.title, chosen, known, all_in_title=self.all_in_title)

        def make(setting: Setting | None) -> A:
            told = {key: chosen[key] for key in SCHEDULED.values() if chosen.get(key) is not None}
            found = scheduled(chosen, setting, **told)
            made = self.build(found)
            resolve = make if setting is None else None
            eta = schedules.said(found["eta"]) if "eta" in found else ""  # your own optimizer may have none
            return replace(made, name=name, eta=eta, resolve=resolve)  # type: ignore[type-var]  # a frozen dataclass

        return make(None)

    def _annotation(self, name: str) -> Any:
        """The type of an option's values, for the signature."""
        one = self.parameters[name]
        kind = one.annotation | Schedule if one.schedule else one.annotation
        return kind | None if one.default is None else kind

    def function(self, module: str, about: str | None) -> Make[A]:
        """The constructor as a function with a signature and a docstring."""

        def make(*positional: Any, **given: Any) -> A:
            return self(*positional, **given)

        make.__name__ = make.__qualname__ = self.name.replace("-", "_")
        make.__module__, make.__doc__ = module, about
        make.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # inspect reads it; functions do not declare it
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=default,
                    annotation=self._annotation(name),
                )
                for name, default in self.options.items()
            ]
        )
        return make
