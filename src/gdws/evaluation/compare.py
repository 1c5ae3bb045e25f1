"""The evaluation: networks side by side on the same images, under the same attacks from the same random starts.

Everything is kept for each image, correct or wrong, so that networks can be compared in pairs and attacks united by their worst
case. Attacks run in true float32, on the float32 network; what is deployed (half precision, an exported file) decides the
examples made on that network, those that barely fool it and those made to the end. The random starts of a batch depend on the
seed, its number and the attack, and on nothing else: a result is the same whether it was made in one run or in pieces, by one
process or by several.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gdws.attacks import Attack
from gdws.compression.fidelity import refuse_calibration_images
from gdws.core.checks import (
    ASKED,
    REPEATABLE,
    Batches,
    check_differentiable,
    check_seed,
    checked_logits,
    logits_of,
    spread_when_asked_again,
    unpack_batch,
)
from gdws.core.distributed import SINGLE_PROCESS, ProcessGroup
from gdws.core.errors import GdwsError
from gdws.core.execution import at_least_float32, evaluating, full_precision, placement
from gdws.core.files import check_file, locked
from gdws.core.hashing import data_hash, network_identity, weights_hash
from gdws.core.progress import count_batches, note, track
from gdws.core.unwrap import unwrap
from gdws.evaluation.comparison import NATURAL, Comparison, Trial, percent
from gdws.evaluation.deployed import Deployed
from gdws.evaluation.resume import IDENTITIES, BatchDecisions, DecisionLog


class OutOfTime(GdwsError):
    """The time was used up. The batches so far are in the checkpoint."""


def compare(
    networks: Mapping[str, nn.Module],
    batches: Batches,
    attacks: Sequence[Attack],
    seed: int = 0,
    *,
    deployed: Mapping[str, Deployed] | None = None,
    transfer: bool = True,
    checkpoint: Path | None = None,
    resume: bool = False,
    seconds: float | None = None,
    tf32: bool = False,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> Comparison:
    """Judge networks side by side on the same images, under the same attacks from the same random starts.

    networks    by name; the first of them is the base, with which the others are compared.
    batches     (images, labels) as a Dataset or a DataLoader gives them, in the same order every time.
    attacks     of gdws.attacks, each once; none for natural accuracy alone.
    seed        of the attacks' random starts.
    deployed    by name, other forms of these networks, half precision or ONNX files, evaluated on the examples made on them
                (gdws.evaluation.deployed.Deployed).
    transfer    try the base's examples on every other network, and theirs on the base.
    checkpoint  a file that keeps the result of every batch.
    resume      continue the checkpoint.
    seconds     time after which no further batch is begun.
    tf32        let attacks run in TF32 on GPUs that have it; their examples are judged in float32 all the same.
    processes   several processes that share the batches; each is given the same arguments and returns the whole result
                (gdws.core.distributed.join_processes).

    Returns gdws.evaluation.comparison.Comparison: for each network and attack, which images are correct. An image that is wrong
    without an attack counts as wrong with it.

    Raises GdwsError when there are no images or labels, when images are not in [0, 1] or a network was calibrated on some of
    them, when a model does not return finite logits or cannot be attacked, or when a checkpoint is of another evaluation; and
    OutOfTime, a GdwsError, when the time is up and batches are left.

    >>> import gdws
    >>> model, train = gdws.models.embedded(), gdws.data.load("demo", "train").take(4)
    >>> fast = gdws.compress(model, train, gdws.Macs(0.6), "uniform")
    >>> attack = gdws.attacks.PGD(steps=2)
    >>> found = gdws.compare({"base": model, "fast": fast}, gdws.data.load("demo", "test").take(8), [attack])
    >>> found.under("fast", str(attack)).shape
    torch.Size([8])
    >>> 0 <= found.paired_change("fast", "natural").p_value <= 1
    True
    """
    check_seed(seed)
    deployed = deployed or {}
    networks = {name: at_least_float32(unwrap(model)) for name, model in networks.items()}
    labels_of = {str(attack): attack for attack in attacks}
    if len(labels_of) < len(attacks):
        raise GdwsError(f"attacks are {', '.join(map(str, attacks))}: expected each once")
    refuse_calibration_images(networks, batches)
    for name, form in deployed.items():
        if form.of not in networks or name in networks:
            raise GdwsError(f"{name!r} is deployed of {form.of!r}: expected a name of its own, of one of {', '.join(networks)}")
    makers = {name: name for name in networks} | {name: form.of for name, form in deployed.items()}
    trials = _trials(makers, tuple(labels_of), transfer)
    settings = {
        "attacks": [_identity(attack) for attack in attacks],
        "seed": seed,
        "tf32": tf32,
        "torch": str(torch.__version__),
        "device": placement(next(iter(networks.values())))[0].type,
    }
    deadline = None if seconds is None else time.monotonic() + seconds
    entries, sizes = dict[int, BatchDecisions](), list[int]()

    def unfinished() -> Iterator[tuple[int, Tensor, Tensor]]:
        for number, batch in enumerate(batches):
            images, labels = unpack_batch(batch)
            if labels is None:
                raise GdwsError("the data has no labels: expected (images, labels) to score a model on")
            sizes.append(len(images))
            if number in entries:
                decided = entries[number]
                if decided.right.shape[1] != len(images) or decided.data != data_hash(images, labels):
                    raise GdwsError(
                        f"batch {number} of {checkpoint} was made of other images: expected the same data and batch"
                    )
            elif processes.owns(number) and (deadline is None or time.monotonic() < deadline):
                yield number, images, labels

    with ExitStack() as stack:
        stack.enter_context(full_precision())
        for model in networks.values():
            stack.enter_context(evaluating(model))
        log = None
        if checkpoint is not None:
            identities = {name: weights_hash(model) for name, model in networks.items()}
            # The last words tell these rows from those of files that were written when examples to the end were not tried.
            identities |= {name: f"{form.of}, {form.identity}, also to the end" for name, form in deployed.items()}
            first, batches = _first_of(batches)
            whole = {name: network_identity(model, first) for name, model in networks.items()}
            header = {**settings, "networks": identities, "trials": trials, IDENTITIES: whole}
            log = stack.enter_context(_open_log(checkpoint, header, resume, processes))
            entries.update(log.done)
        left = [number for number in range(count_batches(batches) or 0) if number not in entries and processes.owns(number)]
        label = ", ".join(name.partition(" (")[0] for name in labels_of) or "natural accuracy"
        for number, images, labels in track(unfinished(), label, len(left) or None):
            if not entries:
                _warn_of_randomness(networks, images)
            right = _decide_batch(networks, deployed, labels_of, trials, images, labels, (seed, number), tf32)
            entries[number] = BatchDecisions(data_hash(images, labels), torch.stack([right[trial] for trial in trials]))
            if log is not None:
                log.append(number, entries[number])
            note(_so_far(networks, trials, entries))
    if not sizes:
        raise GdwsError("the evaluation data is empty: expected at least one batch")
    return Comparison(makers, tuple(labels_of), _all_batches(trials, entries, sizes, processes), settings)


def _warn_of_randomness(networks: Mapping[str, nn.Module], images: Tensor) -> None:
    for name, network in networks.items():
        if spread_when_asked_again(logits_of(network), images[:ASKED].to(*placement(network))) > REPEATABLE:
            warnings.warn(
                f"{name} answers the same images differently when asked again: its accuracies are those of single draws "
                "(is dropout left on?)",
                stacklevel=3,
            )


def _first_of(batches: Batches) -> tuple[Tensor, Batches]:
    """The images of the first batch, and all batches: some can be gone through only once."""
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise GdwsError("the evaluation data is empty: expected at least one batch")
    return unpack_batch(first)[0], itertools.chain([first], iterator) if isinstance(batches, Iterator) else batches


def random_starts(attack: Attack, seed: int, batch: int) -> torch.Generator:
    """The generator of one attack on one batch, the same for every network."""
    text = json.dumps([_identity(attack), seed, batch], sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def without_early_exit(attack: Attack) -> Attack:
    """The attack as it makes examples for other networks: with all its steps, from one start.

    One that stops at the first wrong prediction of the network that it attacks makes examples that hardly fool another.
    """
    if not getattr(attack, "early_exit", False):
        return attack
    one_start = {"restarts": 1} if hasattr(attack, "restarts") else {}
    return replace(attack, early_exit=False, **one_start)


def _trials(makers: Mapping[str, str], attacks: Sequence[str], transfer: bool) -> list[Trial]:
    trials = [Trial(judge, name, maker) for judge, maker in makers.items() for name in (NATURAL, *attacks)]
    base, *others = (judge for judge, maker in makers.items() if judge == maker)
    if transfer:
        pairs = [pair for other in others for pair in ((other, base), (base, other))]
        trials += [Trial(judge, attack, maker) for judge, maker in pairs for attack in attacks]
    return trials


def _decide_batch(
    networks: Mapping[str, nn.Module],
    deployed: Mapping[str, Deployed],
    attacks: Mapping[str, Attack],
    trials: Sequence[Trial],
    images: Tensor,
    labels: Tensor,
    seeds: tuple[int, int],
    tf32: bool,
) -> dict[Trial, Tensor]:
    """One batch: attack every network with everything, and let every judge decide the examples that it is to decide."""
    right: dict[Trial, Tensor] = {}
    natural: dict[str, Tensor] = {}

    def decide(judge: str, examples: Tensor) -> Tensor:
        with torch.no_grad():
            if judge in deployed:
                logits = deployed[judge].run(examples)
            elif examples is images:
                logits = checked_logits(networks[judge], examples.to(*placement(networks[judge])), labels)
            else:
                logits = networks[judge](examples.to(*placement(networks[judge])))
        # Half precision may overflow: an answer that is not a number is a wrong one.
        return ((logits.argmax(1).cpu() == labels.cpu()) & logits.isfinite().all(1).cpu()).bool()

    def attack_with(by: Attack, network: nn.Module, starts: torch.Generator) -> Tensor:
        device, dtype = placement(network)
        with full_precision(tf32=tf32):
            return by(network, images.to(device, dtype), labels.to(device), starts)

    for trial in trials:
        if trial.attack == NATURAL:
            right[trial] = natural[trial.judge] = decide(trial.judge, images)
    for maker, network in networks.items():
        if attacks:
            check_differentiable(logits_of(network), images[:1].to(*placement(network)))
        for name, attack in attacks.items():
            judges = [trial.judge for trial in trials if (trial.attack, trial.maker) == (name, maker)]
            own, whole = attack_with(attack, network, random_starts(attack, *seeds)), without_early_exit(attack)
            ended = own if whole is attack or judges == [maker] else attack_with(whole, network, random_starts(attack, *seeds))
            for judge in judges:
                # Another network is hardly fooled by examples that barely work, and rounding alone undoes many of them.
                tried = [own, ended] if judge in deployed and ended is not own else [own if judge == maker else ended]
                decisions = [natural[judge], *(decide(judge, examples) for examples in tried)]
                right[Trial(judge, name, maker)] = torch.stack(decisions).all(0)
    return right


@contextmanager
def _open_log(path: Path, header: dict[str, Any], resume: bool, processes: ProcessGroup) -> Iterator[DecisionLog]:
    """The log, made or mended by the first process before the others look at it. No other evaluation is let in meanwhile."""
    check_file(path)
    first = processes.first()
    with locked(path.with_name(f".{path.name}.lock"), f"evaluates into {path}") if first else nullcontext():
        if not first:
            processes.wait()
        with closing(DecisionLog(path, header, resume=resume or not first, repair=first)) as log:
            if first:
                processes.wait()
            yield log


def _all_batches(
    trials: Sequence[Trial], entries: Mapping[int, BatchDecisions], sizes: Sequence[int], processes: ProcessGroup
) -> dict[Trial, Tensor]:
    """All batches of all processes, (N,) for each trial. A last row tells which images were decided at all."""
    parts = [
        torch.cat([entries[number].right, torch.ones(1, size, dtype=torch.bool)])
        if number in entries
        else torch.zeros(len(trials) + 1, size, dtype=torch.bool)
        for number, size in enumerate(sizes)
    ]
    *rows, decided = processes.merged(torch.cat(parts, 1).to(torch.uint8)).bool()
    if not bool(decided.all()):
        raise OutOfTime(f"the time is up after {int(decided.sum())} of {len(decided)} images: expected to be resumed")
    return dict(zip(trials, rows, strict=True))


def _so_far(networks: Mapping[str, nn.Module], trials: Sequence[Trial], entries: Mapping[int, BatchDecisions]) -> str:
    """Worst-case accuracy of each network on the batches of this process."""
    right = torch.cat([entry.right for entry in entries.values()], 1)
    rows = {name: [row for row, trial in enumerate(trials) if trial.judge == trial.maker == name] for name in networks}
    return "correct so far " + ", ".join(f"{percent(right[own].all(0)):.1f}" for own in rows.values()) + " %"


def _identity(attack: Attack) -> dict[str, Any]:
    return {"name": str(attack), "kind": type(attack).__name__, **asdict(attack)}
