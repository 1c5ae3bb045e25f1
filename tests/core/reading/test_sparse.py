"""Sparse tensors in files: bit by bit, small, and bounded when a stranger wrote them."""

import json
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import gdws
from gdws.core.errors import GdwsError
from gdws.core.reading import sparse


def random_weights(count, zeros, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, generator=generator)
    return (values * (torch.rand(count, generator=generator) >= zeros)).view(8, -1)


def by_hand(values, gaps, shape):
    """One byte after another."""
    flat, place = [0.0] * shape.numel(), 0
    values = iter(values.tolist())
    for gap in gaps.tolist():
        place += gap
        if gap < 255:
            flat[place] = next(values)
            place += 1
    return torch.tensor(flat).view(shape)


@given(st.lists(st.integers(0, 600), min_size=0, max_size=6), st.integers(0, 600))
def test_any_gaps_come_back(gaps, after):
    flat = torch.cat([torch.cat([torch.zeros(gap), torch.ones(1)]) for gap in gaps] + [torch.zeros(after + 1)])
    value = flat * torch.arange(1, len(flat) + 1)
    packed = sparse._packed("w", value[None])
    assert torch.equal(by_hand(packed["w"], packed["w:gaps"], value[None].shape), value[None])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("zeros", "most"), [(0.9, 0.13), (0.95, 0.065), (0.99, 0.013)])
def test_the_file_is_near_its_nonzeros(tmp_path, dtype, zeros, most):
    tensors = {"w": random_weights(80_000, zeros).to(dtype), "b": torch.zeros(3), "n": torch.arange(4)}
    packed, shapes = sparse.pack(tensors)
    path = tmp_path / "w.safetensors"
    save_file(packed, path)
    size, value = path.stat().st_size, dtype.itemsize
    nonzeros = int(tensors["w"].count_nonzero())
    assert nonzeros * value <= size <= most * 80_000 * value + 80_000 * (1 - zeros) * 1.1 + 500
    assert shapes == {"w": (8, 10_000)}
    read = sparse.unpack(load_file(path), shapes, path)
    assert {name: (value.dtype, value.tolist()) for name, value in read.items()} == {
        name: (value.dtype, value.tolist()) for name, value in tensors.items()
    }


def test_what_gains_little_stays_dense():
    tensors = {"w": random_weights(8_000, 0.5), "v": torch.ones(100, 100)}
    assert sparse.pack(tensors) == (tensors, {})
    assert sparse.pack({"b": torch.zeros(1000), "n": torch.zeros(9, 9, dtype=torch.int64)})[1] == {}


def network(zeros=0.97):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.Flatten())
    for conv in (model[0], model[3]):
        conv.weight.data = random_weights(conv.weight.numel(), zeros).view(conv.weight.shape)
    return model.eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("sparse") / "net"
    gdws.save(network(), path)
    return path


def test_a_sparse_network_comes_back_bit_by_bit(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["gdws.json", "model.safetensors"]
    model = network()
    nonzeros = sum(int(value.count_nonzero()) for value in model.state_dict().values())
    assert (folder / "model.safetensors").stat().st_size < 4 * 1.3 * nonzeros + 64 * 2 * 4 + 2000
    loaded = gdws.load(folder, network(0.0))
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())
    with pytest.raises(GdwsError, match=r"has no exported network \(it is sparse, and the file would be dense\)"):
        gdws.load(folder)


def changed(folder, tmp_path, change):
    made = shutil.copytree(folder, tmp_path / "made")
    record, tensors = json.loads((made / "gdws.json").read_text()), load_file(made / "model.safetensors")
    change(record, tensors)
    (made / "gdws.json").write_text(json.dumps(record))
    save_file(tensors, made / "model.safetensors")
    return made


def lies(name, value):
    return lambda record, tensors: tensors.update({name: value(tensors[name])})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record, tensors: record["sparse"].update({"3.weight": [64, 64, 3]}), r"values of '3.weight' in \d+ places"),
        (lambda record, tensors: record["sparse"].update({"3.weight": [2**20] * 9}), "would take .* bytes of memory"),
        (lambda record, tensors: record["sparse"].update({"3.weight": [64, 64, 9, 1]}), "expected .64, 64, 3, 3."),
        (lambda record, tensors: record["sparse"].update({"3.weight": [64, 0]}), "is 0: expected a whole number"),
        (lambda record, tensors: record["sparse"].update({"5.weight": [1]}), "lacks the values or the gaps of '5.weight'"),
        (lambda record, tensors: record["sparse"].pop("3.weight"), "does not fit the model"),
        (lambda record, tensors: tensors.pop("3.weight:gaps"), "lacks the values or the gaps of '3.weight'"),
        (lies("3.weight", lambda values: values[:-1]), "values of '3.weight' in"),
        (lies("3.weight", lambda values: values[None]), "lacks the values or the gaps"),
        (lies("3.weight:gaps", lambda gaps: gaps.fill_(255)), "in 0 places"),
        (lies("3.weight:gaps", lambda gaps: gaps.fill_(250)), "places: expected places in"),
        (lies("3.weight:gaps", lambda gaps: gaps.short()), "lacks the values or the gaps"),
    ],
)
def test_files_that_lie_are_refused(folder, tmp_path, change, words):
    made = changed(folder, tmp_path, change)
    with pytest.raises(GdwsError, match=words):
        gdws.load(made, network())


def test_a_few_bytes_cannot_take_much_memory(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("GDWS_MAX_BYTES", "100000")
    with pytest.raises(GdwsError, match="would take 155,912 bytes of memory: expected at most 100,000"):
        gdws.load(folder, network())
