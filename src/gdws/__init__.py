"""Generalized depthwise-separable convolutions: a pre-trained CNN, faster, with its accuracy and robustness kept."""

__version__ = "0.1.0"

from gdws import attacks, nn, zoo
from gdws.budgets import Beta, Drop, Latency, Macs, Params, Speedup
from gdws.compress import agreement, apply, plan
from gdws.cost import network_cost
from gdws.decompose import Factors, lego, mego
from gdws.engines import compile
from gdws.errors import GdwsError
from gdws.export import to_onnx, verify
from gdws.latency import Target
from gdws.plans import Plan
from gdws.sensitivity import sensitivity
from gdws.storage import load, save

__all__ = [
    "Beta",
    "Drop",
    "Factors",
    "GdwsError",
    "Latency",
    "Macs",
    "Params",
    "Plan",
    "Speedup",
    "Target",
    "agreement",
    "apply",
    "attacks",
    "compile",
    "lego",
    "load",
    "mego",
    "network_cost",
    "nn",
    "plan",
    "save",
    "sensitivity",
    "to_onnx",
    "verify",
    "zoo",
]
