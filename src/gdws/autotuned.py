"""A model through torch.compile with kernels that were tried out, as a CUDA graph: minutes to make, for large float16 batches.

torch.compile joins what stands between convolutions, and with max_autotune it times kernels of its own beside the libraries'.
It is given a graph of which it makes most: BatchNorm folded (gdws.folding), the channels of the first convolution filled up to
a block, pairs of convolutions on rows of pixels (gdws.rows), so that their own kernels do what follows them, and all others in
cuDNN's kernels, which have a ReLU in them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn import functional as F

from gdws.contract import evaluating, full_precision, placement, unpack
from gdws.errors import GdwsError, first_line
from gdws.export import traced
from gdws.folding import convolution_arguments, fold_ahead, fold_back, functional, only_reader, scale_and_shift
from gdws.progress import track
from gdws.recorded import TYPES, Recorded, check_recorded
from gdws.rows import JOINING, as_rows, is_on_rows, on_rows, placed
from gdws.surgery import replace

aten = torch.ops.aten
OPTIONS = {"coordinate_descent_tuning": True}
"""Of torch.compile: the kernels between convolutions are tuned."""
TRIED = {**OPTIONS, "max_autotune": True, "autotune_num_choices_displayed": 0}
"""The same, with kernels for convolutions tried out."""
BLOCK = 16
"""Channels that the smallest kernels work on together."""
SCHEMA = "(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, int groups, bool relu) -> Tensor"
FAR = {"float32": 1e-3, "float16": 1e-2}
"""How far logits may lie from float32's, as a part of their norm. A wrong kernel is much further off, and there have been some:
torch.compile's for convolutions, with eight warps, before PyTorch 2.13."""


def autotuned(model: nn.Module, example: Tensor, precision: str = "float16") -> Recorded:
    """A copy of a model on a GPU, for images like those of `example` (B, C, H, W), compiled for batches of B.

    Batches of other sizes, up to eight, are compiled anew. Its logits on the example are checked against the model's.
    """
    if precision not in TYPES:
        raise GdwsError(f"precision is {precision!r}: expected {' or '.join(TYPES)}")
    images, _ = unpack(example)
    device, dtype = placement(model)
    if device.type != "cuda":
        raise GdwsError(f"the model is on {device}: expected a CUDA device, whose kernels torch.compile tries out")
    made, options = prepared(model, images)
    run = Recorded(compiled(made.to(device, TYPES[precision]), {**TRIED, **options}), torch.channels_last)
    try:
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):  # beyond it, things would run without torch.compile
            for _ in track(range(3), "torch.compile tries kernels (minutes)"):  # the third call is recorded
                logits = run(images.to(device, TYPES[precision]))
    except Exception as error:
        raise GdwsError(f"torch.compile cannot make the model: {first_line(error)}") from error
    check_recorded([run])
    with evaluating(model), full_precision(), torch.no_grad():
        check_logits(logits, model(images.to(device, dtype)), precision)
    return run


def check_logits(found: Tensor, wanted: Tensor, precision: str) -> None:
    """Refuse logits in this precision that are not those of the model."""
    error = float((found.double() - wanted.double()).norm() / wanted.double().norm())
    if not error <= FAR[precision]:
        raise GdwsError(
            f"what torch.compile made in {precision} is {error:.1e} of the logits off: expected at most {FAR[precision]:g}"
        )


def compiled(model: nn.Module, options: Mapping[str, Any] | None = None) -> nn.Module:
    """The model through torch.compile, whole: `model.compile()` leaves out a root that is PyTorch's own, such as Sequential.

    What has been traced before must be one graph again.
    """
    made = torch.compile(model, options=dict(options or {}), dynamic=False, fullgraph=isinstance(model, GraphModule))
    assert isinstance(made, nn.Module)
    return made


