"""What a file calls its inputs and outputs, and which of their sizes are free: kept from the file that a network came from, so
that the file that is made of it can stand in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gdws.core.errors import GdwsError
from gdws.core.inputs import Inputs, tensors_of
from gdws.deploy.interface import IMAGES, LOGITS
from gdws.deploy.packages import require

_SIGNATURE = "gdws_signature"


@dataclass(frozen=True)
class Port:
    """One input or output.

    name   in the file.
    dtype  of its values, as numpy calls it: "float32", "int64", ...
    shape  its sizes; a dynamic axis is a name, such as "batch", or None where the file has none for it. Empty where the file
           does not even say how many there are.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a file, in its order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def signature_of(model: nn.Module) -> Signature | None:
    """That of the file that a network came from; None for one that came from none."""
    found = getattr(model, _SIGNATURE, None)
    return found if isinstance(found, Signature) else None


def attach_signature(model: nn.Module, signature: Signature) -> None:
    setattr(model, _SIGNATURE, signature)


def signature_in(proto: Any) -> Signature:
    """That of an onnx.ModelProto. An input or output that is no tensor has the dtype of its kind, such as "sequence"."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = tuple(_port(value) for value in proto.graph.input if value.name not in weights)
    return Signature(inputs, tuple(map(_port, proto.graph.output)))


def is_classifier_file(signature: Signature) -> bool:
    """Whether gdws.to_onnx wrote it of a classifier: it takes images in [0, 1]."""
    return [port.name for port in (*signature.inputs, *signature.outputs)] == [IMAGES, LOGITS]


def match_ports(inputs: Inputs, ports: Sequence[Port]) -> list[int]:
    """For each input of a file the index of its tensor: the one of its name or, of those whose names it has not, the next.

    Raises GdwsError when there are more tensors or fewer than inputs.
    """
    tensors = tensors_of(inputs)
    if len(tensors) != len(ports):
        shown = ", ".join(port.name for port in ports)
        raise GdwsError(f"the network takes {len(ports)} tensors ({shown}) and was given {len(tensors)}: expected as many")
    own = {} if isinstance(inputs, Tensor) else {name: index for index, name in enumerate(inputs.names)}
    known = {port.name for port in ports}
    others = iter([index for index in range(len(tensors)) if index not in {own.get(name) for name in known}])
    return [own[port.name] if port.name in own else next(others) for port in ports]


def arrange(inputs: Inputs, ports: Sequence[Port]) -> list[Tensor]:
    """The tensors of inputs as a file takes them: in its order, on the CPU, floats and whole numbers in its types."""
    tensors = tensors_of(inputs)
    return [_converted(tensors[index], port) for index, port in zip(match_ports(inputs, ports), ports, strict=True)]


def wrong_shape(inputs: Inputs, ports: Sequence[Port]) -> GdwsError | None:
    """What to say of inputs that are not of the shapes that a file takes."""
    tensors = tensors_of(inputs)
    for index, port in zip(match_ports(inputs, ports), ports, strict=True):
        given = tensors[index].shape
        if port.shape and (
            len(given) != len(port.shape) or any(_differ(*pair) for pair in zip(given, port.shape, strict=True))
        ):
            what = "images have" if isinstance(inputs, Tensor) else f"{port.name} has"
            shown = tuple(_shown(axis, size) for axis, size in enumerate(port.shape))
            return GdwsError(f"{what} shape {tuple(given)}: expected {shown}")
    return None


def _shown(axis: int, size: int | str | None) -> int | str:
    return size if isinstance(size, int) else "B" if axis == 0 else size or "?"


def _differ(given: int, size: int | str | None) -> bool:
    return isinstance(size, int) and size != given


def _converted(value: Tensor, port: Port) -> Tensor:
    wanted = getattr(torch, port.dtype)
    value = value.detach().cpu()
    if value.dtype == wanted:
        return value.contiguous()
    if value.is_floating_point() == wanted.is_floating_point:
        found = value.to(wanted)
        if wanted.is_floating_point or torch.equal(found.to(value.dtype), value):
            return found.contiguous()
    raise GdwsError(f"{port.name} is of {value.dtype}: expected values of {port.dtype}")


def _port(value: Any) -> Port:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return Port(value.name, (kind or "nothing").removesuffix("_type"), ())
    tensor, sizes = value.type.tensor_type, list[int | str | None]()
    names = {number: name.lower() for name, number in require("onnx").TensorProto.DataType.items()}
    dtype = {"float": "float32", "double": "float64"}.get(found := names.get(tensor.elem_type, "undefined"), found)
    for size in tensor.shape.dim:
        sizes.append(size.dim_value if size.dim_value > 0 else size.dim_param or None)  # some exporters write -1 for any
    return Port(value.name, dtype, tuple(sizes))
