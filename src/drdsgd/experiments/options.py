"""The fields of an experiment as a user sees them: spelling, type and meaning, in one table.

`Experiment` validates them and the command line offers them; both read this table. This module imports nothing heavy,
so that `drdsgd --help` answers at once.
"""

from __future__ import annotations

from typing import NamedTuple

from drdsgd.errors import InputError
from drdsgd.experiments import registry

__all__ = [
    "ALGORITHMS", "COMPRESSIONS", "DATASETS", "GRAPHS", "MIXINGS", "OPTIONS", "SCHEDULES", "Option", "parse",
    "spelling",
]  # fmt: skip

ALGORITHMS = (*registry.ALGORITHMS, *registry.SERVERS)
DATASETS = ("digits", "fashion-mnist", "cifar10", "synthetic")
DIRECTED = ("directed-ring", "directed-erdos-renyi")
GRAPHS = ("erdos-renyi", "geometric", "ring", "grid", "torus", "complete", "star", *DIRECTED)
SCHEDULES = ("constant", "linear", "cosine", "exponential", "warmup")
COMPRESSIONS = ("none", "top", "random", "quantize")
MIXINGS = ("metropolis", "matcha", "matchings", "one-peer-exponential")


class Option(NamedTuple):
    """The type of a field, its help text, and the group in which --help shows it."""

    type: type[str] | type[int] | type[float]
    help: str
    group: str


def _options(group: str, **options: tuple[type[str] | type[int] | type[float], str]) -> dict[str, Option]:
    return {name: Option(kind, text, group) for name, (kind, text) in options.items()}


