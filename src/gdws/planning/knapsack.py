"""Share a budget out among layers, exactly: the multiple-choice knapsack problem.

Layer i has options k with cost c_ik >= 0 and loss l_ik >= 0. Take one option k_i of every layer so as to

    minimize  sum_i l_{i,k_i}   subject to   sum_i c_{i,k_i} <= B.

For GDWS layers alone (a layer loses the sum of its left-out gains, all its kernels cost the same) the curves l(c) are
convex, and taking kernels in the order of gain per cost is optimal at every budget that it exhausts, for it then
solves the relaxation below. This solver covers the rest: budget left over as the next kernel does not fit, and the
option to stay dense (loss 0 at a cost off the curve), which makes curves non-convex.

* Dominance. Let a and b be choices for the same layers (one or more), a with no more cost and no more loss. In any
  solution with b, a may replace b: it stays within B and neither loss nor cost rises. So b can be dropped.
* Reduced costs. Let lambda >= 0, v_ik = l_ik + lambda c_ik and r_ik = v_ik - min v_i >= 0. Within the budget, loss >=
  sum_i v_{i,k_i} - lambda B = L + sum_i r_{i,k_i} with L = sum_i min v_i - lambda B. So an option with r_ik > T - L
  is in no solution of loss <= T and can be dropped.
* Floors. Layers R with room x for their cost lose at least F_R(x), their linear relaxation: the lower convex hulls of
  their curves, with segments taken steepest first. (F_R(x) is also the greatest L for R and x, with lambda the slope
  of the segment where x ends.) If l + F_R(B - c) > T for the layers R that a partial choice of cost c and loss l
  leaves open, it is in no solution of loss <= T and can be dropped.
* Search to a target T. Lists of partial choices grow layer by layer under these rules. Of a solution of loss <= T,
  bounds never drop a part, and where dominance does, the replacement is part of a solution of loss <= T again, no
  worse and no dearer. By induction over the layers, the lists hold an optimum of least cost if its loss is <= T;
  otherwise T is a lower bound. Each half of the layers has its own list, with floors over all layers that a partial
  choice leaves open, and the two are joined at the end.
* Branch and bound. A node has some options of each layer. The node of least bound is searched to a T one step above
  it, but not above the best loss known. If lists get too long, the layer where the relaxation ends within a segment
  has its options split between two nodes: every solution is in one. When all bounds exceed the best loss known, that
  is optimal. Small steps make this fast: lists grow steeply with T - F, and most optima are very near F.
* Rounding. Sums are compared with B to a relative 1e-12. Losses this close may count as equal, and the lower cost
  then wins. The rules drop only what breaks them by more than the rounding of what is compared.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gdws.core.errors import GdwsError, OutOfReach

Floats = NDArray[np.float64]
Solution = tuple[float, float, list[int]]  # loss, cost, option of each layer

_TIE = 1e-12
_SHORT, _LONG = 400_000, 10_000_000  # candidates in one extension of a list: at first, and about 1 GB


def allocate(options: Sequence[tuple[Floats, Floats]], budget: float) -> list[int]:
    """The option of each layer, by index: least sum of losses with sum of costs <= budget, then least cost.

    options holds (costs, losses) of each layer. The module's docstring proves that the answer is exact.

    >>> allocate([(np.array([0, 2, 3]), np.array([9, 4, 0])), (np.array([1, 2]), np.array([5, 2]))], 4)
    [2, 0]
    """
    layers = [_layer(number, *arrays) for number, arrays in enumerate(options)]
    limit, least = budget * (1 + _TIE), math.fsum(layer[0, 0] for layer in layers)
    if not least <= limit:
        raise OutOfReach(f"the budget is {budget}: expected at least {least}, the cost of the cheapest options", least)
    if not layers:
        return []
    ticks, node = itertools.count(), _Node(layers, limit)
    best, queue = node.greedy, [(node.bound, next(ticks), node, (node.greedy[0] - node.bound) / 65536, _SHORT)]
    while queue and queue[0][0] <= best[0] * (1 + _TIE):
        bound, _, node, step, longest = heapq.heappop(queue)
        target = min(bound + step, best[0])
        found = _search(_Node(node.within(target), limit), target, longest)
        if found is None:
            parts = node.split(best[0])
            if longest < _LONG and any(part.bound <= node.bound * (1 + 2 * node.slack) for part in parts):
                parts, longest = [node], 5 * longest  # to split flat curves lifts no bound
            for part in parts:
                best = _better(best, part.greedy)
                heapq.heappush(queue, (max(bound, part.bound), next(ticks), part, step / 4, longest))
        elif target < best[0] and found[0] > target * (1 + _TIE):
            heapq.heappush(queue, (target, next(ticks), node, 4 * step, longest))
        best = _better(best, found or best)
    return best[2]


def _layer(number: int, costs: Floats, losses: Floats) -> Floats:
    """The options that no other dominates, as rows cost (rising), loss (falling) and index."""
    if np.ndim(costs) != 1 or np.shape(costs) != np.shape(losses) or not np.size(costs):
        shapes = f"{np.shape(costs)} costs and {np.shape(losses)} losses"
        raise GdwsError(f"layer {number} has {shapes}: expected one of each for every option, at least 1")
    layer = np.array([costs, losses, np.arange(len(costs))], np.float64)
    if not (np.isfinite(layer) & (layer >= 0)).all():
        cost, loss, _ = layer[:, ~(np.isfinite(layer) & (layer >= 0)).all(0)][:, 0]
        raise GdwsError(f"layer {number} has an option of cost {cost} and loss {loss}: expected finite numbers >= 0")
    return layer[:, _undominated(layer[0], layer[1])]


def _undominated(cost: Floats, loss: Floats) -> NDArray[np.intp]:
    order = np.lexsort((loss, cost))
    return order[np.diff(np.minimum.accumulate(loss[order]), prepend=math.inf) < 0]


def _better(one: Solution, other: Solution) -> Solution:
    tied = abs(one[0] - other[0]) <= _TIE * one[0]
    return min(one, other, key=lambda solution: solution[1 if tied else 0])


def _hull(layer: Floats) -> NDArray[np.intp]:
    """Positions of the vertices of the lower convex hull."""
    (cost, loss, _), hull = layer.tolist(), [0]
    for i in range(1, len(cost)):
        while len(hull) > 1:
            p, q = hull[-2:]
            if (loss[p] - loss[q]) * (cost[i] - cost[q]) > (loss[q] - loss[i]) * (cost[q] - cost[p]):
                break
            hull.pop()
        hull.append(i)
    return np.array(hull)


class _Node:
    """A problem with some of the options, and its relaxation: hull segments of all layers, steepest first."""

    def __init__(self, layers: list[Floats], limit: float) -> None:
        self.layers, self.limit, hulls = layers, limit, [_hull(layer) for layer in layers]
        steps = [np.diff(layer[:2, hull]) * [[1], [-1]] for layer, hull in zip(layers, hulls, strict=True)]
        # A layer's slopes fall but for rounding; the minimum keeps its segments in order.
        slopes = np.concatenate([np.minimum.accumulate(loss / cost) for cost, loss in steps])
        order = np.argsort(-slopes, kind="stable")
        self.owner = np.repeat(np.arange(len(layers)), [step.shape[1] for step in steps])[order]
        self.steps, self.ends = np.hstack(steps)[:, order], np.array([(x[0, 0], x[1, -1]) for x in layers]).T
        # Sums of n terms >= 0 are good to n eps; rounded segments and hulls add a few times that.
        self.slack = 4 * _TIE + 16 * float(np.finfo(float).eps) * len(order)
        spent = self.ends[0].sum() + np.cumsum(self.steps[0])
        taken = int(np.searchsorted(spent, limit * (1 - self.slack), "right"))
        counts = np.bincount(self.owner[:taken], minlength=len(layers))
        self.greedy, self.bound = self.solution([h[n] for h, n in zip(hulls, counts, strict=True)]), math.inf
        if taken < len(order):  # otherwise the least losses fit, and there is nothing to search for
            self.bound = float(self.floor(np.full(len(layers), True))(limit)) * (1 - self.slack)
            self.slope, self.broken = float(slopes[order[taken]]), int(self.owner[taken])
            cost, p, q = layers[self.broken][0], *hulls[self.broken][counts[self.broken] :][:2]
            self.cut = np.clip(cost[p] + limit - spent[taken] + self.steps[0, taken], cost[p], cost[q - 1])

    def floor(self, rest: NDArray[np.bool_]) -> Callable[[Floats | float], Floats]:
        """F_R of the layers R in a mask, a function of the room for their cost: inf where nothing fits."""
        (cost, loss), (least_cost, least_loss) = self.steps[:, rest[self.owner]], self.ends[:, rest].sum(1)
        cost = least_cost + np.append(0.0, np.cumsum(cost))
        # Summed from the least loss up, so that rounding is relative to the value, not to the greatest loss.
        loss = least_loss + np.append(0.0, np.cumsum(loss[::-1]))
        return lambda room: np.interp(-(room + self.slack * self.limit), -cost[::-1], loss, right=math.inf)

    def solution(self, at: Sequence[int]) -> Solution:
        cost, loss, index = np.array([layer[:, i] for layer, i in zip(self.layers, at, strict=True)]).T
        return math.fsum(loss), math.fsum(cost), index.astype(int).tolist()

    def within(self, target: float) -> list[Floats]:
        """The layers without the options whose reduced cost rules out a loss <= target."""
        values, price = [loss + self.slope * cost for cost, loss, _ in self.layers], self.slope * self.limit
        gap = target - (math.fsum(v.min() for v in values) - price) + self.slack * (target + price)
        return [layer[:, v - v.min() <= max(gap, 0)] for layer, v in zip(self.layers, values, strict=True)]

    def split(self, target: float) -> list[_Node]:
        """Nodes that together have all solutions of loss <= target."""
        layers, i = self.within(target), self.broken
        low = layers[i][0] <= self.cut
        parts = [[*layers[:i], layers[i][:, side], *layers[i + 1 :]] for side in (low, ~low) if side.any()]
        return [_Node(part, self.limit) for part in parts if math.fsum(x[0, 0] for x in part) <= self.limit]


def _search(node: _Node, target: float, longest: int) -> Solution | None:
    """The optimum if its loss is <= target, else a solution or one of loss inf; None if lists get too long."""
    # Layers of one unit cost go together, as sums of their costs coincide.
    order = np.argsort([-np.diff(cost).min(initial=math.inf) for cost, _, _ in node.layers], kind="stable")
    work = np.cumsum([math.log(node.layers[i].shape[1]) for i in order])
    middle, lists = int(np.searchsorted(work, work[-1] / 2)), []
    for half in (order[:middle], order[middle:]):
        cost, loss, rest, trail = np.zeros(1), np.zeros(1), np.full(len(order), True), []
        for i in half:
            layer, rest[i] = node.layers[i], False
            if len(cost) * layer.shape[1] > longest:
                return None
            cost, loss = np.add.outer(cost, layer[0]).ravel(), np.add.outer(loss, layer[1]).ravel()
            keep = np.flatnonzero(loss + node.floor(rest)(node.limit - cost) <= target * (1 + node.slack))
            keep = keep[_undominated(cost[keep], loss[keep])]
            cost, loss = cost[keep], loss[keep]
            trail.append((i, *np.divmod(keep, layer.shape[1])))
        lists.append((cost, loss, trail))
    (cost, loss, _), (cost2, loss2, _) = lists
    # The dearest partner that fits loses least; -1 is none. Of those that tie, the cheapest; the end is none.
    fit = np.searchsorted(cost2, node.limit - cost, "right") - 1
    least = (loss + np.append(loss2, math.inf)[fit]).min(initial=math.inf)
    if least == math.inf:
        return math.inf, math.inf, []
    fit = np.searchsorted(-loss2, loss - least * (1 + _TIE))
    first, at = int(np.argmin(cost + np.append(cost2, math.inf)[fit])), [0] * len(order)
    for state, (_, _, trail) in zip((first, fit[first]), lists, strict=True):
        for i, parents, chosen in reversed(trail):
            at[i], state = chosen[state], parents[state]
    return node.solution(at)
