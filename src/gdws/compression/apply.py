"""Do what a plan says: a new model with the plan's layers in their places; the old one is left alone."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from gdws.calibration.collect import collect_statistics, gather_inputs, settle
from gdws.calibration.method import Calibrated
from gdws.calibration.statistics import Statistics
from gdws.compression.fidelity import attack_of, hold_back
from gdws.compression.refit import refit
from gdws.core.checks import AnyBatches, check_weights
from gdws.core.errors import GdwsError
from gdws.core.execution import own_copy, placement, private_copy
from gdws.core.inputs import place
from gdws.core.progress import track
from gdws.core.sites import find_convolutions, replace_modules, why_not_plain
from gdws.core.unwrap import unwrap
from gdws.objectives import AUTO, OBJECTIVES
from gdws.planning.fidelity_records import HELD_BACK
from gdws.planning.plan import LayerPlan, Plan, attach_plan
from gdws.structures import STRUCTURES
from gdws.structures.layers import FactoredConv2d, GDWSConv2d
from gdws.structures.mego_lego import truncate


def apply(model: nn.Module, plan: Plan, calibration: AnyBatches | Statistics | None = None) -> nn.Module:
    """Copy a model with the plan's layers in their places; `model` is untouched.

    model        the model that the plan is for.
    plan         what gdws.plan gave, perhaps edited.
    calibration  for a plan of the calibrated method: what gdws.calibrate gave, or the images once more, of which the
                 statistics are then collected again. Other plans need none.

    Returns the copy, in eval mode; gdws.plan_of gives its plan. Raises GdwsError when the plan does not fit the model, or when
    a calibrated plan comes without statistics or with those of other layers.

    >>> import gdws
    >>> model = gdws.models.embedded()
    >>> plan = gdws.plan(model, gdws.data.load("demo", "train").take(8), gdws.Macs(0.5), "uniform")
    >>> gdws.plan_of(gdws.apply(model, plan)) == plan
    True
    """
    model = private_copy(unwrap(model))
    check_weights(model)
    for layer in plan.layers:
        _check_fits(model, layer)
    replaced = [layer for layer in plan.layers if layer.structure != "dense"]
    made: dict[str, FactoredConv2d] = {}
    if plan.method == Calibrated.name and replaced:
        statistics = _statistics_for(model, plan, calibration)
        for layer in track(replaced, "layers"):
            found = statistics.curves[layer.name][layer.structure], statistics.layers[layer.name].metrics()
            made[layer.name] = STRUCTURES[layer.structure].build(_conv(model, layer.name), layer.ranks, *found)
        attacked = statistics.attacked if statistics.attack is not None else None
        refit(model, made, [layer.positions for layer in replaced], statistics.images, attacked)
    else:
        for layer in replaced:
            conv = _conv(model, layer.name)
            factors = truncate(conv.weight, torch.tensor(layer.g, device=conv.weight.device), conv.groups)
            made[layer.name] = GDWSConv2d.from_factors(factors, conv)
    compressed = own_copy(model).eval()
    replace_modules(compressed, {compressed.get_submodule(name): layer.eval() for name, layer in made.items()})
    attach_plan(compressed, plan)
    return compressed


def _statistics_for(model: nn.Module, plan: Plan, calibration: AnyBatches | Statistics | None) -> Statistics:
    if calibration is None:
        raise GdwsError(
            "this calibrated plan came without statistics: expected what gdws.calibrate gave for it, or its calibration images"
        )
    if isinstance(calibration, Statistics):
        for layer in plan.layers:
            if layer.structure != "dense" and layer.structure not in calibration.curves.get(layer.name, {}):
                raise GdwsError(f"the statistics have no {layer.structure} curve of {layer.name!r}: expected those of the plan")
        return calibration
    images, labels = gather_inputs(calibration)
    if plan.budget.is_searched and (plan.fidelity is None or getattr(plan.fidelity, "source", None) == HELD_BACK):
        (images, labels), _ = hold_back(images, labels)
    used = tuple(dict.fromkeys(layer.structure for layer in plan.layers if layer.structure != "dense"))
    objective = plan.objective if plan.objective in OBJECTIVES else AUTO
    method = Calibrated(structures=used, attack=attack_of(plan), objective=objective)
    images, labels, method = settle(model, images, labels, method)
    names = {layer.name for layer in plan.layers if layer.replaceable}
    sites = [
        replace(site, reason=None)
        for site in find_convolutions(model, place(images[:1], *placement(model)), keep_first=False, keep_1x1=False)
        if site.name in names
    ]
    return collect_statistics(model, images, labels, sites, method, seed=plan.seed)


def _check_fits(model: nn.Module, layer: LayerPlan) -> None:
    try:
        conv = _conv(model, layer.name)
    except (AttributeError, RuntimeError):
        raise GdwsError(f"the plan names a layer {layer.name!r}: expected one of the model's convolutions") from None
    if tuple(conv.weight.shape) != layer.shape or conv.groups != layer.groups:
        raise GdwsError(
            f"the plan's layer {layer.name} has shape {layer.shape}, groups {layer.groups}: "
            f"expected the model's {tuple(conv.weight.shape)}, groups {conv.groups}"
        )
    if layer.structure != "dense" and (reason := why_not_plain(conv)) is not None:
        raise GdwsError(f"the plan replaces {layer.name} by {layer.structure} ({reason}): expected it to stay dense")
    if layer.structure not in ("dense", *STRUCTURES):
        expected = ", ".join(("dense", *STRUCTURES))
        raise GdwsError(f"the plan's layer {layer.name} has structure {layer.structure!r}: expected one of {expected}")


def _conv(model: nn.Module, name: str) -> nn.Conv2d:
    conv = model.get_submodule(name)
    if not isinstance(conv, nn.Conv2d):
        raise GdwsError(f"{name} is a {type(conv).__name__}: expected a Conv2d (is the model compressed already?)")
    return conv
