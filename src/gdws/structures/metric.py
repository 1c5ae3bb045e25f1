"""The metric of the data: what an error in a convolution's weights does to the network's predictions.

An error dW of the weights changes an output pixel by dW x for the patch x that it sees, and the network's output distribution
through the gradient g there (gdws.calibration.hooks). With S the second moment of the patches, each weighted by the squared
length of the gradient at its pixel, and F half the second moment of the gradients,

    loss(Q) = tr( F (W - Q) S (W - Q)^T )                                                     (K-FAC's factorization)

estimates the KL divergence (nats) of the compressed network's predictions from the original's, pixel by pixel. It is one
currency for all layers, so neither alpha nor a beta is needed.

Every factorized convolution is a bank V of patch features and a mix P of them, Q = P V. For a given bank the best mix is least
squares, P = W S V^T (V S V^T)^-1. Structures differ in the banks that they allow:
gdws.structures.kernel_elimination, gdws.structures.filter_splitting.

Shapes: weight (M, C, K); moment S (CK, CK); gradient F (M, M); all float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOMENT_RIDGE = 1e-3
GRADIENT_RIDGE = 1e-3
"""Of the mean diagonal: keeps moments from few samples, or of dead channels, invertible."""

BLOCK = 256
"""Rows of a second moment that are summed at a time."""


def add_moment(total: Tensor, rows: Tensor) -> None:
    """total (groups, n, n) += x x^T for x (groups, n, P): on its diagonal and above, for half the work (`mirror`)."""
    for own, x in zip(total, rows, strict=True):
        for start in range(0, len(x), BLOCK):
            own[start : start + BLOCK, start:] += product(x[start : start + BLOCK], x[start:])


def product(left: Tensor, right: Tensor) -> Tensor:
    """a b^T for a (n, P) and b (m, P). In float32 on a CPU by oneDNN, where it is there: on AMD's twice as fast as MKL."""
    if left.device.type == "cpu" and left.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        found: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
        return found
    return left @ right.T


def mirror(upper: Tensor) -> Tensor:
    """The symmetric matrices (groups, n, n) that have these on their diagonals and above."""
    whole = upper.triu()
    for start in range(0, whole.shape[1], BLOCK):  # blocks that stay in the cache: five times as fast as all at once
        own, after = slice(start, start + BLOCK), slice(start + BLOCK, None)
        whole[:, own, own] += whole[:, own, own].triu(1).mT
        whole[:, after, own] = whole[:, own, after].mT
    return whole


def add_ridge(matrix: Tensor, ridge: float) -> Tensor:
    """float64, with a ridge in proportion to the matrix's own scale; the identity for an all-zero matrix."""
    matrix = matrix.to(torch.float64, copy=True)
    scale = float(matrix.diagonal().mean())
    matrix.diagonal().add_(ridge * scale if scale > 0 else torch.finfo(torch.float32).tiny)
    return matrix


def loss(weight: Tensor, approximation: Tensor, moment: Tensor, gradient: Tensor) -> float:
    """tr(F (W - Q) S (W - Q)^T)."""
    difference = (weight - approximation).flatten(1)
    return float(((gradient @ difference) * (difference @ moment)).sum())


def matrix_roots(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """S^1/2 and S^-1/2 of symmetric positive definite blocks."""
    values, vectors = torch.linalg.eigh(blocks)
    root = values.clamp_min(1e-12 * values.amax(-1, keepdim=True)).sqrt()
    return (vectors * root[..., None, :]) @ vectors.mT, (vectors / root[..., None, :]) @ vectors.mT
