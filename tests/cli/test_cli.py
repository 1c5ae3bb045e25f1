"""The command line as a user meets it: real files, real exit statuses, nothing left behind by a refusal."""

import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from gdws import agreement, data, models
from gdws.cli import compression, demo, deployment, tables
from gdws.cli.terminal import console
from gdws.compression.apply import apply
from gdws.core.errors import GdwsError
from gdws.deploy import benchmark
from gdws.deploy.engines import Compiled
from gdws.models import zoo
from gdws.planning.latency import measure_cpu, search
from gdws.planning.plan import Plan
from gdws.structures.layers import FactoredConv2d


def small_npz(path, count=12, **changes):
    generator = np.random.default_rng(0)
    arrays = {
        "images": generator.integers(0, 255, (count, 32, 32, 3), dtype=np.uint8),
        "labels": generator.integers(0, 10, count),
        **changes,
    }
    np.savez(path, **arrays)
    return f"npz:{path}"


def test_compress_inspect_evaluate_bench(run, tmp_path):
    options = ["--images", 20, "--exclude", "layer2*", "--exclude", "layer3*", "--json", "c.json"]  # one stage takes a sixth
    status, text = run("compress", "demo", "--out", "o", "--macs", 0.4, *options)
    assert status == 0, text
    assert json.loads((tmp_path / "c.json").read_text())["plan"]["budget"] == {"kind": "Macs", "value": 0.4}
    (tmp_path / "plain").touch()
    assert (tmp_path / "c.json").stat().st_mode == (tmp_path / "plain").stat().st_mode
    status, text = run("inspect", "o")
    assert status == 0
    assert "first layer" in text
    assert "excluded by 'layer3*'" in text
    assert "kernels" in text
    status, text = run("evaluate", "demo", "o", "--n", 20, "--steps", 1, "--json", "e.json")
    assert status == 0, text
    base, compressed = json.loads((tmp_path / "e.json").read_text())["rows"]
    assert base["natural"] > 60
    assert compressed["natural"] > 50
    assert 0 <= compressed["robust"] <= compressed["natural"]
    status, text = run("bench", "demo", "o", "--engine", "eager", "--warmup", 1, "--repeats", 3, "--json", "b.json")
    assert status == 0, text
    assert [row["model"] for row in json.loads((tmp_path / "b.json").read_text())["rows"]] == ["demo", "o"]
    assert run("compress", "demo", "--out", "o")[0] == 2
    status, text = run("compress", "demo", "--out", "o", "--method", "paper", "--beta", 0.5, "--images", 10, "--force")
    assert status == 0, text
    assert "Beta(0.5)" in run("inspect", "o")[1]


def test_export_and_bench_in_an_engine(run, tmp_path):
    status, text = run("export", "demo", "--out", "m.onnx", "--n", 4, "--json", "e.json")
    assert status == 0, text
    clean, attacked = json.loads((tmp_path / "e.json").read_text())["rows"]
    assert (clean["images"], clean["changed"], attacked["changed"]) == (4, 0, 0)
    assert "PGD-10" in text
    before = (tmp_path / "m.onnx").read_bytes()
    status, text = run("export", "demo", "--out", "m.onnx")
    assert status == 2
    assert "overwrite it with --force" in text
    assert (tmp_path / "m.onnx").read_bytes() == before
    status, text = run("export", "demo", "--out", "i.onnx", "--precision", "int8", "--images", 10, "--n", 4, "--eps", 0)
    assert status == 0, text
    assert (tmp_path / "i.onnx").stat().st_size < 0.3 * len(before)
    options = ["--engine", "onnxruntime", "--warmup", 1, "--repeats", 3, "--json", "b.json"]
    status, text = run("bench", "m.onnx", "i.onnx", *options)
    assert status == 0, text
    rows = json.loads((tmp_path / "b.json").read_text())["rows"]
    assert [row["engine"] for row in rows] == ["onnxruntime float32", "onnxruntime int8"]
    assert all(row["interval"][0] <= row["median"] <= row["interval"][1] for row in rows)
    status, text = run("bench", "m.onnx", "--engine", "eager")
    assert status == 2
    assert "m.onnx is a file and the engine eager: expected onnxruntime or openvino" in " ".join(text.split())
    status, text = run("evaluate", "demo", "i.onnx", "m.onnx", "--n", 4, "--steps", 1, "--json", "q.json")
    assert status == 0, text
    rows = json.loads((tmp_path / "q.json").read_text())["rows"]
    # Bug: m.onnx was taken for a form of the int8 file.
    assert {row["model"]: row.get("compared with") for row in rows} == {
        "demo": None,
        "i.onnx, attacked itself": "demo",
        "i.onnx": "demo",
        "m.onnx": "demo",
    }
    # Without an attack nothing is attacked itself.
    assert run("evaluate", "demo", "i.onnx", "--n", 4, "--attack", "none", "--json", "q.json")[0] == 0
    assert [row["model"] for row in json.loads((tmp_path / "q.json").read_text())["rows"]] == ["demo", "i.onnx"]


