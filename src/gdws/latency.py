"""How long a network takes on this machine, layer by layer: dense, and with each layer in each structure at some sizes.

An engine fuses, blocks and reorders a layer in its network otherwise than alone. So whole networks are timed, node by node, by
the engine that will run them: the dense one, and copies with every layer in one structure at one size. On a GPU, whose kernels
run one after another, layers are timed by themselves beside the networks. Weights are noise, on which times do not depend. All
take turns, so that a busy moment touches all.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
import platform
import re
import tempfile
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gdws import cost
from gdws.allocate import Floats
from gdws.bench import bench
from gdws.choices import Choice
from gdws.contract import placement
from gdws.engines import PACKAGES, PRECISIONS, installed, prepared, session
from gdws.errors import GdwsError
from gdws.export import to_onnx, traced
from gdws.files import ensure_folder, write_atomically
from gdws.prepack import Packed
from gdws.profiling import layer_seconds, owners
from gdws.progress import track
from gdws.recorded import CALLS, TYPES, Recorded, Repeated, check_recorded, recorded
from gdws.runtimes import NodeTime, OnnxRuntime, OpenVino, needed
from gdws.statistics import Statistics
from gdws.structures import Structure
from gdws.surgery import Site
from gdws.surgery import replace as replace_modules

SHARES = (0.06, 0.2, 0.5)
"""Sizes that are timed, as fractions of the dense layer's multiply-adds."""
LARGE = 0.9
"""A GPU works by whole tiles, and beyond the largest size that was timed a straight line is no guess: this one is timed too."""
SLOWER = 2.0
"""How many times as long a layer may take in a network as alone, or the reverse."""
WARMUP, TURNS = 5, 40
FORMAT = "gdws latency 2"
"""Changes with how times are taken, so that what is cached is measured again."""


@dataclass(frozen=True)
class Target:
    """Where a network will run.

    engine   on the CPU, "auto" being whichever makes it fastest; or "cuda": PyTorch, as a CUDA graph (gdws.recorded), on the
             GPU that the model is on. (For budgets that count instead of measuring, any GPU: `suited`.)
    threads  as many as PyTorch has, if None.
    """

    engine: str = "auto"
    precision: str = "float32"
    threads: int | None = None
    batch: int = 1

    def __post_init__(self) -> None:
        engines = ("auto", *(name for name in PACKAGES if name != "torch"))
        if self.precision not in (TYPES if self.engine == "cuda" else PRECISIONS if self.engine in engines else ()):
            expected = f"{', '.join(engines)} in {' or '.join(PRECISIONS)}, or cuda in {' or '.join(TYPES)}"
            raise GdwsError(f"the target is {self.engine!r} in {self.precision!r}: expected {expected}")
        if self.batch < 1 or (self.threads is not None and self.threads < 1):
            raise GdwsError(f"the target has batch {self.batch} and {self.threads} threads: expected at least 1 of each")


@dataclass(frozen=True)
class Latencies:
    """Prices (gdws.choices) in seconds, for one engine.

    total   a pass of the dense network
    layers  a pass of each dense layer in it
    points  {layer: {structure: [(size, seconds), ...]}}, sizes rising
    lanes   channels that are worked on together
    """

    total: float
    layers: dict[str, float]
    points: dict[str, dict[str, list[tuple[int, float]]]]
    lanes: int

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Latencies:
        points = {
            layer: {kind: [(int(size), float(seconds)) for size, seconds in own] for kind, own in kinds.items()}
            for layer, kinds in record["points"].items()
        }
        return cls(record["total"], record["layers"], points, record["lanes"])

    @property
    def rest(self) -> float:
        """What is not in the layers that may be replaced."""
        return self.total - sum(self.layers.values())

    def dense(self, site: Site) -> float:
        return self._rounded(self.layers[site.name])

    def of(self, structure: Structure, site: Site, size: int) -> float:
        """Linear between the sizes that were timed and beyond the last; channels that do not fill a vector cost a whole one."""
        sizes, seconds = np.array(self.points[site.name][structure.name]).T
        filled = -(-size // self.lanes) * self.lanes
        if filled <= sizes[-1] or len(sizes) == 1:
            return self._rounded(float(np.interp(filled, sizes, seconds)))
        slope = max(0.0, (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]))
        return self._rounded(float(seconds[-1] + slope * (filled - sizes[-1])))

    def _rounded(self, seconds: float) -> float:
        """To a ten thousandth of the network: sums that coincide make the allocation fast."""
        return round(seconds / self.total, 4) * self.total


