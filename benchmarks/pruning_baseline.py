"""Measure what a user would pick instead: structured channel pruning by Torch-Pruning, alone and with adversarial training.

    pip install --no-deps torch-pruning          # or: unzip its wheel and put that folder on PYTHONPATH
    python benchmarks/pruning_baseline.py zoo:preactresnet18 --weights FILE --train npz:FILE --test npz:FILE --device cuda \\
        --tune-seconds 120 --save FOLDER --json OUT

    python benchmarks/pruning_baseline.py ... --importance magnitude --scope global --speedup 2 [--engine cuda] \\
        [--precision float16] [--run-batch 256]

At each of the --fractions of the MACs that gdws counts (the convolutions other than the first and the 1x1), natural and PGD-20
accuracy (eps 8/255, step 2/255, one random start, float32) on the first --n test images of the network

    as pruned      straight from the pruner
    re-estimated   after BatchNorm's statistics were taken anew from the attacked calibration images
    tuned          after --tune-seconds of PGD-7 adversarial training of the re-estimated network on all training images

With --speedup the fraction is the one whose network is so many times as fast as dense on this machine, both as they run
fastest, and any wrong iterate of PGD-20 counts, not the last alone: both as in benchmarks/equal_latency.py.

Calibration uses the first --images training images, attacked by PGD-10 as the network was trained on attacked images: they
give the gradients of the Taylor importance and the statistics. Where several ways to rank channels are given (--importance,
--scope), each fraction takes the one with the least PGD-10 loss, once re-estimated, on the next --images training images; the
test images choose nothing. Each row of --json has `natural right` and `robust right`, a bit
for each image: np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=n). `rebuild(folder)` loads a saved network
and needs no Torch-Pruning.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from calibrated_table import bits, options_for
from equal_latency import bisect_fraction, latency
from safetensors.torch import save as serialize
from torch import Tensor, nn
from torch.nn import functional as F

from gdws import data, models
from gdws.attacks import PGD
from gdws.core.errors import GdwsError
from gdws.core.execution import evaluating, full_precision, placement
from gdws.core.files import new_folder, write_atomically
from gdws.core.reading.weights import load_weights, read_weights
from gdws.core.sites import find_convolutions, replace_modules
from gdws.data import Dataset
from gdws.deploy.graphed_model import cudnn_benchmark
from gdws.evaluation.accuracy import Accuracy, evaluate
from gdws.planning.cost import dense_macs, network_cost
from gdws.planning.latency.target import Target, check_device
from gdws.training.augment import crop_and_flip

TOLERANCE = 0.01
"""How far the MACs may lie from the fraction asked for, as a part of it."""

IMPORTANCES = "taylor", "magnitude"

SCOPES: dict[str, dict[str, bool]] = {
    "local": {},
    "global": {"global_pruning": True},
    "isomorphic": {"global_pruning": True, "isomorphic": True},
}
"""Which channels are ranked together: those of a group, of all groups, of groups that are built alike."""


def counted_macs(model: nn.Module, example: Tensor) -> int:
    """MACs for one image of the convolutions that gdws would replace."""
    return sum(dense_macs(site) for site in find_convolutions(model, example) if site.reason is None)


def attack_batches(model: nn.Module, calibration: Dataset, seed: int) -> list[tuple[Tensor, Tensor]]:
    """The calibration batches (images in [0, 1], labels) after PGD-10 against the model, on its device."""
    device, _ = placement(model)
    attack, generator = PGD(steps=10), torch.Generator().manual_seed(seed)
    batches = [(images.to(device), labels.to(device)) for images, labels in calibration]
    with full_precision(), evaluating(model):
        return [(attack(model, images, labels, generator), labels) for images, labels in batches]


def set_gradients(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    """Leave the gradient of the cross-entropy summed over the batches in every parameter's .grad."""
    model.zero_grad()
    with full_precision(), evaluating(model):
        for images, labels in batches:
            F.cross_entropy(model(images), labels, reduction="sum").backward()


