"""GDWS approximation in the metric of the data. Tensors in, tensors out; one group of one convolution at a time.

An error dW of the weights changes an output pixel by dW x for the patch x that it sees, and the network's output distribution
through the gradient g there (gdws.observe). With S the second moment of the patches, each weighted by the squared length of the
gradient at its pixel, and F half the second moment of the gradients,

    loss(Q) = tr( F (W - Q) S (W - Q)^T )                                                     (K-FAC's factorisation)

estimates the KL divergence (nats) of the compressed network's decisions from the original's, pixel by pixel. It is one
currency for all layers, so neither alpha nor a beta is needed.

For kernels V (each row looks at one channel) the best pointwise weights are least squares, P = W S V^T (V S V^T)^-1, and with
H = (V S V^T)^-1 leaving out the set R of kernels *and refitting the rest* costs exactly tr(F P_R H_RR^-1 P_R^T).

Shapes: weight (M, C, K); moment S (CK, CK); gradient F (M, M); all float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MOMENT_RIDGE = 1e-3
GRADIENT_RIDGE = 1e-3
"""Of the mean diagonal: keeps moments from few samples, or of dead channels, invertible."""

ROUND = 0.04
"""Share of the kernels that one round of the elimination takes away."""


@dataclass(frozen=True)
class Curve:
    """Candidate kernels of a layer from the most to the least worth keeping, and the loss with the first G kept.

    kernels (C, K, K): K candidates for each channel, one a row; order (CK,): candidate i of channel c is number cK + i;
    losses (CK + 1,), not increasing.
    """

    kernels: Tensor
    order: Tensor
    losses: Tensor

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


def conditioned(matrix: Tensor, ridge: float) -> Tensor:
    """float64, with a ridge in proportion to the matrix's own scale; the identity for an all-zero matrix."""
    matrix = matrix.double()
    scale = float(matrix.diagonal().mean())
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return matrix + ridge * scale * identity if scale > 0 else identity * torch.finfo(torch.float32).tiny


def curve(weight: Tensor, moment: Tensor, gradient: Tensor) -> Curve:
    """Candidates, and their backward elimination: the kernels whose loss after refitting the others is least go first.

    Greedy (a few per cent of what is left in each round, then scores anew), so an upper bound on the best loss for each G.
    Costs one inverse of S and as much again.
    """
    outputs, channels, taps = weight.shape
    kernels = candidate_kernels(weight, moment, gradient)
    basis = torch.block_diag(*kernels)
    projected = basis @ moment @ basis.T
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(projected))
    # W = P V exactly while all candidates are there.
    mix = torch.linalg.solve(kernels.mT, weight.permute(1, 2, 0)).reshape(channels * taps, outputs).T
    alive = torch.arange(channels * taps, device=weight.device)
    removed, losses = [], [0.0]
    while len(alive):
        scores = ((gradient @ mix) * mix).sum(0) / inverse.diagonal()
        ranking = scores.argsort()
        count = max(1, int(len(alive) * ROUND))
        out, stay = ranking[:count], ranking[count:].sort().values
        block = torch.linalg.cholesky(inverse[out][:, out])
        carried = torch.cholesky_solve(inverse[out][:, stay], block)
        lost = mix[:, out]
        cost = float(((gradient @ lost) * torch.cholesky_solve(lost.T, block).T).sum())
        share = scores[out].clamp_min(0).cumsum(0)
        share = share / share[-1] if float(share[-1]) > 0 else torch.ones_like(share)
        losses += (losses[-1] + max(cost, 0.0) * share).tolist()
        removed.append(alive[out])
        mix = mix[:, stay] - lost @ carried
        inverse = inverse[stay][:, stay] - inverse[stay][:, out] @ carried
        alive = alive[stay]
    order = torch.cat(removed).flip(0)
    return Curve(kernels, order, torch.tensor(losses, dtype=torch.float64).flip(0).cummin(0).values)


def candidate_kernels(weight: Tensor, moment: Tensor, gradient: Tensor) -> Tensor:
    """(C, K, K): for each channel alone, the right singular vectors of F^1/2 W_c S_c^1/2, as kernels of unit length."""
    _, channels, taps = weight.shape
    own = channel_moments(moment, channels, taps)
    root, inverse_root = roots(own)
    blocks = weight.transpose(0, 1) @ root
    gram = blocks.mT @ (gradient @ blocks)
    kernels = torch.linalg.eigh(gram).eigenvectors.flip(2).mT @ inverse_root
    unit: Tensor = kernels / kernels.norm(dim=2, keepdim=True)
    return unit


def mix(weight: Tensor, moment: Tensor, channels: Tensor, kernels: Tensor) -> Tensor:
    """The best pointwise weights (M, G) for these kernels: W S V^T (V S V^T)^-1."""
    _, count, taps = weight.shape
    rows = moment.view(count, taps, -1)[channels]
    seen = torch.einsum("gk,gkd->gd", kernels, rows)
    gram = torch.einsum("ghk,hk->gh", seen.view(-1, count, taps)[:, channels], kernels)
    found: Tensor = torch.linalg.solve(gram, seen @ weight.flatten(1).T).T
    return found


def loss(weight: Tensor, approximation: Tensor, moment: Tensor, gradient: Tensor) -> float:
    """tr(F (W - Q) S (W - Q)^T)."""
    difference = (weight - approximation).flatten(1)
    return float(((gradient @ difference) * (difference @ moment)).sum())


def channel_moments(moment: Tensor, channels: int, taps: int) -> Tensor:
    """The diagonal blocks S_cc, (C, K, K)."""
    index = torch.arange(channels, device=moment.device)
    return moment.view(channels, taps, channels, taps)[index, :, index, :]


def roots(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """S^1/2 and S^-1/2 of symmetric positive definite blocks."""
    values, vectors = torch.linalg.eigh(blocks)
    root = values.clamp_min(1e-12 * values.amax(-1, keepdim=True)).sqrt()
    return (vectors * root[..., None, :]) @ vectors.mT, (vectors / root[..., None, :]) @ vectors.mT
