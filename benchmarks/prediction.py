"""How well a calibrated plan's predicted loss tells what compressing a layer does.

    python benchmarks/prediction.py [--images 200]

Of the embedded model, one convolution at a time keeps a half, a quarter or an eighth of its weights, in every structure.
Predicted: the layer's loss in the plan. Measured, on 400 test images, clean and attacked (PGD-7): the KL divergence of the
outputs from the original's, and the share of changed decisions.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from torch import Tensor, nn

import gdws
from gdws import data, models
from gdws.calibration.method import ATTACK
from gdws.planning.plan import LayerPlan
from gdws.structures import STRUCTURES


def ranks(values: Tensor) -> Tensor:
    """The place of each value in the sorted order, from 0."""
    return values.argsort().argsort().double()


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def divergence(model: nn.Module, other: nn.Module, images: Tensor) -> tuple[float, float]:
    """Mean KL(p || q) in nats, and percent of changed predictions."""
    with torch.no_grad():
        p, q = (torch.cat([net(x) for x in images.split(100)]).double().log_softmax(1) for net in (model, other))
    return float((p.exp() * (p - q)).sum(1).mean()), 100 * float((p.argmax(1) != q.argmax(1)).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200)
    options = parser.parse_args()
    model = models.embedded()
    test = data.load("demo", "test").take(400)
    clean = test.images.float() / 255
    generator = torch.Generator().manual_seed(0)
    attacked = torch.cat([ATTACK(model, x, y, generator) for x, y in test])
    statistics = gdws.calibrate(model, data.load("demo", "train").take(options.images), gdws.Calibrated(attack=ATTACK))
    whole = gdws.plan(model, statistics, gdws.Macs(1.0))

    def dense(layer: LayerPlan) -> LayerPlan:
        return replace(layer, structure="dense", reason="left alone", ranks=())

    rows = []
    for layer in whole.layers:
        if not layer.replaceable:
            continue
        conv = model.get_submodule(layer.name)
        assert isinstance(conv, nn.Conv2d)
        for name, (curve,) in statistics.curves[layer.name].items():
            structure = STRUCTURES[name]
            for share in (0.5, 0.25, 0.125):
                size = int(share * layer.dense_parameters / structure.parameters(conv, 1))
                changed = replace(layer, structure=name, ranks=structure.ranks([curve], size))
                layers = tuple(changed if other.name == layer.name else dense(other) for other in whole.layers)
                compressed = gdws.apply(model, replace(whole, layers=layers), statistics)
                rows.append((float(curve.losses[size]), *divergence(model, compressed, torch.cat([clean, attacked]))))
                figures = f"predicted {rows[-1][0]:.2e}  KL {rows[-1][1]:.2e}  changed {rows[-1][2]:.2f} %"
                print(f"{layer.name:18s} {name:10s} {share:5.3f}  {figures}", flush=True)
    predicted, measured, decisions = torch.tensor(rows, dtype=torch.float64).T
    print(f"{len(rows)} cases")
    print(f"predicted and measured KL: rank correlation {correlation(ranks(predicted), ranks(measured)):.2f}, "
          f"of logarithms {correlation(predicted.log(), measured.log()):.2f}")  # fmt: skip
    print(f"predicted and changed decisions: rank correlation {correlation(ranks(predicted), ranks(decisions)):.2f}")
    ratio = (measured / predicted).log()
    mean, spread = float(ratio.mean().exp()), float(ratio.std().exp())
    print(f"measured / predicted KL: geometric mean {mean:.2f}, spread (1 sd) x{spread:.2f}")


if __name__ == "__main__":
    main()