@dataclass(frozen=True)
class Timetable:
    """The latencies of a network in every engine that it may run in, taken together, and the time to beat.

    reference: the fastest engine for the dense network, PyTorch with packed weights among them, and its seconds.
    """

    device: str
    target: Target
    reference: tuple[str, float]
    engines: dict[str, Latencies]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Timetable:
        try:
            record = json.loads(text)
            engines = {name: Latencies.from_record(entry) for name, entry in record["engines"].items()}
            return cls(record["device"], Target(**record["target"]), tuple(record["reference"]), engines)
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise GdwsError(f"this is not a timetable: {type(error).__name__} {error}, expected what to_json wrote") from None


def timetable(
    model: nn.Module,
    sites: Sequence[Site],
    structures: Sequence[Structure],
    statistics: Statistics,
    target: Target,
    cache: Path | None = None,
) -> Timetable:
    """Measure, or read what was measured before on this device for these shapes and this target."""
    check_device(model, target)
    threads = 1 if target.engine == "cuda" else target.threads or torch.get_num_threads()
    target = Target(target.engine, target.precision, threads, target.batch)
    file = None if cache is None else cache / f"latency-{_key(model, sites, structures, statistics, target)}.json"
    if file is not None and file.is_file():
        try:
            return Timetable.from_json(file.read_text())
        except (GdwsError, UnicodeDecodeError, OSError):
            pass  # a damaged cache is measured again
    if cache is not None:
        ensure_folder(cache)
    measure = _measured_on_gpu if target.engine == "cuda" else _measured
    made = measure(model, sites, structures, statistics, target)
    if file is not None:
        write_atomically(file, made.to_json())
    return made


def check_device(model: nn.Module, target: Target) -> None:
    """Refuse a GPU as the target of a model that is not on one."""
    device, _ = placement(model)
    if target.engine == "cuda" and device.type != "cuda":
        raise GdwsError(f"the target is cuda and the model on {device}: expected it on the GPU in question (--device cuda)")


def suited(structures: Sequence[Structure], target: Target) -> tuple[Structure, ...]:
    """Those that a network in float16 on a GPU is made of: plain convolutions for its tensor cores."""
    if (target.engine, target.precision) != ("cuda", "float16"):
        raise GdwsError(f"a budget other than of time got {target}: expected Latency or Speedup with it, or cuda in float16")
    kinds = tuple(structure for structure in structures if structure.plain)
    if not kinds:
        given = ", ".join(structure.name for structure in structures)
        raise GdwsError(f"structures are {given}: expected plain convolutions for float16 on a GPU, such as separable or auto")
    return kinds


def mock(model: nn.Module, choices: Mapping[str, Choice]) -> nn.Module:
    """A copy of a network with these layers in their places, their weights noise: it takes the time of the real one."""
    made = copy.deepcopy(model).to("cpu", torch.float32).eval()
    layers: dict[nn.Module, nn.Module] = {}
    random = torch.Generator().manual_seed(0)  # never the global one: a plan may be made in the middle of a training
    for name, choice in choices.items():
        conv = made.get_submodule(name)
        assert isinstance(conv, nn.Conv2d)
        layers[conv] = choice.structure.blank(conv, choice.kept).eval()
        for parameter in layers[conv].parameters():
            if parameter.ndim > 1 and parameter.numel():
                nn.init.kaiming_normal_(parameter, generator=random)
    replace_modules(made, layers)
    return made


def lanes(target: Target) -> int:
    """Channels that are worked on together: a vector of this CPU, or what cuDNN wants a multiple of."""
    if target.engine == "cuda":
        return 8
    return 16 if torch.cpu._is_avx512_supported() else 8


