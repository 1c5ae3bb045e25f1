"""The graph of an ONNX file as a module: its layers with constant weights are modules, all else is functions of tensors."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gdws.core.errors import GdwsError, first_line
from gdws.deploy.onnx.general import MAKERS, NUMBERS, OPERATORS
from gdws.deploy.onnx.general.sizes import SIZES
from gdws.deploy.onnx.signature import Port, Signature, attach_signature


@dataclass(frozen=True)
class Value:
    """What a step before gave, or an input of the network, by its name in the file."""

    name: str


@dataclass(frozen=True)
class Held:
    """A constant of the network."""

    name: str


@dataclass
class Step:
    """A node of the graph.

    operator    of ONNX, in words of the file.
    inputs      Value, Held, None where one is left out, or numbers.
    outputs     names.
    attributes  of the node.
    module      the layer of the network that it is, if it is one.
    sizes       whether it computes with shapes: numbers, not tensors.
    last        values that nobody needs after it.
    """

    operator: str
    inputs: list[Any]
    outputs: list[str]
    attributes: dict[str, Any]
    module: str | None = None
    sizes: bool = False
    last: list[str] = field(default_factory=list)


class OnnxNetwork(nn.Module):
    """Tensors in, as the file has them, by position or by name; its output out or, of several, {name: output}.

    origin     what messages call the file.
    signature  its inputs and outputs.
    steps      in the order in which they run.
    outputs    for each output of the file the Value or Held that it is.
    batching   of a file whose first sizes are all 1: "any", the graph takes any number of samples; or "one by one", a batch
               is put together of passes. None: the first sizes are those of the file.
    """

    def __init__(self, origin: str, signature: Signature, steps: Sequence[Step], outputs: Sequence[Value | Held]) -> None:
        super().__init__()
        self.origin, self.steps, self.outputs = origin, list(steps), list(outputs)
        self.batching: Literal["any", "one by one"] | None = None
        self.constants = nn.Module()
        attach_signature(self, signature)
        self.inputs, self.names = signature.inputs, [port.name for port in signature.outputs]

    def forward(self, *given: Tensor, **named: Tensor) -> Tensor | dict[str, Tensor]:
        """The outputs for a batch."""
        tensors = self._tensors(given, named)
        if self.batching != "one by one" or len(tensors[0]) == 1:
            found = self._run(tensors)
        else:
            parts = [self._run([value[row : row + 1] for value in tensors]) for row in range(len(tensors[0]))]
            found = [torch.cat(column) for column in zip(*parts, strict=True)]
        return found[0] if len(found) == 1 else dict(zip(self.names, found, strict=True))

    def _tensors(self, given: Sequence[Tensor], named: Mapping[str, Tensor]) -> list[Tensor]:
        by_name = dict(zip((port.name for port in self.inputs), given, strict=False)) | {
            port.name: named[parameter]
            for parameter, port in zip(parameters(self.inputs), self.inputs, strict=True)
            if parameter in named
        }
        if len(by_name) != len(self.inputs) or len(given) + len(named) != len(self.inputs):
            words = ", ".join(port.name for port in self.inputs)
            raise GdwsError(f"{self.origin} was given {len(given) + len(named)} tensors: expected {words}")
        tensors = [by_name[port.name] for port in self.inputs]
        for port, value in zip(self.inputs, tensors, strict=True):
            wanted = (None, *port.shape[1:]) if self.batching else port.shape
            sizes = zip(wanted, value.shape, strict=False)
            if (port.shape and len(wanted) != value.ndim) or any(isinstance(size, int) and size != own for size, own in sizes):
                name = "images" if len(self.inputs) == 1 else f"the values for {port.name[:40]!r}"
                shape = tuple(size if isinstance(size, int) else "any" for size in wanted)
                raise GdwsError(f"{name} have shape {tuple(value.shape)}: expected {shape}")
        return tensors

    def _run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        values: dict[str, Any] = dict(zip((port.name for port in self.inputs), tensors, strict=True))
        floats = [value for value in tensors if value.is_floating_point()]
        settings = {"device": tensors[0].device, "float": floats[0].dtype if floats else torch.float32}
        for step in self.steps:
            inputs = [self._argument(each, values) for each in step.inputs]
            try:
                found = self._result(step, inputs, settings)
            except GdwsError as error:
                raise GdwsError(f"{self.origin} cannot be run: {error}") from None
            except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
                raise GdwsError(f"{self.origin} cannot be run: {step.operator} fails ({first_line(error)})") from error
            values.update(zip(step.outputs, found, strict=False))
            for name in step.last:
                values.pop(name, None)
        return [self._tensor(self._argument(each, values), settings) for each in self.outputs]

    def _argument(self, given: Any, values: Mapping[str, Any]) -> Any:
        if isinstance(given, Value):
            return values[given.name]
        return getattr(self.constants, given.name) if isinstance(given, Held) else given

    def _result(self, step: Step, inputs: list[Any], settings: dict[str, Any]) -> Sequence[Any]:
        if step.module is not None:
            found = self.get_submodule(step.module)(*inputs)
        elif step.operator == "Shape":
            sizes = inputs[0].shape if isinstance(inputs[0], Tensor) else [len(inputs[0])]
            found = list(sizes[step.attributes.get("start", 0) : step.attributes.get("end")])
        elif step.sizes:
            found = SIZES[step.operator](inputs, step.attributes)
        else:
            numbers = NUMBERS.get(step.operator, ())
            like = next((value for value in inputs if isinstance(value, Tensor)), None)
            arguments = [
                value if value is None or place in numbers else self._tensor(value, settings, like)
                for place, value in enumerate(inputs)
            ]
            attributes = step.attributes | settings if step.operator in MAKERS else step.attributes
            found = OPERATORS[step.operator](arguments, attributes)
        several = step.operator == "Split" or (isinstance(found, tuple | list) and not step.sizes and step.operator != "Shape")
        return found if several else [found]

    def _tensor(self, value: Any, settings: dict[str, Any], like: Tensor | None = None) -> Tensor:
        """Numbers as a tensor beside another, of its type."""
        if isinstance(value, Tensor):
            return value
        flat = value if isinstance(value, list) else [value]
        is_float = any(isinstance(each, float | torch.SymFloat) for each in flat)
        kind = settings["float"] if is_float else torch.int64
        if like is not None and like.dtype != torch.bool:
            kind = like.dtype
        made = torch.stack([torch.scalar_tensor(each, dtype=kind, device=settings["device"]) for each in flat])
        return made if isinstance(value, list) else made[0]


def outputs_of(found: Tensor | dict[str, Tensor]) -> list[Tensor]:
    """What a network gave, in the order of the file."""
    return [found] if isinstance(found, Tensor) else list(found.values())


def parameters(inputs: Sequence[Port]) -> list[str]:
    """What the forward pass calls its inputs: by their names in the file, as far as Python has such names."""
    names: list[str] = []
    for place, port in enumerate(inputs):
        usable = port.name.isidentifier() and port.name.isascii() and port.name not in (*names, "self")
        names.append(port.name if usable else f"input{place}")
    return names


def with_parameters(network: OnnxNetwork) -> OnnxNetwork:
    """The network, whose forward pass says how many inputs it has and what they are called: a trace asks that."""
    names = parameters(network.inputs)
    general = OnnxNetwork.forward
    own = types.FunctionType(general.__code__, general.__globals__, "forward", general.__defaults__, general.__closure__)
    kinds = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]
    own.__signature__ = inspect.Signature(kinds)  # type: ignore[attr-defined]
    network.__class__ = type("OnnxNetwork", (OnnxNetwork,), {"forward": own, "__module__": __name__})
    return network
