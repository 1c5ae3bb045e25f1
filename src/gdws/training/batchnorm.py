"""BatchNorm whose batch is that of all processes: several of them train as one would.

nn.SyncBatchNorm does this on NVIDIA GPUs only; this one runs wherever the processes can sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from gdws.core.errors import GdwsError


def sum_over_processes(x: Tensor) -> Tensor:
    """The sum over the processes, to differentiate through."""
    total: Tensor = _Sum.apply(x)  # type: ignore[no-untyped-call]
    return total


class _Sum(torch.autograd.Function):
    """Each process gets the sum, so the gradient of each one's part is the sum of all their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


class JointBatchNorm2d(nn.BatchNorm2d):
    """nn.BatchNorm2d with the statistics of all processes' batches, which have the same size."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        x, over = input.float(), (0, 2, 3)
        count = dist.get_world_size() * x.numel() // x.shape[1]
        mean = sum_over_processes(x.sum(over, keepdim=True)) / count
        centered = x - mean
        variance = sum_over_processes(centered.square().sum(over, keepdim=True)) / count
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean.flatten(), self.momentum)
            self.running_var.lerp_(variance.flatten() * count / (count - 1), self.momentum)
        normal = centered * (variance + self.eps).rsqrt()
        if self.affine:
            normal = torch.addcmul(self.bias.view(1, -1, 1, 1), normal, self.weight.view(1, -1, 1, 1))
        return normal.to(input.dtype)


def share_batchnorm_statistics(model: nn.Module) -> None:
    """Let every BatchNorm of the model, in place, take its statistics over all processes."""
    for name, module in model.named_modules():
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        if type(module) is not nn.BatchNorm2d or module.running_mean is None or module.momentum is None:
            raise GdwsError(
                f"{name} is {module}: expected BatchNorm2d with running statistics and a momentum, for several processes"
            )
        module.__class__ = JointBatchNorm2d
