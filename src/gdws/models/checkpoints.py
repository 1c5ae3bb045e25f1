"""What public checkpoints hold, turned into a state dict for a model. Pure functions: gdws.core.reading reads files.

HYDRA    {"state_dict": ...}, perhaps with "module." before each name; networks with masks have "popup_scores" beside weights,
         and its wide ResNets a "sub_block1" that never runs.
ADMM     a state dict with "module.basic_model." or "basic_model." before each name; resumable files have it under "net".
MSD      a state dict in half precision.
RobNet   {"state_dict": ...} with an optimizer beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gdws.core.errors import GdwsError

SCORES = "popup_scores"
NEVER_RUN = ("sub_block1.",)
"""Modules of public networks that take no part in their forward pass."""


def fit(tensors: dict[str, Tensor], model: nn.Module, source: str) -> dict[str, Tensor]:
    """The tensors under the names that the model has for them, as far as that can be known; `load_weights` checks the rest.

    Leading names that all of the tensors have and the model has not are taken away, and so are modules that never run. What old
    files lack (`num_batches_tracked`) comes from the model. Half precision becomes float32: attacks and plans need it.
    """
    masked_layers = [name for name in tensors if name.endswith(SCORES)]
    if masked_layers:
        raise GdwsError(
            f"{source} holds HYDRA's masked layers ({masked_layers[0]}) but not the fraction of weights that they keep: "
            "expected its dense file (*_dense.pth.tar), or what "
            "gdws.models.checkpoints.apply_popup_masks(tensors, keep=FRACTION) gives"
        )
    expected = model.state_dict()
    named = _without_common_prefix(tensors, expected)
    fitted = {
        name: value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
        for name, value in named.items()
        if name in expected or not name.startswith(NEVER_RUN)
    }
    counters = {name: value for name, value in expected.items() if name.endswith("num_batches_tracked")}
    return {**counters, **fitted}


def apply_popup_masks(tensors: dict[str, Tensor], keep: float) -> dict[str, Tensor]:
    """HYDRA's masked layers as dense ones: of each layer's weights the fraction `keep` with the largest scores, others zero."""
    if not 0 < keep <= 1:
        raise GdwsError(f"keep is {keep:g}: expected the fraction of weights that the masks keep, above 0 and at most 1")
    dense = {name: value for name, value in tensors.items() if not name.endswith(SCORES)}
    for name, scores in tensors.items():
        if name.endswith(SCORES):
            weight = name.removesuffix(SCORES) + "weight"
            if weight not in dense or dense[weight].shape != scores.shape:
                raise GdwsError(f"{name} has shape {tuple(scores.shape)}: expected {weight} of the same shape beside it")
            pruned = scores.abs().flatten().argsort()[: int((1 - keep) * scores.numel())]
            dense[weight] = dense[weight].flatten().index_fill(0, pruned, 0).view_as(scores)
    return dense


def _without_common_prefix(tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, Tensor]:
    named = tensors
    while named and named.keys().isdisjoint(expected):
        heads = {name.partition(".")[0] for name in named}
        if len(heads) > 1 or not all("." in name for name in named):
            return tensors  # another network's: the complaint shall give the names of the file
        named = {name.partition(".")[2]: value for name, value in named.items()}
    return named
