"""Losses and gradients of many devices at once.

A forward pass gives every device's mini-batch loss [n] and a `Backward`, which *adds* scaled gradients to a tensor,
`into_i += scale_i g_i`. So a step is in place, `theta_i += -eta weight_i g_i`, and the gradients of all devices need
not exist at the same time.

Three implementations give the same result: written by hand for fully connected networks (the fastest), batched by
`torch.func.vmap` for every module that it can batch, and one device after the other for all other modules.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from drdsgd.core.flat import Flat
from drdsgd.core.kernels import onednn
from drdsgd.errors import InputError, one_line
from drdsgd.random import one_generator

__all__ = [
    "Backward", "Execution", "Forward", "Gradient", "Loss", "check_loss", "check_numbers", "choose_execution",
    "choose_features", "choose_memory_format", "loss_name", "make_forward", "predict",
]  # fmt: skip

# outputs [B, ...] and targets [B, ...] of one device -> its loss, one number, the mean over the batch
Loss = Callable[[Tensor, Tensor], Tensor]
Backward = Callable[[Tensor, Tensor], None]
Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Backward]]
Execution = Literal["batched", "loop"]


class Gradient(NamedTuple):
    """The gradients of n devices at their models theta [n, d], `weight_i g_i + decay theta_i`, computed on request."""

    weight: Tensor
    backward: Backward
    theta: Tensor
    decay: float = 0.0

    def add_to(self, tensor: Tensor, factor: float | Tensor) -> None:
        """`tensor_i += factor_i (weight_i g_i + decay theta_i)`, in place; tensor [n, d], which may be theta itself."""
        if not self.decay:
            self.backward(factor * self.weight, tensor)
        elif tensor is self.theta:
            # (1 + factor decay) theta + factor weight g; theta must not change before the backward pass
            grown = 1 + factor * self.decay
            self.backward(factor * self.weight / grown, tensor)
            tensor.mul_(grown[:, None] if isinstance(grown, Tensor) else grown)
        else:
            self.backward(factor * self.weight, tensor)
            decay = factor * self.decay
            tensor.add_(self.theta * (decay[:, None] if isinstance(decay, Tensor) else decay))


def make_forward(flat: Flat, loss: Loss, execution: Execution = "batched") -> Forward:
    """`(theta [n, d], x [n, B, ...], y [n, B, ...]) -> (loss [n], backward)` for this model and loss.

    >>> forward = make_forward(Flat(nn.Linear(2, 3)), nn.functional.cross_entropy)
    >>> losses, backward = forward(torch.zeros(4, 9), torch.ones(4, 5, 2), torch.zeros(4, 5, dtype=torch.int64))
    >>> backward(torch.ones(4), g := torch.zeros(4, 9))
    >>> losses.shape, g.abs().sum() > 0
    (torch.Size([4]), tensor(True))
    """
    if execution == "loop":
        return _loop(flat, loss)
    layers = _fully_connected(flat)
    if layers is not None and loss is nn.functional.cross_entropy:
        return _by_hand(flat, layers)
    return _autograd(
        flat, lambda parameters, x, y: vmap(lambda p, xi, yi: loss(flat.apply(p, xi), yi))(parameters, x, y)
    )


def predict(flat: Flat, theta: Tensor, x: Tensor, execution: Execution = "batched") -> Tensor:
    """Every device's own model on its own samples: theta [n, d], x [n, m, ...] -> outputs [n, m, ...].

    >>> predict(Flat(nn.Linear(2, 3)), torch.zeros(4, 9), torch.ones(4, 5, 2)).shape
    torch.Size([4, 5, 3])
    """
    parameters = flat.views(theta)
    if execution == "loop":
        rows = ({name: value[i] for name, value in parameters.items()} for i in range(len(theta)))
        return torch.stack([flat.apply(row, xi) for row, xi in zip(rows, x, strict=True)])
    layers = _fully_connected(flat)
    if layers is None:
        return vmap(flat.apply)(parameters, x)
    dtype = torch.bfloat16 if flat.precision == "bfloat16" else flat.dtype
    return _outputs(layers, parameters, _weights(layers, parameters, dtype), x.flatten(2))[1]


def choose_execution(flat: Flat, loss: Loss, x: Tensor, y: Tensor) -> Execution:
    """The fastest execution for this model and loss: "batched", or "loop" where vmap is slower or does not work.

    vmap turns the devices' convolutions into one grouped convolution, which was measured to be slower on a CPU. It also
    ignores an embedding's `padding_idx`, whose row must not be trained.

    >>> choose_execution(Flat(nn.Linear(2, 2)), nn.functional.mse_loss, torch.zeros(3, 4, 2), torch.zeros(3, 4, 2))
    'batched'
    """
    if flat.device.type == "cpu" and _has(flat, nn.modules.conv._ConvNd):
        return "loop"
    if any(getattr(module, "padding_idx", None) is not None for module in flat.module.modules()):
        return "loop"

    def attempt() -> None:
        theta = flat.row().repeat(len(x), 1)
        losses, backward = make_forward(flat, loss)(theta, x, y)
        backward(torch.zeros_like(losses), theta)

    return "batched" if _works(attempt) else "loop"


@one_generator()
def choose_features(flat: Flat, x: Tensor) -> torch.dtype:
    """The dtype in which to give integers x [m, ...] to this model: theirs if it takes them (embedding), else its own.

    >>> choose_features(Flat(nn.Embedding(9, 2)), torch.zeros(4, 3, dtype=torch.int64))
    torch.int64
    """
    try:
        works = _works(lambda: flat.apply(flat.views(flat.row()), x))
    except IndexError:  # it takes integers, but not such large ones; `Flat.check` will refuse them
        works = True
    return x.dtype if works else flat.dtype


@one_generator()
def check_numbers(flat: Flat, x: Tensor) -> None:
    """Refuse integers x [m, ...] outside the range of the model's embeddings.

    An embedding takes all numbers up to a maximum, so the smallest and the largest of each place are tried.

    >>> check_numbers(Flat(nn.Embedding(9, 2)), torch.tensor([[0, 8], [9, 1]]))
    Traceback (most recent call last):
    drdsgd.errors.InputError: the model Embedding does not take all numbers of the data, which are 0 to 9: ...
    """
    places = x.reshape(len(x), -1)
    ends = torch.cat([places.argmin(dim=0), places.argmax(dim=0)]).unique()
    try:
        with torch.no_grad():
            for some in ends.split(256):
                flat.apply(flat.views(flat.row()), x[some])
    except (IndexError, RuntimeError) as error:  # from an embedding, or from another kind of look-up
        raise InputError(
            f"the model {type(flat.module).__name__} does not take all numbers of the data, which are {int(x.min())} "
            f"to {int(x.max())}: {one_line(error)}; give its embedding more rows, or change the data"
        ) from error


def loss_name(loss: Loss) -> str:
    """A loss's name in words.

    >>> loss_name(nn.functional.cross_entropy), loss_name(nn.HuberLoss())
    ('cross entropy', 'HuberLoss')
    """
    return str(getattr(loss, "__name__", type(loss).__name__)).replace("_", " ").strip()


def check_loss(loss: Loss, outputs: Tensor, y: Tensor) -> None:
    """Refuse a loss that does not take outputs [m, ...] with targets y [m, ...], or does not return one number.

    >>> check_loss(nn.functional.mse_loss, torch.zeros(4, 1), torch.zeros(4))
    Traceback (most recent call last):
    drdsgd.errors.InputError: the loss mse loss does not take outputs [4, 1] with targets [4]: ...
    """
    fits = f"outputs {list(outputs.shape)} with targets {list(y.shape)}"
    try:
        with warnings.catch_warnings():
            # broadcasting [m, 1] and [m] to [m, m] gives a number, but the wrong one
            warnings.filterwarnings("error", message="Using a target size")
            value = loss(outputs, y)
    except Exception as error:  # a user's own code may raise anything
        fix = ""
        if y.is_floating_point() and outputs.dim() == 2 and y.dim() == 1:
            fix = "; give y as [n, 1], y[:, None]" if outputs.shape[1] == 1 else "; give class numbers as integers"
        raise InputError(f"the loss {loss_name(loss)} does not take {fits}: {one_line(error)}{fix}") from error
    if not isinstance(value, Tensor) or value.dim() > 0 or not value.is_floating_point():
        got = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise InputError(
            f"the loss {loss_name(loss)} must give one number as a tensor, the mean over the batch: for {fits} it "
            f"gave {got}"
        )


def choose_memory_format(flat: Flat, x: Tensor) -> torch.memory_format:
    """The fastest memory format of images x [m, C, H, W] for this model, one device at a time.

    On a CPU, convolutions and pooling are faster if a pixel's channels are adjacent. A model that does not accept this
    format (it calls `view` on its input) gets the usual one.

    >>> choose_memory_format(Flat(nn.Conv2d(3, 4, 3)), torch.zeros(2, 3, 8, 8))
    torch.channels_last
    """
    if flat.device.type != "cpu" or x.dim() != 4 or not _has(flat, nn.Conv2d):
        return torch.contiguous_format
    works = _works(lambda: Flat(flat.module, torch.channels_last).apply(flat.views(flat.row()), x))
    return torch.channels_last if works else torch.contiguous_format


def _works(attempt: Callable[[], object]) -> bool:
    """Whether an attempt to run a model succeeds."""
    try:
        with warnings.catch_warnings():
            # vmap warns when it runs an operation slowly, one device after the other
            warnings.filterwarnings("error", message="There is a performance drop", category=UserWarning)
            attempt()
    # Torch and vmap raise RuntimeError (or its subclass NotImplementedError) for an operation that they cannot do,
    # layers and a user's own `forward` raise ValueError or TypeError for wrong inputs, and UserWarning is from above.
    except (RuntimeError, ValueError, TypeError, UserWarning):
        return False
    return True


def _has(flat: Flat, kind: type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in flat.module.modules())


def _autograd(flat: Flat, losses_of: Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]) -> Forward:
    def forward(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Backward]:
        # The views are the leaves: this is cheaper than a backward pass through the split of theta. `data` instead of
        # `detach`: views share a version counter, so one device's step would look like a change of another's model.
        leaves = {name: view.data.requires_grad_() for name, view in flat.views(theta).items()}
        losses = losses_of(leaves, x, y)

        def backward(scale: Tensor, into: Tensor) -> None:
            gradients = torch.autograd.grad(losses, list(leaves.values()), scale, materialize_grads=True)
            for target, gradient in zip(flat.views(into).values(), gradients, strict=True):
                target.add_(gradient)

        return losses.detach(), backward

    return forward


def _loop(flat: Flat, loss: Loss) -> Forward:
    one = _autograd(flat, lambda parameters, x, y: loss(flat.apply(parameters, x), y))

    def forward(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Backward]:
        passes = [one(*device) for device in zip(theta, x, y, strict=True)]

        def backward(scale: Tensor, into: Tensor) -> None:
            for (_, backward_one), factor, row in zip(passes, scale, into, strict=True):
                backward_one(factor, row)

        return torch.stack([losses for losses, _ in passes]), backward

    return forward


class _Layer(NamedTuple):
    """The names of a linear layer's parameters, and whether a ReLU follows."""

    weight: str
    bias: str | None
    relu: bool