def prune(model: nn.Module, example: Tensor, ratio: float, importance: str, scope: str, round_to: int) -> nn.Module:
    """A copy of the model without `ratio` of its channels, those left in each group a multiple of round_to."""
    try:
        import torch_pruning
    except ImportError as error:
        raise GdwsError(f"Torch-Pruning is missing ({error}): expected pip install --no-deps torch-pruning") from None
    smaller = copy.deepcopy(model)
    for parameter, original in zip(smaller.parameters(), model.parameters(), strict=True):
        parameter.grad = None if original.grad is None else original.grad.clone()  # deepcopy leaves them out
    scores = {
        "magnitude": torch_pruning.importance.GroupMagnitudeImportance,
        "taylor": torch_pruning.importance.GroupTaylorImportance,
    }
    pruner = torch_pruning.pruner.BasePruner(
        smaller,
        example,
        importance=scores[importance](),
        pruning_ratio=ratio,
        ignored_layers=[module for module in smaller.modules() if isinstance(module, nn.Linear)],
        round_to=round_to,
        **SCOPES[scope],
    )
    pruner.step()
    smaller.zero_grad()
    return smaller


def prune_to(
    model: nn.Module, example: Tensor, fraction: float, importance: str, scope: str, round_to: int
) -> tuple[nn.Module, int]:
    """The model pruned to `fraction` of its counted MACs, and the multiple that its channels were rounded to.

    The ratio is bisected. Where no ratio meets the fraction, since one group's channels cost too much, the multiple is halved.
    """
    whole = counted_macs(model, example)
    nearest = math.inf
    while round_to >= 1:
        low, high = 0.0, 1.0
        for _ in range(14):
            ratio = (low + high) / 2
            smaller = prune(model, example, ratio, importance, scope, round_to)
            found = counted_macs(smaller, example) / whole
            nearest = min(nearest, found, key=lambda value: abs(value - fraction))
            if abs(found / fraction - 1) <= TOLERANCE:
                return smaller, round_to
            low, high = (ratio, high) if found > fraction else (low, ratio)
        round_to //= 2
    raise GdwsError(f"no pruning ratio gives {fraction:g} of the MACs: expected a fraction such as {nearest:.4f}")


def fraction_as_fast(
    model: nn.Module, images: Dataset, speedup: float, target: Target, importance: str, scope: str, round_to: int
) -> tuple[float, float]:
    """The fraction of the MACs at which the pruned network is `speedup` times as fast as the model on the target, or as near to
    that as was found, and how many times it is.
    """
    check_device(model, target)
    calibration = next(iter(images))[0]
    example = calibration[:1].to(placement(model)[0])
    speeds = {}

    def taken(fraction: float) -> float:
        smaller, _ = prune_to(model, example, fraction, importance, scope, round_to)
        found, engine = latency(model, smaller, target, calibration)
        print(f"{fraction:.4f} of the MACs: {1 / found:.3f}x in {engine} {target.precision}", flush=True)
        speeds[fraction] = 1 / found
        return found

    fraction = bisect_fraction(taken, 1 / speedup)
    return fraction, speeds[fraction]


