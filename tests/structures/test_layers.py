"""GDWSConv2d against the dense convolution that its factors stand for, summed up kernel by kernel here."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.flop_counter import FlopCounterMode

from gdws.core.errors import GdwsError
from gdws.structures.layers import GDWSConv2d
from gdws.structures.mego_lego import Factors

ONCE = "every channel once"
KERNELS = st.one_of(st.integers(0, 7), st.just(ONCE))


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny: more threads only wait for each other
    yield
    torch.set_num_threads(threads)


def make(conv, channels, seed=0):
    """Random factors; conv gets the weight that they stand for. Their layer must then agree with conv."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(conv.weight)

    channels = torch.tensor(channels, dtype=torch.int64)
    per_group, width = len(channels) // conv.groups, conv.out_channels // conv.groups
    g = torch.bincount(channels, minlength=conv.in_channels)
    depthwise, pointwise = randn(len(channels), *conv.kernel_size), randn(conv.out_channels, per_group)
    factors = Factors(g, channels, depthwise, pointwise, groups=conv.groups)
    weight = torch.zeros_like(conv.weight)
    for k, channel in enumerate(channels.tolist()):
        group, column = divmod(k, per_group)
        rows, local = slice(group * width, group * width + width), channel % weight.shape[1]
        weight[rows, local] += pointwise[rows, column, None, None] * depthwise[k]
    conv.weight.data.copy_(weight)
    if conv.bias is not None:
        conv.bias.data.copy_(randn(conv.out_channels))
    return GDWSConv2d.from_factors(factors, conv), factors


def pairs(low, high):
    return st.tuples(st.integers(low, high), st.integers(low, high))


def every_padding(test):
    """Each mode and kind of padding by name: left to chance, some pairs of the two hardly ever come up."""
    test = pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])(test)
    test = pytest.mark.parametrize("kind", ["numbers", "same", "valid"])(test)
    # PyTorch says so of the dense convolution too.
    return pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")(test)


@st.composite
def cases(draw, mode="zeros", kind="numbers", per_group=KERNELS):
    """A dense float64 convolution, its GDWS layer, their factors, and an input: any geometry, g_c = 0 too."""
    groups, width = draw(st.sampled_from([1, 1, 2, 3, 4])), draw(st.integers(1, 4))
    kernel, dilation = draw(pairs(1, 4)), draw(pairs(1, 3))
    padding = draw(pairs(0, 3)) if kind == "numbers" else kind
    stride = (1, 1) if padding == "same" else draw(pairs(1, 3))
    inputs, outputs = groups * width, groups * draw(st.integers(1, 4))
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, draw(st.booleans()), mode)
    conv, kernels = conv.double(), draw(per_group)
    channels = list(range(inputs))
    if kernels != ONCE:
        choice = st.lists(st.integers(0, width - 1), min_size=kernels, max_size=kernels).map(sorted)
        channels = [group * width + channel for group in range(groups) for channel in draw(choice)]
    seed = draw(st.integers(0, 2**31))
    layer, factors = make(conv, channels, seed)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    height, breadth = (max(r, 3) + extra for r, extra in zip(reach, draw(pairs(1, 6)), strict=True))
    generator = torch.Generator().manual_seed(seed + 1)
    batch = draw(st.sampled_from([(), (1,), (3,)]))
    x = torch.randn(*batch, inputs, height, breadth, dtype=torch.float64, generator=generator)
    return conv, layer, factors, x


def close(given, truth, limit=1e-10):
    assert (given.shape, given.dtype) == (truth.shape, truth.dtype)
    assert float((given - truth).detach().norm()) <= limit * (1 + float(truth.detach().norm()))


@every_padding
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_forward_is_the_dense_convolution(mode, kind, data):
    conv, layer, factors, x = data.draw(cases(mode, kind))
    close(factors.dense(), conv.weight)
    close(layer(x), conv(x))
    assert torch.equal(layer.g, factors.g)


@every_padding
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_without_kernels_the_output_is_the_bias(mode, kind, data):
    conv, layer, _, x = data.draw(cases(mode, kind, st.just(0)))
    truth = conv(x)
    assert torch.equal(layer(x), truth)
    constant = torch.zeros(conv.out_channels) if conv.bias is None else conv.bias.detach()
    assert torch.equal(truth, constant.double()[:, None, None].expand_as(truth))


