"""How much each input channel of each convolution moves the network's predicted class: alpha, equation (8) of the paper."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gdws.attacks import PGD
from gdws.calibration.hooks import Use, backpropagate, check_scales, each_class, random_signs, record_uses
from gdws.core.checks import Batches, check_differentiable, check_seed, checked_logits, logits_of, unpack_batch
from gdws.core.errors import GdwsError
from gdws.core.execution import LARGEST_TEMPORARY, evaluating, placement, private_copy
from gdws.core.progress import track
from gdws.core.sites import patches
from gdws.core.unwrap import unwrap

TEMPORARY = {"cpu": 2**18, "cuda": 2**26}
"""Elements of the largest temporary: what a core's cache holds, or enough to keep a GPU busy."""


def sensitivity(
    model: nn.Module,
    batches: Batches,
    *,
    exact: bool = False,
    attack: PGD | None = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Measure how much each input channel of each convolution moves the predicted class: alpha, equation (8) of the paper.

        alpha_c = 1 / (M K^2) E_x sum_{j != n} ||D_j^c||_F^2 / (2 delta_j^2),

    D_j^c the derivative of delta_j = z_j - z_n with respect to W_c, z the logits, n the predicted class. With groups, M counts
    the outputs of one group.

    model    takes images (B, C, H, W) in [0, 1] and returns logits (B, classes). It is left as it was found.
    batches  batches of images, or of (images, labels).
    exact    take one backward pass for each class. By default one pass for a batch, with random signs, estimates the sum over
             classes without bias.
    attack   replaces the images by attacked ones: against their labels, or the model's own predictions where there are none.
    seed     of the attack's starts and of the signs.

    Returns alpha, float64 (C,), for each convolution that runs, by name. Raises GdwsError when there are no images or they are
    not in [0, 1], or when the model does not return finite logits.

    >>> import gdws
    >>> alpha = gdws.sensitivity(gdws.models.embedded(), gdws.data.load("demo", "train").take(4))
    >>> alpha["layer1.0.conv1"].shape
    torch.Size([32])
    """
    check_seed(seed)
    model = private_copy(unwrap(model))
    device, dtype = placement(model)
    convolutions = {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    generator = torch.Generator().manual_seed(seed)
    totals: dict[str, Tensor] = {}
    count = 0
    with evaluating(model):
        for batch in track(batches, "sensitivity"):
            images, labels = unpack_batch(batch)
            if count == 0:
                check_differentiable(logits_of(model), images[:1].to(device, dtype))
            images = attacked(model, images.to(device, dtype), labels, attack, generator).requires_grad_(True)
            count += len(images)
            with record_uses(convolutions) as uses, torch.enable_grad():
                logits = checked_logits(model, images)
                cotangents = each_class(logits) if exact else random_signs(logits, generator)
                for _ in backpropagate([logits], images, ([cotangent] for cotangent in cotangents)):
                    for name, calls in uses.items():
                        if name not in totals:
                            check_scales(name, calls)
                        if any(use.gradient is not None for use in calls):
                            norms = squared_gradient_norms(convolutions[name], calls)
                            totals[name] = totals.get(name, 0) + norms
    if count == 0:
        raise GdwsError("the sensitivity needs images and got none: expected at least one batch")
    return {
        name: total / (count * conv.out_channels // conv.groups * conv.kernel_size[0] * conv.kernel_size[1])
        for name, total in totals.items()
        if (conv := convolutions[name])
    }


def attacked(model: nn.Module, images: Tensor, labels: Tensor | None, attack: PGD | None, generator: torch.Generator) -> Tensor:
    """The images, attacked if there is an attack: against their labels, or the model's own predictions without labels."""
    if attack is None:
        return images.detach().clone()
    with torch.no_grad():
        logits = checked_logits(model, images if labels is None else images[:1], labels)
    labels = logits.argmax(1) if labels is None else labels
    return attack(model, images, labels.to(images.device), generator)


def squared_gradient_norms(conv: nn.Conv2d, uses: list[Use]) -> Tensor:
    """sum over samples of ||D^c||_F^2, (C,) float64, D^c = G X_c^T the weight gradient of one sample.

    X_c (K^2 x P) are the patches of channel c, G (M x P) the output gradient, P the pixels of all uses. No weight gradient
    of the layer is kept: either D is formed a few samples at a time, or, where the map has fewer pixels than there are
    outputs, ||G X_c^T||^2 = <G^T G, X_c^T X_c> from the P x P Gram matrices, which is cheaper by P / M.
    """
    taps = conv.kernel_size[0] * conv.kernel_size[1]
    pairs = [(use.input, use.gradient) for use in uses if use.gradient is not None]
    if not pairs:
        return torch.zeros(conv.in_channels, dtype=torch.float64, device=conv.weight.device)
    samples, pixels = len(pairs[0][0]), sum(gradient[0, 0].numel() for _, gradient in pairs)
    outputs = conv.out_channels // conv.groups
    by_gram = pixels < outputs
    largest = conv.in_channels * (max(pixels * pixels, taps * pixels) if by_gram else taps * max(outputs, pixels))
    total = torch.zeros(conv.in_channels, dtype=torch.float64, device=conv.weight.device)
    for part in torch.arange(samples).split(max(1, TEMPORARY.get(conv.weight.device.type, LARGEST_TEMPORARY) // largest)):
        rows = slice(int(part[0]), int(part[-1]) + 1)
        x = _joined([patches(conv, inputs[rows]) for inputs, _ in pairs])
        g = _joined([gradient[rows].flatten(2) for _, gradient in pairs])
        g = g.view(len(g), conv.groups, outputs, pixels)
        if by_gram:
            channels = x.view(len(x), conv.groups, -1, taps, pixels)
            norms = ((channels.mT @ channels) * (g.mT @ g)[:, :, None]).sum((0, 3, 4))
        else:
            norms = (g @ x.mT).square().sum((0, 2)).view(conv.groups, -1, taps).sum(2)
        total += norms.flatten().double()
    return total


def _joined(parts: list[Tensor]) -> Tensor:
    """Along the last axis; one part as it is, without a copy. Half precision could not hold the squares."""
    joined = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
    return joined.float() if joined.dtype in (torch.float16, torch.bfloat16) else joined
