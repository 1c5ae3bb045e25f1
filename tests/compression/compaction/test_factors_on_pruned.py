"""GDWS on pruned networks: no loss, ranks as linear algebra says, sizes counted in non-zeros."""

import pytest
import torch

import gdws
from gdws.models.zoo import preact

X = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def pruned():
    """1 % of the weights of each layer, and BatchNorm's statistics of what is left."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = preact.PreActResNet((32, 64), (1, 1))
    for weight in model.parameters():
        if weight.ndim == 4:
            smallest = weight.detach().abs().flatten().kthvalue(int(0.99 * weight.numel())).values
            weight.data = torch.where(weight.abs() > smallest, weight, 0)
    model.train()(X)
    return model.eval()


def test_lossless_factors_have_the_ranks_of_the_blocks_and_stay_sparse(pruned):
    weight = pruned.get_submodule("layer2.0.conv2").weight.detach()
    factors = gdws.lego(weight, None, 0.0)
    torch.testing.assert_close(factors.dense(), weight, atol=1e-7, rtol=1e-6)
    ranks = torch.linalg.matrix_rank(weight.double().flatten(2).transpose(0, 1))
    assert torch.equal(factors.g, ranks)
    # Units in one factor, the non-zeros of the block in the other, wherever it has no more columns or rows than its rank.
    nonzeros = int(factors.depthwise.count_nonzero() + factors.pointwise.count_nonzero())
    assert nonzeros <= int((weight != 0).sum()) + 1.2 * int(ranks.sum())


def test_sizes_count_what_is_not_zero(pruned):
    fast = gdws.compress(pruned, [X], gdws.Beta(0), gdws.Paper(attack=None))
    torch.testing.assert_close(fast(X), pruned(X), atol=1e-5, rtol=1e-5)
    plan = gdws.plan_of(fast)
    weights = [pruned.get_submodule(layer.name).weight for layer in plan.layers if layer.replaceable]
    assert plan.nonzeros == sum(int((w != 0).sum()) for w in weights) / sum(w.numel() for w in weights)
    by_hand = sum(int((p != 0).sum()) if p.ndim > 1 else p.numel() for p in fast.parameters())
    cost, before = gdws.network_cost(fast, X), gdws.network_cost(pruned, X)
    assert (cost.nonzeros, cost.size_mb) == (by_hand, 4 * by_hand / 2**20)
    assert cost.macs < 0.5 * before.macs


def test_every_method_takes_a_pruned_network(pruned):
    for model, method in (
        (pruned, gdws.Calibrated(structures=["gdws", "vertical"], attack=None)),
        (gdws.compact(pruned, X), "paper"),
        (gdws.compact(pruned, X), "uniform"),
    ):
        fast = gdws.compress(model, [X], gdws.Macs(0.4), method)
        assert gdws.plan_of(fast).macs <= 0.4
        assert gdws.plan_of(fast).nonzeros < 0.05
        assert bool(fast(X).isfinite().all())