def device_name(device: torch.device | None = None) -> str:
    """Of the CPU, or of a GPU."""
    if device is not None and device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def _measured(
    model: nn.Module, sites: Sequence[Site], structures: Sequence[Structure], statistics: Statistics, target: Target
) -> Timetable:
    grid = _grid(sites, structures, statistics, SHARES, lanes(target))
    example = statistics.images[:1].float().repeat(target.batch, 1, 1, 1)
    calibration = statistics.images[:25].float() if target.precision == "int8" else None
    wanted = installed(target.precision, traceable=target.precision == "float32")
    engines = [name for name in wanted if name != "torch" and target.engine in ("auto", name)]
    if not engines:
        raise GdwsError(f"the engine {target.engine} is not installed: expected it (pip install 'gdws[engines]')")
    assert target.threads is not None
    plain: dict[tuple[str, int], Callable[[Tensor], Tensor]] = {}
    profiled: dict[tuple[str, int], OnnxRuntime | OpenVino] = {}
    names = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        for index, chosen in track(list(enumerate([{}, *grid])), "building networks to time"):
            program = traced(mock(model, chosen), example)
            to_onnx(program, file, example)
            names.append(owners(needed("onnx").load(file).graph))
            for engine in wanted if index == 0 else engines:
                if engine == "torch":
                    plain[engine, index] = Packed(program, target.threads)
                    continue
                ready = prepared(engine, file, calibration, Path(folder))
                plain[engine, index] = session(engine, ready, example, target.threads)
                if engine in engines:
                    profiled[engine, index] = session(engine, ready, example, target.threads, profiled=True)
    totals: dict[tuple[str, int], list[float]] = {key: [] for key in plain}
    for turn in track(range(WARMUP + TURNS), "timing"):
        for watched in profiled.values():
            watched(example), watched(example)  # the first finds the caches full of another network's weights
        for key, run in plain.items():
            run(example)
            start = time.perf_counter()
            run(example)
            if turn >= WARMUP:
                totals[key].append(time.perf_counter() - start)
    seconds = {engine: float(np.quantile(taken, 0.25)) for (engine, index), taken in totals.items() if index == 0}
    fastest = min(seconds, key=lambda name: seconds[name])
    tables = {}
    for engine in engines:
        own = range(1 + len(grid))
        passes = [profiled[engine, index].passes()[2 * WARMUP + 1 :: 2] for index in own]
        whole = np.array([totals[engine, index] for index in own])
        total, layers = seconds[engine], [site.name for site in sites]
        tables[engine] = _latencies(total, whole, passes, names, grid, layers, lanes(target))
    return Timetable(device_name(), target, (fastest, seconds[fastest]), tables)


def _latencies(
    total: float,
    whole: Floats,
    passes: list[list[list[NodeTime]]],
    names: Sequence[dict[str, set[str]]],
    grid: Sequence[Mapping[str, Choice]],
    layers: Sequence[str],
    filled: int,
) -> Latencies:
    """From the seconds of whole passes (networks, turns) and profiles [network][turn][node], the dense network first.

    A machine that others use too is slow for seconds and then fast again. Within a turn it is much the same, so every time
    counts as a fraction of what the dense network took in that turn; the median over the turns is given in seconds again.
    """
    dense_pass = np.array([sum(node.seconds for node in nodes) for nodes in passes[0]])

    def typical(taken: list[float]) -> float:
        return total * float(np.median(np.array(taken) / dense_pass))

    found = [
        {layer: typical(taken) for layer, taken in layer_seconds(own, owners, layers).items()}
        for own, owners in zip(passes, names, strict=True)
    ]
    return _reconciled(total, [float(np.median(taken / whole[0])) for taken in whole[1:]], found, grid, filled)


def _reconciled(
    total: float,
    shares: Sequence[float],
    found: Sequence[Mapping[str, float]],
    grid: Sequence[Mapping[str, Choice]],
    filled: int,
) -> Latencies:
    """From the seconds of the layers of each network, the dense one first, and the shares of its time that the others take.

    The layers of a network are not all of its time. What it took beyond the prediction from them (to start more kernels, or to
    read what no cache holds) is shared out among those that were replaced: the prediction is then right for every network of
    the grid.
    """
    dense = dict(found[0])
    points: dict[str, dict[str, dict[int, float]]] = {layer: {} for layer in dense}
    for chosen, times, share in zip(grid, found[1:], shares, strict=True):
        predicted = total + sum(times[layer] - dense[layer] for layer in chosen)
        beyond = (total * share - predicted) / len(chosen)
        for layer, choice in chosen.items():
            points[layer].setdefault(choice.structure.name, {})[choice.size] = max(times[layer] + beyond, times[layer] / 2)
    rising = {layer: {kind: sorted(own.items()) for kind, own in kinds.items()} for layer, kinds in points.items()}
    return Latencies(total, dense, rising, filled)


