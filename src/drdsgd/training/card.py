"""A trained model on disk: its parameters as safetensors, and a model card with the result of every device.

The card is Markdown with the header of a Hugging Face model card. It is written after the parameters and contains their
checksum, so that it can't be taken for the card of another model.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import Tensor, nn

from drdsgd.core.gradients import loss_name
from drdsgd.engines.products import links
from drdsgd.errors import InputError
from drdsgd.files import replacing, write_text
from drdsgd.topology.mixing import Mixing, rho_over_time
from drdsgd.training.metrics import Metric, Metrics
from drdsgd.training.preparation import Prepared, Settings
from drdsgd.versions import versions

__all__ = ["Training", "describe", "save", "text"]

# up to this many devices a card has a line for each, above that only for the worst
ALL_DEVICES, WORST_DEVICES = 50, 20
# Hugging Face's names of our metrics
KNOWN_METRICS = {"accuracy": "accuracy", "absolute error": "mae", "squared error": "mse"}


@dataclass(frozen=True, eq=False)
class Training:
    """How a model was trained, for its card; `mixing` is None if there was a server."""

    algorithm: str
    eta: str
    """In words; empty if it is not known."""
    settings: Settings
    loss: str
    metric: Metric
    train_sizes: Sequence[int]
    test_sizes: Sequence[int]
    shape: Sequence[int]
    """The shape of one sample x; the model gets x * scale + shift."""
    scale: Tensor
    shift: Tensor
    mixing: Mixing | None
    names: Sequence[str] = ()
    """The devices' names, if they have names."""
    rho: float | None = None
    """Computed when the card is written, if not given."""


def describe(run: Prepared) -> Training:
    """How this run trains its model; a collective operation if there are several processes."""
    train_sizes, test_sizes = (run.ranks.gather(some.sizes).tolist() for some in (run.data.train, run.data.test))
    return Training(
        algorithm=run.algorithm.name,
        eta=run.algorithm.eta,
        settings=run.settings,
        loss=loss_name(run.site.loss),
        metric=run.metric,
        train_sizes=train_sizes,
        test_sizes=test_sizes,
        names=run.data.names,
        shape=run.data.shape,
        scale=run.data.scale,
        shift=run.data.shift,
        mixing=None if run.algorithm.has_server else run.mixing,
    )


