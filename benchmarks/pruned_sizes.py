"""Count what pruned networks come to: made smaller, on disk, and with the paper's factors on top of them at no loss.

    python benchmarks/pruned_sizes.py zoo:vgg16=FILE zoo:wrn28_4=FILE --json OUT

For each network with its weights: at each of the shares of --channels, drawn at random, the size as the paper counts it and as
it is compacted; and at each of the shares of --weights, kept by magnitude in every layer, in MB of non-zeros (x 4 / 2^20) and
millions of multiply-adds

    pruned     as it is, and its file
    compacted  without the channels that are zero
    factors    LEGO with beta 0 and no alpha on the compacted network, where that has fewer weights: the same function

Nothing is trained: BatchNorm's statistics are taken anew from --images images, since those of the dense network would be far
off.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch
from pruned_speed import prune_at_random
from torch import nn

from gdws import compact, data, lego, models, network_cost, save
from gdws.compression.compaction.counting import MB, paper_size
from gdws.core.execution import own_copy
from gdws.core.files import write_atomically
from gdws.core.sites import find_convolutions, replace_modules
from gdws.structures.layers import GDWSConv2d


def prune_by_magnitude(model: nn.Module, keep: float) -> nn.Module:
    """Set all but the largest weights of each layer to zero, in place."""
    for weight in model.parameters():
        if weight.ndim > 1:
            smallest = weight.detach().abs().flatten().kthvalue(int((1 - keep) * weight.numel())).values
            weight.data = torch.where(weight.abs() > smallest, weight, 0)
    return model


@torch.no_grad()
def take_statistics(model: nn.Module, images: torch.Tensor) -> nn.Module:
    """BatchNorm's statistics of these images, in place."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = None
            norm.reset_running_stats()
    model.train()(images)
    return model.eval()


def factorize(model: nn.Module, images: torch.Tensor) -> nn.Module:
    """A copy with all convolutions as GDWS that the paper would replace and that have fewer weights so, without any loss."""
    model = own_copy(model)
    made: dict[nn.Module, nn.Module] = {}
    for site in find_convolutions(model, images):
        if site.reason is None:
            layer = GDWSConv2d.from_factors(lego(site.conv.weight, None, 0.0, site.conv.groups), site.conv)
            if sum(p.numel() for p in layer.parameters()) < sum(p.numel() for p in site.conv.parameters()):
                made[site.conv] = layer
    replace_modules(model, made)
    return model.eval()


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--channels", type=float, nargs="*", default=[0.75, 0.5, 0.25])
    parser.add_argument("--weights", type=float, nargs="*", default=[0.1, 0.05, 0.01])
    parser.add_argument("--data", default="demo")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    images = data.load(given.data, "train").take(given.images).images.float() / 255
    rows = []
    for text in given.networks:
        name, _, file = text.partition("=")

        def network(name: str = name, file: str = file) -> nn.Module:
            return models.resolve(name, Path(file) if file else None)

        for keep in given.channels:
            pruned = prune_at_random(network(), keep, given.seed)
            small = sum(parameter.numel() for parameter in compact(pruned, images).parameters()) / MB
            rows.append({"network": name, "channels": keep, "paper": paper_size(pruned, images), "compacted": small})
            print(rows[-1], flush=True)
        for keep in given.weights:
            pruned = take_statistics(prune_by_magnitude(network(), keep), images)
            with tempfile.TemporaryDirectory() as folder:
                save(pruned, Path(folder) / "net", base=name)
                file_mb = (Path(folder) / "net" / "model.safetensors").stat().st_size / 2**20
            small_one = compact(pruned, images)
            found = {"pruned": pruned, "compacted": small_one, "factors": factorize(small_one, images)}
            same = (found["factors"](images) - pruned(images)).abs().max()
            costs = {kind: network_cost(each, images) for kind, each in found.items()}
            sizes = {kind: {"MB": cost.size_mb, "MMACs": cost.macs / 1e6} for kind, cost in costs.items()}
            rows.append({"network": name, "weights": keep, "file": file_mb, "difference": float(same), **sizes})
            print(rows[-1], flush=True)
    if given.json is not None:
        write_atomically(given.json, json.dumps({"format": "gdws pruned sizes 1", "seed": given.seed, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
