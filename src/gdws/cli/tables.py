"""What the command line prints, as tables that fit eighty columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from gdws.cli.demo import Row
from gdws.deploy.benchmark import Timing
from gdws.deploy.onnx.parity import Parity
from gdws.evaluation.comparison import Comparison, Trial, interval, percent
from gdws.planning.budgets import Latency, Speedup
from gdws.planning.cost import PRUNED
from gdws.planning.plan import Plan
from gdws.structures import STRUCTURES

TOO_SLOW = 1.02
"""How far beyond its latency budget a plan may come out by the noise of the measurement."""


def demo(rows: Sequence[Row], images: int) -> Table:
    """The demo's networks, the first of them the base."""
    table = _plain("CIFAR-10, method and fraction of MACs")
    table.caption = (
        f"1,000 test images, PGD-20 on the first {images}, with 95 % intervals; FPS: single images on one core, in "
        f"{' or '.join(sorted({row.engine for row in rows}))}, and in int8 in "
        f"{' or '.join(sorted({row.int8_engine for row in rows if row.int8_engine})) or 'nothing that is installed'}"
    )
    for heading in ("network", "natural", "PGD-20", "MACs", "MB", "FPS", "speed", "int8 FPS", "speed"):
        table.add_column(heading, justify="left" if heading == "network" else "right", no_wrap=True)
    for row in rows:
        int8 = ("", "") if row.int8_fps is None else (f"{row.int8_fps:.0f}", f"{row.int8_ratio:.2f}x")
        table.add_row(
            row.name,
            _give_or_take(row.natural, row.natural_interval),
            _give_or_take(row.robust, row.robust_interval),
            f"{row.macs / rows[0].macs:.2f}",
            f"{row.size_mb:.2f}",
            f"{row.fps:.0f}",
            f"{row.fps_ratio:.2f}x",
            *int8,
        )
    return table


EPOCH = {
    "epoch": "d",
    "rate": ".4f",
    "loss": ".3f",
    "attacked": ".1f",
    "natural": ".1f",
    "robust": ".1f",
    "seconds": ".1f",
    "images_per_second": ".0f",
}
"""What is shown of an epoch, and how."""


