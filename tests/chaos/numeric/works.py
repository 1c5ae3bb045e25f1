"""All numeric cases, and how many of each."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from random import Random

import torch

from chaos.case import Case, Family
from chaos.numeric import choices, factors, layers, networks

Work = Callable[[Random, torch.Generator], tuple[str, Callable[[], None]]]
"""What is tried, in words, and the trial."""
WORKS: dict[str, tuple[Work, int]] = {
    "mego": (factors.mego, 160),
    "lego": (factors.lego, 100),
    "layers": (layers.layers, 150),
    "curves": (layers.curves, 60),
    "networks": (networks.networks, 60),
    "balls": (networks.balls, 80),
    "knapsacks": (choices.knapsacks, 80),
    "counts": (choices.counts, 40),
}


def families() -> list[Family]:
    return [
        Family(f"numeric/{name}", count, functools.partial(_attempt, work), short=5) for name, (work, count) in WORKS.items()
    ]


def _attempt(work: Work, case: Case) -> None:
    generator = torch.Generator().manual_seed(case.random.getrandbits(60))
    told, trial = work(case.random, generator)
    case.tell(told)
    case.key = hashlib.sha256(told.encode()).hexdigest()
    trial()
