"""Refit a compressed network layer after layer: the inputs of the network compressed so far, the outputs of the original.

Both networks run as one. Every convolution that is replaced becomes a pair whose input holds the original's half of the batch
and the compressed network's half; all other modules treat the samples of a batch alike and are shared. When the forward pass
reaches a pair, it knows what the compressed layer gets (x) and what the original gives (y), solves for the layer's mix,
and goes on with the refitted layer. One forward pass therefore refits the whole network. A layer that is called again is
solved for all its calls so far; its earlier outputs are then out of date, so that a second pass, in which such layers stay as
they are, refits the others.

Where parts of samples go through a layer as one batch (frames of clips, the two pictures of pairs), the halves may lie part by
part: original, compressed, original, compressed. A look at the maps of equal halves tells it before anything is fitted.

With z the features that the layer's bank makes of x, the mix P minimizes, summed over calibration images and output pixels,

    |y - P z|^2 on clean images  +  |y - P z|^2 on attacked ones  +  ATTACK_WEIGHT |dy - P dz|^2,

where dy and dz are what the attack changes: small beside y and z, so without their own term least squares all but ignores
them, and they are what robustness is made of. A small ridge pulls P toward the weights that it had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor, nn

from gdws.calibration.hooks import record_uses
from gdws.core.execution import LARGEST_TEMPORARY, full_precision, placement, private_copy
from gdws.core.inputs import Inputs, call_model, concatenate, place
from gdws.core.progress import track
from gdws.core.sites import replace_modules
from gdws.structures.layers import FactoredConv2d
from gdws.structures.metric import add_moment, mirror, product

ATTACK_WEIGHT = 16.0
RIDGE = 1e-3
"""Of the diagonal of the normal equations."""

ALIKE = 1e-2
"""Of a map's largest value: maps of the same sample in two halves of a batch differ by less, by rounding alone."""

MOST_PIXELS = 2**15
"""Output pixels that a layer is fitted to, clean and attacked each: far more than it has weights for each output."""

LARGEST_MAP = {"cpu": 256 * 2**20, "cuda": 800 * 2**20}
"""Bytes of one feature map of all images together; some five of them are in memory at once. Bounds the images used."""


@dataclass(frozen=True)
class NormalEquations:
    """Of least squares for a layer's mix: gram (groups, n, n) of its features, cross (groups, M, n) of targets with features,
    and the energy of the targets, all float64."""

    gram: Tensor
    cross: Tensor
    energy: Tensor


class _Pair(nn.Module):
    """A convolution and the layer in its place.

    blocks    of each call in one pass: in how many blocks, with a part of all samples each, its maps lie (find_blocks).
    steps     of a progress bar, one for each call that refits the layer.
    attacked  whether the second half of the images are the first ones, attacked.
    fitting   whether each call does.
    """

    def __init__(
        self, conv: nn.Conv2d, layer: FactoredConv2d, blocks: Sequence[int], steps: Iterator[int], attacked: bool
    ) -> None:
        super().__init__()
        self.conv, self.layer, self.steps, self.attacked = conv, layer, steps, attacked
        self.uses, self.blocks = len(blocks), cycle(blocks)
        self.fitting = True
        self.earlier: list[NormalEquations] = []

    def forward(self, input: Tensor) -> Tensor:
        blocks, copies = next(self.blocks), 4 if self.attacked else 2
        original, compressed = _swapped(input, blocks, copies).chunk(2)
        first: Tensor = self.conv(original[:1])
        y = first.new_empty(len(input), *first.shape[1:])
        target, output = y.chunk(2)
        _fill(target, self.conv, original)
        if self.fitting and self.layer.mixing.numel():
            calls = [*self.earlier, normal_equations(self.layer, compressed, target, self.attacked)]
            solve_mix(self.layer, calls)
            self.earlier = calls if len(calls) < self.uses else []  # they are large
        if self.fitting:
            next(self.steps, None)
        _fill(output, self.layer, compressed)
        return _swapped(y, copies, blocks)


