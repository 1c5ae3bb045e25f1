"""Train a network adversarially, compress it, and tune the compressed network toward the original.

    python examples/train_and_tune.py

Epochs, images and attack steps are far too few here, so that it takes seconds. For a robust network take all of CIFAR-10
and the recipes as they are: minutes on a GPU.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import gdws
from gdws.attacks import PGD

torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(4)),
    *(nn.Flatten(), nn.Linear(512, 10)),
)
train = gdws.data.load("demo", "train")
test = gdws.data.load("demo", "test").take(500)
weak = PGD(eps=2 / 255, step=1 / 255, steps=2)
fast_recipe = replace(gdws.training.recipe("fast"), epochs=10, batch=50, attack=weak, average=0.9)
tune_recipe = replace(gdws.training.recipe("tune"), epochs=2, batch=50, attack=weak, average=0.9)

with tempfile.TemporaryDirectory() as folder:
    trained = gdws.train(model, train, fast_recipe, Path(folder, "base")).model
    small = gdws.compress(trained, train.take(100), gdws.Macs(0.3), gdws.Calibrated(attack=weak))
    tuned = gdws.tune(small, train, tune_recipe, Path(folder, "tuned"), teacher=trained).model

for name, network in {"trained": trained, "compressed": small, "tuned": tuned}.items():
    found = gdws.evaluate(network, test, PGD(eps=2 / 255, step=0.5 / 255, steps=10))
    print(f"{name:12} natural {found.natural_percent:.1f} %, attacked {found.robust_percent:.1f} %")