@settings(max_examples=50, deadline=None)
@given(cases(per_group=st.just(ONCE)))
def test_every_channel_once_gathers_nothing(case):
    conv, layer, _, x = case
    layer.channels.fill_(-1)  # reading it would be an error
    close(layer(x), conv(x))


@every_padding
@settings(max_examples=20, deadline=None)
@given(st.data())
def test_gradients_are_the_dense_ones_by_the_chain_rule(mode, kind, data):
    conv, layer, factors, x = data.draw(cases(mode, kind))
    for leaf in (x, factors.depthwise, factors.pointwise):
        leaf.requires_grad_()
    truth = torch.func.functional_call(conv, {"weight": factors.dense()}, (x,))
    upstream = torch.randn(truth.shape, generator=torch.Generator().manual_seed(7), dtype=truth.dtype)
    truth.backward(upstream)
    ours = x.detach().clone().requires_grad_()
    layer(ours).backward(upstream)
    close(ours.grad, x.grad)
    if conv.bias is not None:
        close(layer.bias.grad, conv.bias.grad)
    if len(factors.channels):
        close(layer.depthwise.grad[:, 0], factors.depthwise.grad)
        close(layer.pointwise.grad[:, :, 0, 0], factors.pointwise.grad)


@pytest.mark.parametrize("channels", [[0, 0, 2, 3], [0, 1, 2, 3], []])
@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_gradcheck(channels, mode):
    conv = nn.Conv2d(4, 4, (3, 2), (1, 2), (1, 0), groups=2, padding_mode=mode, dtype=torch.float64)
    layer, _ = make(conv, channels)
    names, values = zip(*layer.named_parameters(), strict=True)

    def function(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    x = torch.randn(2, 4, 5, 4, dtype=torch.float64, requires_grad=True)
    kept = [value.detach().clone().requires_grad_(value.numel() > 0) for value in values]
    assert torch.autograd.gradcheck(function, (x, *kept))


def example(channels=(0, 0, 1, 3), seed=0, **options):
    """A float32 layer of four channels, and its dense convolution."""
    torch.manual_seed(seed)
    conv = nn.Conv2d(4, 6, 3, **{"padding": 1, **options})
    return make(conv, channels, seed)[0].eval(), conv.eval()


@pytest.mark.parametrize("channels", [(0, 0, 1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("other", [(0, 1, 2, 3), (1, 1, 1, 1), (0, 0, 1, 3)])
@pytest.mark.parametrize("assign", [False, True])
def test_state_dict_round_trip_carries_the_channels(channels, other, assign):
    source, conv = example(channels)
    target = nn.Sequential(GDWSConv2d.like(conv, torch.tensor(other)))
    target.load_state_dict(nn.Sequential(source).state_dict(), assign=assign)
    x = torch.randn(2, 4, 6, 5)
    assert torch.equal(target(x), source(x))
    assert torch.equal(target[0].channels, source.channels)


@pytest.mark.parametrize("channels", [[3, 2, 1, 0], [0, 1, 2, 4], [-1, 0, 1, 2]])
def test_malformed_channels_are_refused_on_load(channels):
    state = example()[0].state_dict() | {"channels": torch.tensor(channels)}
    with pytest.raises(GdwsError, match="expected ascending input channels below 4"):
        example((0, 1, 2, 3))[0].load_state_dict(state)


def test_deepcopy_stands_alone():
    layer, conv = example()
    twin, x = copy.deepcopy(layer), torch.randn(2, 4, 6, 5)
    twin.load_state_dict(example((0, 1, 2, 3))[0].state_dict())
    close(layer(x), conv(x), 1e-5)
    close(twin(x), example((0, 1, 2, 3))[1](x), 1e-5)


@pytest.mark.parametrize("channels", [(0, 0, 1, 3), (0, 1, 2, 3), ()])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_close(channels, dtype):
    layer, _ = example(channels)
    x = torch.randn(2, 4, 6, 5)
    half = copy.deepcopy(layer).to(dtype)
    assert half.channels.dtype == torch.int64
    assert half(x.to(dtype)).dtype == dtype
    close(half(x.to(dtype)).float(), layer(x), 4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("options", [{}, {"padding_mode": "reflect"}, {"stride": 2, "groups": 2}])
@pytest.mark.parametrize("channels", [(0, 0, 2, 3), (0, 1, 2, 3), ()])
def test_channels_last_gives_the_same_numbers(channels, options):
    (layer, conv), x = example(channels, **options), torch.randn(2, 4, 7, 6)
    for module in (layer, copy.deepcopy(layer).to(memory_format=torch.channels_last)):
        close(module(x.to(memory_format=torch.channels_last)), conv(x), 1e-5)


captured = pytest.mark.parametrize(
    ("channels", "options"),
    [
        ((0, 0, 2, 3), {"groups": 2, "stride": 2}),
        ((0, 1, 2, 3), {"padding": "same"}),
        ((0, 0, 1), {"padding_mode": "reflect"}),
        ((), {"padding_mode": "circular", "bias": False}),
        ((), {"stride": 2, "dilation": 2}),
    ],
)


@captured
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_makes_one_graph(channels, options, dynamic):
    layer, conv = example(channels, **options)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter, dynamic=dynamic)
    for batch in (2, 5, 7) if dynamic else (2,):
        x = torch.randn(batch, 4, 9, 8, requires_grad=True)
        truth, ours = conv(x), compiled(x)
        close(ours, truth, 1e-5)
        close(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, truth)), 1e-5)
    assert counter.frame_count == 1


@captured
def test_export_with_a_dynamic_batch(channels, options):
    layer, conv = example(channels, **options)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(layer, (torch.randn(3, 4, 9, 8),), dynamic_shapes=({0: batch},))
    for size in (1, 3, 8):
        x = torch.randn(size, 4, 9, 8)
        close(program.module()(x), conv(x), 1e-5)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_flops_are_those_of_the_formula(case):
    conv, layer, factors, x = case
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        y = layer(x if x.ndim == 4 else x[None])
    batch, outputs, height, width = y.shape
    taps = conv.kernel_size[0] * conv.kernel_size[1]
    per_image = height * width * len(factors.channels) * (taps + outputs // conv.groups)
    assert counter.get_total_flops() == 2 * batch * per_image


@pytest.mark.parametrize("training", [True, False])
def test_like_copies_what_the_convolution_is(training):
    conv = nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), 2, padding_mode="reflect").half().train(training)
    layer = GDWSConv2d.like(conv, torch.tensor([0, 3]))
    assert layer.training is training
    for name in ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"):
        assert getattr(layer, name) == getattr(conv, name)
    assert layer.depthwise.dtype == layer.pointwise.dtype == torch.float16
    assert torch.equal(layer.bias, conv.bias)
    assert layer.bias.data_ptr() != conv.bias.data_ptr()
    assert "kernels=2" in repr(layer)
    x = torch.randn(2, 4, 6, 5).half()
    assert torch.equal(layer(x), conv.bias[:, None, None].expand_as(conv(x)))


@pytest.mark.parametrize(
    "conv", [nn.Conv2d(4, 5, 3), nn.Conv2d(5, 6, 3), nn.Conv2d(4, 6, (3, 1)), nn.Conv2d(4, 6, 3, groups=2)]
)
def test_factors_of_another_convolution_are_refused(conv):
    _, factors = make(nn.Conv2d(4, 6, 3), [0, 0, 1, 3])
    with pytest.raises(GdwsError, match=r"= \(6, 4, 1, 3, 3\): expected \("):
        GDWSConv2d.from_factors(factors, conv)


@pytest.mark.parametrize(
    ("channels", "groups", "words"),
    [
        (torch.tensor([0, 1, 2]), 2, "G a multiple of 2"),
        (torch.tensor([0.0, 1.0]), 1, r"float32 \(2,\): expected int64"),
        (torch.tensor([[0, 1]]), 1, r"int64 \(1, 2\): expected int64 \(G,\)"),
        (torch.tensor(1), 1, r"int64 \(\): expected int64 \(G,\)"),
        (torch.tensor([1, 0]), 1, "ascending"),
        (torch.tensor([0, 4]), 1, "below 4"),
        (torch.tensor([0, 1]), 2, "1 for each of 2 groups"),
        (torch.tensor([0, 0, 0, 2]), 2, "2 for each of 2 groups"),
    ],
)
def test_bad_channels_are_named(channels, groups, words):
    with pytest.raises(GdwsError, match=words):
        GDWSConv2d(4, 6, (3, 3), channels, groups=groups)