OPTIONS: dict[str, Option] = {
    **_options(
        "Algorithm",
        algorithm=(str, "name of the algorithm, see drdsgd algorithms; default dr-dsgd"),
        objective=(str, f"override the algorithm's objective ({', '.join(registry.OBJECTIVES)})"),
        optimizer=(str, f"override the algorithm's optimizer ({', '.join(registry.OPTIMIZERS)})"),
        rounds=(int, "communication rounds T; default 300"),
        batch_size=(int, "batch size B: samples per device and round; default sqrt(K T)"),
        eta=(float, "step size; default sqrt(K / T) (gt-adam: 0.01, or 0.0025 if --model is not mlp or logistic)"),
        eta_schedule=(
            str,
            "step size over rounds: constant, linear[:END], cosine[:END], exponential:DECAY or warmup[:PART]; END is a "
            "fraction of eta, PART of the rounds; default constant",
        ),
        weight_decay=(float, "L2 penalty added to the gradient; default none"),
        local_steps=(int, "rounds between two exchanges (with a server: local steps per round); default 1"),
    ),
    **_options(
        "Objective",
        mu=(
            float,
            "robustness: small is worst case, large is average; default 6 (chi2-dro, dr-qgm: 1; dr-gt-adam: 0.3)",
        ),
        mu_schedule=(
            str, "mu over rounds, as --eta-schedule; linear:0.1 ends at a tenth of mu; default constant (dr-qgm: "
            "linear:0.1)"
        ),
        weights=(
            str,
            "weights of kl-dro: as-written (h / mu), without-mu (h) or normalized (h / mean h, by gossip); default "
            "as-written (dr-qgm, dr-gt-adam: normalized)",
        ),
        radius=(float, "kl-ball: bound on the divergence of the devices' weights; default 0.1"),
        tilt=(float, "term, fed-term: the tilt t = 1 / mu; default 1"),
        q=(float, "q-ffl, q-fedavg: 0 is average, large is worst case; default 1"),
        dual_eta=(float, "ad-gda, afl, drfa: step size of the devices' weights; default 0.01"),
        dual_penalty=(float, "ad-gda: penalty that keeps the weights near the reference; default 0.01"),
        loss_clip=(float, "upper bound on the loss that enters a weight; default none"),
        loss_smoothing=(
            float,
            "compute weights from a moving average of losses, in which the newest counts this much, in (0, 1]; default "
            "none (dr-qgm: 0.03; dr-gt-adam: 0.1)",
        ),
        weight_cap=(
            float,
            "upper bound on a device's weight, relative to the mean weight; default none (kl-ball, dr-qgm, dr-gt-adam: "
            "3)",
        ),
    ),
    **_options(
        "Optimizer",
        momentum=(float, "momentum coefficient, in [0, 1); default 0.9"),
        second_momentum=(float, "gt-adam: decay of the mean squared gradient, in [0, 1); default 0.99"),
        compression=(
            str,
            "compress messages: none, top:PART, random:PART or quantize:BITS; default none (choco, dr-qgm, dr-gt-adam: "
            "quantize:4)",
        ),
        gamma=(
            float,
            "with --compression: step towards the neighbours' models, in (0, 1]; default 0.8 (dr-qgm, dr-gt-adam: 1; "
            "top, random and 2 bits: smaller)",
        ),
    ),
    **_options(
        "Server (baselines)",
        clients=(int, "number of devices drawn at random for each round; default all"),
        pull=(float, "ditto: penalty that keeps personal models near the common one; default 1"),
        shift_penalty=(float, "fedrobust: penalty on the shift of inputs; default 1"),
        shift_eta=(float, "fedrobust: step size of the shift; default 0.01"),
        shift=(str, "fedrobust: matrix, or diagonal for large inputs; default matrix"),
    ),
    **_options(
        "Network",
        devices=(int, "number of devices K, 2 or more; default 10 (graph file or data folder: its size)"),
        graph=(
            str,
            f"{', '.join(GRAPHS)}, or a file (edge list, .graphml, .npy); with a server only its size matters; default "
            "erdos-renyi",
        ),
        p=(float, "edge probability of the erdos-renyi graph, in (0, 1]; default 0.3"),
        mixing=(
            str,
            "averaging with neighbours: metropolis, matcha[:BUDGET] (0.5 if left out), matchings or "
            "one-peer-exponential; default metropolis",
        ),
        gossip_steps=(int, "averagings with neighbours per round, each with its own messages; default 1 (dr-qgm: 2)"),
        link_failures=(float, "probability that a link fails in a round, in (0, 1); default none"),
        dropouts=(float, "probability that a device is absent in a round, in (0, 1); default none"),
    ),
    **_options(
        "Data and model",
        dataset=(str, f"{', '.join(DATASETS)}, or a folder with one .npz file per device; default digits"),
        data_dir=(str, "folder with the data set's files, if they are not where drdsgd data looks"),
        model=(
            str,
            "mlp, mlp:64,32, cnn, logistic, or your own as package.module:factory; default mlp (cifar10: cnn; "
            "synthetic: logistic)",
        ),
        partition=(str, "how samples are dealt to devices: shards, dirichlet or iid; default shards"),
        shards=(int, "shards per device, for --partition shards; default 2"),
        alpha=(float, "concentration, for --partition dirichlet: small is uneven; default 0.5"),
        heterogeneity=(float, "how much the devices of the synthetic data differ; 0 is IID; default 1"),
        scaling=(str, "scaling of features: unit (in [0, 1]) or standard (mean 0, deviation 1); default unit"),
        validation=(
            float,
            "fraction of each device's training samples, in (0, 1), to evaluate on instead of test samples; default "
            "none",
        ),
        random_labels=(int, "number of devices, from the first, whose training labels are random; default none"),
        reference=(str, "reference weight of a device: samples (n_i / n) or uniform (1 / K); default samples"),
    ),
    **_options(
        "Run",
        seed=(int, "seed of graph, partition, initial model and batches; default 0"),
        eval_every=(int, "rounds between evaluations; default 10"),
        checkpoint_every=(int, "rounds between checkpoints; default 50"),
        execution=(str, "how one process runs its devices: auto, batched or loop; default auto"),
        dtype=(str, "float32 or float64; default float32"),
        device=(str, "device of the tensors: cpu, cuda, cuda:1; default cpu"),
        threads=(int, "number of compute threads; default all cores"),
    ),
}  # fmt: skip


def spelling(field: str) -> str:
    """A field's option on the command line.

    >>> spelling("batch_size")
    '--batch-size'
    """
    return "--" + field.replace("_", "-")


def parse(field: str, text: str) -> str | int | float:
    """The value of a field, from its text on the command line.

    >>> parse("mu", "six")
    Traceback (most recent call last):
    drdsgd.errors.InputError: --mu six: not a number (robustness: ...)
    """
    option = OPTIONS[field]
    try:
        return option.type(text)
    except ValueError:
        kind = "a whole number" if option.type is int else "a number"
        raise InputError(f"{spelling(field)} {text}: not {kind} ({option.help})") from None
