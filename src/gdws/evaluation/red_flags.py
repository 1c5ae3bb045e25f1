"""Reasons to distrust a robustness number, looked for after an evaluation (in the spirit of AutoAttack's flags).

Some are read off the results. The others need a closer look at a few images that survived every attack: gradients that are not
there, a stronger attack that still gains, a search without gradients that finds what they missed. Silence is no proof: it says
that these mistakes were not made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gdws.attacks import Attack
from gdws.attacks.gradient_ascent import loss_gradient
from gdws.core.checks import Batches, unpack_batch
from gdws.core.execution import at_least_float32, evaluating, full_precision, placement
from gdws.core.inputs import call_model
from gdws.evaluation.compare import random_starts
from gdws.evaluation.comparison import NATURAL, WORST, Comparison, Trial, percent
from gdws.planning.significance import binomial_tail

FLAT = 1e-8
"""Largest entry of an input gradient that counts as vanished: cross-entropy in float32 has lost the true class by then."""
NOISE = 0.02
"""Share of the survivors that another random start may break without anything being wrong."""
RARE = 0.01
"""A finding must be rarer than this under the harmless explanation."""
QUERIES = 100
FEWEST, MOST = 8, 32
"""Survivors that are looked at: a tenth of the images, within these bounds."""


ADVICE = {
    "chance": "check the weights, the labels, and that the model takes images in [0, 1] and normalizes them itself",
    "probabilities": "evaluate the logits before the softmax or sigmoid, whose gradients saturate",
    "randomness": "switch off what is random in eval mode, or attack the mean of many passes (AutoAttack's rand version)",
    "gradients": "attack a differentiable copy (straight-through rounding, logits scaled down), or without gradients as well",
    "effort": "raise the steps and the restarts until nothing is gained",
    "black box": "something masks the gradients, so rely on attacks that do without them or go around it",
    "transfer": "its own gradients mislead, so count the transferred examples too and look for what masks them",
}


@dataclass(frozen=True)
class RedFlag:
    """A reason to distrust the numbers of a network; str() gives it as a sentence, with advice.

    network  the name of the network.
    kind     "chance", "probabilities", "randomness", "gradients", "effort", "black box" or "transfer".
    saw      what was seen.
    """

    network: str
    kind: str
    saw: str

    def __str__(self) -> str:
        return f"{self.network}: {self.saw}: {ADVICE[self.kind]}"


def red_flags(
    found: Comparison, networks: Mapping[str, nn.Module], batches: Batches, attacks: Sequence[Attack], seed: int = 0
) -> list[RedFlag]:
    """Look for reasons to distrust robustness numbers, after an evaluation.

    found     what gdws.compare returned.
    networks  that it was given.
    batches   that it was given. The first of them is looked at again: they must be something that can be iterated anew, as a
              Dataset or a DataLoader can.
    attacks   that it was given.
    seed      of random starts.

    Returns a list of gdws.evaluation.red_flags.RedFlag; print one for a sentence with advice. An empty list is no proof: it
    says that these mistakes were not made.

    >>> import gdws, torch
    >>> networks = {"sigmoid": torch.nn.Sequential(gdws.models.embedded(), torch.nn.Sigmoid())}
    >>> test = gdws.data.load("demo", "test").take(16)
    >>> found = gdws.compare(networks, test, [])
    >>> [flag.kind for flag in gdws.red_flags(found, networks, test, [])]
    ['probabilities']
    """
    images, labels = unpack_batch(next(iter(batches)))
    assert labels is not None
    made = [flag for name in found.networks for flag in check_transfer(found, name)]
    for name in found.networks:
        model = at_least_float32(networks[name])
        survived = found.under(name, WORST)[: len(images)].nonzero().flatten()
        probed = survived[: min(max(found.images // 10, FEWEST), MOST)]
        with full_precision(), evaluating(model):
            here = images.to(*placement(model))
            few = slice(None, MOST * max(1, len(here) // MOST), max(1, len(here) // MOST))  # images may lie sorted by class
            made += check_outputs(name, model, here[few], labels[few], found.under(name, NATURAL))
            if attacks and len(probed):
                best_first = sorted(attacks, key=lambda attack: int(found.under(name, str(attack)).sum()))
                made += attack_survivors_again(name, model, here[probed], labels.to(here.device)[probed], best_first, seed)
    return made


def check_outputs(name: str, model: nn.Module, images: Tensor, labels: Tensor, natural: Tensor) -> Iterator[RedFlag]:
    """What the answers themselves give away: guesses, probabilities, randomness. natural: right (N,) on all images."""
    with torch.no_grad():
        once, again = call_model(model, images).float(), call_model(model, images).float()
    right, total, classes = int(natural.sum()), len(natural), once.shape[1]
    if binomial_tail(right, total, 1 / classes) > RARE:
        yield RedFlag(
            name, "chance", f"{right} of {total} natural images are correct, as guessing among {classes} classes might be"
        )
    elif len(images) >= FEWEST and len(once.argmax(1).unique()) < min(2, len(labels.unique())):
        yield RedFlag(name, "chance", f"{len(images)} natural images all get the same class")
    low, high = float(once.min()), float(once.max())
    if low >= 0 and high <= 1:
        yield RedFlag(name, "probabilities", f"all outputs lie from {low:.2g} to {high:.2g}, as probabilities do")
    spread = float((once - again).abs().max() / once.abs().max().clamp_min(1e-30))
    if spread > 1e-4:
        yield RedFlag(name, "randomness", f"two passes over the same images differ by {spread:.1g} of the largest logit")


def attack_survivors_again(
    name: str, model: nn.Module, images: Tensor, labels: Tensor, attacks: Sequence[Attack], seed: int
) -> Iterator[RedFlag]:
    """A closer look at images that survived every attack; the attacks that broke the most others come first."""
    slopes = loss_gradient(model, images, labels)[1].abs().flatten(1).amax(1)
    if flat := _notable(slopes < FLAT):
        yield RedFlag(name, "gradients", f"the loss has no gradient (below {FLAT:g}) at {flat} that survived")
    if stronger := next(filter(None, map(_strengthen, attacks)), None):
        examples = stronger(model, images, labels, random_starts(stronger, seed, -1))
        with torch.no_grad():
            broken = model(examples).argmax(1) != labels
        if more := _notable(broken):
            yield RedFlag(name, "effort", f"{stronger} breaks {more} that survived")
    if radius := max(map(_linf_radius, attacks)):
        searched = _search_at_random(model, images, labels, radius, torch.Generator().manual_seed(seed))
        if found := _notable(searched):
            yield RedFlag(name, "black box", f"{QUERIES} random guesses break {found} that survived every attack")


def check_transfer(found: Comparison, judge: str) -> Iterator[RedFlag]:
    """Examples made on another network that break notably more images than the attack on the network itself."""
    for trial in found.transfers:
        if trial.judge != judge:
            continue
        own, other = found.right[Trial(judge, trial.attack, judge)], found.right[trial]
        only_other, only_own = int((own & ~other).sum()), int((other & ~own).sum())
        if binomial_tail(only_other, only_other + only_own, 0.5) < RARE:
            left = f"{percent(other):.1f} % correct, those made on itself {percent(own):.1f} %"
            yield RedFlag(judge, "transfer", f"{trial.attack}: examples made on {trial.maker} leave {left}")


def _notable(events: Tensor) -> str:
    """ "5 of 20 images" where that is more than chance would explain, nothing where it is not."""
    count, total = int(events.sum()), len(events)
    return f"{count} of {total} images" if binomial_tail(count, total, NOISE) < RARE else ""


def _strengthen(attack: Attack) -> Attack | None:
    """Twice the steps, ten at least, and one more restart, where an attack has such settings."""
    fields = {field.name: getattr(attack, field.name) for field in dataclasses.fields(attack)}
    if not isinstance(fields.get("steps"), int):
        return None
    changes = {"steps": max(10, 2 * fields["steps"])} | ({"restarts": fields["restarts"] + 1} if "restarts" in fields else {})
    return dataclasses.replace(attack, **changes)


def _linf_radius(attack: Attack) -> float:
    """eps of an l-inf attack (which those are that name no other norm), 0 of others."""
    eps = getattr(attack, "eps", 0)
    return eps if isinstance(eps, float) and getattr(attack, "norm", "linf") == "linf" else 0.0


def _search_at_random(model: nn.Module, images: Tensor, labels: Tensor, radius: float, generator: torch.Generator) -> Tensor:
    """Which images (B,) a random search breaks: a perturbation of -radius or radius everywhere, in stripes at first, of which
    each query changes a square and keeps it for the images whose margin fell (Square, Andriushchenko et al. 2020)."""

    def draw(*shape: int) -> Tensor:
        return (2 * torch.randint(2, shape, generator=generator) - 1).to(images)

    def margin(signs: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = model((images + radius * signs).clamp(0, 1))
        true = logits.gather(1, labels[:, None]).squeeze(1)
        return true - logits.scatter(1, labels[:, None], -torch.inf).amax(1)

    count, channels, height, width = images.shape
    signs = draw(count, channels, 1, width).expand_as(images)
    best = margin(signs)
    for query in range(1, QUERIES):
        side = max(1, round(min(height, width) * (0.6 - 0.5 * query / QUERIES)))
        top, left = (int(torch.randint(size - side + 1, (1,), generator=generator)) for size in (height, width))
        tried = signs.clone()
        tried[:, :, top : top + side, left : left + side] = draw(count, channels, 1, 1)
        found = margin(tried)
        better = found < best
        signs, best = torch.where(better[:, None, None, None], tried, signs), torch.where(better, found, best)
    return best < 0
