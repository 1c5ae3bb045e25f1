from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gdws.errors import GdwsError

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_TIE = 1e-12
_STATES = 400_000
STATS = {}


def allocate(options: Sequence[tuple[Floats, Floats]], budget: float) -> list[int]:
    STATS.update(pops=0, branch=0, grow=0, maxstates=0, nodes=0)
    layers = [_checked(number, *option) for number, option in enumerate(options)]
    limit = budget * (1 + _TIE)
    least = math.fsum(layer.cost[0] for layer in layers)
    if not least <= limit:
        raise GdwsError(f"the budget is {budget}: expected at least {least}, the sum of the cheapest options")
    if not layers:
        return []
    # Costs that no budget can pay for go first: they would only stretch the hulls.
    layers = [layer.where(layer.cost - layer.cost[0] <= limit - least + _TIE * limit) for layer in layers]

    def consider(positions, within):
        nonlocal best
        loss = math.fsum(layer.loss[i] for layer, i in zip(within, positions, strict=True))
        cost = math.fsum(layer.cost[i] for layer, i in zip(within, positions, strict=True))
        if loss < best[0] * (1 - _TIE) or (loss <= best[0] * (1 + _TIE) and cost < best[1]):
            best = loss, cost, [int(layer.index[i]) for layer, i in zip(within, positions, strict=True)]
        return loss

    best = (math.inf, math.inf, [])
    ticks = itertools.count()
    heap = []

    def push(node, at_least, step, states):
        STATS["nodes"] += 1
        consider(node.greedy(), node.layers)
        if node.split is not None:
            heapq.heappush(heap, (max(node.bound, at_least), next(ticks), node, step, states))

    root = _Node(layers, limit)
    push(root, 0.0, 0, _STATES)
    if heap:
        b, t, n, s, st = heap[0]
        heap[0] = (b, t, n, (best[0] - b) / 65536, st)
    while heap and heap[0][0] <= best[0] * (1 + _TIE):
        bound, _, node, step, states = heapq.heappop(heap)
        STATS["pops"] += 1
        target = min(bound + step, best[0])
        final = target == best[0]
        kept = node.within(target)
        try:
            found = _search(_Node(kept, limit), target, states)
        except OverflowError:
            children = [_Node(c, limit) for c in node.children(node.within(best[0]), limit)]
            if node.wide():
                STATS["branch"] += 1
                for child in children:
                    push(child, bound, step, states)
            else:
                STATS["grow"] += 1
                heapq.heappush(heap, (bound, next(ticks), node, step / 4, 2 * states))
            continue
        if found is not None and consider(found, kept) <= target * (1 + _TIE):
            continue
        if not final:
            heapq.heappush(heap, (target, next(ticks), node, 4 * step, states))
    return best[2]


@dataclass(frozen=True, eq=False)
class _Layer:
    cost: Floats
    loss: Floats
    index: Ints

    def where(self, keep: NDArray[np.bool_]) -> _Layer:
        return self if keep.all() else _Layer(self.cost[keep], self.loss[keep], self.index[keep])

    @cached_property
    def hull(self) -> Ints:
        cost, loss = self.cost.tolist(), self.loss.tolist()
        hull: list[int] = []
        for i, (c, l) in enumerate(zip(cost, loss, strict=True)):
            while len(hull) > 1:
                p, q = hull[-2], hull[-1]
                if (loss[p] - loss[q]) * (c - cost[q]) > (loss[q] - l) * (cost[q] - cost[p]):
                    break
                hull.pop()
            hull.append(i)
        return np.array(hull)


def _undominated(cost, loss):
    order = np.lexsort((loss, cost))
    falling = loss[order]
    keep = np.ones(len(order), bool)
    keep[1:] = falling[1:] < np.minimum.accumulate(falling)[:-1]
    return order[keep]


def _checked(number, costs, losses):
    cost, loss = np.asarray(costs, np.float64), np.asarray(losses, np.float64)
    if cost.ndim != 1 or cost.shape != loss.shape or not len(cost):
        raise GdwsError(f"layer {number} has costs {cost.shape} and losses {loss.shape}: expected (n,) and (n,) with n >= 1")
    for name, values in (("costs", cost), ("losses", loss)):
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            raise GdwsError(f"layer {number} has {values[bad][0]} among its {name}: expected finite numbers >= 0")
    index = _undominated(cost, loss)
    return _Layer(cost[index], loss[index], index)


