"""A network as its author wrote it: without what stands around it and what training put into it.

Around it: `Normalized`, DataParallel and torch.compile, which put a name of their own before those of all layers. Into it:
weight_norm, spectral_norm, other parametrizations and pruning masks, which compute a weight anew in every pass and leave no
plain weight to read, to copy or to replace. In eval mode the network is the same function without them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm, SpectralNormLoadStateDictPreHook, remove_spectral_norm
from torch.nn.utils.weight_norm import WeightNorm, remove_weight_norm

from gdws.core.errors import GdwsError
from gdws.core.execution import evaluating, own_copy

AROUND = ("module", "_orig_mod")
"""Where DataParallel and torch.compile have the network."""


class Normalized(nn.Module):
    """A network that wants normalized images, behind one that takes [0, 1]. Plans call its layers as the network does.

    >>> import torch
    >>> model = Normalized(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    >>> [name for name, _ in unwrap(model).named_parameters()]
    ['0.weight', '0.bias']
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes) of the network for images x (B, C, H, W) in [0, 1]."""
        logits: Tensor = self.network((x - self.mean) / self.std)
        return logits


def unwrap(model: nn.Module) -> nn.Module:
    """The network itself, whose weights are parameters of its layers; a copy where it computes them. `model` is untouched.

    >>> import torch
    >>> made = unwrap(torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv2d(3, 8, 3)))
    >>> type(made).__name__, sorted(made.state_dict())
    ('Conv2d', ['bias', 'weight'])
    """
    network = innermost(model)
    for name, value in (*network.named_parameters(), *network.named_buffers()):
        if value.is_meta or is_lazy(value):
            raise GdwsError(f"{name} has no values yet, on the meta device or of a lazy module: expected weights")
    if not any(_computes_weights(module) for module in network.modules()):
        return network
    copied = own_copy(network)
    with evaluating(copied), torch.no_grad():
        for module in copied.modules():
            _make_plain(module)
    return copied


def innermost(model: nn.Module) -> nn.Module:
    """The network inside of all wrappers. One that was `Normalized` normalizes its input before its forward pass."""
    if not isinstance(model, nn.Module):
        raise GdwsError(
            f"the model is a {type(model).__name__}: expected an nn.Module (gdws.models.from_onnx makes one of an ONNX file)"
        )
    if isinstance(model, Normalized):
        return _normalizing(innermost(model.network), model.mean, model.std)
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if isinstance(model, parallel) or "_orig_mod" in model._modules:
        return innermost(next(model.get_submodule(name) for name in AROUND if name in model._modules))
    return model


def _normalizing(network: nn.Module, mean: Tensor, std: Tensor) -> nn.Module:
    """The network, of which it shares all tensors and modules, with a hook that normalizes."""
    shared = copy.copy(network)
    shared.__dict__ |= {name: copy.copy(value) for name, value in vars(network).items() if isinstance(value, dict | set)}
    if _normalize in shared._forward_pre_hooks.values():  # of a network that normalized already, which it still does
        mean, std = mean + std * shared.get_buffer("input_mean"), std * shared.get_buffer("input_std")
    else:
        shared.register_forward_pre_hook(_normalize)
    shared.register_buffer("input_mean", mean, persistent=False)
    shared.register_buffer("input_std", std, persistent=False)
    return shared


def _normalize(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    images, *others = inputs
    return ((images - module.get_buffer("input_mean")) / module.get_buffer("input_std"), *others)


def _hooks(module: nn.Module) -> list[object]:
    """What computes weights of a module before each pass, of the older kinds."""
    kinds = WeightNorm, SpectralNorm, prune.BasePruningMethod
    return [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, kinds)]


def _computes_weights(module: nn.Module) -> bool:
    return parametrize.is_parametrized(module) or bool(_hooks(module))


def _make_plain(module: nn.Module) -> None:
    for hook in _hooks(module):
        if isinstance(hook, prune.BasePruningMethod):
            prune.remove(module, hook._tensor_name)
        elif isinstance(hook, WeightNorm):
            remove_weight_norm(module, hook.name)
        elif isinstance(hook, SpectralNorm):
            remove_spectral_norm(module, hook.name)
            _forget_spectral_norm(module)
    if parametrize.is_parametrized(module):
        _remove_parametrizations(module)


def _forget_spectral_norm(module: nn.Module) -> None:
    """PyTorch's own function leaves a hook behind that refuses every state dict without the vectors of the norm."""
    hooks = module._load_state_dict_pre_hooks
    for key, hook in list(hooks.items()):
        if isinstance(getattr(hook, "hook", hook), SpectralNormLoadStateDictPreHook):
            del hooks[key]


def _remove_parametrizations(module: nn.Module) -> None:
    """PyTorch's own function would take the computed weights from the original too: a copy has the class that computes them."""
    lists = module.parametrizations
    assert isinstance(lists, nn.ModuleDict)
    weights = {name: getattr(module, name) for name in lists}
    del module.parametrizations
    module.__class__ = type(module).__bases__[0]
    for name, weight in weights.items():
        originals = list(lists[name].parameters(recurse=False))
        if originals:
            trained = any(original.requires_grad for original in originals)
            module.register_parameter(name, nn.Parameter(weight, requires_grad=trained))
        else:
            module.register_buffer(name, weight)
