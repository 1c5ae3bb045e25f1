"""Microseconds of one stage of ResNet-18 (two blocks) in float16 at batch 256, in torch.compile's kernels, kernel by kernel.

    python scripts/gpu_stage.py scaled --structure vertical --channels 64 --size 32 --rank 16

For docs/speed.md, "Networks on a GPU": what torch.compile makes of what stands between convolutions. Variants:

blocks     the blocks as they are
scaled     BatchNorm as a scale and a shift (gdws.autotuned)
unordered  the same; loops stay in the order of channels, then pixels, so that the convolution before can take in what follows
rows       the same with rows of pixels as images between pairs (gdws.rows; vertical pairs only)

Weights are noise. What comes out is checked against float32 in eager PyTorch.
"""

from __future__ import annotations

import argparse
from statistics import median

import torch
from gpu_speed import captured, check_logits, print_kernels, seconds
from torch import Tensor, nn

from gdws.autotuned import TRIED, compiled, scaled
from gdws.rows import LOOPS, on_rows
from gdws.structures import STRUCTURES
from gdws.zoo.preact import PreActBlock

BATCH, BLOCKS = 256, 2


class Stage(nn.Module):
    """Blocks, one after another, and the mean of what comes out: (B, C, H, W) to (B, C)."""

    def __init__(self, channels: int, rank: int, structure: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        for _ in range(BLOCKS):
            block = PreActBlock(channels, channels, 1)
            for norm in (block.bn1, block.bn2):
                for values, low, high in ((norm.weight, 0.5, 1.5), (norm.bias, -0.5, 0.5), (norm.running_var, 0.5, 1.5)):
                    assert values is not None
                    nn.init.uniform_(values, low, high)
            if structure != "dense":
                block.conv1, block.conv2 = (
                    STRUCTURES[structure].blank(conv, (rank,))
                    for conv in (block.conv1, block.conv2)
                    if isinstance(conv, nn.Conv2d)
                )
                for weight in (*block.conv1.parameters(), *block.conv2.parameters()):
                    nn.init.normal_(weight, 0, weight[0].numel() ** -0.5)
            self.blocks.append(block)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.mean((2, 3))


def made(variant: str, stage: nn.Module, example: Tensor) -> nn.Module:
    """The stage, as this variant has it, not compiled yet."""
    if variant == "blocks":
        return stage
    return on_rows(scaled(stage), example) if variant == "rows" else scaled(stage)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=("blocks", "scaled", "unordered", "rows"))
    parser.add_argument("--structure", default="vertical", choices=("dense", "vertical", "horizontal", "project"))
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    stage = Stage(options.channels, options.rank, options.structure).cuda().eval()
    x = torch.rand(BATCH, options.channels, options.size, options.size, device="cuda")
    with torch.inference_mode():
        wanted = stage(x)
        network = made(options.variant, stage, x).to("cuda", torch.float16)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.half().to(memory_format=torch.channels_last)
        loops = LOOPS if options.variant in ("unordered", "rows") else {}
        network = compiled(network, {**TRIED, **loops})
        check_logits(network(x), wanted, options.variant)
        graph = captured(network, x)
        taken = median(seconds(graph) for _ in range(40))
        described = f"{options.structure} {options.channels}@{options.size} rank {options.rank}"
        print(f"{options.variant}, {described}: {1e6 * taken:.1f} us")
        print_kernels(graph)


if __name__ == "__main__":
    main()
