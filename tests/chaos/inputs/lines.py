"""Bad inputs on the command line: every option of every command with what its kind can be given wrongly, all data that is no
data, and all code that is no network. One product each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from chaos.case import Case, Family, Wrong, command, words
from chaos.inputs.code import CODE
from chaos.inputs.options import LONG, MAY, MUST, RED, bases
from chaos.inputs.place import check_nothing_new, furnish, named, tree
from gdws.core.errors import GdwsError


@dataclass(frozen=True)
class Line:
    """Words of a command line. must: whether they have to be refused."""

    arguments: tuple[str, ...]
    must: bool

    @property
    def told(self) -> str:
        return words(self.arguments)


def options() -> Iterator[Line]:
    """Every option with every value of its kind."""
    for arguments, kinds in bases():
        for option, kind in kinds.items():
            for must, values in ((True, MUST.get(kind, ())), (False, MAY.get(kind, ()))):
                for value in values:
                    yield Line(tuple(_with(arguments, option, kind, value)), must)
        yield Line((*arguments, "--nothing"), True)
        yield Line((*arguments, "more", "and more", "--json"), True)
        if arguments[0] not in ("demo", "inspect", "reproduce"):  # which do without
            yield Line((arguments[0],), True)


def _with(arguments: Sequence[str], option: str, kind: str, value: str) -> list[str]:
    """The words with the option's value, in the place of the one that was there."""
    made = list(arguments)
    if option.isdigit():
        place = int(option) + 1
        made[place : place + 1] = [value]
        return ["--" if word == "" else word for word in made] if value == "" and place >= len(arguments) else made
    if kind == "flag":
        return [*made, f"--{option}{value}"]
    if f"--{option}" in made:
        made[made.index(f"--{option}") + 1] = value
        return made
    return [*made, f"--{option}", value]


TOGETHER = (
    "compress NET --out out --data DATA --macs 0.5 --params 0.5",
    "compress NET --out out --data DATA --cache c --no-cache",
    "compress NET --out out --data DATA --no-robust --eps 8/255",
    "compress NET --out out --data DATA --method uniform --speedup 2",
    "compress NET --out out --data DATA --method paper --engine cuda --precision float16",
    "compress NET --out out --data DATA --method uniform --beta 1",
    "compress NET --out out --data DATA --beta 1",
    "compress NET --out out --data DATA --method uniform --drop 1",
    "compress NET --out out --data DATA --engine openvino --precision float16 --speedup 2",
    "compress FAST --out out --data DATA --base NET",
    "compress FAST --out out --data DATA",
    "compress NET --out folder --data DATA --method uniform",
    "compress NET --out folder --data DATA --method uniform --force",
    "compress FAST --out out --base NET --weights weights.pt --data DATA",
    "evaluate NET NET --data DATA --attack none",
    "evaluate FAST.onnx NET --data DATA --attack none",
    "evaluate NET --data DATA --attack pgd-20 --steps 3",
    "evaluate NET --data DATA --attack none --resume",
    "evaluate NET --data DATA --attack none --checkpoint text",
    "evaluate NET --data DATA --attack none --checkpoint text --resume",
    "evaluate NET --attack none --n 4 --data demo --batch 0",
    "evaluate FAST --data demo --attack none --n 4 --base zoo:resnet20",
    "export NET --out text --data DATA",
    "export NET --out x.onnx --data DATA --to torchscript",
    "export NET --out x.onnx --data DATA --precision float16",
    "bench NET --size 8 --engine cuda",
    "bench NET --size 8 --engine onnxruntime --channels-last",
    "bench NET NET --size 8 --engine eager --repeats 0",
    "bench text.onnx --size 8",
    "bench FAST --size 3 --engine onnxruntime --repeats 1 --warmup 0",
    "train FAST --data DATA --out out",
    "train NET --data DATA --out folder --resume --recipe nope",
    "train NET --data DATA --out TRAINING",
    "tune NET --data DATA --out out",
    "tune FAST --data DATA --out out --teacher zoo:resnet20",
    "tune FAST --data DATA --out out --teacher-weights weights.pt",
)


