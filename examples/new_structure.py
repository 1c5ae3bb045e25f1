"""Teach the planner another way to factorize a convolution, and let each layer choose.

    python examples/new_structure.py

The new structure is a 3x3 convolution to R channels, followed by a 1x1 convolution. It takes little code because it is two
plain convolutions, like "vertical", "horizontal" and "project": those share gdws.structures.two_stage.Split. Something
entirely different implements gdws.structures.Structure: docs/how-to/add-a-structure.md.
"""

from collections import Counter
from collections.abc import Sequence

import gdws
from gdws.structures import STRUCTURES, Curve
from gdws.structures.two_stage import Split


class Squeeze(Split):
    """kh x kw to R channels, then 1x1; R in steps of 8, for vector units."""

    def __init__(self) -> None:
        super().__init__("squeeze", (0, 1))  # the first stage has the taps of both axes

    def sizes(self, curve: Curve) -> Sequence[int]:
        return range(8, len(curve.losses), 8)


STRUCTURES["squeeze"] = Squeeze()

model = gdws.models.embedded()
images = gdws.data.load("demo", "train").take(32)
method = gdws.Calibrated(structures=["squeeze", "horizontal"])
statistics = gdws.calibrate(model, images, method)  # measures the new structure in every layer, next to the other

for fraction in (0.8, 0.4):
    plan = gdws.plan(model, statistics, gdws.Macs(fraction))
    fast = gdws.apply(model, plan, statistics)
    chosen = Counter(layer.structure for layer in plan.layers if layer.replaceable)
    print(f"{fraction} of the multiply-adds: {dict(chosen)}, predicted loss {plan.loss:.4f}")
