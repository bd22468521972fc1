"""Every method by name: its problem, its message size, its options with their defaults, its source.

An algorithm is an objective with an optimizer, or a server with its own rule. The tables name them for the command line
and for `drdsgd algorithms`; the methods themselves are in `objectives`, `optimizers` and `baselines`. This module
imports nothing heavy: `make` gets the module that has its function as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from drdsgd.errors import InputError

if TYPE_CHECKING:
    from drdsgd.core.compression import Compressor
    from drdsgd.core.optimizers import Exchange
    from drdsgd.core.schedules import Schedule
    from drdsgd.experiments.config import Experiment

__all__ = [
    "ALGORITHMS", "OBJECTIVES", "OPTIMIZERS", "SERVERS", "Named", "Rule", "compressed_size", "default_eta",
    "gamma_of", "name_of", "own_options", "parts_of", "scheduled", "sent_by",
]  # fmt: skip

Options = Mapping[str, Any]

# options of every objective that depends on losses; all are off by default
_ROBUST: Options = {"loss_clip": None, "loss_smoothing": None, "weight_cap": None}


@dataclass(frozen=True)
class Rule:
    """An objective, an optimizer or an algorithm with a server.

    `sends` is the message size in numbers per link and round (with a server: per client and round); an objective's is
    in addition to the model's d. `options` are its fields in an `Experiment`, with their defaults.
    """

    what: str
    sends: str
    source: str
    make: Callable[[ModuleType, Experiment], Any]
    options: Options = field(default_factory=dict)
    eta: float | None = None
    """default step size for `mlp` and `logistic`, a quarter of it for other models; None means sqrt(K / T)"""
    averaged: bool = False
    """with a server: whether the common model is the mean of its models over rounds"""


@dataclass(frozen=True)
class Named:
    """An objective with an optimizer, under its usual name."""

    title: str
    objective: str
    optimizer: str
    source: str
    options: Options = field(default_factory=dict)  # defaults that differ from those of its parts


OBJECTIVES: dict[str, Rule] = {
    "erm": Rule("average risk, sum_i p_i f_i", "", "McMahan et al., AISTATS 2017", lambda o, e: o.erm()),
    "kl-dro": Rule(
        "worst mixture of devices, with the penalty mu KL (eq. 6 to 8 of the paper)", "1 if normalized",
        "Ben Issaid, Elgabli and Bennis, TMLR 2022",
        lambda o, e: o.kl_dro(_mu(e), weights=e.weights),
        {"mu": 6.0, "mu_schedule": None, "weights": "as-written", **_ROBUST},
    ),
    "kl-ball": Rule(
        "worst mixture of devices with KL(lambda | p) <= radius; adapts mu, from 1, at least 0.1 (A.2)", "3",
        "Ben Issaid, Elgabli and Bennis, TMLR 2022; Hu and Hong, 2013",
        lambda o, e: o.kl_ball(e.radius), {"radius": 0.1, **_ROBUST, "weight_cap": 3.0},
    ),
    "chi2-dro": Rule(
        "worst mixture of devices, with the penalty mu / 2 chi-square", "1", "Namkoong and Duchi, NeurIPS 2017",
        lambda o, e: o.chi2_dro(e.mu), {"mu": 1.0, **_ROBUST},
    ),
    "term": Rule(
        "tilted risk, (1/t) log sum_i p_i exp(t f_i): kl-dro with mu = 1 / t, normalized", "1",
        "Li, Beirami, Sanjabi and Smith, ICLR 2021", lambda o, e: o.term(e.tilt), {"tilt": 1.0, **_ROBUST},
    ),
    "q-ffl": Rule(
        "q-fair risk, sum_i p_i f_i^(q+1) / (q+1), normalized", "1", "Li, Sanjabi, Beirami and Smith, ICLR 2020",
        lambda o, e: o.q_ffl(e.q), {"q": 1.0, **_ROBUST},
    ),
    "ad-gda": Rule(
        "worst mixture of devices, with the penalty dual_penalty / 2 ||lambda - p||^2, by dual ascent", "K",
        "Zecchin, Kountouris and Gesbert, TMLR 2022",
        lambda o, e: o.ad_gda(e.dual_eta, e.dual_penalty), {"dual_eta": 0.01, "dual_penalty": 0.01, **_ROBUST},
    ),
}  # fmt: skip

# options of optimizers that can compress messages; gamma has a default only with --compression
_COMPRESSED: Options = {"compression": None, "gamma": None}

OPTIMIZERS: dict[str, Rule] = {
    "dsgd": Rule(
        "theta <- W (theta - eta g)", "d", "Lian et al., NeurIPS 2017; Yuan, Ling and Yin, 2016",
        lambda o, e: o.dsgd(_eta(e)),
    ),
    "momentum": Rule(
        "momentum on every device", "d, or compressed d", "Yu, Jin and Yang, ICML 2019",
        lambda o, e: o.momentum(_eta(e), e.momentum, _exchange(o, e)), {"momentum": 0.9, **_COMPRESSED},
    ),
    "quasi-global-momentum": Rule(
        "momentum of the models' changes, including gossip", "d, or compressed d",
        "Lin, Karimireddy, Stich and Jaggi, ICML 2021",
        lambda o, e: o.quasi_global_momentum(_eta(e), e.momentum, _exchange(o, e)), {"momentum": 0.9, **_COMPRESSED},
    ),
    "gradient-tracking": Rule(
        "steps along a gossiped estimate of the mean gradient", "2 d",
        "Di Lorenzo and Scutari, 2016; Pu and Nedic, 2021", lambda o, e: o.gradient_tracking(_eta(e)),
    ),
    "gt-adam": Rule(
        "Adam along a gossiped estimate of the mean gradient; models and estimates are averaged after the step",
        "2 d, or compressed 2 d",
        "Carnevale, Farina, Notarnicola and Notarstefano, IEEE TCNS 2023",
        lambda o, e: o.gt_adam(_eta(e), e.momentum, e.second_momentum, _exchange(o, e)),
        {"momentum": 0.9, "second_momentum": 0.99, **_COMPRESSED}, eta=0.01,
    ),
    "d2": Rule(
        "no bias from heterogeneous data; needs a constant W with least eigenvalue above -1/3", "d",
        "Tang, Lian, Yan, Zhang and Liu, ICML 2018", lambda o, e: o.d2(_eta(e)),
    ),
    "exact-diffusion": Rule(
        "d2 with (I + W) / 2; needs a constant W", "d", "Yuan, Ying, Zhao and Sayed, 2019",
        lambda o, e: o.exact_diffusion(_eta(e)),
    ),
    "choco": Rule(
        "compressed messages with memory; needs a constant W", "compressed d",
        "Koloskova, Lin, Stich and Jaggi, ICLR 2020",
        lambda o, e: o.dsgd(_eta(e), _exchange(o, e)), {**_COMPRESSED, "compression": "quantize:4"},
    ),
    "push": Rule(
        "gradient push; also works on directed graphs", "d + 1", "Assran, Loizou, Ballas and Rabbat, ICML 2019",
        lambda o, e: o.push(_eta(e)),
    ),
}  # fmt: skip

ALGORITHMS: dict[str, Named] = {
    "dsgd": Named("DSGD", "erm", "dsgd", "Lian et al., NeurIPS 2017; Algorithm 1 of the paper"),
    "dr-dsgd": Named("DR-DSGD", "kl-dro", "dsgd", "Ben Issaid, Elgabli and Bennis, TMLR 2022; Algorithm 2"),
    "dsgdm": Named("DSGDm", "erm", "momentum", "Yu, Jin and Yang, ICML 2019"),
    "qg-dsgdm": Named("QG-DSGDm", "erm", "quasi-global-momentum", "Lin, Karimireddy, Stich and Jaggi, ICML 2021"),
    "gradient-tracking": Named("gradient tracking", "erm", "gradient-tracking", "Pu and Nedic, 2021"),
    "gt-adam": Named(
        "GTAdam", "erm", "gt-adam", "Carnevale, Farina, Notarnicola and Notarstefano, IEEE TCNS 2023"
    ),
    "d2": Named("D2", "erm", "d2", "Tang, Lian, Yan, Zhang and Liu, ICML 2018"),
    "exact-diffusion": Named("exact diffusion", "erm", "exact-diffusion", "Yuan, Ying, Zhao and Sayed, 2019"),
    "choco-sgd": Named("CHOCO-SGD", "erm", "choco", "Koloskova, Lin, Stich and Jaggi, ICLR 2020"),
    "sgp": Named("SGP", "erm", "push", "Assran, Loizou, Ballas and Rabbat, ICML 2019"),
    "ad-gda": Named("AD-GDA", "ad-gda", "choco", "Zecchin, Kountouris and Gesbert, TMLR 2022"),
    "dr-qgm": Named(
        "DR-QGM", "kl-dro", "quasi-global-momentum", "this project",
        {
            # mu decays: while losses are far apart, a small mu would let a few devices make long steps. Two averagings
            # of short messages: weights help only if the models are close to each other
            "mu": 1.0, "mu_schedule": "linear:0.1", "weights": "normalized", "loss_smoothing": 0.03,
            "weight_cap": 3.0, "compression": "quantize:4", "gamma": 1.0, "gossip_steps": 2,
        },
    ),
    "dr-gt-adam": Named(
        "DR-GTAdam", "kl-dro", "gt-adam", "this project",
        {
            "mu": 0.3, "weights": "normalized", "loss_smoothing": 0.1, "weight_cap": 3.0,
            "compression": "quantize:4", "gamma": 1.0,
        },
    ),
}  # fmt: skip

# the number of devices in a server's round, by default all
_SOME: Options = {"clients": None}

SERVERS: dict[str, Rule] = {
    "fedavg": Rule(
        "average risk", "2 d", "McMahan et al., AISTATS 2017",
        lambda s, e: s.fed_avg(_eta(e), e.local_steps or 1, e.clients), _SOME,
    ),
    "afl": Rule(
        "worst mixture of devices, by dual ascent", "2 d + 1", "Mohri, Sivek and Suresh, ICML 2019",
        lambda s, e: s.afl(_eta(e), e.dual_eta), {"dual_eta": 0.01}, averaged=True,
    ),
    "drfa": Rule(
        "worst mixture of devices, by dual ascent on sampled devices", "3 d + 2, with --local-steps up to 4 d + 2",
        "Deng, Kamani and Mahdavi, NeurIPS 2020",
        lambda s, e: s.drfa(_eta(e), e.dual_eta, e.local_steps or 1, e.clients), {"dual_eta": 0.01, **_SOME},
        averaged=True,
    ),
    "q-fedavg": Rule(
        "q-fair risk", "2 d + 1", "Li, Sanjabi, Beirami and Smith, ICLR 2020",
        lambda s, e: s.q_fed_avg(_eta(e), e.q, e.local_steps or 1, e.clients), {"q": 1.0, **_SOME},
    ),
    "fed-term": Rule(
        "tilted risk: kl-dro with mu = 1 / t", "2 d + 1", "Li, Beirami, Sanjabi and Smith, ICLR 2021",
        lambda s, e: s.fed_term(_eta(e), e.tilt, e.local_steps or 1, e.clients), {"tilt": 1.0, **_SOME},
    ),
    "fedrobust": Rule(
        "a different problem: shifts of inputs", "2 d", "Reisizadeh, Farnia, Pedarsani and Jadbabaie, NeurIPS 2020",
        lambda s, e: s.fed_robust(_eta(e), e.shift_penalty, e.shift_eta, e.local_steps or 1, e.clients, e.shift),
        {"shift_penalty": 1.0, "shift_eta": 0.01, "shift": "matrix", **_SOME},
    ),
    "ditto": Rule(
        "a different problem: personal models near a common one", "2 d", "Li, Hu, Beirami and Smith, ICML 2021",
        lambda s, e: s.ditto(_eta(e), e.pull, e.local_steps or 1, e.clients), {"pull": 1.0, **_SOME},
    ),
    "rfa": Rule(
        "a different problem: corrupted updates, by the geometric median (4 steps)", "10 d + 4",
        "Pillutla, Kakade and Harchaoui, IEEE TSP 2022",
        lambda s, e: s.rfa(_eta(e), local_steps=e.local_steps or 1, clients=e.clients), _SOME,
    ),
}  # fmt: skip


def parts_of(algorithm: str, objective: str | None, optimizer: str | None) -> tuple[str, str]:
    """The objective and the optimizer of an algorithm, after overriding either of them.

    >>> parts_of("dr-dsgd", None, "d2")
    ('kl-dro', 'd2')
    """
    named = ALGORITHMS[algorithm]
    return objective or named.objective, optimizer or named.optimizer


def name_of(algorithm: str, objective: str | None, optimizer: str | None) -> str:
    """The name of a method: the algorithm's, or the names of its parts if one is overridden.

    >>> name_of("dr-dsgd", None, None), name_of("dr-dsgd", "q-ffl", None)
    ('dr-dsgd', 'q-ffl + dsgd')
    """
    return " + ".join(parts_of(algorithm, objective, optimizer)) if objective or optimizer else algorithm


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


def own_options(algorithm: str, objective: str | None, optimizer: str | None) -> dict[str, Any]:
    """The options of an algorithm, its objective and its optimizer, with their defaults.

    >>> own_options("qg-dsgdm", None, None)["momentum"]
    0.9
    """
    if algorithm in SERVERS:
        return dict(SERVERS[algorithm].options)
    loss, step = parts_of(algorithm, objective, optimizer)
    # gossip_steps belongs to no objective or optimizer, but an algorithm may have its own default
    options = {"gossip_steps": None, **OBJECTIVES[loss].options, **OPTIMIZERS[step].options}
    return options | {name: value for name, value in ALGORITHMS[algorithm].options.items() if name in options}


def default_eta(algorithm: str, objective: str | None, optimizer: str | None, model: str) -> float | None:
    """The default step size of an optimizer that has its own; None stands for the paper's sqrt(K / T).

    >>> default_eta("dr-gt-adam", None, None, "mlp:32"), default_eta("dr-gt-adam", None, None, "cnn")
    (0.01, 0.0025)
    >>> default_eta("dr-gt-adam", None, "dsgd", "mlp")
    """
    eta = None if algorithm in SERVERS else OPTIMIZERS[parts_of(algorithm, objective, optimizer)[1]].eta
    # with Adam's steps of 0.005 and 0.01 all units of the CNN were dead at the end on CIFAR-10; others may be as deep
    return eta if eta is None or model.partition(":")[0] in ("mlp", "logistic") else eta / 4


def _eta(e: Experiment) -> float | Schedule:
    return scheduled("eta", e.eta, e.eta_schedule, e.rounds)


def _mu(e: Experiment) -> float | Schedule:
    assert e.mu is not None
    return e.mu if e.mu_schedule is None else scheduled("mu", e.mu, e.mu_schedule, e.rounds)


def scheduled(name: str, start: float, spelled: str, rounds: int) -> float | Schedule:
    """The value in every round, or a function of the round: `linear:0.1` ends at a tenth of `start`.

    >>> scheduled("eta", 0.5, "linear", rounds=100)(50)
    0.25
    """
    from drdsgd.core import schedules
    from drdsgd.errors import unknown
    from drdsgd.experiments.options import SCHEDULES

    option = f"--{name}-schedule {spelled}"
    kind, _, number = spelled.partition(":")
    if kind not in SCHEDULES:
        raise InputError(f"{option}: {unknown(kind, SCHEDULES)}")
    try:
        value = float(number) if number else None
    except ValueError:
        raise InputError(f"{option}: '{number}' is not a number; write {kind}:0.1") from None
    if kind == "constant":
        if value is not None:
            raise InputError(f"{option}: constant takes no number; set --{name}")
        return start
    if kind == "exponential":
        if value is None:
            raise InputError(f"{option}: give the decay per round, for example exponential:0.99")
        if not 0 < value <= 1:
            raise InputError(f"{option}: the decay per round must be in (0, 1]; 0.99 halves {name} in 69 rounds")
        return schedules.exponential(start, value)
    if kind == "warmup":
        if name == "mu":
            raise InputError(f"{option}: mu must stay above zero; write linear:0.1 to end at a tenth of mu")
        if value is not None and not 0 < value < 1:
            raise InputError(f"{option}: {number} must be a fraction of the rounds, in (0, 1)")
        return schedules.warmup(start, rounds, 0.1 if value is None else value)
    if value is not None and not 0 <= value <= 1:
        raise InputError(f"{option}: the end must be a fraction of {name}, in [0, 1]")
    if name == "mu" and not value:
        raise InputError(f"{option}: mu must stay above zero; write {kind}:0.1 to end at a tenth of mu")
    return (schedules.linear if kind == "linear" else schedules.cosine)(start, rounds, value or 0.0)


def _exchange(optimizers: ModuleType, e: Experiment) -> Exchange | None:
    """The compressed exchange of models; None without compression."""
    if e.compression is None or (e.compression == "none" and e.gamma == 1):
        return None
    exchange: Exchange = optimizers.compressed(_compressor(e, e.compression), e.gamma)
    return exchange


def _compressor(e: Experiment, spelled: str) -> Compressor:
    from drdsgd.core import compression
    from drdsgd.errors import unknown
    from drdsgd.experiments.options import COMPRESSIONS

    kind, _, number = spelled.partition(":")
    option = f"--compression {spelled}"
    if kind not in COMPRESSIONS:
        raise InputError(f"{option}: {unknown(kind, COMPRESSIONS)}")
    if kind == "none":
        if spelled != kind:
            raise InputError(f"{option}: none takes no number")
        return compression.no_compression()
    try:
        value = float(number)
        if kind == "quantize":
            return compression.quantized(int(value) if value == int(value) else -1)
        return compression.top_k(value) if kind == "top" else compression.random_k(value, e.seed)
    except (ValueError, OverflowError) as error:
        said = error if isinstance(error, InputError) else "write top:0.1, random:0.1 or quantize:4"
        raise InputError(f"{option}: {said}") from None
