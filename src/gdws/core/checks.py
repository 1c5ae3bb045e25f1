"""What every model and every batch must be, checked wherever one comes in.

A model takes NCHW floats in [0, 1], normalizes inside, and returns logits (B, classes). Most wrong robustness numbers come
from breaking this silently: images that were normalized twice, probabilities in the place of logits, dropout left on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gdws.core.errors import GdwsError
from gdws.core.inputs import Arguments, Inputs, call_model, tensors_of, with_gradients
from gdws.core.reading.weights import dense

REPEATABLE, ASKED = 1e-3, 8
"""Share of the largest logit that answers may differ by when a model is asked again; and images that it is asked about, since
noise may leave a single one alone."""
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
INTEGERS = {torch.bool, torch.int8, torch.int16, torch.int32, torch.int64}
INTEGERS |= {torch.uint8, torch.uint16, torch.uint32, torch.uint64}
Batches = Iterable[Tensor | tuple[Tensor, Tensor] | list[Tensor]]
AnyBatches = Iterable[Any]
"""Batches of whatever a network is called with, alone or with targets (`unpack_inputs`)."""


def is_count(value: object, least: int = 0) -> bool:
    """Whether this is a whole number of at least so much."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def check_seed(seed: object) -> None:
    """Refuse what random generators do not take, or only some of them."""
    if not isinstance(seed, Integral) or not is_count(seed) or int(seed) >= 2**63:
        raise GdwsError(f"the seed is {seed!s:.40}: expected a whole number from 0 to 2**63 - 1")


def check_values(value: Tensor, what: str, expected: str = "numbers (B, ...), B > 0") -> None:
    """Refuse a tensor that no network is called with here: without real numbers in memory, or without a row or a value.

    what      it is, in a message, with its verb.
    expected  what should have been given.
    """
    if value.is_meta:
        raise GdwsError(f"{what} on the meta device, where tensors have no values: expected them on cpu or cuda")
    if not _is_dense(value) or value.dtype not in FLOATS | INTEGERS or value.ndim == 0 or value.numel() == 0:
        raise GdwsError(f"{what} {_described(value)}: expected {expected}")


def _is_dense(value: Tensor) -> bool:
    """Whether the values are in memory, one after the other."""
    return value.layout == torch.strided and not value.is_meta


def _described(value: Tensor) -> str:
    """Type and shape, and what kind of tensor it is where that is a strange one."""
    where = "meta " if value.is_meta else "" if value.layout == torch.strided else f"{value.layout} "
    return f"{where}{value.dtype} {tuple(value.shape)}"


def unpack_batch(batch: Tensor | tuple[Tensor, Tensor] | list[Tensor]) -> tuple[Tensor, Tensor | None]:
    """(images, labels or None) of a batch as a DataLoader gives it, with the images checked."""
    if isinstance(batch, Tensor):
        images, labels = batch, None
    elif isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
        images, labels = batch
    else:
        raise GdwsError(f"a batch is a {type(batch).__name__}: expected a tensor of images or (images, labels)")
    expected = "floats (B, C, H, W), B > 0"
    check_values(images, "images are", expected)
    if images.ndim != 4 or images.dtype not in FLOATS:
        raise GdwsError(f"images are {_described(images)}: expected {expected}")
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):
        raise GdwsError(f"image values run from {low:g} to {high:g}: expected [0, 1] (the model normalizes inside)")
    return images, None if labels is None else classes(labels, len(images))


def classes(labels: Tensor, count: int) -> Tensor:
    """So many labels as int64, whatever integers they are given in."""
    if not _is_dense(labels) or labels.shape != (count,) or labels.dtype not in INTEGERS:
        raise GdwsError(f"labels are {_described(labels)}: expected {count} integers, one for each image")
    whole = labels.long()  # of uint64 the largest become negative
    if count and int(whole.min()) < 0:
        raise GdwsError(f"labels hold {int(whole.min())}: expected classes, which count from 0")
    return whole


