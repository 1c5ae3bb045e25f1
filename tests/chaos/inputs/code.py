"""Files of code that give no network, or a strange one."""

from __future__ import annotations

from chaos.inputs.options import MARKUP, RED

HEAD = "import torch\nfrom torch import nn\nfrom chaos.tiny import net as tiny\n"
"""What every file begins with."""


def _gives(expression: str) -> str:
    return f"def net(): return {expression}"


def _gives_after(statements: str) -> str:
    """Of a network m, which the statements have made."""
    return f"def net():\n    {statements}; return m"


def _module(statements: str, forward: str) -> str:
    """A module that is made with these statements."""
    return (
        f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__(); {statements}\n"
        f"    def forward{forward}\ndef net(): return Net()"
    )


MUST, MAY = True, False
CODE: dict[str, tuple[str, bool]] = {
    "raises": ("raise ValueError('no')\ndef net(): pass", MUST),
    "raises red": (f"raise ValueError({RED!r} + '\\nsecond line')", MUST),
    "exits": ("import sys\nsys.exit(3)", MUST),
    "exits inside": ("import sys\ndef net(): sys.exit(0)", MUST),
    "interrupts": ("class Stop(BaseException): pass\ndef net(): raise Stop('x')", MUST),
    "recursion": (_gives("net()"), MUST),
    "syntax": ("def net(:", MUST),
    "null byte": ("def net(): pass\0", MUST),
    "encoding": ("# -*- coding: nonsense -*-\ndef net(): pass", MUST),
    "latin1": (_gives("'é'"), MUST),
    "missing": ("def other(): pass", MUST),
    "not callable": ("net = 3", MUST),
    "needs arguments": ("def net(x): return x", MUST),
    "none": (_gives("None"), MUST),
    "function": (_gives("lambda x: x"), MUST),
    "state dict": (_gives("tiny().state_dict()"), MUST),
    "class": ("net = nn.Identity", MAY),
    "generator": ("def net(): yield tiny()", MUST),
    "asynchronous": ("async def net(): return tiny()", MUST),
    "no convolution": (_gives("nn.Sequential(nn.Flatten(), nn.Linear(192, 4))"), MAY),
    "no parameters": (_gives("nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())"), MAY),
    "one by one": (
        _gives("nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())"),
        MAY,
    ),
    "volumes": (_gives("nn.Sequential(nn.Conv3d(3, 4, 3), nn.Flatten(1))"), MUST),
    "another size": (_gives("nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(7, 4))"), MUST),
    "one channel": (_gives("nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 4))"), MUST),
    "probabilities": (_gives("nn.Sequential(tiny(), nn.Softmax(1))"), MAY),
    "tuple": (_module("self.m = tiny()", "(self, x): return self.m(x), 1"), MAY),
    "maps": (_gives("tiny()[:6]"), MAY),
    "no images": (_module("self.c = nn.Conv2d(3, 4, 3)", "(self): return 1"), MUST),
    "fails": (_module("self.c = nn.Conv2d(3, 4, 3)", f"(self, x): raise KeyError({RED!r})"), MUST),
    "nan": (_gives_after("m = tiny(); m[0].weight.data[0] = float('nan')"), MUST),
    "infinite": (_gives_after("m = tiny(); m[3].weight.data.fill_(1e38); m[0].weight.data.fill_(1e38)"), MAY),
    "meta": (_gives("tiny().to('meta')"), MUST),
    "half": (_gives("tiny().half()"), MAY),
    "double": (_gives("tiny().double()"), MAY),
    "complex": (_gives("tiny().to(torch.complex64)"), MUST),
    "integers": (_gives_after("m = tiny(); m[3].weight = nn.Parameter(m[3].weight.data.long(), requires_grad=False)"), MUST),
    "mixed": (_gives_after("m = tiny(); m[3].double()"), MUST),
    "random": (_module("self.m = tiny()", "(self, x): return self.m(x + torch.rand_like(x))"), MAY),
    "dropout on": (_module("self.m = tiny()", "(self, x): return nn.functional.dropout(self.m(x), 0.5, True)"), MAY),
    "one class": (_gives("tiny(classes=1)"), MAY),
    "no class": (_gives("nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 0))"), MUST),
    "few classes": (_gives("tiny(classes=2)"), MAY),
    "detached": (_module("self.m = tiny()", "(self, x): return self.m(x.detach())"), MAY),
    "red names": (
        _gives_after(
            f"m = nn.Sequential(); m.add_module({RED!r}, nn.Conv2d(3, 4, 3)); "
            f"m.add_module({MARKUP[:10]!r}, nn.Conv2d(4, 4, 3)); "
            "m.add_module('f', nn.Flatten()); m.add_module('l', nn.Linear(64, 4))"
        ),
        MAY,
    ),
    "red class": (
        f"def net():\n    kind = type({RED!r}, (nn.Linear,), {{}}); return nn.Sequential(nn.Flatten(), kind(192, 4))",
        MAY,
    ),
    "prints": ("print('hello')\nnet = tiny", MAY),
    "warns": (f"import warnings\ndef net():\n    warnings.warn({RED!r}); return tiny()", MAY),
    "shared": (_gives_after("m = tiny(); m[4] = m[1]"), MAY),
    "lazy": (_gives("nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(4))"), MAY),
    "weight norm": (_gives_after("m = tiny(); nn.utils.parametrizations.weight_norm(m[3])"), MAY),
    "hooked": (_gives_after("m = tiny(); m[3].register_forward_hook(lambda *a: a[2] * 2)"), MAY),
    "frozen": (_gives_after("m = tiny().requires_grad_(False)"), MAY),
    "in training": (_gives("tiny().train()"), MAY),
    "scripted": (_gives("torch.jit.trace(tiny(), torch.rand(1, 3, 8, 8))"), MAY),
}
"""By name: the code, and whether it must be refused in every command and function."""
RAISING = (
    "raises",
    "raises red",
    "exits",
    "exits inside",
    "interrupts",
    "recursion",
    "syntax",
    "null byte",
    "encoding",
    "latin1",
    "missing",
    "not callable",
    "needs arguments",
)
"""What gives nothing at all, and so nothing that a function could be given."""
