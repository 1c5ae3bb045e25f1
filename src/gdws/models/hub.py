"""Networks with weights as the Hugging Face hub keeps them: a repository, or a folder with config.json and model.safetensors.

config.json is untrusted. It names an architecture of timm or of transformers and its sizes. It cannot have code run, a
pickle read or anything more fetched: only FILES are, from the repository that the user names.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gdws.core.errors import GdwsError, first_line
from gdws.core.progress import track
from gdws.core.reading.limits import read_file
from gdws.core.reading.schema import parse
from gdws.core.reading.weights import load_weights, read_weights
from gdws.core.unwrap import Normalized
from gdws.models import checkpoints

CONFIG, WEIGHTS, PREPROCESSING = "config.json", "model.safetensors", "preprocessor_config.json"
FILES = (CONFIG, WEIGHTS, PREPROCESSING)
REPOSITORY = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
PLAIN = re.compile(r"[\w.-]+", re.ASCII)
"""Names of architectures; others have timm look for them elsewhere."""

SETTINGS = ("num_classes", "input_size", "fixed_input_size")
"""Of timm's pretrained_cfg: what its networks are built by. Others say where weights lie."""
CODE = {"auto_map", "attn_implementation", "_attn_implementation", "experts_implementation", "fusion_config", "kernel_config"}
CODE |= {"use_kernels", "transformers_weights"}
"""Of transformers' config.json: what names code or files."""


def is_snapshot(name: str) -> bool:
    """Whether this names a folder as the hub keeps it."""
    return os.path.isfile(os.path.join(name, CONFIG))


def fetch(repository: str) -> Path:
    """The folder of the local cache with the FILES of a repository of the hub."""
    if not REPOSITORY.fullmatch(repository):
        raise GdwsError(f"{repository!r} is the name of no repository: expected OWNER/NAME")
    hub = _package("huggingface_hub", f"hf:{repository}")
    with _quiet(hub):
        try:
            (folder,) = (
                hub.snapshot_download(name, allow_patterns=list(FILES))
                for name in track([repository], f"fetching {repository}")
            )
        except Exception as error:
            raise GdwsError(f"hf:{repository} cannot be fetched: {first_line(error)}") from None
    return Path(folder)


def read(folder: Path, name: str) -> nn.Module:
    """The network of a folder. name: what messages call it."""
    if not (folder / CONFIG).is_file():
        raise GdwsError(f"{name} has no {CONFIG}: expected one that names an architecture of timm or transformers")
    if not (folder / WEIGHTS).is_file():
        raise GdwsError(f"{name} has no {WEIGHTS}: expected weights in one file, as safetensors (pickles are not read)")
    config = _json(folder / CONFIG)
    if isinstance(config.get("architecture"), str):
        return _by_timm(config, folder, name)
    return _by_transformers(config, folder, name)


def _by_timm(config: dict[str, Any], folder: Path, name: str) -> nn.Module:
    timm = _package("timm", name)
    settings = config.get("pretrained_cfg", config)  # older files are that alone
    arguments = config.get("model_args") or {}
    if not isinstance(settings, dict) or not isinstance(arguments, dict):
        raise GdwsError(f"{name} has a {CONFIG} that is not timm's: expected pretrained_cfg and model_args as dictionaries")
    reserved = {key for key in arguments if key in inspect.signature(timm.create_model).parameters or "pretrained" in key}
    if reserved:
        raise GdwsError(f"{name} has {sorted(reserved)[0]!r} among model_args: expected arguments of a network alone")
    architecture = config["architecture"]
    if not PLAIN.fullmatch(architecture) or not timm.is_model(architecture):
        raise GdwsError(f"{name} is of the architecture {architecture!r}: expected one that timm {timm.__version__} has")
    built_by = {key: value for key, value in {**settings, **config}.items() if key in SETTINGS}
    with _offline():
        try:
            network: nn.Module = timm.create_model(architecture, pretrained=False, pretrained_cfg=built_by, **arguments)
        except Exception as error:
            raise GdwsError(f"timm cannot build {architecture} as {name} has it: {first_line(error)}") from None
    load_weights(network, checkpoints.fit(read_weights(folder / WEIGHTS), network, name), name)
    if not {"mean", "std"} <= settings.keys():
        return network
    return Normalized(network, *_normalization(settings["mean"], settings["std"], name))


