"""CUDA graphs: a function of tensors that is recorded once for the shapes it sees, and then replayed by one launch.

A small batch on a large GPU waits for Python to launch its kernels one by one. A replay is one launch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]


class GraphedCallable:
    """The function itself, and on a CUDA device, from the third call with inputs of the same shapes on, a recording of it.

    The function may update tensors in place that live as long as this object, such as weights and running statistics, but it
    must not depend on anything else that changes. What it returns is valid until the next call. One that cannot be recorded,
    since it waits for the device, runs as it is.
    """

    def __init__(self, function: Callable[..., Tensors]) -> None:
        self.function = function
        self.calls: dict[tuple[tuple[torch.Size, torch.dtype], ...], int] = {}
        self.recordings: dict[tuple[tuple[torch.Size, torch.dtype], ...], tuple[torch.cuda.CUDAGraph, Tensors, Tensors]] = {}
        self.shared: tuple[Any, torch.cuda.Stream] | None = None
        self.recordable = True

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphedCallable:
        """Of the function and what it holds; the copy has nothing recorded yet."""
        return GraphedCallable(copy.deepcopy(self.function, memo))

    def __call__(self, *inputs: Tensor) -> Tensors:
        if not inputs[0].is_cuda or not self.recordable:
            return self.function(*inputs)
        key = tuple((value.shape, value.dtype) for value in inputs)
        self.calls[key] = self.calls.get(key, 0) + 1
        if self.calls[key] <= 2:  # libraries choose kernels and take their memory on the first calls
            return self.function(*inputs)
        if key not in self.recordings and not self._record(key, inputs):
            return self.function(*inputs)
        graph, own, outputs = self.recordings[key]
        for mine, given in zip(own, inputs, strict=True):
            mine.copy_(given)
        with torch.cuda.device(own[0].device):
            graph.replay()
        return outputs

    def _record(self, key: tuple[tuple[torch.Size, torch.dtype], ...], inputs: Tensors) -> bool:
        """Whether it could be done. Recording computes nothing."""
        own = tuple(value.detach().clone() for value in inputs)
        device = own[0].device
        before, graph = torch.cuda.current_stream(device), torch.cuda.CUDAGraph()
        with torch.cuda.device(device):  # PyTorch records what happens on the current device, whatever the tensors' is
            if self.shared is None:  # recordings of one pool share memory if they are made on one stream
                self.shared = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
            pool, stream = self.shared
            try:
                # Other threads, such as a DataLoader's that pins memory, may go on with their own work meanwhile.
                with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                    outputs = self.function(*own)
            except RuntimeError:
                torch.cuda.set_stream(before)  # a recording that fails leaves its own stream in force
                _mend_random_numbers(device)
                self.recordable = False
                return False
        self.recordings[key] = graph, own, outputs
        return True


def _mend_random_numbers(device: torch.device) -> None:
    """A recording that fails may leave the default generator as in the middle of it, where every draw is an error."""
    generator = torch.cuda.default_generators[device.index]
    state = generator.get_state()
    try:
        torch.rand(1, device=device)
    except RuntimeError:
        generator.graphsafe_set_state(generator.clone_state())
    generator.set_state(state)
