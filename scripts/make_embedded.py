"""Make the embedded demo model and images again, on one GPU in a few minutes.

    python scripts/make_embedded.py --data cifar10:DIR [--out src/gdws/embedded]

Adversarial training (PGD-7, l-inf, eps 8/255, step 2/255) of zoo:tiny on the CIFAR-10 training images with a one-cycle
schedule; the last epoch's weights are kept. Writes model.safetensors and images.npz (the first 1,000 test and the first
500 training images) and prints natural and PGD-20 accuracy on those test images.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from gdws import data, zoo
from gdws.attacks import PGD


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """A random crop of the image padded by four pixels and a random flip, for each image on its own."""
    count, _, height, width = images.shape
    padded = F.pad(images, (4, 4, 4, 4))

    def draw(high: int) -> Tensor:
        return torch.randint(0, high, (count, 1), generator=generator, device=images.device)

    rows = draw(9) + torch.arange(height, device=images.device)
    columns = draw(9) + torch.arange(width, device=images.device)
    columns = torch.where(draw(2) == 1, columns.flip(1), columns)
    index = torch.arange(count, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="cifar10:DIR")
    parser.add_argument("--out", type=Path, default=Path("src/gdws/embedded"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    train, test = data.load(options.data, "train"), data.load(options.data, "test").take(1000)
    images, labels = train.images.to(device), train.labels.to(device)
    generator = torch.Generator(device).manual_seed(options.seed)

    model = zoo.build("tiny").to(device).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), options.rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    steps = len(images) // options.batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, options.epochs * steps)
    attack = PGD(steps=7)
    start = time.time()
    for epoch in range(options.epochs):
        order = torch.randperm(len(images), generator=generator, device=device)
        total = torch.zeros((), device=device)
        for step in range(steps):
            chosen = order[step * options.batch : (step + 1) * options.batch]
            batch = augment(images[chosen].float() / 255, generator).contiguous(memory_format=torch.channels_last)
            logits = model(attack(model, batch, labels[chosen], generator))
            loss = F.cross_entropy(logits, labels[chosen])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += (logits.argmax(1) == labels[chosen]).sum()
        accuracy = 100 * float(total) / (steps * options.batch)
        print(f"epoch {epoch + 1}: {accuracy:.2f} % on PGD-7 training images, {time.time() - start:.0f} s")

    model.eval()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    natural, robust = 0, 0
    generator = torch.Generator().manual_seed(0)
    for clean, truth in test:
        clean, truth = clean.to(device), truth.to(device)
        attacked = PGD()(model, clean, truth, generator)
        with torch.no_grad():
            natural += int((model(clean).argmax(1) == truth).sum())
            robust += int((model(attacked).argmax(1) == truth).sum())
    print(f"natural {natural / 10:.1f} %, PGD-20 {robust / 10:.1f} % on the first 1,000 test images")

    options.out.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    save_file(state, options.out / "model.safetensors", {"arch": "tiny", "dataset": "cifar10"})
    arrays = {}
    for split, part in (("test", test), ("train", train.take(500))):
        arrays[f"{split}_images"] = part.images.permute(0, 2, 3, 1).numpy()
        arrays[f"{split}_labels"] = part.labels.numpy().astype(np.uint8)
    np.savez_compressed(options.out / "images.npz", allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