def unpack_inputs(batch: Any) -> tuple[Inputs, Tensor | None]:
    """(inputs, targets or None) of a batch as a DataLoader gives it: a tensor, a dictionary of arguments or Arguments, alone or
    in a pair with targets, which may be of any kind."""
    inputs, targets = batch, None
    if isinstance(batch, tuple | list):
        if len(batch) != 2 or not isinstance(batch[1], Tensor):
            raise GdwsError(
                f"a batch is a {type(batch).__name__} of {len(batch)}: expected a tensor, (inputs, targets) or a dictionary of "
                "arguments, or gdws.Arguments(...) for a network that is called with several tensors"
            )
        inputs, targets = batch
    if isinstance(inputs, Mapping):
        inputs = Arguments(**inputs)
    if not isinstance(inputs, Tensor | Arguments):
        raise GdwsError(
            f"a batch is a {type(inputs).__name__}: expected a tensor, a dictionary of arguments, or (inputs, targets)"
        )
    for value in tensors_of(inputs):
        check_values(value, "the values of a batch are")
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise GdwsError("a batch holds NaN or infinite values: expected finite numbers")
    if targets is not None and (not _is_dense(targets) or targets.ndim == 0):
        raise GdwsError(f"targets are {_described(targets)}: expected values, with a row for every sample")
    if targets is not None and len(targets) != len(inputs):
        raise GdwsError(f"a batch has {len(inputs)} samples and {len(targets)} targets: expected a target for each")
    return inputs, targets


def check_logits(logits: Any, samples: int, labels: Tensor | None = None) -> None:
    """Refuse what are no finite logits (B, classes) with a class for every label."""
    if isinstance(logits, Tensor) and logits.is_meta:
        raise GdwsError("the model is on the meta device, where tensors have no values: expected it on cpu or cuda")
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != samples or logits.shape[1] == 0:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise GdwsError(f"the model returned {shape} for {samples} images: expected logits ({samples}, classes)")
    values = logits.detach()
    if not bool(values.isfinite().all()):
        raise GdwsError("the model returned NaN or infinite logits: expected finite numbers (are its weights intact?)")
    sums = values.float().sum(1)
    if bool((values >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all()) and values.shape[1] > 1:
        raise GdwsError("the model returned probabilities (rows >= 0 that sum to 1): expected logits, before softmax")
    if labels is not None and int(labels.max()) >= values.shape[1]:
        raise GdwsError(f"the model has {values.shape[1]} classes: expected more than label {int(labels.max())}")


def checked_logits(model: nn.Module, images: Tensor, labels: Tensor | None = None) -> Tensor:
    """model(images), which must be finite logits with a class for every label."""
    logits = call_model(model, images)
    check_logits(logits, len(images), labels)
    found: Tensor = logits
    return found


Answers = Callable[[Any], list[Tensor]]
"""What a network answers to inputs: tensors with a row for every sample, checked."""


def logits_of(model: nn.Module) -> Answers:
    """The answers of a classifier."""
    return lambda images: [checked_logits(model, images)]


def check_repeatable(answers: Answers, inputs: Inputs) -> None:
    """Refuse a model whose answers are others when it is asked again: nothing measured of it would hold."""
    spread = spread_when_asked_again(answers, inputs)
    if spread > REPEATABLE:
        raise GdwsError(
            f"the model answers the same images differently when asked again, by {spread:.1g} of its largest logit: "
            "expected the same answers (is dropout left on, or is there noise in its forward pass?)"
        )


def spread_when_asked_again(answers: Answers, inputs: Inputs) -> float:
    """How far the answers to the same inputs are apart in two passes, as a share of the largest of each tensor."""
    with torch.no_grad():
        once, again = answers(inputs), answers(inputs)
    if [value.shape for value in once] != [value.shape for value in again]:
        return float("inf")
    smallest = torch.finfo(torch.float32).tiny
    pairs = zip(once, again, strict=True)
    return max(float((a.float() - b.float()).abs().max() / a.float().abs().max().clamp_min(smallest)) for a, b in pairs)


def check_differentiable(answers: Answers, sample: Inputs) -> None:
    """Refuse a model whose answers have no gradient graph back to the sample: nothing could be attacked or measured
    through it."""
    x = with_gradients(sample)
    wanted = [value for value in tensors_of(x) if value.requires_grad]
    if not wanted:
        kinds = " and ".join(sorted({str(value.dtype) for value in tensors_of(x)}))
        raise GdwsError(
            f"the network is called with {kinds} alone, which have no gradients: expected floats, such as what its first "
            "layers make of them, and the rest of the network as the model"
        )
    with torch.enable_grad():
        moving = [value.sum() for value in answers(x) if value.requires_grad]
        gradients = torch.autograd.grad(moving, wanted, allow_unused=True) if moving else ()
    if all(gradient is None for gradient in gradients):
        raise GdwsError(
            "the model detaches its outputs from the images: expected gradients to pass through it (no detach, no no_grad)"
        )


def check_weights(model: nn.Module) -> None:
    """Refuse a model with NaN or infinite weights, or with weights that have no values yet, naming the first."""
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            continue
        if value.is_meta or is_lazy(value):
            raise GdwsError(f"{name} has no values yet, on the meta device or of a lazy module: expected weights")
        if not bool(dense(value).isfinite().all()):
            raise GdwsError(f"{name} holds NaN or infinite values: expected finite weights")