def together() -> Iterator[Line]:
    """Options that do not go with each other or with what is there."""
    for text in TOGETHER:
        must = not ("folder --data DATA --method uniform --force" in text or "--engine onnxruntime --repeats" in text)
        yield Line(tuple(text.split()), must)


def no_data() -> Iterator[Line]:
    """Every kind of data from every place that holds none, in every command that reads some."""
    places = (
        "text",
        "folder",
        "empty",
        "noise.safetensors",
        "null",
        "full",
        "dangling",
        "loop",
        "fifo",
        "socket",
        "",
        "classes",
        "looped",
        "text/x",
        "stored.npz",
        "images.npy",
        "nested",
        RED,
        LONG,
    )
    commands = (
        ["evaluate", "NET", "--attack", "none", "--n", "4"],
        ["compress", "NET", "--out", "out", "--method", "uniform", "--images", "4"],
        ["export", "NET", "--out", "x.onnx", "--n", "4", "--eps", "0"],
        ["train", "NET", "--out", "out", "--epochs", "1", "--batch", "8", "--steps", "1"],
    )
    for arguments in commands:
        for kind in ("npz", "cifar10", "svhn", "imagefolder"):
            for place in places:
                yield Line(
                    (*arguments, "--data", f"{kind}:{place}"),
                    (kind, place) not in (("npz", "stored.npz"), ("imagefolder", "looped")),
                )


CALLS = (
    ["inspect", "CODE", "--size", "8"],
    ["evaluate", "CODE", "--data", "DATA", "--steps", "1", "--n", "4"],
    ["compress", "CODE", "--out", "out", "--data", "DATA", "--method", "uniform", "--images", "4"],
    ["compress", "CODE", "--out", "out", "--data", "DATA", "--structures", "gdws", "--images", "4", "--robust"],
    ["export", "CODE", "--out", "x.onnx", "--data", "DATA", "--n", "4", "--eps", "0"],
    ["bench", "CODE", "--size", "8", "--engine", "eager", "--repeats", "1", "--warmup", "0"],
    ["train", "CODE", "--data", "DATA", "--out", "out", "--epochs", "1", "--batch", "8", "--steps", "1"],
    [
        "prune",
        "CODE",
        "--data",
        "DATA",
        "--out",
        "out",
        "--method",
        "magnitude",
        "--epochs",
        "1",
        "--batch",
        "8",
        "--steps",
        "1",
    ],
)


def no_network() -> Iterator[Line]:
    """Every kind of code that gives no network, or a strange one, in every command that runs it."""
    for name, (_, must) in CODE.items():
        for arguments in CALLS:
            # Which do without logits, and make images of as many channels as it takes.
            used = name not in ("no class", "one channel") or arguments[0] not in ("inspect", "bench")
            yield Line(tuple(f"{name}.py:net" if word == "CODE" else word for word in arguments), must and used)


LINES: dict[str, list[Line]] = {
    "options": list(dict.fromkeys(options())),
    "together": list(together()),
    "data": list(no_data()),
    "code": list(no_network()),
}


def families() -> list[Family]:
    return [Family(f"inputs/{name}", len(lines), _attempting(lines), short=SHORT[name]) for name, lines in LINES.items()]


def _attempting(lines: Sequence[Line]) -> Callable[[Case], None]:
    """In an order that is mixed, so that a part of them is one of all."""

    def attempt(case: Case) -> None:
        if case.index >= len(lines):
            case.key = lines[0].told  # there are no more
            return
        line = lines[case.index * STRIDE % len(lines)] if len(lines) % STRIDE else lines[case.index]
        case.key = line.told
        case.tell(line.told)
        furnish(case.folder, line.arguments)
        before = tree(case.folder)
        try:
            command(*(named(word) for word in line.arguments))
        except GdwsError:
            check_nothing_new(case.folder, before)
            raise
        finally:
            torch.set_num_threads(1)
        if line.must:
            raise Wrong("this was accepted")
        for hidden in case.folder.glob(".*"):
            raise Wrong(f"{hidden.name!r} was left behind")

    return attempt


STRIDE = 7919
SHORT = {"options": 12, "together": 4, "data": 10, "code": 6}
