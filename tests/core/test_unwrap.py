"""Networks as training leaves them: the same function, with plain weights under the author's names."""

import copy
import warnings

import pytest
import torch
from helpers import network
from torch import nn
from torch.nn.utils import parametrizations, prune

import gdws
from gdws.core.errors import GdwsError
from gdws.core.hashing import weights_hash
from gdws.core.unwrap import unwrap


def legacy_weight_norm(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(model[3])


def legacy_spectral_norm(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.spectral_norm(model[3])


def pruned(model):
    prune.l1_unstructured(model[3], "weight", 0.5)
    prune.random_structured(model[3], "weight", 0.2, dim=0)


CHANGES = {
    "weight_norm, legacy": legacy_weight_norm,
    "spectral_norm, legacy": legacy_spectral_norm,
    "weight_norm": lambda model: parametrizations.weight_norm(model[3]),
    "spectral_norm": lambda model: parametrizations.spectral_norm(model[3]),
    "orthogonal": lambda model: parametrizations.orthogonal(model[8]),
    "pruned": pruned,
}
AROUND = {
    "DataParallel": nn.DataParallel,
    "torch.compile": torch.compile,
    "Normalized": lambda model: gdws.models.Normalized(model, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
}


@pytest.fixture(scope="module")
def images():
    return torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def changed(name):
    model = network()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        CHANGES[name](model)
        model.train()(torch.rand(4, 3, 8, 8))  # what is computed in a pass is no leaf of the graph of gradients
    return model.eval()


@pytest.mark.parametrize("name", CHANGES)
def test_weights_that_are_computed_become_plain(images, name):
    model = changed(name)
    before, wanted = copy.copy(list(model.state_dict())), model(images)
    made = unwrap(model)
    assert sorted(made.state_dict()) == sorted(network().state_dict())
    assert [p.requires_grad for p in made.parameters()] == [True] * len(list(network().parameters()))
    assert type(made[3]) is nn.Conv2d
    torch.testing.assert_close(copy.deepcopy(made)(images), wanted, rtol=0, atol=1e-6)
    assert list(model.state_dict()) == before
    assert torch.equal(model(images), wanted)


def test_a_plain_network_is_left_as_it_is():
    model = network().train()
    assert unwrap(model) is model


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules, when its compiler is imported
def test_what_is_around_a_network_is_taken_off():
    model = network()
    assert unwrap(torch.compile(nn.DataParallel(model))) is model


def test_the_input_stays_normalized_by_what_the_weights_are_hashed_with(images):
    model = network()
    (mean, std), other = ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)), ((0.5, 0.4, 0.3), (0.2, 0.3, 0.3))
    made = unwrap(nn.DataParallel(gdws.models.Normalized(nn.DataParallel(model), mean, std)))
    assert list(made.state_dict()) == list(model.state_dict())
    wanted = model((images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1))
    for again in (made, copy.deepcopy(made)):
        assert torch.equal(again(images), wanted)
    twice = gdws.models.Normalized(made, *other)
    torch.testing.assert_close(unwrap(twice)(images), twice(images))
    assert not torch.equal(model(images), wanted)
    assert made[3] is model[3]
    hashes = {weights_hash(unwrap(gdws.models.Normalized(model, *constants))) for constants in ((mean, std), other)}
    assert len(hashes | {weights_hash(model)}) == 3


@pytest.mark.parametrize("name", CHANGES)
def test_compress_save_load(images, tmp_path, name):
    """Bug: a saved network could not be loaded, since its architecture could not be copied."""
    model = changed(name)
    fast = gdws.compress(model, [images], gdws.Macs(0.4), "uniform")
    assert {layer.name for layer in gdws.plan_of(fast).layers if layer.structure == "gdws"} == {"3"}
    gdws.save(fast, tmp_path / "fast")
    assert torch.equal(gdws.load(tmp_path / "fast", changed(name))(images), fast(images))


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules, when its compiler is imported
def test_a_network_in_a_wrapper_goes_all_the_way(images, tmp_path, name):
    """Bug: DataParallel put "module." before every name, and its export failed."""
    model = network()
    wrapped = AROUND[name](model)
    statistics = gdws.calibrate(wrapped, [images], gdws.Calibrated(attack=None))
    plan = gdws.plan(wrapped, statistics, gdws.Macs(0.5))
    assert [layer.name for layer in plan.layers] == ["0", "3"]
    fast = gdws.apply(wrapped, plan, statistics)
    fast = nn.DataParallel(fast) if name == "Normalized" else AROUND[name](fast)
    assert gdws.plan_of(fast) == plan
    gdws.save(fast, tmp_path / "fast")
    assert torch.equal(gdws.load(tmp_path / "fast", wrapped)(images), unwrap(fast)(images))
    gdws.to_onnx(fast, tmp_path / "fast.onnx", images)
    assert gdws.verify(tmp_path / "fast.onnx", fast, images).changed == 0
    assert gdws.compile(fast, "onnxruntime", example=images, threads=1)(images).shape == (12, 4)
    labelled = [(images, torch.zeros(12, dtype=torch.int64))]
    assert torch.equal(gdws.evaluate(wrapped, labelled).natural, unwrap(wrapped)(images).argmax(1) == 0)


@pytest.mark.parametrize("given", ["network.onnx", {"0.weight": torch.zeros(8, 3, 3, 3)}])
def test_what_is_no_module_is_refused(given):
    with pytest.raises(GdwsError, match=f"the model is a {type(given).__name__}: expected an nn.Module"):
        gdws.compress(given, [torch.rand(2, 3, 8, 8)], gdws.Macs(0.5))
