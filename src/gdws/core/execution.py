"""How a model is run: in eval mode, in true float32, on its own device and in its own type."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gdws.core.errors import GdwsError, first_line

ATTEMPTS = 100
"""At copying a model that is in use: a pass may change what it keeps, at any moment. Most need one."""
MOST_THREADS = 1024
"""More than any machine has cores for; so many that there is no memory for their stacks end the process."""
LARGEST_TEMPORARY = 2**22
"""Elements of the largest temporary tensor that a pass over many pixels makes at once."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, every module's own flag restored after."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


class _Precision:
    """What PyTorch has one flag of for all threads: TF32 is allowed while every thread that says something allows it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.wishes: dict[int, list[bool]] = {}
        self.outside = (False, False)

    @contextmanager
    def wish(self, tf32: bool) -> Iterator[None]:
        thread = threading.get_ident()
        with self.lock:
            if not self.wishes:
                self.outside = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
            self.wishes.setdefault(thread, []).append(tf32)
            self._set()
        try:
            yield
        finally:
            with self.lock:
                self.wishes[thread].pop()
                if not self.wishes[thread]:
                    del self.wishes[thread]
                self._set()

    def _set(self) -> None:
        allowed = all(mine[-1] for mine in self.wishes.values())
        values = (allowed, allowed) if self.wishes else self.outside
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = values


_PRECISION = _Precision()


def full_precision(*, tf32: bool = False) -> AbstractContextManager[None]:
    """True float32 on NVIDIA GPUs inside: PyTorch's default lets convolutions round their inputs to TF32. Or TF32, if asked."""
    return _PRECISION.wish(tf32)


def private_copy(model: nn.Module) -> nn.Module:
    """The model once more, to put hooks and flags on while others use it: it has the same parameters, all else is its own."""
    return _copied(model, lambda value: value if isinstance(value, nn.Parameter) else value.detach().clone())


def own_copy(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy with parameters of its own; dtype: of all its floats."""

    def own(value: Tensor) -> Tensor:
        copied = copy.deepcopy(value) if isinstance(value, nn.Parameter) else value.detach().clone()
        if dtype is not None and copied.is_floating_point():
            copied.data = copied.data.to(dtype)
        return copied

    return _copied(model, own)


class _Copying(TorchFunctionMode):
    """Inside, copy.deepcopy copies tensors by a function. PyTorch itself copies only tensors that are leaves of the graph of
    gradients; a network may keep others, such as weights that it computes from parameters, or what its last pass gave.
    """

    def __init__(self, own: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.own = own

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.own(args[0]) if func is Tensor.__deepcopy__ else func(*args, **(kwargs or {}))


def _copied(model: nn.Module, own: Callable[[Tensor], Tensor]) -> nn.Module:
    failed: Exception | None = None
    for _ in range(ATTEMPTS):
        parts = [part for module in model.modules() for part in (module._parameters, vars(module))]
        held = [value for part in parts for value in list(part.values()) if isinstance(value, nn.Parameter)]
        try:
            with _Copying(own):
                return copy.deepcopy(model, {id(value): own(value) for value in held})
        except RuntimeError as error:  # another thread's pass may have put something into a dictionary meanwhile
            failed = error
        except Exception as error:
            failed = error
            break
    assert failed is not None
    kind, why = type(model).__name__, first_line(failed)
    raise GdwsError(f"the model {kind} cannot be copied ({why}): expected one that copy.deepcopy copies") from failed


def placement(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """The device and floating type of the model's parameters."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.device, parameter.dtype
    raise GdwsError(f"the model {type(model).__name__} has no floating-point parameters: expected a CNN")


def at_least_float32(model: nn.Module) -> nn.Module:
    """The model itself, or a float32 copy where its own type is narrower."""
    return own_copy(model).float() if placement(model)[1] in (torch.float16, torch.bfloat16) else model
