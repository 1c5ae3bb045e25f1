"""One step of adversarial training: attack a batch in eval mode, descend on the attacked images in train mode.

Nothing in a step waits for the device, and on a GPU both halves are CUDA graphs. Its random numbers, those of dropout among
them, are determined by the seed, the epoch and the step: a training that was cut goes on exactly as it would have gone, and the
global generator is left as it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch import distributed as dist

from gdws.attacks.gradient_ascent import ascend
from gdws.core.cuda_graphs import GraphedCallable
from gdws.core.distributed import ProcessGroup
from gdws.core.errors import GdwsError
from gdws.core.execution import full_precision, own_copy, placement
from gdws.data import Dataset
from gdws.training.augment import crop_and_flip
from gdws.training.batchnorm import share_batchnorm_statistics
from gdws.training.losses import Loss
from gdws.training.recipes import Recipe
from gdws.training.schedules import SCHEDULES


class Learner:
    """A network in training, its running average, and the optimizer's memory.

    model     trained in place; on a GPU in channels-last order.
    averaged  a copy that follows it, in eval mode: what is judged and kept.
    """

    def __init__(self, model: nn.Module, data: Dataset, recipe: Recipe, loss: Loss, processes: ProcessGroup) -> None:
        if computed := [name for name, parameter in model.named_parameters() if not parameter.is_leaf]:
            raise GdwsError(f"{computed[0]} is computed from other tensors: expected parameters (torch.jit.trace makes others)")
        self.device, _ = placement(model)
        self.model, self.recipe, self.loss, self.processes = model, recipe, loss, processes
        self.batch = min(recipe.batch, len(data.labels))
        if self.batch % processes.world:
            raise GdwsError(
                f"batches of {self.batch} images for {processes.world} processes: expected a multiple of the latter"
            )
        self.steps = len(data.labels) // self.batch
        self.images, self.labels = data.images.to(self.device), data.labels.to(self.device)
        self.layout = torch.channels_last if self.device.type == "cuda" else torch.contiguous_format
        model.to(memory_format=self.layout)  # type: ignore[call-overload]
        if processes.world > 1:
            share_batchnorm_statistics(model)
            processes.take_from_first(model.state_dict().values())
        self.averaged = own_copy(model).eval()
        self.parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        if not self.parameters:
            raise GdwsError("no parameter of the model requires a gradient: expected something to train")
        self.optimizer = torch.optim.SGD(
            self.parameters.values(),
            recipe.rate,
            momentum=0.9,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
            fused=self.device.type == "cuda",
        )
        self.schedule = SCHEDULES[recipe.schedule](recipe.rate, recipe.epochs)
        self.strength = recipe.attack_in(0)
        self.attack, self.gradients = self._recorded(self._attack), self._recorded(self._gradients)
        self.done, self.ordered, self.order = 0, -1, torch.empty(0)

    def step(self, epoch: int, number: int) -> tuple[float, Tensor]:
        """Step `number` of epoch `epoch`, both from 0: the learning rate, and (sum of losses, attacked images right)."""
        if self.recipe.attack_in(epoch) != self.strength:  # a recording holds its radius
            self.strength, self.attack = self.recipe.attack_in(epoch), self._recorded(self._attack)
        images, start, labels = self.drawn(epoch, number)
        (attacked,) = self.attack(start, images, labels)
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(self._seed("dropout", epoch, number, self.processes.rank))
            found, *gradients = self.gradients(attacked, images, labels)
        if self.processes.world > 1:
            found, *gradients = _summed([found, *gradients])
        for parameter, gradient in zip(self.parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        rate = self.schedule.rate(epoch + number / self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        with torch.no_grad():
            self.loss.constrain(self.model)
        self.done = epoch * self.steps + number + 1
        self._follow()
        return rate, found

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the next step starts from."""
        momentum = {name: self.optimizer.state[value]["momentum_buffer"] for name, value in self.parameters.items()}
        parts = {"model": self.model.state_dict(), "averaged": self.averaged.state_dict(), "momentum": momentum}
        return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave, beside the best network so far."""
        state = {name: value.shape for name, value in self.model.state_dict().items()}
        moving = {name: value.shape for name, value in self.parameters.items()}
        parts = {"model": state, "averaged": state, "best": state, "momentum": moving}
        expected = {f"{part}.{name}": shape for part, shapes in parts.items() for name, shape in shapes.items()}
        given = {name: value.shape for name, value in tensors.items()}
        if other := dict(expected.items() ^ given.items()):
            raise GdwsError(f"the checkpoint has another {min(other)} than this training: expected its own")

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

        self.model.load_state_dict(part("model."))
        self.averaged.load_state_dict(part("averaged."))
        for name, value in part("momentum.").items():
            parameter = self.parameters[name]
            self.optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(value)

    @contextmanager
    def precision(self) -> Iterator[None]:
        """That of the passes: bfloat16, or true float32, which on NVIDIA GPUs is not PyTorch's own choice."""
        if self.recipe.precision == "bfloat16":
            with torch.autocast(self.device.type, torch.bfloat16):
                yield
        else:
            with full_precision():
                yield

    def drawn(self, epoch: int, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Images, points near them and labels: this process's part of what all of them draw alike."""
        if self.ordered != epoch:
            self.ordered = epoch
            self.order = torch.randperm(len(self.images), generator=self._generator("order", epoch), device=self.device)
        generator = self._generator("batch", epoch, number)
        picked = self.order[number * self.batch : (number + 1) * self.batch]
        images = crop_and_flip(self.images[picked], generator, flip=self.recipe.flip).float() / 255
        start = self.recipe.attack_in(epoch).start(images, generator)
        share = self.batch // self.processes.world
        own = slice(self.processes.rank * share, (self.processes.rank + 1) * share)
        laid_out = [value[own].contiguous(memory_format=self.layout) for value in (images, start)]
        return laid_out[0], laid_out[1], self.labels[picked][own]

    def _generator(self, *words: str | int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(self._seed(*words))

    def _seed(self, *words: str | int) -> int:
        digest = hashlib.blake2b(repr((self.recipe.seed, *words)).encode(), digest_size=7).digest()
        return int.from_bytes(digest, "little")

    def _recorded(self, function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        """As a graph, if there is one process: several talk to each other within a step, which a graph may not record."""
        return GraphedCallable(function) if self.processes.world == 1 else function

    def _attack(self, start: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor]:
        self.model.eval()
        with torch.no_grad(), self.precision():
            goal = self.loss.goal(self.model, images, labels)
            return (ascend(self.strength.advance(self.model), images, goal, start, self.strength.steps),)

    def _gradients(self, attacked: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """(sum of the losses, number right) and the gradients of the mean loss of the whole batch."""
        self.model.train()
        parameters = list(self.parameters.values())
        with torch.enable_grad(), self.precision():
            losses, logits = self.loss.losses(self.model, attacked, images, labels)
            loss = losses.sum() / self.batch
        with full_precision():  # what was rounded on the way there is rounded on the way back
            # A layer without kernels has no part in the losses.
            gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        right = (logits.argmax(1) == labels).sum()
        return torch.stack([losses.detach().sum(), right.float()]), *map(_laid_out_as, gradients, parameters)

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the average. It never remembers more than the last tenth of the training so far."""
        weight = max(1 - self.recipe.average, 10 / (9 + self.done)) if self.recipe.average else 1.0
        mine = *self.averaged.parameters(), *self.averaged.buffers()
        theirs = *self.model.parameters(), *self.model.buffers()
        for value, trained in zip(mine, theirs, strict=True):
            if value.is_floating_point():
                value.lerp_(trained, weight)
            else:
                value.copy_(trained)


def _laid_out_as(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient with the strides of its parameter, which the fused optimizer wants; backward() would see to it."""
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)


def _summed(tensors: list[Tensor]) -> list[Tensor]:
    """The sums over the processes, sent as one."""
    flat = torch.cat([value.float().flatten() for value in tensors])
    dist.all_reduce(flat)
    return [part.view_as(value) for part, value in zip(flat.split([v.numel() for v in tensors]), tensors, strict=True)]