WIDE = """
import torch
from torch import nn
from gdws import data

@torch.no_grad()
def make():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(256, 10)).eval()
    model[-1].bias -= model(data.load("demo", "test").images[:100].float() / 255).mean(0)  # else it decides all images alike
    model[-1].weight *= 100  # and is sure of what it decides
    model[-1].bias *= 100
    return model
"""


def test_compress_to_a_speed(run, tmp_path, monkeypatch):
    """The line that a user types: what the speed costs, predicted and measured; or the best that can be had."""
    monkeypatch.setattr(measure_cpu, "SHARES", (0.1, 0.4))
    monkeypatch.setattr(search, "ROUNDS", 1)
    monkeypatch.setattr(compression, "HELD", 100)
    (tmp_path / "wide.py").write_text(WIDE)
    options = ["--images", 24, "--eps", 0, "--structures", "vertical", "--engine", "onnxruntime", "--threads", 1]
    status, text = run("compress", "wide.py:make", "--out", "out", "--speedup", 1.2, *options, "--json", "c.json")
    assert status == 0, text
    record = json.loads((tmp_path / "c.json").read_text())
    assert record["plan"]["measured"]["engine"] == "onnxruntime"
    assert 50 < record["agreement"]["clean"] <= 100
    assert record["report"]["speed"]["speedup"] == pytest.approx(1 / record["plan"]["measured"]["latency"])
    assert "x measured" in text
    made = Plan.from_json(json.dumps(record["plan"]))
    _no_number_of_a_plan_is_cut_off(made)
    for share, slower in ((0.99, False), (1.05, True)):
        reached = dataclasses.replace(made.measured, latency=share * made.budget.share)
        told = " ".join(tables.measured(dataclasses.replace(made, measured=reached)))
        assert ("Warning: that is slower than asked for (1.20x)" in told) == slower
    status, text = run("compress", "wide.py:make", "--out", "more", "--speedup", 100, *options)
    assert status == 2
    assert "Speedup(100) is out of reach: expected at most" in text
    assert not (tmp_path / "more").exists()


def _no_number_of_a_plan_is_cut_off(made):
    """Bug: in eighty columns the time of every layer was 0.…"""
    replaced = next(layer for layer in made.layers if layer.structure != "dense")
    changes = {"name": "layer4.0.shortcut.0", "structure": "horizontal", "ranks": (120,), "reason": "vertical 323x, gdws 400x"}
    layer = dataclasses.replace(replaced, **changes)
    with console.capture() as shown:
        console.print(tables.plan(dataclasses.replace(made, layers=(layer,))), width=80)
    (row,) = (line for line in shown.get().splitlines() if "layer4" in line)
    ratios = f"{layer.macs / layer.dense_macs:.2f}", f"{layer.seconds / layer.dense_seconds:.2f}"
    words = ["layer4.0.shortcut.0", "horizontal,", "rank", "120", *ratios]
    assert row.split()[: len(words)] == words
    assert row.split()[-2:] == ["vertical", "323x"]


