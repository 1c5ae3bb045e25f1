"""Whole networks and attacks at extreme scales."""

from __future__ import annotations

from random import Random

import torch

import gdws
from chaos import material, tiny
from chaos.case import Wrong
from chaos.numeric.factors import gains_of, loss_of, not_called_nan
from gdws.attacks import PGD
from gdws.structures.layers import GDWSConv2d


def _images(kind: str, count: int) -> torch.Tensor:
    if kind == "noise":
        return material.images()[:count]
    if kind == "one pixel":
        made = torch.zeros(count, 3, 8, 8)
        made[:, 0, 3, 3] = 1.0
        return made
    return torch.full((count, 3, 8, 8), {"black": 0.0, "white": 1.0, "denormal": 1e-40}[kind])


def networks(random: Random, generator: torch.Generator):
    """Whole networks with strange scales: what is compressed is the network with truncated weights."""
    scale = 10.0 ** random.choice((0, -20, -38, 10, 18, -5, 3))
    dtype = random.choice((torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16))
    kind = random.choice(("noise", "black", "white", "denormal", "one pixel"))
    budget = random.choice((gdws.Macs(0.5), gdws.Params(0.7), gdws.Beta(0.1), gdws.Macs(0.9), gdws.Beta(0.0)))
    method = random.choice(("paper", "uniform", "calibrated"))
    method = "paper" if isinstance(budget, gdws.Beta) else method
    model = tiny.net()
    model[3].weight.data *= scale
    model[4].running_var.fill_(max(1e-30, min(1e30, scale * scale)))
    model[4].eps = 0.0
    model = model.to(dtype)
    images = _images(kind, 8).to(dtype)

    def check() -> None:
        settings = {"paper": gdws.Paper, "uniform": gdws.Uniform, "calibrated": gdws.Calibrated}[method](attack=None)
        with torch.no_grad():
            whole = [*model.state_dict().values(), model(images)]
        protected = not_called_nan if all(bool(value.isfinite().all()) for value in whole) else lambda work: work()
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
            gains, _ = gains_of(weight, None, 1)
            left = sum(own[int(g) :].sum() for own, g in zip(gains[0], layer.g, strict=True))
            tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(dtype, 1e-5)
            if loss_of(weight, factors, None, largest) > left + tolerance * gains.sum():
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
        images = _images(kind, 4).to(dtype)
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
