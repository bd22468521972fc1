"""nn.Module <-> rows of theta.

All models of a network are the rows of one tensor `theta [n, d]`. Mixing, norms, checkpoints and messages are
then one line each. A parameter of all n models is a view into theta, without a copy.
"""

from __future__ import annotations

import copy
import threading

import torch
from torch import Tensor, nn
from torch.func import functional_call

from drdsgd.errors import InputError

__all__ = ["Flat"]


class Flat:
    """A module as a function of a row of theta; `d` is the row's length.

    Parameters that require a gradient make up the row, in the order of `named_parameters`; the others, and
    buffers, are constants that all devices share.

    >>> flat = Flat(nn.Linear(3, 2))
    >>> flat.d, flat.row().shape
    (8, torch.Size([8]))
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._copies = threading.local()
        parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not parameters:
            raise InputError(f"the model {type(module).__name__} has no parameter to train")
        self.dtype, self.device = parameters[0][1].dtype, parameters[0][1].device
        for name, p in parameters:
            if p.dtype != self.dtype or not p.dtype.is_floating_point:
                raise InputError(
                    f"the model's parameters must share one float type: {parameters[0][0]} is {self.dtype}, "
                    f"{name} is {p.dtype}; call model.float()"
                )
        self.names = [name for name, _ in parameters]
        self.shapes = [p.shape for _, p in parameters]
        self.sizes = [p.numel() for _, p in parameters]
        self.d = sum(self.sizes)

    def row(self) -> Tensor:
        """The module's parameters as one row [d]."""
        parameters = dict(self.module.named_parameters())
        return torch.cat([parameters[name].detach().flatten() for name in self.names])

    def views(self, theta: Tensor) -> dict[str, Tensor]:
        """Zero-copy views of the parameters: name -> [..., *shape] of theta [..., d].

        >>> Flat(nn.Linear(3, 2)).views(torch.zeros(5, 8))["weight"].shape
        torch.Size([5, 2, 3])
        """
        parts = theta.split(self.sizes, dim=-1)
        return {
            name: part.view(*theta.shape[:-1], *shape)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def apply(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        """The module's output on x with these parameters."""
        # a copy for each thread: `functional_call` puts the parameters into the module while it runs
        if not hasattr(self._copies, "module"):
            self._copies.module = copy.deepcopy(self.module)
        output: Tensor = functional_call(self._copies.module, parameters, (x,))
        return output

    def to_module(self, row: Tensor) -> nn.Module:
        """An ordinary module of its own with the parameters of a row [d]."""
        module = copy.deepcopy(self.module)
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in self.views(row).items():
                parameters[name].copy_(value)
        return module

    def check(self, x: Tensor) -> None:
        """Refuse a model whose training is not a pure function of parameters and batch; x [m, ...] is a sample.

        Buffers that a forward pass changes (BatchNorm) would be neither mixed nor sent, and random layers
        (Dropout) would make a round depend on more than (seed, device, round).
        """
        for name, layer in self.module.named_modules():
            if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.training and layer.p > 0:
                raise InputError(
                    f"the model's layer '{name}' ({type(layer).__name__}) is random, so runs could not be repeated "
                    "or resumed exactly; remove it, or set its p to 0"
                )
        buffers = {name: b.clone() for name, b in self.module.named_buffers()}
        with torch.no_grad():
            try:
                functional_call(self.module, buffers, (x,))
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                reason = str(error).splitlines()[0]
                raise InputError(
                    f"the model {type(self.module).__name__} does not take the data (one sample is "
                    f"{tuple(x.shape[1:])}): {reason}"
                ) from error
        for name, before in self.module.named_buffers():
            if not torch.equal(before, buffers[name]):
                owner = self.module.get_submodule(name.rpartition(".")[0])
                raise InputError(
                    f"the model's layer '{name.rpartition('.')[0]}' ({type(owner).__name__}) changes its buffer "
                    f"'{name}' in training, which gossip does not average; use nn.GroupNorm instead"
                )