def test_compress_for_tensor_cores(run, tmp_path):
    (tmp_path / "wide.py").write_text(WIDE)
    target = ["--macs", 0.5, "--engine", "cuda", "--precision", "float16"]
    options = ["--images", 24, "--eps", 0, "--structures", "vertical", "--structures", "gdws", "--json", "c.json"]
    status, text = run("compress", "wide.py:make", "--out", "out", *target, *options)
    assert status == 0, text
    assert "for tensor cores" in text
    layers = json.loads((tmp_path / "c.json").read_text())["plan"]["layers"][1:]
    assert {layer["structure"] for layer in layers} == {"vertical"}
    assert all(layer["ranks"][0] in (16, 32, 64) for layer in layers)


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules, when its compiler is imported
def test_layouts_and_compilers_of_pytorch_take_part_in_a_benchmark(run, tmp_path):
    (tmp_path / "model.py").write_text(
        "from torch import nn\ndef make(): return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10))"
    )
    options = ["--warmup", 1, "--repeats", 2, "--json", "b.json", "--size", 8]
    for engine in ("eager", "compile"):
        status, text = run("bench", "model.py:make", "--engine", engine, "--channels-last", *options)
        assert status == 0, text
        (row,) = json.loads((tmp_path / "b.json").read_text())["rows"]
        assert row["engine"] == f"{engine} float32"


def test_demo_writes_its_table_and_result(run, tmp_path, monkeypatch):
    """And the whole chain works on a real network. (Not an accuracy claim: docs/results/compression.md has those.)"""
    made, asked = [], set()
    monkeypatch.setattr(demo, "CALIBRATION_IMAGES", 60)
    monkeypatch.setattr(demo, "bench", lambda networks, example: benchmark.bench(networks, example, 2, 10))
    monkeypatch.setattr(demo, "apply", lambda *arguments: made.append(apply(*arguments)) or made[-1])

    def build(model, engine="auto", *, precision, **__):
        """Twelve exports take longer than all the rest: the networks run as they are, and in int8 decide all alike."""
        asked.add((engine, precision))
        runs = {"float32": model, "int8": lambda images: torch.zeros(len(images), 10)}
        return Compiled("onnxruntime", precision, 1, runs[precision])

    monkeypatch.setattr(demo, "compile", build)
    monkeypatch.setattr(demo, "PAIRS", "vertical")
    monkeypatch.setattr(measure_cpu, "SHARES", (0.2,))
    monkeypatch.setattr(search, "ROUNDS", 1)
    status, text = run("demo", "--images", 4)
    assert status == 0, text
    assert asked == {("auto", "float32"), ("auto", "int8")}  # was eager PyTorch, which nobody deploys
    record = json.loads((tmp_path / "result.json").read_text())
    rows = record["rows"]
    names = ["base", "paper 0.75", "paper 0.5", "calibrated 0.5", "calibrated 0.3", "planned 1.5x"]
    assert [row["name"] for row in rows] == names
    for row in rows:
        assert row["natural_interval"][0] < row["natural"] < row["natural_interval"][1]
        assert row["robust_interval"][0] <= row["robust"] <= row["robust_interval"][1]
        assert row["int8_natural"] == 10.3
        assert f"{row['natural']:.1f} ±" in text
    assert rows[0]["natural_change"] is None
    assert rows[2]["natural_change"][0] == pytest.approx(rows[2]["natural"] - rows[0]["natural"])
    assert "The best trade-off is" in record["seen"]
    assert record["seen"] in text
    assert rows[0]["natural"] == pytest.approx(79.4, abs=0.3)
    assert rows[3]["natural"] > rows[2]["natural"]
    assert rows[0]["macs"] > rows[1]["macs"] > rows[2]["macs"]
    _, paper, calibrated, smaller, _ = made
    images = data.load("demo", "test").images[:200].float() / 255
    agreed = [agreement(models.embedded(), network, images) for network in (paper, calibrated, smaller)]
    assert isinstance(calibrated.layer2[0].conv2, FactoredConv2d)
    assert agreed[1] > 85
    assert min(agreed[1:]) > agreed[0] + 15


