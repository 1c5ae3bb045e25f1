"""Nodes whose weights are constants, as the modules that PyTorch has for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gdws.core.errors import GdwsError
from gdws.deploy.onnx.general.windows import is_symmetric, pads_of, transposed_padding

Attributes = dict[str, Any]
CONVOLUTIONS: dict[int, Callable[..., nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, Callable[..., nn.Module]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
WEIGHTS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), (1, 2)),
    "MatMul": (1,),
    "BatchNormalization": (1, 2, 3, 4),
    **dict.fromkeys(("LSTM", "GRU"), (1, 2, 3)),
}
"""Operators that may be layers, and which of their inputs are weights."""


def layer_of(
    operator: str, weights: Sequence[nn.Parameter | None], attributes: Attributes, rank: int | None, sizes: Sequence[int | None]
) -> tuple[nn.Module, list[int]] | None:
    """The layer that a node is, and what is padded before it; None where PyTorch has no such layer.

    weights  those of its inputs that are weights; None where one is left out.
    rank     axes of its input, if they are known.
    sizes    of the last axes of the input, as far as they are known.
    """
    first = weights[0]
    if first is None:
        return None
    if operator == "Conv":
        return _convolution(first, weights[1] if len(weights) > 1 else None, attributes, sizes)
    made: nn.Module | None = None
    if operator == "ConvTranspose" and first.ndim - 2 in TRANSPOSED:
        made = _transposed(first, weights[1] if len(weights) > 1 else None, attributes)
    elif operator == "Gemm":
        made = _linear(first, weights[1] if len(weights) > 1 else None, attributes)
    elif operator == "MatMul" and first.ndim == 2:
        made = _linear(first, None, {})
    elif operator == "BatchNormalization" and rank in NORMS:
        made = _batch_norm(NORMS[rank], weights, attributes)
    elif operator in ("LSTM", "GRU") and len(weights) > 1 and weights[1] is not None:
        made = Recurrent(operator, first, weights[1], weights[2] if len(weights) > 2 else None, attributes)
    return None if made is None else (made, [])


def _filled(module: nn.Module, **parameters: nn.Parameter | None) -> nn.Module:
    for name, value in parameters.items():
        setattr(module, name, value)
    return module


def _convolution(
    weight: nn.Parameter, bias: nn.Parameter | None, attributes: Attributes, sizes: Sequence[int | None]
) -> tuple[nn.Module, list[int]] | None:
    count = weight.ndim - 2
    if count not in CONVOLUTIONS:
        return None
    strides, dilations = (attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    if attributes.get("auto_pad", b"NOTSET").startswith(b"SAME") and max(strides) > 1 and None in sizes:
        return None  # how much is padded depends on the image
    pads = pads_of(attributes, weight.shape[2:], [0 if size is None else size for size in sizes] or [0] * count)
    symmetric, groups = is_symmetric(pads), attributes.get("group", 1)
    module = CONVOLUTIONS[count](
        weight.shape[1] * groups,
        weight.shape[0],
        tuple(weight.shape[2:]),
        tuple(strides),
        tuple(pads[:count]) if symmetric else 0,
        tuple(dilations),
        groups,
        bias=bias is not None,
        device="meta",
    )
    return _filled(module, weight=weight, bias=bias), [] if symmetric else pads


def _transposed(weight: nn.Parameter, bias: nn.Parameter | None, attributes: Attributes) -> nn.Module | None:
    count = weight.ndim - 2
    strides, dilations = (attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    padding, extra, cuts = transposed_padding(attributes, weight.shape[2:])
    if any(map(any, cuts)):
        return None
    groups = attributes.get("group", 1)
    module = TRANSPOSED[count](
        weight.shape[0],
        weight.shape[1] * groups,
        tuple(weight.shape[2:]),
        tuple(strides),
        tuple(padding),
        tuple(extra),
        groups,
        bias is not None,
        tuple(dilations),
        device="meta",
    )
    return _filled(module, weight=weight, bias=bias)


def _linear(weight: nn.Parameter, bias: nn.Parameter | None, attributes: Attributes) -> nn.Module | None:
    if attributes.get("transA", 0) or attributes.get("alpha", 1.0) != 1 or attributes.get("beta", 1.0) != 1:
        return None
    matrix = weight if attributes.get("transB", 0) else nn.Parameter(weight.detach().T.contiguous())
    if bias is not None and bias.shape != (len(matrix),):
        if bias.numel() not in (1, len(matrix)):
            return None
        bias = nn.Parameter(bias.detach().flatten().expand(len(matrix)).clone())
    module = nn.Linear(matrix.shape[1], matrix.shape[0], bias is not None, device="meta")
    return _filled(module, weight=matrix, bias=bias)


def _batch_norm(kind: type[nn.Module], weights: Sequence[nn.Parameter | None], attributes: Attributes) -> nn.Module | None:
    if len(weights) != 4 or any(value is None for value in weights):
        return None
    scale, shift, mean, variance = (value for value in weights if value is not None)
    module = kind(len(scale), attributes.get("epsilon", 1e-5), device="meta")
    _filled(module, weight=scale, bias=shift)
    module.running_mean, module.running_var = mean.detach().clone(), variance.detach().clone()
    module.num_batches_tracked = torch.tensor(0)
    return module


class Recurrent(nn.Module):
    """An LSTM or GRU as ONNX has it: (T, B, C) in; (T, directions, B, hidden) and the last states out."""

    def __init__(
        self, operator: str, taken: nn.Parameter, recurrent: nn.Parameter, bias: nn.Parameter | None, attributes: Attributes
    ) -> None:
        super().__init__()
        if attributes.get("direction", b"forward") == b"reverse":
            raise GdwsError(f"{operator} runs in reverse: expected forward or in both directions")
        if operator == "GRU" and not attributes.get("linear_before_reset", 0):
            raise GdwsError("GRU has linear_before_reset 0: expected 1, as PyTorch's has it")
        order = (0, 2, 3, 1) if operator == "LSTM" else (1, 0, 2)  # of the gates, in ONNX's words iofc and zrh
        self.directions, self.hidden = len(taken), taken.shape[1] // len(order)
        kind = nn.LSTM if operator == "LSTM" else nn.GRU
        self.layer = kind(taken.shape[2], self.hidden, bias=bias is not None, bidirectional=self.directions == 2)

        def gates(value: Tensor) -> nn.Parameter:
            parts = value.detach().split(self.hidden)
            return nn.Parameter(torch.cat([parts[place] for place in order]))

        for k in range(self.directions):
            end = "_reverse" if k else ""
            setattr(self.layer, f"weight_ih_l0{end}", gates(taken[k]))
            setattr(self.layer, f"weight_hh_l0{end}", gates(recurrent[k]))
            if bias is not None:
                for name, part in zip(("bias_ih_l0", "bias_hh_l0"), bias[k].chunk(2), strict=True):
                    setattr(self.layer, name + end, gates(part))

    def forward(self, x: Tensor, *states: Tensor | None) -> tuple[Tensor, ...]:
        zero = torch.zeros(self.directions, x.shape[1], self.hidden, device=x.device, dtype=x.dtype)
        hidden, cell = (zero if own is None else own for own in [*states, None, None][:2])
        if isinstance(self.layer, nn.LSTM):
            y, last = self.layer(x, (hidden, cell))
        else:
            y, *last = self.layer(x, hidden)
        return (y.unflatten(-1, (self.directions, self.hidden)).transpose(1, 2), *last)
