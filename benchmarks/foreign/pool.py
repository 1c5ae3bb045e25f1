"""Captchas drawn by other processes while a network learns from them, so that it meets few of them twice.

The processes draw over the oldest pictures of a part of memory that all of them share. What is read there may now and then be
half of one picture and half of the next, which does no harm.
"""

from __future__ import annotations

import mmap
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import sleep
from typing import Self

import numpy as np
import torch
from torch import Tensor

from foreign.captchas import SIDE, Fonts, draw


@dataclass
class Pool:
    """Endless batches of captchas (B, 3, 416, 416), drawn anew all the time, until a `with` of it ends.

    Make one before anything uses CUDA: it forks.

    photographs, fonts  as in foreign.captchas.draw.
    places              pictures in memory, 0.5 MB each.
    processes           that draw, some 150 captchas a second each.
    batch, device       of what is given.
    seed                of the first process; the others have those after it.
    """

    photographs: list[Path]
    fonts: Fonts
    places: int
    processes: int
    batch: int
    device: torch.device
    seed: int
    pictures: Tensor = field(init=False)
    drawn: Tensor = field(init=False)
    workers: list[BaseProcess] = field(init=False)

    def __post_init__(self) -> None:
        # Anonymous memory: /dev/shm may be small.
        shape = (self.places, 3, SIDE, SIDE)
        self.pictures = torch.frombuffer(mmap.mmap(-1, int(np.prod(shape))), dtype=torch.uint8).view(shape)
        self.drawn = torch.frombuffer(mmap.mmap(-1, 8 * self.processes), dtype=torch.int64)
        fork = multiprocessing.get_context("fork")
        self.workers = [fork.Process(target=self._draw, args=(process,), daemon=True) for process in range(self.processes)]
        for worker in self.workers:
            worker.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.terminate()

    def _draw(self, process: int) -> None:
        torch.set_num_threads(1)
        places = range(process, self.places, self.processes)
        for count, picture in enumerate(draw(self.photographs, self.fonts, seed=self.seed + process)):
            self.pictures[places[count % len(places)]] = picture.byte()
            self.drawn[process] = count + 1

    def __iter__(self) -> Iterator[Tensor]:
        while int(self.drawn.min()) < -(-self.places // self.processes):  # every place has been drawn on
            sleep(0.1)
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            rows = torch.randint(self.places, (self.batch,), generator=generator)
            yield self.pictures[rows].to(self.device).float()
