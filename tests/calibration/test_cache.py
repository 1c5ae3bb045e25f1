"""Statistics that are kept: used where they are those of the same network and images, and never otherwise."""

import os
import resource
import signal

import pytest
import torch
from helpers import network
from safetensors.torch import load_file, save_file

import gdws
from gdws.attacks import PGD
from gdws.calibration import collect
from gdws.models.names import resolve

METHOD = gdws.Calibrated(attack=PGD(steps=1), structures=["gdws", "vertical"])


@pytest.fixture(scope="module")
def images():
    return torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def collected(monkeypatch):
    """How often statistics were collected."""
    calls = []
    monkeypatch.setattr(collect, "_collect", lambda *a, plain=collect._collect: calls.append(1) or plain(*a))
    return calls


def tensors_of(statistics):
    found = {"attacked": statistics.attacked, "temperature": torch.tensor(statistics.objective.temperature)}
    for name, layer in statistics.layers.items():
        found |= {f"{name} {part}": value for part, value in vars(layer).items()}
        for kind, curves in statistics.curves[name].items():
            found |= {f"{name} {kind} {i} {part}": v for i, curve in enumerate(curves) for part, v in vars(curve).items()}
    return {name: value for name, value in found.items() if value is not None}


def same(one, other):
    first, second = tensors_of(one), tensors_of(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_statistics_are_used_again(images, collected, tmp_path):
    first = gdws.calibrate(network(), [images], METHOD, cache=tmp_path)
    assert same(gdws.calibrate(network(), [images], METHOD, cache=tmp_path), first)
    assert len(collected) == 1
    plan = gdws.plan(network(), first, gdws.Macs(0.4))
    assert gdws.plan(network(), [images], gdws.Macs(0.4), METHOD, cache=tmp_path) == plan
    assert len(collected) == 1


def test_other_images_labels_seeds_methods_and_weights_are_others(images, collected, tmp_path):
    changed = network()
    changed[3].bias.data[0] += 1e-6
    labels = torch.zeros(8, dtype=torch.int64)
    calls = [
        (network(), [images], METHOD, 0),
        (network(), [images.flip(3)], METHOD, 0),
        (network(), [(images, labels)], METHOD, 0),
        (network(), [(images, labels + 1)], METHOD, 0),
        (network(), [images], METHOD, 1),
        (network(), [images], gdws.Calibrated(attack=PGD(steps=2), structures=METHOD.structures), 0),
        (changed, [images], METHOD, 0),
    ]
    for model, batches, method, seed in calls:
        gdws.calibrate(model, batches, method, seed=seed, cache=tmp_path)
    assert len(collected) == len(calls) == len(list(tmp_path.iterdir()))


FILE = """
import torch
from torch import nn

MEAN = 0.5

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)
        self.layers = nn.Sequential(*layers)
        self.std = 0.25
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("shift", torch.zeros(1), persistent=False)

    def forward(self, x):
        return self.layers((x - MEAN) / self.std * self.scale + self.shift)

def make():
    return Net()
"""


@pytest.mark.parametrize(
    "edit", [("0.5", "0.4"), ("0.25", "0.3"), ("tensor(1.0)", "tensor(2.0)"), ("zeros", "ones"), ("* self", "+ self")]
)
def test_an_edited_file_is_another_network(images, collected, tmp_path, edit):
    """Bug: after an edit of MEAN the same command planned with the other network's statistics."""
    file = tmp_path / "net.py"
    found = []
    for text in (FILE, FILE.replace(*edit)):
        file.write_text(text)
        found.append(gdws.calibrate(resolve(f"{file}:make"), [images], METHOD, cache=tmp_path / "cache"))
    assert len(collected) == 2
    assert not same(*found)


def damaged_tensor(change):
    def damage(file):
        tensors = load_file(file)
        name = next(name for name in tensors if name.endswith("|moment"))
        tensors[name] = change(tensors[name])
        save_file(tensors, file)

    return damage


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


def another_networks(file):
    for path in file.parent.glob("*.safetensors"):
        if path != file:
            file.write_bytes(path.read_bytes())


DAMAGE = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:1000]),
    "empty": lambda file: file.write_bytes(b""),
    "NaN": damaged_tensor(lambda value: value * torch.nan),
    "another shape": damaged_tensor(lambda value: value[:, :3]),
    "another type": damaged_tensor(lambda value: value.half()),
    "a bit": flip_a_bit,
    "renamed": another_networks,
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_file_that_is_not_as_it_was_written_is_not_used(images, collected, tmp_path, kind):
    first = gdws.calibrate(network(), [images], METHOD, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    gdws.calibrate(network(1), [images], METHOD, cache=tmp_path)
    DAMAGE[kind](file)
    if kind == "a folder":
        with pytest.warns(UserWarning, match="nothing is kept for the next time: "):
            assert same(gdws.calibrate(network(), [images], METHOD, cache=tmp_path), first)
        return
    assert same(gdws.calibrate(network(), [images], METHOD, cache=tmp_path), first)
    assert len(collected) == 3
    assert same(gdws.calibrate(network(), [images], METHOD, cache=tmp_path), first)
    assert len(collected) == 3


def test_a_folder_that_cannot_be_made_costs_a_warning(images, tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match=r"nothing is kept for the next time: cannot make the folder .*: Not a directory"):
        plan = gdws.plan(network(), [images], gdws.Macs(0.4), METHOD, cache=tmp_path / "file" / "cache")
    assert plan.macs <= 0.4


def test_what_is_kept_has_a_limit(images, tmp_path):
    """Bug: a cache grew without end. A file with holes is as large as one without."""
    for age, letter in enumerate("ab"):
        file = tmp_path / f"statistics-{32 * letter}.safetensors"
        file.touch()
        os.truncate(file, 15 * 10**8)
        os.utime(file, (1000 - age, 1000 - age))
    gdws.calibrate(network(), [images], METHOD, cache=tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == 2
    assert f"statistics-{32 * 'a'}.safetensors" in left
    assert f"statistics-{32 * 'b'}.safetensors" not in left


def test_a_full_disk_costs_a_warning(images, tmp_path):
    """A limit on the size of files is as a full disk to whoever writes them."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.warns(UserWarning, match=r"nothing is kept for the next time: cannot write .*File too large"):
            found = gdws.calibrate(network(), [images], METHOD, cache=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert same(found, gdws.calibrate(network(), [images], METHOD))
    assert list(tmp_path.iterdir()) == []