def save(folder: Path, model: nn.Module, training: Training, final: Metrics, card: str = "README.md") -> Path:
    """Write `model.safetensors` and then its card into a folder, each atomically."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give a folder for the model and its card")
    path = folder / "model.safetensors"
    with replacing(path) as temporary:
        try:
            save_model(model, str(temporary), {"format": "pt"})
        except SafetensorError as error:  # for example a full disk
            raise OSError(f"can't write {path}: {error}") from error
        with temporary.open("rb") as written:
            checksum = hashlib.file_digest(written, "sha256").hexdigest()
    write_text(folder / card, text(model, training, final, path.name, checksum))
    return folder


def text(model: nn.Module, training: Training, final: Metrics, file: str, checksum: str) -> str:
    """The card: the results, how the model was trained, how to load it, and the limits of the results."""
    t, s, K, name = training, training.settings, len(final.consensus.per_device), type(model).__name__
    parameters = list(model.parameters())
    known = KNOWN_METRICS.get(t.metric.name)
    input_, scaled = _input(t)
    lines = [
        "---",
        "library_name: pytorch",
        "tags:",
        "- decentralized-learning",
        "- distributionally-robust-optimization",
        "- drdsgd",
        *(["metrics:", f"- {known}"] if known else []),
        "---",
        "",
        f"# One {name} for {K} devices",
        "",
        f"A `{name}` with {sum(p.numel() for p in parameters):,} parameters ({_dtype(parameters[0])}). {_how(t)}",
        "",
        "## How well it serves the devices",
        "",
        *_results(t, final),
        "",
        "## How it was trained",
        "",
        f"- algorithm: {t.algorithm}",
        *([f"- step size eta: {t.eta}"] if t.eta else []),
        f"- rounds: {s.rounds}, each with {s.batch_size} samples per device, drawn with replacement; seed {s.seed}",
        f"- devices: {K}, with {_span(t.train_sizes)} training samples",
        f"- graph: {_graph(t)}",
        f"- loss: {t.loss}; {final.train_loss:.4g} on the last batches, averaged over devices",
        f"- versions: {', '.join(f'{what} {number}' for what, number in versions().items())}",
        "",
        "## How to load it",
        "",
        "```python",
        "from safetensors.torch import load_model",
        "",
        "model = ...  # the same architecture as in training",
        f'load_model(model, "{file}")',
        "model.eval()",
        f"outputs = model({scaled})",
        "```",
        "",
        input_,
        f"SHA-256 of `{file}`: `{checksum}`",
        "",
        "```text",
        str(model),
        "```",
        "",
        "## Limits",
        "",
        f"- A device has {_span(t.test_sizes)} held-out samples. " + _coarse(t.metric, min(t.test_sizes)),
        "- The numbers say nothing about other devices, or about samples unlike these.",
        "- If settings were chosen by these same numbers, the numbers are too optimistic.",
        "",
    ]
    return "\n".join(lines)


def _results(t: Training, final: Metrics) -> list[str]:
    """The lines about the worst-off device, the spread over devices, and each device."""
    metric, spread = t.metric, final.consensus
    K, worst = len(spread.per_device), spread.per_device.index(spread.worst)

    def shown(value: float) -> str:
        return f"{value:.1f} %" if metric.unit == "%" else f"{value:.4g} {metric.unit}".strip()

    order = list(range(K))
    if K > ALL_DEVICES:
        order.sort(key=spread.per_device.__getitem__, reverse=not metric.higher_is_better)
        order = order[:WORST_DEVICES]
    rows = [
        f"| {_called(t, i)} | {t.train_sizes[i]} | {t.test_sizes[i]} | {shown(spread.per_device[i])}"
        f"{' (worst)' if i == worst else ''} |"
        for i in order
    ]
    apart = abs(spread.average - spread.worst)
    gap = f"{apart:.1f} points" if metric.unit == "%" else shown(apart)
    side = "below" if metric.higher_is_better else "above"
    return [
        f"Device {_called(t, worst)} is the worst-off device: {metric.name} {shown(spread.worst)}, {gap} {side} the "
        "average.",
        "",
        "| | average | worst device | worst 10 % | STDEV over devices |",
        "|---|---|---|---|---|",
        *(
            f"| {kind} | {shown(a.average)} | {shown(a.worst)} | {shown(a.worst10)} | {shown(a.stdev)} |"
            for kind, a in (("this model", final.consensus), ("each device's own model", final.local))
            if a is not None
        ),
        "",
        f"The {metric.name} was measured on each device's own held-out samples, after the last round. *Worst 10 %* is "
        f"the mean over the worst ceil(K / 10) devices, here {-(-K // 10)}. *Each device's own model* is the "
        "model that the device has at the end.",
        "",
        f"| device | training samples | held-out samples | {metric.name} |",
        "|---|---|---|---|",
        *rows,
        *(["", f"These are the {len(rows)} worst of {K} devices."] if len(rows) < K else []),
    ]


def _called(t: Training, i: int) -> str:
    """A device's number and, if it has one, its name, escaped for Markdown."""
    if not t.names:
        return f"{i}"
    name = re.sub(r"([\\`*_\[\]<>|&!~$])", r"\\\1", t.names[i])
    return f"{i} ({name})"


def _dtype(parameter: Tensor) -> str:
    return str(parameter.dtype).removeprefix("torch.")


def _how(t: Training) -> str:
    if t.mixing is None:
        return f"It was trained with a server by {t.algorithm}; this is the server's model."
    return f"It was trained without a server by {t.algorithm}; this is the mean of all devices' models."


def _graph(t: Training) -> str:
    if t.mixing is None:
        return "none: every device communicates with the server"
    W = t.mixing.at(0)
    kind = f"{links(W) // 2} links" if t.mixing.symmetric else f"{links(W)} directed links"
    rho = rho_over_time(t.mixing) if t.rho is None else t.rho
    when = "" if t.mixing.static else " in the first round; links change over rounds"
    return f"{t.mixing.K} nodes, {kind}{when}; rho = {rho:.4g}"


def _span(sizes: Sequence[int]) -> str:
    return f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"


def _coarse(metric: Metric, fewest: int) -> str:
    if metric.name == "accuracy":
        return f"With {fewest}, a single sample changes the accuracy by {100 / fewest:.1f} points."
    return f"A mean over {fewest} samples is uncertain."


def _input(t: Training) -> tuple[str, str]:
    """The model's input, in words and in Python."""
    shape = ", ".join(map(str, ("m", *t.shape)))
    if (t.scale == 1).all() and not t.shift.any():
        return f"Its input x is [{shape}], unscaled as in the data.", "x"
    numbers = "; ".join(
        f"{name} = {json.dumps(tensor.tolist())}" for name, tensor in (("scale", t.scale), ("shift", t.shift))
    )
    return f"Its input is x * scale + shift, with x [{shape}] as in the data: `{numbers}`", "x * scale + shift"