def _fully_connected(flat: Flat) -> list[_Layer] | None:
    """The layers of a network that consists of (Flatten,) Linear, ReLU, Linear, ..., Linear only; else None."""
    if type(flat.module) is not nn.Sequential or any(
        m._forward_hooks or m._forward_pre_hooks for m in flat.module.modules()
    ):
        return None
    layers: list[_Layer] = []
    modules = list(flat.module.named_children())
    if modules and type(modules[0][1]) is nn.Flatten and modules[0][1].start_dim == 1 and modules[0][1].end_dim == -1:
        modules = modules[1:]
    for name, module in modules:
        if type(module) is nn.Linear:
            layers.append(_Layer(f"{name}.weight", f"{name}.bias" if module.bias is not None else None, relu=False))
        elif type(module) is nn.ReLU and layers and not layers[-1].relu:
            layers[-1] = layers[-1]._replace(relu=True)
        else:
            return None
    whole = [name for layer in layers for name in (layer.weight, layer.bias) if name is not None]
    # a frozen or shared layer is missing in the row, and after a final ReLU the outputs are no logits
    return layers if layers and whole == flat.names and not layers[-1].relu else None


def _weights(layers: list[_Layer], parameters: dict[str, Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Every layer's weights [n, out, in] in this dtype."""
    # oneDNN reads a transposed matrix faster if its rows are not far apart
    if onednn() or dtype == torch.bfloat16:
        return [parameters[layer.weight].to(dtype).contiguous() for layer in layers]
    return [parameters[layer.weight] for layer in layers]


def _outputs(
    layers: list[_Layer], parameters: dict[str, Tensor], weights: list[Tensor], x: Tensor
) -> tuple[list[Tensor], Tensor]:
    """The input of every layer, [n, B, in], in the dtype of the weights, and the last layer's output [n, B, out]."""
    inputs: list[Tensor] = []
    for layer, W in zip(layers, weights, strict=True):
        inputs.append(x.to(W.dtype))
        bias = None if layer.bias is None else parameters[layer.bias][:, None]
        if bias is None or W.dtype != bias.dtype:
            x = torch.bmm(inputs[-1], W.mT).to(parameters[layer.weight].dtype)
            x = x if bias is None else x.add_(bias)
        else:
            x = torch.baddbmm(bias, inputs[-1], W.mT)
        x = x.relu_() if layer.relu else x
    return inputs, x


def _by_hand(flat: Flat, layers: list[_Layer]) -> Forward:
    """Cross-entropy of a fully connected network: batched products over all devices, gradients in place."""
    dtype = torch.bfloat16 if flat.precision == "bfloat16" else flat.dtype

    def forward(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Backward]:
        parameters = flat.views(theta)
        weights = _weights(layers, parameters, dtype)
        inputs, logits = _outputs(layers, parameters, weights, x.flatten(2))
        log_p = logits.log_softmax(dim=-1)  # [n, B, C]
        losses = -log_p.gather(-1, y[..., None]).mean(dim=(1, 2))

        def backward(scale: Tensor, into: Tensor) -> None:
            # d loss / d logits = (softmax - one-hot) / B, times the device's scale
            delta = log_p.exp().scatter_add_(-1, y[..., None], log_p.new_full((1, 1, 1), -1.0).expand(*y.shape, 1))
            delta *= (scale / y.shape[1])[:, None, None]
            targets = flat.views(into)
            for number in reversed(range(len(layers))):
                layer, inside = layers[number], inputs[number]
                rounded = delta.to(dtype)
                # before the weights change: `into` may be theta itself
                before = torch.bmm(rounded, weights[number]) if number else delta
                if dtype == flat.dtype:
                    targets[layer.weight].baddbmm_(rounded.mT, inside)
                else:
                    targets[layer.weight].add_(torch.bmm(rounded.mT, inside).to(flat.dtype))
                if layer.bias is not None:
                    targets[layer.bias].add_(delta.sum(dim=1))
                delta = before.to(flat.dtype)
                if number and layers[number - 1].relu:  # the ReLU's gradient is zero where its output is zero
                    output = inside.to(flat.dtype)
                    torch.ops.aten.threshold_backward.grad_input(delta, output, 0, grad_input=delta)

        return losses, backward

    return forward
