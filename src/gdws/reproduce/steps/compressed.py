"""Compressed networks: the paper's method at a size, and the calibrated one beside it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from gdws.calibration.collect import calibrate
from gdws.calibration.method import Calibrated, Method, Paper, Uniform
from gdws.calibration.statistics import Statistics
from gdws.compression import storage
from gdws.compression.apply import apply
from gdws.compression.compress import plan
from gdws.core.errors import OutOfReach
from gdws.core.hashing import weights_hash
from gdws.core.sites import find_convolutions
from gdws.data import Dataset
from gdws.models import zoo
from gdws.planning.budgets import Budget, Latency, Macs, Params
from gdws.planning.cost import network_cost
from gdws.planning.plan import LayerPlan, Plan
from gdws.reproduce.place import MODEL, UNREACHED, NetworkStep, Place, Step
from gdws.reproduce.steps.pruned import Pruned
from gdws.reproduce.steps.speed import speed_target, time_share

NO_ROOM = 0.995
"""Above this fraction of the replaced weights the paper's rounded size may leave nothing to replace."""
LOOKS, HALVINGS = 8, 6
"""Networks that are made to find where a size of non-zero weights lies, and to come near it."""
LEAST = 1e-3
"""A share that is asked for where nothing is left."""
ROUNDED = 1e-9
"""What is smaller than this part of the largest is zero but for rounding."""
MOST_CLASSES = 100
"""With which equation (8) is computed class by class; else, and where many plans are made, random signs estimate it."""
CALIBRATION = 40
"""Passes of an image in a calibration, about."""


@dataclass(frozen=True)
class Calibration(Step):
    """Statistics of a network in the cache, for the calibrated method at any size."""

    source: NetworkStep
    seed: int

    @property
    def title(self) -> str:
        return self.source.title

    @property
    def architecture(self) -> str:
        return self.source.architecture

    def run(self, place: Place) -> dict[str, Any]:
        begun = time.monotonic()
        self.statistics(place, self.source.network(place))
        return {"calibration seconds": time.monotonic() - begun}

    def statistics(self, place: Place, model: nn.Module) -> Statistics:
        count, attack = place.scale.calibrated_on(self.source.data)
        images = place.split(self.source.data, "train", count)
        return calibrate(model, images, Calibrated(attack=attack), seed=self.seed, cache=place.cache)

    def work(self, place: Place) -> float:
        return CALIBRATION * place.scale.calibrated_on(self.source.data)[0]


