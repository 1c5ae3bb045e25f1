"""Extreme weights, images, geometries, budgets and counts against float64, brute force and scipy."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from random import Random

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

import gdws
from chaos import material, tiny
from chaos.case import Case, Family, Wrong
from gdws.attacks import PGD
from gdws.core import significance
from gdws.errors import GdwsError
from gdws.planning.knapsack import allocate
from gdws.structures import STRUCTURES
from gdws.structures.layers import GDWSConv2d, TwoStageConv2d
from gdws.structures.metric import add_ridge, loss

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def families() -> list[Family]:
    return [
        Family(f"numeric/{name}", count, functools.partial(_attempt, work), short=5) for name, (work, count) in WORKS.items()
    ]


def _attempt(work, case: Case) -> None:
    generator = torch.Generator().manual_seed(case.random.getrandbits(60))
    told = work(case.random, generator)
    case.tell(told[0])
    case.key = hashlib.sha256(told[0].encode()).hexdigest()
    told[1]()


def _weight(random: Random, generator: torch.Generator, groups: int = 1) -> tuple[Tensor, str]:
    """Anywhere between the smallest and the largest numbers of a type; of full rank, low rank, with zeros or equal values."""
    dtype = random.choice(FLOATS)
    info = torch.finfo(dtype)
    outputs, inputs = groups * random.choice((1, 2, 3, 8)), random.choice((1, 2, 4, 5))
    shape = (outputs, inputs, *random.choice(((1, 1), (3, 3), (3, 3), (1, 5), (2, 3), (5, 5))))
    base = torch.randn(shape, generator=generator, dtype=torch.float64)
    kind = random.choice(("full", "full", "low", "zeros", "equal", "one", "spread"))
    if kind == "low":
        base = base[:, :, :1, :1] * base[:1, :, :, :]
    elif kind == "zeros":
        base *= torch.rand(shape, generator=generator) < 0.3
    elif kind == "equal":
        base = base.sign()
    elif kind == "one":
        base = base * 0
        base.view(-1)[random.randrange(base.numel())] = 1.0
    elif kind == "spread":
        base *= 10.0 ** torch.linspace(-8, 0, inputs, dtype=torch.float64)[:, None, None]
    low, high = math.log10(info.tiny * 2**-8 if dtype != torch.float16 else 6e-8), math.log10(info.max)
    exponent = random.choice((0.0, 0.0, low, high, random.uniform(low, high)))
    largest = float(base.abs().max()) or 1.0
    exponent = min(exponent, 308.25)
    weight = (base / largest * 10.0**exponent).clamp(-info.max, info.max).to(dtype)
    return weight, f"{kind} {dtype} {shape} of {10.0**exponent:.3g}"


def _alpha(random: Random, generator: torch.Generator, channels: int) -> tuple[Tensor | None, str]:
    kind = random.choice(("none", "none", "ones", "spread", "some zero", "all zero", "huge", "tiny"))
    values = torch.rand(channels, generator=generator, dtype=torch.float64) + 0.1
    made = {"none": None, "ones": values * 0 + 1, "spread": 10 ** (20 * values - 10), "some zero": values * (values > 0.6), "all zero": values * 0, "huge": values * 1e30, "tiny": values * 1e-30}  # fmt: skip
    return made[kind], kind


def _gains(weight: Tensor, alpha: Tensor | None, groups: int) -> tuple[np.ndarray, float]:
    """alpha_c sigma_ic^2 of the weight over its largest number, by group; and that number. By numpy, in float64."""
    largest = float(weight.double().abs().max())
    scaled = weight.double().numpy() / (largest or 1.0)
    outputs, inputs = weight.shape[:2]
    found = []
    for group, block in enumerate(scaled.reshape(groups, outputs // groups, inputs, -1)):
        for channel in range(inputs):
            sigma = np.linalg.svd(block[:, channel], compute_uv=False)
            own = 1.0 if alpha is None else float(alpha[group * inputs + channel])
            found.append(own * sigma**2)
    return np.stack(found).reshape(groups, inputs, -1), largest


def _left(weight: Tensor, factors: gdws.Factors, alpha: Tensor | None, largest: float) -> float:
    """The weighted squared error of factors, of the weight over its largest number."""
    parts = torch.float64
    whole = gdws.Factors(
        factors.g, factors.channels, factors.depthwise.to(parts), factors.pointwise.to(parts), groups=factors.groups
    )
    if not all(bool(part.isfinite().all()) for part in (factors.depthwise, factors.pointwise)):
        raise Wrong("the factors are not finite")
    # Half of the scale goes into each factor, so that a product of large ones stays a number.
    root = math.sqrt(largest) or 1.0
    whole = gdws.Factors(whole.g, whole.channels, whole.depthwise / root, whole.pointwise / root, groups=whole.groups)
    difference = whole.dense() - weight.double() / (largest or 1.0)
    by_channel = difference.view(factors.groups, -1, weight.shape[1], weight[0, 0].numel()).square().sum((1, 3)).flatten()
    return float((by_channel * (1.0 if alpha is None else alpha)).sum())


def mego(random: Random, generator: torch.Generator):
    groups = random.choice((1, 1, 1, 2))
    weight, told = _weight(random, generator, groups)
    alpha, kind = _alpha(random, generator, weight.shape[1] * groups)
    kernels = random.choice((0, 1, 2, 3, 5, 10, 50))

    def check() -> None:
        gains, largest = _gains(weight, alpha, groups)
        factors = _not_called_nan(lambda: gdws.mego(weight, alpha, kernels, groups))
        best = sum(np.sort(own.ravel())[::-1][kernels // groups :].sum() for own in gains)
        _compare_error(weight, factors, alpha, largest, best, gains)
        if int(factors.g.sum()) > kernels:
            raise Wrong(f"{int(factors.g.sum())} kernels: expected at most {kernels}")

    return f"mego {told}, alpha {kind}, {kernels} kernels, {groups} groups", check


def _not_called_nan(work):
    """Finite weights may be refused as too large or small, but not as what they are not."""
    try:
        return work()
    except GdwsError as error:
        if "NaN" in str(error):
            raise Wrong(f"finite numbers were refused as others: {error}") from None
        raise


def _compare_error(
    weight: Tensor, factors: gdws.Factors, alpha: Tensor | None, largest: float, best: float, gains: np.ndarray
) -> None:
    found, total = _left(weight, factors, alpha, largest), float(gains.sum())
    rounding = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-9}[weight.dtype]
    if found > best + rounding * total + 1e-300:
        raise Wrong(f"the factors lose {found:.6g} of {total:.6g}: expected {best:.6g}")
    scale = largest * largest
    told = 0 < scale < math.inf and 1e-290 < best * scale < math.inf
    if told and not math.isclose(factors.error, best * scale, rel_tol=1e-5, abs_tol=1e-6 * total * scale):
        raise Wrong(f"the error is said to be {factors.error:.6g}: expected {best * scale:.6g}")


def lego(random: Random, generator: torch.Generator):
    groups = random.choice((1, 1, 2))
    weight, told = _weight(random, generator, groups)
    alpha, kind = _alpha(random, generator, weight.shape[1] * groups)
    share = random.choice((0.0, 1e-12, 0.01, 0.1, 0.5, 1.0, 2.0))

    def check() -> None:
        gains, largest = _gains(weight, alpha, groups)
        total = float(gains.sum())
        beta = share * total * largest * largest
        if not math.isfinite(beta) or (share and total and beta < 1e-290):
            return  # what cannot be said in float64
        factors = _not_called_nan(lambda: gdws.lego(weight, alpha, beta, groups))
        bound = beta / (largest * largest) if largest * largest > 0 else 0.0
        ordered = [np.sort(own.ravel())[::-1] for own in gains]
        per_group = next(q for q in range(len(ordered[0]) + 1) if sum(own[q:].sum() for own in ordered) <= bound + 1e-6 * total)
        rounding = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-9}[weight.dtype]
        if _left(weight, factors, alpha, largest) > bound + (rounding + 1e-9) * total + 1e-300 and share > 0:
            raise Wrong(f"the factors lose more than the bound, {share} of all")
        least, found = per_group * groups, len(factors.channels)
        if share >= 0.01 and found > least:
            raise Wrong(f"{found} kernels: {least} are enough")

    return f"lego {told}, alpha {kind}, beta {share} of all, {groups} groups", check


def _convolution(random: Random, generator: torch.Generator) -> tuple[nn.Conv2d, Tensor, str]:
    groups = random.choice((1, 1, 2, 4))
    kernel = random.choice(((3, 3), (1, 1), (5, 5), (1, 3), (3, 1), (2, 2), (4, 3)))
    dilation = random.choice((1, 1, 2, (1, 3)))
    padding = random.choice((0, 1, 2, (0, 1), (2, 0), "same", "valid"))
    stride = 1 if padding == "same" else random.choice((1, 2, 3, (1, 2), 7))
    mode = random.choice(("zeros", "zeros", "zeros", "reflect", "replicate", "circular"))
    conv = nn.Conv2d(4, 8, kernel, stride, padding, dilation, groups, random.random() < 0.5, mode).double()
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    size = random.choice(((20, 20), (19, 33), (32, 23)))
    x = torch.randn(random.choice((1, 2)), 4, *size, generator=generator, dtype=torch.float64)
    return (
        conv,
        x,
        f"{kernel} stride {stride} padding {padding} dilation {dilation} groups {groups} {mode} {size} bias {conv.bias is not None}",
    )


def _by_loops(conv: nn.Conv2d, weight: Tensor, x: Tensor) -> Tensor:
    """The convolution from its definition, tap by tap, in float64."""
    padded = F.pad(
        x, conv._reversed_padding_repeated_twice, mode="constant" if conv.padding_mode == "zeros" else conv.padding_mode
    )
    (sy, sx), (dy, dx), (kh, kw) = conv.stride, conv.dilation, conv.kernel_size
    rows = (padded.shape[2] - dy * (kh - 1) - 1) // sy + 1
    columns = (padded.shape[3] - dx * (kw - 1) - 1) // sx + 1
    out = x.new_zeros(len(x), conv.out_channels, rows, columns)
    per_in, per_out = conv.in_channels // conv.groups, conv.out_channels // conv.groups
    for group in range(conv.groups):
        seen = padded[:, group * per_in : (group + 1) * per_in]
        own = weight[group * per_out : (group + 1) * per_out]
        for i, j in itertools.product(range(kh), range(kw)):
            tap = seen[:, :, i * dy : i * dy + sy * (rows - 1) + 1 : sy, j * dx : j * dx + sx * (columns - 1) + 1 : sx]
            out[:, group * per_out : (group + 1) * per_out] += torch.einsum("mc,bchw->bmhw", own[:, :, i, j], tap)
    return out if conv.bias is None else out + conv.bias[:, None, None]


def layers(random: Random, generator: torch.Generator):
    conv, x, told = _convolution(random, generator)
    kernels, kind = random.choice((0, 3, 8, 20, 500)), random.choice(("gdws", (0,), (1,), (), (0, 1)))
    rank = random.choice((1, 2, 5))

    @torch.no_grad()
    def check() -> None:
        if kind == "gdws":
            factors = gdws.mego(conv.weight, None, kernels, conv.groups)
            layer: nn.Module = GDWSConv2d.from_factors(factors, conv)
            weight = factors.dense()
        else:
            layer = TwoStageConv2d.like(conv, rank, kind)
            for parameter in (layer.first, layer.second):
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
            first = layer.first.view(conv.groups, rank, *layer.first.shape[1:])
            second = layer.second.view(conv.groups, -1, *layer.second.shape[1:])
            weight = torch.einsum("grcab,gmrde->gmcadbe", first, second)
            weight = weight.reshape(
                conv.out_channels, -1, *(n * m for n, m in zip(first.shape[3:], second.shape[3:], strict=True))
            )
        wanted, found = _by_loops(conv, weight, x), layer(x)
        if found.shape != wanted.shape or not torch.allclose(found, wanted, rtol=1e-9, atol=1e-9):
            raise Wrong(
                f"a layer gives {tuple(found.shape)}, by {float((found - wanted).abs().max()) if found.shape == wanted.shape else 0:.3g} other"
            )

    return f"layer {kind} {kernels if kind == 'gdws' else rank} for {told}", check


def curves(random: Random, generator: torch.Generator):
    """The losses that a curve promises are those of the layers that are built."""
    name = random.choice(sorted(STRUCTURES))
    outputs, inputs = random.choice((4, 8)), random.choice((2, 4))
    weight = torch.randn(outputs, inputs, 3, 3, generator=generator, dtype=torch.float64) * 10.0 ** random.choice((0, 0, -6, 6))
    patches, gradients = inputs * 9, outputs
    samples = random.choice((2, 20, 200))
    scale = 10.0 ** random.choice((0, 0, -12, -25, 12, 25))

    def moment(size: int) -> Tensor:
        rows = torch.randn(samples, size, generator=generator, dtype=torch.float64)
        if random.random() < 0.3:
            rows[:, : size // 2] = 0  # dead channels
        return add_ridge(scale * rows.T @ rows / samples, 1e-3)

    metric = moment(patches), moment(gradients)
    conv = nn.Conv2d(inputs, outputs, 3, bias=False).double()
    conv.weight.data.copy_(weight)

    def check() -> None:
        structure = STRUCTURES[name]
        if not structure.fits(conv):
            return
        curve = structure.curve(weight, metric)
        losses = curve.losses
        whole = loss(weight, weight * 0, *metric)
        if (
            not bool(losses.isfinite().all())
            or bool((losses.diff() > 1e-9 * whole).any())
            or bool((losses < -1e-6 * whole).any())
        ):
            raise Wrong(f"the curve is {losses[:6].tolist()}: expected finite numbers that do not rise")
        for size in [size for size in structure.sizes(curve) if size][:: max(1, len(losses) // 4)]:
            layer = structure.build(conv, structure.ranks([curve], size), [curve], [metric])
            found = loss(weight, _dense(layer, conv), *metric)
            if not found <= float(losses[size]) * 1.001 + 1e-5 * whole:
                raise Wrong(f"of size {size} loses {found:.6g} of {whole:.6g}: the curve says {float(losses[size]):.6g}")

    return f"curve {name} {outputs}x{inputs} weights of {float(weight.abs().max()):.6g}, {samples} samples of {scale:g}", check


@torch.no_grad()
def _dense(layer: nn.Module, conv: nn.Conv2d) -> Tensor:
    """The weight of a layer, from what it gives for each unit image."""
    taps = conv.in_channels * 9
    units = torch.eye(taps, dtype=torch.float64).view(taps, conv.in_channels, 3, 3)
    return layer(units)[:, :, 0, 0].T.reshape(conv.weight.shape)


def networks(random: Random, generator: torch.Generator):
    """Whole networks with strange scales: what is compressed is the network with truncated weights."""
    scale, dtype = 10.0 ** random.choice((0, -20, -38, 10, 18, -5, 3)), random.choice((torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16))  # fmt: skip
    kind = random.choice(("noise", "black", "white", "denormal", "one pixel"))
    budget = random.choice((gdws.Macs(0.5), gdws.Params(0.7), gdws.Beta(0.1), gdws.Macs(0.9), gdws.Beta(0.0)))
    method = random.choice(("paper", "uniform", "calibrated"))
    method = "paper" if isinstance(budget, gdws.Beta) else method
    model = tiny.net()
    model[3].weight.data *= scale
    model[4].running_var.fill_(max(1e-30, min(1e30, scale * scale)))
    model[4].eps = 0.0
    model = model.to(dtype)
    images = {"noise": material.images()[:8], "black": torch.zeros(8, 3, 8, 8), "white": torch.ones(8, 3, 8, 8), "denormal": torch.full((8, 3, 8, 8), 1e-40)}.get(kind)  # fmt: skip
    if images is None:
        images = torch.zeros(8, 3, 8, 8)
        images[:, 0, 3, 3] = 1.0
    images = images.to(dtype)

    def check() -> None:
        settings = {"paper": gdws.Paper, "uniform": gdws.Uniform, "calibrated": gdws.Calibrated}[method](attack=None)
        with torch.no_grad():
            whole = [*model.state_dict().values(), model(images)]
        protected = _not_called_nan if all(bool(value.isfinite().all()) for value in whole) else lambda work: work()
        made = protected(lambda: gdws.compress(model, [images], budget, settings))
        with torch.no_grad():
            found, before = made(images).double(), model(images).double()
        if bool(before.isfinite().all()) and not bool(found.isfinite().all()):
            raise Wrong("the compressed network gives numbers that are not finite")
        layer = made[3]
        if method != "calibrated" and isinstance(layer, GDWSConv2d):
            weight = model[3].weight.detach()
            largest = float(weight.double().abs().max()) or 1.0
            factors = gdws.Factors(layer.g, layer.channels, layer.depthwise[:, 0], layer.pointwise[:, :, 0, 0])
            gains, _ = _gains(weight, None, 1)
            left = sum(own[int(g) :].sum() for own, g in zip(gains[0], layer.g, strict=True))
            tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(dtype, 1e-5)
            if _left(weight, factors, None, largest) > left + tolerance * gains.sum():
                raise Wrong("the factors are not the best of their ranks")

    return f"network {dtype} of {scale:g} on {kind}, {budget} {method}", check


def balls(random: Random, generator: torch.Generator):
    norm = random.choice(("linf", "l2", "l1"))
    eps = random.choice((0.0, 1e-38, 1e-8, 1e-3, 8 / 255, 0.5, 3.0, 1e3, 1e30))
    step = random.choice((1e-38, 1e-3, 0.1, 10.0, 1e30))
    scale = random.choice((0.0, 1e-30, 1.0, 1e10, 1e25))
    kind, dtype = random.choice(("noise", "black", "white", "denormal")), random.choice((torch.float32, torch.float64))
    early, restarts = random.random() < 0.3, random.choice((1, 2))

    def check() -> None:
        model = tiny.net().to(dtype)
        model[-1].weight.data *= scale
        images = {"noise": material.images()[:4], "black": torch.zeros(4, 3, 8, 8), "white": torch.ones(4, 3, 8, 8), "denormal": torch.full((4, 3, 8, 8), 1e-40)}[kind].to(dtype)  # fmt: skip
        attack = PGD(eps=eps, step=step, steps=3, norm=norm, restarts=restarts, early_exit=early)
        found = attack(model, images, torch.tensor([0, 1, 2, 3]))
        change = (found.double() - images.double()).flatten(1)
        sizes = {"linf": change.abs().amax(1), "l2": change.norm(dim=1), "l1": change.abs().sum(1)}[norm]
        if not bool(found.isfinite().all()) or float(found.min()) < 0 or float(found.max()) > 1:
            raise Wrong(f"an attack leaves [0, 1]: {float(found.min())} to {float(found.max())}")
        rounding = 2e-7 if norm != "l1" else 2e-7 * change.shape[1]
        if bool((sizes > eps * (1 + 1e-5) + rounding).any()):
            raise Wrong(f"an attack leaves its ball: {float(sizes.max()):.6g} of {eps:.6g}")

    return f"ball {norm} eps {eps:g} step {step:g} logits of {scale:g} on {kind} {dtype} {early} {restarts}", check


def knapsacks(random: Random, generator: torch.Generator):
    scale_cost, scale_loss = (
        10.0 ** random.choice((0, 0, -150, 150, -10, 10)),
        10.0 ** random.choice((0, 0, -150, 150, -10, 10)),
    )
    count = random.choice((1, 2, 3, 5))
    kind = random.choice(("floats", "integers", "ties", "zeros"))
    options = []
    for _ in range(count):
        size = random.choice((1, 2, 4, 6))
        draws = [[random.random() for _ in range(size)] for _ in range(2)]
        rounded = {"integers": lambda v: float(int(10 * v)), "ties": lambda v: float(int(3 * v)), "zeros": lambda v: 0.0 if v < 0.5 else v}.get(kind, float)  # fmt: skip
        options.append(
            (scale_cost * np.array([rounded(v) for v in draws[0]]), scale_loss * np.array([rounded(v) for v in draws[1]]))
        )
    least, most = (sum(float(f(costs)) for costs, _ in options) for f in (np.min, np.max))
    budget = least + random.choice((0.0, 0.2, 0.5, 0.9, 1.0)) * (most - least)

    def check() -> None:
        chosen = allocate(options, budget)
        every = itertools.product(*(range(len(costs)) for costs, _ in options))
        totals = [tuple(sum(float(part[i][k]) for part, k in zip(options, ks, strict=True)) for i in (0, 1)) for ks in every]
        best = min(lost for cost, lost in totals if cost <= budget * (1 + 1e-12))
        cost, lost = (sum(float(part[i][k]) for part, k in zip(options, chosen, strict=True)) for i in (0, 1))
        if cost > budget * (1 + 1e-11) or lost > best + 1e-9 * max(best, scale_loss):
            raise Wrong(f"chosen were {chosen}: loss {lost:g}, cost {cost:g}; the best is {best:g} within {budget:g}")

    return f"knapsack {kind} of {scale_cost:g} and {scale_loss:g} within {budget:.12g}: {[[list(part) for part in option] for option in options]}", check  # fmt: skip


def counts(random: Random, generator: torch.Generator):
    total = random.choice((1, 2, 3, 10, 100, 1000, 10_000, 100_000))
    right = random.choice((0, 1, total, total - 1, random.randint(0, total)))
    p = random.choice((0.0, 1e-12, 0.1, 0.5, 0.9, 1 - 1e-12, 1.0))

    def check() -> None:
        exact = stats.binomtest(right, total).proportion_ci(0.95, "exact")
        for found, wanted in zip(significance.clopper_pearson(right, total), exact, strict=True):
            if not math.isclose(found, wanted, abs_tol=1e-7):
                raise Wrong(f"an exact interval ends at {found}: scipy {wanted}")
        score = stats.binomtest(right, total).proportion_ci(0.95, "wilson")
        for found, wanted in zip(significance.wilson(right, total), score, strict=True):
            if not math.isclose(found, wanted, abs_tol=1e-9):
                raise Wrong(f"Wilson's interval ends at {found}: scipy {wanted}")
        found, wanted = significance.binomial_tail(right, total, p), float(stats.binom.sf(right - 1, total, p))
        if not math.isclose(found, wanted, rel_tol=1e-6, abs_tol=1e-12):
            raise Wrong(f"a tail is {found}: scipy {wanted}")

    return f"counts {right} of {total}, p {p}", check


WORKS = {
    "mego": (mego, 160),
    "lego": (lego, 100),
    "layers": (layers, 150),
    "curves": (curves, 60),
    "networks": (networks, 60),
    "balls": (balls, 80),
    "knapsacks": (knapsacks, 80),
    "counts": (counts, 40),
}
