"""ONNX operators of third-party networks, as differentiable functions of tensors.

gdws.deploy.onnx.operators has the operators that gdws itself exports. Those here are general: any rank and padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from gdws.deploy.onnx import operators
from gdws.deploy.onnx.general import arrays, resizing, windows

OPERATORS: dict[str, Callable[[list[Any], dict[str, Any]], Tensor | Sequence[Tensor]]] = {
    **operators.OPERATORS,
    **arrays.ARRAYS,
    **windows.WINDOWS,
    "Resize": resizing.resize,
}
READ = {**operators.READ, **arrays.READ, **windows.READ, **resizing.READ}
"""The attributes that are heeded. Others may only have the values that they have when they are left out."""
NUMBERS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys((*operators.NUMBERS, *(name for name in arrays.READ if name.startswith("Reduce"))), (1, 2, 3, 4)),
    "Clip": (1, 2),
    "ConstantOfShape": (0,),
    "Gather": (1,),
    "Pow": (1,),
    "Range": (0, 1, 2),
    "Resize": (2, 3),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
}
"""Which inputs are numbers and no tensors where that is possible: a trace then knows them."""
MAKERS = ("Cast", "ConstantOfShape", "Range")
"""Operators that are told the network's `device` and `float` type beside their attributes."""
