"""Which depthwise kernels a GDWS layer should keep, in the metric of the data. One group of one convolution at a time.

Every row of the bank V is a kernel that looks at one channel. With P the best mix and H = (V S V^T)^-1, leaving out the set R
of kernels *and refitting the rest* costs exactly tr(F P_R H_RR^-1 P_R^T).

Shapes: weight (M, C, K); moment S (CK, CK); gradient F (M, M); all float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gdws.structures.metric import matrix_roots

AT_ONCE = 128
"""Kernels at a time: what is gathered for more of them no longer fits the memory that is recycled."""

POOL = 0.8
"""Share of the candidates that the elimination begins with. The others matter least in their channels, and go at once."""

ROUND = 0.04
"""Share of the kernels that one round of the elimination takes away."""

COMPACT = 0.8
"""Share of the rows of a matrix that are still in use when it is copied without the others."""


@dataclass(frozen=True)
class Curve:
    """Candidate kernels of a layer from the most to the least worth keeping, and the loss with the first G kept.

    kernels (C, K, K): K candidates for each channel, one a row; order (CK,): candidate i of channel c is number cK + i;
    losses (CK + 1,), not increasing.
    """

    kernels: Tensor
    order: Tensor
    losses: Tensor

    def scaled(self, factors: Tensor) -> Curve:
        return replace(self, losses=(self.losses * factors).cummin(0).values)

    def lasting(self) -> Curve:
        return self

    def distribution(self, kept: int) -> Tensor:
        """g (C,) with the first `kept` candidates."""
        size = self.kernels.shape[1]
        return torch.bincount(self.order[:kept] // size, minlength=len(self.kernels))

    def leading(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """The g_c best candidates of every channel: channels (G,) ascending, kernels (G, K)."""
        size = self.kernels.shape[1]
        of_channel = self.order // size
        by_channel = of_channel.argsort(stable=True)
        ranked = (self.order % size)[by_channel].view(-1, size)
        kept = torch.arange(size, device=g.device) < g[:, None]
        channels = torch.arange(len(g), device=g.device).repeat_interleave(g)
        return channels, self.kernels[channels, ranked[kept]]


def curve(weight: Tensor, moment: Tensor, gradient: Tensor) -> Curve:
    """Candidates, and their backward elimination: the kernels whose loss after refitting the others is least go first.

    Greedy (a few percent of what is left in each round, then scores anew), so an upper bound on the best loss for each G in
    the pool. Candidates that are not in it go at once: what that loses is exact, and shared among them by their energies.
    Costs one inverse of S for the pool, and as much again.
    """
    kernels, energies = candidate_kernels(weight, moment, gradient)
    ranked = energies.flatten().argsort(descending=True)
    number, rest = ranked.tensor_split([math.ceil(POOL * len(ranked))])
    number = number.sort().values
    inverse, mix, felt, lost_at_once = _pool(weight, moment, gradient, kernels, number)
    shares = energies.flatten()[rest].flip(0).clamp_min(torch.finfo(energies.dtype).tiny).cumsum(0)
    removed, losses = [rest.flip(0)], [0.0, *(lost_at_once * shares / shares[-1:]).tolist()]
    # Rows and columns of what is removed become zero. They go when they are many: to copy the rest takes as long as a round.
    gone = torch.zeros_like(number, dtype=torch.bool)
    left = len(number)
    while left:
        if left < COMPACT * len(number):
            stay = (~gone).nonzero()[:, 0]
            inverse, mix, felt = inverse[stay][:, stay], mix[:, stay], felt[:, stay]
            number, gone = number[stay], gone[stay]
        scores = ((felt * mix).sum(0) / inverse.diagonal()).masked_fill(gone, torch.inf)
        out = scores.argsort()[: max(1, int(left * ROUND))]
        columns, lost, lost_felt = inverse[:, out], mix[:, out], felt[:, out]
        block = torch.linalg.cholesky(columns[out])
        carried = torch.cholesky_solve(columns.T, block)
        cost = float((lost_felt * torch.cholesky_solve(lost.T, block).T).sum())
        share = scores[out].clamp_min(0).cumsum(0)
        share = share / share[-1] if float(share[-1]) > 0 else torch.ones_like(share)
        losses += (losses[-1] + max(cost, 0.0) * share).tolist()
        removed.append(number[out])
        mix.addmm_(lost, carried, alpha=-1)
        felt.addmm_(lost_felt, carried, alpha=-1)  # F P, an eighth of the work of the product
        inverse.addmm_(columns, carried, alpha=-1)
        gone[out] = True
        left -= len(out)
    order = torch.cat(removed).flip(0)
    return Curve(kernels, order, torch.tensor(losses, dtype=torch.float64).flip(0).cummin(0).values)


def _pool(
    weight: Tensor, moment: Tensor, gradient: Tensor, kernels: Tensor, number: Tensor
) -> tuple[Tensor, Tensor, Tensor, float]:
    """(V S V^T)^-1 for the candidates of these numbers, their best mix P (M, n), F P, and what is lost with them alone.

    The bank V is zero but for a block of each channel.
    """
    channels, taps, _ = kernels.shape
    seen = (kernels @ moment.view(channels, taps, -1)).flatten(0, 1)[number]
    projected = (kernels @ seen.T.reshape(channels, taps, -1)).flatten(0, 1)[number]
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(projected))
    flat = weight.flatten(1)
    wanted = flat @ moment
    cross = (wanted.view(-1, channels, taps).transpose(0, 1) @ kernels.mT).transpose(0, 1).flatten(1)[:, number]
    mix = cross @ inverse
    felt = gradient @ mix
    lost = ((gradient @ flat) * wanted).sum() - (felt * cross).sum()
    return inverse, mix, felt, max(float(lost), 0.0)


def candidate_kernels(weight: Tensor, moment: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """For each channel alone, the right singular vectors of F^1/2 W_c S_c^1/2, as kernels of unit length (C, K, K), and their
    squared singular values (C, K): what each alone is good for.
    """
    _, channels, taps = weight.shape
    own = channel_moments(moment, channels, taps)
    root, inverse_root = matrix_roots(own)
    blocks = weight.transpose(0, 1) @ root
    gram = blocks.mT @ (gradient @ blocks)
    energies, vectors = torch.linalg.eigh(gram)
    kernels = vectors.flip(2).mT @ inverse_root
    return kernels / kernels.norm(dim=2, keepdim=True), energies.flip(1)


def best_mix(weight: Tensor, moment: Tensor, channels: Tensor, kernels: Tensor) -> Tensor:
    """The best pointwise weights (M, G) for these kernels: W S V^T (V S V^T)^-1."""
    _, count, taps = weight.shape
    rows, flat = moment.view(count, taps, -1), weight.flatten(1).T
    grams, crosses = [], []
    for part, own in zip(channels.split(AT_ONCE), kernels.split(AT_ONCE), strict=True):
        seen = torch.einsum("gk,gkd->gd", own, rows[part])
        grams.append(torch.einsum("ghk,hk->gh", seen.view(-1, count, taps)[:, channels], kernels))
        crosses.append(seen @ flat)
    found: Tensor = torch.linalg.solve(torch.cat(grams), torch.cat(crosses)).T
    return found


def channel_moments(moment: Tensor, channels: int, taps: int) -> Tensor:
    """The diagonal blocks S_cc, (C, K, K)."""
    index = torch.arange(channels, device=moment.device)
    return moment.view(channels, taps, channels, taps)[index, :, index, :]
