"""Detectors that choose inside: their files are judged by how much they could choose."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from onnx_graphs import save, whole

from gdws.core.errors import GdwsError
from gdws.core.inputs import Arguments
from gdws.deploy.onnx.reading import read_onnx
from gdws.deploy.runtimes import OnnxRuntime

INT64 = TensorProto.INT64
BOXES = helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap"], ["chosen"])
PLACES = helper.make_node("NonZero", ["x"], ["places"])
COUNT = helper.make_node("Shape", ["places"], ["count"], start=1)
LEFT = [helper.make_node("Sub", ["elements", "count"], ["left"]), helper.make_node("Mul", ["left", "many"], ["all"])]
LIMITS = {"most": whole(5), "overlap": np.float32(0.5)}
CHOOSING = {
    "NonZero": ([PLACES], {"x": [2, 3, 4]}, {"places": (INT64, (3, "n"))}, {}),
    "NonZero, then its rows": (
        [PLACES, helper.make_node("Transpose", ["places"], ["rows"]), helper.make_node("GatherND", ["x", "rows"], ["found"])],
        {"x": [2, 3, 4]},
        {"found": ["n"]},
        {},
    ),
    "NonMaxSuppression": ([BOXES], {"boxes": [2, 90, 4], "scores": [2, 30, 90]}, {"chosen": (INT64, ("n", 3))}, LIMITS),
    "NonMaxSuppression, then its boxes": (
        [
            BOXES,
            helper.make_node("Gather", ["chosen", "last"], ["numbers"], axis=1),
            helper.make_node("Squeeze", ["boxes", "first"], ["all"]),
            helper.make_node("Squeeze", ["numbers", "second"], ["rows"]),
            helper.make_node("Gather", ["all", "rows"], ["found"]),
        ],
        {"boxes": [1, 9, 4], "scores": [1, 3, 9]},
        {"found": ["n", 4]},
        LIMITS | {"last": whole(2), "first": whole(0), "second": whole(1)},
    ),
    "Compress": (
        [helper.make_node("Compress", ["x", "wanted"], ["found"], axis=1)],
        {"x": [200, 30]},
        {"found": [200, "n"]},
        {"wanted": np.arange(30) > 8},
    ),
    "Compress, all": (
        [helper.make_node("Greater", ["x", "zero"], ["wanted"]), helper.make_node("Compress", ["x", "wanted"], ["found"])],
        {"x": [6]},
        {"found": ["n"]},
        {"zero": np.float32(0)},
    ),
    "Unique": (
        [helper.make_node("Unique", ["x"], ["found", "places", "rows", "counts"], axis=0)],
        {"x": [400, 2]},
        {"found": ["n", 2], "places": (INT64, ("n",)), "rows": (INT64, (400,)), "counts": (INT64, ("n",))},
        {},
    ),
}
BEYOND = {
    "a count": ([COUNT, *LEFT, helper.make_node("Expand", ["one", "all"], ["y"])], ["n"]),
    "an end": ([helper.make_node("Slice", ["places", "many", "more", "one"], ["y"])], ["m", "n"]),
}
"""Where fewer that are chosen give more."""


@pytest.mark.parametrize("kind", CHOOSING)
def test_a_file_that_chooses_is_read(tmp_path, kind):
    """Bug: it was refused, since its sizes follow from values."""
    nodes, inputs, outputs, constants = CHOOSING[kind]
    path = save(tmp_path / "x.onnx", nodes, inputs, outputs, constants)
    given = [torch.rand(shape, generator=torch.Generator().manual_seed(0)) for shape in inputs.values()]
    found = OnnxRuntime(path)(given[0] if len(given) == 1 else Arguments(**dict(zip(inputs, given, strict=True))))
    assert all(len(value) for value in (found.values() if isinstance(found, dict) else [found]))


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("NonZero", 3 * 24 * 8),
        ("NonMaxSuppression", 2 * 30 * 5 * 3 * 8),
        ("Compress", 200 * 30 * 4),
        ("Unique", 400 * 2 * 4 + 3 * 400 * 8),
    ],
)
def test_what_is_chosen_counts_as_the_most_that_it_could_be(tmp_path, monkeypatch, kind, size):
    nodes, inputs, outputs, constants = CHOOSING[kind]
    path = save(tmp_path / "x.onnx", nodes, inputs, outputs, constants)
    monkeypatch.setenv("GDWS_MAX_BYTES", str(size))
    read_onnx(path, "anybody")
    monkeypatch.setenv("GDWS_MAX_BYTES", str(size - 1))
    with pytest.raises(GdwsError, match=f"the values between the layers of .* would take {size:,} bytes"):
        read_onnx(path, "anybody")


def test_a_bound_that_is_too_large_is_refused(tmp_path):
    """All pairs of 20,000 boxes might overlap too little; 5 of each class are few."""
    inputs, outputs = {"boxes": [1, 20_000, 4], "scores": [1, 3_000, 20_000]}, {"chosen": (INT64, ("n", 3))}
    read_onnx(save(tmp_path / "few.onnx", [BOXES], inputs, outputs, LIMITS), "anybody")
    many = save(tmp_path / "many.onnx", [BOXES], inputs, outputs, LIMITS | {"most": whole(2**40)})
    with pytest.raises(GdwsError, match="would take 1,440,000,000 bytes"):
        read_onnx(many, "anybody")


@pytest.mark.parametrize("kind", BEYOND)
def test_where_fewer_values_give_more_there_is_no_bound(tmp_path, kind):
    """A file of some bytes could otherwise ask for any memory: with no values chosen, 24 times 2^40, and 0 by the bound."""
    nodes, shape = BEYOND[kind]
    constants = {"elements": whole(24), "many": whole(2**40), "more": whole(2**41), "one": whole(1)}
    path = save(tmp_path / "x.onnx", [PLACES, *nodes], {"x": [2, 3, 4]}, {"y": (INT64, shape)}, constants)
    with pytest.raises(GdwsError, match="whose size is not known before it is run"):
        read_onnx(path, "anybody")
