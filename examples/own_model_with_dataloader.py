"""Compress a network of your own with images from a DataLoader.

    python examples/own_model_with_dataloader.py

The network is trained here for a few seconds, without an attack. It has no robustness to keep, so the calibration does not
attack the images either. Images that the network was not trained on are spared for it: they are at least as good as training
images, about as good since their softmax is temperature-scaled, and then the accuracy on them is worth knowing.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gdws


class Net(nn.Module):
    """Takes images in [0, 1], normalizes inside, returns logits: all that gdws asks of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        )
        self.classifier = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features((images - 0.5) / 0.25).mean((2, 3)))


def loader(split: str, chosen: slice) -> DataLoader:
    part = gdws.data.load("demo", split).select(chosen)
    return DataLoader(TensorDataset(part.images.float() / 255, part.labels), batch_size=50)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
for _ in range(8):
    for images, labels in loader("train", slice(0, 400)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
model.eval()

fast = gdws.compress(model, loader("train", slice(400, 500)), gdws.Macs(0.4))
plan = gdws.plan_of(fast)
print(f"{plan.macs:.2f} of the multiply-adds and {plan.parameters:.2f} of the weights that may be replaced are left")
for name, network in {"dense": model, "compressed": fast}.items():
    print(f"{name}: {gdws.evaluate(network, loader('test', slice(0, 500))).natural_percent:.1f} % of 500 test images correct")
