"""By what a network is known: all that it does, and nothing that does not matter."""

import copy
import subprocess
import sys
import types

import pytest
import torch
from helpers import network
from torch import nn

from gdws.core.hashing import architecture_identity, network_identity, values_hash
from gdws.models.names import resolve

SAMPLE = torch.rand(1, 3, 8, 8)
FILE = """
import types
import torch
from torch import nn
from beside import SHIFT, scaled
import beside

MEAN, STD = (0.5, 0.4, 0.3), torch.tensor([0.2, 0.3, 0.4])
FACTORS = {"head": 1.0}

def positive(x):
    return torch.relu(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.conv2, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 4)
        self.slope = 0.5
        self.offsets = [torch.zeros(3, 1, 1)]
        self.settings = types.SimpleNamespace(width=8)
        self.loose = [nn.Linear(8, 8)]
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("hidden", torch.ones(1), persistent=False)

    def forward(self, x):
        x = (x - torch.tensor(MEAN).view(3, 1, 1)) / STD.view(3, 1, 1) + self.offsets[0] + SHIFT + beside.MORE
        x = self.conv2(positive(self.conv(x))) * self.scale * self.hidden
        return self.head(self.slope * scaled(x).mean((2, 3))) * FACTORS["head"]

def make():
    return Net().eval()
"""
BESIDE = "SHIFT, MORE = 0.0, 0.0\n\ndef scaled(x):\n    return x\n"
EDITS = {
    "a constant of the module": ("0.5, 0.4, 0.3", "0.5, 0.4, 0.3000001"),
    "a tensor of the module": ("[0.2, 0.3, 0.4]", "[0.2, 0.3, 0.5]"),
    "a dictionary": ('{"head": 1.0}', '{"head": 2.0}'),
    "a function": ("torch.relu(x)", "torch.relu(x) + 1e-9"),
    "an attribute": ("self.slope = 0.5", "self.slope = 0.25"),
    "tensors in a list": ("torch.zeros(3, 1, 1)", "torch.ones(3, 1, 1)"),
    "settings": ("width=8", "width=9"),
    "layers in a list": ("self.loose = [nn.Linear(8, 8)]", "self.loose = [nn.Linear(8, 8)] if torch.manual_seed(1) else 0"),
    "a parameter of no dimension": ("torch.tensor(1.0)", "torch.tensor(1.5)"),
    "a buffer that is not saved": ("torch.ones(1)", "torch.ones(1) * 1.5"),
    "code": ("self.conv2(positive(self.conv(x)))", "positive(self.conv2(self.conv(x)))"),
    "a type": ("return Net().eval()", "return Net().eval().double()"),
    "a stride": ("nn.Conv2d(8, 8, 3)", "nn.Conv2d(8, 8, 3, 2)"),
    "a constant beside": ("SHIFT, MORE = 0.0", "SHIFT, MORE = 0.1"),
    "a constant of a module": ("0.0, 0.0", "0.0, 0.1"),
    "a function beside": ("return x\n", "return 2 * x\n"),
}
NONE = {
    "nothing": ("", ""),
    "a comment": ("def make", "# made anew\ndef make"),
    "a line": ("def positive", "\n\n\ndef positive"),
    "something that it does not use": ("FACTORS =", "UNUSED = 3\nFACTORS ="),
}


def made(folder, old="", new=""):
    """The network of FILE after an edit, in this process."""
    for name, text in (("net.py", FILE), ("beside.py", BESIDE)):
        (folder / name).write_text(text.replace(old, new) if old else text)
    sys.modules.pop("beside", None)
    return resolve(f"{folder}/net.py:make")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)  # by which edits within a second are not seen
        yield tmp_path_factory.mktemp("files")
    sys.modules.pop("beside", None)


@pytest.fixture(scope="module")
def original(folder):
    return network_identity(made(folder), SAMPLE)


@pytest.mark.parametrize("edit", EDITS)
def test_whatever_changes_a_network_changes_its_identity(folder, original, edit):
    changed = made(folder, *EDITS[edit])
    assert network_identity(changed, SAMPLE) != original
    same = architecture_identity(changed) == architecture_identity(made(folder))
    assert same == (edit == "a parameter of no dimension")  # which a checkpoint brings with it


@pytest.mark.parametrize("edit", NONE)
def test_what_does_not_change_it_does_not(folder, original, edit):
    assert network_identity(made(folder, *NONE[edit]), SAMPLE) == original


def test_a_copy_and_another_process_have_the_same_identity(folder, original):
    model = made(folder)
    assert network_identity(copy.deepcopy(model), SAMPLE) == original
    assert network_identity(model.train(), SAMPLE) == original
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import torch; torch.set_num_threads(2)\n"
    code += "from gdws.core.hashing import network_identity; from gdws.models import resolve; import torch\n"
    code += f"print(network_identity(resolve({f'{folder}/net.py:make'!r}), torch.rand(1, 3, 8, 8)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == original


def test_hooks_and_a_forward_of_its_own_are_part_of_it():
    model = network()
    found = {network_identity(model, SAMPLE)}
    handle = model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    found.add(network_identity(model, SAMPLE))
    handle.remove()
    assert network_identity(model, SAMPLE) in found
    model[3].forward = types.MethodType(lambda self, x: nn.Conv2d.forward(self, x) * 3, model[3])
    found.add(network_identity(model, SAMPLE))
    assert len(found) == 3


def test_answers_tell_what_nothing_else_does():
    """Two functions of the same code, around objects that only their answers tell apart."""

    class Opaque:
        def __init__(self, factor):
            self.factor = factor

    class Scaled(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.network, self.opaque = network(), Opaque(factor)

        def forward(self, x):
            return self.network(x) - self.opaque.factor

    first, again, other = (network_identity(Scaled(factor), SAMPLE) for factor in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_answers_that_are_no_numbers_are_no_obstacle(value):
    model = network()
    model[8].bias.data[0] = value
    assert network_identity(model, SAMPLE) == network_identity(copy.deepcopy(model), SAMPLE)


def test_a_network_is_asked_about_one_picture_at_a_time():
    """Bug: of 1,800 x 1,800 pixels two together took 5 GB."""
    model, rows = network(), []
    model[0].register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    network_identity(model, SAMPLE)
    assert set(rows) == {1}


def test_a_network_is_left_as_it_was_found():
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    network_identity(model, SAMPLE)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert next(model.parameters()).dtype == torch.float32


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_values_of_every_kind_have_a_hash():
    loop = [1.0]
    loop.append(loop)
    values = [None, True, 2, 3.0, 4j, "a", b"b", {"c", "d"}, {"e": [1, (2,)]}, torch.rand(0), torch.ones(()), loop]
    values += [torch.eye(3).to_sparse(), torch.eye(3).bool(), torch.ones(2, dtype=torch.complex64).conj(), len, print]
    values += [torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8), torch.ones(2).to(torch.float8_e4m3fn)]
    values += [torch.ones(2, device="meta"), torch.ones(3, device="meta")]
    hashes = [values_hash(value) for value in values]
    assert len(set(hashes)) == len(values)


def test_a_class_without_a_module_has_an_identity():
    """Bug: an AttributeError. Code that is executed with names of its own makes such classes."""
    given = {}
    exec("kind = type('Odd', (Base,), {'scale': 2})", {"Base": nn.Flatten}, given)
    kind = given["kind"]
    assert not hasattr(kind, "__module__")
    first, other = nn.Sequential(kind()), nn.Sequential(nn.Flatten())
    assert network_identity(first, SAMPLE) == network_identity(copy.deepcopy(first), SAMPLE) != network_identity(other, SAMPLE)
