"""Plans for targets of all kinds, and what they refuse."""

import itertools

import pytest

import gdws
from gdws.core.errors import GdwsError
from gdws.planning import cost
from gdws.planning.latency import search
from gdws.planning.latency.measure import measure_latencies
from gdws.planning.latency.target import Target
from gdws.structures import STRUCTURES


def test_a_target_without_its_gpu_is_refused_before_anything_is_done(residual, gpu_table):
    model, _, _, statistics = residual
    for calibration, target in ((None, Target("cuda")), (statistics, gpu_table)):
        with pytest.raises(GdwsError, match="the target is cuda and the model on cpu: expected"):
            gdws.plan(model, calibration, gdws.Speedup(2), target=target)
    with pytest.raises(GdwsError, match="the target is cuda and the model on cpu: expected"):
        measure_latencies(*residual, Target("cuda"))


def test_plan_takes_other_targets_for_budgets_of_time_only(residual, table, monkeypatch):
    model, _, _, statistics = residual
    monkeypatch.setattr(search, "ROUNDS", 1)
    made = gdws.plan(model, statistics, gdws.Speedup(1.1), gdws.Calibrated(structures=["gdws", "vertical"]), target=table)
    assert made.measured is not None
    assert all((layer.seconds is None) == (not layer.replaceable) for layer in made.layers)
    assert gdws.Plan.from_json(made.to_json()) == made
    with pytest.raises(GdwsError, match=r"got Target\(engine='auto'.*\): expected Latency or Speedup"):
        gdws.plan(model, statistics, gdws.Macs(0.5), gdws.Calibrated(structures="gdws"), target=Target())
    with pytest.raises(GdwsError, match="got a latency table: expected Latency or Speedup"):
        gdws.plan(model, statistics, gdws.Macs(0.5), gdws.Calibrated(structures="gdws"), target=table)
    with pytest.raises(GdwsError, match="'paper' got a target: expected"):
        gdws.plan(model, statistics, gdws.Macs(0.5), "paper", target=Target())
    with pytest.raises(GdwsError, match="expected the method 'calibrated'"):
        gdws.plan(model, [statistics.images], gdws.Latency(0.5), "paper")


@pytest.mark.parametrize("kind", [gdws.Macs, gdws.Params])
def test_counted_budgets_for_tensor_cores_take_plain_convolutions_in_their_sizes(residual, kind):
    """Against all combinations of ranks of 64, 128, ... and horizontally 16 and 32 too; no GPU is needed to plan for one."""
    model, sites, _, statistics = residual
    target = Target("cuda", "float16", batch=256)
    smallest = {"horizontal": 16, "vertical": 64}
    options = []
    for site in sites:
        own = [(cost.dense_macs(site) if kind is gdws.Macs else cost.dense_parameters(site), 0.0)]
        for name, least in smallest.items():
            structure, losses = STRUCTURES[name], statistics.curves[site.name][name][0].losses.tolist()
            for rank in (rank for rank in (16, 32, 64, 128, 192, 256) if least <= rank < len(losses)):
                price = structure.macs(site, rank) if kind is gdws.Macs else structure.parameters(site.conv, rank)
                own.append((price, losses[rank]))
        assert len(own) > 2
        options.append(own)
    limit = 0.5 * sum(own[0][0] for own in options)
    within = [pick for pick in itertools.product(*options) if sum(costs for costs, _ in pick) <= limit]
    best = min(sum(loss for _, loss in pick) for pick in within)

    made = gdws.plan(model, statistics, kind(0.5), gdws.Calibrated(structures=["gdws", "separable"]), target=target)
    layers = [layer for layer in made.layers if layer.replaceable]
    assert (made.macs if kind is gdws.Macs else made.parameters) <= 0.5
    assert sum(layer.loss for layer in layers) == pytest.approx(best)
    assert {layer.structure for layer in layers} <= {"dense", *smallest}
    assert all(layer.ranks[0] in (16, 32, 64, 128, 192) for layer in layers if layer.ranks)
    assert made.tensor_cores
    assert gdws.Plan.from_json(made.to_json()).tensor_cores
    assert gdws.Plan.from_json(made.to_json().replace('"tensor cores": true', '"tile": 16')).tensor_cores  # as it was written
    free = gdws.plan(model, statistics, kind(0.5), gdws.Calibrated(structures="vertical"))
    assert not free.tensor_cores
    assert any(layer.ranks[0] % 16 for layer in free.layers if layer.ranks)
    with pytest.raises(GdwsError, match="structures are gdws: expected plain convolutions"):
        gdws.plan(model, statistics, kind(0.5), gdws.Calibrated(structures="gdws"), target=target)
    with pytest.raises(GdwsError, match=r"Target\(engine='cuda', precision='float32'.*\): expected .* cuda in float16"):
        gdws.plan(model, statistics, kind(0.5), target=Target("cuda"))
    with pytest.raises(
        GdwsError, match=r"\(0.01\) is out of reach in sizes for tensor cores: expected at least 0\.\d+, all layers smallest"
    ):
        gdws.plan(model, statistics, kind(0.01), gdws.Calibrated(structures="separable"), target=target)


def test_the_paper_method_takes_alpha_class_by_class_if_asked(residual):
    """Against LEGO by hand with the exact alpha of the same attacked images, whatever statistics come along."""
    model, _, _, statistics = residual
    attack, beta = statistics.attack, 0.05
    plan = gdws.plan(model, [statistics.images], gdws.Beta(beta), gdws.Paper(exact=True, attack=attack), seed=3)
    estimated = gdws.plan(model, [statistics.images], gdws.Beta(beta), gdws.Paper(attack=attack), seed=3)
    assert plan != estimated
    alphas = gdws.sensitivity(model, [statistics.images], exact=True, attack=attack, seed=3)
    replaced = [layer for layer in plan.layers if layer.structure == "gdws"]
    assert replaced
    for layer in replaced:
        factors = gdws.lego(model.get_submodule(layer.name).weight, alphas[layer.name], beta, layer.groups)
        assert tuple(factors.g.tolist()) == layer.ranks
        assert factors.error == pytest.approx(layer.loss)