def _by_transformers(config: dict[str, Any], folder: Path, name: str) -> nn.Module:
    kind, architectures = config.get("model_type"), config.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(kind, str) or not isinstance(architecture, str):
        raise GdwsError(f"{name} has a {CONFIG} without an architecture: expected one of timm or transformers")
    if config.get("quantization_config"):
        raise GdwsError(f"{name} is quantized: expected weights in floating point")
    transformers = _package("transformers", name)
    if architecture not in _known(kind):
        raise GdwsError(
            f"{name} is of the architecture {architecture!r} and type {kind!r}: expected one that transformers "
            f"{transformers.__version__} has (code in a repository is not run)"
        )
    tensors = read_weights(folder / WEIGHTS)
    with _offline():
        try:
            settings = transformers.CONFIG_MAPPING[kind].from_dict(_without_code(config))
            network, found = getattr(transformers, architecture).from_pretrained(
                None,  # no place to look for anything
                config=settings,
                state_dict=tensors,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
            )
        except Exception as error:
            raise GdwsError(f"transformers cannot build {architecture} as {name} has it: {first_line(error)}") from None
    wrong = sorted(map(str, [*found["missing_keys"], *found["mismatched_keys"]]))
    if wrong:
        raise GdwsError(f"{name} does not fit {architecture}: {wrong[0]} is missing or of another shape ({len(wrong)} are)")
    return _normalized(network, folder / PREPROCESSING, name)


def _known(kind: str) -> set[str]:
    """The architectures that transformers' Auto classes have for a type of model."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    tables = [table for name, table in vars(auto).items() if name.endswith("MAPPING_NAMES")]
    found = [table[kind] for table in tables if kind in table]
    return {name for names in found for name in ([names] if isinstance(names, str) else names)}


def _without_code(value: Any) -> Any:
    """A configuration without what names code, files or weights of a part, at any depth."""
    if isinstance(value, list):
        return [_without_code(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _without_code(item) for key, item in value.items() if key not in CODE}
    return kept | ({"use_pretrained_backbone": False} if "backbone" in kept else {})


def _normalized(network: nn.Module, file: Path, name: str) -> nn.Module:
    """The network behind what its image processor does to pixels; as it is where there is none."""
    if not file.is_file():
        return network
    steps = _json(file)
    if steps.get("do_flip_channel_order"):
        raise GdwsError(f"{name} takes images in the order blue, green, red: expected red, green, blue")
    factor = steps.get("rescale_factor", 1 / 255) if steps.get("do_rescale", True) else 1
    if not isinstance(factor, int | float) or not 0 < factor < math.inf:
        raise GdwsError(f"{name} has the rescale_factor {factor!r:.40} in {PREPROCESSING}: expected a number above 0")
    mean, std, scale = [0.0], [1.0], 255 * factor
    if steps.get("do_normalize", "image_mean" in steps):
        mean, std = _normalization(steps.get("image_mean"), steps.get("image_std"), name)
    if steps.get("rescale_offset"):  # from [-1, 1]
        mean = [value + 1 for value in mean]
    if math.isclose(scale, 1):
        return network if (mean, std) == ([0.0], [1.0]) else Normalized(network, mean, std)
    return Normalized(network, [value / scale for value in mean], [value / scale for value in std])


def _normalization(mean: Any, std: Any, name: str) -> tuple[list[float], list[float]]:
    """Of every channel, or of all."""
    found = [value if isinstance(value, list) else [value] for value in (mean, std)]
    numbers = [number for values in found for number in values]
    finite = all(isinstance(number, int | float) and abs(number) < 1e6 for number in numbers)
    if not finite or len(found[0]) != len(found[1]) or not found[0] or min(found[1]) <= 0:
        raise GdwsError(f"{name} has the mean {mean!r:.60} and std {std!r:.60}: expected as many numbers, std above 0")
    return [float(number) for number in found[0]], [float(number) for number in found[1]]


def _json(path: Path) -> dict[str, Any]:
    found = parse(read_file(path), f"{path} cannot be read")
    if not isinstance(found, dict):
        raise GdwsError(f"{path} holds a {type(found).__name__}: expected a dictionary")
    return found


def _package(package: str, name: str) -> Any:
    try:
        return importlib.import_module(package)
    except Exception as error:  # a torchvision that does not fit fails in other ways than by ImportError
        raise GdwsError(f"{name} needs the package {package} (pip install 'gdws[hub]'): {first_line(error)}") from None


@contextmanager
def _quiet(hub: Any) -> Iterator[None]:
    """Without bars of huggingface_hub, and of transformers where it is in use, or its warnings."""
    bars = not hub.utils.are_progress_bars_disabled()
    logging = sys.modules.get("transformers.utils.logging")
    verbosity = logging.get_verbosity() if logging else None
    if bars:
        (logging.disable_progress_bar if logging else hub.utils.disable_progress_bars)()
    if logging:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        if bars:
            (logging.enable_progress_bar if logging else hub.utils.enable_progress_bars)()
        if logging:
            logging.set_verbosity(verbosity)


@contextmanager
def _offline() -> Iterator[None]:
    """Quietly, and with every request to the hub refused: what a configuration names is not fetched."""
    hub = _package("huggingface_hub", "a folder of the hub")
    constants = hub.constants
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        with _quiet(hub):
            yield
    finally:
        constants.HF_HUB_OFFLINE = before
