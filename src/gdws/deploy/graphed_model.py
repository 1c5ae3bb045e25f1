"""A model made ready to run fast on its GPU with library kernels: cast if asked, as a CUDA graph, in the faster layout.

All of it also runs on a CPU, where nothing is recorded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from gdws.core.cuda_graphs import GraphedCallable
from gdws.core.errors import GdwsError
from gdws.core.execution import full_precision, placement
from gdws.deploy.benchmark import bench

TYPES = {"float32": torch.float32, "float16": torch.float16}
LAYOUTS = (torch.contiguous_format, torch.channels_last)
CALLS = 10
"""How often a repeated layer runs in one pass."""


class GraphedModel(nn.Module):
    """The model, taken over, in a layout: images (B, C, H, W) on its device and in its type to logits (B, classes).

    From the third batch of a size on it is a single launch (gdws.core.cuda_graphs). float32 is true float32, and cuDNN
    benchmarks its kernels before it chooses.
    """

    def __init__(self, model: nn.Module, layout: torch.memory_format = torch.contiguous_format) -> None:
        super().__init__()
        self.model, self.layout = model.eval(), layout
        self.model.to(memory_format=layout)  # type: ignore[call-overload]
        self.replay = GraphedCallable(partial(_answered, self.model))

    def forward(self, images: Tensor) -> Tensor:
        with without_gradients():
            (logits,) = self.replay(images.contiguous(memory_format=self.layout))
            return logits.clone()


class RepeatedLayer(nn.Module):
    """A layer that runs CALLS times on inputs of its own, whatever it is given: for kernels that are shorter than a launch.

    Each round of them with weights of its own: a network has used all its others before it comes back to the same.
    """

    def __init__(self, layer: nn.Module, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(CALLS))
        self.replay = GraphedCallable(partial(_often, self.layers, inputs))

    def forward(self, images: Tensor) -> Tensor:
        with without_gradients():
            return self.replay(images[:1])[0]


def graph_model(model: nn.Module, example: Tensor, precision: str = "float32") -> GraphedModel:
    """A copy of the model in this precision, in the layout that makes it faster on batches like `example` (B, C, H, W)."""
    made = {str(layout): GraphedModel(copy.deepcopy(model).to(TYPES[precision]), layout) for layout in LAYOUTS}
    timings = bench(made, example, warmup=5, repeats=20)
    check_graphed(made.values())
    return made[min(timings, key=lambda name: timings[name].quartile)]


def check_graphed(runs: Iterable[GraphedModel | RepeatedLayer]) -> None:
    """Refuse times of what ran on a GPU without being recorded: they would be Python's."""
    for run in runs:
        if placement(run)[0].type == "cuda" and not run.replay.recordings:
            raise GdwsError(
                "the model cannot be recorded as a CUDA graph: expected one that fits into memory and waits for nothing"
            )


def _answered(model: nn.Module, images: Tensor) -> tuple[Tensor]:
    return (model(images),)


def _often(layers: nn.ModuleList, inputs: Sequence[Tensor], images: Tensor) -> tuple[Tensor]:
    for layer in layers:
        for x in inputs:
            last = layer(x)
    return (last,)


@contextmanager
def without_gradients() -> Iterator[None]:
    """Without gradients, in true float32, with tried kernels; not in inference mode, whose tensors no later call may fill."""
    with torch.inference_mode(False), torch.no_grad(), full_precision(), cudnn_benchmark():
        yield


@contextmanager
def cudnn_benchmark() -> Iterator[None]:
    """cuDNN times its kernels on each new shape inside and takes the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
