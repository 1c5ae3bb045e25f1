"""A model through torch.compile with autotuned kernels, as a CUDA graph: minutes to build, for large float16 batches.

torch.compile fuses what stands between convolutions, and with max_autotune it times kernels of its own beside the libraries'.
It gets a graph of which it makes most (gdws.deploy.fx): BatchNorm folded, the first convolution's channels padded to a
tensor-core tile, several columns computed per 1 x k kernel, and what follows a factorized pair written so that it is fused into
the pair's own kernels. All other convolutions are left to cuDNN, whose kernels have a ReLU in them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn import functional as F

from gdws.core.checks import unpack_batch
from gdws.core.errors import GdwsError, first_line
from gdws.core.execution import at_least_float32, evaluating, full_precision, placement
from gdws.core.progress import track
from gdws.deploy.fx.fold_batchnorm import fold_into_next, fold_into_previous, split_into_scale_and_shift
from gdws.deploy.fx.fuse_epilogues import fuse_epilogues
from gdws.deploy.fx.graph import convolution_arguments, functional_graph, only_reader
from gdws.deploy.fx.pad_channels import pad_channels, to_tile
from gdws.deploy.fx.widen_columns import widen_columns
from gdws.deploy.graphed_model import TYPES, GraphedModel, check_graphed
from gdws.deploy.inductor import MAX_AUTOTUNE, available, back_to_back_timing
from gdws.deploy.tracing import trace_model

aten = torch.ops.aten
BATCHES = 8
"""Sizes of batches that torch.compile takes for one network."""
SCHEMA = "(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, int groups, bool relu) -> Tensor"
FAR = {"float32": 1e-3, "float16": 1e-2}
"""How far logits may lie from float32's, as a part of their norm. A wrong kernel is much further off, and there have been some:
torch.compile's for convolutions, with eight warps, before PyTorch 2.13."""


def autotune(model: nn.Module, example: Tensor, precision: str = "float16") -> GraphedModel:
    """A copy of a model on a GPU, for images like those of `example` (B, C, H, W), compiled for batches of B.

    Batches of other sizes, eight sizes in all, are compiled anew. Its logits on the example are checked against the model's.
    The model must be one that torch.export traces for a batch of any size, as for ONNX: with x.shape[0] in it, not len(x).
    """
    if precision not in TYPES:
        raise GdwsError(f"precision is {precision!r}: expected {' or '.join(TYPES)}")
    images, _ = unpack_batch(example)
    device, _ = placement(model)
    if device.type != "cuda":
        raise GdwsError(f"the model is on {device}: expected a CUDA device, whose kernels torch.compile tries out")
    made = prepare_graph(model, images, device, TYPES[precision])
    run = GraphedModel(FixedSize(torch_compile(made, available(MAX_AUTOTUNE)), images.shape[1:]), torch.channels_last)
    try:
        for _ in track(range(3), "torch.compile tries kernels (minutes)"):  # the third call is recorded
            logits = run(images.to(device, TYPES[precision]))
    except Exception as error:
        raise GdwsError(f"torch.compile cannot make the model: {first_line(error)}") from error
    check_graphed([run])
    original = at_least_float32(model)
    with evaluating(original), full_precision(), torch.no_grad():
        check_logits(logits, original(images.to(*placement(original))), precision)
    return run