def test_inspect_a_model_without_a_plan(run):
    status, text = run("inspect", "zoo:preactresnet18")
    assert status == 0
    assert "42.62 MB" in text
    assert "no: first layer" in text
    assert "no: 1x1" in text


def test_a_model_from_a_python_file_and_a_torch_state_dict(run, tmp_path):
    (tmp_path / "mine.py").write_text("from gdws import zoo\n\ndef make():\n    return zoo.build('tiny')\n")
    torch.save({"state_dict": models.embedded().state_dict()}, tmp_path / "w.pt")
    status, text = run("evaluate", "mine.py:make", "--weights", "w.pt", "--n", 20, "--steps", 0)
    assert status == 0, text


def test_accuracy_on_calibration_images_is_refused(run, tmp_path):
    name = small_npz(tmp_path / "d.npz")
    options = ["--images", 8, "--eps", "0", "--exclude", "layer2*", "--exclude", "layer3*"]
    assert run("compress", "demo", "--data", name, "--out", "o", *options)[0] == 0
    status, text = run("evaluate", "o", "--data", name, "--steps", 0)
    assert status == 2
    assert "calibrated on 8 of these images" in text


def test_a_folder_of_images_is_compressed_on_and_evaluated(run, tmp_path):
    """The embedded images as files: the same numbers as from memory, and calibration images refused."""
    for split, place, count in (("train", "train", 30), ("test", "val", 20)):
        part = data.load("demo", split).take(count)
        for index, (image, label) in enumerate(zip(part.images, part.labels, strict=True)):
            folder = tmp_path / "images" / place / f"class {label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{index}.png")
    for label in range(10):  # labels are the numbers of the folders of train
        (tmp_path / "images" / "train" / f"class {label}").mkdir(exist_ok=True)
    options = ["--images", 8, "--eps", 0, "--method", "paper"]
    status, text = run("compress", "demo", "--data", "imagefolder:images", "--out", "o", *options)
    assert status == 0, text
    assert "on 10 other training images" in text
    rows = {}
    for name in ("imagefolder:images", "demo"):
        options = ["--n", 20, "--batch", 6, "--attack", "none", "--json", "e.json"]
        status, text = run("evaluate", "demo", "o", "--data", name, *options)
        assert status == 0, text
        rows[name] = [row["natural"] for row in json.loads((tmp_path / "e.json").read_text())["rows"]]
    assert rows["imagefolder:images"] == rows["demo"]
    status, text = run("evaluate", "o", "--data", "imagefolder:images/train", "--attack", "none")
    assert status == 2
    assert "calibrated on 8 of these images" in text


@pytest.mark.parametrize(("used", "held"), [(8, 4), (12, 0), (500, 0)])
def test_a_compression_says_on_how_many_images_it_was_tried(run, tmp_path, used, held):
    """Bug: it said 100, whatever the data held beside the images that were used."""
    options = ["--out", "o", "--method", "uniform", "--images", used, "--eps", "0", "--json", "c.json"]
    status, text = run("compress", "demo", "--data", small_npz(tmp_path / "d.npz"), *options)
    assert status == 0, text
    assert ("other training images" in text) == (held > 0)
    assert f"after on {held} other training images" in text or not held
    assert ("cost: not known: give held-out images" in text) == (not held)
    record = json.loads((tmp_path / "c.json").read_text())
    assert record["held"] == held
    assert list(record["agreement"]) == ["clean"] * (held > 0)


