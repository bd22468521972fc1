"""The fields of an experiment as a user meets them: spelling, type and meaning, in one table.

`Experiment` validates them, the command line offers them, and neither says anything twice. This module imports
nothing heavy, so that `drdsgd --help` answers at once.
"""

from __future__ import annotations

from typing import NamedTuple

from drdsgd.errors import InputError
from drdsgd.experiments import registry

__all__ = [
    "ALGORITHMS",
    "COMPRESSIONS",
    "DATASETS",
    "GRAPHS",
    "MIXINGS",
    "OPTIONS",
    "SCHEDULES",
    "Option",
    "parse",
    "spelling",
]

ALGORITHMS = (*registry.ALGORITHMS, *registry.SERVERS)
DATASETS = ("digits", "fashion-mnist", "cifar10", "synthetic")
DIRECTED = ("directed-ring", "directed-erdos-renyi")
GRAPHS = ("erdos-renyi", "geometric", "ring", "grid", "torus", "complete", "star", *DIRECTED)
SCHEDULES = ("constant", "linear", "cosine", "exponential", "warmup")
COMPRESSIONS = ("none", "top", "random", "quantize")
MIXINGS = ("metropolis", "matcha", "matchings", "one-peer-exponential")


class Option(NamedTuple):
    """The type of a field, what it is for, and among which others it is shown."""

    type: type[str] | type[int] | type[float]
    help: str
    group: str


def _options(group: str, **options: tuple[type[str] | type[int] | type[float], str]) -> dict[str, Option]:
    return {name: Option(kind, text, group) for name, (kind, text) in options.items()}


OPTIONS: dict[str, Option] = {
    **_options(
        "Algorithm",
        algorithm=(str, "see drdsgd algorithms; default dr-dsgd"),
        objective=(str, f"another than the algorithm's: {', '.join(registry.OBJECTIVES)}"),
        optimizer=(str, f"another than the algorithm's: {', '.join(registry.OPTIMIZERS)}"),
        rounds=(int, "communication rounds T; default 300"),
        batch_size=(int, "samples per device and round, B; default sqrt(K T)"),
        eta=(float, "step size; default sqrt(K / T), of gt-adam 0.01, or 0.0025 if --model is not mlp or logistic"),
        eta_schedule=(
            str, "constant, linear[:END], cosine[:END] (END: part of eta), exponential:DECAY, warmup[:PART of T]"
        ),
        weight_decay=(float, "adds so much of the model to its gradient; default none"),
        local_steps=(int, "rounds between two exchanges; with a server, steps of a device per round; default 1"),
    ),
    **_options(
        "Objective",
        mu=(
            float,
            "robustness: small is worst case, large is average; default 6, of chi2-dro and dr-qgm 1, of dr-gt-adam 0.3",
        ),
        mu_schedule=(str, "as --eta-schedule; linear:0.1 ends at a tenth of mu, as dr-qgm does; default constant"),
        weights=(
            str,
            "of kl-dro: as-written (h / mu), without-mu (h) or normalized (h / mean h, by gossip); default as-written",
        ),
        radius=(float, "of kl-ball: bound on the divergence of devices' weights; default 0.1"),
        tilt=(float, "of term and fed-term: t = 1 / mu; default 1"),
        q=(float, "of q-ffl and q-fedavg: 0 is average, large is worst case; default 1"),
        dual_eta=(float, "of ad-gda, afl and drfa: step size of the devices' weights; default 0.01"),
        dual_penalty=(float, "of ad-gda: holds weights near the reference; default 0.01"),
        loss_clip=(float, "bound on the loss that the weight is made from; default none"),
        loss_smoothing=(
            float, "weights are made from a moving average of losses; part that is new; default none, of "
            "dr-qgm 0.03, of dr-gt-adam 0.1"
        ),
        weight_cap=(
            float, "bound on a device's weight, in average devices' weights; default none, of kl-ball and "
            "our own methods 3"
        ),
    ),
    **_options(
        "Optimizer",
        momentum=(float, "part of the momentum that stays, in [0, 1); default 0.9"),
        second_momentum=(float, "of gt-adam: part of the mean square that stays, in [0, 1); default 0.99"),
        compression=(str, "of messages: none, top:PART, random:PART or quantize:BITS; default quantize:4 of choco"),
        gamma=(
            float,
            "how far models move to their neighbours' compressed ones, in (0, 1]; default 0.8, of our own methods 1, "
            "of top, random and 2 bits less",
        ),
    ),
    **_options(
        "Server (baselines)",
        clients=(int, "devices that take part in a round, drawn at random; default all"),
        pull=(float, "of ditto: holds personal models near the common one; default 1"),
        shift_penalty=(float, "of fedrobust: holds back the shift of inputs; default 1"),
        shift_eta=(float, "of fedrobust: step size of the shift; default 0.01"),
        shift=(str, "of fedrobust: matrix, or diagonal for large inputs; default matrix"),
    ),
    **_options(
        "Network",
        devices=(int, "number of devices K, 2 or more; default 10"),
        graph=(str, f"{', '.join(GRAPHS)}, or a file (edge list, .graphml, .npy); a server only counts its nodes"),
        p=(float, "edge probability of the erdos-renyi graph, in (0, 1]; default 0.3"),
        mixing=(str, "metropolis (default), matcha:BUDGET (0.5 if left out), matchings or one-peer-exponential"),
        gossip_steps=(int, "averagings of models with neighbours per round, also compressed; default 1, of dr-qgm 2"),
        link_failures=(float, "probability that a link fails in a round; default none"),
        dropouts=(float, "probability that a device is away in a round; default none"),
    ),
    **_options(
        "Data and model",
        dataset=(str, f"{', '.join(DATASETS)}, or a folder with one .npz file per device"),
        data_dir=(str, "folder with the data set's files, if not where they are looked for"),
        model=(str, "mlp, mlp:64,32, cnn, logistic, or your own as package.module:factory"),
        partition=(str, "how samples are dealt to devices: shards, dirichlet or iid; default shards"),
        shards=(int, "shards per device of the shards partition; default 2"),
        alpha=(float, "concentration of the dirichlet partition: small is uneven; default 0.5"),
        heterogeneity=(float, "how much the devices of the synthetic data differ; 0 is IID; default 1"),
        scaling=(str, "features: unit (in [0, 1]) or standard (mean 0, deviation 1); default unit"),
        validation=(
            float, "part of each device's training samples, in (0, 1), to score in place of test samples; default none"
        ),
        random_labels=(int, "devices, from the first on, whose training labels are random; default none"),
        reference=(str, "how much a device counts: samples (n_i / n) or uniform (1 / K); default samples"),
    ),
    **_options(
        "Run",
        seed=(int, "seed of graph, partition, initial model and batches; default 0"),
        eval_every=(int, "rounds between evaluations; default 10"),
        checkpoint_every=(int, "rounds between checkpoints; default 50"),
        execution=(str, "how one process runs its devices: auto, batched or loop; default auto"),
        dtype=(str, "float32 or float64; default float32"),
        device=(str, "where tensors live: cpu, cuda, cuda:1; default cpu"),
        threads=(int, "compute threads; default all cores"),
    ),
}  # fmt: skip


def spelling(field: str) -> str:
    """A field's spelling on the command line.

    >>> spelling("batch_size")
    '--batch-size'
    """
    return "--" + field.replace("_", "-")


def parse(field: str, text: str) -> str | int | float:
    """The value that a text gives a field.

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
