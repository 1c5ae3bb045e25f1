"""Bad inputs on the command line: every option of every command with what its kind can be given wrongly, all data that is no
data, and all code that is no network. One product each."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from chaos import material
from chaos.case import Case, Family, Wrong, command, words
from gdws.errors import GdwsError

RED, MARKUP, LONG = "\x1b[31mred", "[bold red]b[/] [link=x]", "n" * 300
BAD_NUMBERS = ("x", "", "nan", "1e400", "0x10", "1_0_", "--", "½")
NAMES = ("", "x", RED, MARKUP, "CPU", "none\n", "é", "a" * 5000)

MUST: dict[str, Sequence[str]] = {
    "count": ("0", "-1", "-999999999999", "1.5", *BAD_NUMBERS),
    "natural": ("-1", "-999999999999", "1.5", *BAD_NUMBERS),
    "seed": ("-1", str(2**63), "1.5", *BAD_NUMBERS),
    "fraction": ("0", "-1", "-0.5", "1.5", "inf", "-inf", *BAD_NUMBERS),
    "factor": ("0", "0.5", "-1", "inf", "-inf", *BAD_NUMBERS),
    "points": ("0", "-1", "100", "inf", "-inf", *BAD_NUMBERS),
    "bound": ("-1", "-1e-300", "inf", "-inf", *BAD_NUMBERS),
    "rate": ("0", "-1", "inf", "-inf", *BAD_NUMBERS),
    "radius": ("-1", "2", "inf", "-inf", "1/0", "1/inf", "/255", "8//255", "8/255/3", "8/-255", "nan/nan", *BAD_NUMBERS),
    "name": NAMES,
    "device": (*NAMES, "meta", "cuda", "cuda:99", "mps", "xla", "cpu,cuda", "-1"),
    "data": ("", "x", "demo:x", "npz:", "npz", "cifar10:", "svhn:", "imagefolder:", "mnist:x", RED, f"npz:{RED}", f"imagefolder:{MARKUP}", f"npz:{LONG}", "npz:missing.npz", "imagefolder:missing", "cifar10:missing", "svhn:missing"),
    "model": ("", "x", "zoo:", "zoo:nope", f"zoo:{RED}", "torchvision:nope", "timm:nope", "zoo:resnet18:x", "missing.py:net", "missing.py:", ":net", ".py:net", f"{RED}.py:net", f"missing.py:{MARKUP}", LONG, "missing", "../missing", "/", "null", "model.onnx.bak"),
    "read": ("missing", "", "folder", "empty", "noise.pt", "noise.safetensors", "null", "dangling", "loop", "fifo", LONG, RED, "text/x", "full"),
    "write": ("nowhere/x.json", "folder", "", "text/x", f"{LONG}.json", "loop", "full", "null", "/proc/nowhere/x", "socket"),
    "folder": ("text", "text/x", "", LONG, "loop", "/proc/nowhere", "null", "."),
    "run": ("text", "text/x", LONG, "loop", "/proc/nowhere", "null"),
    "flag": ("=1", "=x"),
}  # fmt: skip
"""What has to be refused."""
MAY: dict[str, Sequence[str]] = {
    "count": ("9" * 40, str(2**31), str(2**63)),
    "seed": (str(2**63 - 1),),
    "fraction": ("1", "1e-300", "0.999999999999"),
    "factor": ("1",),
    "bound": ("0", "1e308", "1e-300"),
    "radius": ("0", "1", "1e-300", "0.5/2", "-1/-255"),
    "write": (f"{RED}.json", f"{MARKUP}.json", "new\nline.json"),
    "folder": (f"{RED}", MARKUP, "new\nline", "deep/er/out"),
    "run": ("", ".", f"{RED}", MARKUP, "new\nline", "deep/er/out"),
    "read": (),
}
"""What may be refused or done."""

BASES: dict[str, tuple[list[str], dict[str, str]]] = {
    "demo": (["demo"], {"images": "least", "seed": "whole", "json": "result"}),
    "inspect": (["inspect", "NET", "--size", "8"], {"weights": "read", "size": "size", "json": "write", "0": "model"}),
    "folder": (["inspect", "FAST"], {"base": "base"}),
    "calibrated": (["compress", "NET", "--out", "out", "--data", "DATA", "--images", "4", "--eps", "0"], {"structures": "name", "cache": "cache"}),
    "compress": (
        ["compress", "NET", "--out", "out", "--data", "DATA", "--method", "uniform", "--images", "4"],
        {"out": "folder", "weights": "read", "data": "data", "check": "data", "macs": "fraction", "params": "fraction", "speedup": "factor", "latency": "fraction", "beta": "bound", "drop": "points", "method": "name", "images": "count", "eps": "radius", "exclude": "name", "engine": "name", "precision": "name", "threads": "count", "batch": "size", "seed": "seed", "device": "device", "json": "write", "0": "model", "force": "flag", "no-cache": "flag"},
    ),
    "evaluate": (
        ["evaluate", "NET", "--data", "DATA", "--attack", "none", "--n", "4"],
        {"weights": "read", "data": "data", "n": "count", "attack": "name", "batch": "count", "checkpoint": "write", "seed": "seed", "device": "device", "json": "write", "0": "model", "1": "model", "half": "flag", "resume": "flag"},
    ),
    "attack": (["evaluate", "NET", "--data", "DATA", "--n", "4"], {"steps": "natural", "eps": "radius"}),
    "export": (
        ["export", "NET", "--out", "x.onnx", "--data", "DATA", "--n", "4", "--eps", "0", "--images", "4"],
        {"out": "write", "weights": "read", "data": "data", "to": "name", "precision": "name", "n": "count", "eps": "radius", "seed": "seed", "json": "write", "0": "model"},
    ),
    "int8": (["export", "NET", "--out", "x.onnx", "--data", "DATA", "--n", "4", "--eps", "0", "--precision", "int8"], {"images": "count"}),
    "bench": (
        ["bench", "NET", "--size", "8", "--engine", "eager", "--repeats", "1", "--warmup", "0"],
        {"weights": "read", "engine": "name", "precision": "name", "size": "size", "batch": "size", "warmup": "natural", "repeats": "least", "threads": "count", "seed": "seed", "device": "device", "json": "write", "0": "model", "1": "model"},
    ),
    "train": (
        ["train", "NET", "--data", "DATA", "--out", "out", "--epochs", "1", "--batch", "8", "--steps", "1"],
        {"data": "data", "out": "run", "recipe": "name", "weights": "read", "epochs": "epochs", "batch": "count", "rate": "rate", "loss": "name", "eps": "radius", "steps": "natural", "precision": "name", "images": "count", "device": "device", "seed": "seed", "json": "write", "0": "model"},
    ),
    "tune": (
        ["tune", "FAST", "--data", "DATA", "--out", "out", "--base", "NET", "--epochs", "1", "--batch", "8", "--steps", "1"],
        {"data": "data", "out": "run", "base": "model", "teacher": "model", "teacher-weights": "read", "recipe": "name", "epochs": "epochs", "batch": "count", "rate": "rate", "eps": "radius", "steps": "natural", "precision": "name", "images": "count", "device": "device", "seed": "seed", "json": "write", "0": "model"},
    ),
    "download": (["download", "nothing", "folder"], {"0": "name"}),
    "fetch": (["download", "cifar10", "text"], {"1": "text"}),
}  # fmt: skip
"""Each command as it works, and the kinds of its options; numbers stand for arguments."""
MUST |= {
    "size": (*MUST["count"], "999999999", "9" * 40),
    "epochs": MUST["count"],
    "least": (*MUST["count"], "9" * 40),
    "whole": MUST["seed"],
    "result": MUST["write"],
    "cache": ("text/x", LONG),
    "base": ("", "x", "zoo:nope", "missing.py:net"),
    "text": ("text", "text/x", "/proc/nowhere", LONG),
}


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
    for arguments, kinds in BASES.values():
        for option, kind in kinds.items():
            for must, values in ((True, MUST.get(kind, ())), (False, MAY.get(kind, ()))):
                for value in values:
                    yield Line(tuple(_with(arguments, option, kind, value)), must)
        yield Line((*arguments, "--nothing"), True)
        yield Line((*arguments, "more", "and more", "--json"), True)
        if arguments[0] != "demo":
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
    )  # fmt: skip
    for arguments in commands:
        for kind in ("npz", "cifar10", "svhn", "imagefolder"):
            for place in places:
                yield Line(
                    (*arguments, "--data", f"{kind}:{place}"),
                    (kind, place) not in (("npz", "stored.npz"), ("imagefolder", "looped")),
                )


CODE: dict[str, tuple[str, bool]] = {
    "raises": ("raise ValueError('no')\ndef net(): pass", True),
    "raises red": (f"raise ValueError({RED!r} + '\\nsecond line')", True),
    "exits": ("import sys\nsys.exit(3)", True),
    "exits inside": ("import sys\ndef net(): sys.exit(0)", True),
    "interrupts": ("class Stop(BaseException): pass\ndef net(): raise Stop('x')", True),
    "recursion": ("def net(): return net()", True),
    "syntax": ("def net(:", True),
    "null byte": ("def net(): pass\0", True),
    "encoding": ("# -*- coding: nonsense -*-\ndef net(): pass", True),
    "latin1": ("def net(): return 'é'", True),
    "missing": ("def other(): pass", True),
    "not callable": ("net = 3", True),
    "needs arguments": ("def net(x): return x", True),
    "none": ("def net(): return None", True),
    "function": ("def net(): return lambda x: x", True),
    "state dict": ("def net(): return tiny().state_dict()", True),
    "class": ("net = nn.Identity", False),
    "generator": ("def net(): yield tiny()", True),
    "asynchronous": ("async def net(): return tiny()", True),
    "no convolution": ("def net(): return nn.Sequential(nn.Flatten(), nn.Linear(192, 4))", False),
    "no parameters": ("def net(): return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())", False),
    "one by one": ("def net(): return nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())", False),
    "volumes": ("def net(): return nn.Sequential(nn.Conv3d(3, 4, 3), nn.Flatten(1))", True),
    "another size": ("def net(): return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(7, 4))", True),
    "one channel": ("def net(): return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 4))", True),
    "probabilities": ("def net(): return nn.Sequential(tiny(), nn.Softmax(1))", False),
    "tuple": ("class Net(nn.Module):\n    def __init__(self):\n        super().__init__(); self.m = tiny()\n    def forward(self, x): return self.m(x), 1\ndef net(): return Net()", False),
    "maps": ("def net(): return tiny()[:6]", False),
    "no images": ("class Net(nn.Module):\n    def __init__(self):\n        super().__init__(); self.c = nn.Conv2d(3, 4, 3)\n    def forward(self): return 1\ndef net(): return Net()", True),
    "fails": (f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__(); self.c = nn.Conv2d(3, 4, 3)\n    def forward(self, x): raise KeyError({RED!r})\ndef net(): return Net()", True),
    "nan": ("def net():\n    m = tiny(); m[0].weight.data[0] = float('nan'); return m", True),
    "infinite": ("def net():\n    m = tiny(); m[3].weight.data.fill_(1e38); m[0].weight.data.fill_(1e38); return m", False),
    "meta": ("def net(): return tiny().to('meta')", True),
    "half": ("def net(): return tiny().half()", False),
    "double": ("def net(): return tiny().double()", False),
    "complex": ("def net(): return tiny().to(torch.complex64)", True),
    "integers": ("def net():\n    m = tiny(); m[3].weight = nn.Parameter(m[3].weight.data.long(), requires_grad=False); return m", True),
    "mixed": ("def net():\n    m = tiny(); m[3].double(); return m", True),
    "random": ("class Net(nn.Module):\n    def __init__(self):\n        super().__init__(); self.m = tiny()\n    def forward(self, x): return self.m(x + torch.rand_like(x))\ndef net(): return Net()", False),
    "dropout on": ("class Net(nn.Module):\n    def __init__(self):\n        super().__init__(); self.m = tiny()\n    def forward(self, x): return nn.functional.dropout(self.m(x), 0.5, True)\ndef net(): return Net()", False),
    "one class": ("def net(): return tiny(classes=1)", False),
    "no class": ("def net(): return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 0))", True),
    "few classes": ("def net(): return tiny(classes=2)", False),
    "detached": ("class Net(nn.Module):\n    def __init__(self):\n        super().__init__(); self.m = tiny()\n    def forward(self, x): return self.m(x.detach())\ndef net(): return Net()", False),
    "red names": (f"def net():\n    m = nn.Sequential(); m.add_module({RED!r}, nn.Conv2d(3, 4, 3)); m.add_module({MARKUP[:10]!r}, nn.Conv2d(4, 4, 3)); m.add_module('f', nn.Flatten()); m.add_module('l', nn.Linear(64, 4)); return m", False),
    "red class": (f"def net():\n    kind = type({RED!r}, (nn.Linear,), {{}}); return nn.Sequential(nn.Flatten(), kind(192, 4))", False),
    "prints": ("print('hello')\nnet = tiny", False),
    "warns": (f"import warnings\ndef net():\n    warnings.warn({RED!r}); return tiny()", False),
    "shared": ("def net():\n    m = tiny(); m[4] = m[1]; return m", False),
    "lazy": ("def net(): return nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(4))", False),
    "weight norm": ("def net():\n    m = tiny(); nn.utils.parametrizations.weight_norm(m[3]); return m", False),
    "hooked": ("def net():\n    m = tiny(); m[3].register_forward_hook(lambda *a: a[2] * 2); return m", False),
    "frozen": ("def net():\n    m = tiny().requires_grad_(False); return m", False),
    "in training": ("def net(): return tiny().train()", False),
    "scripted": ("def net(): return torch.jit.trace(tiny(), torch.rand(1, 3, 8, 8))", False),
}  # fmt: skip
HEAD = "import torch\nfrom torch import nn\nfrom chaos.tiny import net as tiny\n"
CALLS = (
    ["inspect", "CODE", "--size", "8"],
    ["evaluate", "CODE", "--data", "DATA", "--steps", "1", "--n", "4"],
    ["compress", "CODE", "--out", "out", "--data", "DATA", "--method", "uniform", "--images", "4"],
    ["compress", "CODE", "--out", "out", "--data", "DATA", "--structures", "gdws", "--images", "4", "--robust"],
    ["export", "CODE", "--out", "x.onnx", "--data", "DATA", "--n", "4", "--eps", "0"],
    ["bench", "CODE", "--size", "8", "--engine", "eager", "--repeats", "1", "--warmup", "0"],
    ["train", "CODE", "--data", "DATA", "--out", "out", "--epochs", "1", "--batch", "8", "--steps", "1"],
)


def no_network() -> Iterator[Line]:
    """Every kind of code that gives no network, or a strange one, in every command that runs it."""
    for name, (_, must) in CODE.items():
        for arguments in CALLS:
            yield Line(tuple(f"{name}.py:net" if word == "CODE" else word for word in arguments), must)


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
        before = _tree(case.folder)
        try:
            command(*(_word(word) for word in line.arguments))
        except GdwsError:
            _check_nothing_new(case.folder, before)
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


def _word(word: str) -> str:
    path = material.ROOT
    known = {"NET": material.NET, "FAST": f"{path}/fast", "FAST.onnx": f"{path}/fast/model.onnx", "DATA": f"npz:{path}/stored.npz", "TRAINING": f"{path}/training", "weights.pt": f"{path}/weights.pt"}  # fmt: skip
    return known.get(word, word)


def furnish(folder: Path, arguments: Sequence[str] = ()) -> None:
    """What the words may name: things that are no data, no weights, and not to be written over."""
    os.environ |= {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    (folder / "folder").mkdir()
    (folder / "folder" / "thesis.txt").write_text("years of work")
    (folder / "text").write_text("some text\n")
    (folder / "text.onnx").write_text("some text\n")
    (folder / "empty").write_bytes(b"")
    for name in ("noise.pt", "noise.safetensors"):
        (folder / name).write_bytes(bytes(range(256)) * 4)
    (folder / "dangling").symlink_to("gone")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "fifo")
    for number, name in ((3, "null"), (7, "full")):  # like /dev/null and /dev/full, which must not be put at risk
        if os.geteuid() == 0:
            os.mknod(folder / name, 0o666 | stat.S_IFCHR, os.makedev(1, number))
        else:
            (folder / name).symlink_to(f"/dev/{name}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    for name in ("class0", "class1"):
        (folder / "classes" / name).mkdir(parents=True)
        (folder / "looped" / name).mkdir(parents=True)
        (folder / "looped" / name / "a.png").write_bytes(material.whole("pictures/rgb.png"))
        (folder / "looped" / name / "again").symlink_to("..")
    (folder / "classes" / "class0" / "text.png").write_text("some text\n")
    (folder / "nested" / "cifar-10-batches-py" / "test_batch").mkdir(parents=True)
    (folder / "nested" / "test_32x32.mat").mkdir()
    for name in ("stored.npz", "images.npy"):
        (folder / name).write_bytes(material.whole(name))
    for word in arguments:
        name = word.removesuffix(".py:net")
        if name in CODE:
            text = HEAD + CODE[name][0]
            (folder / f"{name}.py").write_bytes(text.encode("latin1" if name == "latin1" else "utf-8"))


def _tree(folder: Path) -> dict[str, bytes | None]:
    """Content of all plain files; None for everything else that is there."""
    found = {}
    for path in sorted(folder.rglob("*")):
        plain = path.is_file() and not path.is_symlink()
        found[str(path.relative_to(folder))] = path.read_bytes() if plain else None
    return found


def _check_nothing_new(folder: Path, before: dict[str, bytes | None]) -> None:
    """What was refused has written no result, and nothing of the user's is gone."""
    after = _tree(folder)
    for name, content in before.items():
        if name not in after or after[name] != content:
            raise Wrong(f"{name} was there before and is {'changed' if name in after else 'gone'}")
    for name in after.keys() - before.keys():
        allowed = name.startswith(("cache", "out", "c/", "deep")) or name in ("c",) or "__pycache__" in name
        if not allowed or name.startswith("out/model"):
            raise Wrong(f"{name} was written though the command was refused")
