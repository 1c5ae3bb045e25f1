"""Plans as JSON, of this version and of the one before."""

import dataclasses
import json

import pytest

import gdws
from gdws.core.errors import GdwsError
from gdws.planning.plan import example_of


@pytest.fixture(scope="module")
def made(residual):
    model, _, _, statistics = residual
    return gdws.plan(model, statistics, gdws.Macs(0.5))


def test_plans_of_earlier_formats_are_read(made):
    """The fourth knew images alone; in the third, what are now ranks were called kept."""
    record = json.loads(made.to_json())
    assert record["format"] == "gdws plan 6"
    assert any(layer["ranks"] for layer in record["layers"])
    assert gdws.Plan.from_json(made.to_json()) == made
    for name in ("objective", "others", "output change", "metric change"):
        del record[name]
    (given,) = record.pop("inputs")
    record |= {"format": "gdws plan 4", "image shape": given["shape"]}
    assert gdws.Plan.from_json(json.dumps(record)) == made
    del record["image shape"]
    record["format"] = "gdws plan 3"
    for layer in record["layers"]:
        layer["kept"] = layer.pop("ranks")
    assert gdws.Plan.from_json(json.dumps(record)) == dataclasses.replace(made, inputs=())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record.update(format="gdws plan 2"), "it has format 'gdws plan 2': expected 'gdws plan 6'"),
        (lambda record: record["layers"][1].pop("ranks"), r"layers\[1\].ranks is missing: expected a list"),
        (lambda record: record["layers"][1].update(rank=3), r"layers\[1\] has 'rank': expected an object with name, structure"),
        (lambda record: record["layers"].append([]), r"layers\[\d+\] is \[\]: expected an object"),
        (lambda record: record.update(layers={}), r"layers is {}: expected a list"),
        (lambda record: record["layers"].append(record["layers"][0]), "two of its layers have one name"),
        (lambda record: record["layers"][1].update(macs=True), r"layers\[1\].macs is True: expected a whole number from 0 to"),
        (
            lambda record: record["layers"][1].update(groups=0),
            r"layers\[1\].groups is 0: expected a whole number from 1 to 1048576",
        ),
        (lambda record: record["layers"][1].update(groups=5), r"has shape .*, groups 5: expected groups that divide it"),
        (
            lambda record: [layer.update(dense_macs=0) for layer in record["layers"]],
            "had 0 multiply-adds and [0-9]+ weights: expected some",
        ),
        (lambda record: record["layers"][1].update(shape=[3, 3]), r"layers\[1\].shape is \[3, 3\]: expected a list of 4"),
        (lambda record: record["layers"][1].update(loss="x"), r"layers\[1\].loss is 'x': expected a finite number"),
        (lambda record: record.update(seed=10**30), "seed is 10+: expected a whole number"),
        (lambda record: record.update(seed=-1), "seed is -1: expected a whole number from 0"),
        (lambda record: record.update({"image shape": [3]}), r"image_shape is \[3\]: expected a list of 3"),
        (lambda record: record["budget"].update(kind="Joules"), "budget.kind is 'Joules': expected one of Macs, Params"),
        (lambda record: record["budget"].update(kind=[1]), r"budget.kind is \[1\]: expected text"),
        (lambda record: record.update(budget=3), "budget is 3: expected an object with kind, value"),
        (lambda record: record.update(method="magic"), "method is 'magic': expected 'calibrated' or 'paper' or 'uniform'"),
        (
            lambda record: record.update(attack={"steps": 10**9}),
            "attack.steps is 1000000000: expected a whole number from 0 to 10000",
        ),
        (lambda record: record.update(attack={"norm": "l7"}), "norm='l7'"),
        (lambda record: record.update(attack={"power": 3}), "attack has 'power'"),
        (lambda record: record.update(fidelity={"source": "held-out", "images": 9, "agreed": 10}), "10 agree"),
        (lambda record: record.update(versions=None), "versions is None: expected an object"),
    ],
)
def test_other_json_is_refused(made, change, words):
    record = json.loads(made.to_json())
    change(record)
    with pytest.raises(GdwsError, match=f"this is not a plan: .*{words}"):
        gdws.Plan.from_json(json.dumps(record))


def test_inputs_larger_than_memory_are_not_made(made):
    """Bug: a plan of some kilobytes chose how much memory its example takes."""
    record = json.loads(made.to_json())
    record["inputs"][0]["shape"] = [3, 60_000, 60_000]
    with pytest.raises(GdwsError, match="what a plan notes as inputs would take 86,400,000,000 bytes of memory"):
        example_of(gdws.Plan.from_json(json.dumps(record)), 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ranks: [-1, *ranks[1:]], "is -1: expected a whole number from 0"),
        (lambda ranks: [10, *ranks[1:]], "expected [0-9]+ from 0 to 9, with the same sum"),
        (lambda ranks: ranks[1:], "expected [0-9]+ from 0 to 9"),
        (lambda ranks: [], "has 0 ranks of 0 kernels"),
    ],
)
def test_ranks_that_no_layer_has_are_refused(made, change, words):
    record = json.loads(made.to_json())
    layer = record["layers"][1]
    layer |= {"structure": "gdws", "ranks": [1] * layer["shape"][1] * layer["groups"]}
    assert gdws.Plan.from_json(json.dumps(record)).layers[1].g[:2] == (1, 1)
    layer["ranks"] = change(layer["ranks"])
    with pytest.raises(GdwsError, match=words):
        gdws.Plan.from_json(json.dumps(record))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"format": "gdws plan 4", "format": "gdws plan 4"}', "a name is given twice"),
        ('{"seed": NaN}', "a number is NaN"),
        ('{"seed": 1e999}', "the number 1e999 is too large"),
        ('{"seed": 1' + 5000 * "0" + "}", "expected JSON"),
        (b"\xff\xfe{", "expected JSON"),
        ("", "expected JSON"),
        ("[]", "it has format .*expected 'gdws plan 6'"),
        (" " * (64 * 2**20 + 1), "characters: expected at most"),
    ],
)
def test_other_text_is_refused(text, words):
    with pytest.raises(GdwsError, match=f"this is not a plan: .*{words}"):
        gdws.Plan.from_json(text)
