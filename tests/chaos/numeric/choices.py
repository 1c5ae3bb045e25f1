"""What is chosen within budgets, against all choices, and intervals, against scipy."""

from __future__ import annotations

import itertools
import math
from random import Random

import numpy as np
import torch
from scipy import stats

from chaos.case import Wrong
from gdws.planning import significance
from gdws.planning.knapsack import allocate


def knapsacks(random: Random, generator: torch.Generator):
    scale_cost = 10.0 ** random.choice((0, 0, -150, 150, -10, 10))
    scale_loss = 10.0 ** random.choice((0, 0, -150, 150, -10, 10))
    count = random.choice((1, 2, 3, 5))
    kind = random.choice(("floats", "integers", "ties", "zeros"))
    options = []
    for _ in range(count):
        size = random.choice((1, 2, 4, 6))
        draws = [[random.random() for _ in range(size)] for _ in range(2)]
        rounded = {
            "integers": lambda v: float(int(10 * v)),
            "ties": lambda v: float(int(3 * v)),
            "zeros": lambda v: 0.0 if v < 0.5 else v,
        }.get(kind, float)
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

    listed = [[list(part) for part in option] for option in options]
    return f"knapsack {kind} of {scale_cost:g} and {scale_loss:g} within {budget:.12g}: {listed}", check


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