def prepared(model: nn.Module, example: Tensor) -> tuple[GraphModule, dict[str, Any]]:
    """A copy on the CPU, in eval mode and float32, as torch.compile makes most of it; and the options for that.

    It computes the same, for images of example's size; types that the model names in its code stay what they are.
    """
    network = functional(traced(filled(model), example))
    fold_back(network)
    fold_ahead(network)
    scale_and_shift(network)
    for node in network.graph.find_nodes(op="call_function", target=aten.cat.default):
        if node.meta["val"].ndim == 4 and only_reader(node, aten.permute.default):  # the channels of Filled
            with network.graph.inserting_after(node):
                after = network.graph.call_function(placed, (node,))
            node.replace_all_uses_with(after, lambda user, after=after: user is not after)
    joined = on_rows(network)
    for node in network.graph.find_nodes(op="call_function", target=aten.conv2d.default):
        if not _is_torch_compiles(node):
            _give_to_cudnn(network, node)
    network.graph.eliminate_dead_code()
    network.graph.lint()
    return GraphModule(network, network.graph).eval().requires_grad_(False), JOINING if joined else {}


class Filled(nn.Module):
    """A convolution of few channels as one of a whole block, some of them zeros: three channels make unaligned reads.

    Where they fit into the block its vertical taps become channels first, so that k x k of three channels, nine then, is 1 x k:
    a third of the work, and something that can run on rows (gdws.rows).
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        height, width = conv.kernel_size
        left, right, *self.margins = conv._reversed_padding_repeated_twice
        stacks = 1 < height <= BLOCK // conv.in_channels and conv.padding_mode == "zeros" and left == right
        self.taps = height if stacks else 1
        self.stride, self.dilation = conv.stride[0], conv.dilation[0]
        self.missing = BLOCK - conv.in_channels * self.taps
        weight = conv.weight.detach()
        self.conv = copy.deepcopy(conv)
        self.conv.in_channels = BLOCK
        if stacks:
            weight = weight.transpose(1, 2).reshape(len(weight), -1, 1, width)
            self.conv.kernel_size, self.conv.padding = (1, width), (0, left)
            self.conv.stride, self.conv.dilation = (1, conv.stride[1]), (1, conv.dilation[1])
        self.conv.weight = nn.Parameter(F.pad(weight, (0, 0, 0, 0, 0, self.missing)), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.permute(0, 2, 3, 1)  # in the order of channels-last memory, in which torch.compile is to write them
        if self.taps > 1:
            pixels = F.pad(pixels, (0, 0, 0, 0, *self.margins))
        reach = pixels.shape[1] - self.dilation * (self.taps - 1)
        stride = self.stride if self.taps > 1 else 1
        parts = [pixels[:, tap * self.dilation :][:, :reach:stride] for tap in range(self.taps)]
        zeros = x.new_zeros(*parts[0].shape[:3], self.missing)
        y: Tensor = self.conv(torch.cat([*parts, zeros], 3).permute(0, 3, 1, 2))
        return y


def filled(model: nn.Module) -> nn.Module:
    """A copy in eval mode whose convolutions have at least as many channels as the smallest block; grouped ones stay."""
    made = copy.deepcopy(model).eval()
    convs = [module for module in made.modules() if type(module) is nn.Conv2d and not _hooked(module)]
    replace(made, {conv: Filled(conv) for conv in convs if conv.groups == 1 and conv.in_channels < BLOCK})
    return made


def _hooked(module: nn.Module) -> bool:
    """Whether something happens around it, such as the computing of its weights."""
    return bool(module._forward_pre_hooks or module._forward_hooks)


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
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    relu: bool,
) -> Tensor:
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


def _is_torch_compiles(conv: Node) -> bool:
    """Whether torch.compile is to choose the kernel: of products, of what is on rows, and of what convolutions alone read.

    In all others it would put what follows into a kernel of its own, which is slow on images (gdws.rows).
    """
    _, _, height, width = conv.all_input_nodes[1].meta["val"].shape
    read_by_convolutions = all(user.target in (aten.conv2d.default, as_rows) for user in conv.users)
    return height == width == 1 or is_on_rows(conv) or read_by_convolutions


def _give_to_cudnn(network: GraphModule, conv: Node) -> None:
    relu = only_reader(conv, aten.relu.default)
    last = conv if relu is None else relu
    arguments = convolution_arguments(conv)
    with network.graph.inserting_before(last):
        node = network.graph.call_function(torch.ops.gdws.conv2d.default, (*arguments, relu is not None))
    node.meta["val"] = last.meta["val"]
    last.replace_all_uses_with(node)
