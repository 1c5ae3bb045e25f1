"""The temperature of the softmax that the metric is collected with.

The metric (gdws.structures.metric) is the Fisher information of the network's predictions: cotangents are p - onehot(k) for a
class k drawn from p. A network that has memorized its images answers them with probability one. Then p - onehot(k) is zero
on nearly all of them, and a few hard images decide everything. So the logits are divided by a temperature T first, the smallest
T >= 1 at which the mean entropy of softmax(z / T) is a third of the largest possible. As T grows, the metric goes over from the
Fisher information to the squared error of the logits.

A robust network answers its training images with more doubt than that: T is 1, and nothing changes.
"""

from __future__ import annotations

import math

from torch import Tensor

ENTROPY = 1 / 3
"""Of the largest, log(classes): the mean over the calibration images that the temperature makes sure of."""
HOTTEST = 1e4
"""No temperature is higher than this; logits that are all equal would never be soft enough."""


def temperature_of(logits: Tensor) -> float:
    """T for logits (N, classes) of the calibration images. One class has nothing to soften."""
    z = logits.detach().double()
    wanted = ENTROPY * math.log(z.shape[1])

    def entropy(temperature: float) -> float:
        log_p = (z / temperature).log_softmax(1)
        return float(-(log_p.exp() * log_p).sum(1).mean())

    if entropy(1.0) >= wanted:
        return 1.0
    cold, hot = 1.0, HOTTEST
    for _ in range(50):  # the entropy rises with the temperature
        middle = math.sqrt(cold * hot)
        cold, hot = (middle, hot) if entropy(middle) < wanted else (cold, middle)
    return hot
