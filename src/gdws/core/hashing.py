"""Short hashes by which a network, a batch of data and single images are known again.

A network is what it does, and that is not in its weights alone: it normalizes by constants of its module, reads attributes,
runs its author's code. So its identity is of all of these, and of what it answers to fixed images, in case something else
matters. Answers are rounded: those of the same network differ in the last digits from one number of threads to another.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import math
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gdws.core.execution import own_copy, placement, private_copy
from gdws.core.inputs import Inputs, call_model, floats_in, noise_like, place, tensors_of
from gdws.core.reading.weights import dense

PROBES, STEPS, ANSWERS = 2, 1000, 4096
"""Samples that a network is asked about, into how many steps its largest answer is divided, and how many answers count."""
LIBRARIES = {"torch", "numpy", *sys.stdlib_module_names}
"""Code of these is known by its name: it changes with the versions of packages, not with the network."""
OF_EVERY_MODULE = set(vars(nn.Module()))
"""Attributes that all modules have: flags, and what is looked at by itself."""


def network_identity(model: nn.Module, example: Inputs) -> str:
    """Of all that a network holds, of its code, and of its answers to fixed noise of the kind of `example`."""
    return _digest([*_Description().network(model, with_weights=True), repr(_answers(model, example))])


def architecture_identity(model: nn.Module) -> str:
    """Of a network but for the values in its state dict and what depends on them."""
    return _digest(_Description().network(model, with_weights=False))


def weights_hash(model: nn.Module) -> str:
    """Of the kinds and names of the modules, and of every tensor."""
    digest = hashlib.blake2b(repr(model).encode(), digest_size=8)
    tensors = dict(model.named_buffers()) | model.state_dict()  # what images are normalized by is in no state dict
    for name, value in tensors.items():
        if not isinstance(value, Tensor):  # what a module keeps beside tensors
            continue
        digest.update(name.encode())
        digest.update(_content(value))
    return digest.hexdigest()


def data_hash(images: Tensor, labels: Tensor) -> str:
    """Of one batch."""
    digest = hashlib.blake2b(str(tuple(images.shape)).encode(), digest_size=8)
    digest.update(_content(images))
    digest.update(_content(labels.long()))
    return digest.hexdigest()


def values_hash(values: Any) -> str:
    """Of tensors and plain values, in lists, tuples and dictionaries."""
    return _digest(_Description().value(values))


def sample_hashes(inputs: Inputs) -> tuple[str, ...]:
    """A short hash of each sample, to tell whether two sets overlap. Floats in [0, 1] count as bytes, as images are."""
    return tuple(_sample_hash([value[row] for value in tensors_of(inputs)]) for row in range(len(inputs)))


def _sample_hash(parts: list[Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=6)
    for part in parts:
        pixels = part.is_floating_point() and bool(((part >= 0) & (part <= 1)).all())
        digest.update(_content((part * 255).round().to(torch.uint8) if pixels else part))
    return digest.hexdigest()


def _digest(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(f"{len(data)} ".encode())  # where one part ends and the next begins
        digest.update(data)
    return digest.hexdigest()


def _content(value: Tensor) -> bytes:
    """The bytes of a tensor's values, whatever its kind."""
    if value.is_meta:  # which has none
        return b""
    plain = dense(value).resolve_conj().resolve_neg().cpu().contiguous()
    return plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def _answers(model: nn.Module, example: Inputs) -> list[int] | str:
    """What the network answers to noise, in steps of its largest answer; in float64, where it runs there."""
    noise = noise_like(example, PROBES, torch.Generator().manual_seed(0))
    for dtype in (torch.float64, None):
        try:
            probe = (private_copy(model) if dtype is None else own_copy(model, dtype)).eval()
            with torch.no_grad():
                once, again = (_flat(_asked(probe, place(noise, *placement(probe)))) for _ in range(2))
        except Exception:  # whoever runs it next says what is wrong
            continue
        largest = float(once.abs().max()) if len(once) else 0.0
        if not math.isfinite(largest):
            return "not finite"
        if not torch.allclose(once, again, rtol=0, atol=largest / STEPS):
            return "random"
        return [round(STEPS * value / largest) if largest else 0 for value in once.tolist()]
    return "none"


def _asked(model: nn.Module, samples: Inputs) -> list[Any]:
    """What it answers to each by itself: two large pictures at a time take twice the memory."""
    return [call_model(model, samples[row : row + 1]) for row in range(len(samples))]