def epochs(history: Sequence[Mapping[str, float]], title: str = "training") -> Table:
    """A training, the last twenty epochs of it at most."""
    table = _plain(title)
    table.caption = "attacked: of the training images; natural, robust: of those held back; percent"
    for heading in ("epoch", "rate", "loss", "attacked", "natural", "robust", "s", "images/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in history[-20:]:  # epoch 0 has no rate and no loss
        table.add_row(*(f"{line[name]:{form}}" if name in line else "" for name, form in EPOCH.items()))
    return table


def stages(found: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    """The trainings of a pruning, each with its last epoch; before them the network that they began with."""
    table = _plain("pruning")
    table.caption = "after the last epoch of each stage; natural, robust: of the images held back; per cent"
    for heading in ("stage", "epochs", "loss", "natural", "robust", "s"):
        table.add_column(heading, justify="left" if heading == "stage" else "right", no_wrap=True)
    first = next(iter(found.values()))[0]
    table.add_row("before", "", "", f"{first['natural']:.1f}", f"{first['robust']:.1f}", "")
    for name, history in found.items():
        last, seconds = history[-1], sum(line.get("seconds", 0.0) for line in history)
        numbers = (f"{last['loss']:.3f}", f"{last['natural']:.1f}", f"{last['robust']:.1f}", f"{seconds:.1f}")
        table.add_row(name, str(last["epoch"]), *numbers)
    return table


def plan(made: Plan) -> Table:
    """What becomes of each convolution."""
    table = _plain(f"{made.method}, {made.budget}" + (", for tensor cores" if made.tensor_cores else ""))
    table.caption = "loss %: of all that is predicted to be lost; next: what another structure would lose there, in multiples"
    timed = made.measured is not None
    _columns(table, ["convolution", "becomes"], ["MACs", *(["time"] if timed else []), "loss %"])
    table.add_column("next", overflow="fold")
    for layer in made.layers:
        replaced = layer.structure != "dense"
        becomes = STRUCTURES[layer.structure].describe(layer.ranks) if replaced else f"dense: {layer.reason}"
        table.add_row(
            layer.name,
            becomes,
            f"{layer.macs / layer.dense_macs:.2f}" if replaced else "",
            *([f"{layer.seconds / layer.dense_seconds:.2f}" if layer.seconds and layer.dense_seconds else ""] if timed else []),
            f"{100 * layer.loss / made.loss:.1f}" if replaced and made.loss else "",
            layer.reason.partition(",")[0] if replaced else "",
        )
    return table


def left(made: Plan) -> str:
    """The plan's cost in a sentence, and what was left by the pruning of a network before it."""
    cost = f"{made.macs:.3f} of the MACs and {made.parameters:.3f} of the weights that may be replaced are left"
    return cost if made.nonzeros > PRUNED else f"{cost}; of these weights {100 * made.nonzeros:.1f} % were not zero before"


def measured(made: Plan) -> list[str]:
    """What a plan under a latency budget came to, in sentences."""
    found, budget = made.measured, made.budget
    assert found is not None
    assert isinstance(budget, Latency | Speedup)
    threads = "" if found.engine == "cuda" else f", {found.threads} thread(s)"
    where = f"{found.engine} {found.precision}{threads}, batch {found.batch}, {found.device}"
    dense = f"dense: {1e3 * found.dense_seconds:.2f} ms in {found.dense_engine}"
    sentences = [f"{1 / found.latency:.2f}x measured, {1 / found.predicted:.2f}x predicted ({where}; {dense})"]
    if found.latency > TOO_SLOW * budget.share:
        sentences.append(f"Warning: that is slower than asked for ({1 / budget.share:.2f}x); no plan that was tried is faster")
    return sentences


def accuracies(found: Comparison, title: str) -> Table:
    """Every network on natural images, under each attack and in the worst case, with Wilson's intervals."""
    table = _plain(title)
    _columns(table, ["network", "examples"], ["correct %", "95 % interval"])
    called = _called(found)
    for judge in found.makers:
        for name in found.examples:
            right = found.under(judge, name)
            table.add_row(
                called[judge] if name == found.examples[0] else "", name, f"{percent(right):.2f}", _range(interval(right))
            )
        table.add_section()
    return table


def changes(found: Comparison) -> Table:
    """Every network compared with the base, and everything deployed with its own network, image by image."""
    called, short = _called(found), _short(found)
    table = _plain(f"Image by image, compared with {called[found.base]}")
    table.caption = (
        "both: correct in both networks; interval and p: McNemar's, exact; what is deployed is compared with its own network"
    )
    _columns(table, ["network", "examples"], ["both", "lost", "gained", "points", "95 % interval", "p"])
    for judge in found.makers:
        for name in found.examples if judge != found.base else ():
            pair = found.paired_change(judge, name)
            table.add_row(
                called[judge] if name == found.examples[0] else "",
                short.get(name, name),
                *map(str, (pair.both, pair.lost, pair.gained)),
                f"{pair.points:+.2f}",
                _range(pair.interval, "+.2f"),
                f"{pair.p_value:.2g}",
            )
        table.add_section()
    return table


def transfers(found: Comparison) -> Table:
    """Examples made on one network and tried on another, and those that were made on the network itself."""
    table = _plain("Examples made on one network, tried on another")
    table.caption = "own %: correct on examples made on the network itself"
    _columns(table, ["made on", "tried on", "attack"], ["correct %", "95 % interval", "own %"])
    called, short = _called(found), _short(found)
    for trial in found.transfers:
        right, own = found.right[trial], found.right[Trial(trial.judge, trial.attack, trial.judge)]
        names = (called[trial.maker], called[trial.judge]) if trial.attack == found.attacks[0] else ("", "")
        table.add_row(*names, short[trial.attack], f"{percent(right):.2f}", _range(interval(right)), f"{percent(own):.2f}")
        if trial.attack == found.attacks[-1]:
            table.add_section()
    return table


def parities(found: Mapping[str, Parity], title: str) -> Table:
    """An exported file compared with its model, on each set of images."""
    table = Table(title=title)
    for heading in ("images", "number", "largest difference of a logit", "changed predictions"):
        table.add_column(heading)
    for name, parity in found.items():
        table.add_row(name, str(parity.images), f"{parity.difference:.2g}", str(parity.changed))
    return table


def timings(found: Mapping[str, Timing], ran_in: Mapping[str, str], title: str) -> Table:
    """Models timed in turns, the first of them the one that the others are compared with; ran_in: the engine of each."""
    table = _plain(title)
    table.caption = "quartile: the lower one, in ms"
    _columns(table, ["model", "engine"], ["FPS", "ms", "95 % interval", "quartile", "speed-up"])
    first = next(iter(found.values()))
    for name, timing in found.items():
        low, high = (f"{1e3 * bound:.3f}" for bound in timing.interval)
        median, quartile = f"{1e3 * timing.median:.3f}", f"{1e3 * timing.quartile:.3f}"
        speedup = f"{first.median / timing.median:.2f}x"
        table.add_row(name, ran_in[name], f"{timing.fps:.1f}", median, f"{low} to {high}", quartile, speedup)
    return table


def _plain(title: str) -> Table:
    return Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def _columns(table: Table, words: Sequence[str], numbers: Sequence[str]) -> None:
    for heading in words:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)


def _called(found: Comparison) -> dict[str, str]:
    """The networks without the folders that they are in, where that still tells them apart.

    `gdws tune` calls every network model, in a folder that has the name.
    """
    parts = {name: name.rstrip("/").split("/") for name in found.makers}
    called = {name: "/".join(own[-2:] if own[-1] == "model" else own[-1:]) for name, own in parts.items()}
    return called if len(set(called.values())) == len(called) else {name: name for name in found.makers}


def _short(found: Comparison) -> dict[str, str]:
    """Each attack with as few of its settings as tell it apart."""
    forms = [[name.partition(" (")[0], name.partition(",")[0] + ")", name] for name in found.attacks]
    taken = [[form[level] for form in forms] for level in range(3)]
    return {
        name: next(short for level, short in enumerate(form) if level == 2 or taken[level].count(short) == 1)
        for name, form in zip(found.attacks, forms, strict=True)
    }


def _give_or_take(value: float, bounds: tuple[float, float]) -> str:
    """With the longer side of its interval."""
    return f"{value:.1f} ±{max(value - bounds[0], bounds[1] - value):.1f}"


def _range(bounds: tuple[float, float], form: str = ".1f") -> str:
    low, high = bounds
    return f"{low:{form}} to {high:{form}}"
