"""ONNX files as models by name, and as what folders of compressed networks were made from."""

import shutil

import pytest
import torch
from helpers import network
from onnx import helper
from onnx_graphs import floats, save

import gdws
from gdws.core.errors import GdwsError
from gdws.deploy.onnx.reading import read_signature
from gdws.deploy.onnx.straight_through import StraightThrough
from gdws.models import resolve
from gdws.models.names import BaseNeeded

IMAGES = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with net.onnx and two compressed versions: `fast` has an exported file, `layers` has none."""
    folder = tmp_path_factory.mktemp("made")
    gdws.to_onnx(network(), folder / "net.onnx", IMAGES[:1])
    model = resolve(str(folder / "net.onnx"))
    fast = gdws.compress(model, [IMAGES], gdws.Macs(0.7), "uniform")
    gdws.save(fast, folder / "fast", base="net.onnx")
    gdws.save(fast, folder / "layers", base="net.onnx", export=False)
    return folder, fast


def test_a_file_is_a_model_by_its_name(made):
    model = resolve(str(made[0] / "net.onnx"))
    torch.testing.assert_close(model(IMAGES), network()(IMAGES), atol=1e-5, rtol=1e-4)
    with pytest.raises(GdwsError, match=r"there is no file missing.onnx: expected an ONNX model"):
        resolve("missing.onnx")


@pytest.mark.parametrize("where", ["here", "beside"])
def test_a_folder_finds_the_file_that_it_was_made_from(made, where, monkeypatch, tmp_path):
    monkeypatch.chdir(made[0] if where == "here" else tmp_path)
    for name in ("fast", "layers"):
        read = resolve(str(made[0] / name), layers=True)
        torch.testing.assert_close(read(IMAGES), made[1](IMAGES), atol=1e-5, rtol=1e-4)
        assert not isinstance(read, StraightThrough)


def test_the_file_of_a_folder_takes_as_many_images_as_the_file_that_it_came_from(tmp_path):
    """Bug: a file for one image became one for three, the number of images that it is tried with."""
    weights = {"w": floats(16, 16, 3, 3), "v": floats(16, 3, 3, 3)}
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w"], ["y"], "second", pads=[1, 1, 1, 1]),
    ]
    path = save(tmp_path / "one.onnx", nodes, {"x": [1, 3, 8, 8]}, {"y": None}, weights)
    gdws.save(gdws.compress(resolve(str(path)), [IMAGES], gdws.Macs(0.7), "uniform"), tmp_path / "fast")
    assert read_signature(tmp_path / "fast" / "model.onnx") == read_signature(path)


def test_a_file_elsewhere_is_not_opened_for_a_folder(made, monkeypatch, tmp_path):
    """A stranger's folder may name any path, on another machine too."""
    for name in ("fast", "layers"):
        shutil.copytree(made[0] / name, tmp_path / "sent" / name)
        record = tmp_path / "sent" / name / "gdws.json"
        record.write_text(record.read_text().replace('"net.onnx"', f'"{made[0]}/net.onnx"'))
    monkeypatch.chdir(tmp_path)
    assert isinstance(resolve("sent/fast"), StraightThrough)
    with pytest.raises(BaseNeeded, match="which is not beside it: expected --base"):
        resolve("sent/layers")
    read = resolve("sent/layers", base=str(made[0] / "net.onnx"))
    torch.testing.assert_close(read(IMAGES), made[1](IMAGES), atol=1e-5, rtol=1e-4)
