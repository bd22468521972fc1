"""nn.Module <-> rows of theta.

All models of a network are the rows of one tensor `theta [n, d]`, so mixing, norms, checkpoints and messages are one
line each. One parameter of all n models is a view into theta, without a copy.
"""

from __future__ import annotations

import copy
import random
import threading

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from drdsgd.errors import InputError, one_line
from drdsgd.options import Precision
from drdsgd.random import one_generator

__all__ = ["Flat", "aligned"]

LINE_BYTES = 64


def aligned(rows: Tensor) -> Tensor:
    """A copy of rows [n, d] in which every row starts at a cache line, with unused memory between rows.

    Products that read and write models in place were measured to take 10 to 20 % less time.

    >>> rows = aligned(torch.ones(3, 10))
    >>> rows.shape, rows.stride()
    (torch.Size([3, 10]), (16, 1))
    """
    n, d = rows.shape
    line = LINE_BYTES // rows.element_size()
    return rows.new_empty(n, -(-d // line) * line)[:, :d].copy_(rows)


class Flat:
    """A module as a function of a row of theta; `d` is the row's length.

    The row holds the parameters that require a gradient, in the order of `named_parameters`. All other parameters,
    and all buffers, are constants that the devices share. Images reach the module in `memory_format`, which changes
    its outputs by rounding only. With the precision bfloat16, products round their factors, and outputs are float32.

    >>> flat = Flat(nn.Linear(3, 2))
    >>> flat.d, flat.row().shape
    (8, torch.Size([8]))
    """

    def __init__(
        self,
        module: nn.Module,
        memory_format: torch.memory_format = torch.contiguous_format,
        precision: Precision = "float32",
    ) -> None:
        self.module = module
        self.memory_format, self.precision = memory_format, precision
        self._copies = threading.local()
        parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not parameters:
            raise InputError(f"the model {type(module).__name__} has no parameter to train; set requires_grad")
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
        if self.memory_format != torch.contiguous_format:
            x = x.contiguous(memory_format=self.memory_format)
        # one copy per thread: `functional_call` puts the parameters into the module while it runs
        if not hasattr(self._copies, "module"):
            self._copies.module = copy.deepcopy(self.module)
        if self.precision == "float32":
            output: Tensor = functional_call(self._copies.module, parameters, (x,))
            return output
        with torch.autocast(x.device.type, torch.bfloat16):
            rounded: Tensor = functional_call(self._copies.module, parameters, (x,))
        return rounded.float()

    def to_module(self, row: Tensor) -> nn.Module:
        """A new, ordinary module with the parameters of a row [d]."""
        module = copy.deepcopy(self.module)
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in self.views(row).items():
                parameters[name].copy_(value)
        return module

    @one_generator()  # so that what the model draws is seen here, and changes no draw elsewhere
    def check(self, x: Tensor, classes: int | None = None) -> Tensor:
        """The outputs for samples x [m, ...]; refuses a model that is no function of its parameters and one sample.

        Buffers that a forward pass changes (BatchNorm) would be neither mixed nor sent. A model that draws random
        numbers (Dropout) would make a round depend on more than (seed, device, round). A sample's output must not
        depend on the other samples of its batch. With `classes`, outputs must be scores [m, classes] or wider.
        """
        name = type(self.module).__name__
        buffers = {key: b.clone() for key, b in self.module.named_buffers()}

        def outputs(samples: Tensor) -> Tensor:
            try:
                with torch.no_grad():
                    output: Tensor = functional_call(self.module, buffers, (samples,))
                    return output
            # what torch, or a user's own `forward`, raises for samples of another shape or type
            except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
                raise InputError(
                    f"the model {name} does not take the data (one sample is {tuple(x.shape[1:])}): {one_line(error)}"
                ) from error

        def draws(samples: Tensor) -> tuple[Tensor, bool]:
            before = _generator_states(self.module, self.device)
            return outputs(samples), _generator_states(self.module, self.device) != before

        output, drew = draws(x)
        for key, before in self.module.named_buffers():
            if not torch.equal(before, buffers[key]):
                layer = key.rpartition(".")[0]
                raise InputError(
                    f"the model's layer '{layer}' ({type(self.module.get_submodule(layer)).__name__}) changes its "
                    f"buffer '{key}' in training, which gossip does not average; use nn.GroupNorm instead"
                )
        if not isinstance(output, Tensor) or output.dim() == 0 or len(output) != len(x):
            raise InputError(f"the model {name} must give one output per sample, a tensor [{len(x)}, ...]")
        if classes is not None and (output.dim() != 2 or output.shape[1] < classes):
            raise InputError(
                f"the model {name} must give scores [{len(x)}, {classes}] for {len(x)} samples and {classes} classes: "
                f"its output has shape {list(output.shape)}"
            )
        # outputs that differ come from a generator that is none of these
        again, drew_again = draws(x)  # what another thread draws from a shared generator meanwhile does not repeat
        if (drew and drew_again) or not torch.equal(output.nan_to_num(), again.nan_to_num()):
            raise InputError(
                f"the model {name} is random (Dropout?), so runs could not be repeated or resumed exactly; "
                "remove the layer that draws random numbers"
            )
        half = (len(x) + 1) // 2
        if not torch.allclose(output[:half].nan_to_num(), outputs(x[:half]).nan_to_num(), rtol=1e-2, atol=1e-3):
            raise InputError(
                f"the model {name} gives a sample another output when its batch changes (BatchNorm?); "
                "use nn.GroupNorm instead"
            )
        return output


def _generator_states(module: nn.Module, device: torch.device) -> list[object]:
    """The states of the generators that a model may draw from: torch's, Python's, numpy's, and its modules' own."""
    own = [value for one in module.modules() for value in vars(one).values() if isinstance(value, torch.Generator)]
    tensors = [torch.get_rng_state(), *(generator.get_state() for generator in own)]
    if device.type == "cuda":
        tensors.append(torch.cuda.get_rng_state(device))
    numpys = np.random.get_state(legacy=False)
    of_numpy = (numpys["state"]["key"].tobytes(), numpys["state"]["pos"], numpys["has_gauss"])
    return [*(tensor.numpy().tobytes() for tensor in tensors), random.getstate(), of_numpy]