class FixedSize(nn.Module):
    """A compiled network, for images (B, *size), of at most BATCHES different B."""

    def __init__(self, network: nn.Module, size: Sequence[int]) -> None:
        super().__init__()
        self.network, self.size, self.batches = network, tuple(size), set[int]()

    def forward(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self.size:
            raise GdwsError(f"the images are {tuple(images.shape)}: expected (batch, {', '.join(map(str, self.size))})")
        logits: Tensor
        if len(images) in self.batches:
            logits = self.network(images)
            return logits
        if len(self.batches) == BATCHES:
            sizes = ", ".join(map(str, sorted(self.batches)))
            raise GdwsError(f"the batch has {len(images)} images: expected one of {sizes}, since no more sizes are compiled")
        with back_to_back_timing():
            logits = self.network(images)
        self.batches.add(len(images))
        return logits


def check_logits(found: Tensor, wanted: Tensor, precision: str) -> None:
    """Refuse logits in this precision that are not those of the model."""
    error = float((found.double() - wanted.double()).norm() / wanted.double().norm())
    if not error <= FAR[precision]:
        raise GdwsError(
            f"the logits in {precision} are {error:.1e} of their norm off the model's: expected at most {FAR[precision]:g}"
        )


def torch_compile(model: nn.Module, options: Mapping[str, Any] | None = None) -> nn.Module:
    """The model through torch.compile, whole: `model.compile()` leaves out a root that is PyTorch's own, such as Sequential.

    What has been traced before must be one graph again.
    """
    made = torch.compile(model, options=dict(options or {}), dynamic=False, fullgraph=isinstance(model, GraphModule))
    assert isinstance(made, nn.Module)
    return made


def prepare_graph(
    model: nn.Module, example: Tensor, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> GraphModule:
    """A copy in eval mode, as torch.compile with MAX_AUTOTUNE makes most of it, on a device and in a type.

    It computes the same, for images of example's size. What the model makes in float32 is made in this type, on this device.
    """
    network = functional_graph(trace_model(copy.deepcopy(model), example))  # which shares its weights, and they will be moved
    fold_into_previous(network)
    fold_into_next(network)
    split_into_scale_and_shift(network)
    pad_channels(network)
    convs = network.graph.find_nodes(op="call_function", target=aten.conv2d.default)
    compiled = [conv for conv in convs if _is_left_to_torch_compile(conv)]
    for conv in convs:
        if conv not in compiled:
            _give_to_cudnn(network, conv)
    fuse_epilogues(network, compiled)
    widen_columns(network)
    for node in network.graph.nodes:
        _move(node, device, dtype)
    network.graph.eliminate_dead_code()
    network.graph.lint()
    made = GraphModule(network, network.graph).eval().requires_grad_(False)
    return made.to(device, dtype)


def _move(node: Node, device: torch.device | str, dtype: torch.dtype) -> None:
    """Have what a call makes on the CPU and in float32, where the network was traced, made elsewhere."""
    if node.kwargs.get("device") is not None:
        node.update_kwarg("device", torch.device(device))
    if node.kwargs.get("dtype") == torch.float32:
        node.update_kwarg("dtype", dtype)


@torch.library.custom_op("gdws::conv2d", mutates_args=(), schema=SCHEMA)
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    relu: bool,
) -> Tensor:
    """A convolution that torch.compile leaves to cuDNN; in float16 on a GPU the ReLU is in its kernel."""
    if not relu:
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    if x.is_cuda and x.dtype == torch.float16 and bias is not None and groups == 1:
        fused: Tensor = torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, groups)
        return fused
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups).relu_()


@conv2d.register_fake
def _(*arguments: Any) -> Tensor:
    *convolution, _ = arguments  # a ReLU does not change what torch.compile must know
    return F.conv2d(*convolution)


def _is_left_to_torch_compile(conv: Node) -> bool:
    """Whether torch.compile is to choose the kernel: of products, of both convolutions of pairs, and of what was padded.

    Of all others cuDNN has better ones.
    """
    source, weight = conv.all_input_nodes[:2]
    is_first = all(user.target is aten.conv2d.default for user in conv.users)
    is_second = source.target is aten.conv2d.default
    return is_first or is_second or source.target is to_tile or weight.meta["val"].shape[2:].numel() == 1


def _give_to_cudnn(network: GraphModule, conv: Node) -> None:
    relu = only_reader(conv, aten.relu.default)
    last = conv if relu is None else relu
    arguments = convolution_arguments(conv)
    with network.graph.inserting_before(last):
        node = network.graph.call_function(torch.ops.gdws.conv2d.default, (*arguments, relu is not None))
    node.meta["val"] = last.meta["val"]
    last.replace_all_uses_with(node)
    for done in (relu, conv):
        if done is not None:
            network.graph.erase_node(done)
