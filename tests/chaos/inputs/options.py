"""The options of all commands by kind, and what each kind is given wrongly."""

from __future__ import annotations

from collections.abc import Sequence

RED, MARKUP, LONG = "\x1b[31mred", "[bold red]b[/] [link=x]", "n" * 300
BAD_NUMBERS = ("x", "", "nan", "1e400", "0x10", "1_0_", "--", "½")
NAMES = ("", "x", RED, MARKUP, "CPU", "none\n", "é", "a" * 5000)
COUNTS = ("0", "-1", "-999999999999", "1.5", *BAD_NUMBERS)
SEEDS = ("-1", str(2**63), "1.5", *BAD_NUMBERS)
FILES = ("nowhere/x.json", "folder", "", "text/x", f"{LONG}.json", "loop", "full", "null", "/proc/nowhere/x", "socket")

MUST: dict[str, Sequence[str]] = {
    "count": COUNTS,
    "natural": ("-1", "-999999999999", "1.5", *BAD_NUMBERS),
    "least": (*COUNTS, "9" * 40),
    "size": (*COUNTS, "999999999", "9" * 40),
    "epochs": COUNTS,
    "seed": SEEDS,
    "whole": SEEDS,
    "fraction": ("0", "-1", "-0.5", "1.5", "inf", "-inf", *BAD_NUMBERS),
    "factor": ("0", "0.5", "-1", "inf", "-inf", *BAD_NUMBERS),
    "points": ("0", "-1", "100", "inf", "-inf", *BAD_NUMBERS),
    "bound": ("-1", "-1e-300", "inf", "-inf", *BAD_NUMBERS),
    "rate": ("0", "-1", "inf", "-inf", *BAD_NUMBERS),
    "radius": ("-1", "2", "inf", "-inf", "1/0", "1/inf", "/255", "8//255", "8/255/3", "8/-255", "nan/nan", *BAD_NUMBERS),
    "name": NAMES,
    "device": (*NAMES, "meta", "cuda", "cuda:99", "mps", "xla", "cpu,cuda", "-1"),
    "data": (
        *("", "x", "demo:x", "npz:", "npz", "cifar10:", "svhn:", "imagefolder:", "mnist:x"),
        *(RED, f"npz:{RED}", f"imagefolder:{MARKUP}", f"npz:{LONG}"),
        *("npz:missing.npz", "imagefolder:missing", "cifar10:missing", "svhn:missing"),
    ),
    "model": (
        *("", "x", "zoo:", "zoo:nope", f"zoo:{RED}", "torchvision:nope", "timm:nope", "zoo:resnet18:x"),
        *("missing.py:net", "missing.py:", ":net", ".py:net", f"{RED}.py:net", f"missing.py:{MARKUP}"),
        *(LONG, "missing", "../missing", "/", "null", "model.onnx.bak"),
    ),
    "base": ("", "x", "zoo:nope", "missing.py:net"),
    "read": (
        *("missing", "", "folder", "empty", "noise.pt", "noise.safetensors", "null", "dangling", "loop", "fifo"),
        *(LONG, RED, "text/x", "full"),
    ),
    "write": FILES,
    "result": FILES,
    "folder": ("text", "text/x", "", LONG, "loop", "/proc/nowhere", "null", "."),
    "run": ("text", "text/x", LONG, "loop", "/proc/nowhere", "null"),
    "text": ("text", "text/x", "/proc/nowhere", LONG),
    "flag": ("=1", "=x"),
}
"""What has to be refused. Words are of place.py."""
MAY: dict[str, Sequence[str]] = {
    "count": ("9" * 40, str(2**31), str(2**63)),
    "seed": (str(2**63 - 1),),
    "fraction": ("1", "1e-300", "0.999999999999"),
    "factor": ("1",),
    "bound": ("0", "1e308", "1e-300"),
    "cache": ("text/x", LONG),
    "radius": ("0", "1", "1e-300", "0.5/2", "-1/-255"),
    "write": (f"{RED}.json", f"{MARKUP}.json", "new\nline.json"),
    "folder": (f"{RED}", MARKUP, "new\nline", "deep/er/out"),
    "run": ("", ".", f"{RED}", MARKUP, "new\nline", "deep/er/out"),
}
"""What may be refused or done."""

BASES: dict[str, str] = {
    "demo": """demo
        | images=least seed=whole json=result""",
    "inspect": """inspect NET --size 8
        | weights=read size=size json=write 0=model""",
    "folder": """inspect FAST
        | base=base""",
    "calibrated": """compress NET --out out --data DATA --images 4 --eps 0
        | structures=name cache=cache""",
    "compress": """compress NET --out out --data DATA --method uniform --images 4
        | out=folder weights=read data=data check=data
        | macs=fraction params=fraction speedup=factor latency=fraction beta=bound drop=points
        | method=name images=count eps=radius exclude=name
        | engine=name precision=name threads=count batch=size
        | seed=seed device=device json=write 0=model force=flag no-cache=flag""",
    "evaluate": """evaluate NET --data DATA --attack none --n 4
        | weights=read data=data n=count attack=name batch=count checkpoint=write
        | seed=seed device=device json=write 0=model 1=model half=flag resume=flag""",
    "attack": """evaluate NET --data DATA --n 4
        | steps=natural eps=radius""",
    "export": """export NET --out x.onnx --data DATA --n 4 --eps 0 --images 4
        | out=write weights=read data=data to=name precision=name n=count eps=radius
        | seed=seed json=write 0=model""",
    "int8": """export NET --out x.onnx --data DATA --n 4 --eps 0 --precision int8
        | images=count""",
    "bench": """bench NET --size 8 --engine eager --repeats 1 --warmup 0
        | weights=read engine=name precision=name size=size batch=size warmup=natural repeats=least threads=count
        | seed=seed device=device json=write 0=model 1=model""",
    "train": """train NET --data DATA --out out --epochs 1 --batch 8 --steps 1
        | data=data out=run recipe=name weights=read epochs=epochs batch=count rate=rate loss=name
        | eps=radius steps=natural precision=name images=count device=device seed=seed json=write 0=model""",
    "tune": """tune FAST --data DATA --out out --base NET --epochs 1 --batch 8 --steps 1
        | data=data out=run base=model teacher=model teacher-weights=read recipe=name epochs=epochs batch=count rate=rate
        | eps=radius steps=natural precision=name images=count device=device seed=seed json=write 0=model""",
    "prune": """prune NET --data DATA --out out --keep 0.5 --epochs 1 --prune-epochs 1 --batch 8 --steps 1
        | data=data out=run method=name keep=fraction kind=name recipe=name weights=read prune-epochs=epochs epochs=epochs
        | batch=count loss=name eps=radius steps=natural precision=name images=count device=device seed=seed json=write
        | 0=model""",
    "reproduce": """reproduce figure5 --scale smoke --out out
        | scale=name out=run minutes=rate workers=count seed=seed device=device json=write 0=name""",
    "download": """download nothing folder
        | 0=name""",
    "fetch": """download cifar10 text
        | 1=text""",
}
"""Each command as it works, then the kinds of its options; numbers stand for arguments, in their order."""


def bases() -> list[tuple[list[str], dict[str, str]]]:
    """The words of each command, and the kind of each of its options."""
    found = []
    for text in BASES.values():
        words, *kinds = text.split("|")
        found.append((words.split(), dict(pair.split("=") for pair in " ".join(kinds).split())))
    return found