def _flat(output: Any) -> Tensor:
    """The numbers of an output; of a large one some, at equal distances."""
    numbers = torch.cat([value.double().cpu().flatten() for value in floats_in(output)])
    return numbers[:: -(-len(numbers) // ANSWERS)]


class _Description:
    """Networks, code and values, part by part. Code is described once; it and containers may refer to themselves."""

    def __init__(self) -> None:
        self.described: dict[int, object] = {}
        self.open: set[int] = set()

    def network(self, model: nn.Module, with_weights: bool) -> Iterator[str | bytes]:
        """Modules by name: their tensors, attributes, hooks and code."""
        left_out = set() if with_weights else set(model.state_dict())
        for prefix, module in model.named_modules(remove_duplicate=False):
            yield from (prefix, *_name_of(type(module)))
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                yield name
                if tensor is not None and f"{prefix}.{name}".removeprefix(".") in left_out:
                    yield from (str(tensor.dtype), str(tuple(tensor.shape)))
                else:
                    yield from self.value(tensor)
            extra = {name: value for name, value in module.state_dict().items() if not isinstance(value, Tensor)}
            yield from self.value(extra)
            for name in sorted(vars(module).keys() - OF_EVERY_MODULE):
                yield name
                yield from self.value(vars(module)[name])
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                yield from self.value(list(hooks.values()))
            for kind in type(module).__mro__:
                yield from self.methods(kind)

    def value(self, value: Any) -> Iterator[str | bytes]:
        """A plain value by what it is, code by what it does, anything else by its type."""
        yield from _name_of(type(value))
        if isinstance(value, Tensor):
            yield from (str(value.dtype), str(tuple(value.shape)), _content(value))
        elif isinstance(value, np.ndarray | np.generic):
            yield from (str(value.dtype), str(value.shape), repr(value.tolist()))
        elif isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | torch.device):
            yield repr(value)
        elif isinstance(value, types.FunctionType):
            yield from self.function(value)
        elif isinstance(value, types.MethodType):
            yield from self.value(value.__func__)
        elif isinstance(value, type | types.BuiltinFunctionType):
            yield from _name_of(value)
            yield from self.methods(value) if isinstance(value, type) else ()
        elif id(value) not in self.open:
            self.open.add(id(value))
            yield from self.parts(value)
            self.open.remove(id(value))

    def parts(self, value: Any) -> Iterator[str | bytes]:
        """Of a container, a record of settings, or a network that is in one."""
        if isinstance(value, nn.Module):
            yield from self.network(value, with_weights=True)
        elif isinstance(value, argparse.Namespace | types.SimpleNamespace):
            value = vars(value)
        elif dataclasses.is_dataclass(value):
            yield from self.methods(type(value))
            value = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            value = [part for pair in value.items() for part in pair]
        if isinstance(value, set | frozenset):
            yield from sorted(repr(part) for part in value if isinstance(part, str | bytes | int | float))
        elif isinstance(value, list | tuple):
            yield str(len(value))
            for part in value:
                yield from self.value(part)

    def methods(self, kind: type) -> Iterator[str | bytes]:
        """The methods and constants of a class, unless a library has it. What it was made by is in what it has."""
        if self._is_known(kind):
            return
        for name, value in sorted(vars(kind).items()):
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if name != "__init__" and (isinstance(function, types.FunctionType) or not name.startswith("__")):
                yield name
                yield from self.value(function)

    def function(self, function: types.FunctionType) -> Iterator[str | bytes]:
        """Its code, its defaults, and what it takes from its module and from around it."""
        yield from _name_of(function)
        if self._is_known(function):
            return
        code = list(_code(function.__code__))
        yield from code
        yield from self.value((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                yield from self.value(cell.cell_contents)
            except ValueError:  # of a variable that is not set yet
                yield "nothing"
        yield from self.names({part for part in code if isinstance(part, str)}, function.__globals__)

    def names(self, used: set[str], given: Mapping[str, Any]) -> Iterator[str | bytes]:
        """What these names stand for in a module, and in other modules that it names."""
        for name in sorted(used & given.keys()):
            value = given[name]
            yield name
            if not isinstance(value, types.ModuleType):
                yield from self.value(value)
            elif not _of_library(value.__name__) and id(value) not in self.open:
                self.open.add(id(value))
                yield from self.names(used, vars(value))
                self.open.remove(id(value))

    def _is_known(self, code: Any) -> bool:
        """Whether a function or class is a library's, or was described before."""
        known = _of_library(getattr(code, "__module__", None) or "") or id(code) in self.described
        self.described[id(code)] = code
        return known


def _of_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES


def _name_of(code: Any) -> tuple[str, str]:
    return str(getattr(code, "__module__", "")), str(code.__qualname__)  # a class that type() makes may have no module


def _code(code: types.CodeType) -> Iterator[str | bytes]:
    """Instructions, names and constants, also of inner functions; not where in a file they stand."""
    yield code.co_code
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        else:  # a set of strings has another order in every process
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