@dataclass(frozen=True)
class Compressed(NetworkStep):
    """A network in which convolutions are replaced.

    method  "paper", "auto" (the calibrated method) or "uniform" (GDWS-U).
    match   what is asked for: "size", the MB of the whole network; "removed", the share of its weights that goes; or what the
            network `like` was found to have: its "parameters", its "macs" or its measured "speed".
    """

    source: NetworkStep
    method: str
    match: str
    seed: int
    value: float = 0.0
    like: Compressed | None = None
    statistics: Calibration | None = None

    @property
    def title(self) -> str:
        like = self.value if self.like is None else self.like.value
        return f"{self.source.title}.{self.method}-{self.match}-{like:g}"

    @property
    def data(self) -> str:
        return self.source.data

    @property
    def architecture(self) -> str:
        return self.source.architecture

    @property
    def measures_time(self) -> bool:
        return self.match == "speed"

    def run(self, place: Place) -> dict[str, Any]:
        begun, model = time.monotonic(), self.source.network(place)
        asked: dict[str, Any] = {"match": self.match}
        try:
            if self.method == "paper":
                made, compressed = self._as_large(place, model)
                asked["mb"] = self.value
                if isinstance(self.source, Pruned):
                    stored = network_cost(model, self.example(place)).size_mb
                    asked["mb as the paper counts"] = stored + size_as_printed(model, made)
            else:
                budget, shares = self._budget(place, model)
                asked |= shares
                made, compressed = self._within(place, model, budget)
        except OutOfReach as error:
            return {UNREACHED: str(error), "asked": asked}
        storage.save(compressed, place.folder(self) / MODEL, force=True, export=False)
        asked["budget"] = {"kind": type(made.budget).__name__, "value": made.budget.value}
        found = self._describe(place, made, compressed)
        return {**found, "asked": asked, "compression seconds": time.monotonic() - begun}

    def work(self, place: Place) -> float:
        tries = 1 if self.method == "auto" else LOOKS + HALVINGS if isinstance(self.source, Pruned) else 2
        return CALIBRATION * place.scale.calibrated_on(self.data)[0] * tries / 2

    def network(self, place: Place) -> nn.Module:
        return storage.load(place.folder(self) / MODEL, self.source.network(place)).to(place.device)

    def _images(self, place: Place) -> tuple[Dataset, Method]:
        count, attack = place.scale.calibrated_on(self.data)
        images = place.split(self.data, "train", count)
        exact = not isinstance(self.source, Pruned) and int(images.labels.max()) < MOST_CLASSES  # many plans, many passes
        return images, Uniform(attack=attack) if self.method == "uniform" else Paper(attack=attack, exact=exact)

    def _plan(self, place: Place, model: nn.Module, budget: Budget) -> Plan:
        images, method = self._images(place)
        return plan(model, images, budget, method, seed=self.seed)

    def _within(self, place: Place, model: nn.Module, budget: Budget) -> tuple[Plan, nn.Module]:
        if self.statistics is None:
            made = self._plan(place, model, budget)
            return made, apply(model, made)
        statistics = self.statistics.statistics(place, model)
        target = speed_target(place) if isinstance(budget, Latency) else None
        made = plan(model, statistics, budget, target=target, cache=place.cache)
        return made, apply(model, made, statistics)

    def _as_large(self, place: Place, model: nn.Module) -> tuple[Plan, nn.Module]:
        """The paper's method at a size in MB. beta is then the least that gives it."""
        if isinstance(self.source, Pruned):
            return self._as_printed(place, model)
        wanted = fraction_at(self.architecture, self.value)
        asked = wanted if wanted <= NO_ROOM else fraction_at(self.architecture, self.value - 0.05)
        while True:
            made, compressed = self._within(place, model, Params(asked))
            if _replaced(made) or asked < 0.9:
                return made, compressed
            asked -= 0.0025  # what rounds to the size of the base replaces something nevertheless

    def _as_printed(self, place: Place, model: nn.Module) -> tuple[Plan, nn.Module]:
        """On a sparse network: as many non-zero weights as the paper counts, who stores each block as its singular vectors.

        Layers that stay convolutions have few non-zeros, and factors of many kernels have many. So the size first rises while
        less is replaced and then falls. What is wanted is the largest share of the weights, on the rising side, that has the
        size: looked for from above, then bisected. The size is taken as a share of the base's, so that a small network can
        stand for a large one.
        """
        assert isinstance(self.source, Pruned)
        whole = sum(value.numel() for value in _shapes(self.architecture)[0].parameters()) * 4 / 2**20
        target = self.value / whole * place.found(self.source.base)["mb"]
        stored = network_cost(model, self.example(place)).size_mb
        nearest: list[tuple[float, Plan]] = []

        @cache
        def size(share: float) -> float:
            try:
                made = self._plan(place, model, Params(share))
            except OutOfReach:
                return 0.0
            found = stored + size_as_printed(model, made)
            nearest[:] = [min([*nearest, (abs(found - target), made)], key=lambda each: each[0])]
            return found

        looks, halvings = (2, 1) if place.scale.is_smoke else (LOOKS, HALVINGS)
        high = 1.0
        for look in range(looks - 1, 0, -1):
            low = look / looks
            if size(low) < target <= size(high):
                break
            high = low
        else:
            low = high
        for _ in range(halvings if low < high else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if size(middle) < target else (low, middle)
        if not nearest:
            raise OutOfReach(f"{self.value} MB is out of reach: expected a larger size", 0.0)
        return nearest[0][1], apply(model, nearest[0][1])

    def _budget(self, place: Place, model: nn.Module) -> tuple[Budget, dict[str, float]]:
        """What the calibrated or uniform method is asked for, and in whose place."""
        if self.like is None:
            share = fraction_without(model, self.example(place), self.value)
            return Params(share), {"removed": self.value}
        found = place.found(self.like)
        if self.match == "speed":
            share = time_share(place, self.like.network(place), model, self.example(place))
            return Latency(min(1.0, share)), {"latency": share}
        share = found["stored"] if self.match == "parameters" else found["fraction of macs"]
        share = min(1.0, max(LEAST, share))
        return (Params if self.match == "parameters" else Macs)(share), {self.match: share}

    def _describe(self, place: Place, made: Plan, compressed: nn.Module) -> dict[str, Any]:
        cost, candidates = network_cost(compressed, self.example(place)), [each for each in made.layers if each.replaceable]
        stored = sum(_nonzeros(compressed.get_submodule(each.name)) for each in candidates)
        found: dict[str, Any] = {"mb": cost.size_mb, "parameters": cost.parameters, "macs": cost.macs}
        found |= {"fraction of parameters": made.parameters, "fraction of macs": made.macs}
        found |= {"stored": stored / sum(each.dense_parameters for each in candidates), "predicted loss": made.loss}
        if self.method == "paper":
            found["beta"] = max((each.loss for each in _replaced(made)), default=0.0)
        if made.measured is not None:
            found["measured"] = asdict(made.measured)
        found["layers"] = {
            each.name: {"structure": each.structure, "rank": sum(each.ranks), "macs": each.macs, "dense macs": each.dense_macs}
            for each in candidates
        }
        return found | {"images": len(made.images), "weights hash": weights_hash(compressed)}


def fraction_at(architecture: str, mb: float) -> float:
    """Of the weights that may be replaced, what is left of them where the whole network of the zoo has this size."""
    model, replaceable = _shapes(architecture)
    whole = sum(value.numel() for value in model.parameters())
    return min(1.0, (mb * 2**20 / 4 - (whole - replaceable)) / replaceable)


def size_as_printed(model: nn.Module, made: Plan) -> float:
    """How many MB the non-zero weights of a sparse network grow by where GDWS layers store singular vectors of their blocks.

    Singular vectors of a sparse block are sparse where its rows or columns are zero, or have no part in common. (Here a block
    of full rank is stored as it is, which is less.)
    """
    grown = 0
    for layer in _replaced(made):
        weight = model.get_parameter(f"{layer.name}.weight").detach().double()
        blocks = weight.transpose(0, 1).flatten(2)  # (C, M, K)
        _, vectors = torch.linalg.eigh(blocks.mT @ blocks)
        vectors = vectors.flip(2)  # the largest first
        kept = torch.arange(vectors.shape[2], device=weight.device) < torch.tensor(layer.ranks, device=weight.device)[:, None]
        for factor in (vectors, blocks @ vectors):
            present = factor.abs() > ROUNDED * factor.abs().amax((1, 2), keepdim=True)
            grown += int((present & kept[:, None, :]).sum())
        grown -= int(weight.count_nonzero())
    return grown * 4 / 2**20


def fraction_without(model: nn.Module, example: Tensor, removed: float) -> float:
    """The same where a share of the weights of the whole network is removed."""
    whole = sum(value.numel() for value in model.parameters())
    return max(LEAST, 1 - removed * whole / _replaceable(model, example))


@cache
def _shapes(architecture: str) -> tuple[nn.Module, int]:
    """A network of the zoo without values, and how many of its weights may be replaced."""
    with torch.device("meta"):
        model = zoo.build(architecture)
        side = 224 if "imagenet" in architecture else 32
        return model, _replaceable(model, torch.zeros(1, 3, side, side))


def _replaceable(model: nn.Module, example: Tensor) -> int:
    sites = find_convolutions(model, example.to(next(model.parameters()).device))
    return sum(site.conv.weight.numel() for site in sites if site.reason is None)


def _replaced(made: Plan) -> list[LayerPlan]:
    return [layer for layer in made.layers if layer.structure != "dense"]


def _nonzeros(layer: nn.Module) -> int:
    return sum(int(value.count_nonzero()) for value in layer.parameters() if value.ndim > 1)