def _measured_on_gpu(
    model: nn.Module, sites: Sequence[Site], structures: Sequence[Structure], statistics: Statistics, target: Target
) -> Timetable:
    """Networks as CUDA graphs, and layers that are repeated within one."""
    device, _ = placement(model)
    grid = _grid(sites, structures, statistics, (*SHARES, LARGE), lanes(target))
    example = statistics.images[:1].float().repeat(target.batch, 1, 1, 1)
    dense = recorded(mock(model, {}).to(device), example, target.precision)
    layout = dense.layout
    random, inputs = torch.Generator(device).manual_seed(0), dict[tuple[int, ...], Tensor]()
    runs: dict[Hashable, Recorded | Repeated] = {}
    owned: list[dict[str, Hashable]] = []
    for index, chosen in track(list(enumerate([{}, *grid])), "building networks to time"):
        network = dense if index == 0 else Recorded(mock(model, chosen).to(device, TYPES[target.precision]), layout)
        runs[index] = network
        owned.append({})
        for site in sites if index == 0 else (site for site in sites if site.name in chosen):
            choice = chosen.get(site.name)
            alike = (str(site.conv), site.maps, choice and (choice.structure.name, choice.kept))
            owned[-1][site.name] = alike
            if alike not in runs:
                shapes = [(target.batch, site.conv.in_channels, height, width) for height, width, _, _ in site.maps]
                for shape in set(shapes) - set(inputs):
                    values = torch.rand(shape, device=device, generator=random).to(TYPES[target.precision])
                    inputs[shape] = values.to(memory_format=layout)
                runs[alike] = Repeated(network.model.get_submodule(site.name), [inputs[shape] for shape in shapes])
    names = {str(number): key for number, key in enumerate(runs)}
    timings = bench({name: runs[key] for name, key in names.items()}, example, WARMUP, TURNS)
    check_recorded(runs.values())
    seconds = {key: timings[name].quartile for name, key in names.items()}
    totals = [seconds[index] for index in range(1 + len(grid))]
    found = _in_place(totals, [{layer: seconds[alike] / CALLS for layer, alike in own.items()} for own in owned])
    total, shares = totals[0], [taken / totals[0] for taken in totals[1:]]
    latencies = _reconciled(total, shares, found, grid, lanes(target))
    return Timetable(device_name(device), target, ("cuda", total), {"cuda": latencies})


def _in_place(totals: Sequence[float], alone: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """The seconds of layers in their networks, the dense one first, from those of the networks and of the layers alone.

    alone: all layers of the dense network, and those that were replaced in each of the others. In a network a layer may find
    other things in the caches than alone. With one factor for dense layers, another for replaced ones, and what is not in the
    layers the same in all networks, T = rest + a dense + b replaced: a and b by least squares of relative errors.
    """
    dense = alone[0]
    rows = [[1.0, sum(dense.values()), 0.0]]
    for times in alone[1:]:
        rows.append([1.0, sum(taken for layer, taken in dense.items() if layer not in times), sum(times.values())])
    _, *factors = np.linalg.lstsq(np.array(rows) / np.array(totals)[:, None], np.ones(len(totals)), rcond=None)[0]
    first, others = np.clip(factors, 1 / SLOWER, SLOWER)
    first = min(first, totals[0] / sum(dense.values()))
    scaled = [(times, first if times is dense else others) for times in alone]
    return [{layer: float(factor * taken) for layer, taken in times.items()} for times, factor in scaled]


def _grid(
    sites: Sequence[Site], structures: Sequence[Structure], statistics: Statistics, shares: Sequence[float], filled: int
) -> list[dict[str, Choice]]:
    """What becomes of each layer in each network that is timed."""
    grid = []
    for structure, share in itertools.product(structures, shares):
        chosen = {}
        for site in sites:
            if not structure.fits(site.conv):
                continue
            curves = statistics.curves[site.name][structure.name]
            sizes = [size for size in structure.sizes(curves[0]) if size]
            full = [size for size in sizes if size % filled == 0]
            wanted = share * cost.dense_macs(site) / structure.macs(site, 1)
            size = min(full or sizes, key=lambda size: abs(size - wanted))
            chosen[site.name] = Choice(structure, size, structure.kept(curves, size), math.nan)
        if chosen:
            grid.append(chosen)
    return grid


def _key(
    model: nn.Module, sites: Sequence[Site], structures: Sequence[Structure], statistics: Statistics, target: Target
) -> str:
    packages = sorted({package for packages in PACKAGES.values() for package in packages if find_spec(package)})
    # Of the modules, not the distributions: onnxruntime comes in several of other names.
    versions = [f"{package} {getattr(needed(package), '__version__', '')}" for package in ("torch", *packages)]
    described = [
        FORMAT,
        device_name(placement(model)[0] if target.engine == "cuda" else None),
        asdict(target),
        versions,
        str(model),
        [[site.name, site.maps] for site in sites],
        [structure.name for structure in structures],
        list(statistics.images.shape[1:]),
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]