def test_images_that_are_known_by_heart_are_warned_of(run, tmp_path):
    """Bug: "100.0 % of 100 other training images are decided as by the original", where test accuracy fell."""
    pictures = data.load("demo", "train").images[:20]
    known = models.embedded()(pictures.float() / 255).argmax(1).numpy()
    name = small_npz(tmp_path / "d.npz", images=pictures.permute(0, 2, 3, 1).numpy(), labels=known)
    options = ["--data", name, "--out", "o", "--method", "uniform", "--images", 10, "--no-robust", "--force"]
    status, text = run("compress", "demo", *options)
    assert status == 0, text
    told = " ".join(text.split())
    assert "Warning: the original classifies 100.0 % of 10 other training images correctly: it seems to have memorized" in told
    assert "give held-out images with check=, --check" in told
    status, text = run("compress", "demo", *options, "--check", "demo")
    assert status == 0, text
    assert "on 1000 held-out images" in text
    assert "memorized" not in text


def test_a_compression_ends_with_what_was_measured(run, tmp_path):
    """Bug: half of the MACs made a network slower, in silence."""
    options = ["--images", 8, "--eps", "0", "--method", "uniform", "--macs", 0.5, "--check", "demo", "--json", "c.json"]
    status, text = run("compress", "demo", "--out", "o", *options)
    assert status == 0, text
    speed, cost, macs, size = (next(line for line in text.splitlines() if line.startswith(f"{word}: ")) for word in WORDS)
    record = json.loads((tmp_path / "c.json").read_text())
    found = record["report"]
    assert f"{found['speed']['speedup']:.2f}x dense" in speed
    assert "accuracy 79.4 % before" in cost
    assert "on 1000 held-out images" in cost
    assert f"95 % interval {found['fidelity']['points_interval'][0]:+.1f} to" in cost
    assert "124.6 M before" in macs
    assert "3.78 MB before" in size
    assert record["plan"]["fidelity"]["change"] == found["fidelity"]["change"]
    slow = found["speed"]["speedup"] < 0.98
    assert ("this is slower than dense; try --speedup 1.5" in text) == slow == bool(found["warnings"])


WORDS = ("speed", "cost", "MACs", "size")


def test_drop_is_kept_on_the_images_of_check(run, tmp_path, monkeypatch):
    monkeypatch.setattr(compression, "CHECKED", 200)
    options = ["--images", 8, "--eps", "0", "--method", "uniform", "--drop", 6, "--json", "c.json"]
    status, text = run("compress", "demo", "--out", "o", *options, "--check", "demo")
    assert status == 0, text
    found = json.loads((tmp_path / "c.json").read_text())["report"]["fidelity"]
    assert (found["source"], found["images"]) == ("held-out", 200)
    assert -6 <= found["points_interval"][0] < found["points_interval"][1]
    status, text = run("compress", "demo", "--out", "other", *options)
    assert status == 0, text
    found = json.loads((tmp_path / "c.json").read_text())["report"]["fidelity"]
    assert (found["source"], found["images"]) == ("other training", 200)
    status, text = run("compress", "demo", "--out", "least", *options, "--images", 500, "--drop", 1)
    assert status == 2
    assert "Drop(1) has 100 held-back calibration images to check on: expected at least 368" in " ".join(text.split())


