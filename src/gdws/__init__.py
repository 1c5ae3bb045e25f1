"""Speed up a pre-trained CNN with generalized depthwise-separable convolutions, at little cost in accuracy and robustness."""

from gdws import attacks, data, models, objectives, structures, training
from gdws.calibration.collect import calibrate
from gdws.calibration.method import Calibrated, Paper, Repair, Uniform
from gdws.calibration.sensitivity import sensitivity
from gdws.calibration.statistics import Statistics
from gdws.compression.apply import apply
from gdws.compression.compaction.compact import compact
from gdws.compression.compress import compress, plan
from gdws.compression.fidelity import agreement
from gdws.compression.repair import repair
from gdws.compression.report import report
from gdws.compression.storage import load, save
from gdws.core.errors import GdwsError
from gdws.core.inputs import Arguments
from gdws.core.version import __version__
from gdws.deploy.benchmark import bench
from gdws.deploy.engines import compile
from gdws.deploy.onnx.export import to_onnx
from gdws.deploy.onnx.parity import verify
from gdws.deploy.quantize import quantize
from gdws.evaluation.accuracy import evaluate
from gdws.evaluation.compare import compare
from gdws.evaluation.quality import fidelity, quality
from gdws.evaluation.red_flags import red_flags
from gdws.models import zoo
from gdws.planning.budgets import Beta, Drop, Latency, Macs, Params, Speedup
from gdws.planning.cost import network_cost
from gdws.planning.latency.target import Target
from gdws.planning.plan import Plan, plan_of
from gdws.structures import layers as nn
from gdws.structures.mego_lego import Factors, lego, mego
from gdws.training import Recipe, train, tune

__all__ = [
    "Arguments",
    "Beta",
    "Calibrated",
    "Drop",
    "Factors",
    "GdwsError",
    "Latency",
    "Macs",
    "Paper",
    "Params",
    "Plan",
    "Recipe",
    "Repair",
    "Speedup",
    "Statistics",
    "Target",
    "Uniform",
    "__version__",
    "agreement",
    "apply",
    "attacks",
    "bench",
    "calibrate",
    "compact",
    "compare",
    "compile",
    "compress",
    "data",
    "evaluate",
    "fidelity",
    "lego",
    "load",
    "mego",
    "models",
    "network_cost",
    "nn",
    "objectives",
    "plan",
    "plan_of",
    "quality",
    "quantize",
    "red_flags",
    "repair",
    "report",
    "save",
    "sensitivity",
    "structures",
    "to_onnx",
    "train",
    "training",
    "tune",
    "verify",
    "zoo",
]
