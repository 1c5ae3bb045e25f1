"""RobNet-free, the cell network that a search for robust architectures found, with the state-dict names of its public code."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CELLS = (
    "11 10  11 11 10  11 01 01 10  11 11 00 11 01",
    "11 00  01 10 01  00 10 10 00  01 11 10 11 00",
    "11 11  11 01 01  11 01 00 10  00 10 10 00 11",
    "10 11  10 01 01  10 10 01 10  11 00 00 01 10",
    "11 11  01 00 10  10 10 01 10  01 00 10 01 11",
    "11 10  11 11 11  01 10 11 00  10 01 11 01 11",
    "11 11  11 10 10  01 11 10 01  10 10 10 01 10",
    "01 11  11 11 01  11 11 11 01  11 01 11 10 00",
    "11 11  11 11 11  01 01 11 10  01 00 10 01 11",
    "10 11  01 00 11  11 10 11 01  11 11 11 11 00",
    "11 10  11 00 00  00 11 00 01  10 00 01 10 11",
    "01 11  01 11 11  10 10 11 10  11 01 11 10 00",
    "11 11  10 10 01  00 10 11 11  01 10 10 00 01",
    "01 11  11 11 01  01 11 01 01  11 11 01 10 10",
    "01 11  11 11 11  01 00 01 10  10 11 10 10 11",
    "11 11  00 11 11  01 00 01 10  00 11 01 11 11",
    "11 11  01 11 11  10 11 10 10  10 10 10 11 11",
    "10 11  01 11 11  01 11 00 11  11 00 10 00 01",
    "11 10  11 11 11  11 11 10 11  00 11 01 11 11",
    "11 11  01 01 11  11 01 00 00  10 00 01 01 11",
)
"""The published architecture: a row for each of the 20 cells. Its 14 codes are the edges into the cell's four nodes (groups of
2, 3, 4, 5: from both inputs and from every earlier node): the first bit is a skip, the second a separable convolution, and the
edge gives the sum of what it has."""

NODES = 4
WIDTH = 36


class ReLUConvNorm(nn.Module):
    """ReLU, 1x1 convolution, BatchNorm without weights."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.op = nn.Sequential(nn.ReLU(), nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width, affine=False))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.op(x)
        return out


class FactorizedReduce(nn.Module):
    """Half the map in each direction: two 1x1 convolutions of stride 2, one of them a pixel further on, side by side."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(channels, width // 2, 1, 2, bias=False)
        self.conv_2 = nn.Conv2d(channels, width // 2, 1, 2, bias=False)
        self.bn = nn.BatchNorm2d(width, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        out: Tensor = self.bn(torch.cat([self.conv_1(x), self.conv_2(x[:, :, 1:, 1:])], 1))
        return out


class SeparableConv(nn.Module):
    """Twice: ReLU, depthwise 3x3, 1x1, BatchNorm without weights."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for step in (stride, 1):
            layers += [
                nn.ReLU(),
                nn.Conv2d(channels, channels, 3, step, 1, groups=channels, bias=False),
                nn.Conv2d(channels, channels, 1, bias=False),
                nn.BatchNorm2d(channels, affine=False),
            ]
        self.op = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.op(x)
        return out


class SkippedConv(nn.Module):
    """A separable convolution and a skip, added."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.conv = SeparableConv(channels, stride)
        self.res = _skip(channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x) + self.res(x)
        return out


class Zero(nn.Module):
    """No edge: zeros of the shape that one would give."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x[:, :, :: self.stride, :: self.stride])


def _skip(channels: int, stride: int) -> nn.Module:
    return nn.Identity() if stride == 1 else FactorizedReduce(channels, channels)


class Edge(nn.Module):
    """What a code stands for. A module of its own only for the name `op`."""

    def __init__(self, code: str, channels: int, stride: int) -> None:
        super().__init__()
        self.op: nn.Module
        match code:
            case "11":
                self.op = SkippedConv(channels, stride)
            case "10":
                self.op = _skip(channels, stride)
            case "01":
                self.op = SeparableConv(channels, stride)
            case _:
                self.op = Zero(stride)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.op(x)
        return out


class Cell(nn.Module):
    """Two inputs (B, channels[i], H, W) to one output (B, 4 width, H, W): each node is the sum of the edges into it."""

    def __init__(self, codes: list[str], channels: tuple[int, int], width: int, reduces: bool, after_reduction: bool) -> None:
        super().__init__()
        before = FactorizedReduce if after_reduction else ReLUConvNorm
        self.preprocess0 = before(channels[0], width)
        self.preprocess1 = ReLUConvNorm(channels[1], width)
        sources = [source for node in range(NODES) for source in range(2 + node)]
        strides = [2 if reduces and source < 2 else 1 for source in sources]
        self._ops = nn.ModuleList(Edge(code, width, stride) for code, stride in zip(codes, strides, strict=True))

    def forward(self, earlier: Tensor, last: Tensor) -> Tensor:
        states = [self.preprocess0(earlier), self.preprocess1(last)]
        edges = iter(self._ops)
        for _ in range(NODES):
            incoming = [next(edges)(state) for state in states]
            states.append(torch.stack(incoming).sum(0))
        return torch.cat(states[2:], 1)


class RobNet(nn.Module):
    """(B, 3, H, W) in [0, 1], taken as they are, to logits (B, num_classes); cells at one and two thirds halve the map."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        width = WIDTH
        self.stem = nn.Sequential(nn.Conv2d(3, 3 * width, 3, 1, 1, bias=False), nn.BatchNorm2d(3 * width))
        channels = (3 * width, 3 * width)
        reductions = (len(CELLS) // 3, 2 * len(CELLS) // 3)
        cells = []
        for index, codes in enumerate(CELLS):
            width *= 2 if index in reductions else 1
            cells.append(Cell(codes.split(), channels, width, index in reductions, index - 1 in reductions))
            channels = (channels[1], NODES * width)
        self.cells = nn.ModuleList(cells)
        self.classifier = nn.Linear(channels[1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        earlier = last = self.stem(x)
        for cell in self.cells:
            earlier, last = last, cell(earlier, last)
        logits: Tensor = self.classifier(last.mean((2, 3)))
        return logits


def robnet_free(num_classes: int = 10) -> RobNet:
    """RobNet-free for CIFAR-10 (table 1): 5.44 M parameters, 20.8 MB."""
    return RobNet(num_classes)