def test_labels_are_not_asked_for_where_nothing_uses_them(run, tmp_path):
    arrays = np.random.default_rng(0).integers(0, 255, (12, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", images=arrays)
    (tmp_path / "images").mkdir()
    for index, image in enumerate(arrays):
        Image.fromarray(image).save(tmp_path / "images" / f"{index}.png")
    for name in ("npz:d.npz", "imagefolder:images"):
        options = ["--method", "uniform", "--images", 8, "--json", "c.json", "--force"]
        status, text = run("compress", "demo", "--data", name, "--out", "o", *options)
        assert status == 0, text
        assert "% of 4 other training images are classified as by the original (95 % interval" in text
        assert json.loads((tmp_path / "c.json").read_text())["report"]["fidelity"]["change"] is None
        status, text = run("evaluate", "o", "--data", name, "--attack", "none")
        assert status == 2
    status, text = run("export", "demo", "--data", "npz:d.npz", "--out", "m.onnx", "--n", 4)
    assert status == 0, text


def test_the_cache_is_where_one_says(run, tmp_path):
    options = ["--images", 4, "--eps", "0", "--structures", "vertical", "--exclude", "layer[23]*", "--out", "o", "--force"]
    assert run("compress", "demo", *options, "--no-cache")[0] == 0
    assert not (tmp_path / "cache").exists()
    assert run("compress", "demo", *options, "--cache", "here")[0] == 0
    assert len(list((tmp_path / "here").glob("statistics-*"))) == 1
    assert not (tmp_path / "cache").exists()
    assert run("compress", "demo", *options)[0] == 0
    assert len(list((tmp_path / "cache" / "gdws").glob("statistics-*"))) == 1
    status, text = run("compress", "demo", *options, "--cache", "here", "--no-cache")
    assert status == 2
    assert "--cache here together with --no-cache" in text


def test_a_benchmark_is_of_the_fastest_engine_unless_told(run, tmp_path, monkeypatch):
    """Bug: it was of eager PyTorch, which nobody deploys."""
    asked = []
    monkeypatch.setattr(
        deployment.engines, "compile", lambda model, engine, **_: asked.append(engine) or Compiled("eager", "float32", 1, model)
    )
    status, text = run("bench", "demo", "--warmup", 0, "--repeats", 1)
    assert status == 0, text
    assert asked == ["auto"]


def test_an_evaluation_of_everything_fits_eighty_columns(run, tmp_path, monkeypatch, embedded_file):
    monkeypatch.setattr(console, "width", 80)
    (tmp_path / "a-folder-with-a-long-name").mkdir()
    file = tmp_path / "a-folder-with-a-long-name" / "embedded.onnx"
    file.write_bytes(embedded_file.read_bytes())
    (file.parent / "mine.py").write_text("from gdws import models\n\ndef make():\n    return models.embedded()\n")
    networks = ["demo", file, f"{file.parent}/mine.py:make", "--half"]
    options = ["--n", 2, "--eps", "4/255", "--steps", 2, "--json", "e.json", "--checkpoint", "run.jsonl"]
    status, text = run("evaluate", *networks, *options)
    assert status == 0, text
    assert max(len(line) for line in text.splitlines() if "is code" not in line) <= 80  # a note has the path as it is
    assert "…" not in text
    for words in ("demo in half", "mine.py:make in half", "embedded.onnx", "95 % interval", "gained", "tried on", "natural"):
        assert words in text
    record = json.loads((tmp_path / "e.json").read_text())
    rows = {row["model"]: row for row in record["rows"]}
    onnx = rows[str(file)]
    assert onnx["compared with"] == "demo"
    assert onnx["examples"] == rows["demo"]["examples"]
    assert len(record["transfer"]) == 2
    assert record["attacks"][0]["steps"] == 2
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 2
    status, again = run("evaluate", *networks, *options, "--resume")
    assert status == 0, again
    assert again == text
    assert json.loads((tmp_path / "e.json").read_text()) == record


def test_evaluations_without_attacks_and_with_presets(run, tmp_path):
    status, text = run("evaluate", "demo", "--n", 20, "--attack", "none", "--json", "e.json")
    assert status == 0, text
    assert json.loads((tmp_path / "e.json").read_text())["rows"][0]["robust"] is None
    status, text = run("evaluate", "zoo:tiny", "--n", 4, "--attack", "pgd-20")
    assert status == 0, text
    assert "PGD-20" in text
    assert "Warning: zoo:tiny:" in text
    assert "as guessing among 10 classes might be" in " ".join(text.split())


def write_state(path, change):
    state = dict(zoo.build("tiny").state_dict())
    change(state)
    save_file(state, path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate", "zoo:nothing"], "the zoo has no network 'nothing'"),
        (["evaluate", "demos"], "unknown model 'demos'"),
        (["evaluate", "none.py:f"], "there is no file none.py"),
        (["evaluate", "demo", "--data", "npz:none.npz"], "there is no file none.npz"),
        (["evaluate", "demo", "--data", "web"], "unknown data 'web'"),
        (["evaluate", "demo", "--data", "cifar10:."], "has no test_batch"),
        (["evaluate", "demo", "--n", "0"], "expected at least 1"),
        (["evaluate", "demo", "--eps", "eight"], "expected a number or a fraction"),
        (["evaluate", "demo", "--eps", "8"], "from 0 to 1"),
        (["evaluate", "demo", "--device", "warp"], "device 'warp' cannot be used"),
        (["evaluate", "demo", "--attack", "magic"], "attack 'magic'"),
        (["evaluate", "demo", "--attack", "pgd-20", "--steps", "3"], "a preset, or PGD's own settings"),
        (["evaluate", "demo", "--batch", "0"], "batches of 0"),
        (["evaluate", "demo", "--resume"], "--resume without --checkpoint"),
        (["evaluate", "demo", "--json", "none/e.json"], "there is no folder none"),
        (["evaluate", "demo", "demo"], "demo is named twice"),
        (["bench", "demo", "demo"], "demo is named twice"),  # was one row, of a network without its --weights
        (["evaluate", "m.onnx"], "m.onnx is named first"),
        (["evaluate", "demo", "m.onnx"], "there is no file m.onnx"),
        (["evaluate", "zoo:tiny", "--weights", "none.safetensors"], "there is no file none.safetensors"),
        (["compress", "demo", "--out", "o", "--beta", "-1", "--method", "paper"], "expected a finite number >= 0"),
        (["compress", "demo", "--out", "o", "--macs", "0.5", "--drop", "1"], "expected one"),
        (["compress", "demo", "--out", "o", "--method", "magic"], "method is 'magic'"),
        (["compress", "demo", "--out", "o", "--speedup", "0.5"], "at least 1"),
        (["compress", "demo", "--out", "o", "--speedup", "2", "--engine", "torch"], "the target is 'torch'"),
        (["compress", "demo", "--out", "o", "--latency", "0.5", "--method", "paper"], "for a latency budget"),
        (["bench", "demo", "--repeats", "0"], "at least 1 of each"),
        (["bench", "demo", "--engine", "onnxruntime", "--channels-last"], "which has layouts of its own"),
        (["bench", "demo", "--engine", "cuda"], "the engine cuda got a model on cpu: expected it on cuda"),
        (
            ["bench", "demo", "--engine", "autotuned", "--precision", "float16"],
            "the engine autotuned got a model on cpu: expected",
        ),
        (["compress", "demo", "--out", "x", "--speedup", "2", "--engine", "cuda"], "the target is cuda and the model on cpu"),
        (["compress", "demo", "--out", "x", "--speedup", "2", "--precision", "float16"], "cuda in float32 or float16"),
        (["compress", "demo", "--out", "x", "--macs", "0.5", "--threads", "1"], "threads=1, batch=1): expected Latency"),
        (["compress", "demo", "--out", "x", "--macs", "0.5", "--engine", "cuda"], "with it, or cuda in float16"),
        (["bench", "demo", "--engine", "warp"], "engine is 'warp'"),
        (
            ["bench", "demo", "--precision", "int8", "--engine", "eager"],
            "the engine eager got the precision int8: expected float32, or one",
        ),
        (["bench", "model.onnx"], "there is no file model.onnx"),
        (["bench", "model.onnx", "--engine", "auto"], "there is no file model.onnx"),
        (["export", "demo", "--out", "m.onnx", "--to", "coreml"], "--to is 'coreml'"),
        (["export", "demo", "--out", "m.onnx", "--precision", "int4"], "--precision 'int4'"),
        (["export", "demo", "--out", "none/m.onnx", "--n", "1", "--eps", "0"], "cannot write none/m.onnx"),
        (["compress", "demo"], "--out"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(run, tmp_path, arguments, words):
    status, text = run(*arguments)
    assert status == 2
    assert words in " ".join(text.split())
    assert "Traceback" not in text
    assert [p for p in tmp_path.iterdir() if p.name != "cache"] == []


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda p: p.write_bytes(b"\x10" * 50), "truncated"),
        (lambda p: write_state(p, lambda s: s.pop("linear.bias")), "lacks ['linear.bias']"),
        (lambda p: write_state(p, lambda s: s.update(more=torch.zeros(1))), "has ['more']"),
        (lambda p: write_state(p, lambda s: s.update({"linear.bias": torch.zeros(9)})), "linear.bias has shape (9,)"),
        (lambda p: write_state(p, lambda s: s["linear.bias"].fill_(float("nan"))), "NaN or infinite values in linear.bias"),
    ],
)
def test_bad_weights_are_named(run, tmp_path, write, words):
    write(tmp_path / "w.safetensors")
    status, text = run("compress", "zoo:tiny", "--weights", "w.safetensors", "--out", "o")
    assert status == 2
    assert words in " ".join(text.split())
    assert not (tmp_path / "o").exists()


def test_a_pickle_that_runs_code_is_refused(run, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'owned'}",)

    torch.save({"weight": Evil()}, tmp_path / "w.pt")
    status, text = run("evaluate", "zoo:tiny", "--weights", "w.pt")
    assert status == 2
    assert "not read" in text
    (tmp_path / "test_batch").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(GdwsError, match="not a batch"):
        data.load(f"cifar10:{tmp_path}", "test")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": np.zeros((12, 32), np.uint8)}, "expected (N, H, W, C) or (N, C, H, W) uint8"),
        ({"images": np.zeros((12, 32, 32, 3), np.float32)}, "the model cannot run on images of shape (32, 32, 3)"),
        ({"images": np.zeros((0, 32, 32, 3), np.uint8), "labels": np.zeros(0, int)}, "holds no images"),
        ({"labels": np.zeros(3, int)}, "expected 12 integers"),
        ({"labels": np.full(12, 10)}, "10 classes"),
    ],
)
def test_bad_data_is_named(run, tmp_path, changes, words):
    name = small_npz(tmp_path / "d.npz", **changes)
    status, text = run("evaluate", "demo", "--data", name, "--steps", 0)
    assert status == 2
    assert words in " ".join(text.split())


