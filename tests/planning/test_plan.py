"""Plans as JSON, of this version and of the one before."""

import dataclasses
import json

import pytest

import gdws
from gdws.errors import GdwsError


@pytest.fixture(scope="module")
def made(residual):
    model, _, _, statistics = residual
    return gdws.plan(model, statistics, gdws.Macs(0.5))


def test_a_plan_of_the_earlier_format_is_read(made):
    """What are now ranks were called kept."""
    record = json.loads(made.to_json())
    assert record["format"] == "gdws plan 4"
    assert any(layer["ranks"] for layer in record["layers"])
    assert record.pop("image shape") == list(made.image_shape)
    record["format"] = "gdws plan 3"
    for layer in record["layers"]:
        layer["kept"] = layer.pop("ranks")
    assert gdws.Plan.from_json(made.to_json()) == made
    assert gdws.Plan.from_json(json.dumps(record)) == dataclasses.replace(made, image_shape=None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record.update(format="gdws plan 2"), "has format 'gdws plan 2': expected 'gdws plan 4'"),
        (lambda record: record["layers"][1].pop("ranks"), "not a plan: KeyError 'ranks'"),
        (lambda record: record["layers"][1].update(rank=3), "not a plan: TypeError .*'rank'"),
        (lambda record: record.update({"image shape": [3]}), "not a plan: IndexError"),
        (lambda record: record["budget"].update(kind="Joules"), "not a plan: KeyError 'Joules'"),
    ],
)
def test_other_json_is_refused(made, change, words):
    record = json.loads(made.to_json())
    change(record)
    with pytest.raises(GdwsError, match=words):
        gdws.Plan.from_json(json.dumps(record))