class _Node:
    def __init__(self, layers, limit):
        self.layers, self.limit = layers, limit
        rise = [np.diff(layer.cost[layer.hull]) for layer in layers]
        fall = [-np.diff(layer.loss[layer.hull]) for layer in layers]
        slope = np.concatenate([np.minimum.accumulate(f / r) for f, r in zip(fall, rise, strict=True)])
        order = np.argsort(-slope, kind="stable")
        self.which = np.repeat(np.arange(len(layers)), [len(r) for r in rise])[order]
        self.rise, self.fall = np.concatenate(rise)[order], np.concatenate(fall)[order]
        self.first = np.array([layer.cost[0] for layer in layers])
        self.last = np.array([layer.loss[-1] for layer in layers])
        self.slack = 4 * _TIE + 16 * np.finfo(float).eps * len(order)
        spent = self.first.sum() + np.cumsum(self.rise)
        self.taken = int(np.searchsorted(spent, limit, side="right"))
        self.split = None
        self.slope = 0.0
        if self.taken < len(order):
            self.slope = float(slope[order[self.taken]])
            layer = int(self.which[self.taken])
            self.split = layer
            self.at = limit - (spent[self.taken] - self.rise[self.taken])
        self.bound = float(self.floor(np.ones(len(layers), bool))(np.array([limit]))[0]) * (1 - self.slack)

    def floor(self, rest):
        part = rest[self.which]
        x = np.append(np.cumsum(self.rise[part][::-1])[::-1] * -1, 0.0)
        x = -(self.first[rest].sum() + np.append(0.0, np.cumsum(self.rise[part])))[::-1]
        y = self.last[rest].sum() + np.append(0.0, np.cumsum(self.fall[part][::-1]))
        extra = self.slack * self.limit
        return lambda room: np.interp(-(room + extra), x, y, right=math.inf)

    def wide(self):
        count = np.bincount(self.which[: self.taken], minlength=len(self.layers))
        h = self.layers[self.split].hull
        return h[count[self.split] + 1] - h[count[self.split]] > 1

    def greedy(self):
        count = np.bincount(self.which[: self.taken], minlength=len(self.layers))
        at = [int(layer.hull[n]) for layer, n in zip(self.layers, count, strict=True)]
        while True:
            left = self.limit - math.fsum(layer.cost[i] for layer, i in zip(self.layers, at, strict=True))
            reach = [
                max(i, int(np.searchsorted(layer.cost, layer.cost[i] + left, side="right")) - 1)
                for layer, i in zip(self.layers, at, strict=True)
            ]
            gain = [layer.loss[i] - layer.loss[j] for layer, i, j in zip(self.layers, at, reach, strict=True)]
            most = int(np.argmax(gain))
            if gain[most] <= 0:
                return at
            at[most] = reach[most]

    def within(self, target):
        value = [layer.loss + self.slope * layer.cost for layer in self.layers]
        least = [v.min() for v in value]
        total = math.fsum(least) - self.slope * self.limit
        gap = target - total + self.slack * (target + self.slope * self.limit)
        return [layer.where(v - v0 <= gap) for layer, v, v0 in zip(self.layers, value, least, strict=True)]

    def children(self, layers, limit):
        i = self.split
        count = np.bincount(self.which[: self.taken], minlength=len(self.layers))
        full = self.layers[i]
        cut = full.cost[full.hull[count[i]]] + self.at
        out = []
        for keep in (layers[i].cost <= cut, layers[i].cost > cut):
            if keep.any():
                child = [*layers[:i], layers[i].where(keep), *layers[i + 1 :]]
                if math.fsum(l.cost[0] for l in child) <= limit:
                    out.append(child)
        return out


def _search(node, target, states):
    layers, limit = node.layers, node.limit
    ceiling = target * (1 + node.slack)
    unit = [np.diff(layer.cost).min() if len(layer.cost) > 1 else math.inf for layer in layers]
    order = np.argsort(unit)[::-1]
    weight = np.cumsum([math.log(len(layers[i].cost)) for i in order])
    middle = int(np.searchsorted(weight, weight[-1] / 2))
    halves = []
    for half in (order[:middle], order[middle:]):
        cost = loss = np.zeros(1)
        rest = np.ones(len(layers), bool)
        trail = []
        for i in half:
            rest[i] = False
            layer = layers[i]
            if len(cost) * len(layer.cost) > states:
                raise OverflowError
            c = (cost[:, None] + layer.cost).ravel()
            l = (loss[:, None] + layer.loss).ravel()
            keep = np.flatnonzero(l + node.floor(rest)(limit - c) <= ceiling)
            keep = keep[_undominated(c[keep], l[keep])]
            cost, loss = c[keep], l[keep]
            trail.append((i, *np.divmod(keep, len(layer.cost))))
            STATS["maxstates"] = max(STATS["maxstates"], len(keep))
            if not len(keep):
                return None
        halves.append((cost, loss, trail))
    (cost, loss, _), (cost2, loss2, _) = halves
    fit = np.searchsorted(cost2, limit - cost, side="right") - 1
    total = np.where(fit >= 0, loss + loss2[np.maximum(fit, 0)], math.inf)
    if not np.isfinite(total.min()):
        return None
    ties = total.min() * (1 + _TIE)
    fit2 = len(loss2) - np.searchsorted(loss2[::-1], ties - loss, side="right")
    fit2 = np.where(total <= ties, np.minimum(fit2, fit), 0)
    a = int(np.argmin(np.where(total <= ties, cost + cost2[fit2], math.inf)))
    at = [0] * len(layers)
    for (_, _, trail), state in zip(halves, (a, int(fit2[a])), strict=True):
        for i, parent, option in reversed(trail):
            at[i] = int(option[state])
            state = parent[state]
    return at