def test_a_truncated_npz_is_refused(run, tmp_path):
    name = small_npz(tmp_path / "d.npz")
    (tmp_path / "d.npz").write_bytes((tmp_path / "d.npz").read_bytes()[:2000])
    assert run("evaluate", "demo", "--data", name)[0] == 2


def test_an_interrupted_compression_leaves_no_folder(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\nfrom gdws import models\n\n"
        "def make():\n    Path.cwd().with_suffix('.ready').touch()\n    return models.embedded()\n"
    )
    command = [sys.executable, "-m", "gdws", "compress", "../mine.py:make", "--out", "o", "--no-cache", "--images", "500"]
    statuses = {signal.SIGINT: 130, signal.SIGKILL: -9}
    processes = {}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup in a script has children ignore it
    try:
        for kill in statuses:
            (tmp_path / kill.name).mkdir()
            processes[kill] = subprocess.Popen(
                command,
                cwd=tmp_path / kill.name,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        patience = time.monotonic() + 120
        while time.monotonic() < patience and not all((tmp_path / f"{kill.name}.ready").exists() for kill in statuses):
            time.sleep(0.1)
        time.sleep(2)  # past the imports and the model, well before the end
        for kill, process in processes.items():
            assert process.poll() is None
            process.send_signal(kill)
            _, text = process.communicate(timeout=60)
            assert process.returncode == statuses[kill]
            assert "Traceback" not in text
            assert ("gdws: interrupted: no network was written" in text) == (kill == signal.SIGINT)
            assert list((tmp_path / kill.name).iterdir()) == []
    finally:
        signal.signal(signal.SIGINT, before)
        for process in processes.values():
            process.kill()
            process.communicate()


def test_commands_do_not_wait_for_what_they_do_not_use():
    """torch.compile's backend takes a second to import."""
    code = "import sys, gdws.cli; sys.exit(any(name.startswith('torch._inductor') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
