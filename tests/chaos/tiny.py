"""A network that takes milliseconds, as a file that models are named by: tests/chaos/tiny.py:net."""

import torch
from torch import nn


def net(seed=0, classes=4):
    """BatchNorm and convolutions that can be compressed, for 8 x 8 images of four classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)]
        layers += [nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, classes)]
        return nn.Sequential(*layers).eval()


def other():
    return net(1)
