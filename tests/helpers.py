"""Networks, images and small functions that tests of several files use."""

from collections import Counter

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gdws import data, lego, models
from gdws.attacks import PGD
from gdws.data import Dataset
from gdws.structures.layers import GDWSConv2d
from gdws.training.recipes import Recipe

ATTACK = PGD(steps=2, eps=4 / 255)
SMOOTH = PGD(norm="l2", eps=0.3, step=0.2, steps=2)
"""Its steps change little where its gradients do: signs would make a pixel of a rounding error."""


def images(count, first=0):
    """Test images of the embedded data."""
    return data.load("demo", "test").images[first : first + count].float() / 255


def operators(path):
    """How often an ONNX file has which operators."""
    import onnx

    return Counter(node.op_type for node in onnx.load(path).graph.node)


def factored():
    """The embedded model with two GDWS layers of uneven g, some channels unused, and one with every channel once."""
    model = models.embedded()
    for name in ("layer2.1.conv1", "layer3.0.conv1"):
        conv = model.get_submodule(name)
        factors = lego(conv.weight.detach(), None, 0.02 * float(conv.weight.detach().square().sum()))
        assert len(set(factors.g.tolist())) > 1
        model.set_submodule(name, GDWSConv2d.from_factors(factors, conv))
    conv = model.get_submodule("layer2.1.conv2")
    once = GDWSConv2d.like(conv, torch.arange(conv.in_channels))
    generator = torch.Generator().manual_seed(0)
    once.depthwise.data.normal_(0, 0.1, generator=generator)
    once.pointwise.data.normal_(0, 0.1, generator=generator)
    model.set_submodule("layer2.1.conv2", once)
    return model


class Blocks(nn.Module):
    """Convolutions before BatchNorm: one read by the sum too, one used twice, two that read the same input."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.twice, self.norms = (
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)]),
        )
        self.left = nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.right = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=4), nn.BatchNorm2d(8))
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                for values in (module.weight.data, module.running_var):
                    values.uniform_(0.5, 2)
                for values in (module.bias.data, module.running_mean):
                    values.normal_()

    def forward(self, x):
        x = self.first(x)
        x = x + torch.relu(self.norm(x))
        for norm in self.norms:
            x = torch.relu(norm(self.twice(x)))
        return (self.left(x) + self.right(x)).mean((2, 3))


def network(seed=0):
    """BatchNorm and convolutions that can be compressed, for 8 x 8 images of four classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)]
        layers += [nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 4)]
        return nn.Sequential(*layers).eval()


def training_images(count=200, seed=0):
    """Four colours under noise: learnt in seconds, and no crop or flip hides them."""
    generator = torch.Generator().manual_seed(seed)
    colours = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]]).view(4, 3, 1, 1)
    labels = torch.arange(count) % 4
    noisy = 0.3 * colours[labels] + 0.7 * torch.rand(count, 3, 8, 8, generator=generator)
    return Dataset("colours", (255 * noisy).to(torch.uint8), labels)


def recipe(**changes):
    """A short training on them."""
    return Recipe(**{"epochs": 3, "batch": 20, "rate": 0.05, "held": 40, "attack": ATTACK, **changes})


class Net(nn.Module):
    """Convolutions of every kind that a plan must deal with."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.wide = nn.Conv2d(16, 24, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(24)
        self.twice = nn.Conv2d(24, 24, 3, padding=1)
        self.grouped = nn.Conv2d(24, 32, 3, stride=2, padding=1, groups=2)
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.point = nn.Conv2d(32, 16, 1)
        self.narrow = nn.Conv2d(16, 2, 3)
        self.idle = nn.Conv2d(2, 2, 3)
        self.head = nn.Linear(2 * 4 * 4, 6)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(self.norm(self.wide(x)))
        x = torch.relu_(self.twice(torch.relu_(self.twice(x))))
        x = torch.relu(self.depthwise(torch.relu(self.grouped(x))))
        x = self.narrow(torch.relu(self.point(x)))
        return self.head(x.flatten(1)) * 5


def flops(model, images):
    """Multiply-adds for one image, as PyTorch counts them."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(images[:1])
    return counter.get_total_flops() // 2
