"""What the functions are given: images, labels, networks, numbers, names and paths, right and wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chaos import material
from chaos.inputs.code import CODE, HEAD, RAISING

NAN, INF = math.nan, math.inf


@dataclass(frozen=True)
class Value:
    """Something to be given. good: it may be taken; foreign: of a type that has no place there."""

    name: str
    make: Callable[[], Any]
    good: bool = False
    foreign: bool = False


def values(good: bool = False, foreign: bool = False, **made: Callable[[], Any]) -> list[Value]:
    return [Value(name, make, good, foreign) for name, make in made.items()]


def images() -> Tensor:
    return material.images()[:8].clone()


def labels() -> Tensor:
    return torch.arange(8) % 4


def _with(value: float) -> Tensor:
    made = images()
    made[3, 1, 2, 5] = value
    return made


FOREIGN = values(
    foreign=True,
    none=lambda: None,
    text=lambda: "images",
    number=lambda: 3,
    mapping=lambda: {"images": images()},
    thing=object,
    path=lambda: Path("x"),
    array=lambda: np.zeros((8, 3, 8, 8), np.float32),
)
IMAGES = [
    *values(
        nan=lambda: _with(NAN),
        infinite=lambda: _with(INF),
        negative=lambda: _with(-1e-3),
        above=lambda: _with(1.001),
        bytes=lambda: (images() * 255).to(torch.uint8),
        pixels=lambda: images() * 255,
        integers=lambda: torch.zeros(8, 3, 8, 8, dtype=torch.int64),
        bools=lambda: torch.ones(8, 3, 8, 8, dtype=torch.bool),
        complex=lambda: images().to(torch.complex64),
        three=lambda: images()[0],
        five=lambda: images()[None],
        none_at_all=lambda: images()[:0],
        no_rows=lambda: torch.zeros(8, 3, 0, 8),
        no_channels=lambda: torch.zeros(8, 0, 8, 8),
        gray=lambda: images()[:, :1],
        last=lambda: images().permute(0, 2, 3, 1),
        meta=lambda: images().to("meta"),
        scalar=lambda: torch.tensor(0.5),
        flat=lambda: torch.zeros(8),
        quantized=lambda: torch.quantize_per_tensor(images(), 0.01, 0, torch.quint8),
        float8=lambda: images().to(torch.float8_e4m3fn),
        sparse=lambda: images().to_sparse(),
        undefined=lambda: torch.empty(0),
    ),
    *values(
        good=True,
        double=lambda: images().double(),
        half=lambda: images().half(),
        brain=lambda: images().bfloat16(),
        gradients=lambda: images().requires_grad_(),
        strided=lambda: images().permute(0, 1, 3, 2),
        last_in_memory=lambda: images().to(memory_format=torch.channels_last),
        repeated=lambda: images()[:1].expand(8, 3, 8, 8),
        black=lambda: torch.zeros(8, 3, 8, 8),
        white=lambda: torch.ones(8, 3, 8, 8),
        denormal=lambda: torch.full((8, 3, 8, 8), 1e-40),
        one=lambda: images()[:1],
        parameter=lambda: nn.Parameter(images()),
    ),
    *FOREIGN,
]
LABELS = [
    *values(
        floats=lambda: labels().float(),
        negative=lambda: labels() - 1,
        above=lambda: labels() + 1,
        far=lambda: labels() + 10**9,
        two=lambda: labels()[:, None],
        short=lambda: labels()[:7],
        long=lambda: torch.arange(9) % 4,
        hot=lambda: nn.functional.one_hot(labels()),
        empty=lambda: labels()[:0],
        meta=lambda: labels().to("meta"),
        complex=lambda: labels().to(torch.complex64),
        wrapping=lambda: (labels().to(torch.uint64).view(torch.int64) + 2**62 + 2**62).view(torch.uint64),
        scalar=lambda: torch.tensor(1),
        sparse=lambda: labels().to_sparse(),
    ),
    *values(
        good=True,
        bools=lambda: labels() > 1,
        bytes=lambda: labels().to(torch.uint8),
        int8=lambda: labels().to(torch.int8),
        int16=lambda: labels().to(torch.int16),
        int32=lambda: labels().to(torch.int32),
        uint16=lambda: labels().to(torch.uint16),
        uint32=lambda: labels().to(torch.uint32),
        uint64=lambda: labels().to(torch.uint64),
        strided=lambda: labels().repeat_interleave(2)[::2],
        expanded=lambda: torch.tensor([1]).expand(8),
    ),
    *values(
        foreign=True,
        text=lambda: "labels",
        number=lambda: 3,
        thing=object,
        listed=lambda: [0, 1, 2, 3, 0, 1, 2, 3],
        array=lambda: np.arange(8) % 4,
    ),
]
WEIGHT = torch.rand(4, 4, 3, 3, generator=torch.Generator().manual_seed(0))
WEIGHTS = [
    *values(
        nan=lambda: WEIGHT * NAN,
        infinite=lambda: WEIGHT * INF,
        integers=lambda: (WEIGHT * 9).long(),
        complex=lambda: WEIGHT.to(torch.complex64),
        three=lambda: WEIGHT[0],
        five=lambda: WEIGHT[None],
        empty=lambda: WEIGHT[:0],
        no_taps=lambda: WEIGHT[..., :0],
        meta=lambda: WEIGHT.to("meta"),
        bools=lambda: WEIGHT > 0.5,
        float8=lambda: WEIGHT.to(torch.float8_e4m3fn),
        sparse=lambda: WEIGHT.to_sparse(),
        quantized=lambda: torch.quantize_per_tensor(WEIGHT, 0.01, 0, torch.qint8),
    ),
    *values(
        good=True,
        half=WEIGHT.half,
        double=WEIGHT.double,
        zero=lambda: WEIGHT * 0,
        parameter=lambda: nn.Parameter(WEIGHT),
        strided=lambda: WEIGHT.permute(1, 0, 3, 2),
    ),
    *FOREIGN,
]
ALPHAS = [
    *values(
        nan=lambda: torch.full((4,), NAN),
        negative=lambda: -torch.ones(4),
        infinite=lambda: torch.full((4,), INF),
        short=lambda: torch.ones(3),
        two=lambda: torch.ones(4, 1),
        meta=lambda: torch.ones(4, device="meta"),
        complex=lambda: torch.ones(4, dtype=torch.complex64),
    ),
    *values(
        good=True,
        zero=lambda: torch.zeros(4),
        much=lambda: torch.full((4,), 1e300, dtype=torch.float64),
        integers=lambda: torch.ones(4, dtype=torch.int64),
        none=lambda: None,
    ),
    *values(foreign=True, text=lambda: "x", number=lambda: 1.0, listed=lambda: [1.0] * 4),
]
"""Importances of four channels."""
_WHOLE = values(
    zero=lambda: 0,
    minus=lambda: -1,
    more=lambda: 10**400,
    one=lambda: 1,
    two=lambda: 2,
    seven=lambda: 7,
    hundred=lambda: 100,
    big=lambda: 2**63,
)
_FLOATS = {
    "nan": NAN,
    "infinite": INF,
    "minus_infinite": -INF,
    "minus_little": -1e-9,
    "much": 1e300,
    "little": 1e-320,
    "half": 0.5,
}
_STRANGE = values(
    foreign=True,
    true=lambda: True,
    array=lambda: np.float64(0.5),
    integer=lambda: np.int64(-3),
    nan_array=lambda: np.float32("nan"),
    tensor=lambda: torch.tensor(0.5),
    decimal=lambda: Decimal("0.5"),
    text=lambda: "0.5",
    none=lambda: None,
    listed=lambda: [0.5],
    complex=lambda: 1j,
    nothing=dict,
    tensors=lambda: torch.tensor([0.5, 0.6]),
)
NUMBERS = [*_WHOLE, *(Value(name, lambda value=value: value) for name, value in _FLOATS.items()), *_STRANGE]
WHOLE = [*_WHOLE, *(Value(name, lambda value=value: value, foreign=True) for name, value in _FLOATS.items()), *_STRANGE]
"""Where whole numbers are wanted."""
NAMES = [
    *values(empty=lambda: "", unknown=lambda: "x", red=lambda: "\x1b[31m", upper=lambda: "GDWS"),
    *values(
        foreign=True, listed=lambda: ["x"], mixed=lambda: ["gdws", "x"], none=lambda: None, number=lambda: 3, truth=lambda: True
    ),
]
PATHS = [
    *values(
        missing=lambda: "missing",
        folder=lambda: "folder",
        empty=lambda: "empty",
        noise=lambda: "noise.pt",
        device=lambda: "null",
        full=lambda: "full",
        dangling=lambda: "dangling",
        loop=lambda: "loop",
        fifo=lambda: "fifo",
        long=lambda: "n" * 300,
        inside=lambda: "text/x",
        nothing=lambda: "",
        null_byte=lambda: "a\0b",
    ),
    *values(foreign=True, none=lambda: None, number=lambda: 3.5),
]
FOREIGN_NUMBERS = [dataclasses.replace(value, foreign=True) for value in NUMBERS]
EDITS = [
    *values(
        none=lambda: None,
        minus=lambda: -1,
        text=lambda: "x",
        number=lambda: 3,
        nan=lambda: NAN,
        big=lambda: 2**70,
        nothing=lambda: (),
        list_of_text=lambda: ("x",),
        negative_list=lambda: (-1,) * 8,
        long_list=lambda: (1,) * 9,
        huge_list=lambda: (10**9,) * 8,
        shape=lambda: (1, 2, 3, 4),
        floats=lambda: (1.5,) * 8,
        stem=lambda: "0",
        norm=lambda: "1",
        dots=lambda: "0..1",
    ),
]
FOREIGN_EDITS = [dataclasses.replace(value, foreign=True) for value in EDITS]


NO_MODULES = ("none", "function", "state dict", "generator", "asynchronous")


def _coded(name: str) -> Any:
    """What `net` of the code gives."""
    given: dict[str, Any] = {}
    exec(HEAD + CODE[name][0], given)
    return given["net"]()


MODELS = [
    *(
        Value(name, lambda name=name: _coded(name), good=not must, foreign=name in NO_MODULES)
        for name, (_, must) in CODE.items()
        if name not in (*RAISING, "prints", "warns", "class")
    ),
    *values(foreign=True, text=lambda: "demo", kind=lambda: nn.Sequential, number=lambda: 1),
]
