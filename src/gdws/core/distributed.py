"""Several processes that share one evaluation, as torchrun starts them: whole batches are dealt out, decisions put together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist


@dataclass(frozen=True)
class ProcessGroup:
    """This process is number `rank` of `world`; batch i belongs to process i mod world."""

    rank: int = 0
    world: int = 1

    def owns(self, batch: int) -> bool:
        return batch % self.world == self.rank

    def first(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        """Until every process is here."""
        if self.world > 1:
            dist.barrier()

    def take_from_first(self, values: Iterable[Tensor]) -> None:
        """Every process gets the values of the first, in place."""
        if self.world > 1:
            for value in values:
                dist.broadcast(value, 0)

    def merged(self, decided: Tensor) -> Tensor:
        """The elementwise maximum over the processes, which all but the owner leave at 0. Whole numbers, on the CPU."""
        if self.world > 1:
            decided = decided.clone()
            dist.all_reduce(decided, dist.ReduceOp.MAX)
        return decided


SINGLE_PROCESS = ProcessGroup()


@contextmanager
def join_processes() -> Iterator[ProcessGroup]:
    """The processes that torchrun started beside this one, in touch over gloo; or this one alone."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world == 1:
        yield SINGLE_PROCESS
        return
    dist.init_process_group("gloo")
    try:
        yield ProcessGroup(dist.get_rank(), world)
    finally:
        dist.destroy_process_group()


def local_device(device: torch.device) -> torch.device:
    """The GPU of this process, where several processes were told to use `cuda`."""
    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device
