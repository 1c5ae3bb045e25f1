"""What budgets allow, and what they say of themselves."""

import math

import pytest
import torch

import gdws
from gdws.core.errors import GdwsError
from gdws.planning import cost
from gdws.planning.budgets import KINDS, Budget


def test_budgets_of_time_are_checked():
    for wrong in (0.5, math.inf, math.nan):
        with pytest.raises(GdwsError, match="at least 1"):
            gdws.Speedup(wrong)
    with pytest.raises(GdwsError, match="fraction"):
        gdws.Latency(1.5)


@pytest.mark.parametrize(
    ("kind", "value", "is_priced", "is_measured", "is_searched"),
    [
        (gdws.Macs, 0.5, True, False, False),
        (gdws.Params, 0.5, True, False, False),
        (gdws.Latency, 0.5, False, True, False),
        (gdws.Speedup, 2, False, True, False),
        (gdws.Beta, 0.1, False, False, False),
        (gdws.Drop, 5, False, False, True),
    ],
)
def test_a_budget_says_how_it_is_kept(kind, value, is_priced, is_measured, is_searched):
    budget = kind(value)
    assert KINDS[kind.__name__] is kind
    assert (budget.prices is not None, budget.is_measured, budget.is_searched) == (is_priced, is_measured, is_searched)
    assert hash(budget) == hash(kind(value))
    assert budget == kind(value)
    assert str(budget) == f"{kind.__name__}({value})"


def test_every_kind_of_budget_is_of_a_kind_of_its_own():
    assert list(KINDS) == ["Macs", "Params", "Latency", "Speedup", "Beta", "Drop"]
    assert len({kind(0.5) if name != "Speedup" else kind(2) for name, kind in KINDS.items()}) == len(KINDS)
    assert gdws.Macs(0.5) != gdws.Params(0.5)
    assert gdws.Latency(0.5).share == gdws.Speedup(2).share == 0.5
    with pytest.raises(GdwsError, match="expected one of Macs, Params, Latency, Speedup, Beta, Drop"):
        Budget(0.5)


@pytest.mark.parametrize("given", [0.5, gdws.Macs, "macs"])
@pytest.mark.parametrize("call", [gdws.compress, gdws.plan])
def test_what_is_no_budget_is_refused(call, given):
    with pytest.raises(GdwsError, match=r"the budget is .*: expected one of Macs, .*, such as Macs\(0.5\)"):
        call(torch.nn.Conv2d(3, 8, 3), [torch.rand(2, 3, 8, 8)], given)


@pytest.mark.parametrize("value", ["0.5", None, (0.5,)])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(GdwsError, match=r"Macs got .*: expected a number"):
        gdws.Macs(value)


def test_prices_are_the_costs_of_layers(residual):
    _, sites, structures, _ = residual
    for site in sites:
        assert gdws.Macs(0.5).prices.dense(site) == cost.dense_macs(site)
        assert gdws.Params(0.5).prices.dense(site) == cost.dense_parameters(site)
        for structure in structures:
            assert gdws.Macs(0.5).prices.of(structure, site, 3) == structure.macs(site, 3)
            assert gdws.Params(0.5).prices.of(structure, site, 3) == structure.parameters(site.conv, 3)