def _swapped(maps: Tensor, outer: int, inner: int) -> Tensor:
    """Rows of `outer` times `inner` runs as `inner` times `outer` ones; a view where one of them is one."""
    swapped: Tensor = maps.unflatten(0, (outer, inner, -1)).transpose(0, 1).flatten(0, 2)
    return swapped


def find_blocks(model: nn.Module, convolutions: Mapping[str, nn.Conv2d], sample: Inputs) -> dict[str, list[int]]:
    """By convolution, of each call on a batch of several copies of the samples: in how many blocks its maps lie, each with a
    part of all copies. Left out are convolutions of which neither one block fits nor one for each part of a sample."""
    with record_uses(convolutions) as uses, torch.no_grad():
        call_model(model, concatenate([sample, sample]))
    found = {name: [_blocks_in(use.input, len(sample)) for use in calls] for name, calls in uses.items()}
    return {name: blocks for name, blocks in found.items() if all(blocks)}


def _blocks_in(maps: Tensor, samples: int) -> int:
    """Of maps of so many samples, twice: 1 or the number of parts of a sample, whichever fits better, or 0."""
    apart = {
        blocks: float(maps.unflatten(0, (blocks, 2, -1)).diff(dim=1).abs().max())
        for blocks in (1, len(maps) // (2 * samples))
        if blocks and len(maps) % (2 * blocks) == 0
    }
    best = min(apart, key=apart.__getitem__, default=0)
    return best if best and apart[best] <= ALIKE * float(maps.abs().max()) else 0


def _fill(out: Tensor, module: nn.Module, x: Tensor, rows: int = 32) -> None:
    """out = module(x), a few samples at a time: the copies inside a GDWS layer are larger than its output."""
    for part, given in zip(out.split(rows), x.split(rows), strict=True):
        part.copy_(module(given))


def refit(
    model: nn.Module, layers: dict[str, FactoredConv2d], positions: Sequence[int], images: Inputs, attacked: Inputs | None
) -> None:
    """Refit `layers`, in place, which replace the convolutions of these names and have this many output pixels.

    images and attacked: inputs of the network; None where there is no attack.

    Feature maps of two copies of the images, or four with attacked ones, are in memory at once, so only as many are used as
    LARGEST_MAP allows: for ResNet-18 256 attacked ones of 32x32 pixels on a CPU, where they also cost time, and 800 on a GPU.
    Layers of which it cannot be told whose maps they see, such as those of a network that chooses regions, stay as they are.
    """
    device, dtype = placement(model)
    widest = max((layer.out_channels * p for layer, p in zip(layers.values(), positions, strict=True)), default=1)
    copies = 2 if attacked is None else 4
    count = max(1, LARGEST_MAP.get(device.type, LARGEST_MAP["cpu"]) // (4 * copies * widest))
    images = images[:count]
    shell = private_copy(model).eval()
    both = place(images if attacked is None else concatenate([images, attacked[:count]]), device, dtype)
    blocks = find_blocks(shell, {name: _conv(shell, name) for name in layers}, both[:2])
    uses = {name: len(calls) for name, calls in blocks.items()}
    # Layers of one call are fitted once more where others have several, which only the end of a pass knows.
    shared_by_calls = any(count > 1 for count in uses.values())
    total = sum(uses.values()) + shared_by_calls * sum(count == 1 for count in uses.values())
    steps = track(range(total), f"refit on {len(images)} images", total)
    next(steps, None)
    pairs = [_Pair(_conv(shell, name), layers[name], calls, steps, attacked is not None) for name, calls in blocks.items()]
    replace_modules(shell, {pair.conv: pair for pair in pairs})
    with full_precision(), torch.no_grad(), closing(steps):
        for _ in range(2 if shared_by_calls else 1):
            call_model(shell, concatenate([both, both]))
            for pair in pairs:
                pair.fitting = pair.uses == 1


def normal_equations(layer: FactoredConv2d, x: Tensor, y: Tensor, attacked: bool) -> NormalEquations:
    """For a layer's mix; x (B, C, H, W) its input, y the outputs wanted. attacked: on clean, then as many attacked images."""
    features, outputs = layer.mixing[0].numel(), layer.out_channels // layer.groups
    gram = torch.zeros(layer.groups, features, features, dtype=torch.float64, device=x.device)
    cross = torch.zeros(layer.groups, outputs, features, dtype=torch.float64, device=x.device)
    energy = torch.zeros((), dtype=torch.float64, device=x.device)
    pixels = y[0, 0].numel()
    rows = max(1, LARGEST_TEMPORARY // (pixels * max(layer.groups * features, layer.out_channels) * 2))

    def columns(values: Tensor) -> Tensor:
        """(B, groups * n, H, W) -> (groups, n, B H W)"""
        return values.float().view(len(values), layer.groups, -1, pixels).permute(1, 2, 0, 3).flatten(2)

    images = max(1, MOST_PIXELS // pixels)
    halves = 2 if attacked else 1
    for parts in zip(*(part[:images].split(rows) for value in (x, y) for part in value.chunk(halves)), strict=True):
        found = [columns(layer.features(part)) for part in parts[:halves]]
        wanted = [columns(_without_bias(layer, part)) for part in parts[halves:]]
        for weight, z, target in _terms(found, wanted):
            upper = z.new_zeros(gram.shape)
            add_moment(upper, z)
            gram += weight * upper.double()
            cross += weight * torch.stack([product(*pair) for pair in zip(target, z, strict=True)]).double()
            energy += weight * target.square().sum()
    return NormalEquations(mirror(gram), cross, energy)


def _terms(features: list[Tensor], targets: list[Tensor]) -> list[tuple[float, Tensor, Tensor]]:
    """What is squared: weights, features and targets; given those on clean images, and perhaps on attacked ones."""
    if len(features) == 1:
        return [(1.0, features[0], targets[0])]
    (clean_z, attacked_z), (clean_t, attacked_t) = features, targets
    # a^2 + b^2 + w (b - a)^2 = (a + b)^2 / 2 + (1/2 + w) (b - a)^2: two products in the place of three.
    return [
        (0.5, clean_z + attacked_z, clean_t + attacked_t),
        (0.5 + ATTACK_WEIGHT, attacked_z - clean_z, attacked_t - clean_t),
    ]


def solve_mix(layer: FactoredConv2d, calls: Sequence[NormalEquations]) -> None:
    """Solve for a layer's mix, in place. Each call counts by the share of its targets' energy that is missed."""
    largest = max(float(call.energy) for call in calls)
    weights = [largest / float(call.energy) if call.energy > 0 else 1.0 for call in calls]
    gram = torch.stack([weight * call.gram for weight, call in zip(weights, calls, strict=True)]).sum(0)
    cross = torch.stack([weight * call.cross for weight, call in zip(weights, calls, strict=True)]).sum(0)
    diagonal = gram.diagonal(dim1=1, dim2=2)
    # A feature that is zero on all images keeps its weights.
    ridge = RIDGE * torch.where(diagonal > 0, diagonal, 1.0)
    before = layer.mixing.detach().double().view_as(cross)
    system = gram + torch.diag_embed(ridge)
    solution = torch.linalg.solve_ex(system, (cross + before * ridge[:, None]).mT).result.mT
    found = solution.reshape(layer.mixing.shape).to(layer.mixing.dtype)
    if bool(found.isfinite().all()):  # half precision may overflow, the activations of the compressed network too
        layer.mixing.data.copy_(found)


def _without_bias(layer: FactoredConv2d, y: Tensor) -> Tensor:
    return y if layer.bias is None else y - layer.bias.detach()[:, None, None]


def _conv(model: nn.Module, name: str) -> nn.Conv2d:
    conv = model.get_submodule(name)
    assert isinstance(conv, nn.Conv2d)
    return conv
