"""Time pruned networks as they are, with zeros in them, and made really smaller (gdws.compact), on this machine's CPU.

    python benchmarks/pruned_speed.py zoo:vgg16 zoo:preactresnet18 --keep 0.5 --threads 1 --json OUT

Weights are random and so are the BatchNorm channels that are pruned, the same share of each: times and sizes do not depend on
what the weights are. Networks run single images in their fastest engine, in turns. Sizes are parameters x 4 / 2^20:

    dense      before pruning
    masked     with zeros, counted as in the paper (gdws.compression.compaction.counting)
    compacted  what is written and run
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import nn

from gdws import bench, compact, compile, models, network_cost
from gdws.compression.compaction.counting import MB, paper_size
from gdws.core.files import write_atomically
from gdws.planning.latency.target import device_name


def prune_at_random(model: nn.Module, keep: float, seed: int) -> nn.Module:
    """Set all but a share of the channels of each BatchNorm to zero, in place."""
    generator = torch.Generator().manual_seed(seed)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d) and norm.affine:
            gone = torch.randperm(norm.num_features, generator=generator)[round(keep * norm.num_features) :]
            norm.weight.data[gone] = norm.bias.data[gone] = 0
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--keep", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    keep, threads, seed = given.keep, given.threads, given.seed
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    rows = []
    for name in given.names:
        torch.manual_seed(seed)
        dense = models.resolve(name)
        masked = prune_at_random(models.resolve(name), keep, seed)
        small = compact(masked, image)
        networks = {"dense": dense, "masked": masked, "compacted": small}
        runs = {kind: compile(network, example=image, threads=threads) for kind, network in networks.items()}
        timings = bench(runs, image, 10, given.repeats)
        for kind, network in networks.items():
            cost = network_cost(network, image)
            size = paper_size(masked, image) if kind == "masked" else cost.parameters / MB
            rows.append(
                {
                    "network": name,
                    "kind": kind,
                    "MB": round(size, 2),
                    "MMACs": round(cost.macs / 1e6, 1),
                    "engine": runs[kind].engine,
                    "FPS": round(timings[kind].fps, 1),
                    "times dense": round(timings["dense"].median / timings[kind].median, 2),
                }
            )
            print(rows[-1], flush=True)
    if given.json is not None:
        record = {"format": "gdws pruned speed 1", "keep": keep, "threads": threads, "seed": seed, "rows": rows}
        write_atomically(given.json, json.dumps(record | {"device": device_name(torch.device("cpu"))}, indent=1))


if __name__ == "__main__":
    main()