def reestimate_batchnorm(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> nn.Module:
    """A copy whose BatchNorm statistics are the mean of those of the batches, every layer's beside the new ones before it."""
    adapted = copy.deepcopy(model)
    norms = [module for module in adapted.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over batches
    adapted.train()
    with full_precision(), torch.no_grad():
        for images, _ in batches:
            adapted(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return adapted.eval()


def attacked_loss(model: nn.Module, judging: Dataset, seed: int) -> float:
    """Mean cross-entropy after PGD-10 against the model itself."""
    batches = attack_batches(model, judging, seed)
    with full_precision(), evaluating(model), torch.no_grad():
        losses = [F.cross_entropy(model(images), labels, reduction="none") for images, labels in batches]
    return float(torch.cat(losses).mean())


def shuffle_batches(count: int, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Indices of whole batches, epoch after epoch, without end."""
    batch = min(batch, count)
    while True:
        order = torch.randperm(count, generator=generator, device=generator.device)
        yield from order[: count // batch * batch].split(batch)


def rate_at(progress: float) -> float:
    """The learning rate as a part of the highest: a straight rise in the first tenth of the time, then a cosine to zero."""
    return progress / 0.1 if progress < 0.1 else (1 + math.cos(math.pi * (progress - 0.1) / 0.9)) / 2


@cudnn_benchmark()
def tune(
    model: nn.Module, dataset: Dataset, seconds: float, batch: int, rate: float, seed: int
) -> tuple[nn.Module, int, float]:
    """A copy after `seconds` of adversarial training (bfloat16 on a GPU), the number of its steps and its true seconds.

    The clock drives the schedule, so that it ends at zero in time on any machine; no two runs have quite the same rates.
    """
    device, _ = placement(model)
    images, labels = dataset.images.to(device), dataset.labels.to(device)
    network = copy.deepcopy(model).train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    attack, generator = PGD(steps=7), torch.Generator(device).manual_seed(seed)
    optimizer = torch.optim.SGD(network.parameters(), rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    start = time.perf_counter()
    for step, chosen in enumerate(shuffle_batches(len(images), batch, generator)):
        elapsed = time.perf_counter() - start
        if step > 0 and elapsed >= seconds:
            break
        optimizer.param_groups[0]["lr"] = rate * rate_at(elapsed / seconds)
        seen, wanted = crop_and_flip(images[chosen], generator).float() / 255, labels[chosen]
        with evaluating(network), mixed:
            adversarial = attack(network, seen.contiguous(memory_format=torch.channels_last), wanted, generator)
        with mixed:
            loss = F.cross_entropy(network(adversarial), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not math.isfinite(float(loss.detach())):  # this also waits for the GPU, for an honest clock
            raise GdwsError(f"the loss of step {step} is not finite: expected a lower --rate than {rate:g}")
    network.zero_grad()
    return network.eval().to(memory_format=torch.contiguous_format), step, elapsed


def channel_counts(model: nn.Module) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of every convolution, BatchNorm and linear layer."""
    counts = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            counts[name] = module.in_channels, module.out_channels
        elif isinstance(module, nn.BatchNorm2d):
            counts[name] = module.num_features, module.num_features
        elif isinstance(module, nn.Linear):
            counts[name] = module.in_features, module.out_features
    return counts


def resize(module: nn.Module, inputs: int, outputs: int) -> nn.Module:
    """A fresh module of the same kind with other channel counts."""
    if isinstance(module, nn.Conv2d) and module.groups == 1:
        settings: dict[str, Any] = {name: getattr(module, name) for name in ("stride", "padding", "dilation", "padding_mode")}
        kernel: Any = module.kernel_size
        return nn.Conv2d(inputs, outputs, kernel, bias=module.bias is not None, **settings)
    if isinstance(module, nn.BatchNorm2d):
        return nn.BatchNorm2d(outputs, module.eps, module.momentum, module.affine, module.track_running_stats)
    if isinstance(module, nn.Linear):
        return nn.Linear(inputs, outputs, module.bias is not None)
    raise GdwsError(f"a channel count is given for {module}: expected an ungrouped Conv2d, a BatchNorm2d or a Linear")


def check_base(base: object) -> str:
    """A name that may stand in a file: one that builds a network of the package and runs no other code."""
    if not isinstance(base, str) or (base != "demo" and not base.startswith("zoo:")):
        raise GdwsError(f"the model is {base!r}: expected demo or zoo:NAME, which can be rebuilt from channel counts")
    return base


def save(model: nn.Module, folder: Path, base: str) -> None:
    """Write channels.json and model.safetensors, in the place of an earlier folder of that name."""
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
    record = {"format": "gdws channels 1", "base": base, "channels": channel_counts(model)}
    with new_folder(folder, force=True, members=("channels.json", "model.safetensors")) as temporary:
        (temporary / "model.safetensors").write_bytes(serialize(tensors))
        (temporary / "channels.json").write_text(json.dumps(record, indent=1))


def rebuild(folder: Path) -> nn.Module:
    """The network that `save` wrote, in eval mode. Nothing is unpickled."""
    path = folder / "channels.json"
    try:
        record = json.loads(path.read_text())
        model = models.resolve(check_base(record["base"]))
        for name, (inputs, outputs) in record["channels"].items():
            module = model.get_submodule(name)
            replace_modules(model, {module: resize(module, inputs, outputs)})
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, GdwsError):
            raise
        raise GdwsError(f"{path} cannot be read ({error}): expected a folder that this script wrote") from None
    load_weights(model, read_weights(folder / "model.safetensors"), str(folder))
    return model.eval()


def scores(found: Accuracy) -> dict[str, Any]:
    return {
        "natural": found.natural_percent,
        "robust": found.robust_percent,
        "natural right": bits(found.natural),
        "robust right": "" if found.attacked is None else bits(found.attacked),
    }


def main() -> None:
    parser = options_for(__doc__)
    parser.add_argument("--fractions", type=float, nargs="+", default=[0.60, 0.45, 0.30, 0.20])
    parser.add_argument("--speedup", type=float, help="instead of --fractions: so many times as fast as dense")
    parser.add_argument("--engine", default="auto", choices=("auto", "cuda"), help="for --speedup, as the next two")
    parser.add_argument("--precision", default="float32", choices=("float32", "int8", "float16"))
    parser.add_argument("--run-batch", type=int, default=1, help="images at a time where it will run")
    parser.add_argument("--importance", nargs="+", choices=IMPORTANCES, default=list(IMPORTANCES))
    parser.add_argument("--scope", nargs="+", choices=tuple(SCOPES), default=["global", "isomorphic"])
    parser.add_argument("--round-to", type=int, default=8)
    parser.add_argument("--tune-seconds", type=float, default=120, help="0: no training")
    parser.add_argument("--tune-batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=0.05, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="folder for the networks, one folder each")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    base = check_base(options.model)
    model = models.resolve(base, options.weights).to(options.device)
    dataset = data.load(options.train, "train")
    test = data.load(options.test, "test").take(options.n, options.batch)
    example = dataset.take(1).images.to(options.device) / 255
    ways = list(itertools.product(options.importance, options.scope))
    if options.speedup and len(ways) > 1:
        raise GdwsError(f"--speedup is given with {len(ways)} ways to rank channels: expected one --importance and --scope")
    judging = None
    if len(ways) > 1:
        rest = slice(options.images, 2 * options.images)
        name = f"{dataset.name} after its first {options.images}"
        judging = Dataset(name, dataset.images[rest], dataset.labels[rest], options.batch)
    calibration = attack_batches(model, dataset.take(options.images, options.batch), options.seed)
    set_gradients(model, calibration)
    whole = counted_macs(model, example)
    rows: list[dict[str, Any]] = []

    def report(column: str, network: nn.Module, fraction: float, **details: Any) -> None:
        """Evaluate, save, print and write one row."""
        if options.save and column not in ("base", "as pruned"):
            save(network, options.save / f"{fraction:.2f}-{column}", base)
        macs = counted_macs(network, example) / whole
        cost = network_cost(network, example)
        found = evaluate(network, test, PGD(early_exit=bool(options.speedup)), options.seed)
        row = {"column": column, "budget": fraction, "macs": macs, "network macs": cost.macs, "parameters": cost.parameters}
        rows.append(row | details | scores(found))
        if options.json:
            settings = {name: str(value) for name, value in vars(options).items()}
            record = {"torch": torch.__version__, "settings": settings, "n": len(test.images), "rows": rows}
            write_atomically(options.json, json.dumps(record, indent=1))
        facts = "".join(
            f", {name} {value:.4g}" if isinstance(value, float) else f", {name} {value}" for name, value in details.items()
        )
        print(
            f"{column:13s} {fraction:.2f} ({macs:.4f}): {found.natural_percent:.2f} / {found.robust_percent:.2f}"
            f"   {cost.parameters / 1e6:.2f} M parameters{facts}",
            flush=True,
        )

    fractions, reached = options.fractions, dict[str, float]()
    if options.speedup:
        target = Target(options.engine, options.precision, threads=1, batch=options.run_batch)
        fraction, speed = fraction_as_fast(model, dataset.take(25), options.speedup, target, *ways[0], options.round_to)
        fractions, reached = [fraction], {"speedup": speed}
    report("base", model, 1.0)
    for fraction in fractions:
        start = time.perf_counter()
        candidates = []
        for importance, scope in ways:
            smaller, multiple = prune_to(model, example, fraction, importance, scope, options.round_to)
            adapted = reestimate_batchnorm(smaller, calibration)
            loss = 0.0 if judging is None else attacked_loss(adapted, judging, options.seed)
            candidates.append((loss, smaller, adapted, {"ranked by": f"{importance} {scope}", "multiple of": multiple}))
        _, smaller, adapted, way = min(candidates, key=lambda candidate: candidate[0])
        way |= reached
        report("as pruned", smaller, fraction, **way, **{"prune s": time.perf_counter() - start})
        report("re-estimated", adapted, fraction, **way)
        if options.tune_seconds > 0:
            tuning = options.tune_seconds, options.tune_batch, options.rate, options.seed
            network, steps, seconds = tune(adapted, dataset, *tuning)
            report("tuned", network, fraction, **way, **{"tune s": seconds, "steps": steps})


if __name__ == "__main__":
    main()
